"""Bernoulli distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.distributions.distribution import Distribution, Parameter, broadcast
from vkml.nn import functional
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.random import bernoulli
from vkml.tensors.type_information import finfo


class Bernoulli(Distribution):
    """1 with a probability, else 0.

    Args:
        probs: of 1; or ...
        logits: ... the logarithm of how much likelier that is than 0.
        validate_args: see `Distribution`.

    Raises:
        ValueError: both are given, or none; or a probability is none.
    """

    def __init__(
        self,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        self._by_probs = probs is not None
        given = probs if probs is not None else logits
        assert given is not None
        [self._given] = broadcast(given)
        super().__init__(self._given.shape, (), validate_args)
        if self._by_probs:
            self._require("probs", given, lambda p: op.logical_and(op.ge(p, 0), op.le(p, 1)), "in [0, 1]")

    @property
    def probs(self) -> Tensor:
        """The probability of 1."""
        return self._given if self._by_probs else op.sigmoid(self._given)

    @property
    def logits(self) -> Tensor:
        """The logarithm of how much likelier 1 is than 0."""
        if not self._by_probs:
            return self._given
        least = finfo(self._given.dtype).eps
        kept = op.clamp(self._given, least, 1 - least)
        return op.log(kept) - op.log1p(-kept)

    @property
    def mean(self) -> Tensor:
        """The probability of 1."""
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The likelier one; not a number where both are as likely."""
        likelier = op.ge(self.probs, 0.5).to(self._given.dtype)
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
        return functional.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")
