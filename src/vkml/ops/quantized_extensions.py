"""Quantised operators of com.microsoft as ONNX's, between numbers dequantised and quantised again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOAT32, INT64
from vkml.ir.graph import Node
from vkml.ir.operator import INT, INTS, MANY, OPTIONAL, REQUIRED, find, register
from vkml.ops.extension import Extension, Write, Writer
from vkml.ops.upgrading import renew


def _pair(op: str) -> Write:
    def write(build: Writer) -> list[Node]:
        return build.finish(build.apply(op, build.numbers(0), build.numbers(3)), 6)

    return write


def _sigmoid(build: Writer) -> list[Node]:
    return build.finish(build.apply("Sigmoid", build.numbers(0)), 3)


def _leaky_relu(build: Writer) -> list[Node]:
    return build.finish(build.apply("LeakyRelu", build.numbers(0), alpha=build.stated("alpha", 0.01)), 3)


def _softmax(build: Writer) -> list[Node]:
    opset = build.stated("opset", REQUIRED)
    x, made = build.numbers(0), build.name("Softmax")
    old = Node("Softmax", (x,), (made,), {"axis": build.stated("axis", -1)}, build.node.name, "", int(opset))
    forms = find(old).upgrade(old)
    build.nodes += [forms] if isinstance(forms, Node) else forms
    return build.finish(made, 3)


def _average_pool(build: Writer) -> list[Node]:
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


def _global_average_pool(build: Writer) -> list[Node]:
    x = build.numbers(0)
    if not build.stated("channels_last", 0):
        return build.finish(build.apply("GlobalAveragePool", x), 3)
    # [N, *spatial, C] as [N, all places, C], then with ones for the spatial axes.
    batch, spatial = build.apply("Shape", x, end=1), build.apply("Shape", x, start=1, end=-1)
    channels, rest = build.apply("Shape", x, start=-1), build.constant([-1], INT64)
    flat = build.apply("Reshape", x, build.apply("Concat", batch, rest, channels, axis=0))
    mean = build.apply("ReduceMean", flat, build.constant([1], INT64), keepdims=0)
    ones = build.apply("Expand", build.constant([1], INT64), build.apply("Shape", spatial))
    shape = build.apply("Concat", batch, ones, channels, axis=0)
    return build.finish(build.apply("Reshape", mean, shape), 3)


def _concat(build: Writer) -> list[Node]:
    count = len(build.node.inputs)
    if count % 3 != 2:
        raise InvalidGraph(
            f"{build.node.label}: scale and zero point, and three inputs for each operand are needed, "
            f"there are {count}"
        )
    parts = [build.numbers(at) for at in range(2, count, 3)]
    return build.finish(build.apply("Concat", *parts, axis=build.node.attributes.get("axis")), 0, 2)


def _where(build: Writer) -> list[Node]:
    return build.finish(build.apply("Where", build.given(0), build.numbers(1), build.numbers(4)), 7, 1)


def _reduce_mean(build: Writer) -> list[Node]:
    axes = build.constant(list(build.stated("axes", REQUIRED)), INT64)
    keepdims = build.stated("keepdims", REQUIRED)
    return build.finish(build.apply("ReduceMean", build.numbers(0), axes, keepdims=keepdims), 3)


def _max_pool(build: Writer) -> list[Node]:
    rank = len(build.stated("kernel_shape", REQUIRED))
    first = build.apply("Transpose", build.given(0), perm=(0, rank + 1, *range(1, rank + 1)))
    pooled = build.apply("MaxPool", first, **build.node.attributes)
    build.apply("Transpose", pooled, made=build.wanted(0), perm=(0, *range(2, rank + 2), 1))
    return build.nodes


def _gemm(build: Writer) -> list[Node]:
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


def _scaled_product(build: Writer, operands: Sequence[str], scale: str, bias: str) -> list[Node]:
    """A product of integers as numbers."""
    sums = build.apply("Cast", build.apply("MatMulInteger", *operands), to=FLOAT32.code)
    made = build.apply("Mul", sums, scale, made="" if bias else build.node.outputs[0])
    if bias:
        build.apply("Add", made, bias, made=build.node.outputs[0])
    return build.nodes


def _matmul_to_float(build: Writer) -> list[Node]:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = map(build.given, range(7))
    scale = build.apply("Mul", a_scale, b_scale)
    return _scaled_product(build, (a, b, a_zero, b_zero), scale, bias)


def _dynamic_matmul(build: Writer) -> list[Node]:
    a, b, b_scale, b_zero, bias = map(build.given, range(5))
    steps = build.apply("DynamicQuantizeLinear", a, outputs=3)
    scale = build.apply("Mul", f"{steps}:1", b_scale)
    return _scaled_product(build, (steps, b, f"{steps}:2", b_zero), scale, bias)


def _same(build: Writer) -> list[Node]:
    """The operator of ONNX's own."""
    return [replace(renew(build.node), domain="")]


