"""The benchmark of kernels times what it says it does, and its cases are those of their families."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.micro.__main__ import main
from benchmarks.micro.cases import Case, Sizes, cases, numbers, numbers_at
from benchmarks.micro.kernels import Bench, Found, _filled
from vkml.engine.devices import open_device
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, TensorType, dtypes
from vkml.ir.graph import Value
from vkml.vulkan import find_device

SMALL = Sizes(side=48, elements=1 << 14, length=32)


@pytest.fixture
def bench(vulkan_device_name: str) -> Iterator[Bench]:
    made = Bench(vulkan_device_name)
    yield made
    made.close()


def measured(bench: Bench, case: Case) -> Found:
    [(given, found)] = bench.measure([case], math.inf)
    assert given is case
    return found


def case_of(family: str, word: str = "") -> Case:
    return next(case for case in cases(SMALL) if case.family == family and word in case.label)


def test_numbers_fill_the_range_of_their_type() -> None:
    drawn = numbers((300, 5), dtypes.INT8)
    assert (drawn.min(), drawn.max(), drawn.dtype) == (-128, 127, np.int8)
    long = numbers((1 << 11, 1 << 11), dtypes.FLOAT16)
    assert abs(float(long[0].astype(np.float32).std()) - 1) < 0.1
    assert not np.array_equal(long[0], long[1 << 10])
    assert not np.array_equal(numbers((4, 4), dtypes.FLOAT32, 0), numbers((4, 4), dtypes.FLOAT32, 1))
    rows, columns = np.array([3, 2047, 1]), np.array([0, 2047])
    same = long[np.ix_(rows, columns)].astype(np.float64)
    np.testing.assert_array_equal(numbers_at(long.shape, dtypes.FLOAT16, 0, rows, columns), same)


def test_values_on_the_device_are_those_numbers(vulkan_device_name: str) -> None:
    device = open_device(find_device(vulkan_device_name, True))
    for dtype, count in ((dtypes.FLOAT32, 2_500_001), (dtypes.INT8, 3_000_003), (dtypes.FLOAT32, 5)):
        value = Value("x", TensorType(dtype, (count,)))
        np.testing.assert_array_equal(_filled(device, value, 3).numpy(), numbers((count,), dtype, 3))


def test_no_case_is_begun_when_time_is_over(bench: Bench) -> None:
    [(case, found)] = bench.measure([case_of("softmax")], 0.0)
    assert case.family == "softmax"
    assert found.problem == "no time was left" and not found.seconds


def test_every_case_is_one_operator_with_a_bound() -> None:
    found = list(cases(SMALL))
    assert len({(case.family, case.label) for case in found}) == len(found)
    for case in found:
        made = [node.op for node in case.build().nodes if node.op not in ("Identity", "DequantizeLinear")]
        assert len(made) == 1, case.label
        is_of_bytes = any(word in case.label for word in ("depthwise", "one token")) or (
            case.family == "weight-only" and case.label.startswith(("1 ×", "16 ×"))
        )
        families = "matmul", "batched", "attention", "convolution", "weight-only", "recurrent"
        assert (case.operations > 0) == (case.family in families and not is_of_bytes), case.label
        if case.is_product:
            assert case.operations == 2 * case.build().inputs[0].tensor.dims[0] ** 3, case.label


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32, high,", "fp32, highest", "int8 → int32"])
def test_products_are_timed_and_compared(bench: Bench, kind: str) -> None:
    found = measured(bench, case_of("matmul", kind))
    if "16" in kind and not bench.info.capabilities.storage_16bit:
        assert "one program" in found.problem
        return
    assert not found.problem
    assert found.seconds > 0 and found.rate == pytest.approx(2 * SMALL.side**3 / found.seconds)
    assert found.error is not None
    assert found.error < {"bf16": 4e-3, "int8 → int32": 1e-15}.get(kind, 1e-3)
    assert found.kernels


def test_ceilings_of_products_are_those_of_the_units_shared_among_them(bench: Bench) -> None:
    bench.operations["float16"] = 6e9
    for kind, ceiling in (("fp32, high,", 6e9), ("fp32, highest", 2e9)):
        found = measured(bench, case_of("matmul", kind))
        assert found.ceiling == ceiling
        assert found.share == pytest.approx(found.rate / ceiling)
    del bench.operations["float16"]
    assert measured(bench, case_of("matmul", "fp32")).share is None


@pytest.mark.parametrize(
    ("family", "word", "moved"),
    [
        ("elementwise", "Relu", 8),
        ("elementwise", "two", 12),
        ("elementwise", "fp16", 6),
        ("transpose", "fp16", 4),
        ("softmax", "down", 8),
        ("scatter", "", 8),
    ],
)
def test_bytes_are_those_of_operands_and_results(bench: Bench, family: str, word: str, moved: int) -> None:
    found = measured(bench, case_of(family, word))
    if word == "fp16" and not bench.info.capabilities.storage_16bit:
        assert "one program" in found.problem
        return
    assert not found.problem
    more = SMALL.elements * (2 if family == "scatter" else 0)  # as many updates as half of the rows
    indices = 64 if family == "scatter" else 0
    assert found.rate * found.seconds == pytest.approx(SMALL.elements * moved + more + indices)
    assert found.ceiling == bench.bytes


def test_what_a_device_cannot_do_is_told(bench: Bench) -> None:
    unknown = replace(case_of("sort"), build=nonzero)
    assert measured(bench, unknown).problem


def nonzero() -> Graph:
    """A model of which no part runs on a GPU."""
    sketch = Sketch("nonzero")
    return sketch.finish(sketch.node("NonZero", sketch.input("x", (4, 4))))


def test_command(
    vulkan_device_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "micro.json"
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "micro",
            "softmax",
            "backward",
            "--device",
            vulkan_device_name,
            "--elements=16384",
            "--length=32",
            f"--json={file}",
        ],
    )
    main()
    shown = capsys.readouterr().out
    assert "ceilings:" in shown and "down the columns" in shown
    content = json.loads(file.read_text())
    families = [each["family"] for each in content["kernels"]]
    assert set(families[:-1]) == {"softmax"} and families[-1] == "attention"
    has_halves = find_device(vulkan_device_name, True).capabilities.float16
    for each in content["kernels"][:-1]:
        if has_halves or "fp16" not in each["label"]:
            assert each["share"] and not each["problem"]
        else:
            assert "not one program" in each["problem"]
    assert content["kernels"][-1]["seconds"] > 0
