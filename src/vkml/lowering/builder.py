"""The builder: turns operators' lowerings into dispatches over planned buffers."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from vkml.ir import Constant, DType, Graph, Node, TensorType, Value, dtypes, find, unused, value_names
from vkml.ir.file_constant import settled
from vkml.ir.graph import attribute_key
from vkml.ir.lowering import CannotLower
from vkml.ir.recurrence import Cell
from vkml.ir.windows import Windows
from vkml.kernels import (
    attention,
    conv,
    conv_transpose,
    gather,
    gemm,
    gemv,
    index,
    matrix_units,
    pad,
    pool,
    recurrent,
    reduce,
    resize,
    rows,
    scan,
    scatter,
)
from vkml.kernels import pointwise as pointwise_kernels
from vkml.kernels.fragment_layout import FragmentLayouts
from vkml.kernels.packed_weights import Fragment, PackedWeights
from vkml.kernels.pointwise import Epilogue
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.kernels.writer import KernelWriter, storage_type
from vkml.lowering.body import Body
from vkml.lowering.recurrence import RecurrentLayer

# Constants in other layouts, for as long as the constants they were made from are alive.
_prepared: weakref.WeakKeyDictionary[Constant, dict[str, Constant]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Target:
    """What lowering needs to know of a device."""

    capabilities: frozenset[str]
    push_bytes: int = 128
    shared_bytes: int = 16384
    max_invocations: int = 256
    subgroup_size: int = 4
    max_groups: int = 65535
    processors: int = 1
    """Workgroups of 256 threads that run at once, roughly: what split-K aims to fill."""
    strict_fp32: bool = True
    """Whether products of float32 keep all of its bits: precision "highest"."""
    fragment: Fragment | None = None
    """What the device's matrix units multiply in one instruction: fp16, added up in fp32."""
    wide_fragment: Fragment | None = None
    """One of as much k and 16 columns, where the device has it beside `fragment`."""
    fragment_layouts: Callable[[Fragment], FragmentLayouts | None] = field(
        default=lambda fragment: None, compare=False
    )
    """Which elements of a fragment each lane holds, where that is a formula; asks the device."""
    holds_elements_once: Callable[[], bool] = field(default=lambda: True, compare=False)
    """Whether a subgroup's lanes share a fragment's elements, as packed weights want it; asks the device."""

    @property
    def has_units(self) -> bool:
        """Whether there are matrix units, and precision allows them."""
        return self.fragment is not None and not self.strict_fp32


