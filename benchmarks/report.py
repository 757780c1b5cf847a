"""Prints measurements as a table, and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import vkml
from benchmarks.measure import TOLERANCE, Measured
from benchmarks.memory import UsedMemory
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration, size


def show_model(name: str, found: Sequence[Measured], memory: dict[str, UsedMemory]) -> None:
    """The table of one model; the ratio is each peer's median over the first one's.

    Host memory is that of a process of its own: at the highest point, and behind the runs without pages of
    the model's files. Errors are those against the outputs of the reference, whose own are 0.
    """
    columns = (
        "median",
        "p95",
        "ratio",
        "load",
        "first run",
        "host, at most",
        "without model",
        "GPU memory",
        "runs",
        "largest error",
        "mean error",
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
            size(used.own_bytes) if used and used.own_bytes else "",
            size(used.gpu_bytes) if used and used.gpu_bytes else "",
            str(len(each.runs)),
            *_errors(each),
        )
    out = console()
    show_table(out, rows, name)
    for each in found:
        if not each.runs:
            out.print(f"{each.peer}: not available: {each.reason}", markup=False, style="dim")
    out.print()


def _errors(entry: Measured) -> tuple[str, str]:
    if entry.errors is None:
        return "", ""
    mark = "" if entry.errors.largest <= TOLERANCE else " (!)"
    return f"{entry.errors.largest:.1e}{mark}", f"{entry.errors.mean:.1e}"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "vkml": vkml.__version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "devices": [f"{device.name}: {device.title}, {device.driver}" for device in vkml.devices()],
    }


def as_json(name: str, found: Sequence[Measured], memory: dict[str, UsedMemory]) -> dict[str, Any]:
    """One model's measurements; seconds and bytes."""
    return {"model": name, "peers": [_entry(each, memory.get(each.peer)) for each in found]}


def _entry(each: Measured, used: UsedMemory | None) -> dict[str, Any]:
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
        "errors": each.errors and asdict(each.errors),
        "host_bytes": used and used.host_bytes,
        "own_bytes": used and used.own_bytes,
        "gpu_bytes": used and used.gpu_bytes,
    }


def write_json(path: Path, models: Sequence[dict[str, Any]]) -> None:
    path.write_text(json.dumps({"machine": machine(), "models": list(models)}, indent=1) + "\n")
