"""Values that nobody writes: what reads them computes them, or reads the parts that they would be made of."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir import TensorType
from vkml.ir.size import is_same
from vkml.ir.types import contiguous_strides
from vkml.kernels.links import Link
from vkml.kernels.row_prologue import RowPrologue
from vkml.kernels.views import Buffer, BufferKind, View, contiguous


class StandIns:
    """What templates ask of such values. Each has to be taken by one of them, or it would have to be made."""

    def __init__(self) -> None:
        self._found: dict[Buffer, RowPrologue | Link | tuple[View, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def __contains__(self, view: View) -> bool:
        return view.buffer in self._found

    def copy(self) -> StandIns:
        """The same, of which others are taken."""
        made = StandIns()
        made._found.update(self._found)
        return made

    @property
    def normalised_rows(self) -> View | None:
        """What is still to be normalised."""
        found = (each.x for each in self._found.values() if isinstance(each, RowPrologue))
        return next(found, None)

    def clear(self) -> None:
        """Forgets all."""
        self._found.clear()

    def normalised(
        self,
        result: TensorType,
        x: View,
        axes: int,
        epsilon: float,
        scale: View | None,
        bias: View | None,
        *,
        is_centred: bool,
    ) -> View:
        """Rows normalised, as `RowPrologue` says."""
        made = _nowhere(result)
        self._found[made.buffer] = RowPrologue(made, x, axes, epsilon, scale, bias, is_centred)
        return made

    def joined(self, result: TensorType, parts: Sequence[View]) -> View:
        """Values (batch, heads, rows, columns) whose rows lie end to end."""
        made = _nowhere(result)
        self._found[made.buffer] = tuple(parts)
        return made

    def linked(self, result: TensorType, link: Link) -> View:
        """What a convolution makes."""
        made = _nowhere(result)
        self._found[made.buffer] = link
        return made

    def take_link(self, x: View) -> Link | None:
        """The convolution that makes what another one reads, where that is to do this itself."""
        found = self._found.get(x.buffer)
        if not isinstance(found, Link) or not x.is_contiguous or x.offset:
            return None
        del self._found[x.buffer]
        return found

    def take_prologue(self, rows: View) -> RowPrologue | None:
        """What makes the rows that a template reads, where it is to do this itself."""
        found = self._found.get(rows.buffer)
        if not isinstance(found, RowPrologue):
            return None
        del self._found[rows.buffer]
        return found

    def take_parts(self, rows: View) -> tuple[View, ...]:
        """The values whose rows lie end to end in a view of four axes; the view where it is of one value."""
        found = self._found.get(rows.buffer)
        if not isinstance(found, tuple) or len(rows.shape) != 4 or rows.offset:
            return (rows,)
        if not all(map(is_same, rows.strides, contiguous_strides(rows.shape))):
            return (rows,)
        del self._found[rows.buffer]
        return found


def _nowhere(type_: TensorType) -> View:
    """A view of a buffer that has no place in memory."""
    return contiguous(Buffer(BufferKind.ACTIVATION, type_.host_bytes), type_)
