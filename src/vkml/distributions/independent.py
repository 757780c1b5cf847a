"""Distributions whose batch is what is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.distributions.distribution import Distribution
from vkml.tensors import Tensor
from vkml.tensors import operations as op


class Independent(Distribution):
    """Draws of a batch's last axes as one.

    Args:
        base_distribution: of each element.
        reinterpreted_batch_ndims: how many axes.
        validate_args: see `Distribution`.

    Raises:
        ValueError: the batch has fewer axes.

    Example:
        >>> import vkml
        >>> from vkml.distributions import Independent, Normal
        >>> given = Independent(Normal(vkml.zeros(4, 3), 1.0), 1)
        >>> given.batch_shape, given.event_shape
        (vkml.Size([4]), vkml.Size([3]))
    """

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        batch = tuple(base_distribution.batch_shape)
        kept = len(batch) - reinterpreted_batch_ndims
        if not 0 <= reinterpreted_batch_ndims <= len(batch):
            raise ValueError(
                f"Expected reinterpreted_batch_ndims <= {len(batch)}, the axes of the batch, and at least 0, "
                f"not {reinterpreted_batch_ndims}"
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        super().__init__(batch[:kept], (*batch[kept:], *base_distribution.event_shape), validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether gradients flow from draws to parameters."""
        return self.base_dist.has_rsample

    @property
    def mean(self) -> Tensor:
        """The mean of what is drawn."""
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        """What is likelier than anything else."""
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        """The mean squared distance from the mean."""
        return self.base_dist.variance

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, through which no gradients flow.

        Args:
            sample_shape: how many of the whole batch.
        """
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, made of the parameters so that gradients flow to these.

        Args:
            sample_shape: see `sample`.
        """
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, of all elements of a draw.

        Args:
            value: of a shape that broadcasts with [batch_shape, event_shape].
        """
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        return self._summed(self.base_dist.entropy())

    def _summed(self, each: Tensor) -> Tensor:
        return summed(each, self.reinterpreted_batch_ndims)


def summed(x: Tensor, axes: int) -> Tensor:
    """The sums over so many last axes."""
    return op.sum(x, tuple(range(-axes, 0))) if axes else x
