"""``python -m benchmarks.conv_units [--layers] [--models] [--sweep SECONDS]``: µs and TFLOP/s of every layer.

A layer's time is from timestamps between levels: its barrier and the second pass of a split sum included.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import vkml
from benchmarks.conv_units.layers import SETS, Layer, graph, kernel_of
from benchmarks.feeds import feed_of
from benchmarks.matrix_units.statistics import statistics
from benchmarks.models import model_file
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.kernels import conv_units, halo_tiles, halo_units, matrix_units
from vkml.kernels.compiling import compile_kernel
from vkml.kernels.matrix_tiles import Choice, Tile
from vkml.kernels.packed_weights import Fragment
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
MORE_TILES = (
    Tile(64, 64, 4, 1, 32, 2, 1.0, 1.0),
    Tile(64, 64, 2, 1, 32, 2, 1.0, 1.0),
    Tile(64, 32, 4, 1, 64, 4, 1.0, 1.0),
    Tile(64, 16, 4, 1, 64, 4, 1.0, 1.0),
    Tile(64, 16, 2, 2, 64, 4, 1.0, 1.0),
    Tile(32, 64, 4, 1, 64, 2, 1.0, 1.0),
    Tile(32, 32, 1, 4, 64, 4, 1.0, 1.0),
)
"""Tried beside those that the rule has."""
MORE_HALO_TILES = (
    halo_tiles.Tile(2, 32, 4, 1, 2, 16, 2, 3),
    halo_tiles.Tile(4, 64, 2, 1, 1, 16, 2, 3),
    halo_tiles.Tile(4, 64, 1, 4, 0, 16, 2, 3),
)
"""The same for tiles whose pixels come to shared memory once."""
RANGES = {
    "resnet50_b1": (1, 4, 8),
    "resnet50_b32": (1, 4),
    "unet_256": (1, 2),
    "conv_many_255MB": (1, 4, 8, 16),
}
"""Of K, for sweeps."""


@contextmanager
def planning(choice: Choice | halo_tiles.Choice | None = None, *, is_strict: bool = False) -> Iterator[None]:
    """Plans made inside have convolutions as chosen, as the rule says, or strict ones."""
    forget_lowerings()
    left_out = {conv_units, halo_units} if is_strict else set()
    if isinstance(choice, halo_tiles.Choice):
        halo_units.forced = choice
    elif choice is not None:
        matrix_units.forced = choice
    try:
        with ExitStack() as patches:
            for module in left_out:
                patches.enter_context(mock.patch.object(module, "refusal", _left_out))
            yield
    finally:
        matrix_units.forced = halo_units.forced = None
        forget_lowerings()


def _left_out(*operands: Any, **settings: Any) -> str:
    return "left out"


@dataclass(frozen=True)
class Timed:
    """One layer's run."""

    microseconds: float
    variant: str
    means: Array
    """Of each image and filter of the result."""

    def error(self, exact: Timed) -> float:
        """Relative L2 difference of the means."""
        return float(np.linalg.norm(self.means - exact.means) / np.linalg.norm(exact.means))


