"""``python -m benchmarks.growth``: what lengths never seen before leave behind: memory, plans, kernels.

A small decoder (`benchmarks.models.gpt_with_past`) takes tokens, each behind a past one longer than before,
through the host and with keys and values on the device. Lengths that come first, the longest of all among
them, make plans and kernels, and room. From then on nothing should grow: what is counted is the memory of
the process and of the device, without keys, values and results themselves.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vkml
from benchmarks.models import gpt_with_past
from benchmarks.report import machine
from vkml.cli.output import console, show_table, table
from vkml.cpu.native.assembler import Assembler
from vkml.engine import plan_cache
from vkml.engine.device_array import DeviceArray
from vkml.engine.devices import open_device
from vkml.engine.host_memory import LARGE_BYTES
from vkml.engine.ort_value import OrtValue
from vkml.ir import Graph
from vkml.onnx import save_graph
from vkml.vulkan.pipelines import Pipelines

Array = np.ndarray[Any, Any]
SETTLED = 10
"""Lengths behind which no kernel and no plan should be made."""


@dataclass(frozen=True)
class Growth:
    """From the tenth length on, to the last one."""

    device: str
    way: str
    lengths: int
    host_bytes: int
    """More of resident memory, at the last length than at any time before the half of them."""
    device_bytes: int
    """More allocated on the device, likewise."""
    made: dict[str, int]
    """Plans, pipelines and kernels of machine code made, by kind."""


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Counts what is made inside of the block."""
    made: Counter[str] = Counter()
    places = [(plan_cache, "make_plan", "plans"), (Pipelines, "_compile", "pipelines")]
    places.append((Assembler, "finish", "kernels"))
    kept = [getattr(owner, name) for owner, name, _ in places]

    def counted(act: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def instead(*given: Any, **more: Any) -> Any:
            made[kind] += 1
            return act(*given, **more)

        return instead

    for (owner, name, kind), act in zip(places, kept, strict=True):
        setattr(owner, name, counted(act, kind))
    try:
        yield made
    finally:
        for (owner, name, _), act in zip(places, kept, strict=True):
            setattr(owner, name, act)


def resident_bytes() -> int:
    """Memory of the process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class Decoder:
    """A session, and steps of it at any length.

    Args:
        graph: as `gpt_with_past` makes one.
        device: where it runs.
        longest: past of all.
        is_bound: whether keys and values stay on the device.
    """

    def __init__(self, graph: Graph, device: str, longest: int, is_bound: bool) -> None:
        model = save_graph(graph)
        assert model is not None
        self.session = vkml.InferenceSession(model, devices=device)
        self._is_bound = is_bound
        self._device = device
        self._past = [value for value in graph.inputs if value.name.startswith("past")]
        _, heads, _, each = self._past[0].tensor.shape or (0,) * 4
        assert isinstance(heads, int) and isinstance(each, int)
        self._heads, self._each = heads, each
        count = heads * each * longest
        self._memory = np.random.default_rng(0).standard_normal(count).astype(np.float32)
        self._token = np.array([[1]], np.int64)
        self._values: dict[str, Any] = {}
        self._before: list[Any] = []
        """Those of the step before, in whose memory the next step leaves its own."""
        self.result_bytes = 0
        """Of the last step's large results on the host, whose memory those of the next step take."""
        self._outputs = [value.name for value in self.session.get_outputs()]
        self._binding = self.session.io_binding()

    @property
    def value_bytes(self) -> int:
        """Of keys and values that lie on the device, those that were read and those that were made."""
        alive = [each.value for each in (*self._values.values(), *self._before)]
        return sum(value._memory.size for value in alive if isinstance(value, DeviceArray))

    def _past_of(self, length: int) -> Array:
        part = self._memory[: self._heads * length * self._each]
        return part.reshape(1, self._heads, length, self._each)

    def step(self, length: int) -> None:
        """A token behind so many."""
        if not self._is_bound:
            past = self._past_of(length)
            made = self.session.run(None, {"input_ids": self._token, **{v.name: past for v in self._past}})
            self.result_bytes = sum(array.nbytes for array in made if array.nbytes >= LARGE_BYTES)
            return
        binding, self._before = self._binding, []
        binding.bind_cpu_input("input_ids", self._token)
        if not self._values or next(iter(self._values.values())).shape()[2] != length:
            self._values.clear()
            place = self._device
            for value in self._past:
                self._values[value.name] = OrtValue.ortvalue_from_numpy(self._past_of(length), place)
        for name, value in self._values.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            binding.bind_output(name, "cpu" if name == "logits" else self._device)
        self.session.run_with_iobinding(binding)
        found = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        self._before = list(self._values.values())
        self._values = {value.name: found[value.name.replace("past", "present")] for value in self._past}


def grow(graph: Graph, device: str, first: int, last: int, is_bound: bool) -> Growth:
    """Steps at all lengths from `first` to `last`."""
    decoder = Decoder(graph, device, last, is_bound)
    on = None if device == "cpu" else open_device(vkml.vulkan.find_device(device, True))

    def held() -> tuple[int, int]:
        gc.collect()
        allocated = 0 if on is None else on.allocated_bytes
        # What a device copies results to counts as its own, too.
        copied = decoder.result_bytes if on is not None and on.imports_host else 0
        return resident_bytes() - decoder.result_bytes, allocated - decoder.value_bytes - copied

    with counting() as made:
        for length in (first, first + 1, last - 1, last, first, last):
            decoder.step(length)
        seen: list[tuple[int, int]] = []
        settled: Mapping[str, int] = {}
        every = max(1, (last - first) // 64)
        for number, length in enumerate(range(first, last + 1)):
            decoder.step(length)
            if number + 1 == SETTLED:
                settled = dict(made)
            if length % every == 0 or length == last:
                seen.append(held())
        half = seen[: len(seen) // 2]
        host, there = (max(each) for each in zip(*half, strict=True))
        later = {kind: count - settled.get(kind, 0) for kind, count in made.items()}
    decoder.session.close()
    way = "values on the device" if is_bound else "through the host"
    return Growth(device, way, last - first + 1, seen[-1][0] - host, seen[-1][1] - there, later)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", type=int, nargs=2, default=(100, 10_000), metavar=("FIRST", "LAST"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    first, last = options.lengths
    small = save_graph(gpt_with_past(blocks=1, width=8, heads=1))
    assert small is not None
    with vkml.InferenceSession(small, devices=options.device) as session:
        name = session.device
    ways = (False,) if name == "cpu" else (False, True)
    found = [grow(gpt_with_past(), name, first, last, is_bound) for is_bound in ways]
    columns = ("lengths", "host memory", "device memory", "made after the tenth")
    rows = table("device", "way", *columns, right=columns)
    for each in found:
        later = ", ".join(f"{count} {kind}" for kind, count in each.made.items() if count) or "nothing"
        memory = [f"{count / 2**20:+.1f} MiB" for count in (each.host_bytes, each.device_bytes)]
        rows.add_row(each.device, each.way, str(each.lengths), *memory, later)
    show_table(console(), rows, f"gpt_with_past: a past of {first} to {last}")
    if options.json:
        content = {"machine": machine(), "growth": [asdict(each) for each in found]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
