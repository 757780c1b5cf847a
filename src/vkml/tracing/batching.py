"""What was recorded for one example, recorded once more for a batch of them.

Values of a batch have its axis first. An operator has a rule, by which one application is for all examples;
those that have none, or whose rule does not fit what they are given, are applied to each example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vkml.errors import NotImplemented as NotSupported
from vkml.errors import OperandError
from vkml.ir import TensorType
from vkml.ir.dtypes import INT64
from vkml.ir.gradients import expanded, reshaped, sliced, transposed
from vkml.tracing.emit import EMITTER, apply_all, constant
from vkml.tracing.value import Application, Joined, Traced, next_serial, origin, tensor_type, tracking

_Output = tuple[int, int]
"""The serial of an application, and which of its outputs."""


class Example(Application):
    """What makes an example: nothing that could be computed, for it stands for all of a batch.

    Args:
        value: the batch.
        axis: of the examples.
    """

    __slots__ = ("batch",)

    def __init__(self, value: Traced, axis: int) -> None:
        order = [axis, *[other for other in range(len(value.dims)) if other != axis]]
        self.batch = transposed(EMITTER, value, order) if axis else value
        """The batch, examples first."""
        dims = self.batch.dims[1:]
        self.types = [tensor_type(value.type.dtype, dims)]
        self.serial = next_serial()
        self.device, self.is_free, self.origin = value.device, False, origin()
        self.tracks, self.depth = value.tracks, 1
        self._outputs, self._kept, self.changed, self.call = [None], (), None, None

    @property
    def inputs(self) -> tuple[Traced | None, ...]:  # type: ignore[override]
        """There are none.

        Raises:
            RuntimeError: always: somebody wants to compute an example.
        """
        raise RuntimeError(
            "vmap: the function looks at the elements of an example (.item(), .numpy(), if, print …), or "
            "leaves one behind; it is called once for a whole batch, so that there is none. Use vkml.where "
            "for what depends on elements"
        )

    @property
    def sources(self) -> tuple[Traced | None, ...]:
        return ()


class Batch:
    """The values for a batch of what was recorded of its examples.

    Args:
        size: how many examples there are.
        examples: of it.
    """

    def __init__(self, size: int, examples: Iterable[Example]) -> None:
        self._size = size
        self._known: dict[_Output, Traced] = {(made.serial, 0): made.batch for made in examples}
        self._seen: dict[int, bool] = {}
        """By serial, whether an application depends on examples."""

    def of(self, values: Sequence[Traced]) -> list[Traced | None]:
        """Values of all examples; None for those that are the same for all."""
        for made in self._depending(values):
            with tracking(made.tracks):
                for at, value in enumerate(self._applied(made)):
                    is_cut = value.tracks and not made.tracks  # `detach` is an Identity that keeps no history
                    self._known[made.serial, at] = EMITTER.apply("Identity", value) if is_cut else value
        return [self._batched(value) for value in values]

    def _batched(self, value: Traced) -> Traced | None:
        made = value.application
        if made is None:
            return None
        return self._known.get((made.serial, value.index))

    def _depending(self, values: Sequence[Traced]) -> list[Application]:
        """Applications that depend on examples and are not known yet, in the order of recording."""
        found: dict[int, Application] = {}
        waiting = _makers(values)
        while waiting:
            made = waiting.pop()
            if made.serial in found or made.serial in self._seen or isinstance(made, Example):
                continue
            found[made.serial] = made
            waiting += _makers(made.inputs)
        ordered = [found[serial] for serial in sorted(found)]
        for made in ordered:
            self._seen[made.serial] = any(
                (maker.serial, 0) in self._known or self._seen.get(maker.serial, False)
                for maker in _makers(made.inputs)
            )
        return [made for made in ordered if self._seen[made.serial]]

    def _applied(self, made: Application) -> Sequence[Traced]:
        if isinstance(made, Joined):
            raise NotSupported(
                "vmap: a Function, a checkpoint or a move to another device states a gradient of its own, "
                "which is not known for a batch: write it in operators, or loop over the examples"
            )
        inputs = [None if x is None else self._batched(x) for x in made.inputs]
        rule = _RULES.get((made.node.domain, made.node.op))
        if rule is None and made.operator.is_pointwise:
            rule = _pointwise
        if rule is not None:
            given = _Given(made, inputs, self._size)
            try:
                found = rule(given)
            except OperandError:
                found = None
            if found is not None and all(
                value.dims == (self._size, *type_.dims) and value.type.dtype == type_.dtype
                for value, type_ in zip(found, made.types, strict=True)
            ):
                return found
        return self._one_by_one(made, inputs)

    def _one_by_one(self, made: Application, inputs: Sequence[Traced | None]) -> list[Traced]:
        rows: list[list[Traced]] = [[] for _ in made.types]
        for at in range(self._size):
            given = [
                one
                if batch is None
                else reshaped(EMITTER, sliced(EMITTER, batch, 0, at, at + 1), batch.dims[1:])
                for one, batch in zip(made.inputs, inputs, strict=True)
            ]
            for row, value in zip(rows, _again(made, given), strict=True):
                row.append(reshaped(EMITTER, value, (1, *value.dims)))
        if not self._size:
            raise NotSupported(f"vmap: {made.node.op} for no example at all")
        return [row[0] if len(row) == 1 else EMITTER.apply("Concat", *row, axis=0) for row in rows]


def _makers(values: Iterable[Traced | None]) -> list[Application]:
    """Of values that are not known: what is known depends on no example."""
    return [x.application for x in values if x is not None and x.data is None and x.application is not None]


def _again(made: Application, inputs: Sequence[Traced | None], **changed: object) -> list[Traced]:
    """An operator applied to other values, some of its attributes changed."""
    node = made.node
    attributes = {name: value for name, value in {**node.attributes, **changed}.items() if value is not None}
    return apply_all(node.op, inputs, len(made.types), node.domain, **attributes)


class _Given:
    """What a rule goes by.

    Attributes:
        made: the application to one example.
        ones: its inputs.
        batches: these for all examples; None for what is the same for all, or absent.
        size: examples.
    """

    def __init__(self, made: Application, batches: Sequence[Traced | None], size: int) -> None:
        self.made, self.ones, self.batches, self.size = made, made.inputs, batches, size

    def rank(self, at: int) -> int:
        """Axes of an example's input."""
        one = self.ones[at]
        assert one is not None
        return len(one.dims)

    def only(self, *places: int) -> bool:
        """Whether no inputs but these differ from example to example."""
        return not any(batch is not None for at, batch in enumerate(self.batches) if at not in places)

    def either(self, at: int) -> Traced | None:
        """An input as it is: for all examples, or the same for each."""
        return self.batches[at] if self.batches[at] is not None else self.ones[at]

    def all_of(self, at: int) -> Traced:
        """An input for all examples, repeated where it is the same for each."""
        batch, one = self.batches[at], self.ones[at]
        assert one is not None
        return repeated(one, self.size) if batch is None else batch

    def lifted(self, at: int, rank: int) -> Traced | None:
        """An input with as many axes behind that of the batch, those in front of size 1."""
        batch = self.batches[at]
        if batch is None:
            return self.ones[at]
        return reshaped(EMITTER, batch, (self.size, *[1] * (rank - self.rank(at)), *batch.dims[1:]))

    def rest(self, start: int) -> list[Traced | None]:
        """The inputs from one on, which are the same for all examples."""
        return list(self.ones[start:])

    def elements(self, at: int) -> list[int] | None:
        """The integers of a constant input; None where it is absent."""
        one = self.ones[at] if at < len(self.ones) else None
        if one is None:
            return None
        found = EMITTER.elements_of(one)
        return None if found is None else [int(x) for x in found.reshape(-1)]

    def attribute(self, name: str) -> int:
        return int(self.made.node.attributes[name])


