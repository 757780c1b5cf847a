"""Rows of an array that go into a batch without becoming items first."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkml.cpu.copying import copy
from vkml.dataclasses import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Rows:
    """Rows of an array, by their places along its first axis."""

    array: Array
    places: Array
    """int64, of one axis, none below 0."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all these rows together."""
        return len(self.places), *self.array.shape[1:]

    def write(self, target: Array) -> None:
        """Writes them, one behind the other, into an array of their shape: each byte is copied once."""
        array = np.asarray(self.array)  # without what a mapped file's array is besides
        places = self.places
        if not len(places):
            return
        if len(places) == 1 or (np.diff(places) == 1).all():
            copy(target, array[places[0] : places[-1] + 1])
        elif array.flags.c_contiguous and array.flags.aligned and array.dtype == target.dtype:
            # Any other mode would have it write to memory of its own first.
            np.take(array, places, axis=0, out=target, mode="clip")
        else:
            for at, place in enumerate(places.tolist()):
                target[at] = array[place]
