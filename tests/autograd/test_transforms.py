"""Gradients of DFT and STFT: those of the operators that they are written in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal

RANDOM = np.random.default_rng(61)
AXIS = np.array(1)


@pytest.mark.parametrize(
    ("shape", "length", "attributes"),
    [
        ((2, 6, 2), None, {"inverse": 1}),
        ((2, 5, 1), 7, {"onesided": 1}),
        ((2, 4, 2), None, {"onesided": 1, "inverse": 1}),
    ],
)
def test_dft(
    shape: tuple[int, ...], length: int | None, attributes: dict[str, Any], device_name: str
) -> None:
    stated = None if length is None else np.array(length)
    check("DFT", [normal(RANDOM, *shape), stated, AXIS], attributes, device=device_name)


def test_stft() -> None:
    check("STFT", [normal(RANDOM, 1, 12, 1), np.array(3), normal(RANDOM, 6)])
