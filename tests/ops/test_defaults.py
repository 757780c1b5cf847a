"""Defaults of attributes: to the last bit those that ONNX states."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import defs, helper

import vkml.ops  # noqa: F401  (fills the registry)
from vkml.ir.operator import REGISTRY


def stated_default(op: str, key: str) -> Any:
    """The default in the newest form of an operator that has the attribute; None where ONNX states none."""
    for version in range(defs.onnx_opset_version(), 0, -1):
        if defs.has(op, version, ""):
            attributes = defs.get_schema(op, version, "").attributes
            if key in attributes:
                stated = attributes[key].default_value
                return helper.get_attribute_value(stated) if stated.name else None
    return None


DEFAULTS = [
    (op, key, default, stated)
    for (domain, op), spec in sorted(REGISTRY.items())
    if not domain
    for key, default in spec.attributes.items()
    if isinstance(default, int | float) and (stated := stated_default(op, key)) is not None
]


@pytest.mark.parametrize(
    ("op", "key", "default", "stated"), DEFAULTS, ids=[f"{op}-{key}" for op, key, *_ in DEFAULTS]
)
def test_number(op: str, key: str, default: float, stated: float) -> None:
    assert default == stated


def test_there_are_many() -> None:
    assert len(DEFAULTS) > 100
