"""Lowers operators to dispatches of Vulkan kernels: the builder of GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np

from vkml import kernels
from vkml.ir import Constant, DType, Graph, Node, TensorType, Value, dtypes, find
from vkml.ir.lowering import CannotLower, Scoring, Table, all_given
from vkml.ir.size import Size, is_deciding
from vkml.ir.windows import Windows
from vkml.kernels.candidates import Candidate, described
from vkml.kernels.links import Link
from vkml.kernels.packed_codes import PackedCodes
from vkml.kernels.packed_weights import Fragment, PackedOnDevice, PackedWeights
from vkml.kernels.spec import Dispatch, KernelSpec
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.kernels.writer import KernelWriter, storage_type
from vkml.lowering.bodies import begins_late, parts_of_links, parts_of_reduction
from vkml.lowering.builder import prepared_forms
from vkml.lowering.entered_again import entered_again
from vkml.lowering.epilogues import begun_with
from vkml.lowering.passes_over_operands import PassBuilder
from vkml.lowering.recurrence import RecurrentLayer
from vkml.lowering.selection import select
from vkml.lowering.stand_ins import StandIns
from vkml.lowering.target import Target
from vkml.lowering.trials import Trials


def _forced() -> Hashable:
    """What tests and tuning runs force, by which the same nodes become other launches."""
    known = list(vars(kernels).items())  # another thread may be importing one
    forced = [(name, getattr(each, "forced", None)) for name, each in known if isinstance(each, ModuleType)]
    return frozenset((name, choice) for name, choice in forced if choice is not None)


_STATE = "_result_names", "_types", "_epilogue", "_epilogue_types", "_epilogue_names", "stand_ins"
"""What a template that emits launches may change besides."""


def _attention(q: View, k: View, v: View, how: Scoring[View]) -> kernels.attention.Attention:
    """What the kernels of attention and of its gradients are given."""
    return kernels.attention.Attention(
        q,
        k,
        v,
        how.scale,
        how.mask,
        how.keeps,
        how.fill,
        how.bias,
        None if how.causal is None else kernels.attention.Causal(*how.causal),
        how.softcap,
        how.is_empty_zero,
        how.is_nan_zero,
    )


class VulkanBuilder(PassBuilder):
    """Collects dispatches of a device's kernels.

    Args:
        target: the device.
        trials: receives the launches of all candidates, for measuring; of a builder that makes no program.
        keeps_pieces: whether constants may lie on the device in pieces of fp16 besides as they are.
    """

    makes = "Vulkan kernel"

    def __init__(self, target: Target, trials: Trials | None = None, *, keeps_pieces: bool = False) -> None:
        asked = target.holds_elements_once, target.fragment_layouts
        super().__init__((target, *asked, keeps_pieces, _forced()))
        self.target = target
        self.keeps_pieces = keeps_pieces
        self.keeps_lowerings = trials is None
        self.trials = trials
        self._wants_prologue = False
        """Whether a normalisation is a product's to compute, and no launch."""
        self._wants_link = False
        """Whether a convolution is what reads it to compute, and no launch;"""
        self._link: Link | None = None
        """which then is this one."""
        self.stand_ins = StandIns()

    # -- values ---------------------------------------------------------------------------------------------

    def require_storage(self, dtype: DType) -> None:
        storage_type(dtype)

    def packed_weights(self, weights: View, fragment: Fragment, pieces: int = 0) -> View:
        """A constant's weights (k, n) as matrix units want them, packed once for all plans.

        Arguments are those of `PackedWeights`.
        """
        key = f"packed {weights.shape} {weights.strides} {weights.offset} {fragment} {pieces}"
        push_bytes = self.target.push_bytes
        return self._packed(
            weights,
            key,
            lambda constant: PackedWeights(constant, weights, fragment, push_bytes, pieces),
            lambda build, seen: build.packed_weights(seen, fragment, pieces),
        )

    def packed_codes(self, codes: View, inner: int, bits: int, fragment: Fragment) -> View:
        """A constant's numbers of few bits as matrix units want them, packed once for all plans.

        Arguments are those of `PackedCodes`.
        """
        push_bytes = self.target.push_bytes
        return self._packed(
            codes,
            f"codes of {bits} bits, {inner} a column, of {codes.shape}, {fragment}",
            lambda constant: PackedCodes(constant, codes, inner, bits, fragment, push_bytes),
            lambda build, seen: build.packed_codes(seen, inner, bits, fragment),
        )

    def _packed(
        self,
        view: View,
        key: str,
        make: Callable[[Constant], PackedOnDevice],
        again: Callable[[VulkanBuilder, View], View],
    ) -> View:
        constant = view.buffer.constant
        assert constant is not None
        forms = prepared_forms(constant)
        packed = forms.get(key)
        if packed is None:
            packed = forms[key] = make(constant)
        return self._derived(view, packed, again)

    def counters(self, count: int) -> View:
        """Numbers of 32 bits for one launch alone: 0 when it begins, and to be 0 when it ends."""
        return self.buffer(BufferKind.COUNTERS, TensorType(dtypes.UINT32, (count,)))

    # -- candidates -----------------------------------------------------------------------------------------

    def select(
        self,
        question: Callable[[], str],
        candidates: Callable[[], Iterator[Candidate]],
        rows: View | None = None,
    ) -> list[View]:
        """Emits one of the candidates: what measurement has found, or the first, which is the rule's choice.

        Args:
            question: all that their times hang on, as text.
            candidates: the rule's choice first; the others may be asked for or not.
            rows: the operand whose passes, if it needs some, other products may share.
        """
        if (self.target.picks is None and self.trials is None) or is_deciding():
            return next(candidates()).emit()
        x = self.stand_ins.normalised_rows
        normalised = "" if x is None else f", rows of {described(x)} normalised"
        return select(self, f"{self.target.policy}: {question()}{normalised}", candidates, rows)

    @contextlib.contextmanager
    def undoing(self, *expected: type[Exception], is_apart: bool = False) -> Iterator[None]:
        """What is emitted inside is taken back, and all is as before, where an exception comes.

        Args:
            expected: the exceptions, which end here.
            is_apart: whether passes that launches share are made anew inside.
        """
        mark, errors, uses_status = self.mark(), len(self.error_labels), self.uses_status
        state = {name: getattr(self, name) for name in _STATE}
        passes = self._passes
        self.stand_ins = self.stand_ins.copy()
        self._passes = {} if is_apart else {**passes}
        try:
            yield
        except expected:
            self.rewind(mark)
            self.shared_passes = {number for number in self.shared_passes if number < mark[0]}
            del self.error_labels[errors:]
            self.uses_status = uses_status
            self._passes = passes
            for name, value in state.items():
                setattr(self, name, value)

    # -- launching ------------------------------------------------------------------------------------------

    def emit(self, dispatch: Dispatch) -> None:
        """Enters a finished launch; `CannotLower` where the device lacks what the kernel needs."""
        missing = dispatch.kernel.needs - self.target.capabilities
        if missing:
            raise CannotLower(f"{dispatch.kernel.label} needs {', '.join(sorted(missing))}")
        if not all(view.elements for view in dispatch.writes):
            return
        if self.stand_ins and any(view in self.stand_ins for view in dispatch.reads):
            raise CannotLower(f"{dispatch.kernel.label} does not compute its operands")
        self.enter(dispatch.kernel, dispatch.groups, dispatch.arguments, dispatch.reads, dispatch.writes)
        if self._trace is not None:
            self._trace.steps.append(entered_again(dispatch, self._trace.place))

    def enter(
        self,
        kernel: KernelSpec,
        groups: tuple[int, int, int],
        arguments: tuple[View | Buffer | int | Size, ...],
        reads: tuple[View, ...],
        writes: tuple[View, ...],
    ) -> None:
        """Adds a launch of a kernel that the device can run, for the current node."""
        for view in reads:
            if view.buffer.kind is BufferKind.OUTPUT:
                view.buffer.host_only = False
        self.launches.append(
            Dispatch(kernel, groups, arguments, reads, writes, self._labels, self._operators)
        )

    def writer(self) -> KernelWriter:
        """For a kernel with as many arguments as the device takes."""
        return KernelWriter(self.target.push_bytes)

    def pointwise(
        self, body: Graph, leaves: Sequence[View], outputs: Sequence[View], *, label: str = "pointwise"
    ) -> None:
        space = outputs[0].shape
        if not outputs[0].elements:
            return
        self.emit(
            kernels.pointwise.pointwise(
                body,
                [leaf.expand(space) for leaf in leaves],
                outputs,
                label=label,
                push_limit=self.target.push_bytes,
                max_groups=self.target.max_groups,
            )
        )

    def reductions(self, body: Graph, views: Mapping[str, View]) -> list[View]:
        parts = parts_of_reduction(body)
        mark = self.mark()
        try:
            return self._reduced(body, parts, views)
        except CannotLower:
            self.rewind(mark)
            return self._reduced_apart(body, parts, views)

    def _reduced(
        self, body: Graph, parts: tuple[Graph, list[Node], Graph], views: Mapping[str, View]
    ) -> list[View]:
        """In one kernel, or two where rows are cut."""
        first, nodes, behind = parts
        if not first.inputs:
            raise CannotLower("what is reduced is computed of numbers alone, which lie nowhere")
        shape = first.outputs[0].tensor.dims
        elements = kernels.reduce.Elements.made(
            first, [views[value.name].expand(shape) for value in first.inputs]
        )
        hows = [
            kernels.reduction.folding(find(node).reduction, dtype)
            for node, dtype in zip(nodes, elements.dtypes, strict=True)
        ]
        names: list[str] = []
        """Of the results; those that nobody wants have names that nobody else has."""
        for node, how, dtype in zip(nodes, hows, elements.dtypes, strict=True):
            count = len(how.result_types(dtype))
            wanted = (*node.outputs, *[""] * count)[:count]
            names += [name or f"~{len(names) + at}" for at, name in enumerate(wanted)]
        axes = [self._axes(node, len(shape), views) for node in nodes]
        assert all(other == axes[0] for other in axes)
        results = set(names)
        shapes = {name: body.types[node.outputs[0]].dims for node in behind.nodes for name in node.reads}
        leaves = {
            value.name: views[value.name].expand(shapes[value.name])
            for value in behind.inputs
            if value.name not in results
        }
        outputs = [self.output(value.tensor, index) for index, value in enumerate(body.outputs)]

        def store(writer: KernelWriter, rows: int, types: Sequence[str]) -> list[View]:
            given = dict(zip(names, types, strict=True))
            kernels.pointwise.emit_results(writer, (rows,), outputs, given, behind, leaves)
            return outputs

        return kernels.reduce.reduce_together(self, elements, axes[0], hows, store)

    def with_prologue(self, body: Graph, views: Mapping[str, View]) -> list[View]:
        count = begins_late(body)
        first, anchor = body.nodes[:count], body.nodes[count]
        names, types = self._result_names, self._types
        known = dict(views)
        try:
            self._wants_prologue = True
            for node in first:
                known[node.outputs[0]] = self._standing_in(node, body.types[node.outputs[0]], known)
            self._wants_prologue, self._types, self._result_names = False, types, names
            made = [Value(node.outputs[0], body.types[node.outputs[0]]) for node in first]
            rest = replace(body, inputs=(*made, *body.inputs), nodes=body.nodes[count:])
            if len(rest.nodes) > 1:
                results: Sequence[View | None] = self._with_epilogue(rest, anchor, known)
            else:
                results = self._by_operator(anchor, [known[name] if name else None for name in anchor.inputs])
            if self.stand_ins:
                raise CannotLower(f"{anchor.op} does not compute its operands")
        finally:
            self._wants_prologue = False
            self.stand_ins.clear()
        return [view for view in results if view is not None]

    def linked(self, body: Graph, views: Mapping[str, View]) -> list[View]:
        known = dict(views)
        names = self._result_names
        parts = parts_of_links(body)
        try:
            for part in parts[:-1]:
                anchor, result = part.nodes[0], part.outputs[0]
                self._types, self._link = (part.types[anchor.outputs[0]],), None
                self._wants_link = True
                self._by_operator(anchor, [known[name] if name else None for name in anchor.inputs])
                self._wants_link = False
                if self._link is None:
                    raise CannotLower(f"{anchor.op} computes none of its operands")
                link, made = self._link, part.types[anchor.outputs[0]]
                epilogue = self._epilogue_of(part, known) if len(part.nodes) > 1 else None
                link = replace(link, epilogue=begun_with(epilogue, made, 1.0, link.bias_of(made), 1.0))
                known[result.name] = self.stand_ins.linked(result.tensor, link)
            self._types, self._result_names = tuple(v.tensor for v in body.outputs), names
            anchor = parts[-1].nodes[0]
            if len(parts[-1].nodes) > 1:
                results: Sequence[View | None] = self._with_epilogue(parts[-1], anchor, known)
            else:
                results = self._by_operator(anchor, [known[name] if name else None for name in anchor.inputs])
            if self.stand_ins:
                raise CannotLower(f"{anchor.op} does not compute its operands")
        finally:
            self._wants_link, self._link = False, None
            self.stand_ins.clear()
        return [view for view in results if view is not None]

    def _standing_in(self, node: Node, result: TensorType, known: Mapping[str, View]) -> View:
        """A view of what a node would make, of which no launch is made."""
        operands = [known[name] if name else None for name in node.inputs]
        if find(node).concatenation_axis(node, result.rank) is not None:
            return self.stand_ins.joined(result, all_given(operands))
        self._types = (result,)
        [made] = self._by_operator(node, operands)
        assert made is not None
        return made

    def _axes(self, node: Node, rank: int, views: Mapping[str, View]) -> tuple[int, ...]:
        """The axes along which a node reduces."""
        constants = {}
        for name in filter(None, node.inputs[1:]):
            constant = views[name].buffer.constant
            assert constant is not None and self.contents(views[name]) is not None
            constants[name] = constant
        axes = find(node).reduced_axes(node, rank, constants)
        assert axes is not None
        return axes

    def _reduced_apart(
        self, body: Graph, parts: tuple[Graph, list[Node], Graph], views: Mapping[str, View]
    ) -> list[View]:
        """In a launch for what is reduced, one for each reduction and one for what follows."""
        first, nodes, behind = parts
        known = dict(views)
        data = [value for value in dict.fromkeys(first.outputs) if value.name not in known]
        if data:
            made = [self.scratch(value.tensor) for value in data]
            self.pointwise(
                replace(first, outputs=tuple(data)),
                [views[value.name] for value in first.inputs],
                made,
                label=first.name,
            )
            known.update(zip([value.name for value in data], made, strict=True))
        names, self._result_names = self._result_names, ()
        for node in nodes:
            self._types = tuple(body.types[name] for name in node.outputs if name)
            lowered = self._by_operator(node, [known[name] if name else None for name in node.inputs])
            known.update((n, view) for n, view in zip(node.outputs, lowered, strict=False) if n and view)
        self._result_names = names
        outputs = [self.output(value.tensor, index) for index, value in enumerate(body.outputs)]
        rows = (outputs[0].elements,)
        shapes = {name: body.types[node.outputs[0]].dims for node in behind.nodes for name in node.reads}
        leaves = [
            self.reshape(known[value.name].expand(shapes.get(value.name, value.tensor.dims)), rows)
            for value in behind.inputs
        ]
        targets = [kernels.pointwise.on_space(view, rows) for view in outputs]
        self.pointwise(behind, leaves, targets, label=behind.name)
        return outputs

    def positions(self, count: int) -> View:
        one = self.constant(Constant(dtypes.INT32, (), np.ones((), np.int32)), "one")
        with self.step(TensorType(dtypes.INT32, (count,))):
            [made] = self.scan(one.expand((count,)), 0, is_product=False, is_exclusive=True, is_reverse=False)
        return made

    # -- templates: one line each, the work is in vkml.kernels ----------------------------------------------

    def matmul(self, a: View, b: View) -> list[View]:
        return kernels.matmul.matmul(self, a, b, self.result())

    def byte_matmul(self, a: View, b: View) -> list[View]:
        return kernels.byte_product.byte_matmul(self, a, b)

    def byte_conv(self, x: View, weight: View, windows: Windows, *, group: int, fill: int) -> list[View]:
        return kernels.byte_product.byte_conv(self, x, weight, windows, group, fill)

    def block_matmul(
        self, a: View, codes: View, scales: View, zeros: View | None, bits: int, block: int, *, rounds: bool
    ) -> list[View]:
        return kernels.block_product.block_product(self, a, codes, scales, zeros, bits, block)

    def attention(
        self, q: View, k: View, v: View, how: Scoring[View], *, keeps_sums: bool = False
    ) -> list[View]:
        given = _attention(q, k, v, how)
        why = kernels.attention.refusal(self.target, given)
        if not keeps_sums:
            if why and not kernels.decode_attention.refusal(given):
                return kernels.decode_attention.launch(self, given, self.result())
            return kernels.attention.launch(self, given, self.result())
        if why:  # before there is memory for the sums
            raise CannotLower(f"no attention on matrix units: {why}")
        kept = self.output(self.result(1), 1)
        sums = kept.reshape((*q.shape[:3], 2))
        if sums is None or not sums.is_contiguous:
            raise CannotLower("the sums of rows lie apart")
        return [*kernels.attention.launch(self, replace(given, row_sums=sums), self.result()), kept]

    def attention_gradients(
        self, q: View, k: View, v: View, how: Scoring[View], d_out: View, row_sums: View, deltas: View,
        count: int,
    ) -> list[View]:  # fmt: skip
        asked = kernels.attention_gradients.AttentionGradients(
            _attention(q, k, v, how), d_out, row_sums, deltas
        )

        def outputs() -> list[View]:
            # Heads side by side, as those of the results: what made them mostly had them there.
            types = [view.type for view in (q, k, v)[:count]]
            return [self.laid_output(type_, (0, 2, 1, 3), index) for index, type_ in enumerate(types)]

        return kernels.attention_gradients.launch(self, asked, outputs)

    def conv(self, x: View, weight: View, bias: View | None, windows: Windows, *, group: int) -> list[View]:
        if self._wants_link:
            self._link = Link(x, weight, bias, windows, group)
            return [x]
        return kernels.conv.conv(self, x, weight, bias, self.result(), windows, group)

    def pool(
        self, x: View, how: str | float, windows: Windows, *, counts_padding: bool = False
    ) -> list[View]:
        """Pools windows; `how` is "max", "average", "squares" (their sum) or the p of a norm."""
        link = self.stand_ins.take_link(x)
        if link is not None:
            return kernels.conv.pooled(
                self, link, self.result(), windows, str(how), counts_padding=counts_padding
            )
        if how == "max":
            return kernels.pool.max_pool(self, x, self.result(), windows)
        if isinstance(how, str):
            function = {"average": kernels.pool.AVERAGE, "squares": kernels.pool.SUM_OF_SQUARES}[how]
        else:
            function = kernels.pool.norm(how, x.dtype)
        return kernels.pool.pool(self, x, self.result(), windows, how=function, counts_padding=counts_padding)

    def roi_align(
        self,
        x: View,
        regions: View,
        images: View,
        *,
        scale: float,
        ratio: int,
        is_max: bool,
        is_half_pixel: bool,
    ) -> list[View]:
        return kernels.roi_align.roi_align(
            self,
            x,
            regions,
            images,
            self.result(),
            scale=scale,
            ratio=ratio,
            is_max=is_max,
            is_half_pixel=is_half_pixel,
        )

    def max_pool_places(
        self, x: View, windows: Windows, values: View | None, places: View, *, is_column_major: bool
    ) -> None:
        kernels.pool.max_pool_places(self, x, windows, values, places, is_column_major=is_column_major)

    def max_pool_gradient(self, x: View, cotangent: View, result: View, windows: Windows) -> bool:
        return kernels.pool.max_pool_gradient(self, x, cotangent, result, windows)

    def reduce(self, name: str, x: View, axes: Sequence[int]) -> list[View]:
        link = self.stand_ins.take_link(x)
        if link is not None:
            return kernels.conv.reduced(self, link, self.result(), name, axes)
        return kernels.reduce.reduce(self, x, axes, kernels.reduction.reduction(name, x.dtype), self.result())

    def moments(self, x: View, axes: Sequence[int]) -> list[View]:
        return kernels.reduce.moments(self, x, axes, self.result())

    def norm(self, x: View, axes: Sequence[int], p: float) -> list[View]:
        return kernels.reduce.reduce(self, x, axes, kernels.reduction.norm(p, x.dtype), self.result())

    def arg_reduce(self, x: View, axis: int, *, is_max: bool, takes_last: bool) -> list[View]:
        return kernels.reduce.arg_reduce(self, x, axis, self.result(), is_max=is_max, takes_last=takes_last)

    def top_k(
        self, x: View, axis: int, k: int, *, is_largest: bool, values: View | None, places: View | None
    ) -> None:
        kernels.top_k.top_k(self, x, axis, k, is_largest=is_largest, values=values, places=places)

    def scan(
        self, x: View, axis: int, *, is_product: bool, is_exclusive: bool, is_reverse: bool
    ) -> list[View]:
        return kernels.scan.scan(
            self,
            x,
            axis,
            self.result(),
            is_product=is_product,
            is_exclusive=is_exclusive,
            is_reverse=is_reverse,
        )

    def softmax(self, x: View, axes: int, *, is_logarithm: bool) -> list[View]:
        how = kernels.rows.LOG_SOFTMAX if is_logarithm else kernels.rows.SOFTMAX
        return kernels.rows.row_function(self, x, axes, how, self.result())

    def softmax_along(self, x: View, order: Sequence[int], *, is_logarithm: bool) -> list[View]:
        how = kernels.rows.LOG_SOFTMAX if is_logarithm else kernels.rows.SOFTMAX
        return kernels.rows.row_function_along(self, x, order[-1], how, self.result())

    def cross_entropy(self, x: View, labels: View, ignored: int | None) -> list[View]:
        return kernels.rows.cross_entropy(self, x, labels, ignored, self.result())

    def standardise_along(self, x: View, order: Sequence[int], axes: int) -> list[View]:
        def standardise(moved: View) -> list[View]:
            return kernels.rows.row_function(self, moved, axes, kernels.rows.STANDARDISE, self.result())

        return self.along(x, order, standardise)

    def normalise(
        self, x: View, axes: int, epsilon: float, scale: View | None, bias: View | None, *, is_centred: bool
    ) -> list[View]:
        if self._wants_prologue:
            result = self.result()
            made = self.stand_ins.normalised(result, x, axes, epsilon, scale, bias, is_centred=is_centred)
            return [made]
        how = kernels.rows.LAYER_NORM if is_centred else kernels.rows.RMS_NORM
        return kernels.rows.row_function(
            self, x, axes, how, self.result(), epsilon=epsilon, scale=scale, bias=bias
        )

    def pad(self, x: View, begins: Sequence[int], mode: str, fill: View | None) -> list[View]:
        return kernels.pad.pad(self, x, begins, mode, fill, self.result())

    def gather_elements(self, data: View, indices: View, axis: int) -> list[View]:
        return kernels.index.gather_elements(self, data, indices, axis, self.result())

    def gather_tuples(self, data: View, indices: View, batch_axes: int) -> list[View]:
        return kernels.index.gather_tuples(self, data, indices, batch_axes, self.result())

    def scatter_elements(
        self, x: View, indices: View, updates: View, axis: int, reduction: str
    ) -> list[View]:
        return kernels.scatter.scatter_elements(self, x, indices, updates, axis, reduction, self.result())

    def scatter_tuples(self, x: View, indices: View, updates: View, reduction: str) -> list[View]:
        return kernels.scatter.scatter_tuples(self, x, indices, updates, reduction, self.result())

    def conv_transpose(
        self,
        x: View,
        weight: View,
        bias: View | None,
        *,
        strides: tuple[int, ...],
        pads: tuple[int, ...],
        dilations: tuple[int, ...],
        group: int,
    ) -> list[View]:
        return kernels.conv_transpose.conv_transpose(
            self,
            x,
            weight,
            bias,
            self.result(),
            strides=strides,
            pads=pads,
            dilations=dilations,
            group=group,
        )

    def gather(self, data: View, indices: View, axis: int) -> list[View]:
        return kernels.gather.gather(self, data, indices, axis, self.result())

    def recurrent_layer(self, layer: RecurrentLayer) -> list[View | None]:
        return kernels.recurrent.recurrent_layer(self, layer)

    def resize(self, x: View, tables: Sequence[Table | None]) -> list[View]:
        return kernels.resize.resize(self, x, self.result(), tables)
