"""Products and convolutions of com.microsoft: transposed on the way, channels last, activated behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOAT32, FLOATS
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


_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
_ACTIVATION = {f"activation{key}": OPTIONAL for key in ("", "_alpha", "_beta", "_gamma", "_axis")}
_TYPES = {"activation": STRING, "activation_axis": INT}
_TYPES |= {f"activation_{key}": FLOAT for key in ("alpha", "beta", "gamma")}
_CONV = {**_WINDOWS, "activation": OPTIONAL, "activation_params": OPTIONAL}
_CONV_TYPES = {**NhwcConv.attribute_types, "activation": STRING, "activation_params": FLOAT_LIST}

for _extension in (
    Extension("FusedConv", (2, 4), _conv("Conv"), _CONV, _CONV_TYPES),
    Extension("NhwcFusedConv", (2, 4), _conv("NhwcConv", "com.microsoft"), _CONV, _CONV_TYPES),
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
