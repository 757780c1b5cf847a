"""`DataLoader`: batches of a dataset, loaded ahead of the step that uses them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import asdict
from typing import Any, Generic, TypeVar, cast

from vkml.data import streams
from vkml.data.collate import default_collate
from vkml.data.dataset import Dataset, IterableDataset, size_of
from vkml.data.fetching import Batch, Fetch, Outcome, Skipped, Stream, StreamBatch
from vkml.data.iterators import Ahead, Inline, Workers
from vkml.data.placing import Place, place_on
from vkml.data.pool import pool
from vkml.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler, restore, state_of
from vkml.data.streams import derived, drawn_seed
from vkml.data.worker_info import WorkerInfo
from vkml.errors import InvalidData

_log = logging.getLogger("vkml")
T_co = TypeVar("T_co", covariant=True)
_ORDER, _ITEMS = 0, 1
"""What seeds are derived for."""
_VERSION = 1
_BEGINNING = {"count": 0, "dataset": None, "is_ended": False}
"""The state of an iterable dataset's epoch."""
PREFETCH_FACTOR = 2


class DataLoader(Generic[T_co]):
    """Goes through a dataset in batches, once for each `iter`.

    With workers, items are loaded ahead by threads that all loaders of the process share: item by item, in
    the order of the batches. Every random number follows from one seed, which is drawn from `generator` when
    the first epoch begins: the order of epoch n and what random transforms do in it are the same on all
    platforms, with any number of workers, and however much else is drawn meanwhile.

    Args:
        dataset: a `Dataset`, or anything with ``__getitem__`` and ``__len__``; or an `IterableDataset`.
        batch_size: items in a batch; None: items come one by one, and are not joined.
        shuffle: whether they come in any order, anew in each epoch.
        sampler: an order of indices instead.
        batch_sampler: an order of lists of indices instead.
        num_workers: how many items of this loader are in work at a time; 0: the thread that asks for a batch
            makes it.
        collate_fn: joins items; `default_collate` where left out.
        pin_memory: taken for PyTorch's sake. Batches are made where the device reads them as it is.
        drop_last: whether a last batch of fewer items is left out.
        timeout: seconds to wait for a batch of workers; 0: as long as it takes.
        worker_init_fn: is called with each worker's number before its first item.
        multiprocessing_context: taken for PyTorch's sake: workers are threads.
        generator: a `vkml.Generator`; the CPU's own where left out.
        prefetch_factor: batches ahead of the one that is in use, 2 where left out; more where that is too
            little work for all workers. Only with workers.
        persistent_workers: whether `worker_init_fn` is called for the first epoch only.
        device: where the tensors of batches are, ``"vulkan:0"``; large ones are written there by the workers,
            while the step before computes. The CPU where left out.
        order: with `shuffle`, ``"epoch"``: another order in each epoch; ``"once"``: one that is kept.
        errors: ``"raise"``, or ``"skip"``: items that cannot be loaded are left out and noted in `skipped`;
            batches are then the smaller.

    Raises:
        ValueError: arguments that exclude each other, or are out of range.

    Example:
        >>> import vkml
        >>> from vkml.data import DataLoader, TensorDataset
        >>> dataset = TensorDataset(vkml.arange(5), vkml.arange(5) * 10)
        >>> for x, y in DataLoader(dataset, batch_size=2):
        ...     print(x.tolist(), y.tolist())
        [0, 1] [0, 10]
        [2, 3] [20, 30]
        [4] [40]
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[Any] | Iterable[Sequence[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        device: Any = None,
        order: str = "epoch",
        errors: str = "raise",
    ) -> None:
        self.dataset: Any = dataset
        self._is_stream = isinstance(dataset, IterableDataset)
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        for name, found, known in (
            ("order", order, ("epoch", "once")),
            ("errors", errors, ("raise", "skip")),
        ):
            if found not in known:
                raise ValueError(f"{name} is {known[0]!r} or {known[1]!r}, not {found!r}")
        if self._is_stream:
            _check_stream(shuffle, sampler, batch_sampler)
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
                    "drop_last"
                )
            batch_size, drop_last = None, False
        elif batch_size is None and drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
            )
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = PREFETCH_FACTOR if prefetch_factor is None and num_workers else prefetch_factor
        self.persistent_workers = persistent_workers
        self.device = device
        self.order = order
        self.errors = errors
        self.sampler: Any = None
        self.batch_sampler: Any = batch_sampler
        self._is_own_order = False
        if not self._is_stream and batch_sampler is None:
            self._is_own_order = bool(shuffle) and sampler is None
            if sampler is None:
                sized = cast(Sized, dataset)
                sampler = RandomSampler(sized) if shuffle else SequentialSampler(sized)
            self.sampler = sampler
            if batch_size is not None:
                self.batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        elif self._is_stream and batch_size is not None:
            BatchSampler((), batch_size, drop_last)  # which checks them
        self._collate_fn = collate_fn if collate_fn is not default_collate else None
        self._is_batched = batch_size is not None or batch_sampler is not None
        self._place: Place | None = None
        self._begun_workers: set[int] = set()
        self.skipped: list[Skipped] = []
        """Items that were left out, so far."""
        self._seed: int | None = None
        self._epoch = 0
        self._is_begun = False
        """Whether a batch of the epoch has been asked for."""
        self._position = 0
        """Batches of the epoch that have been handed out, or had nothing left in them."""
        self._sampler_state: dict[str, Any] = {}
        self._stream_state: dict[str, Any] = dict(_BEGINNING)
        self._resumes = False
        self._latest: int = 0

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """How items are joined."""
        return self._collate_fn or default_collate

    @property
    def epoch(self) -> int:
        """The number of the epoch that is under way, or comes next."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Has the next iteration be that of an epoch, from its beginning.

        Args:
            epoch: its number; orders follow from it.
        """
        self._epoch, self._position, self._is_begun, self._resumes = epoch, 0, False, False
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        if self._is_stream:
            size = size_of(self.dataset)
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        if self._is_begun and not self._resumes:
            # The epoch before was left in its middle.
            self._epoch, self._position = self._epoch + 1, 0
        start = self._position if self._resumes else 0
        resumes, self._resumes = self._resumes, False
        self._is_begun, self._position = True, start
        self._latest += 1
        if self._seed is None:
            self._seed = drawn_seed(self.generator)
        if self._place is None:
            self._place = place_on(self.device)
        fetch = Fetch(
            self.dataset, self._place, self._collate_fn, self._is_batched, self.errors == "skip",
            derived(self._seed, _ITEMS, self._epoch), self._epoch,
        )  # fmt: skip
        batches = self._streamed(fetch, resumes) if self._is_stream else self._listed(fetch, start)
        return _LoaderIterator(self, self._source(batches, fetch), self._latest)

    @property
    def _indices(self) -> Any:
        return self.batch_sampler if self._is_batched else self.sampler

    def _listed(self, fetch: Fetch, start: int) -> Iterator[Batch]:
        order = self._indices
        if self._is_own_order:
            assert self._seed is not None
            epoch = 0 if self.order == "once" else self._epoch
            self.sampler.seed_next(derived(self._seed, _ORDER, epoch))
        else:
            self._sampler_state = state_of(order)
        indices = iter(order)
        return (Batch(fetch, found) for found in itertools.islice(indices, start, None))

    def _streamed(self, fetch: Fetch, resumes: bool) -> Iterator[StreamBatch]:
        state: dict[str, Any] = self._stream_state if resumes else dict(_BEGINNING)
        self._stream_state = state
        dataset = self.dataset

        def begin() -> Iterator[Any]:
            if state["is_ended"]:
                return iter(())
            if state["dataset"] is not None:
                dataset.load_state_dict(state["dataset"])
                return iter(dataset)
            items: Iterator[Any] = iter(dataset)
            for at in range(state["count"]):
                with streams.item(fetch.seed, at):
                    try:
                        next(items)
                    except StopIteration:
                        break
                    except Exception as error:
                        if not fetch.skips:
                            raise
                        _log.debug("left out once more: %s", error)
            return items

        stream = Stream(begin, state["count"])
        while True:
            yield StreamBatch(fetch, stream, self.batch_size, self.drop_last)

    def _source(self, batches: Iterator[Any], fetch: Fetch) -> Inline | Ahead:
        # Within an item that a loader's worker loads, another loader works there and then: no thread of the
        # pool waits for another.
        if not self.num_workers or pool.is_inside:
            return Inline(batches)
        count = 1 if self._is_stream else self.num_workers
        infos = [WorkerInfo(at, count, (fetch.seed >> 1) + at, self.dataset) for at in range(count)]
        workers = Workers(
            infos, self.worker_init_fn, self._begun_workers if self.persistent_workers else set()
        )
        assert self.prefetch_factor is not None
        return Ahead(batches, workers, self.prefetch_factor, self.timeout)

    def _note(self, outcome: Outcome, number: int) -> None:
        """Keeps what an iterator, unless there is a later one, has come to."""
        if outcome.skipped and not self.skipped:
            first = outcome.skipped[0]
            _log.warning(
                "%s is left out: %s; loader.skipped has all", first.name or f"item {first.index}", first.error
            )
        self.skipped.extend(outcome.skipped)
        if number == self._latest:
            self._position += 1
            if outcome.state is not None:
                self._stream_state = outcome.state

    def _end(self, number: int) -> None:
        """An iterator has come to its end."""
        if number == self._latest and self._is_begun:
            self._epoch, self._position, self._is_begun = self._epoch + 1, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: what `load_state_dict` takes to go on with the batch after the last one handed
        out.

        It holds numbers, strings and tensors, and can be part of what `vkml.save` writes.
        """
        if self._seed is None:
            self._seed = drawn_seed(self.generator)
        if not self._is_begun and not self._is_own_order:
            self._sampler_state = state_of(self._indices)
        return {
            "version": _VERSION,
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "is_begun": self._is_begun,
            "sampler": dict(self._sampler_state),
            "stream": dict(self._stream_state),
            "skipped": [asdict(one) for one in self.skipped],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state, of a loader with the same dataset and arguments: the next `iter` has the
        batches that would have come, and so have the epochs behind it.

        Args:
            state_dict: what `state_dict` gave.

        Raises:
            ValueError: it is none.
        """
        if state_dict.get("version") != _VERSION:
            raise ValueError(
                f"this is no state of a DataLoader of version {_VERSION}: {list(state_dict)[:8]}"
            )
        self._seed = int(state_dict["seed"])
        self._epoch, self._position = int(state_dict["epoch"]), int(state_dict["position"])
        self._is_begun = self._resumes = bool(state_dict["is_begun"])
        self._sampler_state = dict(state_dict["sampler"])
        restore(self._indices, self._sampler_state)
        self._stream_state = dict(state_dict["stream"])
        self.skipped = [Skipped(**one) for one in state_dict["skipped"]]
        self._latest += 1  # iterators of before do not count any more


class _LoaderIterator:
    """One epoch's batches; `close` ends it before its time.

    Args:
        loader: whose.
        source: of the outcomes.
        number: of the iterator, among the loader's.
    """

    def __init__(self, loader: DataLoader[Any], source: Inline | Ahead, number: int) -> None:
        self._loader = loader
        self._source = source
        self._number = number
        self._given = 0
        self._left_out = 0

    def __iter__(self) -> _LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        while True:
            try:
                outcome = self._source.next()
            except StopIteration:
                self._finish()
            self._loader._note(outcome, self._number)
            self._left_out += len(outcome.skipped)
            if outcome.error is not None:
                try:
                    raise outcome.error
                finally:
                    del outcome  # which holds the error, whose frames hold this one
            if not outcome.is_empty:
                self._given += 1
                return outcome.value
            if outcome.is_last:
                self._finish()

    def _finish(self) -> None:
        self._loader._end(self._number)
        if self._left_out and not self._given:
            first = self._loader.skipped[-self._left_out]
            count, self._left_out = self._left_out, 0
            raise InvalidData(
                f"none of {count} items could be loaded; the first, {first.name or first.index}: "
                f"{first.error}"
            )
        raise StopIteration

    def close(self) -> None:
        """Ends it: waits for what is being loaded, and drops it."""
        self._source.close(wait=True)

    def __del__(self) -> None:
        source = getattr(self, "_source", None)
        if source is not None:
            source.close(wait=False)


def _check_workers(workers: Any, timeout: Any, prefetch_factor: Any, is_persistent: bool) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool):
        raise TypeError(f"num_workers is an integer, not {type(workers).__name__}")
    if workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if not workers and prefetch_factor is not None:
        raise ValueError("prefetch_factor option could only be specified with workers: let num_workers > 0")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"prefetch_factor option should be at least 1, not {prefetch_factor}")
    if is_persistent and not workers:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _check_stream(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    if shuffle:
        raise ValueError(
            f"DataLoader with IterableDataset: expected unspecified shuffle option, but got shuffle={shuffle}"
        )
    for name, found in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if found is not None:
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={found}"
            )
