"""Operators of com.microsoft that are others under another name, or a few of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOAT32, INT32, INT64
from vkml.ir.graph import Node
from vkml.ir.operator import INT, REQUIRED, register
from vkml.ops.extension import Extension, Write, Writer

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _named(op: str, domain: str = "") -> Write:
    """The same inputs, outputs and attributes."""

    def write(build: Writer) -> Sequence[Node]:
        build.apply_to(build.node.outputs, op, *build.node.inputs, domain=domain, **build.node.attributes)
        return build.nodes

    return write


def _grid_sample(build: Writer) -> Sequence[Node]:
    mode = build.stated("mode", _GRID["mode"])
    stated = {**build.node.attributes, "mode": _MODES.get(mode, mode)}
    build.apply_to(build.node.outputs, "GridSample", *build.node.inputs, **stated)
    return build.nodes


def _expand_dims(build: Writer) -> Sequence[Node]:
    axes = build.apply(
        "Reshape", build.apply("Cast", build.given(1), to=INT64.code), build.constant([1], INT64)
    )
    build.apply("Unsqueeze", build.given(0), axes, made=build.wanted(0))
    return build.nodes


def _range(build: Writer) -> Sequence[Node]:
    """Each end is a number, or a vector of one."""
    scalar = build.constant([], INT64)
    start, limit = (build.apply("Reshape", build.given(at), scalar) for at in range(2))
    if build.given(2):
        step = build.apply("Reshape", build.given(2), scalar)
    else:
        step = build.apply("CastLike", build.constant(1, INT32), start)
    build.apply("Range", start, limit, step, made=build.wanted(0))
    return build.nodes


def _unique(build: Writer) -> Sequence[Node]:
    """ONNX's has the places of the first elements in between."""
    made = [build.wanted(0) or build.name("elements"), "", build.wanted(1), build.wanted(2)]
    while not made[-1]:
        made.pop()
    build.apply_to(made, "Unique", build.given(0), sorted=0)
    return build.nodes


def _no_repetition(build: Writer) -> Sequence[Node]:
    """Scores of words that would end a run of `ngram_size` words once more become -infinity.

    A run that ends with a row's last words is looked for at all places, by one comparison for each word.
    """
    size = int(build.stated("ngram_size", REQUIRED))
    if size < 1:
        raise InvalidGraph(f"{build.node.label}: ngram_size must be 1 at least, not {size}")
    words, scores = build.given(0), build.given(1)
    axis, end = build.constant([1], INT64), build.constant([2**31], INT64)

    def part(first: int, stop: int | None) -> str:
        ends = build.constant([first], INT64), end if stop is None else build.constant([stop], INT64)
        return build.apply("Slice", words, *ends, axis)

    before = size - 1
    following = part(before, None)
    fill = build.apply("CastLike", build.constant(-math.inf, FLOAT32), scores)
    updates = build.apply("Expand", fill, build.apply("Shape", following))
    for at in range(before):
        last = part(at - before, at - before + 1 if at + 1 < before else None)
        is_same = build.apply("Equal", part(at, at - before), last)
        other = build.apply("Neg", fill)
        updates = build.apply("Where", is_same, updates, other)
    where = build.apply("Cast", following, to=INT64.code)
    build.apply("ScatterElements", scores, where, updates, made=build.wanted(0), axis=1, reduction="min")
    return build.nodes


_GRID = {"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"}
for _extension in (
    Extension("Inverse", (1, 1), _named("Inverse", "vkml")),
    Extension("GridSample", (2, 2), _grid_sample, _GRID),
    Extension("Trilu", (1, 2), _named("Trilu"), {"upper": 1}),
    Extension("Pad", (2, 3), _named("Pad"), {"mode": "constant"}),
    Extension("GatherND", (2, 2), _named("GatherND")),
    Extension("ExpandDims", (2, 2), _expand_dims),
    Extension("Range", (2, 3), _range),
    Extension("Unique", (1, 1), _unique, outputs=(1, 3)),
    Extension("NGramRepeatBlock", (2, 2), _no_repetition, {"ngram_size": REQUIRED}, {"ngram_size": INT}),
):
    register(_extension)
