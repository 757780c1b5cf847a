"""Sets of examples: `Dataset` and the ways to join, cut and pair them."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from vkml.data.rows import Rows
from vkml.data.streams import drawn_seed, permutation
from vkml.tensors import Tensor

Array = np.ndarray[Any, Any]
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Dataset(Generic[T_co]):
    """Examples that are found by their index; subclasses define `__getitem__`, and mostly `__len__`.

    A subclass may have more: ``__getitems__(indices)``, a list of items, where it finds several faster than
    one after the other; ``item_name(index)``, a text for errors, such as the file that an item is in.
    """

    def __getitem__(self, index: Any) -> T_co:
        """One example."""
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        """Both, one behind the other."""
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """Examples that come one after the other; subclasses define `__iter__`.

    A `DataLoader` goes through it once an epoch, whatever number of workers it has: nothing comes twice.
    Where it has ``state_dict`` and ``load_state_dict``, a loader that goes on in the middle of an epoch asks
    these instead of going through what has been.
    """

    def __iter__(self) -> Iterator[T_co]:
        """The examples."""
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        """Both, one behind the other."""
        return ChainDataset([self, other])


def size_of(dataset: Any) -> int:
    """How many items a dataset has.

    Raises:
        TypeError: it does not say.
    """
    if not hasattr(dataset, "__len__"):
        raise TypeError(f"object of type '{type(dataset).__name__}' has no len()")
    return len(dataset)


def rows_of(dataset: Any, indices: Sequence[int]) -> Any:
    """Items as rows of arrays, in the form of one item; None where the dataset does not know them so."""
    find = getattr(dataset, "_rows", None)
    return None if find is None else find(indices)


def _checked_indices(indices: Sequence[int], size: int) -> Array:
    """As numbers of at least 0.

    Raises:
        IndexError: there is no such item.
    """
    found = np.asarray(indices)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"items are found by integers, not by {found.dtype}")
    found = found.astype(np.int64, copy=False).reshape(-1)
    wrong = (found < -size) | (found >= size)
    if wrong.any():
        raise IndexError(f"index {found[wrong][0]} is out of range for a dataset of {size} items")
    return np.where(found < 0, found + size, found)


class ArrayDataset(Dataset[Any]):
    """Rows of arrays that belong together, by the index along their first axis.

    Args:
        arrays: of the same number of rows; they are not copied.
        single: whether an item is the row itself, of one array, instead of a tuple of rows.
    """

    def __init__(self, *arrays: Array, single: bool = False) -> None:
        if single and len(arrays) != 1:
            raise ValueError(f"one array makes items that are no tuples, not {len(arrays)}")
        self.arrays: tuple[Array, ...] = tuple(np.asarray(array) for array in arrays)
        if any(not array.ndim for array in self.arrays):
            raise ValueError("an array without axes has no rows")
        if len({len(array) for array in self.arrays}) > 1:
            raise ValueError(f"Size mismatch between arrays: {[len(array) for array in self.arrays]} rows")
        self._single = single

    def __len__(self) -> int:
        return len(self.arrays[0]) if self.arrays else 0

    def __getitem__(self, index: int) -> Any:
        [at] = _checked_indices([index], len(self))
        return self._item([array[at] for array in self.arrays])

    def _rows(self, indices: Sequence[int]) -> Any:
        places = _checked_indices(indices, len(self))
        return self._item([Rows(array, places) for array in self.arrays])

    def _item(self, parts: list[Any]) -> Any:
        return parts[0] if self._single else tuple(parts)


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Tensors whose first axes are the examples; an item is a tuple of their parts at an index.

    Args:
        tensors: of the same first size; arrays are taken, too.

    Example:
        >>> import vkml
        >>> from vkml.data import TensorDataset
        >>> dataset = TensorDataset(vkml.arange(6).reshape(3, 2), vkml.tensor([0, 1, 0]))
        >>> len(dataset), dataset[1]
        (3, (tensor([2, 3]), tensor(1)))
    """

    def __init__(self, *tensors: Any) -> None:
        from vkml.tensors.creation import tensor

        self.tensors = tuple(one if isinstance(one, Tensor) else tensor(one) for one in tensors)
        if not self.tensors:
            raise IndexError("TensorDataset needs a tensor")
        if any(not one.ndim or one.shape[0] != self.tensors[0].shape[0] for one in self.tensors):
            raise AssertionError(
                f"Size mismatch between tensors: their sizes are {[list(one.shape) for one in self.tensors]}"
            )

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(one[index] for one in self.tensors)

    def _rows(self, indices: Sequence[int]) -> Any:
        if type(self).__getitem__ is not TensorDataset.__getitem__:
            return None
        if any(one.device != "cpu" or one.requires_grad for one in self.tensors):
            return None
        places = _checked_indices(indices, len(self))
        return tuple(Rows(one._elements(), places) for one in self.tensors)


