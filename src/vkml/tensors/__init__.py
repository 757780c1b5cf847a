"""Tensors with PyTorch's interface: what is done to them is recorded, and computed when it is looked at."""

from vkml.tensors.tensor import Size, Tensor  # first: operations are methods of it

__all__ = ["Size", "Tensor"]
