"""Operators of com.microsoft that are others under another name."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir.dtypes import INT64
from vkml.ir.graph import Node
from vkml.ir.operator import register
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


_GRID = {"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"}
for _extension in (
    Extension("Inverse", (1, 1), _named("Inverse", "vkml")),
    Extension("GridSample", (2, 2), _grid_sample, _GRID),
    Extension("Trilu", (1, 2), _named("Trilu"), {"upper": 1}),
    Extension("Pad", (2, 3), _named("Pad"), {"mode": "constant"}),
    Extension("GatherND", (2, 2), _named("GatherND")),
    Extension("ExpandDims", (2, 2), _expand_dims),
):
    register(_extension)
