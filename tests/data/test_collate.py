"""Items joined to batches, against PyTorch's and by hand."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vkml
from vkml.data import default_collate, default_convert

Pair = namedtuple("Pair", "left right")
RANDOM = np.random.default_rng(0)


def cases() -> list[list[Any]]:
    arrays = [RANDOM.standard_normal((2, 3)).astype(np.float32) for _ in range(3)]
    return [
        [1, 2, 3],
        [1.5, 2.0],
        [1.5, 2],
        [True, False],
        [np.float32(1), np.float32(2)],
        [np.int16(1), np.int16(2)],
        ["a", "b"],
        [b"a"],
        arrays,
        [(array, at) for at, array in enumerate(arrays)],
        [[array, float(at)] for at, array in enumerate(arrays)],
        [{"x": array, "n": {"deep": [at, "t"]}} for at, array in enumerate(arrays)],
        [Pair(array, at) for at, array in enumerate(arrays)],
        [OrderedDict(b=1, a=array) for array in arrays],
        [np.zeros((0, 2), np.int32)] * 2,
        [np.array(3, np.uint8), np.array(4, np.uint8)],
    ]


def same(found: Any, wanted: Any) -> None:
    """That both are nested alike, and their tensors equal, types included."""
    if hasattr(wanted, "numpy"):
        array = wanted.numpy()
        assert isinstance(found, vkml.Tensor)
        assert found.numpy().dtype == array.dtype and tuple(found.shape) == array.shape
        np.testing.assert_array_equal(found.numpy(), array)
        return
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        assert found == wanted


@pytest.mark.parametrize("at", range(len(cases())))
def test_as_torch_joins_them(at: int) -> None:
    torch = pytest.importorskip("torch")
    batch = cases()[at]
    same(default_collate(batch), torch.utils.data.default_collate(batch))
    same(default_convert(batch), torch.utils.data.default_convert(batch))


def test_by_hand() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = default_collate([(x, 1, "a", {"k": 2.5}), (x + 6, 2, "b", {"k": 3.5})])
    assert isinstance(found, list) and found[0].shape == (2, 2, 3)
    np.testing.assert_array_equal(found[0].numpy().reshape(-1), np.arange(12, dtype=np.float32))
    assert found[1].dtype == vkml.int64 and found[1].tolist() == [1, 2]
    assert found[2] == ("a", "b")
    assert found[3]["k"].dtype == vkml.float64


def test_tensors_and_types_of_their_own() -> None:
    found = default_collate([vkml.tensor([1.0, 2.0], requires_grad=True), vkml.tensor([3.0, 4.0])])
    assert found.tolist() == [[1, 2], [3, 4]] and not found.requires_grad
    brain = default_collate([np.ones(2, ml_dtypes.bfloat16), np.zeros(2, ml_dtypes.bfloat16)])
    assert brain.dtype == vkml.bfloat16 and brain.float().tolist() == [[1, 1], [0, 0]]
    swapped = default_collate([np.array([1, 2], ">i4")])
    assert swapped.dtype == vkml.int32 and swapped.tolist() == [[1, 2]]
    mixed = default_collate([np.ones(2, np.float32), np.ones(2, np.float64)])
    assert mixed.dtype == vkml.float64


def test_a_batch_is_a_copy() -> None:
    array = np.zeros(3)
    batch = default_collate([array])
    array[:] = 1
    assert batch.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("batch", "error", "said"),
    [
        (
            [np.zeros(2), np.zeros(3)],
            RuntimeError,
            r"equal size, but got \[2\] at entry 0 and \[3\] at entry 1",
        ),
        ([(1, np.zeros(2)), (2, np.zeros(1))], RuntimeError, r"of the item\[1\]"),
        ([[1, 2], [1]], RuntimeError, "should be of equal size"),
        ([object()], TypeError, "found <class 'object'>"),
        ([{"a": None}], TypeError, r"NoneType.* at the item\['a'\]"),
        ([np.array(["a"])], TypeError, "found <U1"),
        ([{"a": 1}, {"b": 1}], KeyError, "'a'"),
        ([1, "a"], TypeError, "a number and str"),
        ([np.zeros(2), "a"], TypeError, "an array and str"),
        ([], RuntimeError, "no items"),
    ],
)
def test_what_cannot_be_joined(batch: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        default_collate(batch)
