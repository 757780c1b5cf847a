"""Batches of what `vkml.fit` is given: arrays in memory, or anything that yields inputs and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from vkml.data import DataLoader, Dataset, IterableDataset, random_split
from vkml.data.dataset import size_of
from vkml.errors import InvalidArgument
from vkml.tensors import Tensor
from vkml.tensors.generator import Generator

Array = np.ndarray[Any, Any]


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The same nested lists, tuples and mappings with something else in the place of each leaf."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(change, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)([mapped(change, item) for item in value])
    if isinstance(value, Mapping):
        return {key: mapped(change, item) for key, item in value.items()}
    return change(value)


def leaves_of(value: Any) -> list[Any]:
    """The leaves of nested lists, tuples and mappings, in order."""
    found: list[Any] = []
    mapped(found.append, value)
    return found


def is_arrays(data: Any) -> bool:
    """Whether data are inputs and targets of all samples, and no batches."""
    return isinstance(data, tuple) and len(data) == 2 and hasattr(data[1], "shape")


class ArrayBatches:
    """Inputs and targets of all samples, batch by batch, in an order that follows from a seed and the epoch.

    Args:
        data: inputs and targets, arrays or tensors whose first axis is the samples; inputs may be several in
            a tuple or a mapping.
        batch_size: of each batch but the last, which has the rest.
        shuffle: whether each epoch has an order of its own; else it is that of the arrays.
        seed: of these orders, which are the same on all machines.

    Raises:
        InvalidArgument: there are no samples, or not as many of one as of another.
    """

    def __init__(self, data: tuple[Any, Any], batch_size: int, shuffle: bool, seed: int) -> None:
        if batch_size < 1:
            raise InvalidArgument(f"batch_size is {batch_size}: a batch has one sample or more")
        self._data = mapped(_on_host, data)
        sizes = {len(array) for array in leaves_of(self._data)}
        if len(sizes) != 1:
            raise InvalidArgument(f"inputs and targets are of as many samples each, found {sorted(sizes)}")
        (self.samples,) = sizes
        if not self.samples:
            raise InvalidArgument("there are no samples to train on")
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._epoch = 0

    def __len__(self) -> int:
        return -(-self.samples // self._batch_size)

    def set_seed(self, seed: int) -> None:
        """Has orders follow from another seed."""
        self._seed = seed

    def set_epoch(self, epoch: int) -> None:
        """Has the next round be of the order of an epoch."""
        self._epoch = epoch

    def split(self, share: float) -> tuple[ArrayBatches, ArrayBatches]:
        """Some of the samples for training, the share of the others, drawn by the seed, for validation.

        Raises:
            InvalidArgument: one of the two would have none.
        """
        count = _held_out_count(self.samples, share)
        order = np.random.Generator(np.random.Philox(key=self._seed)).permutation(self.samples)
        parts = []
        for chosen, shuffle in ((order[count:], self._shuffle), (order[:count], False)):
            data = _taken(self._data, np.sort(chosen))
            parts.append(ArrayBatches(data, self._batch_size, shuffle, self._seed))
        return parts[0], parts[1]

    def __iter__(self) -> Iterator[Any]:
        order = None
        if self._shuffle:
            stream = np.random.Philox(key=self._seed, counter=self._epoch + 1 << 64)
            order = np.random.Generator(stream).permutation(self.samples)
        for start in range(0, self.samples, self._batch_size):
            end = start + self._batch_size
            chosen = slice(start, end) if order is None else order[start:end]
            yield _taken(self._data, chosen)


def batches_of(data: Any, what: str, batch_size: int, shuffle: bool, seed: int) -> Any:
    """Batches of all samples, arrays or a dataset of `vkml.data`; what gives batches itself as it is.

    Args:
        data: it.
        what: it is, for errors.
        batch_size: where the data are all samples.
        shuffle: likewise.
        seed: of orders, likewise.

    Raises:
        InvalidArgument: the data cannot be gone through.
    """
    if is_arrays(data):
        return ArrayBatches(data, batch_size, shuffle, seed)
    if isinstance(data, Dataset):
        is_stream = isinstance(data, IterableDataset)
        generator = Generator().manual_seed(seed)
        return DataLoader(data, batch_size, shuffle and not is_stream, generator=generator)
    if not isinstance(data, Iterable):
        raise InvalidArgument(
            f"{what} are batches that can be gone through, or a tuple of inputs and targets, not "
            f"{type(data).__name__}"
        )
    return data


def held_out(data: Any, share: float, seed: int) -> tuple[Any, Any]:
    """Samples for training and, a share of them, for validation.

    Raises:
        InvalidArgument: the data are batches; or one of the two would have none.
    """
    if isinstance(data, ArrayBatches):
        return data.split(share)
    if not isinstance(data, Dataset) or isinstance(data, IterableDataset):
        raise InvalidArgument(
            f"validation={share} holds samples of arrays or of a dataset out; with other data, give it data "
            "of its own"
        )
    samples = size_of(data)
    count = _held_out_count(samples, share)
    training, validation = random_split(data, [samples - count, count], Generator().manual_seed(seed))
    return training, validation


def _held_out_count(samples: int, share: float) -> int:
    count = round(samples * share)
    if not 0 < count < samples:
        raise InvalidArgument(
            f"validation={share} of {samples} samples leaves {samples - count} to train on and {count} to "
            "validate with"
        )
    return count


def _taken(data: Any, chosen: Any) -> Any:
    return mapped(lambda array: array[chosen], data)


def _on_host(value: Any) -> Array:
    array = value.detach().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype == object or not array.ndim:
        raise InvalidArgument(
            f"inputs and targets are arrays whose first axis is the samples, not {type(value).__name__}"
        )
    return array


def parts_of(batch: Any, float_type: np.dtype[Any]) -> tuple[Any, Any, int]:
    """Inputs, target and how many samples a batch has.

    Args:
        batch: of two, inputs and target: tensors, arrays, or nested numbers.
        float_type: in which the model computes; arrays of float64, which NumPy makes of most things, come to
            it in this one.

    Raises:
        InvalidArgument: the batch is something else.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        held = f"{len(batch)} things" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
        raise InvalidArgument(f"a batch is a pair of inputs and target, this one is {held}")
    inputs, target = mapped(lambda leaf: _as_fed(leaf, float_type), tuple(batch))
    leaves = leaves_of(inputs)
    if not leaves or not leaves[0].shape:
        raise InvalidArgument("the first axis of a batch's inputs is the samples; these have none")
    return inputs, target, int(leaves[0].shape[0])


def _as_fed(leaf: Any, float_type: np.dtype[Any]) -> Tensor | Array:
    if isinstance(leaf, Tensor):
        return leaf
    array = np.asarray(leaf)
    return array.astype(float_type) if array.dtype == np.float64 != float_type else array
