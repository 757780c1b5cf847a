"""Attention on matrix units: edges, causal rows, shared heads and layouts, checked against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.attention_units.check import (
    judge,
    judge_gradients,
    make_data,
    make_float_data,
    make_reference,
)
from benchmarks.attention_units.choose import choose, choose_backward
from benchmarks.attention_units.launch import (
    Kernels,
    compute,
    compute_gradients,
    make_operands,
)
from benchmarks.attention_units.problems import SUITES, Problem
from vkml import vulkan
from vkml.engine.devices import fragments_of
from vkml.kernels.attention_variants import Variant
from vkml.kernels.packed_weights import Fragment


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
    "edges": ({}, replace(PROBLEM, queries=37, keys=45)),
    "causal, fewer queries than keys": (
        {},
        replace(PROBLEM, queries=19, keys=50, is_causal=True, causal_offset=31),
    ),
    "rows that see nothing": ({}, replace(PROBLEM, is_causal=True, causal_offset=-21)),
    "shared heads": ({}, replace(PROBLEM, heads=6, group=3, batch=2)),
    "rows outside": ({}, replace(PROBLEM, heads=3, batch=2, are_rows_outside=True)),
    "small heads": ({}, replace(PROBLEM, head_size=24)),
    "queries in shared memory": ({"held_in": "shared"}, replace(PROBLEM, queries=37, keys=45)),
    "queries in scratch": ({"held_in": "scratch"}, replace(PROBLEM, queries=37, keys=45)),
    "one key": ({}, replace(PROBLEM, queries=3, keys=1)),
}


WAYS: dict[str, dict[str, object]] = {
    "registers": {},
    "two stages": {"stages": 2},
    "shared": {"rows_in": "shared"},
}
"""What each way does differently is tried where it could go wrong, and in tests/kernels with everything."""
FURTHER = {"two stages": ("edges", "one key"), "shared": ("rows that see nothing",)}
RUNS = [("registers", name) for name in CASES]
RUNS += [(way, name) for way, names in FURTHER.items() for name in names]


@pytest.mark.parametrize(("way", "name"), RUNS)
def test_attention(kernels: Kernels, way: str, name: str) -> None:
    changes, problem = CASES[name]
    data = make_data(problem, 3)
    operands = make_operands(kernels.device, problem, data.q, data.k, data.v)
    try:
        variant = small(kernels, **WAYS[way], **changes)
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


def test_fp32_tensors(kernels: Kernels) -> None:
    problem = replace(PROBLEM, queries=37, keys=45, are_rows_outside=True)
    data = make_float_data(problem, 3)
    operands = make_operands(kernels.device, problem, data.q, data.k, data.v)
    try:
        result = compute(kernels, small(kernels), operands)
    finally:
        operands.free()
    verdict = judge(data, make_reference(data, 3, samples=10000), result)
    assert verdict.is_complete
    assert verdict.error < 6e-4


NARROW = replace(PROBLEM, head_size=16)
GRADIENT_CASES: dict[str, Problem] = {
    "edges": replace(NARROW, queries=37, keys=45),
    "rows and keys unseen": replace(NARROW, queries=37, keys=45, is_causal=True, causal_offset=-9),
    "causal, fewer queries than keys": replace(NARROW, queries=19, keys=50, is_causal=True, causal_offset=31),
    "shared heads": replace(NARROW, heads=6, group=3, batch=2, queries=20, keys=27),
    "rows outside, small heads": replace(NARROW, heads=3, head_size=8, are_rows_outside=True),
}


GRADIENT_RUNS = [("registers", name) for name in GRADIENT_CASES if name != "shared heads"]
GRADIENT_RUNS += [("scratch", "shared heads")]


@pytest.mark.parametrize(("held_in", "name"), GRADIENT_RUNS)
def test_gradients(kernels: Kernels, held_in: str, name: str) -> None:
    problem = GRADIENT_CASES[name]
    data = make_data(problem, 3)
    generator = np.random.default_rng(4)
    d_out = generator.standard_normal(data.q.shape, np.float32).astype(np.float16)
    operands = make_operands(kernels.device, problem, data.q, data.k, data.v)
    forward = small(kernels, head=16)
    backward = replace(forward, held_in=held_in)
    try:
        found = compute_gradients(kernels, forward, backward, backward, operands, d_out)
    finally:
        operands.free()
    heads = [(batch, head) for batch in range(problem.batch) for head in range(problem.kv_heads)]
    errors = judge_gradients(data, d_out, found, heads)
    assert errors.is_complete
    # Weights, their changes and the results are rounded to fp16: 5e-4. Where a row sees nearly one key only,
    # the change is the small difference of a product and of delta, which comes from results in fp16.
    assert errors.dv < 5e-4, errors
    assert max(errors.dq, errors.dk) < 1.5e-3, errors


FRAGMENTS = [Fragment(16, 8, 16, 32), Fragment(16, 16, 16, 32)]


def test_rule_finds_a_valid_variant_for_every_problem() -> None:
    for problem in (each for suite in SUITES.values() for each in suite):
        variant = choose(problem, FRAGMENTS, 132)
        variant.check()
        assert variant.head >= problem.head_size
        assert variant.shared_bytes(has_floats=False) <= 48 << 10
        for each in choose_backward(problem, FRAGMENTS, 132):
            each.check()
    with pytest.raises(ValueError, match="more than 256 columns"):
        choose(replace(PROBLEM, head_size=264), FRAGMENTS, 132)
