"""Runs a case through a vkml session as callers do: with arrays of every kind, used again, written over."""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import vkml
from tests.fuzz.case import POISON, Case
from tests.fuzz.comparison import is_equal
from tests.fuzz.tensors import Array


@dataclass(frozen=True)
class Finding:
    """Something that is wrong."""

    kind: str
    """wrong, operator, refused, exception, inference, aliasing, validation, memory, crash, hang, judge, …"""
    where: str
    """The operator concerned, where one is."""
    message: str

    def __str__(self) -> str:
        return f"{self.kind}{f' in {self.where}' if self.where else ''}: {self.message}"


@dataclass
class Outcome:
    """What a session made of a case."""

    outputs: list[str] = field(default_factory=list)
    refusal: vkml.Error | None = None
    """Why the session could not be made."""
    results: list[dict[str, Array] | vkml.Error] = field(default_factory=list)
    """For each run, outputs by name in vkml's storage, or what it raised."""
    findings: list[Finding] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)
    """Kinds of code that the plan of a model of fixed sizes consists of: "avx2", "numpy", …"""


class _Subclass(np.ndarray):  # type: ignore[type-arg]
    """An array of another type."""


class _ArrayLike:
    """What other libraries' tensors look like."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._array if dtype is None else self._array.astype(dtype)


class Presenter:
    """Hands out a feed's arrays in the ways of `PRESENTATIONS`."""

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}

    def present(self, name: str, array: Array, way: str) -> Any:
        """The array, or something that stands for it; its memory is not the case's own."""
        if way == "same object":
            kept = self._kept.get(name)
            if kept is None or kept.shape != array.shape or kept.dtype != array.dtype:
                self._kept[name] = kept = array.copy()
            kept[...] = array
            return kept
        if way == POISON:
            return np.full_like(array, np.nan) if array.dtype.kind in "fc" else array.copy()
        if way == "fortran":
            return np.array(array, order="F")
        if way == "misaligned" and array.dtype != object:
            memory = np.empty(array.nbytes + 1, np.uint8)
            moved = memory[1:].view(array.dtype).reshape(array.shape)
            moved[...] = array
            return moved
        if way == "read-only":
            copy = array.copy()
            copy.flags.writeable = False
            return copy
        if way == "reversed" and array.ndim:
            return np.flip(np.flip(array).copy())
        if way == "big-endian" and array.dtype.kind in "fiuc":
            return array.astype(array.dtype.newbyteorder(">"))
        if way == "subclass":
            return array.copy().view(_Subclass)
        if way == "array-like":
            return _ArrayLike(array.copy())
        if way == "list" and array.size and array.ndim:
            return array.tolist()
        if way == "scalar" and not array.ndim:
            return array[()] if array.dtype != object else array.item()
        return array.copy()


def run_case(case: Case, device: str) -> Outcome:
    """All runs of a case in one session; warnings count as errors."""
    outcome = Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            _run(case, device, outcome)
        except vkml.Error as error:
            outcome.refusal = error
            outcome.findings += _unwanted(error)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            outcome.findings.append(_escaped(error))
            outcome.refusal = vkml.Error("an exception escaped")
    return outcome


def _run(case: Case, device: str, outcome: Outcome) -> None:
    level = vkml.GraphOptimizationLevel
    options = vkml.SessionOptions(
        graph_optimization_level=level.ORT_ENABLE_ALL if case.optimise else level.ORT_DISABLE_ALL,
        intra_op_num_threads=case.threads,
    )
    kept: list[tuple[int, list[str], list[Array], list[Array]]] = []
    presenter = Presenter()
    with vkml.InferenceSession(case.model, options, devices=device, precision=case.precision) as session:
        outcome.outputs = [value.name for value in session.get_outputs()]
        names = {value.name for value in session.get_inputs()}
        for number, run in enumerate(case.runs):
            feed = {name: array for name, array in case.feeds[run.feed].items() if name in names}
            given = {name: presenter.present(name, array, run.presentation) for name, array in feed.items()}
            some = run.presentation == "some outputs"
            wanted = outcome.outputs[::-2] if some else outcome.outputs
            try:
                results = session.run(wanted if some else None, given)
            except vkml.Error as error:
                outcome.results.append({} if run.presentation == POISON else error)
                outcome.findings += _unwanted(error)
                continue
            if run.presentation == POISON:
                outcome.results.append({})
                continue
            copies = [np.array(array) for array in results]
            outcome.results.append(dict(zip(wanted, copies, strict=True)))
            _check_inputs(given, feed, run.presentation, outcome)
            if run.presentation == "changed afterwards":
                _scribble(given.values())
            if number % 2:
                _scribble(results)
            else:
                kept.append((number, wanted, results, copies))
        if all(isinstance(size, int) for value in session.get_inputs() for size in value.shape):
            with contextlib.suppress(vkml.Error):
                outcome.steps.update(step.variant for step in session.report().steps if step.device == "cpu")
    for number, wanted, results, copies in kept:
        for name, array, copy in zip(wanted, results, copies, strict=True):
            if not np.all(is_equal(array, copy)):
                message = f"the output {name!r} of run {number} was changed by a later run"
                outcome.findings.append(Finding("aliasing", "", message))


def _check_inputs(given: Mapping[str, Any], feed: Mapping[str, Array], way: str, outcome: Outcome) -> None:
    for name, value in given.items():
        if isinstance(value, np.ndarray) and not np.all(is_equal(np.asarray(value), feed[name])):
            outcome.findings.append(Finding("aliasing", "", f"a run changed its input {name!r} ({way})"))


def _scribble(arrays: Any) -> None:
    for array in arrays:
        if isinstance(array, np.ndarray) and array.flags.writeable:
            array[...] = "scribble" if array.dtype == object else 77 if array.dtype.kind in "fiuc" else True


def _unwanted(error: vkml.Error) -> list[Finding]:
    """A finding for an error that hides a mistake of vkml's own, or says nothing."""
    if not str(error):
        return [Finding("exception", type(error).__name__, "it says nothing")]
    if isinstance(error, vkml.EngineError) or re.search(
        r"failed on the CPU: \w+(Error|Exception)\b", str(error)
    ):
        return [Finding("exception", type(error).__name__, str(error))]
    return []


def _escaped(error: BaseException) -> Finding:
    """A finding for an exception that is none of vkml's, with the place it came from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/vkml/" in frame.filename]
    place = " < ".join(
        f"{frame.filename.split('/vkml/')[-1]}:{frame.name}" for frame in reversed(frames[-4:])
    )
    return Finding("exception", type(error).__name__, f"{error} ({place})")