class ConcatDataset(Dataset[T_co]):
    """Datasets, one behind the other.

    Args:
        datasets: at least one, with a length each.
    """

    def __init__(self, datasets: Iterable[Dataset[T_co]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(one, IterableDataset) for one in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = list(itertools.accumulate(size_of(one) for one in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def _place(self, index: int) -> tuple[Dataset[T_co], int]:
        size = len(self)
        if index < 0:
            if -index > size:
                raise ValueError("absolute value of index should not exceed dataset length")
            index += size
        if index >= size:
            raise IndexError(f"index {index} is out of range for a dataset of {size} items")
        at = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[at], index - (self.cumulative_sizes[at - 1] if at else 0)

    def __getitem__(self, index: int) -> T_co:
        dataset, at = self._place(index)
        return dataset[at]

    def item_name(self, index: int) -> str | None:
        """What the dataset that it is in calls an item.

        Args:
            index: of the item.
        """
        dataset, at = self._place(index)
        return name_of(dataset, at)


class ChainDataset(IterableDataset[Any]):
    """Iterable datasets, one behind the other.

    Args:
        datasets: each an `IterableDataset`.
    """

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        for one in self.datasets:
            if not isinstance(one, IterableDataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield from one

    def __len__(self) -> int:
        return sum(size_of(one) for one in self.datasets)


class StackDataset(Dataset[Any]):
    """Datasets side by side: an item is a tuple of theirs, or a dict where they are given by name.

    Args:
        args: datasets of one length.
        kwargs: likewise, by name; either these or `args`.
    """

    def __init__(self, *args: Dataset[Any], **kwargs: Dataset[Any]) -> None:
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or ``dict``- (via ``kwargs``) like input/output, "
                "but both types are given."
            )
        if not args and not kwargs:
            raise ValueError("At least one dataset should be passed")
        self.datasets: Any = args or kwargs
        sizes = {size_of(one) for one in self._parts()}
        if len(sizes) > 1:
            raise ValueError("Size mismatch between datasets")
        [self._length] = sizes

    def _parts(self) -> list[Any]:
        return list(self.datasets.values() if isinstance(self.datasets, dict) else self.datasets)

    def _formed(self, parts: list[Any]) -> Any:
        return (
            dict(zip(self.datasets, parts, strict=True)) if isinstance(self.datasets, dict) else tuple(parts)
        )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._formed([one[index] for one in self._parts()])

    def _rows(self, indices: Sequence[int]) -> Any:
        found = [rows_of(one, indices) for one in self._parts()]
        return None if any(part is None for part in found) else self._formed(found)

    def item_name(self, index: int) -> str | None:
        """What its datasets call an item.

        Args:
            index: of the item.
        """
        names = [name_of(one, index) for one in self._parts()]
        return ", ".join(name for name in names if name is not None) or None


class Subset(Dataset[T_co]):
    """Some items of a dataset, in an order of their own.

    Args:
        dataset: the whole.
        indices: of its items, as they come here.
    """

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[at] for at in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """Several items."""
        places = [self.indices[at] for at in indices]
        several = getattr(self.dataset, "__getitems__", None)
        return several(places) if several is not None else [self.dataset[at] for at in places]

    def _rows(self, indices: Sequence[int]) -> Any:
        if type(self).__getitem__ is not Subset.__getitem__:
            return None
        return rows_of(self.dataset, [self.indices[at] for at in indices])

    def item_name(self, index: int) -> str | None:
        """What the whole calls an item.

        Args:
            index: of the item.
        """
        return name_of(self.dataset, self.indices[index])


def random_split(
    dataset: Dataset[T], lengths: Sequence[int | float], generator: Any = None
) -> list[Subset[T]]:
    """Parts of a dataset, at random and without a common item.

    Args:
        dataset: the whole.
        lengths: of the parts; or fractions that sum up to 1, of which the first get one item more each as
            long as any are left over.
        generator: a `vkml.Generator`; the CPU's own where left out.

    Raises:
        ValueError: the lengths do not sum up to the dataset's.

    Example:
        >>> import vkml
        >>> from vkml.data import random_split
        >>> parts = random_split(range(10), [0.3, 0.7], vkml.Generator().manual_seed(1))
        >>> [list(part) for part in parts]
        [[6, 2, 3], [1, 0, 9, 5, 8, 7, 4]]
    """
    size = size_of(dataset)
    whole = list(lengths)
    if math.isclose(sum(whole), 1) and sum(whole) <= 1 + 1e-9:
        for at, share in enumerate(whole):
            if share < 0 or share > 1:
                raise ValueError(f"Fraction at index {at} is not between 0 and 1")
        whole = [math.floor(size * share) for share in whole]
        for at in range(size - int(sum(whole))):
            whole[at % len(whole)] += 1
    if any(not isinstance(count, int | np.integer) or count < 0 for count in whole):
        raise ValueError(
            f"lengths are integers of at least 0, or fractions that sum up to 1, not {list(lengths)}"
        )
    if sum(whole) != size:
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    order = permutation(drawn_seed(generator), size).tolist()
    ends = itertools.accumulate(int(count) for count in whole)
    return [Subset(dataset, order[end - count : end]) for end, count in zip(ends, whole, strict=True)]


def name_of(dataset: Any, index: Any) -> str | None:
    """What a dataset calls an item; None where it has no name for it."""
    find = getattr(dataset, "item_name", None)
    if find is None:
        return None
    try:
        found = find(index)
    except Exception:  # of an index that there is not: the error that is being told says so
        return None
    return None if found is None else str(found)
