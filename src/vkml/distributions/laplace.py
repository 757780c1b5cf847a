"""Laplace distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.distributions.distribution import Distribution, Parameter, broadcast
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.random import rand
from vkml.tensors.type_information import finfo


class Laplace(Distribution):
    """Laplace distributions: exponential ones to both sides of a place.

    Args:
        loc: the place.
        scale: the mean distance from it, above 0.
        validate_args: see `Distribution`.

    Raises:
        ValueError: a scale is not above 0.
    """

    has_rsample = True

    def __init__(self, loc: Parameter, scale: Parameter, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)
        self._require("scale", scale, lambda scale: op.gt(scale, 0), "above 0")

    @property
    def mean(self) -> Tensor:
        """The place."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The place."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """√2 of the scale."""
        return self.scale * math.sqrt(2)

    @property
    def variance(self) -> Tensor:
        """Its square."""
        return op.square(self.scale) * 2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, made of the parameters so that gradients flow to these.

        Args:
            sample_shape: see `sample`.
        """
        dtype = self.loc.dtype
        least = finfo(dtype).eps - 1  # at -1 a draw would be infinite
        drawn = rand(*self._extended(sample_shape), dtype=dtype, device=self.loc.device)
        return self._from(drawn * (1 - least) + least)

    def _from(self, share: Tensor) -> Tensor:
        """What has a share of all draws, from -1 to 1, between the place and itself."""
        return self.loc - self.scale * op.sign(share) * op.log1p(-op.abs(share))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at values.

        Args:
            value: of a shape that broadcasts with the batch.
        """
        return -op.log(self.scale * 2) - op.abs(value - self.loc) / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        """How likely a draw is at most a value.

        Args:
            value: of a shape that broadcasts with the batch.
        """
        apart = value - self.loc
        return 0.5 - op.sign(apart) * op.expm1(-op.abs(apart) / self.scale) * 0.5

    def icdf(self, value: Tensor) -> Tensor:
        """What a draw is at most with a probability.

        Args:
            value: the probability.
        """
        return self._from(value * 2 - 1)

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        return op.log(self.scale * 2) + 1