def _conv(build: Writer) -> list[Node]:
    if not build.stated("channels_last", 0):
        return [replace(renew(build.node, drop=["channels_last"]), domain="")]
    kept = {key: value for key, value in build.node.attributes.items() if key != "channels_last"}
    sizes = next((kept[key] for key in ("kernel_shape", "strides", "dilations") if kept.get(key)), None)
    if sizes is None:
        raise InvalidGraph(f"{build.node.label}: channels_last=1 and no kernel_shape that says how many axes")
    rank = len(sizes)
    first = build.apply("Transpose", build.given(0), perm=(0, rank + 1, *range(1, rank + 1)))
    rest = [build.given(at) for at in range(1, 9)]
    made = build.name("QLinearConv")
    build.apply_to([made], "QLinearConv", first, *rest, **kept)
    build.apply("Transpose", made, made=build.wanted(0), perm=(0, *range(2, rank + 2), 1))
    return build.nodes


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
_MAXIMA = {
    **{key: _WINDOWS[key] for key in ("auto_pad", "ceil_mode", "kernel_shape", "pads", "strides")},
    "dilations": OPTIONAL,
}
_LISTS = {key: INTS for key in ("dilations", "kernel_shape", "pads", "strides")}
_LINEAR = {"axis": 1, "block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1}

for _extension in (
    Extension("QLinearAdd", (7, 8), _pair("Add")),
    Extension("QLinearMul", (7, 8), _pair("Mul")),
    Extension("QLinearSigmoid", (4, 5), _sigmoid),
    Extension("QLinearLeakyRelu", (4, 5), _leaky_relu, {"alpha": 0.01}),
    Extension("QLinearSoftmax", (5, 5), _softmax, {"axis": -1, "opset": REQUIRED}, {"opset": INT}),
    Extension("QLinearAveragePool", (4, 5), _average_pool, _WINDOWS, _LISTS),
    Extension("QLinearGlobalAveragePool", (5, 5), _global_average_pool, {"channels_last": 0}),
    Extension("QLinearConcat", (5, MANY), _concat, {"axis": REQUIRED}, {"axis": INT}),
    Extension("QLinearWhere", (9, 9), _where),
    Extension("QLinearConv", (8, 9), _conv, _CONV, _LISTS),
    Extension(
        "QLinearReduceMean",
        (4, 5),
        _reduce_mean,
        {"axes": REQUIRED, "keepdims": REQUIRED},
        {"axes": INTS, "keepdims": INT},
    ),
    Extension("NhwcMaxPool", (1, 1), _max_pool, _MAXIMA, _LISTS),
    Extension("QGemm", (6, 9), _gemm, {"alpha": 1.0, "transA": 0, "transB": 0}),
    Extension("MatMulIntegerToFloat", (4, 7), _matmul_to_float),
    Extension("DynamicQuantizeMatMul", (3, 5), _dynamic_matmul),
    Extension("QuantizeLinear", (2, 3), _same, _LINEAR),
    Extension("DequantizeLinear", (2, 3), _same, {"axis": 1, "block_size": 0, "output_dtype": 0}),
):
    register(_extension)
