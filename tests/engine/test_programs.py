"""The commands of a program as the Vulkan driver receives them: barriers stand where they belong."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import vkml
from tests.recordings import Barrier, barrier_of
from vkml.engine import devices as device_registry
from vkml.engine.prepare import prepare
from vkml.engine.programs import VulkanBound
from vkml.engine.recorded import DIRECT_OUTPUT_BYTES
from vkml.engine.sketch import Sketch
from vkml.engine.turns import Turn
from vkml.engine.weights import WeightStore
from vkml.errors import IndexOutOfRange
from vkml.ir import Graph, dtypes
from vkml.lowering import horizontal
from vkml.lowering.vulkan import Piece, lower
from vkml.passes import specialise
from vkml.vulkan import Device, Memory, MemoryKind
from vkml.vulkan.structures import constants, handle_number

Array = np.ndarray[Any, Any]
SHADER_ACCESS = (
    constants.VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT,
    constants.VK_ACCESS_2_SHADER_WRITE_BIT,
    constants.VK_ACCESS_2_SHADER_READ_BIT,
)
COPY_ACCESS = (
    constants.VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT,
    constants.VK_ACCESS_2_TRANSFER_WRITE_BIT,
    constants.VK_ACCESS_2_TRANSFER_READ_BIT,
)


@dataclass(frozen=True)
class Commands:
    """Everything one program had recorded: kinds of commands in sets, a barrier after each but the last."""

    sets: list[list[str]]
    barriers: list[Barrier]


class Recording:
    """Notes what the driver receives through a device's functions."""

    def __init__(self, device: Device, patch: pytest.MonkeyPatch) -> None:
        self.entries: list[str | Barrier] = []
        self.pushes: list[bytes] = []
        functions = device.context.functions
        for name, word in (
            ("vkCmdDispatch", "dispatch"),
            ("vkCmdCopyBuffer", "copy"),
            ("vkCmdFillBuffer", "fill"),
        ):
            patch.setattr(functions, name, self._noting(getattr(functions, name), word))
        barrier = functions.vkCmdPipelineBarrier2

        def note_barrier(buffer: Any, dependency: Any) -> None:
            self.entries.append(barrier_of(dependency))
            barrier(buffer, dependency)

        push = functions.vkCmdPushConstants

        def note_push(buffer: Any, layout: Any, stages: int, offset: int, size: int, data: Any) -> None:
            self.pushes.append(bytes(data))
            push(buffer, layout, stages, offset, size, data)

        patch.setattr(functions, "vkCmdPipelineBarrier2", note_barrier)
        patch.setattr(functions, "vkCmdPushConstants", note_push)

    def _noting(self, function: Any, word: str) -> Any:
        def call(*arguments: Any) -> None:
            self.entries.append(word)
            function(*arguments)

        return call

    def commands(self) -> Commands:
        """Everything so far."""
        sets: list[list[str]] = [[]]
        barriers = []
        for entry in self.entries:
            if isinstance(entry, Barrier):
                barriers.append(entry)
                sets.append([])
            else:
                sets[-1].append(entry)
        return Commands(sets, barriers)


def wide_graph(columns: int) -> Graph:
    """Levels of several dispatches: two chains of rows that meet at the end."""
    sketch = Sketch("wide")
    x = sketch.input("x", (4, columns))
    rows = sketch.constant(np.array([1], np.int64))
    a, b = sketch.node("Softmax", x), sketch.node("ReduceMax", x, rows, keepdims=1)
    c, d = sketch.node("Softmax", a, axis=0), sketch.node("Sub", x, b)
    return sketch.finish(sketch.node("Add", c, d))


class Bench:
    """One device, and programs on it whose commands are noted."""

    def __init__(self, device_name: str, patch: pytest.MonkeyPatch) -> None:
        [self.info] = [info for info in vkml.devices() if info.name == device_name]
        self.device = device_registry.open_device(self.info)
        self.weights = WeightStore(lambda: self.device)
        self.patch = patch
        self.bound: list[VulkanBound] = []
        self.pushes: list[bytes] = []
        """Push constants of each dispatch of the last program."""

    def bind(
        self, graph: Graph, feed: Mapping[str, Array], guard_bytes: int = 0
    ) -> tuple[VulkanBound, Commands]:
        graph = specialise(
            prepare(graph, optimise=False), {name: array.shape for name, array in feed.items()}
        )
        piece = Piece(graph.nodes, tuple(feed), tuple(value.name for value in graph.outputs))
        target = device_registry.target_of(self.info)
        program = lower(piece, graph.types, graph.constants, target, guard_bytes)
        with self.patch.context() as patch:
            patch.setattr(self.device.context, "native", None)  # which calls none of the functions noted
            recording = Recording(self.device, patch)
            bound = VulkanBound(program, self.device, self.weights, guard_bytes=guard_bytes)
            self.bound.append(bound)
        self.pushes = recording.pushes
        return bound, recording.commands()

    def close(self) -> None:
        for bound in self.bound:
            bound.close()
        self.weights.close()


