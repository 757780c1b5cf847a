"""Exponentials of matrices with closed forms."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from vkml.ops.matrix_exponential import matrix_exponential


@pytest.mark.parametrize("angle", [1e-9, 0.3, 2.0, 40.0, 1000.0])
def test_rotations(angle: float) -> None:
    found = matrix_exponential(np.array([[0, -angle], [angle, 0]]))
    wanted = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-13 * max(1, angle))


def test_batches_of_different_sizes() -> None:
    """Each is halved as often as it alone has to be; a nilpotent one is a polynomial."""
    nilpotent = np.array([[0, 3.0, 1.0], [0, 0, -2.0], [0, 0, 0]])
    stack = np.stack([np.diag([1.0, -50.0, 30.0]), nilpotent, np.zeros((3, 3))])
    found = matrix_exponential(stack)
    np.testing.assert_allclose(found[0], np.diag(np.exp([1.0, -50.0, 30.0])), rtol=1e-12)
    np.testing.assert_allclose(found[1], np.eye(3) + nilpotent + nilpotent @ nilpotent / 2, rtol=1e-14)
    np.testing.assert_allclose(found[2], np.eye(3), rtol=1e-15)


def test_what_is_not_finite_stays_in_its_matrix() -> None:
    found = matrix_exponential(np.array([[[np.inf]], [[np.nan]], [[1.0]], [[800.0]]], np.float32))
    assert found.dtype == np.float32
    assert np.isnan(found[:2]).all() and found[3] == np.inf
    np.testing.assert_allclose(found[2], np.e, rtol=1e-7)
    assert matrix_exponential(np.zeros((2, 0, 0))).shape == (2, 0, 0)


def test_what_is_no_square_matrix() -> None:
    for wrong in (vkml.ones(2, 3), vkml.ones(3), vkml.ones(2, 2, dtype=vkml.int32)):
        with pytest.raises(RuntimeError, match=r"linalg\.matrix_exp"):
            vkml.linalg.matrix_exp(wrong)
