"""``python -m benchmarks.attention_units``: attention on matrix units, beside PyTorch on CUDA."""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.attention_units.check import (
    GradientErrors,
    judge,
    judge_gradients,
    make_data,
    make_float_data,
    make_reference,
)
from benchmarks.attention_units.choose import candidates, choose, choose_backward
from benchmarks.attention_units.fused import MODELS, Pair, measure_layer, measure_model
from benchmarks.attention_units.launch import (
    Kernels,
    attention_dispatches,
    attention_launches,
    backward_launches,
    compute,
    compute_gradients,
    make_operands,
)
from benchmarks.attention_units.peers import MODES, torch_backward_times, torch_times
from benchmarks.attention_units.problems import LARGE, SUITES, Problem
from benchmarks.launching import Burner, Launch, Timing, compile_all, time_chain
from benchmarks.matrix_units.ceilings import measure_ceilings
from benchmarks.matrix_units.choose import processors_of
from benchmarks.matrix_units.statistics import statistics
from benchmarks.report import machine
from vkml.cli.output import console, show_table, table
from vkml.engine.devices import fragments_of
from vkml.errors import Error
from vkml.ir.dtypes import FLOAT16
from vkml.ir.wording import duration
from vkml.kernels.attention_variants import Variant
from vkml.kernels.compiling import compile_kernel
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
class MeasuredBackward:
    """The gradients of one problem."""

    variants: tuple[str, str]
    operands_seconds: float
    queries_seconds: float
    keys_seconds: float
    errors: GradientErrors
    peers: dict[str, float]

    @property
    def seconds(self) -> float:
        return self.operands_seconds + self.queries_seconds + self.keys_seconds


@dataclass(frozen=True)
class MeasuredFloats:
    """The attention of one problem's tensors in fp32."""

    variant: str
    seconds: float
    """Without the pass."""
    halving_seconds: float
    """Of the pass that brings keys and values to fp16."""
    error: float
    is_right: bool


@dataclass(frozen=True)
class Row:
    """One problem."""

    problem: Problem
    chosen: Measured
    others: tuple[Measured, ...] = ()
    peers: dict[str, tuple[float, float]] = field(default_factory=dict)
    backward: MeasuredBackward | None = None
    floats: MeasuredFloats | None = None


class Bench:
    """What the measurements of one run share."""

    def __init__(self, device: Device, seconds: float) -> None:
        self.device = device
        self.kernels = Kernels(device)
        fragments = fragments_of(device.info)
        if not fragments:
            raise SystemExit(f"{device.info} has no fp16 matrix units with fp32 sums")
        self.fragments = fragments
        self.processors = processors_of(device.info)
        is_gpu = not device.info.is_software
        self.burner = self._burner() if is_gpu else None
        self.timing = Timing(seconds, 5, self.burner)
        scale = 1.0 if is_gpu else 0.001
        self.ceilings = measure_ceilings(device, fragments[0], self.burner, scale)

    def _burner(self) -> Burner:
        data = make_data(LARGE, 0)
        operands = make_operands(self.device, LARGE, data.q, data.k, data.v)
        variant = choose(LARGE, self.fragments, self.processors)
        [launch] = attention_launches(self.kernels, variant, operands)
        return Burner(self.device, launch, operands.free)

    def measure(
        self, problem: Problem, seed: int, *, is_sweep: bool, has_peers: bool, has_statistics: bool
    ) -> Row:
        """Times the variant that the rule chooses, with `is_sweep` all others too."""
        data = make_data(problem, seed)
        reference = make_reference(data, seed)
        operands = make_operands(self.device, problem, data.q, data.k, data.v)
        variants = [choose(problem, self.fragments, self.processors)]
        if is_sweep:
            others = candidates(problem, self.device.info, self.processors)
            variants += [each for each in others if each != variants[0]]
        threads = os.cpu_count() or 1
        compile_all([partial(attention_launches, self.kernels, each, operands) for each in variants], threads)
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
                [launch] = attention_launches(self.kernels, variant, operands)
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

    def measure_backward(self, problem: Problem, seed: int, *, has_peers: bool) -> MeasuredBackward:
        """Times the gradients; those of the last head of keys are compared with float64."""
        data = make_data(problem, seed)
        generator = np.random.default_rng(seed)
        d_out = generator.standard_normal(data.q.shape, np.float32).astype(np.float16)
        operands = make_operands(self.device, problem, data.q, data.k, data.v)
        forward = choose(problem, self.fragments, self.processors)
        of_queries, of_keys = choose_backward(problem, self.fragments, self.processors)
        found = compute_gradients(self.kernels, forward, of_queries, of_keys, operands, d_out)
        errors = judge_gradients(data, d_out, found, [(problem.batch - 1, problem.kv_heads - 1)])
        if self.burner is not None:
            self.burner.burn(0.2)
        launches = backward_launches(self.kernels, of_queries, of_keys, operands)
        first, second, queries, keys = (
            time_chain(self.device, partial(_always, launch), self.timing) for launch in launches.all
        )
        operands.free()
        peers = torch_backward_times(data, d_out, self.timing.seconds) if has_peers else {}
        variants = (of_queries.label, of_keys.label)
        return MeasuredBackward(variants, first + second, queries, keys, errors, peers)

    def measure_floats(self, problem: Problem, seed: int) -> MeasuredFloats:
        """Times the attention of fp32 tensors."""
        data = make_float_data(problem, seed)
        operands = make_operands(self.device, problem, data.q, data.k, data.v)
        variant = choose(problem, self.fragments, self.processors, has_floats=True)
        verdict = judge(data, make_reference(data, seed), compute(self.kernels, variant, operands))
        if self.burner is not None:
            self.burner.burn(0.2)
        halving, launch = attention_launches(self.kernels, variant, operands)
        seconds, halving_seconds = (
            time_chain(self.device, partial(_always, each), self.timing) for each in (launch, halving)
        )
        operands.free()
        return MeasuredFloats(variant.label, seconds, halving_seconds, verdict.error, verdict.is_right)

    def _statistics(self, problem: Problem, variant: Variant) -> dict[str, int]:
        try:
            dispatches, _ = attention_dispatches(self.kernels, variant, problem, FLOAT16)
            kernel = dispatches[-1].kernel
            spirv = compile_kernel(kernel.source, kernel.label)
            words = tuple(value & 0xFFFFFFFF for value in kernel.constants)
            return statistics(self.device, spirv, words, kernel.push_bytes)
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


