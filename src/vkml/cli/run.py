"""``vkml run``: runs a model once or often and shows or writes what comes out."""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cli.classes import RankedClasses, classes_of, rank_classes, read_labels
from vkml.cli.guard import UsageError
from vkml.cli.images import parse_preparation
from vkml.cli.inputs import FeedRequest, make_feed
from vkml.cli.output import console, plain, print_json, show_table, table
from vkml.cli.sessions import opened_session, timed_runs, where_it_ran
from vkml.cli.sources import model_file
from vkml.cli.tables import columns_of
from vkml.dataclasses import dataclass
from vkml.ir.wording import counted, duration, number, shape_text

if TYPE_CHECKING:
    from rich.console import Console

Array = np.ndarray[Any, Any]

SHOWN_CLASSES = 5
"""Of a model that names its classes so many are printed, unless its outputs go to files."""
SHOWN_VALUES = 12
"""An output of at most so many elements is printed whole."""


@dataclass(frozen=True)
class RunRequest:
    """The options of ``vkml run``, as given."""

    model: Path
    inputs: tuple[str, ...]
    fill_randomly: bool
    output: Path | None
    top: int | None
    labels: Path | None
    softmax: bool | None
    device: str
    precision: str
    repeat: int
    dimensions: tuple[str, ...]
    seed: int
    mean: str | None
    std: str | None
    white: float
    fit: str
    edge: int | None
    is_bgr: bool
    strict: bool
    as_json: bool


@dataclass(frozen=True)
class _Outcome:
    device: str
    fallbacks: tuple[tuple[str, str], ...]
    load_seconds: float
    run_seconds: tuple[float, ...]
    names: tuple[str, ...]
    outputs: tuple[Any, ...]
    ranked: RankedClasses | None
    files: tuple[Path, ...]


def run_model(request: RunRequest) -> int:
    """Carries the command out; returns its exit code."""
    with model_file(request.model, request.inputs) as path:
        return _run(replace(request, model=path))


def _run(request: RunRequest) -> int:
    feed_request = FeedRequest(
        given=request.inputs,
        dimensions=request.dimensions,
        fill_randomly=request.fill_randomly,
        seed=request.seed,
        preparation=parse_preparation(
            request.fit, request.edge, request.white, request.mean, request.std, request.is_bgr
        ),
    )
    if request.labels and not request.top:
        raise UsageError("--labels names the classes that --top prints; give --top K too")
    labels = read_labels(request.labels) if request.labels else ()
    with opened_session(
        request.model, device=request.device, precision=request.precision, strict=request.strict
    ) as opened:
        session = opened.session
        metadata = session.get_modelmeta().custom_metadata_map
        feed = make_feed(session.get_inputs(), feed_request, columns_of(metadata))
        outputs, seconds = timed_runs(session, feed, request.repeat)
        report = where_it_ran(session, feed)
        names, outputs = _tensors([info.name for info in session.get_outputs()], outputs)
    labels = labels or classes_of(metadata)
    top = request.top or (min(SHOWN_CLASSES, len(labels)) if labels and not request.output else None)
    ranked = rank_classes(names, outputs, top, request.softmax, labels) if top else None
    files = _write_outputs(request.output, names, outputs) if request.output else ()
    outcome = _Outcome(
        device=report.device,
        fallbacks=tuple(report.fallbacks),
        load_seconds=opened.load_seconds,
        run_seconds=tuple(seconds),
        names=names,
        outputs=tuple(outputs),
        ranked=ranked,
        files=files,
    )
    if request.as_json:
        print_json(_as_json(request, outcome))
    else:
        _show(request, outcome)
    return 0


def _tensors(names: Sequence[str], values: Sequence[Any]) -> tuple[tuple[str, ...], list[Array]]:
    """Outputs, those that are sequences as an output each value; optionals that hold nothing are left out."""
    found: list[tuple[str, Array]] = []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, list):
            inner = _tensors([f"{name}[{at}]" for at in range(len(value))], value)
            found += zip(*inner, strict=True)
        elif value is not None:
            found.append((name, value))
    return tuple(name for name, _ in found), [array for _, array in found]


