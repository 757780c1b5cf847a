"""The table of what is younger than opset 18, against ONNX's schemas."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

import vkml.ops  # noqa: F401  fills the registry
from vkml.exporting import opsets
from vkml.ir import dtypes
from vkml.ir.operator import REGISTRY

NAMES = sorted(name for (domain, name), found in REGISTRY.items() if not domain and not found.stands_alone)
NEWEST = onnx.defs.onnx_opset_version()
"""That the installed package knows."""
TYPES = {
    dtypes.BFLOAT16: "tensor(bfloat16)", dtypes.FLOAT16: "tensor(float16)", dtypes.FLOAT64: "tensor(double)",
    dtypes.BOOL: "tensor(bool)", dtypes.INT32: "tensor(int32)",
}  # fmt: skip
SEMANTICS = {"DFT", "GridSample", "GroupNormalization"}
"""Operators that have been others before: axes as attributes, modes by other names, factors of groups."""


@pytest.fixture(scope="module")
def history() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in NAMES}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and schema.name in found:
            found[schema.name].append(schema)
    return {name: sorted(schemas, key=lambda schema: schema.since_version) for name, schemas in found.items()}


def _later(schemas: list[Any]) -> tuple[Any, list[Any]]:
    """The form of opset 18, if there is one, and the younger ones."""
    before = [schema for schema in schemas if schema.since_version <= opsets.OLDEST]
    return (before[-1] if before else None), [s for s in schemas if s.since_version > opsets.OLDEST]


def _first_types(schema: Any) -> set[str]:
    if not schema.inputs:
        return set()
    kind = schema.inputs[0].type_str
    return next(
        (set(one.allowed_type_strs) for one in schema.type_constraints if one.type_param_str == kind), {kind}
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_is_younger(name: str, history: dict[str, list[Any]]) -> None:
    first, later = _later(history[name])
    if first is None and not later:
        return  # younger than the installed package
    if first is None:
        assert opsets._OPERATORS.get(name) == later[0].since_version
        return
    assert (name in opsets._OPERATORS) == (name in SEMANTICS)
    known, attributes, types = set(first.attributes), {}, _first_types(first)
    for schema in later:
        for attribute in set(schema.attributes) - known:
            attributes[attribute] = schema.since_version
            known.add(attribute)
        for dtype, text in TYPES.items():
            if text in _first_types(schema) - types and name not in SEMANTICS:
                assert opsets._TYPES[dtype].get(name) == schema.since_version, f"{name} of {text}"
        types |= _first_types(schema)
    stated = opsets._ATTRIBUTES.get(name, {})
    assert {key: since for key, since in stated.items() if since <= NEWEST} == attributes
    for dtype, text in TYPES.items():
        if name in opsets._TYPES[dtype]:
            assert text not in _first_types(first), f"{name} of {text} is as old as opset 18"
