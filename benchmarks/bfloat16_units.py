"""``python -m benchmarks.bfloat16_units``: rates of the tiles of products in pieces of bfloat16.

Of each tile the multiply-adds of float32 that a multiprocessor does in a cycle: with as many workgroups as
fit, and with one. Beside them ordinary arithmetic. All kernels are compiled before one is timed, and the
clocks warmed.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

import vkml
from vkml.engine.devices import fragments_of
from vkml.engine.sketch import Sketch
from vkml.kernels import bfloat16_units, gemm, sliced
from vkml.kernels.bfloat16_units import Tile
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph
from vkml.vulkan import find_device

K = 2048
FULL = 2816, 3072
"""Rows and columns: whole waves of the largest tiles on 132 multiprocessors."""
ALONE = 11, 12
"""Tiles down and across: one a multiprocessor."""
ROUNDS = 12


@dataclass(frozen=True)
class Launch:
    """A product that is ready to be timed."""

    session: vkml.InferenceSession
    bound: Any
    multiply_adds: int

    def microseconds(self) -> float:
        """The least of some rounds."""
        times: list[float] = []
        for _ in range(ROUNDS):
            found = [ns for dispatch, ns in self.bound.profile() if dispatch.kernel.label == "matmul"]
            times.append(sum(found) / 1e3)
        return min(times)


def prepared(device: str, tile: Tile | None, rows: int, columns: int) -> Launch:
    """A product by a tile, or by ordinary arithmetic."""
    forget_lowerings()
    choice: Any = patch.object(bfloat16_units, "choose", lambda *_: None)
    if tile is not None:
        choice = patch.object(bfloat16_units, "forced", (tile, 1))
    random = np.random.default_rng(0)
    shapes = {"a": (rows, K), "b": (K, columns)}
    feed = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    sketch = Sketch("product")
    names = [sketch.input(name, shape) for name, shape in shapes.items()]
    with choice, patch.object(sliced, "choose", lambda *_: None):
        model = save_graph(sketch.finish(sketch.node("MatMul", *names)))
        assert model is not None
        session = vkml.InferenceSession(model, devices=device, precision="highest")
        session.run(None, feed)
    [plan] = session._runner.plans.kept.values()
    return Launch(session, plan.programs[0], rows * columns * K)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bfloat16_units", description=__doc__)
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--processors", type=int, default=132, help="multiprocessors of the device")
    options = parser.parse_args()
    device, processors = options.device, options.processors
    if not fragments_of(find_device(device, True), "bfloat16"):
        parser.error(f"{device} has no matrix units of bfloat16")
    ordinary = prepared(device, None, *FULL)
    tiles = [
        (tile, prepared(device, tile, *FULL), prepared(device, tile, ALONE[0] * tile.m, ALONE[1] * tile.n))
        for tile in bfloat16_units.TILES
    ]
    start = time.monotonic()
    while time.monotonic() - start < 1:
        ordinary.bound.profile()

    def rate(launch: Launch) -> str:
        time = launch.microseconds()
        cycle = launch.multiply_adds / time / gemm.CYCLES / processors
        return f"{time:8.1f} µs {2e-6 * launch.multiply_adds / time:6.1f} TFLOP/s {cycle:6.1f} a cycle"

    print(f"{rate(ordinary)}  ordinary arithmetic")
    for tile, full, alone in tiles:
        print(f"{rate(full)}, alone {rate(alone)}  {tile.label()}", flush=True)


if __name__ == "__main__":
    main()
