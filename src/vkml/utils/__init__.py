"""Tools beside tensors and layers, as in `torch.utils`."""

from vkml.utils import checkpoint

__all__ = ["checkpoint"]
