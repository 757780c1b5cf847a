"""Draws figures of docs/benchmarks.md: ``python tools/draw_speed.py`` makes docs/speed.png and roofline.png.

The first shows how many times as fast as ONNX Runtime vkml is, one pair of bars a model; the second how near
kernels of each family come to what the device can do. What they show is docs/data/*.json, as `benchmarks` and
`benchmarks.micro` write it, and the table of two CPU cores. Each picture carries its figures with it, so that
a test knows whether it is the newest. matplotlib draws (`pip install vkml[plot]`).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
DATA = DOCS / "data"
SPEED, ROOFLINE = DOCS / "speed.png", DOCS / "roofline.png"
CPU_HEADING = "## Two CPU cores"
CARRIED = "Comment"
"""The picture's entry that has its figures."""
FASTER, SLOWER, GRAPH, RULE = "#2f7d4f", "#b5651d", "#9cc5ab", "#888888"
COLOURS = ("#2f7d4f", "#7fb800", "#3b6ea5", "#16325c", "#8e44ad", "#b5651d", "#d4a017", "#999999", "#333333")
MARKERS = ("o", "s", "^")
"""Of groups of points, each with all colours."""
WAITING = "recurrent"
"""Of launches that wait for each other: neither operations nor bytes bound them."""
LABEL = {"padding": 3, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5}}
"""Of a bar: readable where a line crosses it."""
UNITS = (
    ("int8", 1, "int8 → int32"),
    ("float16", 1, "fp16, bf16 → fp32"),
    ("float16", 3, "a third (highest)"),
)
"""Ceilings that are drawn, what they are divided by, and names: bfloat16's is float16's."""

Figures = dict[str, Any]


def speed_figures(zoo: Mapping[str, Any], page: str) -> Figures:
    """What the first picture shows.

    Args:
        zoo: of docs/data/zoo.json.
        page: the text of docs/benchmarks.md.

    Returns:
        Of the GPU each model with vkml's seconds and the ratios of ONNX Runtime's to them, by CUDA and by
        CUDA graphs (None where it cannot run the model so); of the CPU each with vkml's milliseconds and one
        ratio.
    """
    gpu = []
    for entry in zoo["models"]:
        medians = {each["peer"]: each["median"] for each in entry["peers"] if "median" in each}
        ratios = [
            round(medians[peer] / medians["vkml"], 2) if peer in medians else None
            for peer in ("ort-cuda", "ort-cuda-graph")
        ]
        gpu.append([entry["model"], medians["vkml"], *ratios])
    _, _, rest = page.partition(f"\n{CPU_HEADING}")
    measured = re.search(r"\d{4}-\d\d-\d\d", rest)
    return {"date": zoo["date"], "gpu": gpu, "cpu": cpu_rows(page), "cpu_date": measured and measured[0]}


def cpu_rows(page: str) -> list[list[Any]]:
    """The models of the table of two CPU cores, each with vkml's milliseconds and ONNX Runtime's ratio.

    Raises:
        ValueError: there is no such table, or not with these columns.
    """
    _, found, rest = page.partition(f"\n{CPU_HEADING}")
    lines = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    rows = [_cells(line) for line in lines[0].splitlines()] if found and lines else [[]]
    if not {"vkml", "ratio"} <= set(rows[0]):
        raise ValueError(f"docs/benchmarks.md has no table with 'vkml' and 'ratio' under {CPU_HEADING!r}")
    time, ratio = rows[0].index("vkml"), rows[0].index("ratio")
    return [[row[0], float(row[time]), float(row[ratio])] for row in rows[2:]]


def _cells(line: str) -> list[str]:
    return [cell.strip(" *") for cell in line.strip().strip("|").split("|")]


def roofline_figures(kernels: Mapping[str, Any]) -> Figures:
    """What the second picture shows.

    Args:
        kernels: of docs/data/kernels.json.

    Returns:
        Ceilings; of each case that operations bound its group, label, operations a byte and a second; of
        each other one its share of the copy's rate.
    """
    of_operations, of_bytes = [], []
    for each in kernels["kernels"]:
        if each["problem"] or not each["seconds"] or each["family"] == WAITING:
            continue
        if each["operations"]:
            rate = each["operations"] / each["seconds"]
            kind = re.match(r"(.*?), \d", each["label"]) if each["family"] == "matmul" else None
            group = f"{each['family']}, {kind[1]}" if kind else each["family"]
            if each["label"].endswith(", highest"):
                group += ", highest"
            of_operations.append([group, each["label"], each["operations"] / each["bytes"], rate])
        else:
            of_bytes.append([each["family"], each["label"], each["share"]])
    return {
        "date": kernels["date"],
        "ceilings": kernels["ceilings"],
        "operations": of_operations,
        "bytes": of_bytes,
    }


def carried_by(picture: Path) -> Figures:
    """The figures that a picture shows."""
    content, at = picture.read_bytes(), 8
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at : at + 8])
        body = content[at + 8 : at + 8 + size]
        if kind in (b"tEXt", b"iTXt"):
            key, _, text = body.partition(b"\0")
            if key == CARRIED.encode():
                found: Figures = json.loads(text[text.index(b"{") :])
                return found
        at += 12 + size
    raise ValueError(f"{picture.name} carries no figures")


