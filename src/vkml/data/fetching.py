"""One batch: which items are in it, how they are loaded, and what came of that."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from vkml.data import streams
from vkml.data.collate import collated, converted, gathered, placed
from vkml.data.dataset import name_of, rows_of
from vkml.data.placing import Place
from vkml.dataclasses import dataclass
from vkml.tensors import Tensor
from vkml.tensors.backward import compute
from vkml.tensors.trees import mapped, tensors_in


@dataclass(frozen=True)
class Skipped:
    """An item that could not be loaded, and was left out.

    Attributes:
        epoch: in which.
        index: of the item; how many came before it, of an iterable dataset.
        name: what the dataset calls it, such as its file; empty where it has no name.
        error: why.
    """

    epoch: int
    index: Any
    name: str
    error: str


@dataclass
class Fetch:
    """How items are loaded and joined in one epoch.

    Attributes:
        dataset: of the items.
        place: where tensors are made.
        collate_fn: the program's own way to join items; None for the usual one.
        is_batched: whether items are joined at all.
        skips: whether items that cannot be loaded are left out.
        seed: of the items' random numbers.
        epoch: its number.
    """

    dataset: Any
    place: Place
    collate_fn: Callable[[Any], Any] | None
    is_batched: bool
    skips: bool
    seed: int
    epoch: int

    def item(self, index: Any) -> Any:
        """One item.

        Raises:
            Exception: the dataset's own, with a note which item it was.
        """
        with streams.item(self.seed, _number(index)):
            try:
                return self.dataset[index]
            except BaseException as error:
                error.add_note(f"while {self._described(index)} was loaded")
                raise

    def _described(self, index: Any) -> str:
        name = name_of(self.dataset, index)
        return f"item {index!r}{'' if name is None else f' ({name})'} of {type(self.dataset).__name__}"

    def several(self, indices: Sequence[Any]) -> list[Any]:
        """Items that the dataset finds together."""
        with streams.item(self.seed, _number(indices[0])):
            try:
                return list(self.dataset.__getitems__(indices))
            except BaseException as error:
                error.add_note(f"while items {_listed(indices)} of {type(self.dataset).__name__} were loaded")
                raise

    def rows(self, indices: Sequence[Any]) -> Any:
        """The form of one item with rows of arrays in it; None where there is none, or it is not wanted."""
        if (
            self.collate_fn is not None
            or not self.is_batched
            or not all(isinstance(at, int) for at in indices)
        ):
            return None
        try:
            return rows_of(self.dataset, indices)
        except IndexError:
            return None  # item by item it is told which

    def joined(self, items: Any, indices: Any) -> Any:
        """Items as a batch, or one item as it is handed out."""
        try:
            if self.collate_fn is None:
                return collated(items, self.place) if self.is_batched else converted(items, self.place)
            found = self.collate_fn(items)
            # What it recorded is computed here, beside the step.
            compute([tensor for tensor in tensors_in(found) if not tensor.is_meta])
            return found if type(self.place) is Place else mapped(self._moved, found)
        except BaseException as error:
            error.add_note(f"while items {_listed(indices)} of {type(self.dataset).__name__} were joined")
            raise

    def _moved(self, tensor: Tensor) -> Tensor:
        return placed(tensor, self.place) if tensor.device == "cpu" else tensor

    def skipped(self, index: Any, error: BaseException) -> Skipped:
        """What is told of an item that is left out."""
        shown = index if isinstance(index, int | str) else repr(index)
        what = f"{type(error).__name__}: {error}"
        return Skipped(self.epoch, shown, name_of(self.dataset, index) or "", what)


def _number(index: Any) -> int:
    """What tells an item from others."""
    return index if isinstance(index, int) else zlib.crc32(repr(index).encode())


def _plain(index: Any) -> Any:
    """Python's integers for NumPy's."""
    return int(index) if isinstance(index, np.integer) else index


def _listed(indices: Any) -> str:
    if not isinstance(indices, list):
        return repr(indices)
    shown = ", ".join(repr(at) for at in indices[:8])
    return shown + (f", … ({len(indices)})" if len(indices) > 8 else "")


@dataclass
class Outcome:
    """What came of a batch.

    Attributes:
        value: the batch; None where nothing is left of it.
        error: what is raised instead.
        skipped: items that were left out.
        is_empty: whether there is no value.
        is_last: whether the items have come to their end with it.
        state: of an iterable dataset, behind it.
    """

    value: Any = None
    error: BaseException | None = None
    skipped: list[Skipped] = field(default_factory=list)
    is_empty: bool = False
    is_last: bool = False
    state: Any = None


_LEFT_OUT = object()
MOST_SKIPPED = 1000
"""Items of an iterable dataset that are left out for one batch: with more, it may go on for ever."""


class Batch:
    """A batch in the making: parts that threads do in any order; who does the last one joins them.

    Args:
        fetch: how.
        indices: of its items; of the one item where they are not joined.
    """

    def __init__(self, fetch: Fetch, indices: Any) -> None:
        self._fetch = fetch
        self._indices = [_plain(at) for at in indices] if fetch.is_batched else _plain(indices)
        self._form = fetch.rows(self._indices)
        listed = self._indices if fetch.is_batched else [self._indices]
        is_whole = not fetch.skips and fetch.is_batched and hasattr(fetch.dataset, "__getitems__")
        self._several = is_whole and self._form is None and len(listed) > 0
        self.parts = 1 if self._form is not None or self._several else max(1, len(listed))
        """How many `do` does."""
        self._items: list[Any] = [_LEFT_OUT] * len(listed)
        self._listed = listed
        self._errors: dict[int, BaseException] = {}
        self._may_skip = fetch.skips and self._form is None
        self._done = itertools.count(1)
        self.ready = threading.Lock()
        """Held until the outcome is there."""
        self.ready.acquire()
        self.outcome = Outcome()

    def do(self, at: int) -> None:
        """Does a part; does not raise."""
        try:
            # Of those behind an item that fails, nothing is wanted; of those before it, the first that fails
            # is told.
            if self._may_skip or not any(failed < at for failed in list(self._errors)):
                self._load(at)
        except BaseException as error:
            self._errors[at] = error
        self._count()

    def do_all(self) -> None:
        """Does all of it, by one thread; does not raise."""
        for at in range(self.parts):
            try:
                self._load(at)
            except BaseException as error:
                self._errors[at] = error
                if not self._may_skip:
                    break
        self._end()

    def fail(self, at: int, error: BaseException) -> None:
        """A part that could not even be begun: the batch cannot be made, whatever may be left out."""
        self._may_skip = False
        self._errors[at] = error
        self._count()

    def _count(self) -> None:
        if next(self._done) == self.parts:
            self._end()

    def _end(self) -> None:
        try:
            self._finish()
        except BaseException as error:
            self.outcome = Outcome(error=error)
        self._items.clear()
        self.ready.release()

    def _load(self, at: int) -> None:
        if self._form is not None:
            self.outcome.value = gathered(self._form, self._fetch.place)
        elif self._several:
            self._items = self._fetch.several(self._listed)
        elif self._listed:
            self._items[at] = self._fetch.item(self._listed[at])

    def _finish(self) -> None:
        if self._form is not None and not self._errors:
            return
        if self._errors and not (
            self._may_skip and all(isinstance(one, Exception) for one in self._errors.values())
        ):
            self.outcome = Outcome(error=self._errors[min(self._errors)])
            return
        self.outcome.skipped = [
            self._fetch.skipped(self._listed[at], error) for at, error in sorted(self._errors.items())
        ]
        items = [item for item in self._items if item is not _LEFT_OUT]
        self.outcome.is_empty = bool(self._errors) and not items
        if not self.outcome.is_empty:
            value = items if self._fetch.is_batched else items[0]
            self.outcome.value = self._fetch.joined(value, self._indices)


class StreamBatch:
    """The next items of an iterable dataset as a batch; such batches are made one after the other.

    Args:
        fetch: how.
        stream: the items, with what all such batches share.
        size: how many, at most; None for one that is not joined.
        drop_last: whether fewer are left out.
    """

    parts = 1

    def __init__(self, fetch: Fetch, stream: Stream, size: int | None, drop_last: bool) -> None:
        self._fetch = fetch
        self._stream = stream
        self._size = size
        self._drop_last = drop_last
        self.ready = threading.Lock()
        self.ready.acquire()
        self.outcome = Outcome()

    def do(self, at: int) -> None:
        """Makes it; does not raise."""
        try:
            self._make()
        except BaseException as error:
            self.outcome.error = error
        self.ready.release()

    def do_all(self) -> None:
        """Makes it; does not raise."""
        self.do(0)

    def fail(self, at: int, error: BaseException) -> None:
        """It could not even be begun."""
        self.outcome.error = error
        self.ready.release()

    def _make(self) -> None:
        outcome, stream = self.outcome, self._stream
        items: list[Any] = []
        wanted = 1 if self._size is None else self._size
        first = stream.count
        stream.begin()
        while len(items) < wanted:
            try:
                items.append(stream.next(self._fetch))
            except StopIteration:
                outcome.is_last = True
                break
            except Exception as error:
                if not self._fetch.skips or len(outcome.skipped) >= MOST_SKIPPED:
                    error.add_note(
                        f"while item {stream.count} of {type(self._fetch.dataset).__name__} was loaded"
                    )
                    raise
                outcome.skipped.append(self._fetch.skipped(stream.count, error))
                stream.count += 1
        outcome.state = stream.state(self._fetch.dataset)
        outcome.is_empty = not items or (self._drop_last and len(items) < wanted)
        if not outcome.is_empty:
            indices = list(range(first, stream.count))
            outcome.value = self._fetch.joined(items[0] if self._size is None else items, indices)


class Stream:
    """The items of an iterable dataset in one epoch.

    Args:
        items: begins the iteration, by whoever makes the first batch.
        count: how many have been.
    """

    def __init__(self, items: Callable[[], Iterator[Any]], count: int = 0) -> None:
        self._begin = items
        self._items: Iterator[Any] | None = None
        self._is_ended = False
        self.count = count

    def begin(self) -> None:
        """Begins the iteration, where it has not begun."""
        if self._items is None:
            self._items = self._begin()

    def next(self, fetch: Fetch) -> Any:
        """The next item."""
        assert self._items is not None
        if self._is_ended:  # what is asked for more may begin anew, or raise
            raise StopIteration
        with streams.item(fetch.seed, self.count):
            try:
                found = next(self._items)
            except StopIteration:
                self._is_ended = True
                raise
        self.count += 1
        return found

    def state(self, dataset: Any) -> Any:
        """What goes on behind the items that have been: their number; the dataset's state, if it has one."""
        state = dataset.state_dict() if hasattr(dataset, "state_dict") else None
        return {"count": self.count, "dataset": state, "is_ended": self._is_ended}
