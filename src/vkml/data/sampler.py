"""Orders in which a dataset's items come: samplers, of single indices and of batches."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np

from vkml.data.streams import derived, drawn_seed, integers, permutation, wide_words

Array = np.ndarray[Any, Any]
T_co = TypeVar("T_co", covariant=True)
_WEIGHT_BITS = 62


class Sampler(Generic[T_co]):
    """An order of indices; subclasses define `__iter__`, and `__len__` where they know.

    A sampler with ``state_dict`` and ``load_state_dict`` can give an epoch's order once more: a `DataLoader`
    asks for the state before the epoch begins, and `__iter__` after `load_state_dict` has that order.
    """

    def __iter__(self) -> Iterator[T_co]:
        """The indices of an epoch."""
        raise NotImplementedError


class SequentialSampler(Sampler[int]):
    """Items in their order.

    Args:
        data_source: the dataset.
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class _Seeded(Sampler[int]):
    """An order that follows from one seed an epoch, drawn from a generator when the epoch begins.

    Args:
        generator: a `vkml.Generator`; the CPU's own where left out.
    """

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self._next_seed: int | None = None

    def __iter__(self) -> Iterator[int]:
        seed, self._next_seed = self._next_seed, None
        return self._order(drawn_seed(self.generator) if seed is None else seed)

    def _order(self, seed: int) -> Iterator[int]:
        raise NotImplementedError

    def seed_next(self, seed: int) -> None:
        """Has the next epoch go by a seed, instead of one that is drawn."""
        self._next_seed = seed

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes to have the order come that would come now.

        The seed of the next epoch is drawn for it, if it has not been.
        """
        if self._next_seed is None:
            self._next_seed = drawn_seed(self.generator)
        return {
            "seed": self._next_seed,
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has the next epoch be the one that came next when the state was asked for.

        Args:
            state: what `state_dict` gave.
        """
        self._next_seed = state["seed"]
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"])