def draw_speed(figures: Figures, target: Path) -> None:
    """Writes the first picture."""
    from matplotlib.figure import Figure

    gpu, cpu = figures["gpu"], figures["cpu"]
    canvas = Figure(figsize=(14, 0.36 * max(len(gpu), len(cpu)) + 1.2), layout="constrained")
    left, right = canvas.subplots(1, 2)
    positions = range(len(gpu))
    for offset, column, colour, name in (
        (-0.2, 2, FASTER, "CUDA provider, TF32"),
        (0.2, 3, GRAPH, "the same as a CUDA graph"),
    ):
        shown = [(at + offset, row[column]) for at, row in zip(positions, gpu, strict=True) if row[column]]
        bars = left.barh([at for at, _ in shown], [ratio for _, ratio in shown], 0.38, color=colour)
        bars.set_label(name)
        left.bar_label(bars, [f"{ratio:.2f}" for _, ratio in shown], fontsize=7.5, **LABEL)
    left.set_yticks(list(positions), [f"{row[0]}  ({_time(row[1])})" for row in gpu], fontsize=8.5)
    left.set_title(f"NVIDIA H200, beside ONNX Runtime ({figures['date']})", fontsize=11)
    left.legend(loc="upper right", bbox_to_anchor=(1, 0.79), fontsize=8.5)
    bars = right.barh(
        range(len(cpu)),
        [row[2] for row in cpu],
        0.6,
        color=[FASTER if row[2] >= 1 else SLOWER for row in cpu],
    )
    right.bar_label(bars, [f"{row[2]:.2f}" for row in cpu], fontsize=7.5, **LABEL)
    right.set_yticks(range(len(cpu)), [f"{row[0]}  ({_time(row[1] / 1e3)})" for row in cpu], fontsize=8.5)
    right.set_title(f"Two CPU cores, beside ONNX Runtime ({figures['cpu_date']})", fontsize=11)
    for axes in (left, right):
        axes.invert_yaxis()
        axes.axvline(1, color=RULE, linestyle="--", linewidth=1)
        axes.set_xlabel("ONNX Runtime's time ÷ vkml's: right of the line vkml is faster", fontsize=9)
        axes.margins(x=0.1)
        axes.spines[["top", "right"]].set_visible(False)
    _write(canvas, figures, target)


def draw_roofline(figures: Figures, target: Path) -> None:
    """Writes the second picture."""
    from matplotlib.figure import Figure

    bars = figures["bytes"]
    canvas = Figure(figsize=(13, max(5.5, 0.24 * len(bars) + 1.2)), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    ceilings = figures["ceilings"]
    intensities = [row[2] for row in figures["operations"]]
    units = [(ceilings[element] / share, name) for element, share, name in UNITS if element in ceilings]
    knees = [ceiling / ceilings["bytes"] for ceiling, _ in units]
    lowest, highest = min(intensities + knees) / 2, max(intensities + knees) * 2
    for (ceiling, name), knee in zip(units, knees, strict=True):
        left.plot(
            [lowest, knee, highest],
            [lowest * ceilings["bytes"] / 1e12, ceiling / 1e12, ceiling / 1e12],
            color=RULE,
            linewidth=1.2,
        )
        left.text(knee, ceiling / 1e12, f"units alone, {name}", ha="left", va="bottom", fontsize=8.5)
    groups = dict.fromkeys(row[0] for row in figures["operations"])
    marks = ((colour, marker) for marker in MARKERS for colour in COLOURS)
    for group, (colour, marker) in zip(groups, marks, strict=False):
        mine = [row for row in figures["operations"] if row[0] == group]
        left.scatter(
            [row[2] for row in mine],
            [row[3] / 1e12 for row in mine],
            24,
            color=colour,
            marker=marker,
            label=group,
            zorder=3,
        )
    left.set(xscale="log", yscale="log")
    left.set_xlabel("operations a byte of operands and results", fontsize=9)
    left.set_ylabel("10¹² operations a second", fontsize=9)
    left.set_title(f"Kernels bound by operations, NVIDIA H200 ({figures['date']})", fontsize=11)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=3, fontsize=8, columnspacing=1)
    left.grid(which="both", color="#eeeeee", zorder=0)
    drawn = right.barh(range(len(bars)), [100 * row[2] for row in bars], 0.65, color=FASTER)
    right.bar_label(drawn, [f"{row[2]:.0%}" for row in bars], fontsize=8, **LABEL)
    right.set_yticks(range(len(bars)), [f"{row[0]}: {row[1]}" for row in bars], fontsize=8)
    right.invert_yaxis()
    right.axvline(100, color=RULE, linestyle="--", linewidth=1)
    right.set_xlabel(f"% of a copy's {ceilings['bytes'] / 1e12:.2f} TB/s", fontsize=9)
    right.set_title("Kernels bound by memory", fontsize=11)
    right.margins(x=0.12)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    _write(canvas, figures, target)


def _write(canvas: Any, figures: Figures, target: Path) -> None:
    canvas.savefig(target, dpi=110, metadata={CARRIED: json.dumps(figures), "Software": "matplotlib"})


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms"


def main() -> None:
    """Draws what there are figures of."""
    zoo = json.loads((DATA / "zoo.json").read_text(encoding="utf-8"))
    draw_speed(speed_figures(zoo, (DOCS / "benchmarks.md").read_text(encoding="utf-8")), SPEED)
    if (DATA / "kernels.json").exists():
        kernels = json.loads((DATA / "kernels.json").read_text(encoding="utf-8"))
        draw_roofline(roofline_figures(kernels), ROOFLINE)


if __name__ == "__main__":
    main()
