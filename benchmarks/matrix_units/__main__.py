"""``python -m benchmarks.matrix_units``: products of fp32 tensors on matrix units, beside PyTorch on CUDA."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.launching import Timing, compile_all
from benchmarks.matrix_units.accuracy import KINDS, WAYS, measure_errors
from benchmarks.matrix_units.ceilings import Ceilings, measure_ceilings
from benchmarks.matrix_units.check import Data, Reference, judge, make_data, make_reference
from benchmarks.matrix_units.choose import candidates, choose, processors_of
from benchmarks.matrix_units.launch import (
    Kernels,
    compute,
    make_burner,
    make_operands,
    time_converting,
    time_product,
)
from benchmarks.matrix_units.peers import MODES, torch_times
from benchmarks.matrix_units.problems import SUITES, Problem
from benchmarks.report import machine
from vkml.cli.output import console, show_table, table
from vkml.engine.devices import fragments_of
from vkml.kernels.packed_weights import Fragment
from vkml.vulkan import Device, find_device


@dataclass(frozen=True)
class Measured:
    """One plan on one problem."""

    plan: str
    seconds: float
    """Of everything that runs for one product in a model."""
    converting_seconds: float
    """Of the pass before the product, part of `seconds`."""


@dataclass(frozen=True)
class Row:
    """One problem."""

    problem: Problem
    least_seconds: float
    chosen: Measured
    error: float
    is_right: bool
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
        self.fragment: Fragment = fragments[0]
        self.processors = processors_of(device.info)
        is_gpu = not device.info.is_software
        usual = choose(Problem("usual", 2048, 2048, 2048), self.fragment, self.processors)
        self.burner = make_burner(self.kernels, usual.variant) if is_gpu else None
        self.timing = Timing(seconds, 5, self.burner)
        self.ceilings: Ceilings = measure_ceilings(
            device, self.fragment, self.burner, 1.0 if is_gpu else 0.001
        )

    def measure(self, prepared: Prepared, *, is_sweep: bool, has_peers: bool) -> Row:
        """Times the plan that the rule chooses, with `is_sweep` all others too."""
        data, reference = prepared
        problem = data.problem
        operands = make_operands(self.device, problem, data.a, data.b, data.bias, is_cold=True)
        plans = [choose(problem, self.fragment, self.processors)]
        if is_sweep:
            others = candidates(problem, self.fragment, self.processors)
            plans += [plan for plan in others if plan != plans[0]]
        compile_all([partial(self.kernels.product, plan, problem) for plan in plans], os.cpu_count() or 1)
        verdict = judge(data, reference, compute(self.kernels, plans[0], operands))
        if self.burner is not None:
            self.burner.burn(0.2)
        found = []
        for plan in plans:
            converting = time_converting(self.kernels, plan, operands, self.timing)
            product = time_product(self.kernels, plan, operands, self.timing)
            found.append(Measured(plan.label, converting + product, converting))
        operands.free()
        peers: dict[str, tuple[float, float]] = {}
        if has_peers and not problem.is_a_half:
            peers = torch_times(problem, data, reference, self.timing.seconds)
        return Row(
            problem,
            self.ceilings.seconds(problem),
            found[0],
            verdict.error,
            verdict.is_right,
            tuple(sorted(found[1:], key=lambda each: each.seconds)),
            peers,
        )


Prepared = tuple[Data, Reference]


def prepare(problems: Sequence[Problem], seed: int) -> Iterator[Prepared]:
    """Each problem's data and reference, made while the one before is measured."""

    def make(problem: Problem) -> Prepared:
        data = make_data(problem, seed)
        return data, make_reference(data, seed)

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(make, problems[0])
        for problem in problems[1:]:
            done, following = following.result(), pool.submit(make, problem)
            yield done
        yield following.result()


def show(rows: Sequence[Row], title: str) -> None:
    """Prints the table."""
    columns = ["µs", "of it pass", "TFLOP/s", "of ceiling", "error"]
    is_sweep = any(row.others for row in rows)
    peers = [mode for mode in MODES if any(mode in row.peers for row in rows)]
    columns += (["best of all, µs"] if is_sweep else []) + [f"torch {mode}, µs" for mode in peers]
    out = table("problem", "m × n × k", "variant", *columns, right=columns)
    for row in rows:
        problem, chosen = row.problem, row.chosen
        batch = f"{problem.batch} × " if problem.batch > 1 else ""
        cells = [
            problem.label,
            f"{batch}{problem.m} × {problem.n} × {problem.k}",
            chosen.plan + ("" if row.is_right else " WRONG"),
            f"{chosen.seconds * 1e6:.1f}",
            f"{chosen.converting_seconds * 1e6:.1f}" if chosen.converting_seconds else "",
            f"{problem.operations / chosen.seconds / 1e12:.1f}",
            f"{100 * row.least_seconds / chosen.seconds:.0f} %",
            f"{row.error:.1e}",
        ]
        if is_sweep:
            best = min((chosen, *row.others), key=lambda each: each.seconds)
            cells.append(f"{best.seconds * 1e6:.1f} {best.plan}")
        cells += [f"{row.peers[mode][0] * 1e6:.1f}" if mode in row.peers else "" for mode in peers]
        out.add_row(*cells)
    show_table(console(), out, title)


def show_errors(bench: Bench, size: int, seed: int) -> dict[str, Any]:
    """Prints the errors on badly scaled data and returns them."""
    problem = Problem("accuracy", size, size, 4 * size)
    variant = choose(Problem("packed", 4096, 4096, 4096), bench.fragment, bench.processors).variant
    found = measure_errors(bench.kernels, variant, problem, seed)
    names = ["TF32", *WAYS]
    out = table("data", *names, right=names)
    for kind in KINDS:
        cells = [f"{found[kind][name].whole:.1e} / {found[kind][name].worst_row:.1e}" for name in names]
        out.add_row(kind, *cells)
    show_table(console(), out, f"relative L2 error / of the worst row, {size} × {size} × {4 * size}")
    return {kind: {name: asdict(each) for name, each in errors.items()} for kind, errors in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix_units", description=__doc__)
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--suites", nargs="+", default=list(SUITES), choices=list(SUITES), metavar="SUITE")
    parser.add_argument("--sweep", action="store_true", help="time every variant, not only the rule's choice")
    parser.add_argument("--peers", action="store_true", help="time PyTorch on CUDA too")
    parser.add_argument("--accuracy", action="store_true", help="errors on badly scaled data too")
    parser.add_argument("--seconds", type=float, default=0.002, help="of one chain of launches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with Device(find_device(options.device)) as device:
        bench = Bench(device, options.seconds)
        ceilings = bench.ceilings
        title = f"{device.info}: unit {ceilings.operations / 1e12:.0f} TFLOP/s, "
        title += f"memory {ceilings.bytes / 1e12:.2f} TB/s, {bench.processors} multiprocessors"
        rows: list[Row] = []
        errors = show_errors(bench, 256, options.seed) if options.accuracy else {}
        for name in options.suites:
            found = [
                bench.measure(prepared, is_sweep=options.sweep, has_peers=options.peers)
                for prepared in prepare(SUITES[name], options.seed)
            ]
            show(found, f"{name}; {title}")
            rows += found
            if options.json:
                content = {
                    "machine": machine(),
                    "ceilings": asdict(ceilings),
                    "rows": [asdict(row) for row in rows],
                    "errors": errors,
                }
                options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
