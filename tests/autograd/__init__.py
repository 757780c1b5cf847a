"""Gradients of operators: against finite differences, against torch, on every device."""
