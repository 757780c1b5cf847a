"""``python -m benchmarks.training``: training steps beside PyTorch's, data from the host, losses read.

Both begin with the same weights and see the same batches, in turns; the losses at the end are compared.
vkml's captured steps freeze what is not trained (`vkml.jit(freeze=True)`): something in LoRA's alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import vkml
from benchmarks.language_models import SMOLLM2_135M, lora
from benchmarks.measure import NotAvailable
from benchmarks.report import machine
from benchmarks.training_models import digits, perceptron, resnet18, transformer
from vkml import nn, optim
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration

Array = np.ndarray[Any, Any]
Step = Callable[[Array, Array], float]
"""Trains on a batch; returns the loss."""
BATCHES = 8
"""Different ones, again and again."""
WARM_UP = 8
TURN_SECONDS = 0.1
TOLERANCE = 1e-2
"""Relative difference of the losses from the first peer's behind all warm-up steps that goes unmarked."""


@dataclass(frozen=True)
class Case:
    """A model, an optimizer, and batches for them."""

    batch: int
    layers: Callable[[Any], Any]
    """The model of the layers of a package, vkml's or PyTorch's `nn`."""
    shape: tuple[int, ...]
    """Of one example."""
    classes: int
    optimizer: str
    settings: Mapping[str, Any]
    tokens: int = 0
    """Of the vocabulary, where examples are tokens, of which each has its class."""

    def batches(self) -> list[tuple[Array, Array]]:
        """Examples and their classes."""
        rng = np.random.default_rng(0)
        count = 1 if math.prod(self.shape) > 100_000 else BATCHES
        return [self._batch(rng) for _ in range(count)]

    def _batch(self, rng: np.random.Generator) -> tuple[Array, Array]:
        shape = (self.batch, *self.shape)
        if self.tokens:
            return rng.integers(0, self.tokens, shape), rng.integers(0, self.classes, math.prod(shape))
        return rng.standard_normal(shape, np.float32), rng.integers(0, self.classes, self.batch)


CASES = {
    **{f"mlp_b{batch}": Case(batch, perceptron, (784,), 10, "SGD", {"lr": 0.01}) for batch in (64, 512)},
    "digits_b64": Case(64, digits, (1, 8, 8), 10, "Adam", {"lr": 1e-3}),
    "resnet18_b64": Case(64, resnet18, (3, 224, 224), 1000, "SGD", {"lr": 0.01, "momentum": 0.9}),
    "transformer_b16": Case(16, transformer, (256,), 1000, "AdamW", {"lr": 1e-4}, tokens=1000),
    "lora_smollm2_135m": Case(
        1, lora, (512,), SMOLLM2_135M.vocabulary, "AdamW", {"lr": 2e-4}, tokens=SMOLLM2_135M.vocabulary
    ),
}


@dataclass
class Trained:
    """What was measured of a peer; times in seconds."""

    case: str
    peer: str
    device: str = ""
    first: float = 0.0
    """Of all warm-up steps."""
    steps: list[float] = field(default_factory=list)
    loss: float = 0.0
    """Behind the warm-up steps."""
    reason: str = ""

    @property
    def median(self) -> float:
        """Of a step."""
        return float(np.median(self.steps))


@functools.cache
def initial(name: str) -> dict[str, Array]:
    """The weights that all begin with, by their names, which both packages share."""
    vkml.manual_seed(0)
    return {name: value.numpy() for name, value in CASES[name].layers(nn).state_dict().items()}


def _learned(model: Any) -> list[Any]:
    """The parameters that are not frozen."""
    return [value for value in model.parameters() if value.requires_grad]


def vkml_step(name: str, device: str, is_captured: bool) -> Step:
    """vkml's, eager or captured."""
    case = CASES[name]
    model = case.layers(nn)
    model.load_state_dict({name: vkml.tensor(value) for name, value in initial(name).items()})
    model.to(device)
    optimizer = getattr(optim, case.optimizer)(_learned(model), **case.settings)
    loss_of = nn.CrossEntropyLoss()

    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss: vkml.Tensor = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if is_captured:
        captured = vkml.jit(step, device=device, freeze=True)
        return lambda x, y: float(captured(x, y).item())
    return lambda x, y: float(step(vkml.tensor(x, device=device), vkml.tensor(y, device=device)).item())


def torch_step(name: str, how: str) -> tuple[Step, str]:
    """PyTorch's: "eager", "compile", "graph" for a CUDA graph of the whole step, or "bf16"; and its device.

    The last has all weights in bfloat16, but scores and losses in float32.
    """
    try:
        import torch
    except ImportError:
        raise NotAvailable("torch is not installed") from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if how == "graph" and device == "cpu":
        raise NotAvailable("no CUDA")
    case = CASES[name]
    model = case.layers(torch.nn)
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in initial(name).items()})
    model.to(device, torch.bfloat16 if how == "bf16" else torch.float32)
    more = {"capturable": True} if how == "graph" and case.optimizer != "SGD" else {}
    optimizer = getattr(torch.optim, case.optimizer)(_learned(model), **case.settings, **more)
    loss_of = torch.nn.CrossEntropyLoss()

    def on_device(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=how != "graph")
        read = x.to(torch.bfloat16) if how == "bf16" and x.is_floating_point() else x
        loss = loss_of(model(read).float(), y)
        loss.backward()
        optimizer.step()
        return loss

    if how == "graph":
        return _torch_graph(torch, case, on_device), device
    act = torch.compile(on_device) if how == "compile" else on_device

    def step(x: Array, y: Array) -> float:
        given = torch.from_numpy(x), torch.from_numpy(y)
        return float(act(*(each.to(device) for each in given)).item())

    return step, device


