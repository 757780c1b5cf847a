"""``python -m benchmarks.pieces``: products of float32 in pieces on matrix units, tile by tile.

Of each tile the rate with as many workgroups as fit, what the launches that make pieces take before, and the
error against float64; beside them ordinary arithmetic. All kernels are compiled before one is timed, and the
clocks warmed.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

import vkml
from vkml.cli.output import console, show_table, table
from vkml.engine.devices import fragments_of
from vkml.engine.sketch import Sketch
from vkml.ir.wording import counted
from vkml.kernels import bfloat16_units, matrix_tiles, sliced, split_product
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph
from vkml.vulkan import find_device

DEFAULT_SIZE = 2816, 3072, 2048
"""M, N and K: whole waves of the largest tiles on 132 multiprocessors."""
ROUNDS = 8
WARM_SECONDS = 1.5
CHECKED_ROWS = 64

COLUMNS = "µs", "TFLOP/s", "pieces, µs", "TFLOP/s of all", "error"

AnyTile = bfloat16_units.Tile | matrix_tiles.Tile


@dataclass(frozen=True)
class Product:
    """A product that is ready to be timed."""

    label: str
    session: vkml.InferenceSession
    bound: Any
    size: tuple[int, int, int]
    error: float
    """Relative L2 of some rows, against float64."""

    def microseconds(self) -> tuple[float, float]:
        """Of the product and what adds up its parts, and of what comes before; the fastest of some rounds."""
        best = (np.inf, 0.0)
        for _ in range(ROUNDS):
            found, before = 0.0, 0.0
            for dispatch, nanoseconds in self.bound.profile():
                if dispatch.kernel.label in ("matmul", "add_partials"):
                    found += nanoseconds / 1e3
                else:
                    before += nanoseconds / 1e3
            best = min(best, (found, before))
        return best


@contextlib.contextmanager
def taken(tile: AnyTile | None, splits: int) -> Iterator[None]:
    """Has products be computed by a tile in so many ranges of K, or by ordinary arithmetic."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(sliced, "choose", lambda *_: None))
        for kernel, kind in ((bfloat16_units, bfloat16_units.Tile), (split_product, matrix_tiles.Tile)):
            if isinstance(tile, kind):
                stack.enter_context(patch.object(kernel, "forced", (tile, splits)))
            else:
                stack.enter_context(patch.object(kernel, "choose", lambda *_, **__: None))
        yield


def prepared(device: str, tile: AnyTile | None, size: tuple[int, int, int], splits: int = 1) -> Product:
    """A product of normal numbers by a tile, or by ordinary arithmetic."""
    m, n, k = size
    forget_lowerings()
    random = np.random.default_rng(0)
    shapes = {"a": (m, k), "b": (k, n)}
    feed = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    sketch = Sketch("product")
    names = [sketch.input(name, shape) for name, shape in shapes.items()]
    model = save_graph(sketch.finish(sketch.node("MatMul", *names)))
    assert model is not None
    with taken(tile, splits):
        session = vkml.InferenceSession(model, devices=device, precision="highest")
        [found] = session.run(None, feed)
    rows = random.choice(m, min(m, CHECKED_ROWS), replace=False)
    exact = feed["a"][rows].astype(np.float64) @ feed["b"].astype(np.float64)
    error = float(np.linalg.norm(found[rows] - exact) / np.linalg.norm(exact))
    [plan] = session._runner.plans.kept.values()
    label = "ordinary arithmetic" if tile is None else tile.label()
    if isinstance(tile, matrix_tiles.Tile):
        label = f"{counted(tile.pieces, 'piece')} of scaled fp16, {label}"
    return Product(label, session, plan.programs[0], size, error)


def tiles_of(device: str) -> list[AnyTile]:
    """Those of the kernels that the device has units for."""
    info = find_device(device, True)
    tiles: list[AnyTile] = []
    if fragments_of(info):
        tiles += split_product.TILES
    if fragments_of(info, "bfloat16"):
        tiles += bfloat16_units.TILES
    return tiles


def show(products: Sequence[Product]) -> None:
    """Times products and prints a line for each."""
    lines = table("product", "size", *COLUMNS, right=COLUMNS)
    for product in products:
        found, before = product.microseconds()
        m, n, k = product.size
        rate, whole = (2e-6 * m * n * k / microseconds for microseconds in (found, found + before))
        lines.add_row(
            product.label.removeprefix("matrix units, "),
            f"{m}x{n}x{k}",
            f"{found:.1f}",
            f"{rate:.1f}",
            f"{before:.1f}",
            f"{whole:.1f}",
            f"{product.error:.1e}",
        )
    show_table(console(), lines)


def _size(text: str) -> tuple[int, int, int]:
    m, n, k = (int(number) for number in text.split("x"))
    return m, n, k


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pieces", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=_size, metavar="MxNxK", help="2816x3072x2048 by default")
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--splits", type=int, default=1, help="ranges of K")
    options = parser.parse_args()
    tiles = tiles_of(options.device)
    if not tiles:
        parser.error(f"{options.device} has no matrix units for pieces")
    products = [
        prepared(options.device, tile, size, options.splits)
        for size in options.sizes or [DEFAULT_SIZE]
        for tile in (None, *tiles)
    ]
    start = time.monotonic()
    while time.monotonic() - start < WARM_SECONDS:
        products[0].bound.profile()
    show(products)


if __name__ == "__main__":
    main()
