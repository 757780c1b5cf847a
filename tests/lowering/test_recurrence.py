"""Recurrent layers as launches: how many there are, and that none begins before what it reads is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import vkml.ops  # noqa: F401  (fills the registry)
from tests.lowering.checking import broken_dependencies
from vkml.cpu.native.executable import InstructionSet
from vkml.ir import Constant, Node, TensorType, dtypes, find
from vkml.ir.operator import normalise_attributes
from vkml.kernels.views import BufferKind
from vkml.lowering.builder import Builder
from vkml.lowering.native_builder import NativeBuilder
from vkml.lowering.native_layout import Layouts
from vkml.lowering.schedule import schedule
from vkml.lowering.target import Target
from vkml.lowering.vulkan_builder import VulkanBuilder

STEPS = 7
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _lowered(build: Builder[Any], op: str, hidden: int, **attributes: Any) -> list[Any]:
    """The launches of a layer of constant weights and one sequence."""
    outputs = ("y", "h", "c") if op == "LSTM" else ("y", "h")
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    node = Node(op, ("x", "w", "r", "b"), outputs, attributes, "layer")
    node = replace(node, attributes=normalise_attributes(node, find(node)))
    rows = GATES[op] * hidden
    weights = [
        np.zeros(shape, np.float32)
        for shape in ((directions, rows, 8), (directions, rows, hidden), (directions, 2 * rows))
    ]
    views = [build.buffer(BufferKind.INPUT, TensorType(dtypes.FLOAT32, (STEPS, 1, 8)), "x")]
    views += [build.constant(Constant(dtypes.FLOAT32, array.shape, array), "weight") for array in weights]
    types = [TensorType(dtypes.FLOAT32, (STEPS, directions, 1, hidden))]
    types += [TensorType(dtypes.FLOAT32, (directions, 1, hidden))] * (len(outputs) - 1)
    made = build.lower(node, [node], views, types)
    assert [view and view.shape for view in made] == [type_.dims for type_ in types]
    return list(build.launches)


def _steps(launches: Sequence[Any]) -> list[Any]:
    """The launches that the layer's steps are."""

    def label(launch: Any) -> str:
        return str((launch.launch if hasattr(launch, "launch") else launch).kernel.label)

    return [launch for launch in launches if label(launch) == "recurrent"]


def _check_order(launches: Sequence[Any], count: int) -> None:
    levels = schedule(launches)
    assert not broken_dependencies(launches, levels)
    steps = _steps(launches)
    place = {id(launch): number for number, level in enumerate(levels) for launch in level}
    levels_of_steps = [place[id(step)] for step in steps]
    assert len(steps) == count and levels_of_steps == sorted(set(levels_of_steps))


@pytest.mark.parametrize(("op", "stages"), [("LSTM", 1), ("GRU", 2), ("RNN", 1)])
def test_a_dispatch_a_stage_of_each_step(op: str, stages: int) -> None:
    with patch("vkml.kernels.recurrent.forced", False):
        build = VulkanBuilder(Target(frozenset()))
        launches = _lowered(build, op, 12, direction="bidirectional")
    _check_order(launches, STEPS * stages)
    assert len({step.kernel for step in _steps(launches)}) == stages


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_small_layers_are_one_dispatch(op: str) -> None:
    launches = _lowered(VulkanBuilder(Target(frozenset())), op, 12, direction="bidirectional")
    _check_order(launches, 1)


def test_large_layers_are_a_dispatch_a_step() -> None:
    assert len(_steps(_lowered(VulkanBuilder(Target(frozenset())), "LSTM", 300))) == STEPS


@pytest.mark.parametrize(("op", "stages"), [("LSTM", 1), ("GRU", 2), ("RNN", 1)])
def test_threads_share_the_units_of_a_large_layer(op: str, stages: int) -> None:
    with patch("vkml.lowering.native_recurrent.LEAST_PART_SECONDS", 1e-9):
        launches = _lowered(NativeBuilder(InstructionSet.AVX2, 4, Layouts()), op, 24)
    _check_order(launches, STEPS * stages)
    assert all(len(step.launch.table) > 1 for step in _steps(launches))


def test_directions_that_keep_the_threads_busy_are_one_launch() -> None:
    launches = _lowered(
        NativeBuilder(InstructionSet.AVX2, 2, Layouts()), "LSTM", 640, direction="bidirectional"
    )
    [step] = _steps(launches)
    assert len(step.launch.table) == 2
