"""``python -m benchmarks.data``: items a second of loaders, beside PyTorch's of the same datasets."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import vkml
from benchmarks.report import machine
from vkml import nn, optim
from vkml.cli.output import console, show_table, table
from vkml.data import DataLoader, Dataset, ImageFolder, TensorDataset, placing
from vkml.ir.wording import duration

TURNS = 3
PICTURES, SIDE = 2000, 64
ROWS, WIDTH = 60_000, 784


class Items(Dataset[Any]):
    """Rows of an array, one by one: what a program writes in ``__getitem__``."""

    def __init__(self, count: int) -> None:
        self.rows = np.random.default_rng(0).random((count, WIDTH), np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], index % 10


def pictures(folder: Path, count: int, side: int) -> ImageFolder:
    """Pictures that do not compress to nothing, in ten folders, as a dataset of half their size."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / str(number % 10) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (side // 8, side // 8, 3), np.uint8)
        Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(path)
    return ImageFolder(folder, size=side // 2, normalize=(0.5, 0.25))


def _vkml(dataset: Any, batch: int, workers: int, device: str | None) -> Iterable[Any]:
    return DataLoader(dataset, batch, shuffle=True, num_workers=workers, device=device, drop_last=True)


def _torch(dataset: Any, batch: int, workers: int, _: str | None) -> Iterable[Any]:
    import torch.utils.data as peer

    if isinstance(dataset, TensorDataset):
        import torch

        dataset = peer.TensorDataset(*(torch.from_numpy(one.numpy()) for one in dataset.tensors))
    found: Iterable[Any] = peer.DataLoader(
        dataset, batch, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=workers > 0
    )
    return found


PEERS: dict[str, Callable[..., Iterable[Any]]] = {"vkml": _vkml, "torch": _torch}


def items_a_second(loader: Iterable[Any], batch: int) -> float:
    """Of one epoch, the beginning of its iteration included."""
    start, count = time.perf_counter(), 0
    for _ in loader:
        count += batch
    return count / (time.perf_counter() - start)


def measure(
    dataset: Any,
    batch: int,
    workers: Sequence[int],
    device: str | None,
    peers: Sequence[str],
    turns: int = TURNS,
) -> list[dict[str, Any]]:
    """Median items a second of each peer with each number of workers, measured in turns."""
    loaders = {
        (peer, count): PEERS[peer](dataset, batch, count, device) for peer in peers for count in workers
    }
    found: dict[tuple[str, int], list[float]] = {key: [] for key in loaders}
    for loader in loaders.values():
        items_a_second(loader, batch)  # workers begin, files are read for the first time
    for _ in range(turns):
        for key, loader in loaders.items():
            found[key].append(items_a_second(loader, batch))
    return [
        {"peer": peer, "workers": count, "items_per_second": round(statistics.median(rates))}
        for (peer, count), rates in found.items()
    ]


STEPS = {
    "64 x 784": (64, 784),
    "512 x 784": (512, 784),
    "2048 x 784": (2048, 784),
    "64 x 150528": (64, 150_528),
}
"""Sizes of batches that steps are timed with."""
WAYS = {"with the run": 1 << 60, "ahead": 0}
"""From how many bytes on a batch is written to the device ahead of its step."""


def step_seconds(rows: int, width: int, device: str, least: int, seconds: float = 1.0) -> float:
    """Median time of a captured step of a perceptron whose batches a loader brings, the loss read each time.

    Args:
        rows: of a batch.
        width: of a row.
        device: that trains.
        least: `placing.DIRECT_BYTES` meanwhile.
        seconds: to measure for.
    """
    model = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)

    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    captured = vkml.jit(step, device=device)
    count = max(2 * rows, min(ROWS, (256 << 20) // (4 * width)))
    features = vkml.tensor(np.random.default_rng(0).random((count, width), np.float32))
    data = TensorDataset(features, vkml.arange(count) % 10)
    before, placing.DIRECT_BYTES = placing.DIRECT_BYTES, least
    times: list[float] = []
    try:
        loader = DataLoader(data, rows, shuffle=True, num_workers=2, device=device, drop_last=True)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 8:
            start = time.perf_counter()
            for x, y in loader:
                captured(x, y).item()
                now = time.perf_counter()
                times.append(now - start)
                start = now
                if now >= end and len(times) >= 8:
                    break
    finally:
        placing.DIRECT_BYTES = before
    return statistics.median(times[len(times) // 4 :])


def show_steps(device: str, seconds: float) -> None:
    """Times steps whose batches come in either way; `placing.DIRECT_BYTES` should lie where they cross."""
    rows = table("batch", *WAYS, right=tuple(WAYS))
    for name, (count, width) in STEPS.items():
        found = [step_seconds(count, width, device, least, seconds) for least in WAYS.values()]
        rows.add_row(name, *(duration(one) for one in found))
    show_table(console(), rows, f"captured steps on {device}, batches of a loader with 2 workers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--device", help="where vkml's batches go, as in vulkan:0; the CPU where left out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", action="store_true", help="times training steps on the device instead")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each time of a step")
    options = parser.parse_args()
    if options.steps:
        show_steps(options.device or "cpu", options.seconds)
        return
    peers = ["vkml"]
    try:
        import torch

        torch.set_num_threads(1)
        peers.append("torch")
    except ImportError:
        pass
    results = []
    with tempfile.TemporaryDirectory() as folder:
        memory = TensorDataset(
            vkml.tensor(np.random.default_rng(0).random((ROWS, WIDTH), np.float32)), vkml.arange(ROWS) % 10
        )
        cases: dict[str, Any] = {
            f"tensors in memory, {ROWS} x {WIDTH}": memory,
            f"items in memory, {ROWS // 3} x {WIDTH}": Items(ROWS // 3),
            f"{PICTURES} PNG of {SIDE} x {SIDE}": pictures(Path(folder), PICTURES, SIDE),
        }
        for name, dataset in cases.items():
            measured = measure(dataset, options.batch, options.workers, options.device, peers)
            results += [{"case": name, **one} for one in measured]
    if options.json:
        print(json.dumps({"machine": machine(), "batch": options.batch, "results": results}, indent=2))
        return
    rows = table("case", "peer", "workers", "items/s", right=("workers", "items/s"))
    for one in results:
        rows.add_row(one["case"], one["peer"], str(one["workers"]), f"{one['items_per_second']:,}")
    show_table(console(), rows, f"batches of {options.batch}")


if __name__ == "__main__":
    main()
