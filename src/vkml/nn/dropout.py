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
    """`functional.dropout` in training, else what it is given."""

    function = staticmethod(functional.dropout)


class Dropout1d(_Dropout):
    """`functional.dropout1d` in training, else what it is given."""

    function = staticmethod(functional.dropout1d)


class Dropout2d(_Dropout):
    """`functional.dropout2d` in training, else what it is given."""

    function = staticmethod(functional.dropout2d)


class Dropout3d(_Dropout):
    """`functional.dropout3d` in training, else what it is given."""

    function = staticmethod(functional.dropout3d)


class AlphaDropout(_Dropout):
    """`functional.alpha_dropout` in training, else what it is given."""

    function = staticmethod(functional.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """`functional.feature_alpha_dropout` in training, else what it is given."""

    function = staticmethod(functional.feature_alpha_dropout)