def _write_outputs(folder: Path, names: Sequence[str], outputs: Sequence[Array]) -> tuple[Path, ...]:
    """One .npy an output, named after it, with characters that no file name may have replaced.

    Names differ by more than letters' case and composition, which some file systems do not tell apart.

    Strings are written as NumPy's own, which can be read without unpickling, bfloat16 and float8 as float32,
    4-bit integers as int8 and uint8.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    taken: set[str] = set()
    for name, value in zip(names, outputs, strict=True):
        stem = re.sub(r"[^\w.\-]+", "_", name).lstrip(".") or "output"
        stem = stem.encode()[:200].decode(errors="ignore")  # of the 255 that file systems allow
        path = folder / f"{stem}.npy"
        count = 1
        while _folded(path.name) in taken:
            count += 1
            path = folder / f"{stem}_{count}.npy"
        taken.add(_folded(path.name))
        array = plain(np.asarray(value))
        np.save(path, array.astype(np.str_) if array.dtype == object else array, allow_pickle=False)
        written.append(path)
    return tuple(written)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _show(request: RunRequest, outcome: _Outcome) -> None:
    out = console()
    if outcome.ranked:
        _show_ranked(out, outcome.ranked)
    else:
        _show_outputs(out, outcome)
    for path in outcome.files:
        out.print(f"wrote {path}", markup=False)
    later = outcome.run_seconds[1:]
    timing = f"first run {duration(outcome.run_seconds[0])}"
    if later:
        runs = counted(len(later), "run")
        timing = f"median {duration(statistics.median(later))} of {runs} after the first ({timing})"
    out.print(f"on {outcome.device}; {timing}; loaded in {duration(outcome.load_seconds)}", markup=False)
    for node, reason in outcome.fallbacks[:5]:
        out.print(f"on the CPU: {node}: {reason}", markup=False)
    if len(outcome.fallbacks) > 5:
        more = counted(len(outcome.fallbacks) - 5, "more node")
        out.print(f"and {more} on the CPU (vkml inspect --plan lists them)")


def _show_outputs(out: Console, outcome: _Outcome) -> None:
    rows = table("output", "type", "shape", "values")
    for name, value in zip(outcome.names, outcome.outputs, strict=True):
        array = np.asarray(value)
        rows.add_row(name, array.dtype.name, shape_text(array.shape), _summary(plain(array)))
    show_table(out, rows)


def _summary(array: Array) -> str:
    if array.size <= SHOWN_VALUES:
        return " ".join(
            number(each) if array.dtype.kind == "f" else str(each) for each in array.ravel().tolist()
        )
    if array.dtype.kind not in "fiu":
        return counted(array.size, "value")
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "no finite value"
    text = f"min {number(finite.min())}  mean {number(finite.mean())}  max {number(finite.max())}"
    lost = values.size - finite.size
    return f"{text}  ({lost} not finite)" if lost else text


def _show_ranked(out: Console, ranked: RankedClasses) -> None:
    rows = table("row", "class", ranked.measure, right=("row", ranked.measure))
    for index, row in enumerate(ranked.rows):
        for place, (label, score) in enumerate(row):
            text = f"{100 * score:.2f} %" if ranked.measure == "probability" else number(score)
            rows.add_row("" if place else str(index), label, text)
    show_table(out, rows, f"{ranked.output}: {ranked.note}")


def _as_json(request: RunRequest, outcome: _Outcome) -> dict[str, Any]:
    outputs = []
    for index, (name, value) in enumerate(zip(outcome.names, outcome.outputs, strict=True)):
        array = np.asarray(value)
        entry: dict[str, Any] = {"name": name, "type": array.dtype.name, "shape": list(array.shape)}
        if outcome.files:
            entry["file"] = str(outcome.files[index])
        if array.size <= 1000:
            entry["values"] = _json_values(plain(array))
        outputs.append(entry)
    ranked = outcome.ranked
    return {
        "model": str(request.model),
        "device": outcome.device,
        "precision": request.precision,
        "load_seconds": outcome.load_seconds,
        "run_seconds": list(outcome.run_seconds),
        "fallbacks": [{"node": node, "reason": reason} for node, reason in outcome.fallbacks],
        "outputs": outputs,
        "top": ranked
        and {
            "output": ranked.output,
            "measure": ranked.measure,
            "note": ranked.note,
            "rows": [
                [{"class": label, ranked.measure: score} for label, score in row] for row in ranked.rows
            ],
        },
    }


def _json_values(array: Array) -> list[Any]:
    """Nested lists; null for what JSON has no number for."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        array = array.astype(object)
        array[~np.isfinite(array.astype(np.float64))] = None
    values: list[Any] = array.tolist()
    return values
