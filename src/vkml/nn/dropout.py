"""Dropout as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from vkml.nn import functional
from vkml.nn.module import Module
from vkml.tensors import Tensor


class _Dropout(Module):
    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Random zeros in training, else what it is given; see `functional.dropout`."""

    function = staticmethod(functional.dropout)


class Dropout1d(_Dropout):
    """Random channels of zeros in training, else what it is given; see `functional.dropout1d`."""

    function = staticmethod(functional.dropout1d)


class Dropout2d(_Dropout):
    """Random channels of zeros in training, else what it is given; see `functional.dropout2d`."""

    function = staticmethod(functional.dropout2d)


class Dropout3d(_Dropout):
    """Random channels of zeros in training, else what it is given; see `functional.dropout3d`."""

    function = staticmethod(functional.dropout3d)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean and variance, in training alone; see `functional.alpha_dropout`."""

    function = staticmethod(functional.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels; see `functional.feature_alpha_dropout`."""

    function = staticmethod(functional.feature_alpha_dropout)
