"""Quantised operators of com.microsoft as ONNX's, between numbers dequantised and quantised again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOAT32, INT32, DType
from vkml.ir.graph import Node
from vkml.ir.operator import INT, INTS, MANY, OPTIONAL, REQUIRED, AttributeType, Operator, find, register
from vkml.ops.upgrading import NEWEST, constant_node, fresh_name, renew


class _Writer:
    """The nodes that stand in the place of one."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes: list[Node] = []

    def given(self, at: int) -> str:
        """An input's name, "" where it is absent."""
        return self.node.inputs[at] if at < len(self.node.inputs) else ""

    def stated(self, key: str, default: Any) -> Any:
        return self.node.attributes.get(key, default)

    def name(self, what: str) -> str:
        return fresh_name(self.node, f"{what}{len(self.nodes)}")

    def constant(self, value: Any, dtype: DType) -> str:
        name = self.name("constant")
        self.nodes.append(constant_node(name, value, dtype))
        return name

    def apply(self, op: str, *inputs: str, made: str = "", outputs: int = 1, **attributes: Any) -> str:
        """The first output of a node, called `made` where that is stated; others have a number behind."""
        first = made or self.name(op)
        names = (first, *(f"{first}:{at}" for at in range(1, outputs)))
        kept = {key: value for key, value in attributes.items() if value is not None}
        label = f"{self.node.name}/{op}" if self.node.name else ""
        self.nodes.append(Node(op, inputs, names, kept, label, version=NEWEST))
        return first

    def numbers(self, at: int) -> str:
        """The quantised input at a position, behind which its scale and zero point stand, dequantised."""
        return self.apply("DequantizeLinear", *(name for name in map(self.given, range(at, at + 3)) if name))

    def finish(self, value: str, scale: int, like: int = 0) -> list[Node]:
        """The nodes, with the result quantised by the scale and zero point at a position.

        Args:
            value: the result as numbers.
            scale: the position.
            like: of an input that has the result's type, where there is no zero point.
        """
        zero = self.given(scale + 1)
        if not zero:
            zero = self.apply("CastLike", self.constant(0, INT32), self.given(like))
        self.apply("QuantizeLinear", value, self.given(scale), zero, made=self.node.outputs[0])
        return self.nodes


Write = Callable[[_Writer], Sequence[Node]]


class _Extension(Operator):
    """An operator that becomes others as a model is loaded."""

    domain: ClassVar[str] = "com.microsoft"

    def __init__(
        self,
        name: str,
        inputs: tuple[int, int],
        write: Write,
        attributes: Mapping[str, Any] | None = None,
        types: Mapping[str, AttributeType] | None = None,
    ) -> None:
        super().__init__(name)
        self.inputs, self.write = inputs, write
        self.attributes, self.attribute_types = dict(attributes or {}), dict(types or {})

    def upgrade(self, node: Node) -> Sequence[Node]:
        return self.write(_Writer(node))


def _pair(op: str) -> Write:
    def write(build: _Writer) -> list[Node]:
        return build.finish(build.apply(op, build.numbers(0), build.numbers(3)), 6)

    return write


def _sigmoid(build: _Writer) -> list[Node]:
    return build.finish(build.apply("Sigmoid", build.numbers(0)), 3)


def _leaky_relu(build: _Writer) -> list[Node]:
    return build.finish(build.apply("LeakyRelu", build.numbers(0), alpha=build.stated("alpha", 0.01)), 3)


def _softmax(build: _Writer) -> list[Node]:
    opset = build.stated("opset", REQUIRED)
    if opset is REQUIRED:
        raise InvalidGraph(f"{build.node.label}: the attribute 'opset' is missing and has no default")
    x, made = build.numbers(0), build.name("Softmax")
    old = Node("Softmax", (x,), (made,), {"axis": build.stated("axis", -1)}, build.node.name, "", int(opset))
    forms = find(old).upgrade(old)
    build.nodes += [forms] if isinstance(forms, Node) else forms
    return build.finish(made, 3)


def _average_pool(build: _Writer) -> list[Node]:
    node = build.node
    keys = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    kept = {key: node.attributes[key] for key in keys if key in node.attributes}
    x = build.numbers(0)
    if not build.stated("channels_last", 0):
        return build.finish(build.apply("AveragePool", x, **kept), 3)
    rank = len(build.stated("kernel_shape", ()))
    first = build.apply("Transpose", x, perm=(0, rank + 1, *range(1, rank + 1)))
    pooled = build.apply("AveragePool", first, **kept)
    return build.finish(build.apply("Transpose", pooled, perm=(0, *range(2, rank + 2), 1)), 3)


def _global_average_pool(build: _Writer) -> list[Node]:
    _require_channels_first(build)
    return build.finish(build.apply("GlobalAveragePool", build.numbers(0)), 3)


def _require_channels_first(build: _Writer) -> None:
    if build.stated("channels_last", 0):
        raise InvalidGraph(
            f"{build.node.label}: channels_last=1 is not supported; onnxruntime makes it while it optimises, "
            "and models that are not optimised do not have it"
        )