class Builder:
    """Collects the dispatches of one device's part of a graph.

    An operator's ``lower`` gets views of its inputs and returns views of its outputs; it asks for results
    with `output` and launches kernels through the template methods. Views that are mere index arithmetic
    (transpose, slice, …) are returned without any launch.
    """

    makes: ClassVar[str] = "Vulkan kernel"
    """What it makes of nodes, for the reasons that users read."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.dispatches: list[Dispatch] = []
        self.buffers: list[Buffer] = []
        self.status = Buffer(BufferKind.STATUS, 16, "status")
        self.uses_status = False
        self.error_labels: list[str] = []
        self._destinations: dict[str, View] = {}
        self._labels: tuple[str, ...] = ()
        self._operators: tuple[str, ...] = ()
        self._result_names: tuple[str, ...] = ()
        self._epilogue: Epilogue | None = None
        self._epilogue_types: tuple[TensorType, ...] = ()
        self._epilogue_names: tuple[str, ...] = ()
        self._types: tuple[TensorType, ...] = ()
        self._row_exponents: dict[Hashable, View] = {}

    # -- values ---------------------------------------------------------------------------------------------

    def buffer(
        self, kind: BufferKind, type_: TensorType, name: str = "", constant: Constant | None = None
    ) -> View:
        """A fresh buffer seen as a row-major tensor."""
        self.require_storage(type_.dtype)
        made = Buffer(kind, type_.bytes, name, constant)
        self.buffers.append(made)
        return contiguous(made, type_)

    def require_storage(self, dtype: DType) -> None:
        """Refuses types that the device does not keep."""
        storage_type(dtype)

    def constant(self, constant: Constant, name: str) -> View:
        kind = BufferKind.SIZES if constant.is_open else BufferKind.CONSTANT
        return self.buffer(kind, constant.type, name, constant)

    def prepared(
        self,
        view: View,
        key: str,
        change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
        dtype: DType | None = None,
    ) -> View:
        """A constant in another layout, made once however many plans ask for it.

        Args:
            view: the whole of a constant.
            key: names the change.
            change: array → array.
            dtype: of what is made; None: the constant's.
        """
        constant = view.buffer.constant
        assert constant is not None
        changed = _prepared.get(constant, {}).get(key)
        if changed is None:
            array = change(constant.array.reshape(view.shape))
            changed = settled(Constant(dtype or constant.dtype, array.shape, array))
            _prepared.setdefault(constant, {})[key] = changed
        return self.constant(changed, f"{view.buffer.name}:{key}")

    def packed_weights(self, weights: View, fragment: Fragment) -> View:
        """A constant's weights (k, n) as matrix units want them, packed once for all plans."""
        constant = weights.buffer.constant
        assert constant is not None
        key = f"packed {weights.shape} {weights.strides} {weights.offset} {fragment}"
        packed = _prepared.get(constant, {}).get(key)
        if packed is None:
            packed = PackedWeights(constant, weights, fragment, self.target.push_bytes)
            _prepared.setdefault(constant, {})[key] = packed
        return self.buffer(BufferKind.CONSTANT, packed.type, f"{weights.buffer.name}:packed", packed)

    def row_exponents(self, rows: View, fragment: Fragment) -> View:
        """The scales of rows (1, m, k) for matrix units, found once for all products that read these rows."""
        key = rows.buffer, rows.shape, rows.strides, rows.offset
        found = self._row_exponents.get(key)
        if found is None:
            found = self._row_exponents[key] = matrix_units.emit_row_exponents(self, rows, fragment)
        return found

    def set_destination(self, name: str, view: View) -> None:
        """States where the value `name` has to end up (a graph output, a part of a Concat)."""
        self._destinations[name] = view

    def has_destination(self, name: str) -> bool:
        return name in self._destinations

    def forget_destinations(self, names: Sequence[str]) -> bool:
        """Lets strided destinations of `names` go; whether there were any."""
        found = [n for n in names if n in self._destinations and not self._destinations[n].is_contiguous]
        for name in found:
            del self._destinations[name]
        return bool(found)

    def output(self, type_: TensorType, index: int = 0) -> View:
        """Where the current node's output `index` goes."""
        name = self._result_names[index] if index < len(self._result_names) else ""
        found = self._destinations.get(name)
        if found is not None and found.type == type_:
            return found
        return self.activation(type_, name)

    def activation(self, type_: TensorType, name: str = "") -> View:
        """Fresh memory for a value between dispatches, laid out as suits its name."""
        return self.buffer(BufferKind.ACTIVATION, type_, name)

    def result(self, index: int = 0) -> TensorType:
        """Type of the current node's output `index`."""
        return self._types[index]

    def scratch(self, type_: TensorType) -> View:
        """Memory between two dispatches of one node."""
        return self.buffer(BufferKind.ACTIVATION, type_)

    @contextlib.contextmanager
    def step(self, result: TensorType) -> Iterator[None]:
        """Inside, template methods make an intermediate `result` in scratch memory, without the epilogue."""
        saved = self._result_names, self._types, self._epilogue, self._epilogue_types, self._epilogue_names
        self._result_names, self._types = (), (result,)
        self._epilogue, self._epilogue_types, self._epilogue_names = None, (), ()
        try:
            yield
        finally:
            self._result_names, self._types, self._epilogue, self._epilogue_types, self._epilogue_names = (
                saved
            )

    @contextlib.contextmanager
    def node(self, node: Node, labels: Sequence[str], operators: Sequence[str]) -> Iterator[None]:
        """Names what the dispatches inside compute, and where results go."""
        self._labels, self._operators, self._result_names = tuple(labels), tuple(operators), node.outputs
        try:
            yield
        finally:
            self._labels, self._operators, self._result_names = (), (), ()

    # -- launching ------------------------------------------------------------------------------------------

    def emit(self, dispatch: Dispatch) -> None:
        """Enters a finished launch; `CannotLower` where the device lacks what the kernel needs."""
        missing = dispatch.kernel.needs - self.target.capabilities
        if missing:
            raise CannotLower(f"{dispatch.kernel.label} needs {', '.join(sorted(missing))}")
        for view in dispatch.reads:
            if view.buffer.kind is BufferKind.OUTPUT:
                view.buffer.host_only = False
        if not all(view.elements for view in dispatch.writes):
            return
        self.dispatches.append(replace(dispatch, nodes=self._labels, operators=self._operators))

    def mark(self) -> tuple[int, int]:
        """Where the program stands, for `rewind`."""
        return len(self.dispatches), len(self.buffers)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Takes back what was added since `mark`."""
        del self.dispatches[mark[0] :], self.buffers[mark[1] :]
        self._row_exponents.clear()  # what is in it may be gone

    def writer(self) -> KernelWriter:
        return KernelWriter(self.target.push_bytes)

    def error_code(self) -> int:
        """Registers the current node as one that may report a bad index; the code its kernel writes."""
        self.uses_status = True
        self.error_labels.append(", ".join(self._labels))
        return len(self.error_labels)

    def copy(self, source: View, target: View) -> None:
        """Copies elements between views of the same shape and type."""
        self.pointwise(_identity(source.type), [source], [target], label="copy")

    def contiguous(self, view: View) -> View:
        """The view itself where it is row-major, otherwise a copy that is."""
        if view.is_contiguous:
            return view
        made = self.scratch(view.type)
        self.copy(view, made)
        return made

    def reshape(self, view: View, shape: Sequence[int]) -> View:
        """The elements in another shape: a view where strides can say it, else a copy."""
        seen = view.reshape(shape)
        if seen is None:
            seen = self.contiguous(view).reshape(shape)
            assert seen is not None
        return seen

    def pointwise(
        self, body: Graph, leaves: Sequence[View], outputs: Sequence[View], *, label: str = "pointwise"
    ) -> None:
        """Runs a body of pointwise nodes; leaves are broadcast to the outputs' shape."""
        space = outputs[0].shape
        if not outputs[0].elements:
            return
        self.emit(
            pointwise_kernels.pointwise(
                body,
                [leaf.expand(space) for leaf in leaves],
                outputs,
                label=label,
                push_limit=self.target.push_bytes,
                max_groups=self.target.max_groups,
            )
        )

    def positions(self, count: int) -> View:
        """0, 1, 2, … as int32."""
        one = self.constant(Constant(dtypes.INT32, (), np.ones((), np.int32)), "one")
        with self.step(TensorType(dtypes.INT32, (count,))):
            [made] = self.scan(one.expand((count,)), 0, is_product=False, is_exclusive=True, is_reverse=False)
        return made

    def compute(
        self, write: Callable[..., str], leaves: Sequence[View], output: View, *, label: str = "pointwise"
    ) -> View:
        """Runs a small pointwise body that `write` makes of a `Body` and the leaves' names in it."""
        body = Body()
        result = write(body, *(body.input(leaf.dtype) for leaf in leaves))
        self.pointwise(body.finish(result), leaves, [output], label=label)
        return output

    def fused(self, body: Graph, inputs: Sequence[View]) -> list[View]:
        """Lowers a fused group: a pointwise body as one kernel, an anchor with the rest as its epilogue."""
        views = {value.name: view for value, view in zip(body.inputs, inputs, strict=True)}
        anchor = body.nodes[0]
        if find(anchor).is_pointwise:
            outputs = [self.output(value.tensor, index) for index, value in enumerate(body.outputs)]
            self.pointwise(body, list(inputs), outputs, label=body.name)
            return outputs
        mark = self.mark()
        try:
            return self._with_epilogue(body, anchor, views)
        except CannotLower:
            self.rewind(mark)
            return self._without_epilogue(body, anchor, views)

    def _with_epilogue(self, body: Graph, anchor: Node, views: Mapping[str, View]) -> list[View]:
        result = anchor.outputs[0]
        tail = _tail(body)
        shape = body.types[result].dims
        leaves = {v.name: views[v.name].expand(shape) for v in tail.inputs if v.name != result}
        names, self._result_names = self._result_names, ()
        self._epilogue = Epilogue(tail, result, leaves)
        self._epilogue_types, self._epilogue_names = tuple(v.tensor for v in body.outputs), names
        self._types = (body.types[result],)
        try:
            lowered = self._lower_node(anchor, [views[name] if name else None for name in anchor.inputs])
            if self._epilogue is not None:
                raise CannotLower(f"{anchor.op} took no epilogue")
        finally:
            self._epilogue, self._epilogue_types, self._epilogue_names = None, (), ()
            self._result_names = names
        return list(lowered)

    def _without_epilogue(self, body: Graph, anchor: Node, views: Mapping[str, View]) -> list[View]:
        names, self._result_names = self._result_names, ()
        self._types = (body.types[anchor.outputs[0]],)
        lowered = self._lower_node(anchor, [views[name] if name else None for name in anchor.inputs])
        self._result_names = names
        tail = _tail(body)
        outputs = [self.output(value.tensor, index) for index, value in enumerate(body.outputs)]
        available = {**views, anchor.outputs[0]: lowered[0]}
        self.pointwise(tail, [available[value.name] for value in tail.inputs], outputs, label=tail.name)
        return outputs

    def lower_node(
        self, node: Node, inputs: Sequence[View | None], types: Sequence[TensorType]
    ) -> Sequence[View]:
        """Lowers any node; `CannotLower` says why it has no Vulkan form."""
        operator = find(node)
        self._types = tuple(types)
        if types and not any(type_.elements for type_ in types):
            given = iter(types)
            return [
                self.output(next(given) if name else _NOTHING, index)
                for index, name in enumerate(node.outputs)
            ]
        if operator.is_pointwise and len([name for name in node.outputs if name]) == 1:
            present = [view for view in inputs if view is not None]
            body = body_graph(node, [None if v is None else v.type for v in inputs], types)
            unique = {n: v for n, v in zip([n for n in node.inputs if n], present, strict=True)}
            outputs = [self.output(types[0])]
            self.pointwise(body, list(unique.values()), outputs, label=node.op)
            return outputs
        return self._lower_node(node, inputs)

    def _lower_node(self, node: Node, inputs: Sequence[View | None]) -> Sequence[View]:
        # Tables that are made of attributes and constants may overflow like any other numbers.
        with np.errstate(all="ignore"):
            lowered: Sequence[View] | None = find(node).lower(self, node, inputs)
        if lowered is None:
            raise CannotLower(f"{node.op} has no {self.makes}")
        return lowered

    # -- templates: one line each, the work is in vkml.kernels ----------------------------------------------

    def matmul(self, a: View, b: View) -> list[View]:
        """Batched product of (batch, m, k) and (batch, k, n)."""
        product = gemm.matrix_product(a, b, self.result())
        if gemv.fits(a, b):
            return gemv.gemv(self, product, a, b)
        why = matrix_units.refusal(self.target, product, a, b)
        if not why:
            return matrix_units.launch(self, product, a, b)
        return gemm.matmul(self, replace(product, why_strict=why), a, b)

    def attention(
        self, q: View, k: View, v: View, *, causal: tuple[int, float, bool] | None, **how: Any
    ) -> list[View]:
        """softmax(scale · q kᵀ, masked) v; other arguments as the fields of `Attention`, and of `Causal`."""
        known = None if causal is None else attention.Causal(*causal)
        given = attention.Attention(q, k, v, causal=known, **how)
        return attention.launch(self, given, self.result())

    def conv(self, x: View, weight: View, bias: View | None, windows: Windows, *, group: int) -> list[View]:
        """Convolution over windows of three spatial axes."""
        return conv.conv(self, x, weight, bias, self.result(), windows, group)

    def pool(
        self, x: View, how: str | float, windows: Windows, *, counts_padding: bool = False
    ) -> list[View]:
        """Pools windows; `how` is "max", "average", "squares" (their sum) or the p of a norm."""
        if isinstance(how, str):
            function = {"max": pool.MAX, "average": pool.AVERAGE, "squares": pool.SUM_OF_SQUARES}[how]
        else:
            function = pool.norm(how, x.dtype)
        return pool.pool(self, x, self.result(), windows, how=function, counts_padding=counts_padding)

    def reduce(self, name: str, x: View, axes: Sequence[int]) -> list[View]:
        return reduce.reduce(self, x, axes, reduce.reduction(name, x.dtype), self.result())

    def norm(self, x: View, axes: Sequence[int], p: float) -> list[View]:
        return reduce.reduce(self, x, axes, reduce.norm(p, x.dtype), self.result())

    def arg_reduce(self, x: View, axis: int, *, is_max: bool, takes_last: bool) -> list[View]:
        return reduce.arg_reduce(self, x, axis, self.result(), is_max=is_max, takes_last=takes_last)

    def scan(self, x: View, axis: int, **variant: bool) -> list[View]:
        """Running totals; see `vkml.kernels.scan`."""
        return scan.scan(self, x, axis, self.result(), **variant)

    def softmax(self, x: View, axes: int, *, is_logarithm: bool) -> list[View]:
        how = rows.LOG_SOFTMAX if is_logarithm else rows.SOFTMAX
        return rows.row_function(self, x, axes, how, self.result())

    def softmax_along(self, x: View, order: Sequence[int], *, is_logarithm: bool) -> list[View]:
        """Softmax along the axis that `order` puts last; the result is a transposed view."""
        return self._rows_along(x, order, 1, rows.LOG_SOFTMAX if is_logarithm else rows.SOFTMAX)

    def standardise_along(self, x: View, order: Sequence[int], axes: int) -> list[View]:
        """Mean 0 and deviation 1 over the `axes` axes that `order` puts last; a transposed view."""
        return self._rows_along(x, order, axes, rows.STANDARDISE)

    def _rows_along(self, x: View, order: Sequence[int], axes: int, how: rows.RowFunction) -> list[View]:
        if self._epilogue is not None:
            raise CannotLower(f"{how.label} along inner axes takes no epilogue")
        moved = x.transpose(order)
        result = replace(self.result(), shape=moved.shape)
        with self.step(result):
            [made] = rows.row_function(self, moved, axes, how, result)
        return [made.transpose([order.index(axis) for axis in range(len(order))])]

    def normalise(
        self, x: View, axes: int, epsilon: float, scale: View | None, bias: View | None, *, is_centred: bool
    ) -> list[View]:
        """Layer (or root-mean-square) normalisation over the last `axes` dimensions."""
        how = rows.LAYER_NORM if is_centred else rows.RMS_NORM
        return rows.row_function(self, x, axes, how, self.result(), epsilon=epsilon, scale=scale, bias=bias)

    def pad(self, x: View, begins: Sequence[int], mode: str, fill: View | None) -> list[View]:
        return pad.pad(self, x, begins, mode, fill, self.result())

    def gather_elements(self, data: View, indices: View, axis: int) -> list[View]:
        return index.gather_elements(self, data, indices, axis, self.result())

    def gather_tuples(self, data: View, indices: View, batch_axes: int) -> list[View]:
        return index.gather_tuples(self, data, indices, batch_axes, self.result())

    def scatter_elements(
        self, x: View, indices: View, updates: View, axis: int, reduction: str
    ) -> list[View]:
        return scatter.scatter_elements(self, x, indices, updates, axis, reduction, self.result())

    def scatter_tuples(self, x: View, indices: View, updates: View, reduction: str) -> list[View]:
        return scatter.scatter_tuples(self, x, indices, updates, reduction, self.result())

    def conv_transpose(self, x: View, weight: View, bias: View | None, **geometry: Any) -> list[View]:
        return conv_transpose.conv_transpose(self, x, weight, bias, self.result(), **geometry)

    def gather(self, data: View, indices: View, axis: int) -> list[View]:
        return gather.gather(self, data, indices, axis, self.result())

    def recurrence(self, cells: Sequence[Cell], inputs: View, weights: View, **how: Any) -> list[View | None]:
        """A recurrent layer's results; other arguments as the fields of `RecurrentLayer`."""
        return self.recurrent_layer(RecurrentLayer(cells, inputs, weights, **how))

    def recurrent_layer(self, layer: RecurrentLayer) -> list[View | None]:
        return recurrent.recurrent_layer(self, layer)

    def resize(self, x: View, tables: Sequence[Any]) -> list[View]:
        return resize.resize(self, x, self.result(), tables)

    def concat(self, parts: Sequence[View], axis: int) -> list[View]:
        """Joins parts; those that were written in place already (see `set_destination`) cost nothing."""
        whole = self.output(self.result())
        start = 0
        for part in parts:
            shape = tuple(part.shape[axis] if a == axis else d for a, d in enumerate(whole.shape))
            starts = [start if a == axis else 0 for a in range(len(shape))]
            place = whole.slice(starts, [1] * len(shape), shape)
            start += part.shape[axis]
            is_there = part.buffer is place.buffer and (part.offset, part.strides) == (
                place.offset,
                place.strides,
            )
            if not is_there and part.elements:
                self.copy(part, place)
        return [whole]

    # -- epilogues ------------------------------------------------------------------------------------------

    def take_epilogue(
        self, type_: TensorType, order: Sequence[int] | None = None
    ) -> tuple[Epilogue | None, list[View]]:
        """Called by a template for its last launch: the epilogue to apply and where the results go.

        Args:
            type_: of the template's own result, stored as it is when there is no epilogue.
            order: of its axes, in which it had better lie in memory where nothing else is wanted.
        """
        taken, self._epilogue = self._epilogue, None
        if taken is None:
            if order is None or (self._result_names and self._result_names[0] in self._destinations):
                return None, [self.output(type_)]
            name = self._result_names[0] if self._result_names else ""
            laid = replace(type_, shape=tuple(type_.dims[axis] for axis in order))
            made = self.activation(laid, name).transpose([order.index(axis) for axis in range(len(order))])
            return None, [made]
        if self._epilogue_names:
            self._result_names = self._epilogue_names
        return taken, [self.output(t, i) for i, t in enumerate(self._epilogue_types)]

    def before_epilogue(
        self,
        result: TensorType,
        *,
        scale: float = 1.0,
        addend: View | None = None,
        addend_scale: float = 1.0,
    ) -> None:
        """Makes the epilogue start with ``scale * result + addend_scale * addend``.

        Args:
            result: type of the template's own result.
            scale: factor of the template's result.
            addend: over the template's index space or the result's shape: a bias.
            addend_scale: factor of the addend.
        """
        nodes: list[Node] = []
        constants: dict[str, Constant] = {}
        types: dict[str, TensorType] = {}
        leaves: dict[str, View] = {}
        old = self._epilogue
        taken = value_names(old.body) if old is not None else set()

        def named(wanted: str) -> str:
            name = unused(wanted, taken)
            taken.add(name)
            return name

        def scaled(name: str, factor: float) -> str:
            if factor == 1.0:
                return name
            number, product = named(f"{name}~factor"), named(f"{name}~scaled")
            constants[number] = Constant(result.dtype, (), np.full((), factor, result.dtype.storage))
            nodes.append(Node("Mul", (name, number), (product,)))
            types[product] = result
            return product

        source = named("~product")
        inputs = [Value(source, result)]
        value = scaled(source, scale)
        if addend is not None and addend_scale != 0.0:
            operand, total = named("~addend"), named("~sum")
            inputs.append(Value(operand, addend.type))
            leaves[operand] = addend
            nodes.append(Node("Add", (value, scaled(operand, addend_scale)), (total,)))
            types[total] = result
            value = total
        if not nodes:
            return
        if old is None:
            body = Graph(tuple(inputs), (Value(value, result),), tuple(nodes), constants, types)
            self._epilogue, self._epilogue_types = Epilogue(body, source, leaves), (result,)
            return
        last = nodes[-1]
        nodes[-1] = replace(last, outputs=(old.result,))
        body = replace(
            old.body,
            inputs=(*inputs, *(value for value in old.body.inputs if value.name != old.result)),
            nodes=(*nodes, *old.body.nodes),
            constants={**old.body.constants, **constants},
            types={**old.body.types, **types, old.result: result},
        )
        self._epilogue = Epilogue(body, source, {**leaves, **old.leaves})


