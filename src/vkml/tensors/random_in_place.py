"""Methods of tensors that fill them with random numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from vkml.ir import DType, dtypes
from vkml.ir.dtypes import FLOAT32, FLOAT64
from vkml.ir.gradients import converted, expanded
from vkml.tracing import EMITTER, Traced
from vkml.tracing.value import tracking

if TYPE_CHECKING:
    from vkml.tensors.generator import Generator
    from vkml.tensors.tensor import Tensor


def _filled(x: Tensor, draw: str, dtype: DType, generator: Generator | None, *parameters: Any) -> Tensor:
    """A tensor of the shape of another, of what a function of `vkml.tensors.random` draws."""
    from vkml.tensors import random  # needs tensors, which have these methods
    from vkml.tensors.generator import generator_of
    from vkml.tensors.tensor import Tensor

    stream = generator_of(x.device, generator)
    with tracking(False):
        drawn: Traced = getattr(random, draw)(stream, x.shape, dtype, *parameters)
        return Tensor(drawn)


def _take(x: Tensor, drawn: Tensor) -> Tensor:
    with tracking(False):
        value = expanded(EMITTER, converted(EMITTER, drawn.value, x.dtype), x.shape)
    return x._write(value)


def _float(x: Tensor) -> DType:
    if not x.dtype.is_float:
        raise RuntimeError(f"a tensor of {x.dtype.numpy_name} is filled with random numbers by random_()")
    return x.dtype


class RandomInPlace:
    """Methods that fill a tensor with random numbers, of its device's generator or of one that is given.

    Each returns the tensor.
    """

    __slots__ = ()

    def uniform_(
        self: Any, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None
    ) -> Tensor:
        """Numbers from [from, to), equally likely."""
        if from_ > to:
            raise RuntimeError(f"uniform_ from {from_} to {to}: there are no such numbers")
        return _take(self, _filled(self, "uniform_value", _float(self), generator, from_, to))

    def normal_(
        self: Any, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
    ) -> Tensor:
        """Numbers of a normal distribution."""
        if std < 0:
            raise RuntimeError(f"a standard deviation is not negative: {std}")
        return _take(self, _filled(self, "normal_value", _float(self), generator) * std + mean)

    def log_normal_(
        self: Any, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
    ) -> Tensor:
        """Numbers whose logarithms are of a normal distribution."""
        drawn = _filled(self, "normal_value", _float(self), generator)
        return _take(self, (drawn * std + mean).exp())

    def bernoulli_(self: Any, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
        """1 with a probability, or with those of a tensor's elements, else 0."""
        return _take(self, _filled(self, "bernoulli_value", self.dtype, generator, p))

    def exponential_(self: Any, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the exponential distribution of a rate; above 0."""
        if lambd <= 0:
            raise RuntimeError(f"exponential_ needs a rate above 0, not {lambd}")
        return _take(self, _filled(self, "exponential_value", _float(self), generator, lambd))

    def geometric_(self: Any, p: float, *, generator: Generator | None = None) -> Tensor:
        """How many trials it takes until one of a probability succeeds."""
        if not 0 < p < 1:
            raise RuntimeError(f"geometric_ needs a probability of (0, 1), not {p}")
        kind = self.dtype if self.dtype.is_float else FLOAT32
        return _take(self, _filled(self, "exponential_value", kind, generator, -math.log1p(-p)).ceil())

    def cauchy_(
        self: Any, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
    ) -> Tensor:
        """Numbers of a Cauchy distribution."""
        turn = math.pi / 2
        drawn = _filled(self, "uniform_value", _float(self), generator, -turn, turn)
        return _take(self, drawn.tan() * sigma + median)

    def random_(
        self: Any, from_: int = 0, to: int | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        """Integers from [from, to), or all from 0 that the type has; `random_(to)` has them from 0 on."""
        kind: DType = self.dtype
        low, high = (0, from_) if to is None and from_ else (from_, to)
        if high is None:
            digits = {dtypes.FLOAT16: 11, dtypes.BFLOAT16: 8, FLOAT32: 24, FLOAT64: 53, dtypes.BOOL: 1}
            high = 1 << digits.get(kind, kind.bits - (kind.kind == "i"))
        drawn_as = dtypes.INT32 if kind == dtypes.BOOL else kind
        return _take(self, _filled(self, "integers_value", drawn_as, generator, low, high))
