"""Tools beside tensors and layers, as in `torch.utils`."""
