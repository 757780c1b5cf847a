"""Products on matrix units: edges, splits, packing, convolutions and scales, checked against float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.launching import POISON, Timing, run_once
from benchmarks.matrix_units.accuracy import measure_errors
from benchmarks.matrix_units.ceilings import SUBGROUPS, multiply_alone
from benchmarks.matrix_units.check import judge, make_data, make_reference, rounded, rows_of_a
from benchmarks.matrix_units.choose import candidates, choose
from benchmarks.matrix_units.launch import (
    Kernels,
    Plan,
    compute,
    finish_of,
    make_operands,
    unpacked,
)
from benchmarks.matrix_units.problems import SUITES, Problem, convolution
from benchmarks.matrix_units.variants import RELU, Variant, packed_halfs, product_source, unit_fragments
from vkml import vulkan
from vkml.engine.devices import fragments_of
from vkml.kernels.packed_weights import Fragment


@pytest.fixture
def kernels(vulkan_device_name: str) -> Iterator[Kernels]:
    info = vulkan.find_device(vulkan_device_name, True)
    if not fragments_of(info):
        pytest.skip("no fp16 matrix units on this device")
    with vulkan.Device(info) as device:
        yield Kernels(device)


def test_the_unit_alone_computes_all_that_is_counted(kernels: Kernels) -> None:
    """Compilers leave out what nothing reads: half of each fragment once, which doubled the rate."""
    fragment = fragments_of(kernels.device.info)[0]
    values = np.random.default_rng(0).integers(-2, 3, 4096).astype(np.float16)
    groups, turns = 2, 3
    _, sums = multiply_alone(kernels.device, fragment, values, groups, turns, Timing(1e-6, 1))
    down, across = unit_fragments(fragment)
    a, b = (
        sum(
            values[16 * at :][: rows * fragment.k].reshape(rows, fragment.k).sum(0, np.float64)
            for at in range(count)
        )
        for rows, count in ((fragment.m, down), (fragment.n, across))
    )
    assert a @ b != 0
    np.testing.assert_array_equal(sums, np.full(SUBGROUPS * groups, turns * (a @ b)))


def small(kernels: Kernels, **changes: object) -> Variant:
    """Two by two subgroups, small, because lavapipe compiles for seconds."""
    fragment = fragments_of(kernels.device.info)[0]
    m, n = fragment.m, max(fragment.n, 16)
    base = Variant(fragment, 2 * m, 2 * n, m, n, stages=1, ahead=1)
    return replace(base, **changes)  # type: ignore[arg-type]


def run(kernels: Kernels, plan: Plan, problem: Problem, seed: int = 3) -> float:
    """Checks a plan; returns its error."""
    data = make_data(problem, seed)
    operands = make_operands(kernels.device, problem, data.a, data.b, data.bias, is_cold=False)
    try:
        result = compute(kernels, plan, operands)
        parts = operands.buffers.get("partials")
        if parts is not None:  # what the first run left must not help the second
            run_once(kernels.device, lambda recorder: recorder.fill(parts, 0, parts.size, POISON))
        again = compute(kernels, plan, operands)
    finally:
        operands.free()
    assert result.tobytes() == again.tobytes()
    verdict = judge(data, make_reference(data, seed), result)
    assert verdict.is_complete
    # fp16 has TF32's ten bits of mantissa: 2.9e-4 with normal data; a result in fp16 is rounded once more.
    assert verdict.error < (4.2e-4 if plan.is_out_packed or plan.is_out_half else 3.5e-4)
    return verdict.error


PLANS = {
    "fp32 rows": ({"a": "rows"}, {}, (37, 45, 101)),
    "fp32 rows, two stages": ({"a": "rows", "stages": 2}, {}, (37, 44, 100)),
    "blocks": ({"a": "blocks", "stages": 2, "ahead": 2}, {}, (37, 45, 100)),
    "both in blocks": ({"a": "blocks", "b": "blocks"}, {}, (37, 45, 100)),
    "steps of 64": ({"a": "rows", "step_k": 64, "ahead": 4}, {}, (37, 45, 100)),
    "slices": ({"a": "rows", "slices": 2}, {}, (37, 45, 301)),
    "split, last arriver": ({}, {"splits": 3}, (37, 45, 300)),
    "split, second pass": ({}, {"splits": 3, "partials": "pass"}, (37, 45, 300)),
    "sizes pushed": ({"are_sizes_pushed": True}, {}, (37, 45, 100)),
    "scales of rows and columns": (
        {},
        {"scaled": "by_row", "has_column_exponents": True},
        (37, 45, 100),
    ),
    "scale of the tensor": ({"a": "rows"}, {"scaled": "by_tensor", "notes_largest": True}, (37, 45, 100)),
    "result in fp16": ({"a": "rows"}, {"is_out_half": True}, (37, 45, 100)),
}


@pytest.mark.parametrize("name", PLANS)
def test_product(kernels: Kernels, name: str) -> None:
    variant, plan, (m, n, k) = PLANS[name]
    run(kernels, replace(Plan(small(kernels, **variant)), **plan), Problem(name, m, n, k))  # type: ignore[arg-type]


def test_packed_result_is_the_next_operand(kernels: Kernels) -> None:
    problem = Problem("packs", 37, 70, 100)
    plan = replace(Plan(small(kernels, tile_n=64, sub_n=32)), is_out_packed=True)
    run(kernels, plan, problem)
    data = make_data(problem, 5)
    operands = make_operands(kernels.device, problem, data.a, data.b, data.bias, is_cold=False)
    compute(kernels, plan, operands)
    halfs = kernels.device.download(operands.out, 0, 2 * packed_halfs(37, 70)).view(np.float16)
    operands.free()
    # As the next product's A it has 128 columns, of which the last 58 are zeros.
    assert not unpacked(halfs, 1, 37, 128)[:, :, 70:].any()
    with pytest.raises(ValueError, match="whole 64 columns"):
        product_source(small(kernels), finish_of(plan))


@pytest.mark.parametrize("is_b_batched", [False, True])
def test_batch(kernels: Kernels, is_b_batched: bool) -> None:
    run(kernels, Plan(small(kernels), 2), Problem("batch", 20, 18, 130, 3, is_b_batched))


@pytest.mark.parametrize("source", ["windows", "half_windows"])
def test_convolution(kernels: Kernels, source: str) -> None:
    run(kernels, Plan(small(kernels, a=source)), convolution(2, 7, 32, 24, 3, 2))


def test_activation(kernels: Kernels) -> None:
    problem = Problem("relu", 20, 24, 64)
    data = make_data(problem, 1)
    operands = make_operands(kernels.device, problem, data.a, data.b, data.bias, is_cold=False)
    result = compute(kernels, replace(Plan(small(kernels)), activation=RELU), operands)[0]
    operands.free()
    exact = np.maximum(rounded(data.a[0], "float16") @ rounded(data.b, "float16") + data.bias, 0)
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-4)


def test_badly_scaled_data_is_as_exact_as_tf32(kernels: Kernels) -> None:
    found = measure_errors(kernels, small(kernels, a="blocks"), Problem("bad", 32, 48, 128), 4)
    for kind, errors in found.items():
        scaled, tf32 = errors["scales of rows and columns"], errors["TF32"]
        assert scaled.whole < 1.2 * tf32.whole, kind
        assert scaled.worst_row < 1.2 * tf32.worst_row, kind
    assert found["A times 1e7"]["fp16, no scale"].whole == float("inf")


def test_guard_reports_what_fp16_cannot_hold(kernels: Kernels) -> None:
    problem = Problem("guard", 20, 24, 64)
    data = make_data(problem, 1)
    plan = replace(Plan(small(kernels, a="rows")), is_guarded=True)
    for value, expected in ((65504.0, 0), (70000.0, 1), (float("inf"), 1)):
        a = data.a.copy()
        a[0, 7, 9] = value
        operands = make_operands(kernels.device, problem, a, data.b, data.bias, is_cold=False)
        compute(kernels, plan, operands)
        status = kernels.device.download(operands.small, operands.words_offset + 32, 4).view(np.uint32)[0]
        operands.free()
        assert status == expected, value


def test_infinities_and_nan_stay_in_their_rows(kernels: Kernels) -> None:
    # 60 is no whole number of steps: the last one of a row must not reach into the next row.
    problem = Problem("special", 20, 24, 60)
    data = make_data(problem, 1)
    data.a[0, 3, 5], data.a[0, 4, 0], data.a[0, 4, 6] = np.inf, np.nan, np.nan
    operands = make_operands(kernels.device, problem, data.a, data.b, data.bias, is_cold=False)
    plan = replace(Plan(small(kernels)), scaled="by_row", has_column_exponents=True)
    result = compute(kernels, plan, operands)[0]
    operands.free()
    assert np.array_equal(result[3], np.sign(data.b[5]) * np.inf)
    assert np.isnan(result[4]).all()
    others = np.delete(result, (3, 4), axis=0)
    assert np.isfinite(others).all()


def test_reference_gathers_windows() -> None:
    problem = convolution(2, 5, 4, 3, 3, 2)
    data = make_data(problem, 0)
    window = problem.window
    assert window is not None
    every = np.arange(problem.m)
    rows = rows_of_a(data, np.zeros_like(every), every).reshape(2, 3, 3, 3, 3, 4)
    padded = np.pad(data.a, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for y in range(3):
        for x in range(3):
            expected = padded[:, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3]
            np.testing.assert_array_equal(rows[:, y, x], expected)


@pytest.mark.parametrize(
    "fragment", [Fragment(16, 8, 16, 32), Fragment(16, 16, 16, 64), Fragment(8, 8, 8, 8)]
)
def test_rule_finds_a_valid_plan_for_every_problem(fragment: Fragment) -> None:
    for problem in (each for suite in SUITES.values() for each in suite):
        plan = choose(problem, fragment, 132)
        plan.variant.check()
        assert plan in candidates(problem, fragment, 132)
