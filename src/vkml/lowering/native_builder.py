"""Lowers operators to launches of machine code: the builder of the CPU device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from vkml.cpu.native import depthwise, gather, pointwise, product, rows, vector_product, windows, winograd
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue, Expression, Step, TooFewRegisters
from vkml.cpu.native.kernel import Launch
from vkml.ir import Constant, Graph, TensorType, dtypes
from vkml.kernels.pointwise import Epilogue as BodyEpilogue
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.kernels.writer import CannotLower
from vkml.lowering.builder import Builder, Target
from vkml.lowering.native_body import ELEMENTS, expression_of

Array = np.ndarray[Any, Any]
Argument = View | Buffer


_REDUCTIONS = {"Sum": "sum", "Mean": "sum", "Max": "max", "Min": "min", "Prod": "prod", "L1": "l1",
               "SumSquare": "sum_square", "L2": "sum_square"}  # fmt: skip
"""What is folded for each reduction."""
MOST_PLACES = 1024
"""Places folded with lanes along a kept axis: one running sum has an error that grows with their number."""


PANEL_BYTES = 512 * 1024
"""Of a panel of weights, that the second-level cache keeps while tiles of an image pass."""
_ADD = Expression(2, (Step("add", (0, 1)),), (2,))


@dataclass(frozen=True, eq=False)
class NativeDispatch:
    """A launch of machine code over views."""

    launch: Launch
    arguments: tuple[Argument, ...]
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Border:
    """Numbers round an image in memory, in rows above and below, columns left and right."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0
    fill: float = 0.0

    def covers(self, other: Border) -> bool:
        return (
            self.fill == other.fill
            and self.top >= other.top
            and self.bottom >= other.bottom
            and self.left >= other.left
            and self.right >= other.right
        )

    def joined(self, other: Border) -> Border:
        """The larger of both on every side; where the fills differ, that of the one with zeros."""
        if self.fill != other.fill and not (self.is_empty or other.is_empty):
            return self if self.fill == 0.0 else other
        return Border(
            max(self.top, other.top),
            max(self.bottom, other.bottom),
            max(self.left, other.left),
            max(self.right, other.right),
            other.fill if self.is_empty else self.fill,
        )

    @property
    def is_empty(self) -> bool:
        return not (self.top or self.bottom or self.left or self.right)


@dataclass(frozen=True)
class Layouts:
    """How values of a program are to lie in memory, decided before any node is lowered."""

    channels_last: frozenset[str] = frozenset()
    borders: Mapping[str, Border] = field(default_factory=dict)
    """What convolutions that read a value want round it."""


@dataclass(frozen=True)
class _Bordered:
    """A buffer that holds an image with a border; the border is written once, before the first run."""

    inside: View
    """[images, channels, height, width]."""
    border: Border


