"""How often something happens in a number of trials: binomial and multinomial distributions."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.distributions.categorical import Categorical
from vkml.distributions.distribution import Distribution, Parameter
from vkml.distributions.probability import OfProbability
from vkml.nn.functional import one_hot, softplus
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.creation import arange
from vkml.tensors.random import rand


class Binomial(OfProbability):
    """How often something happens in a number of trials.

    Args:
        total_count: the number of trials. A draw takes as many random numbers.
        probs: of its happening in one; or ...
        logits: ... the logarithm of how much likelier that is than that it does not.
        validate_args: see `Distribution`.

    Raises:
        ValueError: both are given, or none; a probability is none; or the number is below 0.
    """

    def __init__(
        self,
        total_count: int = 1,
        probs: Parameter | None = None,
        logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if total_count < 0:
            raise ValueError(f"Binomial: total_count is at least 0, not {total_count}")
        super().__init__(probs, logits, validate_args)
        self.total_count = int(total_count)

    @property
    def mean(self) -> Tensor:
        """The trials' number times the probability."""
        return self.probs * self.total_count

    @property
    def mode(self) -> Tensor:
        """What is likelier than anything else."""
        return op.clamp(op.floor(self.probs * (self.total_count + 1)), None, self.total_count)

    @property
    def variance(self) -> Tensor:
        """The mean squared distance from the mean."""
        return self.mean * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, through which no gradients flow.

        Args:
            sample_shape: how many of the whole batch.
        """
        with no_grad():
            probs = self.probs
            size = self.total_count, *self._extended(sample_shape)
            happens = op.lt(rand(*size, dtype=probs.dtype, device=probs.device), probs)
            return op.sum(happens.to(probs.dtype), 0)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of values.

        Args:
            value: whole numbers up to that of the trials, of a shape that broadcasts with the batch.

        Raises:
            ValueError: one is none, and elements are looked at.
        """
        most = self.total_count
        self._require(
            "value",
            value,
            lambda x: op.logical_and(op.eq(x, op.floor(x)), op.logical_and(op.ge(x, 0), op.le(x, most))),
            f"a whole number of 0 to {most}",
        )
        value = value.to(self.probs.dtype)
        ways = op.lgamma(value * 0 + (most + 1)) - op.lgamma(value + 1) - op.lgamma(most - value + 1)
        return ways + value * self.logits - softplus(self.logits) * most

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        probs = self.probs
        values = arange(self.total_count + 1, dtype=probs.dtype, device=probs.device)
        found = self.log_prob(op.reshape(values, (-1, *[1] * probs.ndim)))
        return -op.sum(op.exp(found) * found, 0)


class Multinomial(Distribution):
    """How often each of several things happens in a number of trials, in each of which one does.

    Args:
        total_count: the number of trials.
        probs: along the last axis, in proportion to the probabilities; or ...
        logits: ... their logarithms, each plus any number.
        validate_args: see `Distribution`.

    Raises:
        ValueError: both are given, or none; or they have no axis; or the number is below 0.
    """

    def __init__(
        self, total_count: int = 1, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        if total_count < 0:
            raise ValueError(f"Multinomial: total_count is at least 0, not {total_count}")
        self.total_count = int(total_count)
        self._one = Categorical(probs, logits, validate_args)
        super().__init__(self._one.batch_shape, self._one.probs.shape[-1:], validate_args)

    @property
    def probs(self) -> Tensor:
        """The probabilities, whose sum is 1."""
        return self._one.probs

    @property
    def logits(self) -> Tensor:
        """Their logarithms."""
        return self._one.logits

    @property
    def mean(self) -> Tensor:
        """The trials' number times the probabilities."""
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        """The mean squared distance of each count from its mean."""
        return self.mean * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, through which no gradients flow.

        Args:
            sample_shape: how many of the whole batch.
        """
        drawn = self._one.sample((self.total_count, *sample_shape))
        return op.sum(one_hot(drawn, self.event_shape[0]).to(self.probs.dtype), 0)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of values.

        Args:
            value: counts, of a shape that broadcasts with [batch_shape, event_shape].

        Raises:
            ValueError: their sum is not the number of trials, and elements are looked at.
        """
        count = self.total_count
        self._require("value", value, lambda x: op.eq(op.sum(x, -1), count), f"counts of the sum {count}")
        value = value.to(self.probs.dtype)
        ways = op.lgamma(op.sum(value, -1) + 1) - op.sum(op.lgamma(value + 1), -1)
        never = op.logical_and(op.eq(value, 0), op.isneginf(self.logits))
        return ways + op.sum(op.where(never, 0.0, value * self.logits), -1)

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        count, probs = self.total_count, self.probs
        values = arange(1, count + 1, dtype=probs.dtype, device=probs.device)
        values = op.reshape(values, (-1, *[1] * probs.ndim))
        shares = op.exp(Binomial(count, probs).log_prob(values)) * op.lgamma(values + 1)
        ways = op.lgamma(op.sum(probs, -1) * 0 + (count + 1))
        return self._one.entropy() * count - ways + op.sum(shares, (0, -1))
