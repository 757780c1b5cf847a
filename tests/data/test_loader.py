"""Loaders: batches, their order, arguments; with and without workers the same."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.data import (
    ArrayDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    get_worker_info,
    random_stream,
)

WORKERS = [0, 1, 3]


class Squares(Dataset[Any]):
    """Arrays, numbers and texts that tell which item they are."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return np.full(2, index, np.float32), index * index, {"name": str(index)}


class Counted(IterableDataset[Any]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.size):
            yield np.array([number, -number])


def numbers(batches: Any) -> list[list[int]]:
    """Which items are in each batch."""
    return [batch[1].tolist() if isinstance(batch, list) else batch.tolist() for batch in batches]


def flat(batches: Any) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_batches_in_order_are_torchs(workers: int, drop_last: bool, batch_size: int) -> None:
    torch = pytest.importorskip("torch")
    loader = DataLoader(Squares(11), batch_size, num_workers=workers, drop_last=drop_last)
    theirs = torch.utils.data.DataLoader(Squares(11), batch_size, drop_last=drop_last)
    assert len(loader) == len(theirs)
    for _ in range(2):
        ours = list(loader)
        assert len(ours) == len(loader)
        for found, wanted in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(found[0].numpy(), wanted[0].numpy())
            np.testing.assert_array_equal(found[1].numpy(), wanted[1].numpy())
            assert found[2] == wanted[2]


@pytest.mark.parametrize("workers", WORKERS)
def test_an_iterable_is_gone_through_once(workers: int) -> None:
    loader = DataLoader(Counted(7), 3, num_workers=workers)
    wanted = [[0, 1, 2], [3, 4, 5], [6]]
    for _ in range(2):
        assert [batch[:, 0].tolist() for batch in loader] == wanted
    assert len(loader) == 3
    dropped = DataLoader(Counted(7), 3, num_workers=workers, drop_last=True)
    assert [batch[:, 0].tolist() for batch in dropped] == wanted[:2] and len(dropped) == 2
    singly = DataLoader(Counted(2), None, num_workers=workers)
    assert [item.tolist() for item in singly] == [[0, 0], [1, -1]] and len(singly) == 2
    assert list(DataLoader(Counted(0), 3, num_workers=workers)) == []


@pytest.mark.parametrize("workers", WORKERS)
def test_epochs_differ_and_begin_with_the_seed(workers: int) -> None:
    def loader(seed: int, **options: Any) -> DataLoader[Any]:
        generator = vkml.Generator().manual_seed(seed)
        return DataLoader(
            ArrayDataset(np.arange(10), single=True),
            4,
            True,
            generator=generator,
            num_workers=workers,
            **options,
        )

    first = loader(1)
    epochs = [numbers(first) for _ in range(3)]
    assert epochs == EPOCHS
    assert [sorted(flat(epoch)) for epoch in epochs] == [list(range(10))] * 3
    once = loader(1, order="once")
    assert [numbers(once) for _ in range(2)] == [epochs[0]] * 2
    assert numbers(loader(2)) != epochs[0]
    first.set_epoch(1)
    assert numbers(first) == epochs[1] and first.epoch == 2


EPOCHS = [
    [[9, 5, 0, 6], [7, 3, 1, 2], [4, 8]],
    [[2, 4, 6, 7], [0, 5, 3, 8], [1, 9]],
    [[3, 6, 8, 5], [0, 9, 2, 7], [1, 4]],
]


def test_the_order_does_not_depend_on_what_else_is_drawn() -> None:
    def epochs(draws: int) -> list[Any]:
        vkml.manual_seed(3)
        loader = DataLoader(ArrayDataset(np.arange(30), single=True), 5, shuffle=True)
        found = []
        for _ in range(3):
            found.append(numbers(loader))
            vkml.rand(draws).numpy()
        return found

    assert epochs(1) == epochs(10)


@pytest.mark.parametrize("workers", WORKERS)
def test_samplers_and_batches_of_ones_own(workers: int) -> None:
    data = Squares(6)
    assert numbers(DataLoader(data, 2, sampler=[5, 1, 3], num_workers=workers)) == [[25, 1], [9]]
    batches = [[0, 2], [], [1]]
    with pytest.raises(RuntimeError, match="no items"):
        numbers(DataLoader(data, batch_sampler=batches, num_workers=workers))
    loader = DataLoader(data, batch_sampler=[[0, 2], [1]], num_workers=workers)
    assert numbers(loader) == [[0, 4], [1]] and len(loader) == 2
    sampler = RandomSampler(data, generator=vkml.Generator().manual_seed(1))
    shuffled = numbers(DataLoader(data, 4, sampler=sampler, num_workers=workers))
    assert sorted(flat(shuffled)) == [0, 1, 4, 9, 16, 25]
    indices = np.array([3, 1])
    assert numbers(DataLoader(data, 2, sampler=indices, num_workers=workers)) == [[9, 1]]


