"""``python -m benchmarks.attention_units``: attention on matrix units, beside PyTorch on CUDA."""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.attention_units.check import judge, make_data, make_reference
from benchmarks.attention_units.choose import candidates, choose
from benchmarks.attention_units.launch import Kernels, attention_launch, compute, make_operands
from benchmarks.attention_units.peers import MODES, torch_times
from benchmarks.attention_units.problems import LARGE, SUITES, Problem
from benchmarks.attention_units.variants import PUSH_BYTES, Variant, constants_of
from benchmarks.fragments import fragments_of
from benchmarks.launching import Burner, Launch, Timing, compile_all, time_chain
from benchmarks.matrix_units.ceilings import measure_ceilings
from benchmarks.matrix_units.statistics import statistics
from benchmarks.report import machine
from vkml.cli.output import console, show_table, table
from vkml.errors import Error
from vkml.vulkan import Device, find_device


@dataclass(frozen=True)
class Measured:
    """One variant on one problem."""

    variant: str
    seconds: float
    error: float
    is_right: bool
    failure: str = ""
    statistics: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One problem."""

    problem: Problem
    chosen: Measured
    others: tuple[Measured, ...] = ()
    peers: dict[str, tuple[float, float]] = field(default_factory=dict)


class Bench:
    """What the measurements of one run share."""

    def __init__(self, device: Device, seconds: float) -> None:
        self.device = device
        self.kernels = Kernels(device)
        fragments = fragments_of(device.info)
        if not fragments:
            raise SystemExit(f"{device.info} has no fp16 matrix units with fp32 sums")
        self.fragment = fragments[0]
        self.layouts = self.kernels.layouts(self.fragment)
        is_gpu = not device.info.is_software
        self.burner = self._burner() if is_gpu else None
        self.timing = Timing(seconds, 5, self.burner)
        scale = 1.0 if is_gpu else 0.001
        self.ceilings = measure_ceilings(device, self.fragment, self.burner, scale)

    def _burner(self) -> Burner:
        data = make_data(LARGE, 0)
        operands = make_operands(self.device, LARGE, data.q, data.k, data.v)
        variant = choose(LARGE, self.fragment, self.layouts)
        return Burner(self.device, attention_launch(self.kernels, variant, operands), operands.free)

    def measure(
        self, problem: Problem, seed: int, *, is_sweep: bool, has_peers: bool, has_statistics: bool
    ) -> Row:
        """Times the variant that the rule chooses, with `is_sweep` all others too."""
        data = make_data(problem, seed)
        reference = make_reference(data, seed)
        operands = make_operands(self.device, problem, data.q, data.k, data.v)
        variants = [choose(problem, self.fragment, self.layouts)]
        if is_sweep:
            others = candidates(problem, self.device.info, self.layouts)
            variants += [each for each in others if each != variants[0]]
        threads = os.cpu_count() or 1
        compile_all([partial(self.kernels.attention, each, problem) for each in variants], threads)
        found: dict[str, dict[str, int]] = {}
        if has_statistics:
            with ThreadPoolExecutor(threads) as pool:
                pairs = zip(variants, pool.map(partial(self._statistics, problem), variants), strict=True)
                found = {variant.label: each for variant, each in pairs}
        if self.burner is not None:
            self.burner.burn(0.2)
        rows = []
        for variant in variants:
            try:
                verdict = judge(data, reference, compute(self.kernels, variant, operands))
                launch = attention_launch(self.kernels, variant, operands)
                seconds = time_chain(self.device, partial(_always, launch), self.timing)
            except (Error, ValueError, RuntimeError) as error:
                rows.append(Measured(variant.label, float("inf"), 1.0, False, str(error)[:200]))
                continue
            rows.append(
                Measured(
                    variant.label,
                    seconds,
                    verdict.error,
                    verdict.is_right,
                    statistics=found.get(variant.label, {}),
                )
            )
        operands.free()
        peers = torch_times(data, reference, self.timing.seconds) if has_peers else {}
        return Row(problem, rows[0], tuple(sorted(rows[1:], key=lambda each: each.seconds)), peers)

    def _statistics(self, problem: Problem, variant: Variant) -> dict[str, int]:
        try:
            spirv = self.kernels.spirv(variant, problem)
            return statistics(self.device, spirv, constants_of(problem), PUSH_BYTES)
        except (Error, ValueError):
            return {}


def _always(launch: Launch, turn: int) -> list[Launch]:
    return [launch]


def show(row: Row, title: str) -> None:
    """Prints the variants of one problem, and the peers."""
    columns = ["µs", "TFLOP/s", "error", "registers", "spilled", "shared"]
    out = table("variant", *columns, right=columns)
    operations = row.problem.operations
    for each in (row.chosen, *row.others):
        figures = each.statistics
        spilled = figures.get("Local Memory Size")
        out.add_row(
            each.variant + ("" if each.is_right else " WRONG " + each.failure),
            f"{each.seconds * 1e6:.1f}",
            f"{operations / each.seconds / 1e12:.1f}",
            f"{each.error:.1e}",
            str(figures.get("Register Count", "")),
            "" if spilled is None else str(spilled & 0xFFFFFFFF),
            str(figures.get("Shared Memory Size", "")),
        )
    for mode in MODES:
        if mode in row.peers:
            seconds, error = row.peers[mode]
            rate = f"{operations / seconds / 1e12:.1f}"
            out.add_row(f"torch {mode}", f"{seconds * 1e6:.1f}", rate, f"{error:.1e}", "", "", "")
    show_table(console(), out, f"{row.problem.label}; {title}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_units", description=__doc__)
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--suites", nargs="+", default=list(SUITES), choices=list(SUITES), metavar="SUITE")
    parser.add_argument("--sweep", action="store_true", help="time every variant, not only the rule's choice")
    parser.add_argument("--peers", action="store_true", help="time PyTorch on CUDA too")
    parser.add_argument("--statistics", action="store_true", help="registers and spills, by the driver")
    parser.add_argument("--seconds", type=float, default=0.004, help="of one chain of launches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with Device(find_device(options.device)) as device:
        bench = Bench(device, options.seconds)
        title = f"{device.info}: unit {bench.ceilings.operations / 1e12:.0f} TFLOP/s"
        rows: list[Row] = []
        for problem in (each for name in options.suites for each in SUITES[name]):
            row = bench.measure(
                problem,
                options.seed,
                is_sweep=options.sweep,
                has_peers=options.peers,
                has_statistics=options.statistics,
            )
            show(row, title)
            rows.append(row)
            if options.json:
                content = {
                    "machine": machine(),
                    "ceilings": asdict(bench.ceilings),
                    "rows": [asdict(row) for row in rows],
                }
                options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
