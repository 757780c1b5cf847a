"""Attention on matrix units: edges, causal rows, shared heads and layouts, checked against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.attention_units.check import judge, make_data, make_reference
from benchmarks.attention_units.launch import Kernels, compute, make_operands
from benchmarks.attention_units.problems import Problem
from benchmarks.attention_units.variants import Variant
from benchmarks.fragments import fragments_of
from vkml import vulkan


@pytest.fixture
def kernels(vulkan_device_name: str) -> Iterator[Kernels]:
    info = vulkan.find_device(vulkan_device_name, True)
    if not fragments_of(info):
        pytest.skip("no fp16 matrix units on this device")
    with vulkan.Device(info) as device:
        yield Kernels(device)


def small(kernels: Kernels, **changes: object) -> Variant:
    """Two subgroups, small, because lavapipe compiles for seconds."""
    fragment = fragments_of(kernels.device.info)[0]
    base = Variant(fragment, 32, fragment.m, 16, 2)
    return replace(base, **changes)  # type: ignore[arg-type]


PROBLEM = Problem("small", 2, 40, 40, 32)
CASES: dict[str, tuple[dict[str, object], Problem]] = {
    "whole tiles": ({}, replace(PROBLEM, queries=64, keys=64)),
    "edges": ({}, replace(PROBLEM, queries=37, keys=45)),
    "causal": ({}, replace(PROBLEM, is_causal=True)),
    "causal, fewer queries than keys": (
        {},
        replace(PROBLEM, queries=19, keys=50, is_causal=True, causal_offset=31),
    ),
    "rows that see nothing": ({}, replace(PROBLEM, is_causal=True, causal_offset=-21)),
    "shared heads": ({}, replace(PROBLEM, heads=6, group=3, batch=2)),
    "rows outside": ({}, replace(PROBLEM, heads=3, batch=2, are_rows_outside=True)),
    "small heads": ({}, replace(PROBLEM, head_size=24)),
    "queries in shared memory": ({"queries_in": "shared"}, replace(PROBLEM, queries=37, keys=45)),
    "queries in scratch": ({"queries_in": "scratch"}, replace(PROBLEM, queries=37, keys=45)),
    "one key": ({}, replace(PROBLEM, queries=3, keys=1)),
}


@pytest.mark.parametrize("rows_in", ["registers", "shared"])
@pytest.mark.parametrize("name", CASES)
def test_attention(kernels: Kernels, name: str, rows_in: str) -> None:
    changes, problem = CASES[name]
    data = make_data(problem, 3)
    operands = make_operands(kernels.device, problem, data.q, data.k, data.v)
    try:
        variant = small(kernels, rows_in=rows_in, **changes)
        result = compute(kernels, variant, operands)
        again = compute(kernels, variant, operands)
    finally:
        operands.free()
    verdict = judge(data, make_reference(data, 3, samples=10000), result)
    assert result.tobytes() == again.tobytes()
    assert verdict.is_complete
    # Probabilities and results are rounded to fp16 once each: 4e-4 together at the most.
    assert verdict.error < 5e-4
    assert verdict.worst_row < 4e-3
