"""Launches that wait for those before them by themselves: who waits for whom, results, and waits in vain."""

from __future__ import annotations

import itertools
import random
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from benchmarks.feeds import feed_of
from tests.benchmarks.test_small_models import SMALL
from vkml import nn
from vkml.engine import dependent_launches
from vkml.engine import recorded as recorded_program
from vkml.engine.dependent_launches import LEAST_LEVELS, chains
from vkml.engine.programs import VulkanBound
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.kernels import dependent_launch, slang
from vkml.kernels.dependent_launch import DEPENDENCY_BYTES, Dependency
from vkml.kernels.slang import PHASE
from vkml.kernels.slang import opcodes as op
from vkml.lowering import phases
from vkml.onnx import save_graph
from vkml.vulkan import CommandRecorder
from vkml.vulkan.spirv import instructions, words_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Launch:
    """What a recorded dispatch does beside its kernel."""

    workgroups: int
    dependency: Dependency


@dataclass(frozen=True)
class Level:
    """A recorded level."""

    launches: tuple[Launch, ...]
    has_barrier: bool
    """Whether one of the device stands before it."""

    @property
    def workgroups(self) -> int:
        return sum(launch.workgroups for launch in self.launches)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches wait by themselves, also on software drivers."""
    monkeypatch.setattr(dependent_launch, "forced", True)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[list[Level]]:
    """The levels of all tables that are recorded."""
    found: list[list[Level]] = []
    record = CommandRecorder.dispatch_table

    def note(
        self: CommandRecorder,
        table: Any,
        push: bytes,
        grids: Sequence[int],
        pool: Any = None,
        counts: Any = None,
        joined: Any = (),
    ) -> None:
        levels, number = [], 0
        for index, level in enumerate(table.levels):
            launches = []
            for _, _start, end in level:
                x, y, z = grids[3 * number : 3 * number + 3]
                told = Dependency(*struct.unpack("<QII", push[end - DEPENDENCY_BYTES : end]))
                launches.append(Launch(x * y * z, told))
                number += 1
            levels.append(Level(tuple(launches), index not in joined))
        if joined:
            found.append(levels)
        record(self, table, push, grids, pool, counts, joined)

    monkeypatch.setattr(CommandRecorder, "dispatch_table", note)
    return found


def replay(levels: Sequence[Level], draws: random.Random, runs: int = 3) -> None:
    """Runs a recording's workgroups in an order that a device may choose, and fails where one does not wait.

    Workgroups are placed in the order of their launches, any number of them at a time, and go on at random.
    What one does while it waits, and when it has ended, is what `kernels.dependent_launch` says.
    """
    counters: dict[int, int] = {}
    groups = [
        (number, launch.dependency, group)
        for number, level in enumerate(levels)
        for launch in level.launches
        for group in range(launch.workgroups)
    ]
    for _ in range(runs):
        left = [level.workgroups for level in levels]
        coming, waiting, running = list(reversed(groups)), [], []
        while coming or waiting or running:
            ready = [
                each for each in waiting if counters.get((each[1].lines & 0xFFFF) - 1, 0) >= each[1].awaited
            ]
            acts = []
            if coming:
                barrier = max(at for at in range(coming[-1][0] + 1) if levels[at].has_barrier)
                acts += ["place"] if not any(left[:barrier]) else []
            acts += ["begin"] * bool(ready) + ["end"] * bool(running)
            assert acts, "everything waits"
            act = draws.choice(acts)
            if act == "place":
                waiting.append(coming.pop())
            elif act == "begin":
                chosen = draws.choice(ready)
                waiting.remove(chosen)
                running.append(chosen)
                assert not any(left[: chosen[0]]), f"a workgroup of level {chosen[0]} has not waited"
            else:
                number, told, group = running.pop(draws.randrange(len(running)))
                left[number] -= 1
                own, all_of_level = told.lines & 0xFFFF, told.lines >> 16
                if told.lines and group == 0:
                    counters[own - 2] = 0
                if told.lines:
                    counters[own] = counters.get(own, 0) + 1
                    if counters[own] == all_of_level:
                        counters[own] = counters[own - 1] = 0


def check(levels: Sequence[Level]) -> None:
    """Fails where two levels are neither apart by a barrier nor by waits for all of the first one."""
    assert levels[0].has_barrier
    for before, level in itertools.pairwise(levels):
        if level.has_barrier:
            continue
        for launch in level.launches:
            own = launch.dependency.lines & 0xFFFF
            assert launch.dependency.awaited == before.workgroups
            assert {each.dependency.lines & 0xFFFF for each in before.launches} == {own - 1}
            assert {each.dependency.counters for each in before.launches} == {launch.dependency.counters}


# --- who waits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_chains(seed: int) -> None:
    draws = random.Random(seed)
    workgroups = [draws.choice((0, 1, 3, 40, 300, 301)) for _ in range(draws.randrange(12))]
    most = draws.choice((0, 4, 100, 1000))
    found = list(chains(workgroups, most))
    for levels in found:
        assert len(levels) >= LEAST_LEVELS
        assert all(workgroups[level] for level in levels)
        assert sum(workgroups[level] for level in levels[1:]) <= most
        end = levels[-1] + 1
        # It ends where it has to.
        assert (
            end == len(workgroups)
            or not workgroups[end]
            or sum(workgroups[level] for level in levels[1:]) + workgroups[end] > most
        )
    assert all(before[-1] < levels[0] for before, levels in itertools.pairwise(found))


def test_the_longest_chains_are_found() -> None:
    assert list(chains([5] * 6, 1000)) == [range(6)]
    assert list(chains([500, 100, 100, 100, 100, 100], 200)) == [range(3), range(3, 6)]
    assert list(chains([5, 5, 0, 5, 5, 5], 1000)) == [range(2), range(3, 6)]
    assert list(chains([5, 5], 1000)) == [range(2)]
    assert list(chains([5, 500, 5], 100)) == [range(1, 3)]


def told(levels: Sequence[tuple[int, ...]], most: int, monkeypatch: pytest.MonkeyPatch) -> list[Level]:
    """What launches of so many workgroups are told; none of level 2 can wait where there are five."""
    monkeypatch.setattr(dependent_launches, "MOST_WAITING", most)

    class Launches:
        dependencies: list[list[int | None]] = []

    at = 0
    for level in levels:
        Launches.dependencies.append(list(range(at, at + len(level))))
        at += len(level)
    grids = [size for level in levels for count in level for size in (count, 1, 1)]
    order = dependent_launches._order(Launches, grids)  # type: ignore[arg-type]

    class Counters:
        address = 4096

    said = dict(order.dependencies(Counters))  # type: ignore[arg-type]
    return [
        Level(
            tuple(
                Launch(count, said.get(place, Dependency(0, 0, 0)))
                for place, count in zip(places, level, strict=True)
            ),
            number not in order.joined,
        )
        for number, (places, level) in enumerate(zip(Launches.dependencies, levels, strict=True))
    ]


@pytest.mark.parametrize("seed", range(60))
def test_random_levels_wait_for_each_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = random.Random(seed)
    levels = [
        tuple(draws.randrange(1, 5) for _ in range(draws.randrange(1, 4)))
        for _ in range(draws.randrange(3, 10))
    ]
    found = told(levels, draws.choice((6, 12, 100)), monkeypatch)
    check(found)
    replay(found, draws)


def test_the_replay_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that is one too small, counters that nobody resets, and a level that does not wait."""
    found = told([(3,), (3,), (3,), (3,)], 100, monkeypatch)
    assert not any(level.has_barrier for level in found[1:])

    def changed(number: int, **numbers: int) -> list[Level]:
        [launch] = found[number].launches
        other = Launch(launch.workgroups, launch.dependency._replace(**numbers))
        return [*found[:number], Level((other,), found[number].has_barrier), *found[number + 1 :]]

    for wrong in (changed(2, awaited=2), changed(3, lines=5), changed(1, awaited=0)):
        with pytest.raises(AssertionError, match="has not waited"):
            for seed in range(300):
                replay(wrong, random.Random(seed))
    with pytest.raises(AssertionError, match="everything waits"):
        replay(changed(2, awaited=4), random.Random(0))


