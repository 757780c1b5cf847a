"""What all distributions have: shapes, draws, and what follows from mean, variance and entropy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from vkml.errors import NotDifferentiable
from vkml.tensors import Size, Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.creation import as_tensor
from vkml.tensors.promotion import get_default_dtype

Parameter: TypeAlias = Tensor | float


class Distribution:
    """Distributions of one kind, one for each element of a batch.

    Args:
        batch_shape: of the parameters.
        event_shape: of one draw; () for numbers.
        validate_args: True: elements of parameters and values are looked at, and refused where they do not
            fit; which a captured function cannot. Else numbers alone are.
    """

    has_rsample = False
    """Whether gradients flow from draws to parameters."""

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self.batch_shape = Size(batch_shape)
        self.event_shape = Size(event_shape)
        self._validates = bool(validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean of what is drawn."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """What is likelier than anything else."""
        raise NotImplementedError(f"{type(self).__name__} has no mode")

    @property
    def variance(self) -> Tensor:
        """The mean squared distance from the mean."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The root of the variance."""
        return op.sqrt(self.variance)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, through which no gradients flow.

        Args:
            sample_shape: how many of the whole batch.

        Returns:
            Of shape [sample_shape, batch_shape, event_shape].
        """
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, made of the parameters so that gradients flow to these.

        Args:
            sample_shape: see `sample`.

        Raises:
            NotDifferentiable: there is no such way of drawing; a RuntimeError, too.
        """
        raise NotDifferentiable(
            f"{type(self).__name__}: no gradients flow from draws to parameters; see sample"
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, at values.

        Args:
            value: of a shape that broadcasts with [batch_shape, event_shape].
        """
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """How likely a draw is at most a value.

        Args:
            value: of a shape that broadcasts with the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """What a draw is at most with a probability.

        Args:
            value: the probability.
        """
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    def entropy(self) -> Tensor:
        """The mean of what a draw tells, in nats."""
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        """e to the power of the entropy."""
        return op.exp(self.entropy())

    def _extended(self, sample_shape: Sequence[int]) -> tuple[int, ...]:
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def _require(self, name: str, given: Parameter, fits: Callable[[Tensor], Tensor], what: str) -> None:
        """Refuses what does not fit, of numbers always, of tensors where these are looked at.

        Args:
            name: of what is given.
            given: a number or a tensor.
            fits: where it does.
            what: it has to be.

        Raises:
            ValueError: an element does not fit.
        """
        if isinstance(given, Tensor) and not self._validates:
            return
        if not bool(op.all(fits(as_tensor(given))).item()):
            raise ValueError(f"{type(self).__name__}: {name} has to be {what}, {given} is not")

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"{type(self).__name__}({shapes})"


def broadcast(*given: Parameter) -> list[Tensor]:
    """Parameters as tensors of one shape, of the type and on the device of those that are tensors."""
    known = next((value for value in given if isinstance(value, Tensor)), None)
    dtype = get_default_dtype() if known is None or not known.dtype.is_float else known.dtype
    device = None if known is None else known.device
    made = [x if isinstance(x, Tensor) else as_tensor(x, dtype=dtype, device=device) for x in given]
    return list(op.broadcast_tensors(*made))
