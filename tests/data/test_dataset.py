"""Datasets: joined, cut, paired, split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.data import (
    ArrayDataset,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)


class Numbers(Dataset[int]):
    """Numbers from a first one on, which know their names."""

    def __init__(self, first: int, size: int) -> None:
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return self.first + index

    def item_name(self, index: int) -> str:
        return f"number {self.first + index}"


class Counted(IterableDataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


def test_tensors() -> None:
    x, y = vkml.arange(6).reshape(3, 2), vkml.tensor([1.0, 2.0, 3.0])
    dataset = TensorDataset(x, y)
    assert len(dataset) == 3
    for at in (0, 2, -1):
        found = dataset[at]
        assert found[0].tolist() == x[at].tolist() and found[1].item() == y[at].item()
    with pytest.raises(AssertionError, match="Size mismatch between tensors"):
        TensorDataset(x, y[:2])
    with pytest.raises(IndexError):
        dataset[3]
    x[0, 0] = 9  # it is not copied
    assert dataset[0][0].tolist() == [9, 1]
    [batch] = DataLoader(dataset, 3)
    assert batch[0].tolist() == [[9, 1], [2, 3], [4, 5]]


def test_arrays() -> None:
    array = np.arange(12).reshape(4, 3)
    dataset = ArrayDataset(array, np.arange(4))
    assert len(dataset) == 4 and dataset[-1][0].tolist() == [9, 10, 11] and dataset[1][1] == 1
    assert ArrayDataset(array, single=True)[2].tolist() == [6, 7, 8]
    with pytest.raises(IndexError, match="index 4 is out of range for a dataset of 4 items"):
        dataset[4]
    with pytest.raises(IndexError, match="index -5"):
        dataset[-5]
    with pytest.raises(TypeError, match="integers"):
        dataset[1.5]  # type: ignore[index]
    with pytest.raises(ValueError, match="Size mismatch"):
        ArrayDataset(array, np.arange(3))
    with pytest.raises(ValueError, match="no rows"):
        ArrayDataset(np.float32(1))


def test_one_behind_the_other() -> None:
    whole: Any = Numbers(0, 3) + Numbers(10, 0) + Numbers(20, 2)
    assert isinstance(whole, ConcatDataset)
    assert len(whole) == 5
    assert [whole[at] for at in range(5)] == [0, 1, 2, 20, 21]
    assert [whole[at] for at in (-1, -5)] == [21, 0]
    assert whole.item_name(3) == "number 20"
    with pytest.raises(ValueError, match="absolute value of index should not exceed dataset length"):
        whole[-6]
    with pytest.raises(IndexError):
        whole[5]
    with pytest.raises(AssertionError, match="should not be an empty iterable"):
        ConcatDataset([])
    with pytest.raises(AssertionError, match="does not support IterableDataset"):
        ConcatDataset([Counted(2)])


def test_iterables_one_behind_the_other() -> None:
    chain = Counted(2) + Counted(3)
    assert isinstance(chain, ChainDataset)
    assert list(chain) == [0, 1, 0, 1, 2]
    with pytest.raises(AssertionError, match="only supports IterableDataset"):
        list(ChainDataset([Numbers(0, 1)]))
    with pytest.raises(TypeError, match="has no len"):
        len(chain)


def test_side_by_side() -> None:
    pair = StackDataset(Numbers(0, 3), Numbers(10, 3))
    assert pair[1] == (1, 11) and len(pair) == 3 and pair.item_name(1) == "number 1, number 11"
    assert StackDataset(a=Numbers(0, 3), b=Numbers(5, 3))[2] == {"a": 2, "b": 7}
    with pytest.raises(ValueError, match="Size mismatch between datasets"):
        StackDataset(Numbers(0, 3), Numbers(0, 2))
    with pytest.raises(ValueError, match="At least one dataset"):
        StackDataset()
    with pytest.raises(ValueError, match="both types are given"):
        StackDataset(Numbers(0, 1), a=Numbers(0, 1))


def test_subsets() -> None:
    part = Subset(Numbers(10, 5), [4, 0, 2])
    assert [part[at] for at in range(3)] == [14, 10, 12] and len(part) == 3
    assert part.__getitems__([0, 2]) == [14, 12]
    assert part.item_name(0) == "number 14"
    nested = Subset(Subset(ArrayDataset(np.arange(5) * 10, single=True), [4, 3, 0]), [2, 0])
    assert [batch.tolist() for batch in DataLoader(nested, 2)] == [[0, 40]]


def test_abstract_ones() -> None:
    with pytest.raises(NotImplementedError):
        Dataset[int]()[0]
    with pytest.raises(NotImplementedError):
        iter(IterableDataset[int]())


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([3, 7], [3, 7]), ([0.5, 0.5], [5, 5]), ([0.35, 0.35, 0.3], [4, 3, 3]), ([10, 0], [10, 0])],
)
def test_splits(lengths: Any, sizes: list[int]) -> None:
    parts = random_split(Numbers(0, 10), lengths, vkml.Generator().manual_seed(1))
    assert [len(part) for part in parts] == sizes
    assert sorted(item for part in parts for item in (part[at] for at in range(len(part)))) == list(range(10))
    again = random_split(Numbers(0, 10), lengths, vkml.Generator().manual_seed(1))
    assert [part.indices for part in parts] == [part.indices for part in again]


def test_split_is_the_same_everywhere() -> None:
    parts = random_split(range(10), [0.3, 0.7], vkml.Generator().manual_seed(1))  # type: ignore[arg-type]
    assert [part.indices for part in parts] == [[6, 2, 3], [1, 0, 9, 5, 8, 7, 4]]


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ([3, 3], "Sum of input lengths does not equal the length of the input dataset!"),
        ([-0.5, 1.5], "Fraction at index 0 is not between 0 and 1"),
        ([12, -2], "integers of at least 0"),
        ([0.4, 0.4], "integers of at least 0"),
    ],
)
def test_impossible_splits(lengths: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        random_split(Numbers(0, 10), lengths)
