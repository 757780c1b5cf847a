"""The engine's attention on matrix units by itself, its gradients, and models with and without it."""
