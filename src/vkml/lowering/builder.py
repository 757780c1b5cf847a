"""What the builders of all back ends share: views, destinations, epilogues, lowerings that are kept."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from vkml.ir import Constant, DType, Graph, Node, TensorType, dtypes, find
from vkml.ir.file_constant import settled
from vkml.ir.lowering import CannotLower, all_given
from vkml.ir.size import is_deciding
from vkml.kernels.epilogue import Epilogue
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.bodies import anchors_of, begins_late, body_graph, identity, tail_of
from vkml.lowering.body import Body
from vkml.lowering.epilogues import begun_with
from vkml.lowering.kept import Trace, keep, kept_for
from vkml.lowering.templates import Templates

Array = np.ndarray[Any, Any]
Mark = tuple[int, int, tuple[int, int]]
# Constants in other layouts, for as long as the constants they were made from are alive.
_prepared: weakref.WeakKeyDictionary[Constant, dict[str, Constant]] = weakref.WeakKeyDictionary()


def prepared_forms(constant: Constant) -> dict[str, Constant]:
    """A constant in other layouts, by what they are called."""
    return _prepared.setdefault(constant, {})


_QUESTION_BYTES = 1024
"""Contents up to here may be what a kept lowering goes by."""

D = TypeVar("D")


class Builder(Templates, Generic[D]):
    """Collects the launches of one device's part of a graph; a back end adds its templates.

    An operator's ``lower`` gets views of its inputs and returns views of its outputs; it asks for results
    with `output` and launches kernels through the template methods. Views that are mere index arithmetic
    (transpose, slice, …) are returned without any launch.

    Args:
        setting: all that lowering depends on besides the node and its operands.
    """

    def __init__(self, setting: Hashable) -> None:
        self.keeps_lowerings = True
        self.launches: list[D] = []
        self.buffers: list[Buffer] = []
        self.status = Buffer(BufferKind.STATUS, 16, "status")
        self.uses_status = False
        self.error_labels: list[str] = []
        self._kept = kept_for(setting)
        self._trace: Trace | None = None
        self._destinations: dict[str, View] = {}
        self._labels: tuple[str, ...] = ()
        self._operators: tuple[str, ...] = ()
        self._result_names: tuple[str, ...] = ()
        self._epilogue: Epilogue | None = None
        self._epilogue_types: tuple[TensorType, ...] = ()
        self._epilogue_names: tuple[str, ...] = ()
        self._types: tuple[TensorType, ...] = ()
        self._order: Sequence[int] | None = None

    # -- values ---------------------------------------------------------------------------------------------

    def buffer(
        self, kind: BufferKind, type_: TensorType, name: str = "", constant: Constant | None = None
    ) -> View:
        """A fresh buffer seen as a row-major tensor."""
        self.require_storage(type_.dtype)
        # Of what a run makes, no two elements share a byte.
        size = type_.host_bytes if constant is None else type_.bytes
        made = Buffer(kind, size, name, constant)
        self.buffers.append(made)
        if self._trace is not None:

            def again(build: Builder[D], buffers: list[Buffer]) -> None:
                buffer = Buffer(kind, size, "", constant)
                build.buffers.append(buffer)
                buffers.append(buffer)

            self._trace.add_buffer(made, again)
        return contiguous(made, type_)

    def require_storage(self, dtype: DType) -> None:
        """Refuses types that the device does not keep."""
        raise NotImplementedError

    def constant(self, constant: Constant, name: str) -> View:
        """A constant as an operand."""
        kind = BufferKind.SIZES if constant.is_open else BufferKind.CONSTANT
        return self.buffer(kind, constant.type, name, constant)

    def is_whole_constant(self, view: View) -> bool:
        """Whether a view is all of a constant, in order."""
        constant = view.buffer.constant
        return constant is not None and view.is_contiguous and view.elements == constant.type.elements

    def contents(self, view: View) -> Array | None:
        """The array of the whole constant that a view is of, by which lowering goes; None for other values.

        What is asked for here is part of what makes a lowering fit another node.
        """
        constant = view.buffer.constant
        if constant is None:
            return None
        trace = self._trace
        if trace is not None and view.buffer not in trace.made:
            if constant.type.host_bytes > _QUESTION_BYTES or constant.is_open:
                trace.is_lasting = False
            else:
                self.ask(view, _contents)
        return constant.array

    def ask(self, view: View, question: Callable[[View], Hashable]) -> Hashable:
        """The answer to a question about the contents of a constant, by which lowering goes.

        Args:
            view: of a constant.
            question: is asked again of nodes that are alike but for their constants.
        """
        answer = question(view)
        trace = self._trace
        if trace is not None and view.buffer not in trace.made:
            if trace.slots.get(view.buffer, len(trace.slots)) >= trace.operands:
                trace.is_lasting = False  # made of an operand: it is not there yet when the question is asked
            trace.questions.append((trace.place(view), question, answer))
        return answer

    def prepared(
        self, view: View, key: str, change: Callable[[Array], Array], dtype: DType | None = None
    ) -> View:
        """A constant in another layout, made once however many plans ask for it.

        Args:
            view: the whole of a constant.
            key: names the change.
            change: array → array; it refers to no value of a model.
            dtype: of what is made; None: the constant's.
        """
        constant = view.buffer.constant
        assert constant is not None
        forms = prepared_forms(constant)
        # Nodes may see one constant in several shapes.
        name = f"{key}, of {view.shape}"
        changed = forms.get(name)
        if changed is None:
            array = change(constant.array.reshape(view.shape))
            changed = settled(Constant(dtype or constant.dtype, array.shape, array))
            forms[name] = changed
        return self._derived(view, changed, lambda build, seen: build.prepared(seen, key, change, dtype))

    def _derived(self, view: View, constant: Constant, again: Callable[[Any, View], View]) -> View:
        """A constant that is made of another one, as a value; `again` makes it of another view."""
        trace, self._trace = self._trace, None
        try:
            name = f"{view.buffer.name}:changed"
            made = self.buffer(BufferKind.CONSTANT, constant.type, name, constant)
        finally:
            self._trace = trace
        self._note(view, made, again)
        return made

    def _note(self, given: View, made: View, again: Callable[[Any, View], View]) -> None:
        """Has the trace make a value of another one once more."""
        trace = self._trace
        if trace is not None:
            placed = trace.place(given)
            trace.slots[made.buffer] = len(trace.slots)
            trace.steps.append(lambda build, buffers: buffers.append(again(build, placed.on(buffers)).buffer))

    def set_destination(self, name: str, view: View) -> None:
        """States where the value `name` has to end up (a graph output, a part of a Concat)."""
        self._destinations[name] = view

    def has_destination(self, name: str) -> bool:
        """Whether it is stated where the value `name` has to end up."""
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
        """Fresh memory for a value between launches, laid out as suits its name."""
        return self.buffer(BufferKind.ACTIVATION, type_, name)

    def result(self, index: int = 0) -> TensorType:
        """Type of the current node's output `index`."""
        return self._types[index]

    def scratch(self, type_: TensorType) -> View:
        """Memory between two launches of one node."""
        return self.buffer(BufferKind.ACTIVATION, type_)

    @contextlib.contextmanager
    def step(self, result: TensorType, order: Sequence[int] | None = None) -> Iterator[None]:
        """Inside, template methods make an intermediate `result` in scratch memory, without the epilogue.

        Args:
            result: its type.
            order: of its axes, in which it had better lie in memory where a template has no wish of its own.
        """
        saved = self._result_names, self._types, self._epilogue, self._epilogue_types, self._epilogue_names
        saved_order, self._order = self._order, order
        self._result_names, self._types = (), (result,)
        self._epilogue, self._epilogue_types, self._epilogue_names = None, (), ()
        try:
            yield
        finally:
            self._result_names, self._types, self._epilogue, self._epilogue_types, self._epilogue_names = (
                saved
            )
            self._order = saved_order

    # -- nodes ----------------------------------------------------------------------------------------------

    def lower(
        self,
        node: Node,
        parts: Sequence[Node],
        inputs: Sequence[View | None],
        types: Sequence[TensorType],
    ) -> Sequence[View | None]:
        """Lowers a node, or adds what a node like it was lowered to.

        Args:
            node: normalised, or a group.
            parts: the nodes that it stands for.
            inputs: a view of each input, None where it is absent.
            types: of the outputs that are there.

        Raises:
            CannotLower: why it has no form here.
        """
        self._begin(node, parts)
        try:
            if is_deciding() or node.form is None or not self.keeps_lowerings:
                return self._lower(node, inputs, types)
            form, buffers = self._form(node, inputs, types)
            for trace in self._kept.get(form, ()):
                if trace.holds(self, buffers):
                    return self._replay(trace, node, buffers)
            return self._traced(form, buffers, node, inputs, types)
        finally:
            self._end()

    @contextlib.contextmanager
    def node(self, node: Node, parts: Sequence[Node]) -> Iterator[None]:
        """Names what the launches inside compute, and where results go."""
        self._begin(node, parts)
        try:
            yield
        finally:
            self._end()

    def _begin(self, node: Node, parts: Sequence[Node]) -> None:
        self._labels = tuple([part.label for part in parts])
        self._operators = tuple([part.op for part in parts])
        self._result_names = node.outputs

    def _end(self) -> None:
        self._labels = self._operators = self._result_names = ()

    def _replay(self, trace: Trace, node: Node, buffers: list[Buffer]) -> Sequence[View | None]:
        if trace.refusal is not None:
            raise CannotLower(trace.refusal)
        if trace.forgets_destinations:
            self.forget_destinations(node.outputs)
        return trace.replay(self, buffers)

    def _traced(
        self,
        form: Hashable,
        buffers: Sequence[Buffer],
        node: Node,
        inputs: Sequence[View | None],
        types: Sequence[TensorType],
    ) -> Sequence[View | None]:
        """Lowers a node by its operator and keeps what it came to."""
        self._trace = trace = Trace({buffer: slot for slot, buffer in enumerate(buffers)}, len(buffers))
        try:
            results = self._lower(node, inputs, types)
            trace.finish(results)
        except CannotLower as reason:
            trace.refusal = str(reason)
            keep(self._kept, form, trace)
            raise
        finally:
            self._trace = None
        keep(self._kept, form, trace)
        return results

    def refusal(self, node: Node, inputs: Sequence[View | None], types: Sequence[TensorType]) -> str | None:
        """Why a node has no form here; None where it has, which then is kept for `lower`."""
        if not is_deciding() and node.form is not None:
            form, buffers = self._form(node, inputs, types)
            for trace in self._kept.get(form, ()):
                if trace.holds(self, buffers):
                    return trace.refusal
        try:
            self.lower(node, (node,), inputs, types)
        except CannotLower as reason:
            return str(reason)
        return None

    def is_certain(self, node: Node, inputs: Sequence[View | None], types: Sequence[TensorType]) -> bool:
        """Whether a lowering of a node is kept that holds whatever is in constants."""
        form, _ = self._form(node, inputs, types)
        return any(trace.refusal is None and not trace.questions for trace in self._kept.get(form, ()))

    def _form(
        self, node: Node, inputs: Sequence[View | None], types: Sequence[TensorType]
    ) -> tuple[Hashable, list[Buffer]]:
        """All that lowering a node depends on but for contents of constants, and the buffers of operands."""
        slots: dict[Buffer, int] = {self.status: 0}
        operands: list[Hashable] = [
            view if view is None else self._lie(view, slots.setdefault(view.buffer, len(slots)))
            for view in inputs
        ]
        for name in node.outputs:
            view = self._destinations.get(name)
            if view is not None:
                operands.append(self._lie(view, slots.setdefault(view.buffer, len(slots))))
            operands.append(self._wish(name))
        kinds = [(type_.dtype, type_.shape) for type_ in types]
        return (node.form, len(inputs), *operands, *kinds), list(slots)

    def _lie(self, view: View, slot: int) -> Hashable:
        """How a view lies on the buffer of a number."""
        buffer = view.buffer
        whole = None if buffer.constant is None else (buffer.constant.dtype, buffer.constant.shape)
        return slot, view.dtype, view.shape, view.strides, view.offset, whole, self._surroundings(buffer)

    def _wish(self, name: str) -> Hashable:
        """How a value is to lie that has no destination."""
        return None

    def _surroundings(self, buffer: Buffer) -> Hashable:
        """What templates know of a buffer besides the views that they are given."""
        return None

    def _lower(
        self, node: Node, inputs: Sequence[View | None], types: Sequence[TensorType]
    ) -> Sequence[View | None]:
        """Lowers a node by its operator."""
        mark = self.mark()
        try:
            return self._lowered(node, inputs, types)
        except CannotLower:
            # A strided destination may be what the kernel could not write to.
            if not self.forget_destinations(node.outputs):
                raise
            self.rewind(mark)
            if self._trace is not None:
                self._trace.forgets_destinations = True
            self._result_names = node.outputs  # a template may have been stopped in the middle of a step
            return self._lowered(node, inputs, types)

    def _lowered(
        self, node: Node, inputs: Sequence[View | None], types: Sequence[TensorType]
    ) -> Sequence[View | None]:
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
        return self._by_operator(node, inputs)

    def _by_operator(self, node: Node, inputs: Sequence[View | None]) -> Sequence[View | None]:
        # Tables that are made of attributes and constants may overflow like any other numbers.
        with np.errstate(all="ignore"):
            lowered: Sequence[View | None] | None = find(node).lower(self, node, inputs)
        if lowered is None:
            raise CannotLower(f"{node.op} has no {self.makes}")
        return lowered

    def fused(self, body: Graph, inputs: Sequence[View | None]) -> list[View]:
        """Lowers a fused group: a pointwise body as one kernel, an anchor with the rest as its epilogue."""
        operands = all_given(inputs)
        views = {value.name: view for value, view in zip(body.inputs, operands, strict=True)}
        anchors = anchors_of(body)
        if not anchors:
            outputs = [self.output(value.tensor, index) for index, value in enumerate(body.outputs)]
            self.pointwise(body, operands, outputs, label=body.name)
            return outputs
        anchor = anchors[0]
        if begins_late(body):
            return self.with_prologue(body, views)
        if len(anchors) > 1 and all(find(each).is_linked for each in anchors):
            return self.linked(body, views)
        if anchor is not body.nodes[0] or len(anchors) > 1 or len(anchor.outputs) > 1:
            return self.reductions(body, views)
        mark = self.mark()
        try:
            return self._with_epilogue(body, anchor, views)
        except CannotLower:
            self.rewind(mark)
            return self._without_epilogue(body, anchor, views)

    def reductions(self, body: Graph, views: Mapping[str, View]) -> list[View]:
        """A body of reductions of what pointwise nodes make, and what is made of their results.

        Args:
            body: as `parts_of_reduction` takes it.
            views: of its inputs.
        """
        raise self._lacks("a reduction that computes what it reads")

    def with_prologue(self, body: Graph, views: Mapping[str, View]) -> list[View]:
        """A body whose first nodes are no launches: the anchor behind computes them, or reads what they do.

        Args:
            body: as `begins_late` says.
            views: of its inputs.
        """
        raise self._lacks("what computes its operands itself")

    def linked(self, body: Graph, views: Mapping[str, View]) -> list[View]:
        """A body of anchors, each with its epilogue, of which the last computes all before it.

        Args:
            body: its first node is an anchor, and each anchor's first operand is what those before it make.
            views: of its inputs.
        """
        raise self._lacks("what computes its operands itself")

    def _with_epilogue(self, body: Graph, anchor: Node, views: Mapping[str, View]) -> list[View]:
        result = anchor.outputs[0]
        names, self._result_names = self._result_names, ()
        self._epilogue = self._epilogue_of(body, views)
        self._epilogue_types, self._epilogue_names = tuple(v.tensor for v in body.outputs), names
        self._types = (body.types[result],)
        try:
            lowered = self._by_operator(anchor, [views[name] if name else None for name in anchor.inputs])
            if self._epilogue is not None:
                raise CannotLower(f"{anchor.op} took no epilogue")
        finally:
            self._epilogue, self._epilogue_types, self._epilogue_names = None, (), ()
            self._result_names = names
        return [view for view in lowered if view is not None]

    def _epilogue_of(self, body: Graph, views: Mapping[str, View]) -> Epilogue:
        """What follows a body's anchor."""
        result, tail = body.nodes[0].outputs[0], tail_of(body)
        shape = body.types[result].dims
        leaves = {v.name: views[v.name].expand(shape) for v in tail.inputs if v.name != result}
        return Epilogue(tail, result, leaves)

    def _without_epilogue(self, body: Graph, anchor: Node, views: Mapping[str, View]) -> list[View]:
        names, self._result_names = self._result_names, ()
        self._types = (body.types[anchor.outputs[0]],)
        lowered = self._by_operator(anchor, [views[name] if name else None for name in anchor.inputs])
        self._result_names = names
        tail = tail_of(body)
        outputs = [self.output(value.tensor, index) for index, value in enumerate(body.outputs)]
        made = lowered[0]
        assert made is not None
        available = {**views, anchor.outputs[0]: made}
        self.pointwise(tail, [available[value.name] for value in tail.inputs], outputs, label=tail.name)
        return outputs

    # -- launching ------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """Where the program stands, for `rewind`."""
        trace = self._trace
        return len(self.launches), len(self.buffers), (0, 0) if trace is None else trace.mark()

    def rewind(self, mark: Mark) -> None:
        """Takes back what was added since `mark`."""
        del self.launches[mark[0] :], self.buffers[mark[1] :]
        if self._trace is not None:
            self._trace.rewind(mark[2])

    @property
    def next_code(self) -> int:
        """What `error_code` gives next."""
        return len(self.error_labels) + 1

    def error_code(self) -> int:
        """Registers the current node as one that may report a bad index; the code its kernel writes."""
        trace = self._trace
        if trace is not None:
            if trace.first_code is None:
                trace.first_code = self.next_code
            trace.steps.append(lambda build, buffers: build.add_error_label())
        return self.add_error_label()

    def add_error_label(self) -> int:
        """Enters the current node's labels into the table of those that report; their code."""
        self.uses_status = True
        self.error_labels.append(", ".join(self._labels))
        return len(self.error_labels)

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

    def copy(self, source: View, target: View) -> None:
        """Copies elements between views of the same shape and type."""
        self.pointwise(identity(source.type), [source], [target], label="copy")

    def pointwise(
        self, body: Graph, leaves: Sequence[View], outputs: Sequence[View], *, label: str = "pointwise"
    ) -> None:
        """Runs a body of pointwise nodes; leaves are broadcast to the outputs' shape."""
        raise NotImplementedError

    def compute(
        self, write: Callable[..., str], leaves: Sequence[View], output: View, *, label: str = "pointwise"
    ) -> View:
        """Runs a small pointwise body that `write` makes of a `Body` and the leaves' names in it."""
        body = Body()
        result = write(body, *(body.input(leaf.dtype) for leaf in leaves))
        self.pointwise(body.finish(result), leaves, [output], label=label)
        return output

    def along(
        self, x: View, order: Sequence[int], template: Callable[[View], Sequence[View | None]]
    ) -> list[View]:
        """What a template, of one result in the shape of its operand, makes of axes in another order."""
        if self._epilogue is not None:
            raise CannotLower("rows along inner axes take no epilogue")
        moved = x.transpose(order)
        with self.step(replace(self.result(), shape=moved.shape)):
            [made] = template(moved)
        assert made is not None
        return [made.transpose([order.index(axis) for axis in range(len(order))])]

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
        self, type_: TensorType, order: Sequence[int] | None = None, *, orders_all: bool = False
    ) -> tuple[Epilogue | None, list[View]]:
        """Called by a template for its last launch: the epilogue to apply and where the results go.

        Args:
            type_: of the template's own result, stored as it is when there is no epilogue.
            order: of its axes, in which it had better lie in memory where nothing else is wanted.
            orders_all: whether what an epilogue makes of it had better lie so, too.
        """
        taken, self._epilogue = self._epilogue, None
        if taken is None:
            return None, [self.laid_output(type_, self._order if order is None else order)]
        if self._epilogue_names:
            self._result_names = self._epilogue_names
        orders = [order if orders_all and t.dims == type_.dims else None for t in self._epilogue_types]
        types = enumerate(zip(self._epilogue_types, orders, strict=True))
        return taken, [self.laid_output(t, laid, index) for index, (t, laid) in types]

    def laid_output(self, type_: TensorType, order: Sequence[int] | None, index: int = 0) -> View:
        """As `output`, where nothing else is wanted with axes that lie in an order in memory."""
        name = self._result_names[index] if index < len(self._result_names) else ""
        if order is None or name in self._destinations:
            return self.output(type_, index)
        laid = replace(type_, shape=tuple(type_.dims[axis] for axis in order))
        return self.activation(laid, name).transpose([order.index(axis) for axis in range(len(order))])

    def before_epilogue(
        self,
        result: TensorType,
        *,
        scale: float = 1.0,
        addend: View | None = None,
        addend_scale: float = 1.0,
    ) -> None:
        """Makes the epilogue start with ``scale * result + addend_scale * addend``; see `begun_with`."""
        old = self._epilogue
        self._epilogue = begun_with(old, result, scale, addend, addend_scale)
        if old is None and self._epilogue is not None:
            self._epilogue_types = (result,)


_NOTHING = TensorType(dtypes.FLOAT32, (0,))
"""Stands in for absent outputs."""


def _contents(view: View) -> Hashable:
    constant = view.buffer.constant
    assert constant is not None
    return constant.type, np.ascontiguousarray(constant.array).tobytes()
