"""Element types of results: PyTorch's, for all pairs of types and kinds of operands."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from vkml.ir import DType, dtypes
from vkml.tensors.creation import tensor
from vkml.tensors.promotion import promote_types, result_type

torch = pytest.importorskip("torch")
NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
TYPES: dict[str, DType] = {
    name: dtypes.BFLOAT16 if name == "bfloat16" else dtypes.from_numpy(np.dtype(name)) for name in NAMES
}


def test_every_pair_of_types() -> None:
    for one, other in itertools.product(NAMES, NAMES):
        wanted = str(torch.promote_types(getattr(torch, one), getattr(torch, other))).removeprefix("torch.")
        assert promote_types(TYPES[one], TYPES[other]) == TYPES[wanted], (one, other)


def _operands(name: str) -> list[tuple[Any, Any]]:
    """A tensor with axes and one without, of either library."""
    kind = getattr(torch, name)
    return [
        (tensor(np.ones(shape), dtype=TYPES[name]), torch.ones(shape, dtype=kind)) for shape in ((2,), ())
    ]


def test_tensors_single_elements_and_numbers() -> None:
    numbers: list[tuple[Any, Any]] = [(number, number) for number in (True, 3, 2.5)]
    for one, other in itertools.product(NAMES, NAMES):
        for x, y in itertools.product(_operands(one), _operands(other)):
            wanted = str(torch.result_type(x[1], y[1])).removeprefix("torch.")
            assert result_type(x[0], y[0]) == TYPES[wanted], (one, other, x[0].shape, y[0].shape)
    for name in NAMES:
        for x, y in itertools.product(_operands(name), numbers):
            wanted = str(torch.result_type(x[1], y[1])).removeprefix("torch.")
            assert result_type(x[0], y[0]) == result_type(y[0], x[0]) == TYPES[wanted], (name, y[0])
