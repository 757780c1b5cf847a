"""Lowers operators to launches of machine code: the builder of the CPU device."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.cpu.native import gather, pointwise, rows
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Epilogue, Expression, TooFewRegisters
from vkml.cpu.native.kernel import Launch
from vkml.cpu.native.open_launch import OpenLaunch
from vkml.cpu.native.open_pointwise import open_pointwise
from vkml.ir import Constant, DType, Graph, Node, TensorType, Value, dtypes, find
from vkml.ir.described import described
from vkml.ir.file_constant import owned
from vkml.ir.lowering import CannotLower, Table
from vkml.ir.size import examples, is_deciding
from vkml.ir.types import contiguous_strides
from vkml.ir.windows import Windows
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering import (
    native_blocks,
    native_bytes,
    native_gradients,
    native_images,
    native_pad,
    native_products,
    native_recurrent,
    native_resize,
    native_rows,
    native_scan,
    native_scatter,
)
from vkml.lowering.builder import Builder, Mark
from vkml.lowering.deferred import DeferredLaunch, is_open
from vkml.lowering.kept import Placed, Step
from vkml.lowering.native_body import expression_of
from vkml.lowering.native_epilogue import Ending, ordered
from vkml.lowering.native_layout import (
    Argument,
    Border,
    Bordered,
    Layouts,
    access_of,
    is_narrow,
    is_stored,
    lane_type,
    require_floats,
    seen_as_lanes,
    word_of,
)
from vkml.lowering.recurrence import RecurrentLayer

Array = np.ndarray[Any, Any]


AnyLaunch = Launch | OpenLaunch | DeferredLaunch


@described
class NativeDispatch:
    """A launch of machine code over views."""

    launch: AnyLaunch
    arguments: tuple[Argument, ...]
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


_OPEN_FORMS: Mapping[Callable[..., Launch], Callable[..., OpenLaunch | None]] = {
    pointwise.pointwise: open_pointwise,
    gather.gather: gather.open_gather,
    rows.softmax: rows.open_softmax,
    rows.normalise: rows.open_normalise,
    rows.reduce_rows: rows.open_reduce_rows,
}
"""What makes a launch for known sizes → what makes one for any; None where it cannot."""


class NativeBuilder(Builder[NativeDispatch]):
    """Collects launches of machine code.

    Args:
        instructions: the set that code may use.
        threads: that will run the program.
        layouts: memory layouts of values by name.
        is_strict: whether sums must be those of the products that the operators state: no Winograd.
    """

    makes = "machine code"

    def __init__(
        self, instructions: InstructionSet, threads: int, layouts: Layouts, is_strict: bool = False
    ) -> None:
        super().__init__((instructions, threads, is_strict))
        self.instructions, self.threads, self.layouts = instructions, threads, layouts
        self.bordered: dict[Buffer, Bordered] = {}
        self.is_strict = is_strict
        self.makes_channels_last = False

    # -- values ---------------------------------------------------------------------------------------------

    def require_storage(self, dtype: DType) -> None:
        if not is_stored(dtype):
            raise CannotLower(f"machine code handles no {dtype.name}")

    def activation(self, type_: TensorType, name: str = "") -> View:
        """Fresh memory, channels-last where the name or the current template asks for it."""
        if (self.makes_channels_last or name in self.layouts.channels_last) and len(type_.dims) in (3, 4, 5):
            # What is of another type is copied before it is read, and has its border then.
            border = self.layouts.borders.get(name, Border())
            is_read = type_.dtype == dtypes.FLOAT32 or (type_.dtype == dtypes.UINT8 and border.fill >= 0)
            border = border if is_read else Border()
            return self.channels_last(type_, name, border)
        return super().activation(type_, name)

    def channels_last(self, type_: TensorType, name: str, border: Border) -> View:
        """A fresh [images, channels, (depth, height,) width] tensor whose channels are neighbours."""
        images, channels, *spatial = type_.dims
        sizes = [1, *spatial] if len(spatial) == 1 else spatial
        begins, ends = border.begins[-len(sizes) :], border.ends[-len(sizes) :]
        around = [begin + size + end for begin, size, end in zip(begins, sizes, ends, strict=True)]
        whole = self.buffer(BufferKind.ACTIVATION, TensorType(type_.dtype, (images, *around, channels)), name)
        steps = (1,) * len(whole.shape)
        inside = whole.slice((0, *begins, 0), steps, (images, *sizes, channels))
        view = inside.transpose((0, len(sizes) + 1, *range(1, len(sizes) + 1)))
        if not border.is_empty:
            self.bordered[whole.buffer] = Bordered(view, border)
            if self._trace is not None:
                placed = self._trace.place(view)

                def again(build: NativeBuilder, buffers: list[Buffer]) -> None:
                    inside = placed.on(buffers)
                    build.bordered[inside.buffer] = Bordered(inside, border)

                self._trace.steps.append(again)
        if len(spatial) == 1:
            return replace(
                view,
                shape=type_.dims,
                strides=(view.strides[0], view.strides[1], view.strides[3]),
            )
        return view

    def materialised(
        self, view: View, key: str, make: Callable[[Array], Array], dtype: DType = dtypes.FLOAT32
    ) -> View:
        """A constant rearranged once for all plans, as a flat view.

        Args:
            view: any view of a constant. Its open sizes are taken for what they are at hand, which guards the
                plan: an array has no others.
            key: names the arrangement.
            make: array of the view's shape, as float32 where that is made, → array of any shape.
            dtype: of what is made.
        """
        constant = view.buffer.constant
        assert constant is not None
        # Symbols are those of one plan, and arrays are kept for all: the key holds numbers.
        shape, steps = tuple(map(int, view.shape)), tuple(map(int, view.strides))
        offset = int(view.offset)
        place = f"native:{key}:{shape}:{steps}:{offset}"
        strides = [step * view.itemsize for step in steps]

        is_whole = self.is_whole_constant(view)

        def change(whole: Array) -> Array:  # refers to no view: it may be kept for longer than the plan
            if is_whole:
                seen = whole.reshape(shape)
            else:
                flat = np.ascontiguousarray(whole).reshape(-1)
                seen = np.lib.stride_tricks.as_strided(flat[offset:], shape, strides, writeable=False)
            if dtype == dtypes.FLOAT32:
                seen = seen.astype(np.float32, copy=False)
            return owned(np.ascontiguousarray(make(seen)).reshape(-1))

        whole = contiguous(view.buffer, constant.type)
        return self.prepared(whole, place, change, dtype)

    def widened(self, view: View) -> View:
        """The elements as float32: the view itself, a constant made once, or a copy in the same order."""
        if view.dtype == dtypes.FLOAT32:
            return view
        require_floats(view)
        if view.buffer.is_constant:
            # What is repeated is widened once; how often, other plans and other runs have otherwise.
            dims = tuple(1 if not step else size for size, step in zip(view.shape, view.strides, strict=True))
            flat = self.materialised(replace(view, shape=dims), "widened", lambda array: array)
            return replace(flat, shape=dims, strides=contiguous_strides(dims)).expand(view.shape)
        order = sorted(range(len(view.shape)), key=lambda axis: -abs(view.strides[axis]))
        made = self.scratch(TensorType(dtypes.FLOAT32, tuple(view.shape[axis] for axis in order)))
        made = made.transpose([order.index(axis) for axis in range(len(order))])
        self.copy(view, made)
        return made

    # -- launching ------------------------------------------------------------------------------------------

    def launch(self, make: Callable[..., Launch], **arguments: Any) -> AnyLaunch:
        """A launch for this builder's instructions and threads; where sizes are open, one for any of them.

        Args:
            make: makes the launch for known sizes.
            arguments: the rest of what `make` takes.
        """
        arguments["instructions"] = self.instructions
        if not is_deciding() or not is_open(tuple(arguments.values())):
            return make(**arguments)
        open_form = _OPEN_FORMS.get(make)
        opened = None if open_form is None else open_form(**arguments)
        if opened is not None:
            return opened
        deferred = DeferredLaunch(make, arguments)
        deferred.launch(examples())  # to be refused now what is refused
        return deferred

    def enter(
        self,
        launch: AnyLaunch,
        reads: Sequence[Argument],
        writes: Sequence[Argument],
        first: View | None = None,
    ) -> None:
        """Adds a launch whose operands are `reads`, then `writes`.

        Args:
            launch: of a kernel.
            reads: what it reads.
            writes: what it writes.
            first: the operand that the kernel is given for the first of `reads`, in the same buffer.
        """
        seen = tuple([argument for argument in reads if isinstance(argument, View)])
        made = tuple([argument for argument in writes if isinstance(argument, View)])
        if not all(view.elements for view in made) or (isinstance(launch, Launch) and not len(launch.table)):
            return
        operands = (*reads, *writes) if first is None else (first, *reads[1:], *writes)
        self.enter_any(launch, operands, seen, made)

    def enter_any(
        self,
        launch: AnyLaunch,
        operands: Sequence[Argument],
        reads: Sequence[View],
        writes: Sequence[View],
    ) -> None:
        """Adds a launch whose operands stand in any order."""
        dispatch = NativeDispatch(
            launch, tuple(operands), tuple(reads), tuple(writes), self._labels, self._operators
        )
        self.launches.append(dispatch)
        if self._trace is not None:
            self._trace.steps.append(_again(dispatch, self._trace.place))

    def rewind(self, mark: Mark) -> None:
        for view_buffer in self.buffers[mark[1] :]:
            self.bordered.pop(view_buffer, None)
        super().rewind(mark)

    def _wish(self, name: str) -> Hashable:
        return name in self.layouts.channels_last, self.layouts.borders.get(name)

    def _surroundings(self, buffer: Buffer) -> Hashable:
        held = self.bordered.get(buffer)
        if held is None:
            return None
        inside = held.inside
        return held.border, inside.shape, inside.strides, inside.offset

    def positions(self, count: int) -> View:
        return self.buffer(BufferKind.POSITIONS, TensorType(dtypes.INT32, (count,)))

    def copy(self, source: View, target: View, change: Expression = IDENTITY) -> None:
        """Copies elements of any type of 1, 2, 4 or 8 bytes, from and to lanes of 32 bits also of others.

        Args:
            source: what is read.
            target: what is written.
            change: what becomes of each element on the way.
        """
        if not source.elements:
            return
        access = word_of if source.dtype == target.dtype else access_of
        launch = self.launch(
            pointwise.pointwise,
            shape=target.shape,
            leaves=(access(source.expand(target.shape)),),
            expression=change,
            results=(access(target),),
            threads=self.threads,
        )
        self.enter(launch, [source], [target])

    def pointwise(
        self, body: Graph, leaves: Sequence[View], outputs: Sequence[View], *, label: str = "pointwise"
    ) -> None:
        if not outputs or not outputs[0].elements:
            return
        space = outputs[0].shape
        if len(body.outputs) == len(leaves) == 1 and all(find(node).is_identity(node) for node in body.nodes):
            self.copy(leaves[0], outputs[0])
            return
        body, leaves = self._with_numbers(body, leaves)
        expression = expression_of(body)
        operands = len(leaves) + len(outputs)
        try:
            if operands > pointwise.MOST_OPERANDS:
                raise TooFewRegisters(f"{operands} operands are too many for machine code")
            launch = self.launch(
                pointwise.pointwise,
                shape=space,
                leaves=tuple(access_of(leaf.expand(space)) for leaf in leaves),
                expression=expression,
                results=tuple(access_of(view.expand(space)) for view in outputs),
                threads=self.threads,
            )
        except TooFewRegisters:
            if len(body.nodes) == 1:
                raise
            self._halves(body, leaves, outputs)
            return
        self.enter(launch, leaves, outputs)

    def _with_numbers(self, body: Graph, leaves: Sequence[View]) -> tuple[Graph, Sequence[View]]:
        """Leaves that are one known number as constants of the body, where fused bodies have them."""
        numbers: dict[str, Constant] = {}
        kept: list[tuple[Value, View]] = []
        for value, leaf in zip(body.inputs, leaves, strict=True):
            constant = leaf.buffer.constant
            if constant is not None and leaf.buffer.is_constant and constant.type.elements == 1:
                self.contents(leaf)  # the number is part of the code
                numbers[value.name] = constant
            else:
                kept.append((value, leaf))
        if not numbers or not kept:
            return body, leaves
        inputs = tuple(value for value, _ in kept)
        made = replace(body, inputs=inputs, constants={**body.constants, **numbers})
        return made, [leaf for _, leaf in kept]

    def _halves(self, body: Graph, leaves: Sequence[View], outputs: Sequence[View]) -> None:
        """A body as two, where too many values are needed at the same time; what lies between is stored."""
        views = {value.name: view for value, view in zip(body.inputs, leaves, strict=True)}
        views |= {value.name: view for value, view in zip(body.outputs, outputs, strict=True)}
        middle = len(body.nodes) // 2
        for nodes, others in ((body.nodes[:middle], body.nodes[middle:]), (body.nodes[middle:], ())):
            read = {name for node in others for name in node.inputs}
            results = [name for node in nodes for name in node.outputs if name in read or name in views]
            for name in results:
                if name not in views:
                    views[name] = self.scratch(TensorType(body.types[name].dtype, outputs[0].shape))
            part = _part(body, nodes, results, views)
            self.pointwise(part, [views[v.name] for v in part.inputs], [views[name] for name in results])

    def ending(
        self,
        type_: TensorType,
        arrange: Callable[[View], View | None],
        is_direct: Callable[[View], bool],
        is_readable: Callable[[View], bool] | None = None,
        *,
        has_narrow: bool = False,
    ) -> Ending:
        """The epilogue of a template's last launch and where its results go.

        Args:
            type_: of the template's result.
            arrange: a view of that shape → its view over the kernel's index space; None where none exists.
            is_direct: whether the kernel can write to an arranged view.
            is_readable: whether it can read a leaf so; None: what it can write, and what is repeated along
                the last axis.
            has_narrow: whether it reads and writes elements of 1 and 2 bytes.
        """
        is_readable = is_readable or (lambda view: is_direct(view) or view.strides[-1] == 0)
        taken, outputs = self.take_epilogue(type_)
        expression = IDENTITY if taken is None else ordered(taken)
        if expression.is_wide:
            raise CannotLower("an epilogue in machine code computes with lanes of 32 bits")
        leaves = []
        for leaf in (
            []
            if taken is None
            else [taken.leaves[v.name] for v in taken.body.inputs if v.name != taken.result]
        ):
            view = leaf if has_narrow and is_narrow(leaf) else self._in_lanes(leaf)
            view = view.expand(type_.dims)
            seen = arrange(view)
            if seen is None or not is_readable(seen):
                seen = arrange(self._like_results(view))
            leaves.append(seen)
        targets, copies = [], []
        for view in outputs:
            if has_narrow and is_narrow(view):
                seen = arrange(view)
            else:
                seen = arrange(seen_as_lanes(view)) if view.itemsize == 4 else None
            if seen is None or not is_direct(seen):
                made = self.activation(TensorType(lane_type(view.dtype), view.shape))
                copies.append((made, view))
                seen = arrange(seen_as_lanes(made))
            targets.append(seen)
        known = [view for view in (*leaves, *targets) if view is not None]
        assert len(known) == len(leaves) + len(targets)
        accesses = tuple(access_of(view) for view in known)
        epilogue = Epilogue(expression, accesses[: len(leaves)], accesses[len(leaves) :])
        return Ending(epilogue, known[: len(leaves)], known[len(leaves) :], copies, outputs)

    def _in_lanes(self, leaf: View) -> View:
        """A leaf as the 32 bits of a lane that an epilogue reads, which are not always a float's."""
        if leaf.itemsize == 4:
            return seen_as_lanes(leaf)
        if leaf.dtype == dtypes.FLOAT16:
            return self.widened(leaf)
        # What is repeated is converted once.
        dims = tuple(1 if not step else size for size, step in zip(leaf.shape, leaf.strides, strict=True))
        made = self.scratch(TensorType(lane_type(leaf.dtype), dims))
        self.copy(replace(leaf, shape=dims), made)
        return seen_as_lanes(made).expand(leaf.shape)

    def _like_results(self, view: View) -> View:
        made = self.activation(view.type)
        self.copy(view, made)
        return made

    def finish(
        self, launch: AnyLaunch, reads: Sequence[Argument], ending: Ending, first: View | None = None
    ) -> list[View]:
        """Adds a template's last launch, whose operands are `reads`, leaves, targets; its results."""
        self.enter(launch, [*reads, *ending.leaves], ending.targets, first)
        for made, target in ending.copies:
            self.copy(made, target)
        return list(ending.outputs)

    # -- templates ------------------------------------------------------------------------------------------

    def matmul(self, a: View, b: View) -> list[View]:
        return native_products.matmul(self, a, b)

    def byte_matmul(self, a: View, b: View) -> list[View]:
        return native_bytes.byte_matmul(self, a, b)

    def block_matmul(
        self, a: View, codes: View, scales: View, zeros: View | None, bits: int, block: int, *, rounds: bool
    ) -> list[View]:
        return native_blocks.block_matmul(self, a, codes, scales, zeros, bits, block, rounds)

    def byte_conv(self, x: View, weight: View, windows: Windows, *, group: int, fill: int) -> list[View]:
        return native_bytes.byte_conv(self, x, weight, windows, group, fill)

    def conv(self, x: View, weight: View, bias: View | None, windows: Windows, *, group: int) -> list[View]:
        return native_images.conv(self, x, weight, bias, windows, group)

    def conv_weight_gradient(self, x: View, cotangent: View, windows: Windows) -> View | None:
        return native_gradients.conv_weight_gradient(self, x, cotangent, windows)

    def pool(
        self, x: View, how: str | float, windows: Windows, *, counts_padding: bool = False
    ) -> list[View]:
        return native_images.pool(self, x, how, windows, counts_padding=counts_padding)

    def reduce(self, name: str, x: View, axes: Sequence[int]) -> list[View]:
        return native_rows.reduce(self, name, x, axes)

    def moments(self, x: View, axes: Sequence[int]) -> list[View]:
        return native_rows.moments(self, x, axes)

    def arg_reduce(self, x: View, axis: int, *, is_max: bool, takes_last: bool) -> list[View]:
        return native_rows.arg_reduce(self, x, axis, is_max=is_max, takes_last=takes_last)

    def recurrent_layer(self, layer: RecurrentLayer) -> list[View | None]:
        return native_recurrent.recurrence(self, layer)

    def softmax(self, x: View, axes: int, *, is_logarithm: bool) -> list[View]:
        return native_rows.softmax(self, x, axes, is_logarithm=is_logarithm)

    def softmax_along(self, x: View, order: Sequence[int], *, is_logarithm: bool) -> list[View]:
        return self.along(x, order, lambda moved: self.softmax(moved, 1, is_logarithm=is_logarithm))

    def cross_entropy(self, x: View, labels: View, ignored: int | None) -> list[View]:
        return native_rows.cross_entropy(self, x, labels, ignored)

    def normalise(
        self, x: View, axes: int, epsilon: float, scale: View | None, bias: View | None, *, is_centred: bool
    ) -> list[View]:
        return native_rows.normalise(self, x, axes, epsilon, scale, bias, is_centred=is_centred)

    def gather(self, data: View, indices: View, axis: int) -> list[View]:
        if not indices.elements or not data.elements:
            raise CannotLower("nothing to gather")
        return self._gather(data, indices, axis, indices.elements, is_aligned=False)

    def gather_elements(self, data: View, indices: View, axis: int) -> list[View]:
        if indices.shape[:axis] != data.shape[:axis] or math.prod(data.shape[axis + 1 :]) != 1:
            raise CannotLower("elements along an inner axis, or of parts of the others, have no machine code")
        if not indices.elements or not data.elements:
            raise CannotLower("nothing to gather")
        return self._gather(data, indices, axis, indices.shape[axis], is_aligned=True)

    def _gather(self, data: View, indices: View, axis: int, count: int, *, is_aligned: bool) -> list[View]:
        if indices.dtype not in (dtypes.INT32, dtypes.INT64):
            raise CannotLower(f"indices of {indices.dtype.name} have no machine code")
        result = self.result()
        block = math.prod(data.shape[axis + 1 :]) * data.itemsize
        data, indices = self.contiguous(data), self.contiguous(indices)
        target = self.output(result)
        made = target if target.is_contiguous else self.scratch(result)
        launch = self.launch(
            gather.gather,
            outer=math.prod(data.shape[:axis]),
            size=data.shape[axis],
            count=count,
            block_bytes=block,
            is_wide=indices.dtype == dtypes.INT64,
            is_aligned=is_aligned,
            error_code=self.error_code(),
            threads=self.threads,
        )
        self.enter(launch, [data, indices], [made, self.status])
        if made is not target:
            self.copy(made, target)
        return [target]

    def scan(
        self, x: View, axis: int, *, is_product: bool, is_exclusive: bool, is_reverse: bool
    ) -> list[View]:
        if is_product:
            raise CannotLower("a running product has no machine code")
        return native_scan.running_sums(self, x, axis, is_exclusive=is_exclusive, is_reverse=is_reverse)

    def scatter_elements(
        self, x: View, indices: View, updates: View, axis: int, reduction: str
    ) -> list[View]:
        return native_scatter.scatter_elements(self, x, indices, updates, axis, reduction)

    def scatter_tuples(self, x: View, indices: View, updates: View, reduction: str) -> list[View]:
        return native_scatter.scatter_tuples(self, x, indices, updates, reduction)

    def pad(self, x: View, begins: Sequence[int], mode: str, fill: View | None) -> list[View]:
        return native_pad.pad(self, x, begins, mode, fill)

    def resize(self, x: View, tables: Sequence[Table | None]) -> list[View]:
        if self._epilogue is not None:
            raise CannotLower("Resize takes no epilogue")
        return native_resize.resize(self, x, tables)