def _torch_graph(torch: Any, case: Case, on_device: Callable[[Any, Any], Any]) -> Step:
    [(x, y), *_] = case.batches()
    held = torch.from_numpy(x).to("cuda"), torch.from_numpy(y).to("cuda")
    weights: Any = None

    def begin() -> Any:
        nonlocal weights
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                on_device(*held)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            weights = on_device(*held)
        return graph

    graph = begin()

    def step(x: Array, y: Array) -> float:
        held[0].copy_(torch.from_numpy(x))
        held[1].copy_(torch.from_numpy(y))
        graph.replay()
        return float(weights.item())

    return step


def set_precision(precision: str) -> None:
    """Has both packages multiply so exactly: PyTorch by TF32 but at "highest", convolutions, too."""
    vkml.set_float32_matmul_precision(precision)
    with contextlib.suppress(ImportError):
        import torch

        torch.set_float32_matmul_precision("highest" if precision == "highest" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "highest"


def measure(name: str, device: str, seconds: float, peers: Sequence[str]) -> list[Trained]:
    """Steps of every peer, in turns.

    Args:
        name: of the case.
        device: vkml's.
        seconds: for each peer.
        peers: their names.
    """
    case = CASES[name]
    batches = case.batches()
    found: list[Trained] = []
    steps: list[Step] = []
    for peer in peers:
        entry = Trained(name, peer)
        try:
            if peer.startswith("torch"):
                step, entry.device = torch_step(name, peer.partition("-")[2])
            else:
                step, entry.device = vkml_step(name, device, peer == "vkml-jit"), device
        except NotAvailable as error:
            entry.reason = str(error)
            found.append(entry)
            continue
        start = time.perf_counter()
        for number in range(WARM_UP):
            entry.loss = step(*batches[number % len(batches)])
        entry.first = time.perf_counter() - start
        found.append(entry)
        steps.append(step)
    there = [entry for entry in found if not entry.reason]
    while any(sum(entry.steps) < seconds for entry in there):
        for entry, step in zip(there, steps, strict=True):
            if entry.first < WARM_UP * TURN_SECONDS:
                for x, y in batches[:2]:
                    step(x, y)  # clocks and caches settle
            end = time.perf_counter() + TURN_SECONDS
            while (start := time.perf_counter()) < end:
                step(*batches[len(entry.steps) % len(batches)])
                entry.steps.append(time.perf_counter() - start)
    return found


def show(name: str, found: Sequence[Trained]) -> None:
    """The table of a case; the ratio is each peer's median over the first one's."""
    columns = ("step", "ratio", "warm-up", "steps", "loss")
    rows = table("peer", "device", *columns, right=columns)
    there = [entry for entry in found if not entry.reason]
    for entry in there:
        graph = entry.peer == "torch-graph"  # has trained on the first batch while it was captured
        differs = abs(entry.loss - there[0].loss) > TOLERANCE * abs(there[0].loss) and not graph
        rows.add_row(
            entry.peer,
            entry.device,
            duration(entry.median),
            f"{entry.median / there[0].median:.2f}×",
            duration(entry.first),
            str(len(entry.steps)),
            f"{entry.loss:.4f}{' (!)' if differs else ''}",
        )
    out = console()
    show_table(out, rows, name)
    for entry in found:
        if entry.reason:
            out.print(f"{entry.peer}: not available: {entry.reason}", markup=False, style="dim")
    out.print()


PEERS = ("vkml-jit", "vkml-eager", "torch-eager", "torch-compile", "torch-graph", "torch-bf16")


def main() -> None:
    """Prints a table a case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--device", default=vkml.devices()[0].name)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS, metavar="PEER")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each peer")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--precision", choices=("highest", "high", "medium"), default="highest",
        help="of products; PyTorch's TF32 from high on",
    )  # fmt: skip
    options = parser.parse_args()
    set_precision(options.precision)
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    everything = []
    for name in options.cases or CASES:
        found = measure(name, options.device, options.seconds, options.peers)
        show(name, found)
        everything += found
    if options.json:
        entries = [
            {**asdict(entry), "steps": len(entry.steps), "median": entry.steps and entry.median}
            for entry in everything
        ]
        options.json.write_text(json.dumps({"machine": machine(), "training": entries}, indent=1) + "\n")


if __name__ == "__main__":
    main()
