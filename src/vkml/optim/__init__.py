"""Optimizers, as in `torch.optim`."""

from vkml.optim.adam import Adam, AdamW
from vkml.optim.optimizer import Optimizer
from vkml.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
