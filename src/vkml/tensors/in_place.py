"""Methods of tensors that change their elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from vkml.ir.gradients import converted
from vkml.tensors import operations as op
from vkml.tensors.operands import filled, value_as
from vkml.tensors.promotion import category
from vkml.tensors.views import Untracked, untracked
from vkml.tracing import EMITTER, Traced
from vkml.tracing.value import next_serial

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

Real: TypeAlias = float


def _shown(x: Tensor) -> Tensor:
    return x._shown(Untracked())


def _write(x: Tensor, value: Traced) -> Tensor:
    return x._write(value)


def _take(x: Tensor, start: int, made: Tensor) -> Tensor:
    """Gives a tensor the elements of another, for which nothing was applied with a serial below `start`."""
    if made.shape != x.shape:
        raise RuntimeError(f"the result has the shape {list(made.shape)}, the tensor {list(x.shape)}")
    if category(made.dtype) > category(x.dtype):
        raise RuntimeError(f"a result of {made.dtype.numpy_name} does not fit {x.dtype.numpy_name}")
    return x._write(converted(EMITTER, made.value, x.dtype), start)


class InPlace:
    """Methods that change a tensor's elements, and what shows them; most return the tensor."""

    __slots__ = ()

    @property
    def data(self: Any) -> Tensor:
        """The same elements, of which gradients know nothing: what is written there is in the tensor.

        Set, the tensor has the elements of another from then on, of that one's shape, type and device.
        """
        return _shown(self)

    @data.setter
    def data(self: Any, other: Tensor) -> None:
        self._put(untracked(other.value))

    def _become(self: Any, made: Tensor, start: int | None = None) -> Tensor:
        """Takes the elements of another, which must fit.

        Args:
            made: of them.
            start: what was applied to its own elements to make them has no serial below it; where left out,
                no gradient flows through that.
        """
        return _take(self, next_serial() if start is None else start, made)

    def add_(self: Any, other: Any, *, alpha: Real = 1) -> Tensor:
        """Adds to it."""
        return _take(self, next_serial(), op.add(self, other, alpha=alpha))

    def sub_(self: Any, other: Any, *, alpha: Real = 1) -> Tensor:
        """Subtracts from it."""
        return _take(self, next_serial(), op.sub(self, other, alpha=alpha))

    def mul_(self: Any, other: Any) -> Tensor:
        """Multiplies it."""
        return _take(self, next_serial(), op.mul(self, other))

    def div_(self: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
        """Divides it."""
        return _take(self, next_serial(), op.div(self, other, rounding_mode=rounding_mode))

    def lerp_(self: Any, end: Tensor, weight: Any) -> Tensor:
        """Moves it towards another."""
        return _take(self, next_serial(), op.lerp(self, end, weight))

    def clamp_(self: Any, min: Any = None, max: Any = None) -> Tensor:
        """Limits it."""
        return _take(self, next_serial(), op.clamp(self, min, max))

    def zero_(self: Any) -> Tensor:
        """Fills it with zeros."""
        return _write(self, filled(value_as(0, self.dtype), self.shape))

    def fill_(self: Any, value: Any) -> Tensor:
        """Fills it with a number."""
        return _write(self, filled(value_as(value, self.dtype), self.shape))

    def copy_(self: Any, source: Any) -> Tensor:
        """Takes the elements of another tensor, broadcast and converted."""
        value = converted(EMITTER, value_as(source, self.dtype), self.dtype)
        return _write(self, filled(value, self.shape))

    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_
