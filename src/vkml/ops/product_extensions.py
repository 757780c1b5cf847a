"""Products and convolutions of com.microsoft: transposed on the way, channels last, activated behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vkml.errors import InvalidGraph, NotImplemented
from vkml.ir.dtypes import FLOAT32, FLOATS, INT32, INT64, UINT8
from vkml.ir.gradients import Emitter, T, transposed
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, INT, INTS, OPTIONAL, REQUIRED, STRING, Array, Operator, operator, register
from vkml.ir.operator import FLOATS as FLOAT_LIST
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.extension import Extension, Writer
from vkml.ops.stepwise import evaluate_steps, infer_steps

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "Celu": ("alpha",),
    "Elu": ("alpha",),
    "Gelu": (),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Mish": (),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softmax": ("axis",),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""The attributes of activations that may stand behind a product, in the order in which numbers are stated."""


def _activate(build: Writer, x: str, name: str, numbers: Mapping[str, Any]) -> None:
    """Makes the node's output by an activation of ONNX's.

    Args:
        build: the writer.
        x: what is activated.
        name: of the activation.
        numbers: its attributes; None where one is not stated.

    Raises:
        InvalidGraph: there is no such activation.
    """
    if name not in _PARAMETERS:
        raise InvalidGraph(
            f"{build.node.label}: the activation {name!r} is none of {', '.join(sorted(_PARAMETERS))}"
        )
    stated: dict[str, Any] = {key: numbers.get(key) for key in _PARAMETERS[name]}
    build.apply(name, x, made=build.wanted(0), **stated)


@operator("FusedMatMul", "TransposeMatMul")
class FusedMatMul(Operator):
    """alpha · A B of stacks of matrices, either of them transposed.

    With `transBatchA` rows are the first axis of A, before those of the batch; B likewise.
    """

    domain = "com.microsoft"
    inputs = (2, 2)
    attributes = {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}
    is_stepwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        for at, name in enumerate("AB"):
            known = required(node, inputs, at)
            require_dtype(node, known, FLOATS, name)
            if node.attributes[f"transBatch{name}"]:
                require_rank(node, known, 3, None, name)
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        factors: list[T] = []
        for at, name in enumerate("AB"):
            x = present(inputs, at)
            order = list(range(build.type_of(x).rank))
            if node.attributes[f"transBatch{name}"]:
                order.insert(len(order) - 2, order.pop(0))
            if node.attributes[f"trans{name}"] and len(order) > 1:
                order[-2:] = order[:-3:-1]
            factors.append(transposed(build, x, order))
        made = build.apply("MatMul", *factors)
        alpha = node.attributes["alpha"]
        if alpha != 1:
            made = build.apply("Mul", made, build.constant(alpha, build.type_of(made).dtype))
        return [made]


@operator()
class NhwcConv(Operator):
    """Convolution of images that lie channels-last, [N, *spatial, C], by weights [M, C / group, *kernel]."""

    domain = "com.microsoft"
    inputs = (2, 3)
    attributes = {
        "auto_pad": "NOTSET",
        "dilations": OPTIONAL,
        "group": 1,
        "kernel_shape": OPTIONAL,
        "pads": OPTIONAL,
        "strides": OPTIONAL,
    }
    attribute_types = {key: INTS for key in ("dilations", "kernel_shape", "pads", "strides")}
    is_stepwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        require_rank(node, required(node, inputs, 0), 3)
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x = present(inputs, 0)
        last = build.type_of(x).rank - 1
        first = transposed(build, x, (0, last, *range(1, last)))
        made = build.apply("Conv", first, *inputs[1:], **node.attributes)
        return [transposed(build, made, (0, *range(2, last + 1), 1))]


_WINDOWS = NhwcConv.attributes


def _conv(op: str, domain: str = "") -> Any:
    """A convolution, `Z` added and activated."""

    def write(build: Writer) -> Sequence[Node]:
        x, weight, bias, more = map(build.given, range(4))
        kept = _stated(build, _WINDOWS)
        name = build.stated("activation", None)
        made = "" if name or more else build.wanted(0)
        made = build.apply(op, x, weight, bias, made=made, domain=domain, **kept)
        if more:
            made = build.apply("Add", made, more, made="" if name else build.wanted(0))
        numbers = list(build.stated("activation_params", None) or ())
        if name == "Clip":
            bounds = [build.apply("CastLike", build.constant(each, FLOAT32), x) for each in numbers]
            build.apply("Clip", made, *bounds, made=build.wanted(0))
        elif name:
            _activate(build, made, name, dict(zip(_PARAMETERS.get(name, ()), numbers, strict=False)))
        return build.nodes

    return write


def _stated(build: Writer, keys: Iterable[str]) -> dict[str, Any]:
    """What the node states of attributes."""
    return {key: build.node.attributes[key] for key in keys if key in build.node.attributes}


def _numbers(build: Writer) -> dict[str, Any]:
    """What `activation_alpha` and the like state."""
    return {key: build.stated(f"activation_{key}", None) for key in ("alpha", "beta", "gamma", "axis")}


def _gemm(build: Writer) -> Sequence[Node]:
    name = build.stated("activation", None)
    kept = _stated(build, _GEMM)
    made = build.apply("Gemm", *map(build.given, range(3)), made="" if name else build.wanted(0), **kept)
    if name:
        _activate(build, made, name, _numbers(build))
    return build.nodes


def _matmul(build: Writer) -> Sequence[Node]:
    kept = _stated(build, FusedMatMul.attributes)
    made = build.apply("FusedMatMul", build.given(0), build.given(1), domain="com.microsoft", **kept)
    _activate(build, made, build.stated("activation", REQUIRED), _numbers(build))
    return build.nodes


