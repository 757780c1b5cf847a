"""Normal distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.distributions.distribution import Distribution, Parameter, broadcast
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.error_functions import ndtr
from vkml.tensors.random import randn


class Normal(Distribution):
    """Normal distributions.

    Args:
        loc: the mean.
        scale: the standard deviation, above 0.
        validate_args: see `Distribution`.

    Raises:
        ValueError: a standard deviation is not above 0.

    Example:
        >>> import vkml
        >>> given = vkml.distributions.Normal(0.0, vkml.tensor([1.0, 2.0]))
        >>> given.sample((3,)).shape
        vkml.Size([3, 2])
        >>> round(given.log_prob(vkml.tensor(0.0))[0].item(), 4)
        -0.9189
    """

    has_rsample = True

    def __init__(self, loc: Parameter, scale: Parameter, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)
        self._require("scale", scale, lambda scale: op.gt(scale, 0), "above 0")

    @property
    def mean(self) -> Tensor:
        """The mean of what is drawn."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The mean."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """Its square."""
        return op.square(self.scale)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, made of the parameters so that gradients flow to these.

        Args:
            sample_shape: see `sample`.
        """
        drawn = randn(*self._extended(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + drawn * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at values.

        Args:
            value: of a shape that broadcasts with the batch.
        """
        distance = op.div(op.sub(value, self.loc), self.scale)
        return op.sub(
            op.mul(op.square(distance), -0.5), op.add(op.log(self.scale), math.log(2 * math.pi) / 2)
        )

    def cdf(self, value: Tensor) -> Tensor:
        """How likely a draw is at most a value.

        Args:
            value: of a shape that broadcasts with the batch.
        """
        return ndtr((value - self.loc) / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        """What a draw is at most with a probability.

        Args:
            value: the probability.
        """
        return op.add(
            self.loc, op.mul(op.erfinv(op.sub(op.mul(value, 2), 1)), op.mul(self.scale, math.sqrt(2)))
        )

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        return op.log(self.scale) + (0.5 + math.log(2 * math.pi) / 2)
