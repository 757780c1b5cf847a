"""Graphs of several devices are cut so that what others wait for leaves early, and run in a right order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.recording_notes import Notes
from vkml import Tensor, nn
from vkml.engine.overlap import LEAST_NODES, cut_for_overlap, stages, with_copies
from vkml.engine.plan import Plan
from vkml.engine.programs import VulkanBound
from vkml.engine.written_over import written_over
from vkml.ir import Graph, Node, TensorType, Value, dtypes

TYPE = TensorType(dtypes.FLOAT32, (64, 64))
BYTES = 64 * 64 * 4
LAYERS = 6
Pieces = Sequence[tuple[str, Any]]


class Sketched:
    """A graph of matrices whose nodes have devices; a value is called as what makes it."""

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self.device_of: dict[str, str] = {}

    def add(self, name: str, device: str, *inputs: str) -> str:
        self.nodes.append(Node("Sum", inputs, (name,), {}, name, version=13))
        self.device_of[name] = device
        return name

    def finish(self, outputs: Sequence[str]) -> Graph:
        values = {name: TYPE for node in self.nodes for name in (*node.inputs, *node.outputs)}
        given = tuple(Value(name, TYPE) for name in values if name not in self.device_of)
        made = tuple(Value(name, TYPE) for name in outputs)
        return Graph(given, made, tuple(self.nodes), {}, types=values)


def step() -> Sketched:
    """A training step of two devices: b's results go to a, gradients after them, and weights back to b."""
    sketch = Sketched()
    for device in "ab":
        sketch.add(f"{device}h0", device, f"x{device}")
        for layer in range(LAYERS):
            sketch.add(f"{device}h{layer + 1}", device, f"{device}h{layer}", f"{device}w{layer}")
    sketch.add("both", "a", f"ah{LAYERS}", f"bh{LAYERS}")
    for device in "ab":
        sketch.add(f"{device}d{LAYERS}", "a", "both")
    for device in "ba":
        for layer in reversed(range(LAYERS)):
            after = f"{device}d{layer + 1}"
            sketch.add(f"{device}g{layer}", device, after, f"{device}h{layer}")
            sketch.add(f"{device}d{layer}", device, after, f"{device}w{layer}")
    for layer in range(LAYERS):
        sketch.add(f"new{layer}", "a", f"ag{layer}", f"bg{layer}", f"aw{layer}")
    for layer in range(LAYERS):
        sketch.add(f"there{layer}", "b", f"new{layer}")
    return sketch


def numbers(graph: Graph, pieces: Pieces) -> dict[str, int]:
    """Value → number of the piece that makes it. Pieces make every value once, of what was made before."""
    made = {value.name: -1 for value in graph.inputs}
    for number, (_, piece) in enumerate(pieces):
        assert piece.nodes and all(name in made for name in piece.inputs)
        for node in piece.nodes:
            assert all(name in made for name in node.inputs) and made.keys().isdisjoint(node.outputs)
            made.update(dict.fromkeys(node.outputs, number))
    assert sum(len(piece.nodes) for _, piece in pieces) == len(graph.nodes)
    return made


def needed(pieces: Pieces, number: int) -> set[int]:
    """The pieces that have to run before one."""
    makers = {
        name: at for at, (_, piece) in enumerate(pieces) for node in piece.nodes for name in node.outputs
    }
    found: set[int] = set()
    stack = [number]
    while stack:
        for name in pieces[stack.pop()][1].inputs:
            at = makers.get(name, -1)
            if at >= 0 and at not in found:
                found.add(at)
                stack.append(at)
    return found


def cut_step(bucket_bytes: int) -> tuple[Graph, Pieces, dict[str, int]]:
    sketch = step()
    outputs = [f"{kind}{layer}" for kind in ("new", "there") for layer in range(LAYERS)]
    late = {f"{kind}{layer}" for kind in ("bg", "new") for layer in range(LAYERS)}
    graph, late = with_copies(sketch.finish(outputs), sketch.device_of, late, "cpu")
    pieces = cut_for_overlap(graph, sketch.device_of, late, bucket_bytes)
    return graph, pieces, numbers(graph, pieces)


def test_the_other_device_gets_its_part_of_the_loss_first() -> None:
    _, pieces, made = cut_step(100 * BYTES)
    assert made["bd6"] < made["ag5"] and needed(pieces, made["bg5"]).isdisjoint({made["ag5"], made["ad5"]})
    assert [device for device, _ in pieces] == ["a", "b", "a", "a", "b", "a", "b"]


