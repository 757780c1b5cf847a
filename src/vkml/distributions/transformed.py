"""Distributions of what becomes of other draws."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.distributions.distribution import Distribution, Parameter
from vkml.distributions.independent import summed
from vkml.distributions.normal import Normal
from vkml.distributions.transforms import ComposeTransform, ExpTransform, Transform
from vkml.tensors import Tensor
from vkml.tensors import operations as op


class TransformedDistribution(Distribution):
    """What monotone functions of elements make of draws.

    Args:
        base_distribution: from which is drawn.
        transforms: the functions, the first of which is applied first.
        validate_args: see `Distribution`.

    Example:
        >>> import vkml
        >>> from vkml.distributions import Normal, TanhTransform, TransformedDistribution
        >>> given = TransformedDistribution(Normal(0.0, 1.0), [TanhTransform()])
        >>> round(given.log_prob(vkml.tensor(0.5)).item(), 4)
        -0.7821
    """

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.base_dist = base_distribution
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        self._whole = ComposeTransform(self.transforms)
        super().__init__(base_distribution.batch_shape, base_distribution.event_shape, validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether gradients flow from draws to parameters."""
        return self.base_dist.has_rsample

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, through which no gradients flow.

        Args:
            sample_shape: how many of the whole batch.
        """
        return self._whole(self.base_dist.sample(sample_shape)).detach()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, made of the parameters so that gradients flow to these.

        Args:
            sample_shape: see `sample`.
        """
        return self._whole(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at values.

        Args:
            value: of a shape that broadcasts with [batch_shape, event_shape].
        """
        found: Tensor | None = None
        axes = len(self.event_shape)
        for part in reversed(self.transforms):
            x = part.inverse(value)
            slope = summed(part.log_abs_det_jacobian(x, value), axes)
            found = -slope if found is None else found - slope
            value = x
        drawn = self.base_dist.log_prob(value)
        return drawn if found is None else drawn + found

    def cdf(self, value: Tensor) -> Tensor:
        """How likely a draw is at most a value.

        Args:
            value: of a shape that broadcasts with the batch.
        """
        return self._turned(self.base_dist.cdf(self._whole.inverse(value)))

    def icdf(self, value: Tensor) -> Tensor:
        """What a draw is at most with a probability.

        Args:
            value: the probability.
        """
        return self._whole(self.base_dist.icdf(self._turned(value)))

    def _turned(self, share: Tensor) -> Tensor:
        """A probability counted from the other end, where the functions together fall."""
        sign = self._whole.sign
        return share if isinstance(sign, int) and sign == 1 else (share - 0.5) * sign + 0.5


class LogNormal(TransformedDistribution):
    """Numbers whose logarithms are normally distributed.

    Args:
        loc: the logarithms' mean.
        scale: their standard deviation, above 0.
        validate_args: see `Distribution`.

    Raises:
        ValueError: a standard deviation is not above 0.
    """

    base_dist: Normal

    def __init__(self, loc: Parameter, scale: Parameter, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale, validate_args), ExpTransform(), validate_args)

    @property
    def loc(self) -> Tensor:
        """The logarithms' mean."""
        return self.base_dist.loc

    @property
    def scale(self) -> Tensor:
        """Their standard deviation."""
        return self.base_dist.scale

    @property
    def mean(self) -> Tensor:
        """The mean of what is drawn."""
        return op.exp(self.loc + op.square(self.scale) * 0.5)

    @property
    def mode(self) -> Tensor:
        """What is likelier than anything else."""
        return op.exp(self.loc - op.square(self.scale))

    @property
    def variance(self) -> Tensor:
        """The mean squared distance from the mean."""
        square = op.square(self.scale)
        return op.expm1(square) * op.exp(self.loc * 2 + square)

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        return self.base_dist.entropy() + self.loc
