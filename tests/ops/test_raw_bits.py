"""Types that travel as raw bits (bfloat16, float8): operators that compute refuse them, none counts bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.checking import check_operator, run_operator
from vkml.errors import InvalidGraph, NotImplemented
from vkml.ir import Constant, dtypes

BITS = {dtypes.BFLOAT16: np.uint16, dtypes.FLOAT8E4M3FN: np.uint8, dtypes.FLOAT8E5M2: np.uint8}
PLACES = {"ScatterElements": np.zeros((2, 3), np.int64), "ScatterND": np.zeros((2, 1), np.int64)}
COMPUTING: list[tuple[str, dict[str, Any]]] = [
    ("NonZero", {}),
    ("Unique", {}),
    ("IsNaN", {}),
    ("IsInf", {}),
    *((op, {"reduction": how}) for op in PLACES for how in ("add", "mul", "min", "max")),
]


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize(("op", "attributes"), COMPUTING, ids=[f"{o}-{a}" for o, a in COMPUTING])
def test_what_computes_refuses(op: str, attributes: dict[str, Any], dtype: dtypes.DType) -> None:
    x = Constant(dtype, (2, 3), np.zeros((2, 3), BITS[dtype]))
    inputs = [x, PLACES[op], x] if op in PLACES else [x]
    with pytest.raises(NotImplemented, match=f"computing in {dtype.name} is not supported"):
        run_operator(op, inputs, attributes)


@pytest.mark.parametrize("op", PLACES)
def test_scatters_move_raw_bits(op: str) -> None:
    x = Constant(dtypes.BFLOAT16, (2, 3), np.zeros((2, 3), np.uint16))
    updates = Constant(dtypes.BFLOAT16, (2, 3), np.full((2, 3), 0x3F80, np.uint16))
    assert (run_operator(op, [x, PLACES[op], updates])[0][0] == 0x3F80).all()


def test_texts_have_no_sum() -> None:
    texts = np.array(["a", "b"], object)
    with pytest.raises(InvalidGraph, match="strings have no 'add'"):
        run_operator("ScatterND", [texts, np.array([[0]]), texts[:1]], {"reduction": "add"})


def test_eye_like_of_bfloat16_has_bfloat16_ones() -> None:
    x = Constant(dtypes.BFLOAT16, (2, 2), np.zeros((2, 2), np.uint16))
    np.testing.assert_array_equal(run_operator("EyeLike", [x])[0], [[0x3F80, 0], [0, 0x3F80]])


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique_texts(axis: int | None, is_sorted: int) -> None:
    texts = np.array([["b", "a", "b"], ["", "c", ""]], object)
    attributes = {"axis": axis, "sorted": is_sorted}
    for x in (texts, texts[[1, 0, 1]]):
        check_operator("Unique", [x], attributes, opset=11, outputs=4)
