"""Bernoulli distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.distributions.distribution import broadcast
from vkml.distributions.probability import OfProbability
from vkml.nn import functional
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.random import bernoulli


class Bernoulli(OfProbability):
    """1 with a probability, else 0.

    Args:
        probs: of 1; or ...
        logits: ... the logarithm of how much likelier that is than 0.
        validate_args: see `Distribution`.

    Raises:
        ValueError: both are given, or none; or a probability is none.
    """

    @property
    def mean(self) -> Tensor:
        """The probability of 1."""
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The likelier one; not a number where both are as likely."""
        likelier = op.ge(self.probs, 0.5).to(self.probs.dtype)
        return op.where(op.eq(self.probs, 0.5), math.nan, likelier)

    @property
    def variance(self) -> Tensor:
        """The product of both probabilities."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, through which no gradients flow.

        Args:
            sample_shape: how many of the whole batch.
        """
        with no_grad():
            return bernoulli(op.expand(self.probs, *self._extended(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of values.

        Args:
            value: 0 or 1, of a shape that broadcasts with the batch.

        Raises:
            ValueError: one is neither, and elements are looked at.
        """
        self._require("value", value, lambda x: op.logical_or(op.eq(x, 0), op.eq(x, 1)), "0 or 1")
        logits, value = broadcast(self.logits, value)
        return -functional.binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        return self._entropy_of_one()
