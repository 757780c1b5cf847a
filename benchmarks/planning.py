"""What planning costs: the time of a session's creation, by phase.

``python -m benchmarks.planning [--device NAME] [--nodes 100 1000] [--json]``. Models of about so many nodes,
of known shapes, are planned for the first time in a process whose device is open and whose caches on disk are
filled ("first session of a process"), and once more by a further session of it ("another session"). Figures
are those of the shortest of several sessions or processes.

"wall" is the time of planning less what drivers take to make pipelines; all other columns but "driver" are
CPU time of the threads that plan, which says more on a busy machine. "load" is the rest of the creation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import vkml
import vkml.onnx
from benchmarks.models import Network, Transformer
from vkml.cli.output import console, show_table, table
from vkml.ir.graph import Graph

DRIVER, LOAD, OTHER = "driver", "load", "other"
PHASES = (
    "specialise",
    "simplify",
    "refusals",
    "fuse",
    "cut",
    "lower",
    "code",
    "schedule",
    "memory plan",
    "bind",
    OTHER,
)
"""Of planning, in order."""
_FUNCTIONS = {
    "specialise": ("vkml.engine.planning.specialise", "vkml.engine.planning.settled"),
    "simplify": ("vkml.engine.planning.simplify", "vkml.engine.planning.remove_dead"),
    "refusals": ("vkml.engine.planning.place",),
    "fuse": ("vkml.engine.planning.fuse",),
    "cut": ("vkml.engine.planning.cut",),
    "lower": ("vkml.engine.planning.lower", "vkml.engine.planning.compile_cpu"),
    "code": (
        "vkml.engine.recorded.compile_kernels",
        "vkml.engine.compilation.compile_kernel",
        "vkml.lowering.native_builder.NativeBuilder.launch",
        "vkml.cpu.native.executable.Executable.__init__",
    ),
    "schedule": ("vkml.lowering.vulkan.schedule", "vkml.lowering.native.schedule"),
    "memory plan": (
        "vkml.lowering.vulkan.plan_memory",
        "vkml.lowering.native_step.plan_memory",
        "vkml.engine.recorded.plan_memory",
    ),
    "bind": ("vkml.engine.programs.VulkanBound.__init__", "vkml.lowering.native_step.NativeStep.__init__"),
    OTHER: ("vkml.engine.plan_cache.make_plan",),
    DRIVER: ("vkml.vulkan.pipelines.Pipelines._compile",),
}
"""Phase → functions that are it, but for what they call of other phases."""


def pointwise_chain(count: int) -> Graph:
    """Pointwise operators of several kinds; a matrix transposed every ten of them ends a group."""
    net = Network(f"pointwise_{count}")
    x = net.input("input", (16, 16))
    scale, shift = net.uniform(0.5, 1.0, 16), net.uniform(-1.0, 1.0, 16)
    for at in range(count):
        kind = at % 10
        if kind == 9:
            x = net.node("Transpose", x, perm=(1, 0))
        elif kind in (3, 6):
            x = net.node(("Tanh", "Sigmoid")[kind == 6], x)
        else:
            x = net.node(("Mul", "Add", "Sub")[kind % 3], x, scale if kind % 2 else shift)
    return net.finish(x)


def convolution_blocks(count: int) -> Graph:
    """Residual blocks of 3 × 3 and 1 × 1 convolutions; channels change every fourth block."""
    net = Network(f"convolutions_{count}")
    x, width = net.input("input", (1, 8, 8, 8)), 8
    for at in range(count // 6):
        target = 8 * (1 + at // 4 % 4)
        if target != width:
            x, width = net.convolution(x, (width, target), 1), target
        y = net.convolution(x, (width, width), 3, activation="relu")
        y = net.convolution(y, (width, width), 1, activation="relu")
        x = net.node("Relu", net.node("Add", x, y))
    return net.finish(x)


def transformer_layers(count: int) -> Graph:
    """Encoder blocks as exporters write them, of some 40 nodes each."""
    net, sizes = Network(f"transformer_{count}"), Transformer(1, 8, 16, 2, 32)
    x = net.input("input", (1, 8, 16))
    for _ in range(max(1, round(count / 35))):
        x = sizes.block(net, x, normalises_first=True)
    return net.finish(x)


MODELS: dict[str, Callable[[int], Graph]] = {
    "pointwise": pointwise_chain,
    "convolutions": convolution_blocks,
    "transformer": transformer_layers,
}
"""Name → builder of a model of about so many nodes."""


class _Clock:
    """CPU seconds of each phase, without those of phases inside, and wall seconds of drivers and planning."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = threading.local()
        self.start()

    def start(self) -> None:
        """Forgets everything."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.wall = 0.0
        """Seconds from beginning to end of planning, without those in which a thread was in the driver."""
        self._drivers = 0
        self._driver_since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside is of a phase, but what is of another inside of that."""
        started, used = time.perf_counter(), time.thread_time()
        if name == DRIVER:
            self._enter_driver()
        outer = getattr(self._threads, "inside", 0.0)
        self._threads.inside = 0.0
        try:
            yield
        finally:
            taken = time.thread_time() - used
            if name == DRIVER:
                self._leave_driver()
            with self._lock:
                if name != DRIVER:
                    self.seconds[name] += taken - self._threads.inside
                if name == OTHER:
                    self.wall += time.perf_counter() - started - self.seconds[DRIVER]
            self._threads.inside = outer + taken

    def _enter_driver(self) -> None:
        with self._lock:
            if not self._drivers:
                self._driver_since = time.perf_counter()
            self._drivers += 1

    def _leave_driver(self) -> None:
        with self._lock:
            self._drivers -= 1
            if not self._drivers:
                self.seconds[DRIVER] += time.perf_counter() - self._driver_since