@pytest.mark.parametrize("workers", WORKERS)
def test_items_one_by_one(workers: int) -> None:
    found = list(DataLoader(Squares(3), None, num_workers=workers))
    assert [item[0].tolist() for item in found] == [[0, 0], [1, 1], [2, 2]]
    assert [item[1] for item in found] == [0, 1, 4]
    tensors = list(DataLoader(TensorDataset(vkml.arange(3)), None, num_workers=workers))
    assert [item[0].item() for item in tensors] == [0, 1, 2]


@pytest.mark.parametrize("workers", WORKERS)
def test_joined_by_the_program(workers: int) -> None:
    def join(items: list[Any]) -> Any:
        return sum(item[1] for item in items), vkml.tensor([item[0] for item in items]).sum()

    found = list(DataLoader(Squares(4), 3, collate_fn=join, num_workers=workers))
    assert [(total, tensor.item()) for total, tensor in found] == [(5, 6.0), (9, 6.0)]


@pytest.mark.parametrize("workers", WORKERS)
def test_items_that_are_found_together(workers: int) -> None:
    class Together(Squares):
        asked: list[list[int]] = []

        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.asked.append(indices)
            return [self[at] for at in indices]

    data = Together(5)
    data.asked.clear()
    assert numbers(DataLoader(data, 3, num_workers=workers)) == [[0, 1, 4], [9, 16]]
    assert sorted(data.asked) == [[0, 1, 2], [3, 4]]
    part = Subset(data, [4, 2])
    assert numbers(DataLoader(part, 2, num_workers=workers)) == [[16, 4]]


def test_a_subclass_that_changes_items_is_asked_for_them() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return tuple(2 * part for part in super().__getitem__(index))

    [batch] = DataLoader(Doubled(vkml.arange(3)), 3)
    assert batch[0].tolist() == [0, 2, 4]


@pytest.mark.parametrize("workers", WORKERS)
def test_rows_of_all_kinds(workers: int) -> None:
    """In order, at random, of arrays that are not contiguous, of other byte orders."""
    wide = np.arange(240).reshape(20, 12)
    arrays = [wide, wide[:, ::2], wide.T.copy().T, wide.astype(">i4"), wide.astype(np.uint8)]
    for array in arrays:
        for order in ([3, 4, 5, 6], [7, 0, 19, 7], [-1, 2]):
            [found] = DataLoader(ArrayDataset(array, single=True), 4, sampler=order, num_workers=workers)
            np.testing.assert_array_equal(found.numpy(), array[order])
            assert found.numpy().dtype == array.dtype.newbyteorder("=")


def test_numbers_of_items_do_not_depend_on_workers() -> None:
    class Drawn(Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return index, random_stream().word(), random_stream().word()

    def epochs(workers: int) -> Any:
        loader = DataLoader(Drawn(), 4, True, num_workers=workers, generator=vkml.Generator().manual_seed(1))
        return [
            {int(i): (int(a), int(b)) for batch in loader for i, a, b in zip(*batch, strict=True)}
            for _ in range(2)
        ]

    first, second = epochs(0)
    assert [first, second] == epochs(1) == epochs(4)
    assert len({word for epoch in (first, second) for pair in epoch.values() for word in pair}) == 80


def test_no_more_is_in_work_than_there_are_workers() -> None:
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=60)

    class Watched(Dataset[int]):
        now = most = 0

        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> int:
            with lock:
                self.now += 1
                self.most = max(self.most, self.now)
            both.wait()  # until another one is in work: of the same batch, for each has two
            with lock:
                self.now -= 1
            return index

    data = Watched()
    assert flat(numbers(DataLoader(data, 2, num_workers=2, prefetch_factor=1))) == list(range(12))
    assert data.most == 2


def test_no_more_is_loaded_ahead_than_asked_for() -> None:
    class Noted(Squares):
        seen: list[int] = []

        def __getitem__(self, index: int) -> Any:
            self.seen.append(index)
            return super().__getitem__(index)

    data = Noted(100)
    data.seen.clear()
    batches = iter(DataLoader(data, 4, num_workers=2, prefetch_factor=3))
    for taken in range(1, 5):
        next(batches)
        assert len(data.seen) <= 4 * (taken + 3)
    batches.close()  # type: ignore[attr-defined]
    assert len(data.seen) <= 4 * (4 + 3)


