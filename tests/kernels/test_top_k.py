"""TopK on Vulkan: within one workgroup's chunk and beyond, ties, NaN, any axis."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

import vkml
import vkml.engine.devices
from tests.kernels.gpu_targets import GPU
from tests.vulkan_cases import Cases, Fixed
from vkml import vulkan
from vkml.kernels import selection, top_k
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph


def _count(k: int) -> Fixed:
    return Fixed(np.array([k], np.int64))


@pytest.fixture
def sorted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has rows sorted, few as the elements may be that are wanted."""
    monkeypatch.setattr(selection, "MOST_SELECTED", 0)
    forget_lowerings()


@pytest.mark.usefixtures("sorted_only")
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_short_rows(device_name: str, is_strided: bool) -> None:
    cases = Cases(71)
    for at, name in enumerate(
        ("float32", "float16", "float64", "int8", "uint16", "int32", "int64", "uint64")
    ):
        shape = (3, 5 + at, 4)
        x = cases.array(name, shape, special=True)
        x[1] = x[1, :1]  # equal along the middle axis
        for axis in (0, 1, 2):
            k = int(cases.random.integers(1, shape[axis] + 1))
            outputs = 2 if axis else 1
            cases.add("TopK", x, _count(k), axis=axis, largest=(at + axis) % 2, outputs=outputs)
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.usefixtures("sorted_only")
def test_runs_are_merged(device_name: str) -> None:
    cases = Cases(72)
    with patch.object(top_k, "CHUNK", 8):
        for length, k in ((9, 9), (16, 5), (41, 41), (64, 20), (100, 1), (131, 11)):
            for largest in (0, 1):
                # Few different numbers: equals keep the order in which they lie.
                x = cases.random.integers(0, 9, (2, length, 3)).astype(np.float32)
                x[0, 3, 1], x[0, length - 1, 1] = np.nan, np.inf
                cases.add("TopK", x, _count(k), axis=1, largest=largest, outputs=2)
        cases.check(device_name)


def test_places_alone_and_many_elements(vulkan_device_name: str) -> None:
    cases = Cases(73)
    cases.add("TopK", cases.array("float32", (2, 5000)), _count(1500), outputs=2)
    graph = cases.graph(False)[0]
    [node] = graph.nodes
    with vkml.InferenceSession(save_graph(graph), devices=vulkan_device_name) as session:
        x = cases.cases[0].inputs[0]
        assert isinstance(x, np.ndarray)
        [places] = session.run([node.outputs[1]], {node.inputs[0]: x})
    np.testing.assert_array_equal(places, np.argsort(-x, axis=1, kind="stable")[:, :1500])


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize(("subgroups", "per_thread"), [(1, 2), (1, 32), (2, 8), (4, 4)])
def test_few_are_selected(
    vulkan_device_name: str,
    monkeypatch: pytest.MonkeyPatch,
    subgroups: int,
    per_thread: int,
    is_strided: bool,
) -> None:
    """Of one chunk and of many: any number, of any type, with equals, what is not finite, in any order."""
    lanes = vkml.engine.devices.target_of(vulkan.find_device(vulkan_device_name, True)).subgroup_size
    chunks = selection.Chunks(subgroups * lanes, per_thread)
    most = min(chunks.threads, chunks.size // 4)
    monkeypatch.setattr(selection, "forced", chunks)
    forget_lowerings()
    cases = Cases(74 + per_thread)
    for at, name in enumerate(("float32", "float16", "int8", "uint8", "int16", "uint32", "int32")):
        length = (chunks.size, 3 * chunks.size - 1, 5 * chunks.size + 4, 40 * chunks.size)[at % 4]
        k = min(most, (1, 5, 3 * lanes // 2)[at % 3])
        x = cases.array(name, (2, length), special=True)
        x[1] = np.sort(x[1]) if at % 2 else x[1, :1]
        cases.add("TopK", x, _count(k), largest=at % 2, outputs=2)
    x = cases.random.standard_normal((3, 2 * chunks.size, 2)).astype(np.float32)
    x[0] = 1.5  # all alike
    x[1, :, 0] = -np.inf
    x[2, ::3] = np.nan
    x[2, 1::3] = -0.0
    x[2, 2::3] = 0.0
    for largest in (0, 1):
        cases.add("TopK", x, _count(most), axis=1, largest=largest, outputs=2)
    cases.check(vulkan_device_name, is_strided=is_strided)


@pytest.mark.parametrize("shape", [(3, 5000), (70, 100), (2, 3, 700)], ids=str)
def test_rows_that_fill_a_large_gpu_and_that_do_not(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    """By the rule for a device of 132 processors."""
    real = vkml.engine.devices.target_of
    monkeypatch.setattr(
        vkml.engine.devices,
        "target_of",
        lambda info, precision="highest": replace(real(info, precision), processors=132),
    )
    forget_lowerings()
    cases = Cases(78)
    for k in (1, 8, 50):
        cases.add("TopK", cases.array("float32", shape), _count(k), largest=k % 2, outputs=2)
    cases.check(vulkan_device_name)
    forget_lowerings()


@pytest.mark.parametrize(
    ("rows", "length", "k", "threads", "elements"),
    [
        (65536, 1024, 8, 32, 32),  # 76.7 µs; 64 threads with 16 each 98, 128 with 8 121
        (1, 50257, 8, 32, 16),  # 9.0; with 4 each 20.8
        (1, 50257, 50, 128, 16),  # 8.5; with 32 each 10.2
        (64, 50257, 50, 128, 32),  # 17.9
        (4096, 64, 8, 32, 2),
    ],
)
def test_chunks_of_an_h200(rows: int, length: int, k: int, threads: int, elements: int) -> None:
    chunks = selection.chunks_of(GPU, rows, length, k, is_of_runs=False)
    assert chunks == selection.Chunks(threads, elements)
