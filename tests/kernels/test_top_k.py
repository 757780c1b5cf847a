"""TopK on Vulkan: within one workgroup's chunk and beyond, ties, NaN, any axis."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

import vkml
from tests.vulkan_cases import Cases, Fixed
from vkml.kernels import top_k
from vkml.onnx import save_graph


def _count(k: int) -> Fixed:
    return Fixed(np.array([k], np.int64))


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
