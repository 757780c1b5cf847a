"""What distributions by one probability have in common."""

from __future__ import annotations

from vkml.distributions.distribution import Distribution, Parameter, broadcast
from vkml.nn import functional
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.type_information import finfo


class OfProbability(Distribution):
    """Distributions by the probability that something happens.

    Args:
        probs: of its happening; or ...
        logits: ... the logarithm of how much likelier that is than that it does not.
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
        """The probability."""
        return self._given if self._by_probs else op.sigmoid(self._given)

    @property
    def logits(self) -> Tensor:
        """The logarithm of how much likelier it is than that of the contrary."""
        if not self._by_probs:
            return self._given
        least = finfo(self._given.dtype).eps
        kept = op.clamp(self._given, least, 1 - least)
        return op.log(kept) - op.log1p(-kept)

    def _entropy_of_one(self) -> Tensor:
        """The mean of what is told by whether it happens, in nats."""
        return functional.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")