Rule = Callable[[_Given], "list[Traced] | None"]


def repeated(one: Traced, size: int) -> Traced:
    """A value for each of a batch."""
    return expanded(EMITTER, one, (size, *one.dims))


def _pointwise(given: _Given) -> list[Traced]:
    rank = max(len(one.dims) for one in given.ones if one is not None)
    return _again(given.made, [given.lifted(at, rank) for at in range(len(given.ones))])


def _matmul(given: _Given) -> list[Traced]:
    ranks = [given.rank(0), given.rank(1)]
    operands = []
    for at in (0, 1):
        batch, one = given.batches[at], given.ones[at]
        assert one is not None
        value = one if batch is None else batch
        if ranks[at] == 1:  # a row on the left, a column on the right
            lead = value.dims[:-1]
            value = reshaped(EMITTER, value, (*lead, 1, one.dims[0]) if at == 0 else (*lead, one.dims[0], 1))
        operands.append(value)
    most = max(2, *ranks)
    for at, batch in enumerate(given.batches):
        if batch is not None:
            dims = operands[at].dims
            operands[at] = reshaped(
                EMITTER, operands[at], (dims[0], *[1] * (most + 1 - len(dims)), *dims[1:])
            )
    [made] = _again(given.made, operands)
    return [_shaped(given, made)]