@pytest.fixture
def bench(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(vulkan_device_name, monkeypatch)
    yield made
    made.close()


def expected(data: Array) -> Array:
    """What `wide_graph` computes."""

    def softmax(array: Array, axis: int) -> Array:
        powers = np.exp(array - array.max(axis, keepdims=True))
        return np.asarray(powers / powers.sum(axis, keepdims=True))

    return np.asarray(softmax(softmax(data, -1), 0) + (data - data.max(-1, keepdims=True)))


@pytest.mark.usefixtures("launches_of_their_own")
def test_one_barrier_between_levels_and_none_inside(bench: Bench) -> None:
    data = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    bound, commands = bench.bind(wide_graph(6), {"x": data})
    levels = bound.program.levels
    assert len(levels) >= 3
    assert max(map(len, levels)) >= 2
    last: list[list[str]] = [[]]
    assert commands.sets == [["dispatch"] * len(level) for level in levels] + last
    *between, to_host = commands.barriers
    assert all(barrier.orders(SHADER_ACCESS, SHADER_ACCESS) for barrier in between)
    assert to_host.shows_the_host
    np.testing.assert_allclose(bound.run([data])[0], expected(data), atol=1e-6)


def test_without_the_interpreter_the_same_is_recorded(bench: Bench) -> None:
    """The rows of the table that machine code goes through are the commands that Python would record."""
    native = bench.device.context.native
    if native is None:
        pytest.skip("no machine code on this processor, or VKML_NATIVE=0")
    data = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    bound, commands = bench.bind(wide_graph(6), {"x": data})
    other = bound.another()
    bench.bound.append(other)
    functions = bench.device.context.functions
    names = ("vkCmdBindPipeline", "vkCmdPushConstants", "vkCmdDispatch", "vkCmdPipelineBarrier2")
    words = {handle_number(getattr(functions, name)): name for name in names}
    rows = [(words[int(row[0])], [int(word) for word in row[1:7]]) for row in other._table._rows]
    sets: list[list[str]] = [[]]
    for word, _ in rows:
        if word == "vkCmdPipelineBarrier2":
            sets.append([])
        elif word == "vkCmdDispatch":
            sets[-1].append("dispatch")
    assert sets == commands.sets[:-1]
    dispatches = [dispatch for level in bound.program.levels for dispatch in level]
    assert [arguments[1:4] for word, arguments in rows if word == "vkCmdDispatch"] == [
        list(dispatch.groups) for dispatch in dispatches
    ]
    pushed = [arguments for word, arguments in rows if word == "vkCmdPushConstants"]
    assert [arguments[4] for arguments in pushed] == list(map(len, bench.pushes))
    at = [arguments[5] for arguments in pushed]
    assert np.diff(at).tolist() == [len(push) for push in bench.pushes[:-1]]
    np.testing.assert_array_equal(other.run([data])[0], bound.run([data])[0])


def test_large_outputs_are_copied_behind_a_barrier(bench: Bench) -> None:
    columns = DIRECT_OUTPUT_BYTES
    data = np.linspace(-2, 2, 4 * columns, dtype=np.float32).reshape(4, columns)
    bound, commands = bench.bind(wide_graph(columns), {"x": data})
    last: list[list[str]] = [["copy"], []]
    assert commands.sets == [["dispatch"] * len(level) for level in bound.program.levels] + last
    *_, before_copy, to_host = commands.barriers
    assert before_copy.orders(SHADER_ACCESS, COPY_ACCESS)
    assert to_host.shows_the_host
    np.testing.assert_allclose(bound.run([data])[0], expected(data), atol=1e-5)


def test_staged_inputs_arrive_before_the_first_level(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device whose memory the host cannot reach."""
    allocate = bench.device.allocate

    def allocate_unmapped(size: int, kind: MemoryKind, *arguments: Any) -> Memory:
        memory = allocate(size, kind, *arguments)
        if kind is MemoryKind.DEVICE:
            memory.host = None
        return memory

    monkeypatch.setattr(bench.device, "allocate", allocate_unmapped)
    data = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    bound, commands = bench.bind(wide_graph(6), {"x": data})
    last: list[list[str]] = [[]]
    assert commands.sets == [["copy"], *(["dispatch"] * len(level) for level in bound.program.levels), *last]
    assert commands.barriers[0].orders(COPY_ACCESS, SHADER_ACCESS)
    np.testing.assert_allclose(bound.run([data])[0], expected(data), atol=1e-6)


def test_guards_are_filled_before_the_first_level(bench: Bench) -> None:
    data = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    bound, commands = bench.bind(wide_graph(6), {"x": data}, guard_bytes=256)
    levels, none = [["dispatch"] * len(level) for level in bound.program.levels], list[str]()
    # Behind the run before, and before what goes on behind this one.
    assert commands.sets == [none, ["fill"], *levels, none]
    assert commands.barriers[0].orders(SHADER_ACCESS, COPY_ACCESS)
    assert commands.barriers[1].orders(COPY_ACCESS, SHADER_ACCESS)
    np.testing.assert_allclose(bound.run([data])[0], expected(data), atol=1e-6)


@pytest.mark.parametrize("way", ["run", "direct"])
@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_an_error_names_its_node_and_is_forgotten(bench: Bench, way: str, wrong: int) -> None:
    """Of three nodes that may find an index out of range; the next run is none the wiser."""
    sketch = Sketch("gathers")
    table = np.linspace(-2, 2, 15, dtype=np.float32).reshape(5, 3)
    x = sketch.input("x", table.shape)
    feed = {"x": table, **{f"at{i}": np.array([i, 4], np.int64) for i in range(3)}}
    made = [sketch.node("Gather", x, sketch.input(f"at{i}", (2,), dtypes.INT64)) for i in range(3)]
    bound, _ = bench.bind(sketch.finish(*made), feed)
    call = bound.direct(Turn())
    assert call is not None

    def run(given: Mapping[str, Array]) -> list[Array] | None:
        return bound.run([given[name] for name in bound.inputs]) if way == "run" else call(given)

    for _ in range(2):
        with pytest.raises(IndexOutOfRange, match=bound.program.error_labels[wrong]):
            run({**feed, f"at{wrong}": np.array([0, 5], np.int64)})
        found = run(feed)
        assert found is not None
        for index, one in enumerate(found):
            np.testing.assert_array_equal(one, table[[index, 4]])
            one[...] = 77  # it is the caller's own
    assert len({*bound.program.error_labels}) == 3


@pytest.mark.parametrize("way", ["run", "direct"])
def test_results_outlive_the_next_run(bench: Bench, way: str) -> None:
    sketch = Sketch("twice")
    data = np.linspace(-2, 2, 15, dtype=np.float32).reshape(5, 3)
    bound, _ = bench.bind(sketch.finish(sketch.node("Neg", sketch.input("x", data.shape))), {"x": data})
    call = bound.direct(Turn())
    assert call is not None
    first, second = (bound.run([given]) if way == "run" else call({"x": given}) for given in (data, 3 * data))
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first[0], -data)
    np.testing.assert_array_equal(second[0], -3 * data)
    assert not np.shares_memory(first[0], second[0])


def test_outputs_of_both_kinds_keep_apart(bench: Bench) -> None:
    """Those that kernels write to the host's memory, and those that are copied there."""
    sketch = Sketch("kinds")
    sizes = (5, DIRECT_OUTPUT_BYTES, 1, DIRECT_OUTPUT_BYTES // 4, DIRECT_OUTPUT_BYTES // 4 + 1, 3)
    feed = {f"x{i}": np.arange(1, size + 1, dtype=np.float32) + i for i, size in enumerate(sizes)}
    graph = sketch.finish(*(sketch.node("Neg", sketch.input(name, a.shape)) for name, a in feed.items()))
    bound, commands = bench.bind(graph, feed)
    assert commands.sets[-2] == ["copy", "copy"]
    for array, found in zip(feed.values(), bound.run([*feed.values()]), strict=True):
        np.testing.assert_array_equal(found, -array)


def test_a_program_of_nothing(bench: Bench) -> None:
    sketch = Sketch("nothing")
    graph = sketch.finish(sketch.node("Neg", sketch.input("x", (0, 3))))
    data = np.zeros((0, 3), np.float32)
    bound, _ = bench.bind(graph, {"x": data})
    assert [found.shape for found in bound.run([data])] == [(0, 3)]


def test_empty_values_and_odd_sizes_share_no_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and outputs of 0, 1, 3 … elements stay as given or made, and allow accesses of 16 bytes."""
    monkeypatch.setattr(horizontal, "LEAST_MEMBERS", 100)  # addresses then are push constants
    sketch = Sketch("sizes")
    sizes = (3, 0, 1, 70, 0, 5)
    feed = {f"x{i}": np.arange(1, size + 1, dtype=np.float32) + 100 * i for i, size in enumerate(sizes)}
    graph = sketch.finish(*(sketch.node("Neg", sketch.input(name, a.shape)) for name, a in feed.items()))
    bound, _ = bench.bind(graph, feed)
    for array, found in zip(feed.values(), bound.run([*feed.values()]), strict=True):
        np.testing.assert_array_equal(found, -array)
    for dispatch, push in zip(bound.program.dispatches, bench.pushes, strict=True):
        count = sum(not isinstance(argument, int) for argument in dispatch.arguments)
        assert all(address % 16 == 0 for address in struct.unpack_from(f"<{count}Q", push))


def test_a_profile_runs_one_dispatch_after_the_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    bound, commands = bench.bind(wide_graph(6), {"x": data})
    with monkeypatch.context() as patch:
        patch.setattr(bench.device.context, "native", None)
        recording = Recording(bench.device, patch)
        timed = bound.profile()
    found, count = recording.commands(), sum(level.count("dispatch") for level in commands.sets)
    assert (
        len(bound.program.levels) < count and [dispatch for dispatch, _ in timed] == bound.program.dispatches
    )
    assert [level for level in found.sets if "dispatch" in level] == [["dispatch"]] * count
    assert set(found.barriers) == set(commands.barriers)