# --- what sessions record -----------------------------------------------------------------------------------


def both(run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """What a function returns with barriers, and with launches that wait by themselves."""
    results = []
    for is_forced in (False, True):
        monkeypatch.setattr(dependent_launch, "forced", is_forced)
        results.append(run())
    return results[0], results[1]


def sure(recorded: list[list[Level]], least: int) -> None:
    """Fails unless levels wait by themselves, at least so many, and all as they have to."""
    assert sum(not level.has_barrier for levels in recorded for level in levels) >= least
    for levels in recorded:
        check(levels)


def digits() -> Graph:
    """Two convolutions with pooling and a product, as in a classifier of digits."""
    sketch = Sketch("digits", 17)
    generator = np.random.default_rng(5)

    def numbers(*shape: int) -> str:
        return sketch.constant(generator.standard_normal(shape, np.float32) / 4)

    value = sketch.input("x", (1, 1, 28, 28))
    for channels, before in ((8, 1), (16, 8)):
        value = sketch.node("Conv", value, numbers(channels, before, 5, 5), pads=[2, 2, 2, 2])
        value = sketch.node("Relu", sketch.node("Add", value, numbers(channels, 1, 1)))
        value = sketch.node("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    value = sketch.node("Reshape", value, sketch.constant(np.array([1, 784], np.int64)))
    return sketch.finish(sketch.node("Add", sketch.node("MatMul", value, numbers(784, 10)), numbers(10)))


MODELS = {"digits": digits, **{name: SMALL[name] for name in ("bert_base", "mobilenet_v2")}}


@pytest.mark.parametrize("name", MODELS)
def test_models(
    name: str,
    vulkan_device_name: str,
    monkeypatch: pytest.MonkeyPatch,
    recorded: list[list[Level]],
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "model.onnx")
    save_graph(MODELS[name](), path)
    feed = feed_of(path)
    monkeypatch.setattr(dependent_launches, "MOST_WAITING", 1 << 30)

    def run() -> list[list[Array]]:
        with vkml.InferenceSession(path, devices=vulkan_device_name) as session:
            return [session.run(None, feed) for _ in range(3)]

    with_barriers, waiting = both(run, monkeypatch)
    sure(recorded, 3)
    for before, after in zip(with_barriers, waiting, strict=True):
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a, b)


def random_graph(draws: random.Random) -> bytes:
    """Products, softmaxes, sums and transposes of square matrices, some of them used several times."""
    size = 40
    sketch = Sketch("random", 17)
    values = [sketch.input("x", (size, size)), sketch.input("y", (size, size))]
    generator = np.random.default_rng(draws.randrange(1 << 30))
    for _ in range(draws.randrange(6, 14)):
        a, b = draws.choice(values), draws.choice(values)
        kind = draws.choice(("MatMul", "Weights", "Add", "Softmax", "Transpose", "ReduceSum"))
        if kind == "Weights":
            weights = sketch.constant(generator.standard_normal((size, size), np.float32) / 8)
            values.append(sketch.node("MatMul", a, weights))
        elif kind in ("MatMul", "Add"):
            values.append(sketch.node(kind, a, b))
        elif kind == "ReduceSum":
            axes = sketch.constant(np.array([0], np.int64))
            values.append(sketch.node("Mul", b, sketch.node("ReduceSum", sketch.node("Tanh", a), axes)))
        else:
            values.append(sketch.node(kind, a))
    outputs = [sketch.node("Tanh", value) for value in values[-3:]]
    return save_graph(sketch.finish(*outputs))


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(
    seed: int, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch, recorded: list[list[Level]]
) -> None:
    draws = random.Random(seed)
    data = random_graph(draws)
    monkeypatch.setattr(dependent_launches, "MOST_WAITING", draws.choice((50, 1 << 30)))
    generator = np.random.default_rng(seed)
    feeds = [{name: generator.standard_normal((40, 40), np.float32) for name in ("x", "y")} for _ in range(3)]

    def run() -> list[list[Array]]:
        with vkml.InferenceSession(data, devices=vulkan_device_name) as session:
            return [session.run(None, feed) for feed in feeds]

    with_barriers, waiting = both(run, monkeypatch)
    sure(recorded, 0)
    for levels in recorded:
        if sum(level.workgroups for level in levels) < 500:
            replay(levels, draws)
    for before, after in zip(with_barriers, waiting, strict=True):
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_a_row_fetch_their_matrix_before_they_wait(
    transposed: bool, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch, recorded: list[list[Level]]
) -> None:
    sketch = Sketch("rows", 17)
    value = sketch.input("x", (1, 300))
    generator = np.random.default_rng(1)
    for k, n in ((300, 260), (260, 500), (500, 300), (300, 4)):
        weights = generator.standard_normal((n, k) if transposed else (k, n), np.float32) / 16
        value = sketch.node("Gemm", value, sketch.constant(weights), transB=int(transposed))
        value = sketch.node("Tanh", value)
    data = save_graph(sketch.finish(value))
    feeds = [{"x": generator.standard_normal((1, 300), np.float32)} for _ in range(3)]
    sources: list[str] = []
    compile_kernels = recorded_program.compile_kernels

    def note(device: Any, kernels: Any, *more: Any) -> Any:
        sources.extend(kernel.source for kernel in kernels if kernel.is_dependent)
        return compile_kernels(device, kernels, *more)

    monkeypatch.setattr(recorded_program, "compile_kernels", note)

    def run() -> list[Array]:
        with vkml.InferenceSession(data, devices=vulkan_device_name) as session:
            return [session.run(None, feed)[0] for feed in feeds]

    with_barriers, waiting = both(run, monkeypatch)
    sure(recorded, 3)
    # They say themselves where to wait.
    assert sum("WEIGHTS_FIRST = true" in source for source in sources) >= 2
    for before, after in zip(with_barriers, waiting, strict=True):
        np.testing.assert_array_equal(before, after)


def test_open_sizes(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch, recorded: list[list[Level]]
) -> None:
    """Each set of sizes has counters of its own, also where commands are recorded again."""
    monkeypatch.setattr(dependent_launches, "MOST_WAITING", 40)
    sketch = Sketch("open", 17)
    value = sketch.input("x", ("n", 64))
    generator = np.random.default_rng(0)
    for _ in range(4):
        weights = sketch.constant(generator.standard_normal((64, 64), np.float32) / 8)
        value = sketch.node("Softmax", sketch.node("MatMul", value, weights))
    data = save_graph(sketch.finish(value))
    counts = [40, 50, 60, 300, 40, *range(80, 92), 60, 300]
    feeds = [generator.standard_normal((count, 64), np.float32) for count in counts]

    def run() -> list[Array]:
        with vkml.InferenceSession(data, devices=vulkan_device_name) as session:
            return [session.run(None, {"x": x})[0] for x in feeds for _ in range(2)]

    with_barriers, waiting = both(run, monkeypatch)
    sure(recorded, 20)
    assert len({levels[0].launches[0].dependency.counters for levels in recorded}) > 1
    for before, after in zip(with_barriers, waiting, strict=True):
        np.testing.assert_array_equal(before, after)


def test_training_steps(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch, recorded: list[list[Level]]
) -> None:
    monkeypatch.setattr(dependent_launches, "MOST_WAITING", 1 << 30)
    generator = np.random.default_rng(3)
    batches = [
        (generator.standard_normal((64, 32), np.float32), generator.integers(0, 10, 64)) for _ in range(4)
    ]

    def run() -> list[float]:
        vkml.manual_seed(7)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        model.to(vulkan_device_name)
        optimizer = vkml.optim.SGD(model.parameters(), lr=0.1)

        @vkml.jit
        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return [
            step(*(vkml.tensor(each).to(vulkan_device_name) for each in batch)).item() for batch in batches
        ]

    with_barriers, waiting = both(run, monkeypatch)
    sure(recorded, 3)
    assert with_barriers == waiting


def test_profiles_have_barriers(
    vulkan_device_name: str,
    forced: None,
    recorded: list[list[Level]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Launches are timed one by one, between runs in which they wait by themselves."""
    monkeypatch.setattr(dependent_launches, "MOST_WAITING", 1 << 30)
    profile, timed = VulkanBound.profile, []

    def note(self: VulkanBound) -> Any:
        count = len(recorded)
        timed.append(profile(self))
        assert len(recorded) == count
        return timed[-1]

    monkeypatch.setattr(VulkanBound, "profile", note)
    feed = dict.fromkeys("xy", np.linspace(-1, 1, 1600, dtype=np.float32).reshape(40, 40))
    options = vkml.SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "profile"))
    data = random_graph(random.Random(1))
    with vkml.InferenceSession(data, options, devices=vulkan_device_name) as session:
        before, after = (session.run(None, feed) for _ in range(2))
    sure(recorded, 3)
    assert timed
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def in_vain(vulkan_device_name: str) -> Iterator[str]:
    """A program whose launches wait for a workgroup more than there is."""
    yield textwrap.dedent(
        f"""
        import logging, random, time
        import numpy as np
        import vkml
        from tests.engine.test_dependent_launches import random_graph
        from vkml.engine import dependent_launches
        from vkml.kernels import dependent_launch
        logging.basicConfig(format="LOG %(message)s")
        dependent_launch.forced = True
        dependent_launches.MOST_WAITING = 1 << 30
        dependent_launch.POLLS = 100
        dependencies = dependent_launches.Order.dependencies
        def one_more(self, counters):
            for number, (at, told) in enumerate(dependencies(self, counters)):
                wrong = told._replace(awaited=told.awaited + 1) if number == CHANGED else told
                yield at, wrong
        dependent_launches.Order.dependencies = one_more
        data = random_graph(random.Random(1))
        feed = dict.fromkeys("xy", np.linspace(-1, 1, 1600, dtype=np.float32).reshape(40, 40))
        with vkml.InferenceSession(data, devices="{vulkan_device_name}") as session:
            for _ in range(4):
                try:
                    made = session.run(None, feed)
                    print("RAN", [float(each.sum()) for each in made])
                except vkml.errors.DeviceError as error:
                    print("ERROR", error)
        dependent_launch.forced = False
        with vkml.InferenceSession(data, devices="{vulkan_device_name}") as session:
            print("RAN", [float(each.sum()) for each in session.run(None, feed)])
        """
    )


@pytest.mark.parametrize("changed", [1, 3])
def test_a_wait_in_vain_ends_and_is_said(in_vain: str, changed: int) -> None:
    """In a process of its own, for a driver may never come back from it."""
    program = in_vain.replace("CHANGED", str(changed))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("ERROR") and "waited too long" in lines[0]
    assert len(lines) == 5 and lines[1].startswith("RAN") and len(set(lines[1:])) == 1
    assert done.stderr.count("LOG") == 1 and "barriers" in done.stderr


@pytest.mark.parametrize("levels", [[1] * 2, [1] * 3, [1] * 4, [3] * 4, [1, 4, 2, 1, 3, 2, 5]], ids=str)
def test_many_orders_of_workgroups(levels: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last level is looked at while the first one of the same run has not ended."""
    found = told([(count,) for count in levels], 1000, monkeypatch)
    assert not any(level.has_barrier for level in found[1:])
    for seed in range(300):
        replay(found, random.Random(seed))


def test_phases_wait_before_the_first_one(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch, recorded: list[list[Level]]
) -> None:
    """Also where a later one is a product that would fetch its matrix first, and wait then."""
    monkeypatch.setattr(phases, "forced", 80)
    sources: list[str] = []
    compile_kernels = recorded_program.compile_kernels

    def note(device: Any, kernels: Any, *more: Any) -> Any:
        sources.extend(kernel.source for kernel in kernels if kernel.is_dependent)
        return compile_kernels(device, kernels, *more)

    monkeypatch.setattr(recorded_program, "compile_kernels", note)
    sketch = Sketch("phases", 17)
    generator = np.random.default_rng(2)
    first = sketch.constant(generator.standard_normal((40, 300), np.float32) / 8)
    value = sketch.node("MatMul", sketch.input("x", (4000, 40)), first)  # larger than a phase
    value = sketch.node("ReduceMax", value, axes=[0])
    for k, n in ((300, 260), (260, 300)):
        weights = sketch.constant(generator.standard_normal((k, n), np.float32) / 16)
        value = sketch.node("Softmax", sketch.node("MatMul", value, weights))
    data = save_graph(sketch.finish(value))
    x = generator.standard_normal((4000, 40), np.float32)

    def run() -> list[Array]:
        with vkml.InferenceSession(data, devices=vulkan_device_name) as session:
            return [session.run(None, {"x": x})[0] for _ in range(3)]

    with_barriers, waiting = both(run, monkeypatch)
    sure(recorded, 1)
    [merged] = [source for source in sources if PHASE in source and "WEIGHTS_FIRST = true" in source]
    code = [each.opcode for each in instructions(words_of(slang.compile_kernel(merged)))]
    # The entry point is the last function: it calls one that waits, the kernel's own and one that counts.
    last = len(code) - code[::-1].index(op.FUNCTION)
    assert code[last:].count(op.FUNCTION_CALL) == 3
    for before, after in zip(with_barriers, waiting, strict=True):
        np.testing.assert_array_equal(before, after)
