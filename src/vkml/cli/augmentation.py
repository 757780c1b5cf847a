"""Images of a training, changed at random each time that they are trained with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkml.data import Dataset
from vkml.data.transforms import Compose, RandomCrop, RandomHorizontalFlip, RandomRotation, RandomVerticalFlip

Array = np.ndarray[Any, Any]
_DEGREES = 15.0
_SHIFT = 8
"""The part of an edge, one in so many, by which images are shifted at most."""


def _flip(edge: int, fill: int) -> Callable[[Any], Any]:
    return RandomHorizontalFlip()


def _flip_vertical(edge: int, fill: int) -> Callable[[Any], Any]:
    return RandomVerticalFlip()


def _rotate(edge: int, fill: int) -> Callable[[Any], Any]:
    return RandomRotation(_DEGREES, fill)


def _shift(edge: int, fill: int) -> Callable[[Any], Any]:
    return RandomCrop(edge, max(1, edge // _SHIFT), fill=fill)


AUGMENTATIONS: dict[str, Callable[[int, int], Callable[[Any], Any]]] = {
    "flip": _flip,
    "flip-vertical": _flip_vertical,
    "rotate": _rotate,
    "shift": _shift,
}
"""By name: mirrored left and right, or top and bottom, in half of the cases; rotated by up to 15 degrees;
shifted by up to an eighth. Of an edge in pixels, and the number that stands for what is outside."""


class Augmented(Dataset[tuple[Array, Any]]):
    """Images and their classes; the images differ from epoch to epoch, by the loader's random numbers.

    Args:
        images: uint8, [samples, channels, edge, edge].
        targets: [samples].
        names: of `AUGMENTATIONS`.
    """

    def __init__(self, images: Array, targets: Array, names: Sequence[str]) -> None:
        self._images, self._targets = images, targets
        # As bright as the rest: black corners would be something to learn.
        fill = round(float(images[:: max(1, len(images) // 1000)].mean()))
        edge = images.shape[-1]
        self._change = Compose([AUGMENTATIONS[name](edge, fill) for name in dict.fromkeys(names)])

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Array, Any]:
        return np.ascontiguousarray(self._change(self._images[index])), self._targets[index]