def _gemm(given: _Given) -> list[Traced]:
    attributes, dtype = given.made.node.attributes, given.made.types[0].dtype
    operands = []
    for at, name in ((0, "transA"), (1, "transB")):
        value = given.either(at)
        assert value is not None
        rank = len(value.dims)
        order = [*range(rank - 2), rank - 1, rank - 2]
        operands.append(transposed(EMITTER, value, order) if attributes[name] else value)
    made = EMITTER.apply("MatMul", *operands)
    if attributes["alpha"] != 1:
        made = EMITTER.apply("Mul", made, constant(attributes["alpha"], dtype))
    addend = given.lifted(2, 2) if len(given.ones) > 2 else None
    if addend is not None:
        if attributes["beta"] != 1:
            addend = EMITTER.apply("Mul", addend, constant(attributes["beta"], dtype))
        made = EMITTER.apply("Add", made, addend)
    return [made if len(made.dims) > 2 else repeated(made, given.size)]


def _shaped(given: _Given, value: Traced, at: int = 0) -> Traced:
    """A value in the shape of an output, for all examples."""
    return reshaped(EMITTER, value, (given.size, *_dims(given.made.types[at])))


def _dims(type_: TensorType) -> Sequence[int]:
    return type_.dims


def _reduction(given: _Given) -> list[Traced] | None:
    if not given.only(0):
        return None
    axes = given.elements(1)
    rank = given.rank(0)
    if not axes:
        if given.made.node.attributes.get("noop_with_empty_axes"):
            return _again(given.made, [given.batches[0], *given.rest(1)])
        axes = list(range(rank))
    shifted = constant([axis % rank + 1 for axis in axes], INT64) if rank else constant([], INT64)
    if not rank:
        return _again(given.made, [given.batches[0], shifted], noop_with_empty_axes=1)
    return _again(given.made, [given.batches[0], shifted])


def _moments(given: _Given) -> list[Traced] | None:
    axes = tuple(axis % given.rank(0) + 1 for axis in given.made.node.attributes["axes"])
    return _again(given.made, [given.batches[0]], axes=axes)


def _by_axis(*places: int) -> Rule:
    """Along an axis of some inputs, which are as many as the batch's; of all where none are named."""

    def rule(given: _Given) -> list[Traced] | None:
        among = places or range(len(given.ones))
        if not given.only(*among):
            return None
        first = next(at for at in among if given.ones[at] is not None)
        axis = given.attribute("axis")
        inputs = [
            None if one is None else given.all_of(at) if at in among else one
            for at, one in enumerate(given.ones)
        ]
        return _again(given.made, inputs, axis=axis + 1 if axis >= 0 else axis % given.rank(first) + 1)

    return rule