def show_backward(row: Row) -> None:
    """Prints the gradients of one problem; of five products, as peers count them."""
    found = row.backward
    assert found is not None
    columns = ["µs", "TFLOP/s", "dq error", "dk error", "dv error"]
    out = table("gradients", *columns, right=columns)
    operations = 2.5 * row.problem.operations

    def add(label: str, seconds: float, errors: list[str]) -> None:
        out.add_row(label, f"{seconds * 1e6:.1f}", f"{operations / seconds / 1e12:.1f}", *errors)

    errors = [f"{each:.1e}" for each in (found.errors.dq, found.errors.dk, found.errors.dv)]
    add("all" + ("" if found.errors.is_right else " WRONG"), found.seconds, errors)
    for label, seconds in (
        ("operands in fp16", found.operands_seconds),
        (f"queries {found.variants[0]}", found.queries_seconds),
        (f"keys {found.variants[1]}", found.keys_seconds),
    ):
        out.add_row(label, f"{seconds * 1e6:.1f}", "", "", "", "")
    for name, seconds in found.peers.items():
        add(f"torch {name}", seconds, ["", "", ""])
    show_table(console(), out, f"{row.problem.label}, backward")


def show_floats(row: Row) -> None:
    """Prints the attention of one problem's fp32 tensors."""
    found = row.floats
    assert found is not None
    columns = ["µs", "TFLOP/s", "halving, µs", "error"]
    out = table("fp32 tensors", *columns, right=columns)
    out.add_row(
        found.variant + ("" if found.is_right else " WRONG"),
        f"{found.seconds * 1e6:.1f}",
        f"{row.problem.operations / found.seconds / 1e12:.1f}",
        f"{found.halving_seconds * 1e6:.1f}",
        f"{found.error:.1e}",
    )
    show_table(console(), out, f"{row.problem.label}, fp32")


def show_fused(pairs: list[Pair], title: str) -> None:
    """Prints times with and without the fused form."""
    columns = ["fused", "separate", "separate ÷ fused", "difference"]
    out = table("with and without", *columns, right=columns)
    for each in pairs:
        shown = (duration(each.fused), duration(each.separate), f"{each.separate / each.fused:.2f}")
        out.add_row(each.label, *shown, f"{each.difference:.1e}" if each.difference else "")
        for kernel in each.kernels:
            out.add_row(f"  {kernel}", "", "", "", "")
    show_table(console(), out, title)


def measure_fused(options: argparse.Namespace) -> None:
    """One layer of each problem of the models, then the models."""
    pairs = [measure_layer(each, options.device, options.run_seconds) for each in SUITES["models"]]
    show_fused(pairs, "one layer of attention, heads split and joined")
    models = [measure_model(name, options.device, options.run_seconds) for name in MODELS]
    show_fused(models, "whole models, host to host")
    if options.json:
        content = {"machine": machine(), "layers": [*map(asdict, pairs)], "models": [*map(asdict, models)]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_units", description=__doc__)
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--suites", nargs="+", default=list(SUITES), choices=list(SUITES), metavar="SUITE")
    parser.add_argument("--sweep", action="store_true", help="time every variant, not only the rule's choice")
    parser.add_argument("--peers", action="store_true", help="time PyTorch on CUDA too")
    parser.add_argument("--backward", action="store_true", help="time the gradients too")
    parser.add_argument("--floats", action="store_true", help="time tensors in fp32 too")
    parser.add_argument("--statistics", action="store_true", help="registers and spills, by the driver")
    parser.add_argument("--seconds", type=float, default=0.004, help="of one chain of launches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--fused", action="store_true", help="only: layers and models with and without the fused form"
    )
    parser.add_argument("--run-seconds", type=float, default=2.0, help="of runs of each layer and model")
    options = parser.parse_args()
    if options.fused:
        measure_fused(options)
        return
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
            if options.backward:
                backward = bench.measure_backward(problem, options.seed, has_peers=options.peers)
                row = replace(row, backward=backward)
                show_backward(row)
            if options.floats:
                row = replace(row, floats=bench.measure_floats(problem, options.seed))
                show_floats(row)
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