def _integer_matmul(build: Writer) -> Sequence[Node]:
    wide = [build.apply("Cast", build.given(at), to=INT32.code) for at in range(2)]
    build.apply("MatMul", *wide, made=build.wanted(0))
    return build.nodes


def _distances(build: Writer) -> Sequence[Node]:
    """Euclidean distances between rows, or their squares: |a|² - 2 a·b + |b|²."""
    metric = build.stated("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise NotImplemented(f"{build.node.label}: the metric {metric!r} is not supported, Euclid's are")
    axis, a, b = build.constant([1], INT64), build.given(0), build.given(1)
    of_rows = build.apply("ReduceSumSquare", a, axis, keepdims=1)
    of_columns = build.apply("Transpose", build.apply("ReduceSumSquare", b, axis, keepdims=1), perm=(1, 0))
    product = build.apply("MatMul", a, build.apply("Transpose", b, perm=(1, 0)))
    twice = build.apply("Add", product, product)
    squares = build.apply("Add", build.apply("Sub", of_rows, twice), of_columns)
    # Rounding may leave less than nothing of rows that are alike.
    made = build.apply("Relu", squares, made=build.wanted(0) if metric == "sqeuclidean" else "")
    if metric == "euclidean":
        build.apply("Sqrt", made, made=build.wanted(0))
    return build.nodes


_CODEBOOKS = {
    0: [number / 12 * sign for sign in (1, -1) for number in (0, 0.0625, 8, 12, 4, 6, 2, 3)],
    1: [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ],
}  # fmt: skip
"""What codes of 4 bits stand for: of FP4 (a sign, two bits of exponent, one of fraction, by 12) and NF4."""


def _codebook_matmul(build: Writer) -> Sequence[Node]:
    """A product with weights that are entries of a codebook, times a scale for each block of all of them."""
    inner, columns, block, kind = (
        int(build.stated(key, REQUIRED)) for key in ("K", "N", "block_size", "quant_type")
    )
    if kind not in _CODEBOOKS:
        raise InvalidGraph(f"{build.node.label}: quant_type is 0 (FP4) or 1 (NF4), not {kind}")
    count, codes = inner * columns, build.given(1)
    high = build.apply("BitShift", codes, build.constant(4, UINT8), direction="RIGHT")
    low = build.apply("BitwiseAnd", codes, build.constant(15, UINT8))
    last = build.constant([-1], INT64)
    pairs = [build.apply("Unsqueeze", each, last) for each in (high, low)]
    flat = build.apply("Reshape", build.apply("Concat", *pairs, axis=-1), last)
    kept = build.apply(
        "Slice", flat, build.constant([0], INT64), build.constant([count], INT64), build.constant([0], INT64)
    )
    book = build.apply("CastLike", build.constant(_CODEBOOKS[kind], FLOAT32), build.given(2))
    numbers = build.apply("Gather", book, build.apply("Cast", kept, to=INT32.code), axis=0)
    blocks = -(-count // block)
    if count % block:
        numbers = build.apply("Pad", numbers, build.constant([0, blocks * block - count], INT64))
    whole = build.apply("Reshape", numbers, build.constant([blocks, block], INT64))
    scales = build.apply("Reshape", build.given(2), build.constant([blocks, 1], INT64))
    weight = build.apply("Reshape", build.apply("Mul", whole, scales), last)
    if count % block:
        ends = [build.constant([each], INT64) for each in (0, count, 0)]
        weight = build.apply("Slice", weight, *ends)
    flips = build.stated("transB", 1)
    shape = build.constant([columns, inner] if flips else [inner, columns], INT64)
    weight = build.apply("Reshape", weight, shape)
    if flips:
        weight = build.apply("Transpose", weight, perm=(1, 0))
    build.apply("MatMul", build.given(0), weight, made=build.wanted(0))
    return build.nodes


_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
_ACTIVATION = {f"activation{key}": OPTIONAL for key in ("", "_alpha", "_beta", "_gamma", "_axis")}
_TYPES = {"activation": STRING, "activation_axis": INT}
_TYPES |= {f"activation_{key}": FLOAT for key in ("alpha", "beta", "gamma")}
_BNB4 = ("K", "N", "block_size", "quant_type")
_CONV = {**_WINDOWS, "activation": OPTIONAL, "activation_params": OPTIONAL}
_CONV_TYPES = {**NhwcConv.attribute_types, "activation": STRING, "activation_params": FLOAT_LIST}

for _extension in (
    Extension("FusedConv", (2, 4), _conv("Conv"), _CONV, _CONV_TYPES),
    Extension("NhwcFusedConv", (2, 4), _conv("NhwcConv", "com.microsoft"), _CONV, _CONV_TYPES),
    Extension("MatMulInteger16", (2, 2), _integer_matmul),
    Extension("CDist", (2, 2), _distances, {"metric": "sqeuclidean"}),
    Extension(
        "MatMulBnb4",
        (3, 3),
        _codebook_matmul,
        {**dict.fromkeys(_BNB4, REQUIRED), "training_mode": 0, "transB": 1},
        dict.fromkeys(_BNB4, INT),
    ),
    Extension("FusedGemm", (2, 3), _gemm, {**_GEMM, **_ACTIVATION}, _TYPES),
    Extension(
        "FusedMatMulActivation",
        (2, 2),
        _matmul,
        {**FusedMatMul.attributes, **_ACTIVATION, "activation": REQUIRED},
        _TYPES,
    ),
):
    register(_extension)
