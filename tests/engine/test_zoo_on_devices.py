"""The benchmark models in small and others, cut over two devices and the CPU by memory, and at random."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from benchmarks.feeds import feed_of
from benchmarks.verify import TOLERANCE
from tests.benchmarks.test_small_models import SMALL
from tests.engine.device_models import DEVICE_MODELS
from tests.engine.test_device_assignments import plans_of
from vkml.engine import placement, planning
from vkml.ir import Graph
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
OTHERS = [name for name, model in DEVICE_MODELS.items() if model.is_whole]
"""The exact ones among them come out the same, bit for bit, wherever they are cut."""
ZOO = [name for name in SMALL if name != "chain_add"] + OTHERS
"""`chain_add` is optimised to a copy, which no node is left to make."""
HEAVY = ("resnet50", "vit_b16")
"""Of these the fewest and the most pieces are tried, and one random assignment: software takes long."""
PIECES = {2: (0, 1), 3: (0, 1, 2), 4: (0, 1, 2, 0), 5: (0, 1, 0, 1, 2), 6: (0, 1, 0, 1, 2, 0)}
"""Number of pieces → which of two GPUs and the CPU computes each stretch of nodes, in the graph's order."""
BY_MEMORY = {2: (0, 1), 3: (0, 1, 2), 4: (0, 1, 2), 5: (0, 2, 3, 4), 6: (0, 2, 3, 4)}
"""Stretches that memory limits alone send where they go; the others are assigned, and their memory counts."""


@pytest.fixture(scope="module")
def devices() -> list[str]:
    found = [device.name for device in vkml.devices(True) if device.name != "cpu"]
    if len(found) < 2:
        pytest.skip("fewer than two Vulkan devices on this machine")
    return [*found[:2], "cpu"]


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model's file; its results by onnxruntime and its plan's graph are kept as long as it is tested."""
    file = tmp_path_factory.mktemp("zoo") / f"{request.param}.onnx"
    if request.param in OTHERS:
        file.write_bytes(DEVICE_MODELS[request.param].make())
    else:
        save_graph(SMALL[request.param](), file)
    yield str(file)
    for each in (feed, wanted, planned, on_one_device):
        each.cache_clear()
    file.unlink()


@functools.cache
def feed(path: str) -> Mapping[str, Array]:
    model = DEVICE_MODELS.get(Path(path).stem)
    return feed_of(path) if model is None else model.feed(np.random.default_rng(0))


@functools.cache
def wanted(path: str) -> Sequence[Array]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, feed(path))  # type: ignore[no-any-return]


@functools.cache
def planned(path: str) -> Graph:
    """The graph as placement sees it."""
    seen: list[Graph] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            planning, "place", lambda graph, *rest: seen.append(graph) or placement.place(graph, *rest)
        )
        with vkml.InferenceSession(path, devices="cpu") as session:
            session.report()
    return seen[-1]


@functools.cache
def on_one_device(path: str, device: str) -> Sequence[Array]:
    with vkml.InferenceSession(path, devices=device, precision="highest") as session:
        return session.run(None, feed(path))


def check(session: vkml.InferenceSession, path: str, devices: Sequence[str]) -> None:
    """Two runs: bit for bit what the devices make alone where they agree, and what onnxruntime makes."""
    alone = [on_one_device(path, device) for device in devices]
    for _ in range(2):
        for number, found in enumerate(session.run(None, feed(path))):
            ones = [each[number] for each in alone]
            if all(each.tobytes() == ones[0].tobytes() for each in ones):
                assert found.tobytes() == ones[0].tobytes(), number
            exact = wanted(path)[number].astype(np.float64)
            assert found.shape == exact.shape
            assert np.linalg.norm(found - exact) <= TOLERANCE * np.linalg.norm(exact), number


@dataclass(frozen=True)
class Setting:
    """Arguments of a session that cut a graph into pieces."""

    devices: list[str]
    limits: dict[str, int]
    assigned: dict[str, str]


def setting_for(graph: Graph, devices: Sequence[str], count: int) -> Setting:
    """One that makes exactly so many pieces of a graph all of whose nodes run everywhere, found by trial."""
    rng, nodes, where = np.random.default_rng(count), graph.nodes, PIECES[count]
    used = [devices[number] for number in sorted(set(where))]
    for _ in range(2000):
        ends = [0, *sorted(rng.choice(np.arange(1, len(nodes)), count - 1, replace=False)), len(nodes)]
        parts = [nodes[low:high] for low, high in itertools.pairwise(ends)]
        held = {gpu: [n for at, p in enumerate(parts) if where[at] == gpu for n in p] for gpu in (0, 1)}
        limits = {devices[gpu]: placement._bytes(graph, mine) for gpu, mine in held.items()}
        if 2 not in where:
            del limits[devices[1]]  # it takes all that is left
        pinned = [at for at in range(count) if at not in BY_MEMORY[count]]
        assigned = {escape(n.name or n.key): devices[where[at]] for at in pinned for n in parts[at]}
        sites = tuple(SimpleNamespace(name=name, limit=limits.get(name)) for name in used if name != "cpu")
        tried = placement.Placement(sites, takes_cpu="cpu" in used, assigned=tuple(assigned.items()))
        wanted = placement._wanted(graph, tried, placement.Places())
        if len(placement.cut(graph, wanted)) == count and set(wanted.values()) == set(used):
            return Setting(used, limits, assigned)
    raise AssertionError(f"found no limits that make {count} pieces")


@pytest.mark.parametrize(
    ("path", "count"),
    [(name, count) for name in ZOO for count in ((2, 6) if name in HEAVY else PIECES)],
    indirect=["path"],
)
def test_memory_makes_pieces(devices: list[str], path: str, count: int) -> None:
    graph = planned(path)
    count = min(count, len(graph.nodes))
    made = setting_for(graph, devices, count)
    with vkml.InferenceSession(
        path,
        devices=made.devices,
        memory_limit=made.limits,
        placement=made.assigned or None,
        precision="highest",
    ) as session:
        check(session, path, made.devices)
        [plan] = plans_of(session)
        assert len(plan.programs) >= count  # more where a device has no kernel for a node
        assert {program.device for program in plan.programs} == set(made.devices)
        assert len(session.report().placement) == len(made.limits)


@pytest.mark.parametrize(
    ("path", "seed"),
    [(name, seed) for name in ZOO for seed in ((1,) if name in HEAVY else (1, 2))],
    indirect=["path"],
)
def test_random_devices(devices: list[str], path: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(Path(path).stem)])
    assigned, last = {}, devices[int(rng.integers(3))]
    for node in planned(path).nodes:
        if rng.random() < (0.1, 0.5)[seed % 2]:
            last = devices[int(rng.integers(3))]
        assigned[escape(node.name or node.key)] = last
    with vkml.InferenceSession(path, devices=devices, placement=assigned, precision="highest") as session:
        check(session, path, devices)
        [made] = plans_of(session)
        assert {program.device for program in made.programs} == set(assigned.values())
