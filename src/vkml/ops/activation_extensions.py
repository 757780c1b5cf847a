"""Activations of com.microsoft, with their biases, as ONNX's."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir.graph import Node
from vkml.ir.operator import register
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


_QUICK = {"alpha": 1.702}

for _extension in (
    Extension("Gelu", (1, 1), _gelu("none")),
    Extension("BiasGelu", (2, 2), _gelu("none")),
    Extension("FastGelu", (1, 2), _gelu("tanh")),
    Extension("QuickGelu", (1, 1), _quick_gelu, _QUICK),
    Extension("BiasAdd", (3, 3), _biased),
    Extension("BiasSplitGelu", (2, 2), _split_gelu),
):
    register(_extension)
