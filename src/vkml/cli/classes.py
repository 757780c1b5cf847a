"""Ranks a classifier's outputs: which classes score best, with which probability."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkml.cli.output import plain
from vkml.cli.sources import check_file
from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument
from vkml.ir.wording import counted

Array = np.ndarray[Any, Any]


CLASSES_KEY = "vkml.classes"
"""Key of a model's metadata under which the names of classes are, as JSON."""


def classes_text(classes: Sequence[str]) -> str:
    """Names of classes for a model's metadata."""
    return json.dumps(list(classes))


def classes_of(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The names of classes that a model's metadata state; none where they state none that are understood."""
    try:
        found = json.loads(metadata.get(CLASSES_KEY, "[]"))
    except ValueError:
        return ()
    return tuple(found) if isinstance(found, list) and all(isinstance(each, str) for each in found) else ()


@dataclass(frozen=True)
class RankedClasses:
    """The best classes of each row of one output."""

    output: str
    measure: str
    """``probability`` or ``score``."""
    note: str
    """Where the numbers come from."""
    rows: tuple[tuple[tuple[str, float], ...], ...]


def read_labels(path: Path) -> tuple[str, ...]:
    """Class names, one a line; empty lines at the end are none."""
    check_file(path)
    try:
        return tuple(path.read_text(encoding="utf-8").rstrip().splitlines())
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path} is not a text file") from None


def rank_classes(
    names: Sequence[str],
    outputs: Sequence[Array],
    count: int,
    softmax: bool | None,
    labels: Sequence[str] = (),
) -> RankedClasses:
    """Ranks the first output that is a row of scores for each item.

    Args:
        names: The outputs' names.
        outputs: Their values; scores are the last dimension.
        count: How many classes to keep.
        softmax: Whether to apply it; None applies it where the scores are no distribution already.
        labels: The classes' names; numbers where they are missing.

    Raises:
        InvalidArgument: No output has floating-point scores, or there are more labels than classes.
    """
    for name, value in zip(names, outputs, strict=True):
        array = plain(np.asarray(value))
        if array.dtype.kind == "f" and array.ndim >= 1 and array.shape[-1] > 1 and array.size:
            scores = array.reshape(-1, array.shape[-1]).astype(np.float64)
            if len(labels) > scores.shape[-1]:
                held = counted(scores.shape[-1], "class")
                raise InvalidArgument(
                    f"there are {len(labels)} labels, and output {name!r} has {held}: these are another "
                    "model's labels, or a line too many"
                )
            measure, note, scores = _probabilities(scores, softmax)
            return RankedClasses(name, measure, note, tuple(_best(row, count, labels) for row in scores))
    raise InvalidArgument("--top needs an output of floating-point scores, one a class; the model has none")


def is_distribution(scores: Array) -> bool:
    """Whether each row is non-negative and sums to 1, within float16's rounding."""
    return bool((scores >= 0).all() and (np.abs(scores.sum(-1) - 1) < 2e-3).all())


def _probabilities(scores: Array, softmax: bool | None) -> tuple[str, str, Array]:
    given = is_distribution(scores)
    if softmax or (softmax is None and not given):
        with np.errstate(invalid="ignore"):
            powers = np.exp(scores - scores.max(-1, keepdims=True))
        return "probability", "softmax of the model's scores", powers / powers.sum(-1, keepdims=True)
    if given:
        return "probability", "probabilities as the model gives them", scores
    return "score", "scores as the model gives them", scores


def _best(row: Array, count: int, labels: Sequence[str]) -> tuple[tuple[str, float], ...]:
    order = np.argsort(-row, kind="stable")[:count]
    return tuple(
        (labels[index] if index < len(labels) else str(index), float(row[index])) for index in order.tolist()
    )