def _watch(clock: _Clock) -> None:
    """Has the functions of all phases tell the clock."""
    import importlib

    for phase, places in _FUNCTIONS.items():
        for place in places:
            owner_path, name = place.rsplit(".", 1)
            try:
                owner: Any = importlib.import_module(owner_path)
            except ModuleNotFoundError:
                module, class_name = owner_path.rsplit(".", 1)
                owner = getattr(importlib.import_module(module), class_name)
            setattr(owner, name, _watched(clock, phase, getattr(owner, name)))


def _watched(clock: _Clock, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*arguments: Any, **named: Any) -> Any:
        with clock.phase(phase):
            return function(*arguments, **named)

    return watched


def measure(kind: str, nodes: int, device: str, sessions: int) -> dict[str, Any]:
    """Plans a model in several sessions of this process; figures of the first one and of the shortest other.

    Returns:
        ``nodes``, and for ``process`` and ``session`` each the seconds of each phase, of all of them that are
        planning (``plan``) and, on the wall, ``wall``.
    """
    graph = MODELS[kind](nodes)
    model = vkml.onnx.save_graph(graph)
    assert model is not None
    clock = _Clock()
    # The device and the modules that planning needs are there: a session of another model used them.
    small = vkml.onnx.save_graph(pointwise_chain(1))
    assert small is not None
    with vkml.InferenceSession(small, devices=device) as session:
        session.run(None, {"input": np.ones((16, 16), np.float32)})
        _watch(clock)
        found = [_planned(model, device, clock) for _ in range(1 + sessions)]
    return {"nodes": len(graph.nodes), "process": found[0], "session": _shortest(found[1:])}


def _shortest(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """The figures of the session that planned in the least CPU time, and the least wall time of all."""
    best = min(found, key=lambda figures: figures["plan"])
    return {**best, "wall": min(figures["wall"] for figures in found)}


def _planned(model: bytes, device: str, clock: _Clock) -> dict[str, float]:
    clock.start()
    with clock.phase(LOAD), vkml.InferenceSession(model, devices=device):
        pass
    return {**clock.seconds, "wall": clock.wall, "plan": sum(clock.seconds[name] for name in PHASES)}


def measure_in_processes(kind: str, nodes: int, device: str, sessions: int, processes: int) -> dict[str, Any]:
    """As `measure`, in several processes, the shortest of all; the first one only fills caches."""
    arguments = ["--device", device, "--sessions", str(sessions), "--only", kind, str(nodes)]
    found = []
    for _ in range(1 + processes):
        command = [sys.executable, "-m", "benchmarks.planning", *arguments]
        found.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    best = {which: _shortest([each[which] for each in found[1:]]) for which in ("process", "session")}
    return {"model": kind, "nodes": found[0]["nodes"], **best}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--sessions", type=int, default=3, help="in each process, besides the first")
    parser.add_argument("--processes", type=int, default=3, help="besides the one that fills caches")
    parser.add_argument("--json", action="store_true", help="figures in seconds instead of tables")
    parser.add_argument("--only", nargs=2, metavar=("MODEL", "NODES"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.only:
        figures = measure(options.only[0], int(options.only[1]), options.device, options.sessions)
        print(json.dumps(figures))
        return
    found = [
        measure_in_processes(kind, nodes, options.device, options.sessions, options.processes)
        for nodes in options.nodes
        for kind in options.models
    ]
    if options.json:
        print(json.dumps(found, indent=1))
        return
    out = console()
    for which, title in (("process", "first session of a process"), ("session", "another session")):
        columns = (LOAD, DRIVER, "wall", "plan", *PHASES)
        shown = table("model", "nodes", *columns)
        for each in found:
            times = [f"{1e3 * each[which].get(column, 0.0):.2f}" for column in columns]
            shown.add_row(each["model"], str(each["nodes"]), *times)
        show_table(out, shown, f"{title}, {options.device}, milliseconds")


if __name__ == "__main__":
    main()