def _concat(build: _Writer) -> list[Node]:
    count = len(build.node.inputs)
    if count % 3 != 2:
        raise InvalidGraph(
            f"{build.node.label}: scale and zero point, and three inputs for each operand are needed, "
            f"there are {count}"
        )
    parts = [build.numbers(at) for at in range(2, count, 3)]
    return build.finish(build.apply("Concat", *parts, axis=build.node.attributes.get("axis")), 0, 2)


def _where(build: _Writer) -> list[Node]:
    return build.finish(build.apply("Where", build.given(0), build.numbers(1), build.numbers(4)), 7, 1)


def _gemm(build: _Writer) -> list[Node]:
    alpha, flips = float(build.stated("alpha", 1.0)), int(build.stated("transB", 0))
    names = [name for name in map(build.given, (3, 4, 5)) if name]
    b = build.apply("DequantizeLinear", *names, axis=0 if flips else 1)
    operands = [build.numbers(0), b]
    bias = build.given(6)
    if bias:
        scale = build.apply("Mul", build.given(1), build.given(4))
        if alpha != 1:
            scale = build.apply("Mul", scale, build.constant(alpha, FLOAT32))
        operands.append(build.apply("Mul", build.apply("Cast", bias, to=FLOAT32.code), scale))
    is_float = not build.given(7)
    made = build.apply(
        "Gemm",
        *operands,
        made=build.node.outputs[0] if is_float else "",
        alpha=alpha,
        transA=build.stated("transA", 0),
        transB=flips,
    )
    return build.nodes if is_float else build.finish(made, 7)


def _scaled_product(build: _Writer, operands: Sequence[str], scale: str, bias: str) -> list[Node]:
    """A product of integers as numbers."""
    sums = build.apply("Cast", build.apply("MatMulInteger", *operands), to=FLOAT32.code)
    made = build.apply("Mul", sums, scale, made="" if bias else build.node.outputs[0])
    if bias:
        build.apply("Add", made, bias, made=build.node.outputs[0])
    return build.nodes


def _matmul_to_float(build: _Writer) -> list[Node]:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = map(build.given, range(7))
    scale = build.apply("Mul", a_scale, b_scale)
    return _scaled_product(build, (a, b, a_zero, b_zero), scale, bias)


def _dynamic_matmul(build: _Writer) -> list[Node]:
    a, b, b_scale, b_zero, bias = map(build.given, range(5))
    steps = build.apply("DynamicQuantizeLinear", a, outputs=3)
    scale = build.apply("Mul", f"{steps}:1", b_scale)
    return _scaled_product(build, (steps, b, f"{steps}:2", b_zero), scale, bias)


def _same(build: _Writer) -> list[Node]:
    """The operator of ONNX's own."""
    return [replace(renew(build.node), domain="")]


def _conv(build: _Writer) -> list[Node]:
    _require_channels_first(build)
    return [replace(renew(build.node, drop=["channels_last"]), domain="")]


_WINDOWS = {
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "channels_last": 0,
    "count_include_pad": 0,
    "kernel_shape": REQUIRED,
    "pads": OPTIONAL,
    "strides": OPTIONAL,
}
_CONV = {
    **{key: _WINDOWS[key] for key in ("auto_pad", "channels_last", "pads", "strides")},
    "dilations": OPTIONAL,
    "group": 1,
    "kernel_shape": OPTIONAL,
}
_LISTS = {key: INTS for key in ("dilations", "kernel_shape", "pads", "strides")}
_LINEAR = {"axis": 1, "block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1}

for _extension in (
    _Extension("QLinearAdd", (7, 8), _pair("Add")),
    _Extension("QLinearMul", (7, 8), _pair("Mul")),
    _Extension("QLinearSigmoid", (4, 5), _sigmoid),
    _Extension("QLinearLeakyRelu", (4, 5), _leaky_relu, {"alpha": 0.01}),
    _Extension("QLinearSoftmax", (5, 5), _softmax, {"axis": -1, "opset": REQUIRED}, {"opset": INT}),
    _Extension("QLinearAveragePool", (4, 5), _average_pool, _WINDOWS, _LISTS),
    _Extension("QLinearGlobalAveragePool", (5, 5), _global_average_pool, {"channels_last": 0}),
    _Extension("QLinearConcat", (5, MANY), _concat, {"axis": REQUIRED}, {"axis": INT}),
    _Extension("QLinearWhere", (9, 9), _where),
    _Extension("QLinearConv", (8, 9), _conv, _CONV, _LISTS),
    _Extension("QGemm", (6, 9), _gemm, {"alpha": 1.0, "transA": 0, "transB": 0}),
    _Extension("MatMulIntegerToFloat", (4, 7), _matmul_to_float),
    _Extension("DynamicQuantizeMatMul", (3, 5), _dynamic_matmul),
    _Extension("QuantizeLinear", (2, 3), _same, _LINEAR),
    _Extension("DequantizeLinear", (2, 3), _same, {"axis": 1, "block_size": 0, "output_dtype": 0}),
):
    register(_extension)