def test_workers_are_told_to_begin() -> None:
    begun: list[int] = []

    class Asking(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            info = get_worker_info()
            assert info is not None and info.id in begun and info.num_workers == 2 and info.dataset is self
            return info.seed

    def begin(worker: int) -> None:
        begun.append(worker)

    loader = DataLoader(Asking(), 2, num_workers=2, worker_init_fn=begin)
    list(loader)
    once = sorted(begun)
    assert once in ([0], [0, 1])
    list(loader)
    assert len(begun) > len(once)
    assert get_worker_info() is None
    begun.clear()
    kept = DataLoader(Asking(), 2, num_workers=2, worker_init_fn=begin, persistent_workers=True)
    for _ in range(5):
        list(kept)
    assert sorted(begun) in ([0], [0, 1])


def test_an_iterable_sees_one_worker() -> None:
    class Sharded(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            start, step = (0, 1) if info is None else (info.id, info.num_workers)
            return iter(range(start, 9, step))

    assert flat(numbers(DataLoader(Sharded(), 2, num_workers=4))) == list(range(9))


def test_loaders_within_loaders() -> None:
    """Each item of one is a whole epoch of another: no thread waits for a thread."""

    class Outer(Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            inner = DataLoader(Squares(index + 1), 2, num_workers=2)
            return sum(int(batch[1].sum().item()) for batch in inner)

    found = flat(numbers(DataLoader(Outer(), 2, num_workers=2)))
    assert found == [sum(at * at for at in range(index + 1)) for index in range(6)]


def test_several_at_a_time() -> None:
    loaders = [DataLoader(Squares(20), 3, num_workers=2) for _ in range(3)]
    wanted = numbers(DataLoader(Squares(20), 3))
    for batches in zip(*loaders, strict=True):
        assert len({str(numbers([batch])) for batch in batches}) == 1
        assert numbers(batches[:1]) == [wanted.pop(0)]
    assert not wanted


def test_anything_that_has_items_and_a_length() -> None:
    assert numbers(DataLoader([4, 5, 6], 2)) == [[4, 5], [6]]
    assert numbers(DataLoader(range(3), 2, num_workers=1)) == [[0, 1], [2]]
    assert list(DataLoader(["a", "b"], 2)) == [["a", "b"]]
    assert list(DataLoader([], 2)) == [] and len(DataLoader([], 2)) == 0


IMPOSSIBLE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"batch_size": 0}, ValueError, "batch_size=0"),
    ({"batch_size": -1}, ValueError, "batch_size=-1"),
    ({"batch_size": 1.5}, ValueError, "batch_size=1.5"),
    ({"num_workers": -1}, ValueError, "non-negative"),
    ({"num_workers": 1.5}, TypeError, "an integer, not float"),
    ({"timeout": -1, "num_workers": 1}, ValueError, "timeout"),
    ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
    ({"prefetch_factor": 0, "num_workers": 1}, ValueError, "at least 1"),
    ({"persistent_workers": True}, ValueError, "persistent_workers"),
    ({"sampler": [0], "shuffle": True}, ValueError, "mutually exclusive with shuffle"),
    ({"batch_sampler": [[0]], "batch_size": 2}, ValueError, "mutually exclusive with batch_size"),
    ({"batch_sampler": [[0]], "drop_last": True}, ValueError, "mutually exclusive with batch_size"),
    ({"batch_size": None, "drop_last": True}, ValueError, "disables auto-batching"),
    ({"order": "twice"}, ValueError, "'epoch' or 'once', not 'twice'"),
    ({"errors": "ignore"}, ValueError, "'raise' or 'skip', not 'ignore'"),
]


@pytest.mark.parametrize(("arguments", "error", "said"), IMPOSSIBLE)
def test_impossible_arguments(arguments: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        DataLoader(Squares(3), **arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"shuffle": True}, "expected unspecified shuffle option"),
        ({"sampler": [0]}, "expected unspecified sampler option"),
        ({"batch_sampler": [[0]]}, "expected unspecified batch_sampler option"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_impossible_arguments_of_iterables(arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DataLoader(Counted(3), **arguments)


def test_shuffling_nothing_is_an_error_as_torchs() -> None:
    with pytest.raises(ValueError, match="num_samples=0"):
        DataLoader([], shuffle=True)
    with pytest.raises(TypeError, match="has no len"):
        len(DataLoader(IterableDataset[int](), 2))