def run_layers(layers: tuple[Layer, ...], device: str, heater: Heater, runs: int = 15) -> list[Timed]:
    """Runs all layers some times."""
    model = _model(layers)
    options = vkml.SessionOptions(enable_profiling=True)
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "trace")
        with (
            vkml.InferenceSession(model, devices=device) as busy,
            vkml.InferenceSession(model, options, devices=device) as session,
        ):
            feed = {"x": np.zeros(1, np.float32)}
            busy.run(None, feed)
            with heater.paused():
                until = time.perf_counter() + 0.05
                for _ in range(runs):
                    while time.perf_counter() < until:
                        busy.run(None, feed)
                    means = session.run(None, feed)
                    until = time.perf_counter() + 0.01
            steps = session.report().steps
            events = json.loads(Path(session.end_profiling()).read_text())
    convs = [step for step in steps if step.kernel in ("conv", "add_partials")]
    nodes = list(dict.fromkeys(step.nodes for step in convs))
    variants = {step.nodes: step.variant for step in reversed(convs)}
    totals: list[dict[str, float]] = []
    for event in events:
        if event["cat"] == "Session":
            totals.append({})
        else:
            totals[-1][event["name"]] = totals[-1].get(event["name"], 0.0) + event["dur"]
    assert len(nodes) == len(layers), (len(nodes), len(layers))
    late = totals[len(totals) // 2 :]
    times = [float(np.median([total[_text(node)] for total in late])) for node in nodes]
    return [
        Timed(time_, variants[node], found.astype(np.float64))
        for time_, node, found in zip(times, nodes, means, strict=True)
    ]


class Heater:
    """A process that keeps the GPU busy: an idle one lowers its clocks and is slow for half a second."""

    def __init__(self, device: str) -> None:
        command = [sys.executable, "-m", "benchmarks.conv_units", "--device", device, "--heat"]
        self._process = subprocess.Popen(command)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing else runs inside."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def heat(device: str) -> None:
    """Runs a convolution for as long as the process that began this one lives."""
    parent = os.getppid()
    with vkml.InferenceSession(_model((Layer(8, 256, 256, 56),)), devices=device) as session:
        while os.getppid() == parent:
            session.run(None, {"x": np.zeros(1, np.float32)})


@functools.cache
def _model(layers: tuple[Layer, ...]) -> bytes:
    model = save_graph(graph(layers))
    assert model is not None
    return model


def _text(nodes: Any) -> str:
    return nodes if isinstance(nodes, str) else ", ".join(nodes)


def compare(name: str, device: str, heater: Heater) -> None:
    """The rule's choice beside strict arithmetic."""
    layers = SETS[name]
    found = run_layers(layers, device, heater)
    with planning(is_strict=True):
        strict = run_layers(layers, device, heater)
    totals = np.zeros(2)
    for layer, units, plain in zip(layers, found, strict, strict=True):
        rate = layer.operations / units.microseconds * 1e-6
        totals += np.array([units.microseconds, plain.microseconds]) * layer.count
        figures = f"{units.microseconds:7.1f} µs {rate:5.0f} TFLOP/s, strict {plain.microseconds:7.1f}"
        print(f"{layer.label:28} ×{layer.count} {figures}, {units.error(plain):.0e}; {units.variant}")
    print(f"{name}: {totals[0]:.0f} µs, strict {totals[1]:.0f}", flush=True)


def sweep(name: str, device: str, heater: Heater, until: float) -> None:
    """Every tile and some ranges of K; one line a layer and variant."""
    layers = SETS[name]
    fragment = device_registry.target_of(vulkan.find_device(device, True)).fragment
    assert fragment is not None, f"{device} has no matrix units"
    with planning(is_strict=True):
        strict = run_layers(layers, device, heater)
    for choice in _all_choices(name, fragment):
        if time.perf_counter() > until:
            print("out of time", flush=True)
            return
        try:
            with planning(choice):
                found = run_layers(layers, device, heater, 7)
        except Exception as problem:
            print(f"{name} {choice.label()}: {type(problem).__name__} {str(problem)[:200]}", flush=True)
            continue
        worst = max(one.error(other) for one, other in zip(found, strict, strict=True))
        # Layers that the choice is not for are computed otherwise.
        times = " ".join(
            f"{each.microseconds:.1f}" if each.variant == choice.label() else "-" for each in found
        )
        print(f"{name} {choice.label()}: {times} {worst:.0e}", flush=True)


def _all_choices(name: str, fragment: Fragment) -> Iterator[Choice | halo_tiles.Choice]:
    for splits in RANGES[name]:
        for halo_tile in (*halo_tiles.TILES, *MORE_HALO_TILES):
            yield halo_tiles.Choice(halo_tile, splits)
        for tile in (*conv_units.TILES, *MORE_TILES):
            if conv_units.fits(tile, fragment):
                yield Choice(tile, splits)


def print_statistics(device: str) -> None:
    """Registers and spilled bytes of every tile, for a 3×3 and a 1×1 convolution."""
    info = vulkan.find_device(device, True)
    opened, target = device_registry.open_device(info), device_registry.target_of(info)
    assert target.fragment is not None, f"{device} has no matrix units"
    for choice in _all_choices("resnet50_b32", target.fragment):
        if choice.splits > 1:
            break
        for layer in (Layer(8, 256, 256, 28), Layer(8, 256, 256, 28, 1)):
            with planning(choice):
                kernel = kernel_of(layer, target)
            if kernel.variant != choice.label():
                continue
            spirv = compile_kernel(kernel.source, kernel.label)
            found = statistics(opened, spirv, kernel.constants, kernel.push_bytes)
            figures = ", ".join(f"{name} {value & 0xFFFFFFFF}" for name, value in found.items())
            print(f"{choice.label()}, {layer.kernel}×{layer.kernel}: {figures}", flush=True)


def whole_model(name: str, device: str, seconds: float) -> None:
    """From host to host, in turns, and how far the results lie apart."""
    path = os.fspath(model_file(name))
    feed = feed_of(path)
    sessions: dict[bool, Any] = {}
    results: dict[bool, Any] = {}
    times: dict[bool, list[float]] = {False: [], True: []}
    for is_strict in (False, True):
        with planning(is_strict=is_strict):
            sessions[is_strict] = vkml.InferenceSession(path, devices=device)
            results[is_strict] = sessions[is_strict].run(None, feed)[0]
    with vkml.InferenceSession(path, devices=device, precision="highest") as session:
        exact = session.run(None, feed)[0].astype(np.float64)
    until = time.perf_counter() + 2 * seconds
    while time.perf_counter() < until:
        for is_strict, session in sessions.items():
            for _ in range(5):
                started = time.perf_counter()
                session.run(None, feed)
                times[is_strict].append(time.perf_counter() - started)
    for session in sessions.values():
        session.close()
    units, plain = (1e3 * float(np.median(times[key])) for key in (False, True))
    gap = np.linalg.norm(results[False] - exact) / np.linalg.norm(exact)
    print(
        f"{name}: {units:.3f} ms, convolutions strict {plain:.3f} ms; relative L2 difference {gap:.1e}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conv_units", description=__doc__)
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--layers", action="store_true", help="every layer, beside strict arithmetic")
    parser.add_argument("--models", action="store_true", help="whole models, host to host")
    parser.add_argument("--sweep", type=float, default=0.0, metavar="SECONDS", help="every tile, for so long")
    parser.add_argument("--statistics", action="store_true", help="registers of every tile")
    parser.add_argument("--heat", action="store_true", help="only keep the device busy")
    given = parser.parse_args()
    if given.statistics:
        print_statistics(given.device)
    if given.heat:
        heat(given.device)
    heater = Heater(given.device)
    try:
        for name in given.sets if given.layers else ():
            compare(name, given.device, heater)
        until = time.perf_counter() + given.sweep
        for name in given.sets if given.sweep else ():
            sweep(name, given.device, heater, until)
    finally:
        heater.close()
    for name in given.sets if given.models else ():
        whole_model(name, given.device, 1.0)


if __name__ == "__main__":
    main()