class RandomSampler(_Seeded):
    """Items in any order, all equally likely; of a seed, the same on all platforms.

    Args:
        data_source: the dataset.
        replacement: whether each is drawn from all, so that some come several times.
        num_samples: how many come; all where left out. More than there are come in several rounds.
        generator: a `vkml.Generator` that a seed is drawn from in each epoch; the CPU's own where left out.
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None,
        generator: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(generator)
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        if not isinstance(self.num_samples, int) or self.num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={self.num_samples}"
            )

    @property
    def num_samples(self) -> int:
        """How many come in an epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def _order(self, seed: int) -> Iterator[int]:
        size, count = len(self.data_source), self.num_samples
        if self.replacement:
            return iter(integers(seed, count, size).tolist())
        rounds = (permutation(seed if not at else derived(seed, at), size) for at in itertools.count())
        return itertools.islice(itertools.chain.from_iterable(order.tolist() for order in rounds), count)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(_Seeded):
    """Some items in any order.

    Args:
        indices: of these.
        generator: see `RandomSampler`.
    """

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        super().__init__(generator)
        self.indices = indices

    def _order(self, seed: int) -> Iterator[int]:
        return (self.indices[at] for at in permutation(seed, len(self.indices)).tolist())

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_Seeded):
    """Items as often as their weights say.

    Args:
        weights: of each item, at least 0; what counts is their ratio.
        num_samples: how many come.
        replacement: whether an item can come several times.
        generator: see `RandomSampler`.

    Raises:
        ValueError: weights that are none, or fewer items than are wanted.
    """

    def __init__(
        self, weights: Any, num_samples: int, replacement: bool = True, generator: Any = None
    ) -> None:
        super().__init__(generator)
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        found = np.asarray(weights, np.float64)
        if found.ndim != 1:
            raise ValueError(f"weights should be a 1d sequence but given weights have shape {found.shape}")
        if not np.isfinite(found).all() or (found < 0).any() or not found.any():
            raise ValueError("weights are finite, at least 0 and not all 0")
        if not replacement and num_samples > np.count_nonzero(found):
            raise ValueError(
                f"{num_samples} items are wanted, each once, and {np.count_nonzero(found)} have a weight"
            )
        self.weights = found
        self.num_samples = num_samples
        self.replacement = replacement

    def _order(self, seed: int) -> Iterator[int]:
        words = wide_words(seed, self.num_samples)
        if self.replacement:
            return iter(np.searchsorted(self._ends, words, side="right").tolist())
        return _without_replacement(self._shares, words.tolist())

    @functools.cached_property
    def _shares(self) -> list[int]:
        """Integers in the weights' ratio: their sums are the same everywhere."""
        scale = 2.0 ** (_WEIGHT_BITS - len(self.weights).bit_length()) / self.weights.max()
        shares = [int(share) for share in np.floor(self.weights * scale).tolist()]
        return [max(share, int(weight > 0)) for share, weight in zip(shares, self.weights, strict=True)]

    @functools.cached_property
    def _ends(self) -> Array:
        """Of all words of 64 bits, where the part of each item but the last that has one ends."""
        last = int(np.flatnonzero(self.weights)[-1])
        total = sum(self._shares)
        return np.array(
            [(end << 64) // total for end in itertools.accumulate(self._shares[:last])], np.uint64
        )

    def __len__(self) -> int:
        return self.num_samples


def _without_replacement(shares: list[int], words: list[int]) -> Iterator[int]:
    """Items drawn one after the other, each then without a share."""
    # Sums over subtrees of a Fenwick tree (P. Fenwick, Software: Practice and Experience 24, 1994).
    sums = [0, *shares]
    for at in range(1, len(sums)):
        above = at + (at & -at)
        if above < len(sums):
            sums[above] += sums[at]
    total, highest = sum(shares), 1 << (len(shares).bit_length() - 1)
    for word in words:
        wanted, at, step = word * total >> 64, 0, highest
        while step:
            if at + step < len(sums) and sums[at + step] <= wanted:
                at += step
                wanted -= sums[at]
            step >>= 1
        share = shares[at]
        total -= share
        yield at
        up = at + 1
        while up < len(sums):
            sums[up] -= share
            up += up & -up


class BatchSampler(Sampler[list[int]]):
    """Lists of indices that another sampler gives one by one.

    Args:
        sampler: that one.
        batch_size: indices in a list.
        drop_last: whether a last list of fewer is left out.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        return self._batches(iter(self.sampler))

    def _batches(self, indices: Iterator[Any]) -> Iterator[list[Any]]:
        while batch := list(itertools.islice(indices, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state, where it has one."""
        return state_of(self.sampler)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Gives the sampler a state.

        Args:
            state: what `state_dict` gave.
        """
        restore(self.sampler, state)


class DistributedSampler(Sampler[int]):
    """The items of one of several processes or devices, which share a dataset evenly.

    All have the same number: where that does not go up, the first ones come once more, or the last ones do
    not.

    Args:
        dataset: the whole.
        num_replicas: how many share it.
        rank: whose items these are, from 0.
        shuffle: whether they come in any order, anew in each epoch (`set_epoch`).
        seed: of the order, the same for all.
        drop_last: whether items that do not go up are left out.
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True,
        seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        if num_replicas is None or rank is None:
            raise RuntimeError(
                "DistributedSampler needs num_replicas and rank: there is no process group to ask"
            )
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0

    @property
    def num_samples(self) -> int:
        """How many items each has."""
        size = len(self.dataset)
        return size // self.num_replicas if self.drop_last else math.ceil(size / self.num_replicas)

    @property
    def total_size(self) -> int:
        """How many items all have."""
        return self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Has the next order be that of an epoch.

        Args:
            epoch: its number.
        """
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        order = permutation(derived(self.seed, self.epoch), size) if self.shuffle else np.arange(size)
        whole = np.resize(order, self.total_size) if size else order
        return iter(whole[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        return self.num_samples

    def state_dict(self) -> dict[str, Any]:
        """The epoch."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has the next order be that of the state's epoch.

        Args:
            state: what `state_dict` gave.
        """
        self.epoch = state["epoch"]


def state_of(sampler: Any) -> dict[str, Any]:
    """A sampler's state; empty where it has none."""
    return sampler.state_dict() if hasattr(sampler, "state_dict") else {}


def restore(sampler: Any, state: dict[str, Any]) -> None:
    """Gives a sampler a state, where it takes one."""
    if state and hasattr(sampler, "load_state_dict"):
        sampler.load_state_dict(state)