def _transpose(given: _Given) -> list[Traced]:
    order = given.made.node.attributes.get("perm") or range(given.rank(0))[::-1]
    assert given.batches[0] is not None
    return [transposed(EMITTER, given.batches[0], [0, *[axis + 1 for axis in order]])]


def _reshape(given: _Given) -> list[Traced] | None:
    """Of what only gives its elements another shape."""
    assert given.batches[0] is not None
    return [_shaped(given, given.batches[0])] if given.only(0) else None


def _expand(given: _Given) -> list[Traced] | None:
    dims = given.made.types[0].dims
    lifted = given.lifted(0, len(dims))
    assert lifted is not None
    return [expanded(EMITTER, lifted, (given.size, *dims))] if given.only(0) else None


def _slice(given: _Given) -> list[Traced] | None:
    starts, axes = given.elements(1), given.elements(3)
    if not given.only(0) or starts is None:
        return None
    rank = given.rank(0)
    axes = list(range(len(starts))) if axes is None else axes
    shifted = constant([axis % rank + 1 for axis in axes], INT64)
    return _again(given.made, [given.batches[0], given.ones[1], given.ones[2], shifted, *given.rest(4)])


def _gather(given: _Given) -> list[Traced] | None:
    rank = given.rank(0)
    axis = given.attribute("axis") % rank
    if given.batches[1] is None:
        return _again(given.made, [given.batches[0], given.ones[1]], axis=axis + 1)
    if given.batches[0] is not None:
        return None
    [made] = _again(given.made, [given.ones[0], given.batches[1]], axis=axis)
    others = [at for at in range(len(made.dims)) if at != axis]
    return [transposed(EMITTER, made, [axis, *others])]


def _pad(given: _Given) -> list[Traced] | None:
    pads, axes = given.elements(1), given.elements(3)
    if not given.only(0) or pads is None:
        return None
    rank = given.rank(0)
    shifted = [axis % rank + 1 for axis in (range(rank) if axes is None else axes)]
    value = given.ones[2] if len(given.ones) > 2 else None
    return _again(given.made, [given.batches[0], constant(pads, INT64), value, constant(shifted, INT64)])


def _images(given: _Given) -> list[Traced] | None:
    """What takes a batch of images as its first input: examples are more of these."""
    x = given.batches[0]
    if not given.only(0) or x is None:
        return None
    made = _again(given.made, [reshaped(EMITTER, x, (given.size * x.dims[1], *x.dims[2:])), *given.rest(1)])
    return [_shaped(given, value, at) for at, value in enumerate(made)]


def _normalisation(given: _Given) -> list[Traced] | None:
    if not given.only(0):
        return None
    axis = given.attribute("axis") % given.rank(0)
    return _again(given.made, [given.batches[0], *given.rest(1)], axis=axis + 1)


def _cumulation(given: _Given) -> list[Traced] | None:
    axis = given.elements(1)
    if not given.only(0) or axis is None:
        return None
    return _again(given.made, [given.batches[0], constant(axis[0] % given.rank(0) + 1, INT64)])


_RULES: dict[tuple[str, str], Rule] = {
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Transpose"): _transpose,
    ("", "Expand"): _expand,
    ("", "Slice"): _slice,
    ("", "Gather"): _gather,
    ("", "Pad"): _pad,
    ("", "CumSum"): _cumulation,
    ("", "CumProd"): _cumulation,
    ("", "Concat"): _by_axis(),
    ("", "GatherElements"): _by_axis(0, 1),
    ("", "ScatterElements"): _by_axis(0, 1, 2),
    **{
        ("", f"Reduce{name}"): _reduction
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
    ("vkml", "Moments"): _moments,
    **{("", name): _reshape for name in ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")},
    **{
        ("", name): _by_axis(0)
        for name in (
            "Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "Split", "TopK", "LpNormalization",
        )
    },
    **{("", name): _normalisation for name in ("LayerNormalization", "RMSNormalization")},
    **{
        ("", name): _images
        for name in (
            "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool",
            "GlobalLpPool",
        )
    },
}  # fmt: skip
"""By domain and name; pointwise operators need none."""
