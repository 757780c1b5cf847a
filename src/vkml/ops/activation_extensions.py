"""Activations of com.microsoft, with their biases, as ONNX's."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir.dtypes import FLOAT32
from vkml.ir.graph import Node
from vkml.ir.operator import INT, REQUIRED, find, register
from vkml.ops.extension import Extension, Write, Writer


def _gelu(approximate: str) -> Write:
    """Gelu, of a sum with a bias where there is one."""

    def write(build: Writer) -> Sequence[Node]:
        x, bias = build.given(0), build.given(1)
        if bias:
            x = build.apply("Add", x, bias)
        build.apply("Gelu", x, made=build.wanted(0), approximate=approximate)
        return build.nodes

    return write


def _quick_gelu(build: Writer) -> Sequence[Node]:
    build.apply("Swish", build.given(0), made=build.wanted(0), alpha=build.stated("alpha", _QUICK["alpha"]))
    return build.nodes


def _biased(build: Writer) -> Sequence[Node]:
    biased = build.apply("Add", build.given(0), build.given(1))
    build.apply("Add", biased, build.given(2), made=build.wanted(0))
    return build.nodes


def _split_gelu(build: Writer) -> Sequence[Node]:
    """The first half of the columns, each times the Gelu of its partner in the second."""
    biased = build.apply("Add", build.given(0), build.given(1))
    first = build.apply("Split", biased, outputs=2, axis=-1, num_outputs=2)
    build.apply("Mul", first, build.apply("Gelu", f"{first}:1"), made=build.wanted(0))
    return build.nodes


def _product_gelu(build: Writer) -> Sequence[Node]:
    x, bias = build.apply("MatMul", build.given(0), build.given(1)), build.given(2)
    if bias:
        x = build.apply("Add", x, bias)
    build.apply("Gelu", x, made=build.wanted(0), approximate="tanh")
    return build.nodes


def _swiglu(build: Writer) -> Sequence[Node]:
    """Swish of one half times the other, both clamped, in float32."""
    given = [each for each in map(build.given, range(2)) if each]
    halves = [build.apply("Cast", each, to=FLOAT32.code) for each in given]
    if len(halves) == 1:
        first = build.apply("Split", halves[0], outputs=2, axis=-1, num_outputs=2)
        halves = [first, f"{first}:1"]
    gate, up = halves
    stated = {key: float(build.stated(key, default)) for key, default in _SWIGLU.items()}
    limit = stated["limit"]
    if limit > 0:
        most, least = (build.constant(each, FLOAT32) for each in (limit, -limit))
        gate = build.apply("Min", gate, most)
        up = build.apply("Clip", up, least, most)
    made = build.apply("Swish", gate, alpha=stated["activation_alpha"])
    if build.stated("round_activation", 0):
        rounded = build.apply("CastLike", made, build.given(0))
        made = build.apply("Cast", rounded, to=FLOAT32.code)
    if stated["activation_beta"]:
        up = build.apply("Add", up, build.constant(stated["activation_beta"], FLOAT32))
    build.apply("CastLike", build.apply("Mul", made, up), build.given(0), made=build.wanted(0))
    return build.nodes


def _gated_add(build: Writer) -> Sequence[Node]:
    gate = build.given(2)
    if build.given(3):
        gate = build.apply("Sigmoid", build.apply("MatMul", gate, build.given(3)))
    build.apply("Add", build.given(0), build.apply("Mul", build.given(1), gate), made=build.wanted(0))
    return build.nodes


def _biased_softmax(build: Writer) -> Sequence[Node]:
    total, made = build.apply("Add", build.given(0), build.given(1)), build.wanted(0)
    # Over the axis and all behind it, as ONNX's was before opset 13.
    old = Node("Softmax", (total,), (made,), {"axis": build.stated("axis", 1)}, build.node.name, "", 11)
    forms = find(old).upgrade(old)
    return [*build.nodes, *([forms] if isinstance(forms, Node) else forms)]


_QUICK = {"alpha": 1.702}
_SWIGLU = {"activation_alpha": 1.0, "activation_beta": 0.0, "limit": 0.0}

for _extension in (
    Extension("Gelu", (1, 1), _gelu("none")),
    Extension("BiasGelu", (2, 2), _gelu("none")),
    Extension("FastGelu", (1, 2), _gelu("tanh")),
    Extension("QuickGelu", (1, 1), _quick_gelu, _QUICK),
    Extension("BiasAdd", (3, 3), _biased),
    Extension("BiasSplitGelu", (2, 2), _split_gelu),
    Extension("GemmFastGelu", (2, 3), _product_gelu),
    Extension("SwiGLU", (1, 2), _swiglu, {**_SWIGLU, "round_activation": 0}),
    Extension("GatedAdd", (3, 4), _gated_add),
    Extension(
        "BiasSoftmax",
        (2, 2),
        _biased_softmax,
        {"axis": 1, "is_inner_broadcast": REQUIRED},
        {"is_inner_broadcast": INT},
    ),
):
    register(_extension)
