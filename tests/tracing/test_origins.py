"""Errors point at the line of the program that did it, also those that appear when values are computed."""

from __future__ import annotations

import inspect
import traceback

import numpy as np
import pytest

import vkml
from vkml import Tensor


def _line(text: str) -> int:
    """The number of the line of this file that has a text."""
    lines, first = inspect.getsourcelines(inspect.getmodule(_line))  # type: ignore[arg-type]
    found = [at for at, line in enumerate(lines, 1) if text in line and "_line(" not in line]
    assert len(found) == 1, found
    return found[0] + first


def _picked(x: Tensor, at: Tensor) -> Tensor:
    return x.gather(0, at)  # out of range


def test_an_index_that_is_out_of_range_when_it_is_read(device_name: str) -> None:
    x = vkml.ones(3, device=device_name)
    found = _picked(x, vkml.tensor([7], device=device_name)) * 2 + 1
    with pytest.raises(vkml.IndexOutOfRange) as caught:
        found.numpy()
    assert f"{__file__}:{_line('# out of range')} in _picked: return x.gather(0, at)" in str(caught.value)


def test_what_is_built_alike_elsewhere_names_its_own_line() -> None:
    singular = vkml.zeros(2, 2)
    for text in ("first of two", "second of two"):
        found = vkml.linalg.inv(singular)  # first of two
        if text.startswith("second"):
            found = vkml.linalg.inv(singular)  # second of two
        with pytest.raises(vkml.LinAlgError, match="singular") as caught:
            found.numpy()
        assert f"test_origins.py:{_line('# ' + text)}" in str(caught.value)


def test_captures_name_the_line_too() -> None:
    @vkml.jit
    def solved(x: Tensor) -> Tensor:
        return vkml.linalg.inv(x) + 1  # captured

    for _ in range(3):
        solved(vkml.tensor(np.eye(2, dtype=np.float32)))
    with pytest.raises(vkml.LinAlgError) as caught:
        solved(vkml.zeros(2, 2))
    assert f"test_origins.py:{_line('# captured')}" in str(caught.value)


def test_shapes_that_do_not_fit_are_an_error_at_once() -> None:
    with pytest.raises(RuntimeError) as caught:
        vkml.ones(2, 3) + vkml.ones(4)  # do not fit
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[0].lineno == _line("# do not fit")