class NativeBuilder(Builder):
    """Collects launches of machine code; otherwise as `Builder`.

    Args:
        instructions: the set that code may use.
        threads: that will run the program.
        layouts: memory layouts of values by name.
        is_strict: whether sums must be those of the products that the operators state: no Winograd.
    """

    def __init__(
        self, instructions: InstructionSet, threads: int, layouts: Layouts, is_strict: bool = False
    ) -> None:
        super().__init__(Target(frozenset()))
        self.instructions, self.threads, self.layouts = instructions, threads, layouts
        self.launches: list[NativeDispatch] = []
        self.bordered: dict[Buffer, _Bordered] = {}
        self.is_strict = is_strict
        self._makes_channels_last = False

    # -- values ---------------------------------------------------------------------------------------------

    def output(self, type_: TensorType, index: int = 0) -> View:
        """Where the current node's output goes: as `Builder.output`, in the layout chosen for its name."""
        name = self._result_names[index] if index < len(self._result_names) else ""
        found = self._destinations.get(name)
        if found is not None and found.type == type_:
            return found
        is_last = self._makes_channels_last or name in self.layouts.channels_last
        if is_last and len(type_.dims) in (3, 4):
            return self.channels_last(type_, name, self.layouts.borders.get(name, Border()))
        return self.buffer(BufferKind.ACTIVATION, type_, name)

    def channels_last(self, type_: TensorType, name: str, border: Border) -> View:
        """A fresh [images, channels, (height,) width] tensor whose channels are neighbours in memory."""
        images, channels, *spatial = type_.dims
        height, width = (1, *spatial) if len(spatial) == 1 else spatial
        rows_, columns = border.top + height + border.bottom, border.left + width + border.right
        whole = self.buffer(
            BufferKind.ACTIVATION, TensorType(type_.dtype, (images, rows_, columns, channels)), name
        )
        inside = whole.slice((0, border.top, border.left, 0), (1, 1, 1, 1), (images, height, width, channels))
        view = inside.transpose((0, 3, 1, 2))
        if not border.is_empty:
            self.bordered[whole.buffer] = _Bordered(view, border)
        if len(spatial) == 1:
            return replace(
                view,
                shape=(images, channels, width),
                strides=(view.strides[0], view.strides[1], view.strides[3]),
            )
        return view

    def materialised(self, view: View, key: str, make: Callable[[Array], Array]) -> View:
        """A constant rearranged once for all plans, as a flat view of float32.

        Args:
            view: any view of a constant.
            key: names the arrangement.
            make: array of the view's shape → float32 array of any shape.
        """
        constant = view.buffer.constant
        assert constant is not None
        flat = np.ascontiguousarray(constant.array).reshape(-1)
        place = f"native:{key}:{view.shape}:{view.strides}:{view.offset}"

        def change(_: Array) -> Array:
            strides = [stride * view.itemsize for stride in view.strides]
            seen = np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides, writeable=False)
            return np.ascontiguousarray(make(seen), np.float32).reshape(-1)

        whole = contiguous(view.buffer, constant.type)
        return self.prepared(whole, place, change)

    # -- launching ------------------------------------------------------------------------------------------

    def enter(self, launch: Launch, reads: Sequence[Argument], writes: Sequence[Argument]) -> None:
        """Adds a launch whose operands are `reads`, then `writes`."""
        seen = [argument for argument in reads if isinstance(argument, View)]
        made = [argument for argument in writes if isinstance(argument, View)]
        for view in seen:
            if view.buffer.kind is BufferKind.OUTPUT:
                view.buffer.host_only = False
        if not all(view.elements for view in made) or not len(launch.table):
            return
        self.launches.append(
            NativeDispatch(launch, (*reads, *writes), tuple(seen), tuple(made), self._labels, self._operators)
        )

    def mark(self) -> tuple[int, int]:
        """Where the program stands, for `rewind`."""
        return len(self.launches), len(self.buffers)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Takes back what was added since `mark`."""
        del self.launches[mark[0] :]
        for view_buffer in self.buffers[mark[1] :]:
            self.bordered.pop(view_buffer, None)
        del self.buffers[mark[1] :]

    def copy(self, source: View, target: View) -> None:
        """Copies elements of any type of 1, 2, 4 or 8 bytes."""
        if not source.elements:
            return
        leaf, goal = _words(source.expand(target.shape)), _words(target)
        launch = pointwise.pointwise(
            self.instructions,
            shape=goal.shape,
            leaves=(Access(leaf.strides, _word_name(source)),),
            expression=IDENTITY,
            results=(Access(goal.strides, _word_name(target)),),
            threads=self.threads,
        )
        self.enter(launch, [source], [target])

    def pointwise(
        self, body: Graph, leaves: Sequence[View], outputs: Sequence[View], *, label: str = "pointwise"
    ) -> None:
        space = outputs[0].shape
        if not outputs[0].elements:
            return
        if len(body.nodes) == 0 and len(outputs) == 1 and leaves[0].dtype == outputs[0].dtype:
            self.copy(leaves[0], outputs[0])
            return
        if all(node.op == "Identity" for node in body.nodes) and len(body.outputs) == 1 and len(leaves) == 1:
            self.copy(leaves[0], outputs[0])
            return
        expression = expression_of(body)
        if len(leaves) + len(outputs) > pointwise.MOST_OPERANDS:
            raise CannotLower(f"{len(leaves) + len(outputs)} operands are too many for machine code")
        try:
            launch = pointwise.pointwise(
                self.instructions,
                shape=space,
                leaves=tuple(_access(leaf.expand(space)) for leaf in leaves),
                expression=expression,
                results=tuple(_access(view.expand(space)) for view in outputs),
                threads=self.threads,
            )
        except TooFewRegisters as reason:
            raise CannotLower(f"too long for the registers: {reason}") from reason
        self.enter(launch, leaves, outputs)

    def _ending(
        self,
        type_: TensorType,
        arrange: Callable[[View], View | None],
        is_direct: Callable[[View], bool],
        is_readable: Callable[[View], bool] | None = None,
    ) -> _Ending:
        """The epilogue of a template's last launch and where its results go.

        Args:
            type_: of the template's result.
            arrange: a view of that shape → its view over the kernel's index space; None where none exists.
            is_direct: whether the kernel can write to an arranged view.
            is_readable: whether it can read a leaf so; None: what it can write, and what is repeated along
                the last axis.
        """
        is_readable = is_readable or (lambda view: is_direct(view) or view.strides[-1] == 0)
        taken, outputs = self.take_epilogue(type_)
        expression = IDENTITY if taken is None else _ordered(taken)
        leaves = []
        for leaf in (
            []
            if taken is None
            else [taken.leaves[v.name] for v in taken.body.inputs if v.name != taken.result]
        ):
            view = leaf.expand(type_.dims)
            seen = arrange(view)
            if seen is None or not is_readable(seen):
                seen = arrange(self._like_results(view))
            leaves.append(seen)
        targets, copies = [], []
        for view in outputs:
            seen = arrange(view)
            if seen is None or not is_direct(seen):
                made = self._room(view.type)
                copies.append((made, view))
                seen = arrange(made)
            targets.append(seen)
        known = [view for view in (*leaves, *targets) if view is not None]
        assert len(known) == len(leaves) + len(targets)
        for view in known:
            if view.dtype != dtypes.FLOAT32:
                raise CannotLower(f"an epilogue in machine code has float32 operands, not {view.dtype.name}")
        accesses = tuple(_access(view) for view in known)
        epilogue = Epilogue(expression, accesses[: len(leaves)], accesses[len(leaves) :])
        return _Ending(epilogue, known[: len(leaves)], known[len(leaves) :], copies, outputs)

    def _room(self, type_: TensorType) -> View:
        """Scratch memory in the layout of the current template's results."""
        if self._makes_channels_last and len(type_.dims) in (3, 4):
            return self.channels_last(type_, "", Border())
        return self.scratch(type_)

    def _like_results(self, view: View) -> View:
        made = self._room(view.type)
        self.copy(view, made)
        return made

    def _finish(
        self, launch: Launch, reads: Sequence[Argument], ending: _Ending, *status: Buffer
    ) -> list[View]:
        self.enter(launch, [*reads, *ending.leaves], [*ending.targets, *status])
        for made, target in ending.copies:
            self.copy(made, target)
        return list(ending.outputs)

    # -- templates ------------------------------------------------------------------------------------------

    def matmul(self, a: View, b: View) -> list[View]:
        _require_floats(a, b)
        batch, m, k = a.shape
        n = b.shape[2]
        if k == 0:
            raise CannotLower("a product over nothing")
        result = self.result()
        ending = self._ending(
            result, lambda view: view.reshape((batch, m, n)), lambda view: n == 1 or view.strides[2] == 1
        )
        if (
            vector_product.fits(
                m=m, k=k, n=n, b_strides=b.strides[1:], is_constant=b.buffer.constant is not None
            )
            and batch == 1
        ):
            return self._vector_product(a, b, ending)
        shared = batch > 1 and b.strides[0] == 0
        width = product.panel_width(self.instructions, columns=n, rows=m, row_bytes=4 * a.strides[1])
        if b.buffer.constant is not None and (batch == 1 or shared):
            matrix = replace(b, shape=b.shape[1:], strides=b.strides[1:])
            packed = self.materialised(matrix, f"columns{width}", lambda array: product.pack(array, width))
            stride = 0
        else:
            packed = self._packed(replace(b, shape=(1, k, n)) if shared else b, width)
            stride = 0 if shared else packed.strides[0]
        launch = product.product(
            self.instructions,
            batch=(batch,),
            height=1,
            width=m,
            columns=n,
            inner=k,
            taps=(0,),
            a=(a.strides[0], 0, a.strides[1], a.strides[2]),
            b=(stride,),
            panel=width,
            epilogue=_with_rows(ending.epilogue),
            threads=self.threads,
        )
        return self._finish(launch, [a, packed], ending)

    def _packed(self, matrices: View, width: int) -> View:
        """[batch, k, columns] rearranged to [batch, panel, k, lane] during the run.

        Lanes beyond the last column keep what was in memory: nothing that is stored depends on them.
        """
        batch, k, n = matrices.shape
        full, rest = divmod(n, width)
        packed = self.scratch(TensorType(dtypes.FLOAT32, (batch, full + (rest > 0), k, width)))
        step_b, step_k, step_n = matrices.strides
        for first, panels, lanes in ((0, full, width), (full, 1, rest)):
            if panels and lanes:
                source = replace(
                    matrices,
                    shape=(batch, panels, k, lanes),
                    strides=(step_b, width * step_n, step_k, step_n),
                    offset=matrices.offset + first * width * step_n,
                )
                self.copy(source, packed.slice((0, first, 0, 0), (1, 1, 1, 1), source.shape))
        return packed

    def _vector_product(self, a: View, b: View, ending: _Ending) -> list[View]:
        launch = vector_product.vector_product(
            self.instructions,
            rows=a.shape[1],
            inner=a.shape[2],
            columns=b.shape[2],
            a=(a.strides[1], a.strides[2]),
            b=(b.strides[1], b.strides[2]),
            epilogue=_without_batch(ending.epilogue),
            threads=self.threads,
        )
        return self._finish(launch, [a, b], ending)

    def conv(
        self,
        x: View,
        weight: View,
        bias: View | None,
        **geometry: Any,
    ) -> list[View]:
        strides, pads, dilations = (geometry[name] for name in ("strides", "pads", "dilations"))
        group: int = geometry["group"]
        _require_floats(x, weight, *([] if bias is None else [bias]))
        result = self.result()
        if len(result.dims) == 5 or x.shape[2] != 1 or weight.shape[2] != 1:
            raise CannotLower("three-dimensional convolutions have no machine code")
        if not x.elements:
            raise CannotLower("a convolution of nothing has no machine code")
        images, filters = result.dims[:2]
        height, width = (1, *result.dims[2:]) if len(result.dims) == 3 else result.dims[2:]
        if bias is not None:
            lanes = bias.reshape((1, filters, *(1,) * (len(result.dims) - 2)))
            assert lanes is not None
            self.before_epilogue(result, addend=lanes.expand(result.dims))
        image = _plane(x)
        kernel_y, kernel_x = weight.shape[3:]
        need = Border(
            pads[1],
            max(0, (height - 1) * strides[1] + (kernel_y - 1) * dilations[1] - pads[1] - image.shape[2] + 1),
            pads[2],
            max(0, (width - 1) * strides[2] + (kernel_x - 1) * dilations[2] - pads[2] - image.shape[3] + 1),
        )
        image = self._with_border(image, need)
        step_n, step_c, step_y, step_x = image.strides
        start = replace(image, offset=image.offset - pads[1] * step_y - pads[2] * step_x)
        ending = self._ending_channels_last(result, filters)
        taps = tuple(
            y * dilations[1] * step_y + x_ * dilations[2] * step_x
            for y in range(kernel_y)
            for x_ in range(kernel_x)
        )
        walks = (step_n, strides[1] * step_y, strides[2] * step_x)
        if weight.buffer.constant is None:
            raise CannotLower("convolutions with computed weights have no machine code")
        per_group = filters // group
        if group == x.shape[1] == filters and group > 1 and step_c == 1:
            packed = self.materialised(
                weight,
                f"depthwise{self.instructions.value}",
                lambda array: depthwise.pack_depthwise(
                    self.instructions, array.reshape(filters, 1, kernel_y, kernel_x)
                ),
            )
            launch = depthwise.depthwise(
                self.instructions,
                images=images,
                height=height,
                width=width,
                channels=filters,
                taps=taps,
                a=walks,
                epilogue=ending.epilogue,
                threads=self.threads,
            )
            return self._finish_padded(launch, image, start, [packed], ending)
        is_square = (kernel_y, kernel_x) == (3, 3) and group == 1 and step_c == 1
        if is_square and tuple(strides[1:]) == tuple(dilations[1:]) == (1, 1) and not self.is_strict:
            arrangement = winograd.plan(
                self.instructions,
                images=images,
                height=height,
                width=width,
                channels=x.shape[1],
                filters=filters,
                threads=self.threads,
            )
            if arrangement is not None:
                return self._winograd(image, start, weight, arrangement, ending)
        inner = weight.shape[1]
        is_plain = kernel_y == kernel_x == 1 and tuple(strides[1:]) == (1, 1) and need.is_empty
        panel = product.panel_width(
            self.instructions,
            columns=per_group,
            rows=height * width if is_plain else width,
            row_bytes=4 * walks[2],
        )

        def pack(array: Array) -> Array:
            by_tap = array.reshape(group, per_group, inner, kernel_y * kernel_x).transpose(0, 3, 2, 1)
            return np.concatenate(
                [product.pack(part.reshape(-1, per_group), panel).reshape(-1) for part in by_tap]
            )

        packed = self.materialised(weight, f"filters{panel}:{group}", pack)
        epilogue = ending.epilogue
        a: tuple[int, ...] = (*walks, step_c)
        b: tuple[int, ...] = (0,)
        batch: tuple[int, ...] = (images,)
        if group > 1:
            batch = (images, group)
            a = (step_n, inner * step_c, *walks[1:], step_c)
            b = (0, -(-per_group // panel) * panel * inner * kernel_y * kernel_x)
            epilogue = _grouped(epilogue, per_group)
        stretches = _stretches(len(taps), 4 * inner * panel) if group == 1 and height * width > 1 else 1

        def some_taps(first: int, last: int, ending: Epilogue) -> Launch:
            return product.product(
                self.instructions,
                batch=batch,
                height=height,
                width=width,
                columns=per_group,
                inner=inner,
                taps=taps[first:last],
                a=a,
                b=b,
                panel=panel,
                epilogue=ending,
                threads=self.threads,
                panel_floats=panel * inner * len(taps),
            )

        if stretches == 1:
            whole = some_taps(0, len(taps), epilogue)
            return self._finish_padded(whole, image, start, [packed], ending)
        # Sums of a few taps at a time, so that the second-level cache holds the panel they meet.
        kept = self.channels_last(result, "", Border())
        sums = _places(kept)
        access = _access(sums)
        steps = [round(at * len(taps) / stretches) for at in range(stretches + 1)]
        for first, last in pairwise(steps):
            part = replace(packed, offset=packed.offset + first * inner * panel)
            if last < len(taps):
                expression = IDENTITY if first == 0 else _ADD
                leaves = (sums,) if first else ()
                partial = _Ending(
                    Epilogue(expression, (access,) * len(leaves), (access,)), leaves, (sums,), (), ()
                )
                self._finish_padded(some_taps(first, last, partial.epilogue), image, start, [part], partial)
        final = replace(
            epilogue,
            expression=_after(epilogue.expression, (Step("add", (0, 1)),), 1),
            leaves=(access, *epilogue.leaves),
        )
        ending = replace(ending, leaves=(sums, *ending.leaves))
        last_launch = some_taps(steps[-2], steps[-1], final)
        return self._finish_padded(last_launch, image, start, [part], ending)

    def _winograd(
        self, image: View, start: View, weight: View, arrangement: winograd.Plan, ending: _Ending
    ) -> list[View]:
        images, filters, *spatial = self.result().dims
        filters, channels = weight.shape[:2]
        packed = self.materialised(
            weight,
            f"{arrangement.key}{self.instructions.value}",
            lambda array: winograd.pack(
                self.instructions, array.reshape(filters, channels, 3, 3), arrangement
            ),
        )
        launch = winograd.winograd(
            self.instructions,
            images=images,
            height=spatial[0],
            width=spatial[1],
            channels=channels,
            filters=filters,
            a=(image.strides[0], image.strides[2], image.strides[3]),
            arrangement=arrangement,
            epilogue=ending.epilogue,
        )
        return self._finish_padded(launch, image, start, [packed], ending)

    def _finish_padded(
        self, launch: Launch, image: View, start: View, others: Sequence[View], ending: _Ending
    ) -> list[View]:
        """As `_finish`, for a first operand whose window begins in the border of `image`."""
        mark = len(self.launches)
        made = self._finish(launch, [image, *others], ending)
        if len(self.launches) > mark:
            dispatch = self.launches[mark]
            self.launches[mark] = replace(dispatch, arguments=(start, *dispatch.arguments[1:]))
        return made

    def _with_border(self, image: View, need: Border) -> View:
        """The image itself where it has its channels side by side and enough zeros round it, else a copy."""
        channels = image.shape[1]
        is_last = image.strides[1] == 1 or channels == 1
        if is_last and need.is_empty:
            return image
        known = self.bordered.get(image.buffer)
        if is_last and known is not None and known.border.covers(need):
            inside = known.inside
            same = all(
                image.shape[axis] == inside.shape[axis]
                and (image.shape[axis] == 1 or image.strides[axis] == inside.strides[axis])
                for axis in (0, 2, 3)
            )
            if same and 0 <= image.offset - inside.offset <= inside.shape[1] - channels:
                # A reshape may have forgotten the stride of an axis of size 1, along which the border lies.
                return replace(image, strides=inside.strides)
        made = self.channels_last(image.type, "", need)
        self.copy(image, made)
        return made

    def pool(self, x: View, how: str | float, **geometry: Any) -> list[View]:
        _require_floats(x)
        result = self.result()
        if how not in ("max", "average") or len(result.dims) == 5 or x.shape[2] != 1:
            raise CannotLower("this pooling has no machine code")
        kernel, strides, dilations, pads = (
            tuple(geometry[name][1:]) for name in ("kernel", "strides", "dilations", "pads")
        )
        images, channels = result.dims[:2]
        size = (1, *result.dims[2:]) if len(result.dims) == 3 else result.dims[2:]
        after = [
            max(0, (size[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] - pads[i] - x.shape[3 + i] + 1)
            for i in range(2)
        ]
        fill = -np.inf if how == "max" else 0.0
        need = Border(pads[0], after[0], pads[1], after[1], fill)
        image = self._with_border(_plane(x), need)
        step_n, _, step_y, step_x = image.strides
        start = replace(image, offset=image.offset - pads[0] * step_y - pads[1] * step_x)
        ending = self._ending_channels_last(result, channels)
        epilogue, others = ending.epilogue, list[View]()
        if how == "average":
            counts = _window_counts(x.shape[3:], size, kernel, strides, dilations, pads, geometry)
            with np.errstate(divide="ignore"):
                # A window with nothing in it: zero times infinity, NaN as everywhere.
                shares = (1.0 / counts).astype(np.float32)
            if (shares == shares.flat[0]).all():
                epilogue = _scaled(epilogue, float(shares.flat[0]))
            else:
                constant = Constant(dtypes.FLOAT32, shares.shape, shares)
                share = self.constant(constant, "window shares")
                epilogue = _scaled(epilogue, Access((0, share.strides[0], share.strides[1], 0)))
                others = [share]
        launch = windows.windows(
            self.instructions,
            kind="max" if how == "max" else "sum",
            batch=(images,),
            height=size[0],
            width=size[1],
            columns=channels,
            taps=tuple(
                y * dilations[0] * step_y + x_ * dilations[1] * step_x
                for y in range(kernel[0])
                for x_ in range(kernel[1])
            ),
            a=(step_n, strides[0] * step_y, strides[1] * step_x),
            epilogue=epilogue,
            threads=self.threads,
        )
        ending = replace(ending, leaves=[*others, *ending.leaves])
        return self._finish_padded(launch, image, start, [image], ending)

    def reduce(self, name: str, x: View, axes: Sequence[int]) -> list[View]:
        _require_floats(x)
        kind = _REDUCTIONS.get(name)
        result = self.result()
        if kind is None or result.dtype != dtypes.FLOAT32:
            raise CannotLower(f"Reduce{name} has no machine code")
        reduced = sorted({axis % len(x.shape) for axis in axes})
        kept = [axis for axis in range(len(x.shape)) if axis not in reduced]
        moved = x.transpose([*kept, *reduced])
        count = math.prod(x.shape[axis] for axis in reduced)
        if not count:
            raise CannotLower("a reduction of nothing has no machine code")
        shape = moved.shape[: len(kept)]
        # Lanes lie along a kept axis whose elements are neighbours, in the result, too; where the reduced
        # places are few.
        lane_axis = next(
            (
                axis
                for axis in range(len(kept))
                if moved.strides[axis] == 1 and shape[axis] > 1 and math.prod(shape[axis + 1 :]) == 1
            ),
            None,
        )
        if kind in ("sum", "max", "min") and lane_axis is not None and count <= MOST_PLACES:
            return self._reduce_lanes(moved, shape, lane_axis, kind, name)
        return self._reduce_rows(moved, shape, count, kind, name)

    def _reduce_rows(
        self, moved: View, shape: tuple[int, ...], count: int, kind: str, name: str
    ) -> list[View]:
        rows_seen = moved.reshape((*shape, count))
        if rows_seen is None or (count > 1 and rows_seen.strides[-1] != 1):
            rows_seen = self.reshape(self.contiguous(moved), (*shape, count))
        ending = self._ending(
            self.result(), lambda view: view.reshape((*shape, 1)), lambda view: True, lambda view: True
        )
        epilogue = ending.epilogue
        if name == "Mean":
            epilogue = _scaled(epilogue, 1.0 / count)
        elif name == "L2":
            epilogue = _rooted(epilogue)
        length = rows.cut_of_rows(math.prod(shape), count, self.threads)
        if length:
            rows_seen = self._reduced_parts(rows_seen, length, kind)
            kind = kind if kind in ("max", "min", "prod") else "sum"
        launch = rows.reduce_rows(
            self.instructions,
            kind=kind,
            shape=rows_seen.shape,
            strides=rows_seen.strides,
            epilogue=epilogue,
            threads=self.threads,
        )
        return self._finish(launch, [rows_seen], ending)

    def _reduced_parts(self, seen: View, length: int, kind: str) -> View:
        """What parts of that length of each row, and a shorter last one, are reduced to."""
        *lead, count = seen.shape
        parts, rest = divmod(count, length)
        made = self.scratch(TensorType(dtypes.FLOAT32, (*lead, parts + (rest > 0))))
        for first, number, size in ((0, parts, length), (parts, 1, rest)):
            if not size:
                continue
            source = replace(
                seen,
                shape=(*lead, number, size),
                strides=(*seen.strides[:-1], length, 1),
                offset=seen.offset + first * length,
            )
            corner = (*(0 for _ in lead), first)
            target = made.slice(corner, (1,) * len(corner), (*lead, number))
            launch = rows.reduce_rows(
                self.instructions,
                kind=kind,
                shape=source.shape,
                strides=source.strides,
                epilogue=Epilogue(IDENTITY, (), (Access((*target.strides, 1)),)),
                threads=self.threads,
            )
            self.enter(launch, [source], [target])
        return made

    def _reduce_lanes(
        self, moved: View, shape: tuple[int, ...], lane_axis: int, kind: str, name: str
    ) -> list[View]:
        rank = len(shape)
        order = [axis for axis in range(rank) if axis != lane_axis] + [lane_axis]

        def arrange(view: View) -> View | None:
            seen = view.reshape(shape)
            if seen is None:
                return None
            lead = [(seen.shape[axis], seen.strides[axis]) for axis in order]
            while len(lead) < 3:
                lead.insert(0, (1, 0))
            return replace(
                seen, shape=tuple(size for size, _ in lead), strides=tuple(stride for _, stride in lead)
            )

        kept_shape = replace(moved, shape=shape, strides=moved.strides[:rank])
        base = arrange(kept_shape)
        assert base is not None
        ending = self._ending(
            self.result(), arrange, lambda view: view.shape[-1] == 1 or view.strides[-1] == 1
        )
        sizes, steps = moved.shape[rank:], moved.strides[rank:]
        places = np.zeros(1, np.int64)
        for size, step in zip(sizes, steps, strict=True):
            places = (places[:, None] + np.arange(size) * step).reshape(-1)
        epilogue = _scaled(ending.epilogue, 1.0 / places.size) if name == "Mean" else ending.epilogue
        launch = windows.windows(
            self.instructions,
            kind=kind,
            batch=base.shape[:-3],
            height=base.shape[-3],
            width=base.shape[-2],
            columns=base.shape[-1],
            taps=tuple(int(place) for place in places),
            a=base.strides[:-1],
            epilogue=epilogue,
            threads=self.threads,
        )
        return self._finish(launch, [moved, moved], ending)

    def _ending_channels_last(self, result: TensorType, channels: int) -> _Ending:
        self._makes_channels_last = True
        try:
            return self._ending(result, _places, lambda view: channels == 1 or view.strides[3] == 1)
        finally:
            self._makes_channels_last = False

    def softmax(self, x: View, axes: int, *, is_logarithm: bool) -> list[View]:
        _require_floats(x)
        result = self.result()
        lead = x.shape[: len(x.shape) - axes]
        columns = math.prod(x.shape[len(x.shape) - axes :])
        seen = self.reshape(x, (*lead, columns))
        if columns > 1 and seen.strides[-1] != 1:
            seen = self.contiguous(seen)
        ending = self._ending(
            result,
            lambda view: view.reshape((*lead, columns)),
            lambda view: columns == 1 or view.strides[-1] == 1,
        )
        launch = rows.softmax(
            self.instructions,
            shape=seen.shape,
            strides=seen.strides,
            is_logarithm=is_logarithm,
            epilogue=ending.epilogue,
            threads=self.threads,
        )
        return self._finish(launch, [seen], ending)

    def normalise(
        self, x: View, axes: int, epsilon: float, scale: View | None, bias: View | None, *, is_centred: bool
    ) -> list[View]:
        given = [view for view in (x, scale, bias) if view is not None]
        _require_floats(*given)
        lead = x.shape[: len(x.shape) - axes]
        columns = math.prod(x.shape[len(x.shape) - axes :])
        shape = (*lead, columns)
        seen = self.reshape(x, shape)
        if columns > 1 and seen.strides[-1] != 1:
            seen = self.contiguous(seen)
        factors = [None if view is None else self.reshape(view, shape) for view in (scale, bias)]
        # The kernel walks them by 0 or 1.
        factors = [
            self.contiguous(view)
            if view is not None and columns > 1 and view.strides[-1] not in (0, 1)
            else view
            for view in factors
        ]
        ending = self._ending(
            self.result(),
            lambda view: view.reshape(shape),
            lambda view: columns == 1 or view.strides[-1] == 1,
        )
        launch = rows.normalise(
            self.instructions,
            shape=seen.shape,
            strides=seen.strides,
            is_centred=is_centred,
            epsilon=epsilon,
            scale=None if factors[0] is None else factors[0].strides,
            bias=None if factors[1] is None else factors[1].strides,
            epilogue=ending.epilogue,
            threads=self.threads,
        )
        return self._finish(launch, [seen, *(view for view in factors if view is not None)], ending)

    def gather(self, data: View, indices: View, axis: int) -> list[View]:
        if indices.dtype not in (dtypes.INT32, dtypes.INT64):
            raise CannotLower(f"indices of {indices.dtype.name} have no machine code")
        result = self.result()
        block = math.prod(data.shape[axis + 1 :]) * data.itemsize
        if not indices.elements or not data.elements:
            raise CannotLower("nothing to gather")
        data, indices = self.contiguous(data), self.contiguous(indices)
        target = self.output(result)
        made = target if target.is_contiguous else self.scratch(result)
        launch = gather.gather(
            self.instructions,
            outer=math.prod(data.shape[:axis]),
            size=data.shape[axis],
            count=indices.elements,
            block_bytes=block,
            is_wide=indices.dtype == dtypes.INT64,
            error_code=self.error_code(),
            threads=self.threads,
        )
        self.enter(launch, [data, indices], [made, self.status])
        if made is not target:
            self.copy(made, target)
        return [target]

    def resize(self, x: View, tables: Sequence[Any]) -> list[View]:
        """Nearest neighbours that repeat every element a whole number of times: a copy."""
        if self._epilogue is not None:
            raise CannotLower("Resize takes no epilogue")
        result = self.result()
        target = self.output(result)
        shape: list[int] = []
        source_strides: list[int] = []
        target_strides: list[int] = []
        for axis, table in enumerate(tables):
            size, total = x.shape[axis], result.dims[axis]
            factor = total // max(size, 1)
            if factor * size != total or (
                table is not None
                and (table[0].shape[1] != 1 or (table[0][:, 0] != np.arange(total) // factor).any())
            ):
                raise CannotLower("this Resize has no machine code")
            shape += [size, factor]
            source_strides += [x.strides[axis], 0]
            target_strides += [target.strides[axis] * factor, target.strides[axis]]
        self.copy(
            replace(x, shape=tuple(shape), strides=tuple(source_strides)),
            replace(target, shape=tuple(shape), strides=tuple(target_strides)),
        )
        return [target]

    def _refuse(self, *args: Any, **kwargs: Any) -> list[View]:
        raise CannotLower("no machine code does this")

    norm = arg_reduce = scan = pad = gather_elements = gather_tuples = _refuse
    scatter_elements = scatter_tuples = conv_transpose = softmax_along = standardise_along = _refuse

    def emit(self, dispatch: Any) -> None:
        raise CannotLower(f"{dispatch.kernel.label} has no machine code")


@dataclass(frozen=True)
class _Ending:
    """How a template ends: its epilogue, operands, results, and copies of results to be made after it."""

    epilogue: Epilogue
    leaves: Sequence[View]
    targets: Sequence[View]
    copies: Sequence[tuple[View, View]]
    outputs: Sequence[View]


def _ordered(taken: BodyEpilogue) -> Any:
    """The epilogue's body as an expression whose operand 0 is the template's result."""
    inputs = sorted(taken.body.inputs, key=lambda value: value.name != taken.result)
    return expression_of(replace(taken.body, inputs=tuple(inputs)))


def _require_floats(*views: View) -> None:
    for view in views:
        if view.dtype != dtypes.FLOAT32:
            raise CannotLower(f"machine code for this operator computes with float32, not {view.dtype.name}")


def _access(view: View) -> Access:
    if view.dtype not in ELEMENTS:
        raise CannotLower(f"machine code computes with float32, float16 and bool, not {view.dtype.name}")
    return Access(view.strides, ELEMENTS[view.dtype])


def _word_name(view: View) -> str:
    if view.itemsize in (4, 8):
        return "float32"
    if view.dtype == dtypes.BOOL:
        return "bool"
    if view.dtype == dtypes.FLOAT16:
        return "float16"
    raise CannotLower(f"{view.dtype.name} is not copied by machine code")


def _words(view: View) -> View:
    """A view of 8-byte elements as one of pairs of 4-byte words."""
    if view.itemsize != 8:
        return view
    return replace(view, shape=(*view.shape, 2), strides=(*(2 * stride for stride in view.strides), 1))


def _plane(x: View) -> View:
    """[images, channels, 1, height, width] without its depth."""
    return replace(x, shape=(*x.shape[:2], *x.shape[3:]), strides=(*x.strides[:2], *x.strides[3:]))


def _places(view: View) -> View:
    """[images, channels, (height,) width] over (image, y, x, channel)."""
    if len(view.shape) == 3:
        n, c, w = view.shape
        return replace(
            view, shape=(n, 1, w, c), strides=(view.strides[0], 0, view.strides[2], view.strides[1])
        )
    return view.transpose((0, 2, 3, 1))


def _mapped(epilogue: Epilogue, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Epilogue:
    return replace(
        epilogue,
        leaves=tuple(replace(access, strides=change(access.strides)) for access in epilogue.leaves),
        results=tuple(replace(access, strides=change(access.strides)) for access in epilogue.results),
    )


def _stretches(taps: int, tap_bytes: int) -> int:
    """Into how many launches the taps of a convolution are cut.

    Args:
        taps: of the window.
        tap_bytes: of a panel of weights, for each tap.
    """
    return 1 if taps * tap_bytes <= 2 * PANEL_BYTES else min(taps, -(-taps * tap_bytes // PANEL_BYTES))


def _scaled(epilogue: Epilogue, factor: float | Access) -> Epilogue:
    """The result times a number, or times a further leaf that comes first, and then the epilogue."""
    old = epilogue.expression
    if isinstance(factor, float):
        by_number = (Step("constant", number=factor), Step("mul", (0, old.operands)))
        return replace(epilogue, expression=_after(old, by_number, 0))
    expression = _after(old, (Step("mul", (0, 1)),), 1)
    return replace(epilogue, expression=expression, leaves=(factor, *epilogue.leaves))


def _rooted(epilogue: Epilogue) -> Epilogue:
    return replace(epilogue, expression=_after(epilogue.expression, (Step("sqrt", (0,)),), 0))


def _after(old: Expression, first: tuple[Step, ...], added: int) -> Expression:
    """The expression applied to the last of `first`; `added` operands come in behind operand 0."""
    operands = old.operands + added
    result = operands + len(first) - 1

    def moved(value: int) -> int:
        if value == 0:
            return result
        return value + added if value < old.operands else value + added + len(first)

    steps = tuple(replace(step, inputs=tuple(moved(value) for value in step.inputs)) for step in old.steps)
    return Expression(operands, (*first, *steps), tuple(moved(value) for value in old.outputs))


def _window_counts(
    sizes: Sequence[int],
    results: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    geometry: Mapping[str, Any],
) -> Array:
    """How many places count in the average of each window, [height, width]."""
    ends = tuple(geometry.get("pads_end", geometry["pads"])[1:])
    along = []
    for axis in range(2):
        places = np.arange(results[axis])[:, None] * strides[axis] - pads[axis]
        places = places + np.arange(kernel[axis]) * dilations[axis]
        low, high = (
            (-pads[axis], sizes[axis] + ends[axis]) if geometry.get("counts_padding") else (0, sizes[axis])
        )
        along.append(((places >= low) & (places < high)).sum(1))
    return np.asarray(along[0][:, None] * along[1][None, :])


def _with_rows(epilogue: Epilogue) -> Epilogue:
    """(batch, m, n) → (batch, y, x, n) with one y."""
    return _mapped(epilogue, lambda s: (s[0], 0, s[1], s[2]))


def _without_batch(epilogue: Epilogue) -> Epilogue:
    return _mapped(epilogue, lambda s: s[1:])


def _grouped(epilogue: Epilogue, per_group: int) -> Epilogue:
    """(image, y, x, channel) → (image, group, y, x, channel of the group)."""
    return _mapped(epilogue, lambda s: (s[0], per_group * s[3], s[1], s[2], s[3]))
