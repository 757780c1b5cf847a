"""Uniform distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.distributions.distribution import Distribution, Parameter, broadcast
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.random import rand


class Uniform(Distribution):
    """Numbers of an interval, equally likely.

    Args:
        low: the least, which may be drawn.
        high: the end, which may not; above `low`.
        validate_args: see `Distribution`.

    Raises:
        ValueError: an interval is empty, and they are numbers, or elements are looked at.
    """

    has_rsample = True

    def __init__(self, low: Parameter, high: Parameter, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast(low, high)
        super().__init__(self.low.shape, (), validate_args)
        are_numbers = not (isinstance(low, Tensor) or isinstance(high, Tensor))
        if (self._validates or are_numbers) and not bool(op.all(self.low < self.high).item()):
            raise ValueError(f"Uniform is not defined when low >= high: {low}, {high}")

    @property
    def mean(self) -> Tensor:
        """The middle."""
        return (self.low + self.high) * 0.5

    @property
    def mode(self) -> Tensor:
        """Not a number: all are equally likely."""
        return self.low * math.nan

    @property
    def variance(self) -> Tensor:
        """A twelfth of the squared width."""
        return op.square(self._width) / 12

    @property
    def stddev(self) -> Tensor:
        """The root of the variance."""
        return self._width / math.sqrt(12)

    @property
    def _width(self) -> Tensor:
        return self.high - self.low

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, made of the parameters so that gradients flow to these.

        Args:
            sample_shape: see `sample`.
        """
        drawn = rand(*self._extended(sample_shape), dtype=self.low.dtype, device=self.low.device)
        return self.low + drawn * self._width

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at values: -∞ outside.

        Args:
            value: of a shape that broadcasts with the batch.

        Raises:
            ValueError: one lies outside, and elements are looked at.
        """
        self._require(
            "value",
            value,
            lambda x: op.logical_and(op.ge(x, self.low), op.le(x, self.high)),
            "in the interval",
        )
        is_inside = op.logical_and(op.ge(value, self.low), op.lt(value, self.high))
        return op.where(is_inside, op.neg(op.log(self._width)), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """How likely a draw is at most a value.

        Args:
            value: of a shape that broadcasts with the batch.
        """
        return op.clamp((value - self.low) / self._width, 0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        """What a draw is at most with a probability.

        Args:
            value: the probability.
        """
        return value * self._width + self.low

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        return op.log(self._width)