def test_gradients_leave_in_buckets_in_the_order_in_which_they_are_made() -> None:
    _, pieces, made = cut_step(2 * BYTES)
    for device in "ab":
        found = [made[f"{device}g{layer}"] for layer in reversed(range(LAYERS))]
        assert found == sorted(found)
        assert [found.count(number) for number in sorted(set(found))] == [2, 2, 2]
    assert {pieces[made[f"bg{layer}"]][0] for layer in range(LAYERS)} == {"b"}


def test_buckets_are_made_use_of_while_the_next_are_made() -> None:
    """Weights of the last layers are new, and on b, before either device has the first ones' gradients."""
    _, pieces, made = cut_step(2 * BYTES)
    last = {made["bg0"], made["bg2"], made["ag0"], made["ag2"]}
    for layer in (5, 4):
        assert made[f"bg{layer}"] in needed(pieces, made[f"new{layer}"])
        assert needed(pieces, made[f"new{layer}"]).isdisjoint(last)
        assert needed(pieces, made[f"there{layer}"]).isdisjoint(last)
    assert made["bg1"] in needed(pieces, made["there1"])


def test_a_device_keeps_what_it_sends() -> None:
    """Weights that a writes where they lie, and that b reads, are sent by a copy; gradients are not kept."""
    graph, _, _ = cut_step(2 * BYTES)
    copies = [node for node in graph.nodes if node.op == "Identity"]
    assert [node.inputs for node in copies] == [(f"new{layer}",) for layer in range(LAYERS)]
    readers = {name: node for node in graph.nodes for name in node.inputs}
    assert all(readers[node.outputs[0]].key.startswith("there") for node in copies)


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_are_cut_into_an_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sketch, names = Sketched(), ["x"]
    for at in range(int(rng.integers(5, 80))):
        near = names[-int(rng.integers(2, 12)) :]
        inputs = [str(rng.choice(near)) for _ in range(int(rng.integers(1, 4)))]
        device = str(rng.choice(["a", "b", "cpu"])) if rng.random() < 0.3 else "a"
        names.append(sketch.add(f"v{at}", device, *inputs))
    outputs = sorted({*rng.choice(names[1:], 4), names[-1]})
    late = {name for name in names if rng.random() < 0.4}
    before = sketch.finish(outputs)
    graph, late = with_copies(before, sketch.device_of, late, "cpu")
    pieces = cut_for_overlap(graph, sketch.device_of, late, int(rng.integers(1, 5)) * BYTES)
    numbers(graph, pieces)
    for device, piece in pieces:
        assert {sketch.device_of[node.key] for node in piece.nodes} == {device}
    assert [value.name for value in graph.outputs] == outputs
    for node in graph.nodes:  # nobody but its maker reads a value for which there is a copy
        for name in node.inputs:
            if f"{name} for others" in sketch.device_of:
                assert sketch.device_of[name] == sketch.device_of[node.key]
    copied = {f"{name} for others": name for name in names}
    plain = [
        (node.key, tuple(copied.get(x, x) for x in node.inputs)) for node in graph.nodes if node.op == "Sum"
    ]
    assert plain == [(node.key, node.inputs) for node in before.nodes]


def test_few_nodes_that_nobody_waits_for_are_no_piece() -> None:
    for count in (LEAST_NODES - 1, LEAST_NODES):
        sketch = Sketched()
        sketch.add("sent", "a", "x")
        for at in range(count):
            sketch.add(f"rest{at}", "a", "x")
        sketch.add("end", "b", "sent")
        graph = sketch.finish(["end", *(f"rest{at}" for at in range(count))])
        pieces = cut_for_overlap(graph, sketch.device_of, set(), None)
        assert [device for device, _ in pieces] == (["a", "a", "b"] if count == LEAST_NODES else ["a", "b"])
        assert stages(graph, sketch.device_of)["end"] == 1


# --- what is written over an input --------------------------------------------------------------------------


def program(inputs: Sequence[str], outputs: Sequence[str]) -> VulkanBound:
    made = object.__new__(VulkanBound)
    nothing = SimpleNamespace(separate_levels=[], inputs={}, outputs={})
    made.__dict__.update(inputs=tuple(inputs), outputs=tuple(outputs), program=nothing)
    made.close = lambda: None  # type: ignore[method-assign]
    return made


def test_what_reads_a_weight_begins_before_it_is_written_over() -> None:
    programs = [
        program(["w"], ["h"]),
        program(["h", "w"], ["g"]),
        program(["g"], ["new"]),
        program(["w"], ["p"]),
    ]
    assert written_over(programs, [("w", "new")]) == ({("w", "new")}, [set(), set(), {0, 1, 3}, set()])


