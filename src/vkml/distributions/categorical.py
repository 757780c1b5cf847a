"""Categorical distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.distributions.distribution import Distribution
from vkml.ir.dtypes import INT64
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.random import multinomial
from vkml.tensors.type_information import finfo


class Categorical(Distribution):
    """Numbers of categories, each with a probability.

    Args:
        probs: along the last axis, in proportion to the probabilities; or ...
        logits: ... their logarithms, each plus any number.
        validate_args: see `Distribution`.

    Raises:
        ValueError: both are given, or none; or they have no axis; or a probability is negative, and elements
            are looked at.

    Example:
        >>> import vkml
        >>> given = vkml.distributions.Categorical(vkml.tensor([1.0, 1.0, 2.0]))
        >>> given.log_prob(vkml.tensor(2)).exp().item()
        0.5
    """

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        given = logits if probs is None else probs
        if given is None or (probs is not None and logits is not None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        if not given.ndim:
            raise ValueError("`probs` and `logits` have at least one axis, that of categories")
        super().__init__(given.shape[:-1], (), validate_args)
        self._by_probs = probs is not None
        if self._by_probs:
            self._require("probs", given, lambda p: op.ge(p, 0), "at least 0")
            self._given = given / op.sum(given, -1, keepdim=True)
        else:
            self._given = given - op.logsumexp(given, -1, keepdim=True)

    @property
    def probs(self) -> Tensor:
        """The probabilities, whose sum is 1."""
        return self._given if self._by_probs else op.softmax(self._given, -1)

    @property
    def logits(self) -> Tensor:
        """Their logarithms."""
        if not self._by_probs:
            return self._given
        least = finfo(self._given.dtype).eps
        return op.log(op.clamp(self._given, least, 1 - least))

    @property
    def mean(self) -> Tensor:
        """Not a number: categories are not added."""
        return self.mode.to(self._given.dtype) * math.nan

    @property
    def mode(self) -> Tensor:
        """The likeliest category."""
        return op.argmax(self._given, -1)

    @property
    def variance(self) -> Tensor:
        """Not a number: categories are not added."""
        return self.mean

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, through which no gradients flow.

        Args:
            sample_shape: how many of the whole batch.
        """
        with no_grad():
            rows = op.reshape(self.probs, -1, self._given.shape[-1])
            drawn = multinomial(rows, math.prod(sample_shape), replacement=True)
            return op.reshape(op.transpose(drawn, 0, 1), *self._extended(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of categories.

        Args:
            value: their numbers, of a shape that broadcasts with the batch.

        Raises:
            ValueError: there is none of such a number, and elements are looked at.
        """
        count = self._given.shape[-1]
        self._require("value", value, lambda x: (x >= 0) & (x < count), f"in 0 … {count - 1}")
        shape = op.broadcast_shapes(tuple(value.shape), tuple(self.batch_shape))
        places = op.unsqueeze(op.expand(value.to(INT64), *shape), -1)
        return op.squeeze(op.gather(op.expand(self.logits, *shape, count), -1, places), -1)

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        logits = op.clamp(self.logits, min=finfo(self._given.dtype).min)
        return -op.sum(logits * self.probs, -1)
