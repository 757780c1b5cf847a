"""The table of recipes and what several of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import defs

from tests.fuzz.graphs import GraphBuilder, Skip, Value, codes_of, schema_of

Recipe = Callable[[GraphBuilder, str], None]
RECIPES: dict[str, Recipe] = {}
"""Operator → recipe. A name that is no operator's is a pattern of several nodes."""


def recipe(*ops: str) -> Callable[[Recipe], Recipe]:
    def enter(function: Recipe) -> Recipe:
        for op in ops:
            assert op not in RECIPES, op
            RECIPES[op] = function
        return function

    return enter


NUMBERS = (0.0, 1.0, 0.5, 2.0, -1.0, 0.1, 1e-5, 3.0, -0.25, 100.0)


def attribute(build: GraphBuilder, name: str, kind: Any) -> Any:
    """A random value of an attribute that no recipe minds."""
    if kind == defs.OpSchema.AttrType.FLOAT:
        return build.pick(*NUMBERS)
    if kind == defs.OpSchema.AttrType.INT:
        return build.integer(0, 1)
    if kind == defs.OpSchema.AttrType.STRING:
        texts = {
            "approximate": ("none", "tanh"),
            "direction": ("LEFT", "RIGHT"),
            "round_mode": ("up", "down", "nearest"),
        }
        return build.pick(*texts[name]) if name in texts else None
    return None


def plain_attributes(build: GraphBuilder, op: str, share: float = 0.5) -> dict[str, Any]:
    """Random values for some of the operator's attributes, and for all that must be there."""
    found = {}
    for name, formal in schema_of(op, build.opset).attributes.items():
        if name not in ("consumed_inputs", "axis", "broadcast") and (formal.required or build.chance(share)):
            found[name] = attribute(build, name, formal.type)
    return found


def data_input(build: GraphBuilder, op: str, low: int = 0, high: int = 5, **rest: Any) -> Value:
    """A value that may be the operator's first input."""
    return build.take(codes_of(op, build.opset, 0), low, high, **rest)


def axis_of(build: GraphBuilder, rank: int) -> int:
    """An axis, counted from either end."""
    if not rank:
        raise Skip("no axis")
    axis = build.integer(0, rank - 1)
    return axis - rank if build.chance(0.4) else axis


def some_axes(build: GraphBuilder, rank: int) -> list[int]:
    """Distinct axes in any order."""
    axes = [axis for axis in range(rank) if build.chance(0.5)]
    build.rng.shuffle(axes)
    return [axis - rank if build.chance(0.3) else axis for axis in axes]