def test_what_needs_the_new_weight_and_the_old_one_keeps_both() -> None:
    programs = [program(["w"], ["new"]), program(["new", "w"], ["difference"])]
    assert written_over(programs, [("w", "new")]) == (frozenset(), [set(), set()])


def test_two_that_would_wait_for_each_other_are_not_both_written_over() -> None:
    programs = [program(["v"], ["w new"]), program(["w"], ["v new"])]
    found, behind = written_over(programs, [("w", "w new"), ("v", "v new")])
    assert found == {("w", "w new")} and behind == [{1}, set()]


# --- runs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """The plans that run, in their order."""
    found: list[Plan] = []
    run = Plan.run

    def noting(plan: Plan, *arguments: Any, **more: Any) -> Any:
        found.append(plan)
        return run(plan, *arguments, **more)

    monkeypatch.setattr(Plan, "run", noting)
    yield found
    found.clear()


def captured(
    devices: Sequence[str], momentum: float = 0.9
) -> tuple[Callable[[Any], Tensor], nn.DataParallel]:
    """A captured step of three layers, each a bucket."""
    vkml.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
    model = nn.DataParallel(layers.to(devices[0]), devices, bucket_cap_mb=1e-3)
    optimizer = vkml.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)

    @vkml.jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, model


def batch() -> Tensor:
    return vkml.tensor(np.linspace(-1, 1, 96, dtype=np.float32).reshape(6, 16))


@pytest.mark.parametrize("first", ["gpu", "cpu"])
def test_no_barrier_is_missing_between_programs_of_a_queue(
    vulkan_device_name: str, notes: Notes, first: str
) -> None:
    devices = [vulkan_device_name, "cpu"] if first == "gpu" else ["cpu", vulkan_device_name]
    step, _ = captured(devices)
    for _ in range(4):
        step(batch()).item()
    assert notes.dispatches


def test_programs_of_a_device_begin_behind_each_other(
    vulkan_device_name: str, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one makes for the next on its device stays there; the next is submitted before it has ended."""
    step, _ = captured([vulkan_device_name, "cpu"])
    for _ in range(3):
        step(batch()).item()
    events: list[tuple[str, VulkanBound]] = []
    for name in ("start", "finish"):
        act = getattr(VulkanBound, name)

        def noting(program: VulkanBound, *given: Any, act: Any = act, name: str = name) -> Any:
            events.append((name, program))
            return act(program, *given)

        monkeypatch.setattr(VulkanBound, name, noting)
    step(batch()).item()
    programs = [program for program in plans[-1].programs if isinstance(program, VulkanBound)]
    assert len(programs) >= 4 and len({id(program.queue) for program in programs}) == 1
    begun = {id(program): at for at, (name, program) in enumerate(events) if name == "start"}
    ended = {id(program): at for at, (name, program) in enumerate(events) if name == "finish"}
    assert len(begun) == len(ended) == len(programs)
    makers = {name: program for program in programs for name in program.outputs}
    ahead = [
        program
        for program in programs
        for name in program.inputs
        if name in makers and begun[id(program)] < ended[id(makers[name])]
    ]
    assert ahead


def test_parameters_are_written_where_they_lie(vulkan_device_name: str, plans: list[Plan]) -> None:
    """On the device of the module as on that of the replica, without a copy behind the run."""
    for devices in ([vulkan_device_name, "cpu"], ["cpu", vulkan_device_name]):
        step, model = captured(devices)
        for _ in range(3):
            step(batch()).item()
        [replicas] = model._replicas
        tensors = [mirror.tensor if devices[0] == "cpu" else mirror.master for mirror in replicas.mirrors()]
        before = [tensor.value.data.address for tensor in tensors]  # type: ignore[union-attr]
        step(batch()).item()
        assert [tensor.value.data.address for tensor in tensors] == before  # type: ignore[union-attr]
        plan = plans[-1]
        on_gpu = {name for name, device in plan.made_on.items() if device is not None}
        over = [pair for pair in plan.graph.donated if pair[1] in on_gpu]
        assert len(over) >= len(tensors) and plan.donated >= set(over)


def test_memory_stays_the_same(vulkan_device_name: str) -> None:
    step, model = captured([vulkan_device_name, "cpu"])
    device = next(iter(model.parameters())).value.device
    assert device is not None
    counts = []
    for number in range(200):
        step(batch()).item()
        if number in (20, 199):
            gc.collect()
            counts.append((device.live_allocations, device.allocated_bytes, len(gc.get_objects())))
    (allocations, size, objects), (*after, objects_after) = counts
    assert after == [allocations, size] and objects_after <= objects + 20
