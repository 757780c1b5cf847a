"""Geometric distributions."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.distributions.distribution import Parameter
from vkml.distributions.probability import OfProbability
from vkml.special import xlog1py
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.random import rand


class Geometric(OfProbability):
    """How often something does not happen before it does.

    Args:
        probs: of its happening, above 0; or ...
        logits: ... the logarithm of how much likelier that is than that it does not.
        validate_args: see `Distribution`.

    Raises:
        ValueError: both are given, or none; or a probability is none, or 0.
    """

    def __init__(
        self,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(probs, logits, validate_args)
        if probs is not None:
            self._require("probs", probs, lambda p: op.gt(p, 0), "above 0")

    @property
    def mean(self) -> Tensor:
        """The inverse of the probability, less 1."""
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        """0."""
        return self.probs * 0

    @property
    def variance(self) -> Tensor:
        """The mean over the probability."""
        return self.mean / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, through which no gradients flow.

        Args:
            sample_shape: how many of the whole batch.
        """
        with no_grad():
            probs = self.probs
            drawn = rand(*self._extended(sample_shape), dtype=probs.dtype, device=probs.device)
            return op.floor(op.log1p(-drawn) / op.log1p(-probs))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of values.

        Args:
            value: whole numbers of at least 0, of a shape that broadcasts with the batch.

        Raises:
            ValueError: one is none, and elements are looked at.
        """
        is_whole = "a whole number of at least 0"
        self._require("value", value, lambda x: op.logical_and(op.ge(x, 0), op.eq(x, op.floor(x))), is_whole)
        return xlog1py(value, -self.probs) + op.log(self.probs)

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        return self._entropy_of_one() / self.probs