_NOTHING = TensorType(dtypes.FLOAT32, (0,))
"""Stands in for absent outputs."""


def _identity(type_: TensorType) -> Graph:
    value = Value("x", type_)
    return Graph((value,), (value,), (), {})


def _tail(body: Graph) -> Graph:
    """A fused body without its anchor; the anchor's result becomes an input."""
    anchor = body.nodes[0]
    result = Value(anchor.outputs[0], body.types[anchor.outputs[0]])
    used = {name for node in body.nodes[1:] for name in node.reads}
    leaves = tuple(value for value in body.inputs if value.name in used)
    return replace(body, inputs=(result, *leaves), nodes=body.nodes[1:])


_BODIES_KEPT = 1024
_bodies: dict[Hashable, Graph] = {}


def body_graph(node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Graph:
    """A body of one pointwise node, the same one for equal nodes.

    Its inputs, and their names in it, are the distinct inputs that are there, in order.
    """
    numbers: dict[str, int] = {}
    present = [(name, type_) for name, type_ in zip(node.inputs, inputs, strict=True) if name and type_]
    for name, _ in present:
        numbers.setdefault(name, len(numbers))
    places = tuple(numbers.get(name) for name in node.inputs)
    result = next(type_ for name, type_ in zip(node.outputs, outputs, strict=False) if name)
    types = tuple(type_ for _, type_ in present)
    key = (node.op, node.domain, attribute_key(node.attributes), places, types, result)
    body = _bodies.get(key)
    if body is None:
        names = tuple("" if place is None else f"x{place}" for place in places)
        given = {f"x{numbers[name]}": type_ for name, type_ in present}
        made = replace(node, inputs=names, outputs=("y",), name="")
        values = tuple(Value(name, type_) for name, type_ in given.items())
        body = Graph(values, (Value("y", result),), (made,), {}, {"y": result})
        if len(_bodies) >= _BODIES_KEPT:
            _bodies.clear()
        _bodies[key] = body
    return body
