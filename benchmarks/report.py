"""Prints measurements as a table, and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vkml
from benchmarks.measure import TOLERANCE, Measured
from benchmarks.memory import PeakMemory
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration, size


def show_model(name: str, found: Sequence[Measured], memory: dict[str, PeakMemory]) -> None:
    """The table of one model; the ratio is each peer's median over the first one's."""
    columns = (
        "median",
        "p95",
        "ratio",
        "load",
        "first run",
        "host memory",
        "GPU memory",
        "runs",
        "difference",
    )
    rows = table("peer", "device", *columns, right=columns)
    base = next((each.median for each in found if each.runs), None)
    for each in found:
        if not each.runs:
            continue
        used = memory.get(each.peer)
        rows.add_row(
            each.peer,
            each.device,
            duration(each.median),
            duration(each.p95),
            f"{each.median / base:.2f}×" if base else "",
            duration(each.load),
            duration(each.first),
            size(used.host_bytes) if used else "",
            size(used.gpu_bytes) if used and used.gpu_bytes else "",
            str(len(each.runs)),
            _difference(each),
        )
    out = console()
    show_table(out, rows, name)
    for each in found:
        if not each.runs:
            out.print(f"{each.peer}: not available: {each.reason}", markup=False, style="dim")
    out.print()


def _difference(entry: Measured) -> str:
    if entry.difference is None:
        return ""
    mark = "" if entry.difference <= TOLERANCE else " (!)"
    return f"{entry.difference:.1e}{mark}"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "vkml": vkml.__version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "devices": [f"{device.name}: {device.title}, {device.driver}" for device in vkml.devices()],
    }


def as_json(name: str, found: Sequence[Measured], memory: dict[str, PeakMemory]) -> dict[str, Any]:
    """One model's measurements; seconds and bytes."""
    return {"model": name, "peers": [_entry(each, memory.get(each.peer)) for each in found]}


def _entry(each: Measured, used: PeakMemory | None) -> dict[str, Any]:
    if not each.runs:
        return {"peer": each.peer, "reason": each.reason}
    return {
        "peer": each.peer,
        "device": each.device,
        "median": each.median,
        "p95": each.p95,
        "least": min(each.runs),
        "runs": len(each.runs),
        "load": each.load,
        "first": each.first,
        "difference": each.difference,
        "host_bytes": used and used.host_bytes,
        "gpu_bytes": used and used.gpu_bytes,
    }


def write_json(path: Path, models: Sequence[dict[str, Any]]) -> None:
    path.write_text(json.dumps({"machine": machine(), "models": list(models)}, indent=1) + "\n")
