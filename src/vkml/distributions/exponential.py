"""Exponential distributions."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.distributions.distribution import Distribution, Parameter, broadcast
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.random import rand


class Exponential(Distribution):
    """Times until something happens that happens at a rate.

    Args:
        rate: how often in a unit of time, above 0.
        validate_args: see `Distribution`.

    Raises:
        ValueError: a rate is not above 0.
    """

    has_rsample = True

    def __init__(self, rate: Parameter, validate_args: bool | None = None) -> None:
        [self.rate] = broadcast(rate)
        super().__init__(self.rate.shape, (), validate_args)
        self._require("rate", rate, lambda rate: op.gt(rate, 0), "above 0")

    @property
    def mean(self) -> Tensor:
        """The inverse of the rate."""
        return op.reciprocal(self.rate)

    @property
    def mode(self) -> Tensor:
        """0."""
        return self.rate * 0

    @property
    def stddev(self) -> Tensor:
        """The mean."""
        return self.mean

    @property
    def variance(self) -> Tensor:
        """Its square."""
        return op.square(self.mean)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, made of the parameters so that gradients flow to these.

        Args:
            sample_shape: see `sample`.
        """
        drawn = rand(*self._extended(sample_shape), dtype=self.rate.dtype, device=self.rate.device)
        return -op.log1p(-drawn) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at values.

        Args:
            value: at least 0, of a shape that broadcasts with the batch.

        Raises:
            ValueError: one is below 0, and elements are looked at.
        """
        self._require("value", value, lambda x: op.ge(x, 0), "at least 0")
        return op.log(self.rate) - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        """How likely a draw is at most a value.

        Args:
            value: at least 0, of a shape that broadcasts with the batch.
        """
        return -op.expm1(-self.rate * value)

    def icdf(self, value: Tensor) -> Tensor:
        """What a draw is at most with a probability.

        Args:
            value: the probability.
        """
        return -op.log1p(-value) / self.rate

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        return 1 - op.log(self.rate)
