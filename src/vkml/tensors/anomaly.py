"""`detect_anomaly`: where numbers that are none come from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from vkml.engine.device_array import on_host
from vkml.errors import AnomalyFound, CaptureError
from vkml.tensors.capture import is_capturing
from vkml.tracing import Traced, apply, evaluate, tracked
from vkml.tracing.value import Application, mode, place_of, tracking


class set_detect_anomaly:
    """Has `backward` look for NaN, or not, from now on or for a context.

    `backward` looks at the gradients that each operator gives, and where what it is called on is NaN for the
    operator that made the first one. Each look computes: for debugging only.

    Args:
        mode: whether gradients are looked through.
        check_nan: whether `backward` looks for NaN.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = (_mode.finds_anomalies, _mode.finds_nan)
        _mode.finds_anomalies, _mode.finds_nan = mode, mode and check_nan

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        _mode.finds_anomalies, _mode.finds_nan = self._before


_mode = mode


@contextlib.contextmanager
def detect_anomaly(check_nan: bool = True) -> Iterator[None]:
    """A context in which `backward` names the operator, and the line, that NaN comes from.

    Args:
        check_nan: whether it looks for NaN; else lines are noted only.

    Example:
        >>> import vkml
        >>> x = vkml.zeros(2, requires_grad=True)
        >>> with vkml.autograd.detect_anomaly():
        ...     y = (x.sqrt() * 0).sum()
        ...     y.backward()
        Traceback (most recent call last):
        vkml.errors.AnomalyFound: the gradient of Sqrt is NaN...
    """
    with set_detect_anomaly(True, check_nan):
        yield


def is_anomaly_enabled() -> bool:
    """Whether gradients are looked through."""
    return mode.finds_anomalies


def check_values(outputs: Sequence[Traced]) -> None:
    """Raises where values are NaN: names the first operator that made one of numbers."""
    _refuse_capture()
    if not any(_has_nan(value) for value in outputs):
        return
    for application in tracked(outputs):
        made = [application.output(at) for at in range(len(application.types))]
        if any(_has_nan(value) for value in made):
            given = [value for value in application.sources if value is not None]
            reads = "NaN, which is what it reads" if any(map(_has_nan, given)) else "NaN"
            raise AnomalyFound(f"{application.operator.name} makes {reads}{_where(application)}")


def check_gradients(application: Application, results: Sequence[Traced | None]) -> None:
    """Raises where an operator's gradients are NaN."""
    _refuse_capture()
    for at, value in enumerate(results):
        if value is not None and _has_nan(value):
            raise AnomalyFound(
                f"the gradient of {application.operator.name} is NaN, that by its input {at}"
                f"{_where(application)}"
            )


def _refuse_capture() -> None:
    if is_capturing():
        raise CaptureError("detect_anomaly looks at gradients, which a captured function cannot")


def _where(application: Application) -> str:
    place = place_of(application.origin)
    return f" (recorded at {place})" if place else ""


def _has_nan(value: Traced) -> bool:
    if not value.type.dtype.is_inexact:
        return False
    if value.data is None:
        # Not the value itself: one of constants alone is computed wherever it is needed, unless it is known.
        with tracking(False):
            value = apply("Identity", value)
        evaluate([value])
    array = cast("np.ndarray[tuple[int, ...], np.dtype[np.float64]]", on_host(value.data))
    return bool(np.isnan(array.astype(np.float64)).any())