def _again(dispatch: NativeDispatch, place: Callable[[View], Placed]) -> Step:
    """Enters the same launch over numbered buffers."""
    known: dict[int, int] = {}
    placed: list[Placed] = []

    def number(argument: Argument) -> int:
        if isinstance(argument, Buffer):
            assert argument.kind is BufferKind.STATUS
            return -1
        at = known.setdefault(id(argument), len(placed))
        if at == len(placed):
            placed.append(place(argument))
        return at

    operands = tuple(map(number, dispatch.arguments))
    reads, writes = tuple(map(number, dispatch.reads)), tuple(map(number, dispatch.writes))
    launch, views = dispatch.launch, tuple(placed)

    def step(build: NativeBuilder, buffers: list[Buffer]) -> None:
        made = [view.on(buffers) for view in views]
        build.enter_any(
            launch,
            [made[at] if at >= 0 else build.status for at in operands],
            [made[at] for at in reads],
            [made[at] for at in writes],
        )

    return step


def _part(body: Graph, nodes: Sequence[Node], results: Sequence[str], views: Collection[str]) -> Graph:
    """Some nodes of a body as one that reads what is in `views`."""
    types = {**{value.name: value.tensor for value in (*body.inputs, *body.outputs)}, **body.types}
    made = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name in views and name not in made)
    return Graph(
        tuple(Value(name, types[name]) for name in read),
        tuple(Value(name, types[name]) for name in results),
        tuple(nodes),
        body.constants,
        {name: types[name] for name in made},
        name=body.name,
    )
