"""Schedules of learning rates, as in `torch.optim.lr_scheduler`."""

from vkml.optim.lr_scheduler.base import LRScheduler
from vkml.optim.lr_scheduler.combined import ChainedScheduler, SequentialLR
from vkml.optim.lr_scheduler.cosine import CosineAnnealingLR, CosineAnnealingWarmRestarts
from vkml.optim.lr_scheduler.cyclic import CyclicLR, OneCycleLR
from vkml.optim.lr_scheduler.plateau import ReduceLROnPlateau
from vkml.optim.lr_scheduler.steps import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
    "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR",
    "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip
