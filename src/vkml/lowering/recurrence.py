"""The memory that recurrent layers keep from step to step, for all back ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Constant, DType, TensorType
from vkml.ir.recurrence import Cell
from vkml.kernels.views import View

if TYPE_CHECKING:
    from vkml.lowering.builder import Builder


_BATCH_FIRST = {4: (2, 0, 1, 3), 3: (1, 0, 2)}
"""Axes of the whole output and of states in the order in which batches come first."""


@dataclass(frozen=True)
class RecurrentLayer:
    """A layer as `Builder.recurrence` gets it."""

    cells: Sequence[Cell]
    """One for all directions or one for each; they differ in their scalars only."""
    inputs: View
    """[steps, batch, directions, gates, hidden]: what the inputs add to the gates, in the type of sums."""
    weights: View
    """[directions, gates, hidden, hidden]."""
    vectors: Sequence[View]
    """[directions, hidden] each."""
    lengths: View | None
    """[batch], int32."""
    initial: Sequence[View | None]
    """Of each carried state, [directions, batch, hidden]; zeros where absent."""
    is_reversed: Sequence[bool]
    """For each direction, whether it runs from the last step to the first."""
    dtype: DType
    """Of the results."""
    is_batch_first: bool
    """Whether results are [batch, steps, directions, hidden] and [batch, directions, hidden]."""
    wanted: Sequence[bool]
    """Which of the results the node has: the whole output, then the carried states."""

    @property
    def cell(self) -> Cell:
        return self.cells[0]

    @property
    def state_shape(self) -> tuple[int, int, int]:
        _, batch, directions, _, hidden = self.inputs.shape
        return directions, batch, hidden

    @property
    def has_output(self) -> bool:
        return bool(self.wanted) and self.wanted[0]


@dataclass(frozen=True)
class RecurrentMemory:
    """Where a layer's states and results lie."""

    first: View
    """State 0 before the first step, [directions, batch, hidden]."""
    second: View
    """Where the first step puts it; the two change places at each step."""
    others: tuple[View, ...]
    """The other states, each in one place."""
    output: View | None
    """[steps, directions, batch, hidden]."""
    results: Sequence[View | None]
    copies: Sequence[tuple[View, View]]
    """What `finish` copies."""

    def parts(self, layer: RecurrentLayer) -> list[tuple[RecurrentLayer, RecurrentMemory]]:
        """The layer, or where directions have different cells each by itself."""
        if len(layer.cells) == 1:
            return [(layer, self)]
        return [
            (
                replace(
                    layer,
                    cells=(cell,),
                    inputs=_only(layer.inputs, 2, direction),
                    weights=_only(layer.weights, 0, direction),
                    vectors=[_only(vector, 0, direction) for vector in layer.vectors],
                    is_reversed=layer.is_reversed[direction : direction + 1],
                ),
                replace(
                    self,
                    first=_only(self.first, 0, direction),
                    second=_only(self.second, 0, direction),
                    others=tuple(_only(state, 0, direction) for state in self.others),
                    output=None if self.output is None else _only(self.output, 1, direction),
                ),
            )
            for direction, cell in enumerate(layer.cells)
        ]

    def finish(self, build: Builder[Any]) -> list[View | None]:
        """The results, once all steps are done."""
        for made, target in self.copies:
            _convert(build, made, target)
        return list(self.results)


def recurrent_memory(
    build: Builder[Any], layer: RecurrentLayer, *, alternations: int, stores: Sequence[DType]
) -> RecurrentMemory:
    """Memory for a layer, its initial states written.

    The last state is where the result is wanted, if it can be.

    Args:
        build: receives the launches.
        layer: what to compute.
        alternations: how often state 0 changes places.
        stores: the types that the kernel can store outputs in, the first if in no other.
    """
    kept = layer.inputs.dtype
    state = TensorType(kept, layer.state_shape)
    results: list[View | None] = []
    copies: list[tuple[View, View]] = []

    def placed(index: int, type_: TensorType, is_direct: Callable[[View], bool]) -> View:
        """Where the kernel may write result `index`: at its target, or in scratch that is copied from."""
        if index >= len(layer.wanted) or not layer.wanted[index]:
            results.append(None)
            return build.scratch(type_)
        order = _BATCH_FIRST[len(type_.dims)] if layer.is_batch_first else range(len(type_.dims))
        dims = tuple(type_.dims[axis] for axis in order)
        result = build.output(TensorType(layer.dtype, dims), index)
        results.append(result)
        target = result.transpose([list(order).index(axis) for axis in range(len(order))])
        if is_direct(target):
            return target
        made = build.scratch(type_)
        copies.append((made, target))
        return made

    output = None
    if layer.has_output:
        whole = TensorType(stores[0], (layer.inputs.shape[0], *layer.state_shape))
        output = placed(
            0, whole, lambda view: view.dtype in stores and (view.shape[-1] == 1 or view.strides[-1] == 1)
        )
    else:
        results.append(None)
    # The places of state 0 must have the same strides.
    carried = [
        placed(1 + index, state, lambda view: view.dtype == kept and view.is_contiguous)
        for index in range(layer.cell.carried)
    ]
    first, second = carried[0], build.scratch(state)
    if alternations % 2:
        first, second = second, first
    for target, given in zip((first, *carried[1:]), layer.initial, strict=True):
        _begin(build, layer, target, given)
    inner = [build.scratch(state) for _ in range(layer.cell.carried, layer.cell.states)]
    return RecurrentMemory(
        first, second, (*carried[1:], *inner), output, results[: len(layer.wanted)], copies
    )


def _only(view: View, axis: int, at: int) -> View:
    """One place along an axis."""
    starts, shape = [0] * len(view.shape), list(view.shape)
    starts[axis], shape[axis] = at, 1
    return view.slice(starts, [1] * len(shape), shape)


def _begin(build: Builder[Any], layer: RecurrentLayer, target: View, given: View | None) -> None:
    """Writes a state as it is before the first step; zeros for sequences of no steps, as in onnxruntime."""
    if given is None:
        zero = np.zeros((), target.dtype.storage)
        build.copy(build.constant(Constant(target.dtype, (), zero), "zero").expand(target.shape), target)
    elif layer.lengths is None:
        _convert(build, given, target)
    else:
        lengths = build.reshape(layer.lengths, (1, target.shape[1], 1))

        def write(body: Any, x: str, length: str) -> str:
            if target.dtype != given.dtype:
                x = body.cast(x, target.dtype)
            is_any = body("Greater", length, body.constant(0, length))
            return str(body("Where", is_any, x, body.constant(0.0, x)))

        build.compute(write, [given, lengths], target, label="initial_state")


def _convert(build: Builder[Any], source: View, target: View) -> None:
    """Copies elements, rounded where the types differ."""
    if source.dtype == target.dtype:
        build.copy(source, target)
    else:
        build.compute(lambda body, x: body.cast(x, target.dtype), [source], target, label="convert")
