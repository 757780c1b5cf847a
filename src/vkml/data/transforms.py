"""What is done to pictures and arrays on their way into a batch.

Each takes a picture of Pillow's, an array or a tensor whose last axes are height and width, and gives the
same kind back; `ToTensor` makes a tensor of a picture. Random ones draw from `random_stream`: in a loader
what they do to an item follows from the loader's seed, the epoch and the item's index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkml.data.streams import random_stream
from vkml.ir import DType, dtypes
from vkml.pictures import pillow
from vkml.tensors import Tensor
from vkml.tracing import value_of

Array = np.ndarray[Any, Any]
_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


def _is_picture(x: Any) -> bool:
    return not isinstance(x, Tensor | np.ndarray)


def _on_array(change: Callable[[Array], Array], x: Any) -> Any:
    """An array, or a tensor's elements, changed."""
    if isinstance(x, Tensor):
        return Tensor(value_of(np.ascontiguousarray(change(x.detach()._elements()))))
    return change(x)


def _size_of(x: Any) -> tuple[int, int]:
    """Height and width."""
    if _is_picture(x):
        width, height = x.size
        return int(height), int(width)
    if len(x.shape) < 2:
        raise ValueError(f"a picture has height and width, this has the shape {list(x.shape)}")
    return int(x.shape[-2]), int(x.shape[-1])


def _pair(size: int | Sequence[int], what: str) -> tuple[int, int]:
    """Height and width of what is given as both or as one number."""
    found = (size, size) if isinstance(size, int) else tuple(size) * (2 if len(size) == 1 else 1)
    if len(found) != 2 or any(not isinstance(one, int) or one < 1 for one in found):
        raise ValueError(f"{what} is a height and a width of at least 1, not {size!r}")
    return found[0], found[1]


def _cropped(x: Any, top: int, left: int, height: int, width: int) -> Any:
    if _is_picture(x):
        return x.crop((left, top, left + width, top + height))
    return _on_array(lambda array: array[..., top : top + height, left : left + width], x)


def _padded(x: Any, left: int, top: int, right: int, bottom: int, fill: Any) -> Any:
    """With so many pixels more on each side."""
    if not (left or top or right or bottom):
        return x
    if _is_picture(x):
        made = pillow().new(x.mode, (x.size[0] + left + right, x.size[1] + top + bottom), fill)
        made.paste(x, (left, top))
        return made

    def pad(array: Array) -> Array:
        beside = [(0, 0)] * (array.ndim - 2) + [(top, bottom), (left, right)]
        return np.pad(array, beside, constant_values=fill)

    return _on_array(pad, x)


class Compose:
    """Applies several transforms, one after the other.

    Args:
        transforms: of each other's results.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: Any) -> Any:
        for transform in self.transforms:
            x = transform(x)
        return x

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"


class Lambda:
    """Applies a function.

    Args:
        lambd: it.
    """

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        if not callable(lambd):
            raise TypeError(f"Argument lambd should be callable, got {type(lambd).__name__}")
        self.lambd = lambd

    def __call__(self, x: Any) -> Any:
        return self.lambd(x)


class ToTensor:
    """A picture, or an array of the form height, width, channels, as a tensor of the form channels, height,
    width.

    Values of uint8, and of pictures, become float32 from 0 to 1; those of other arrays stay.
    """

    def __call__(self, x: Any) -> Tensor:
        if isinstance(x, Tensor):
            return x
        is_picture = _is_picture(x)
        array = np.asarray(x)
        if is_picture and x.mode == "1":
            array = array.astype(np.uint8) * 255
        if array.ndim not in (2, 3):
            raise ValueError(f"pic should be 2/3 dimensional. Got {array.ndim} dimensions.")
        planes = np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
        if planes.dtype == np.uint8:
            planes = planes.astype(np.float32) / np.float32(255)
        return Tensor(value_of(planes))


class ConvertDtype:
    """An array or tensor of another element type, with values from 0 to the greatest one scaled to the
    other's.

    As PyTorch's ``convert_image_dtype``: floats are from 0 to 1, integers from 0 to the greatest there is.

    Args:
        dtype: that type.
    """

    def __init__(self, dtype: DType = dtypes.FLOAT32) -> None:
        self.dtype = dtype

    def __call__(self, x: Any) -> Any:
        return _on_array(self._converted, x)

    def _converted(self, array: Array) -> Array:
        target = self.dtype.storage
        if array.dtype == target:
            return array
        if array.dtype.kind not in "iu":
            if target.kind not in "iu":
                return array.astype(target)
            most = np.iinfo(target).max
            if np.finfo(array.dtype).nmant < most.bit_length() - 8:
                raise RuntimeError(f"The cast from {array.dtype} to {target} cannot be performed safely")
            # Each number stands for as much of [0, 1] as any other.
            return (array * (most + 1 - 1e-3)).astype(target)
        most = np.iinfo(array.dtype).max
        if target.kind not in "iu":
            scaled: Array = array.astype(target) / np.asarray(most, target)
            return scaled
        other = np.iinfo(target).max
        if most > other:
            return (array // ((most + 1) // (other + 1))).astype(target)
        wider: Array = array.astype(target) * np.asarray((other + 1) // (most + 1), target)
        return wider


class Normalize:
    """Subtracts each channel's mean and divides by its deviation.

    Args:
        mean: one, or one a channel, along the third axis from the last.
        std: likewise.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean, self.std = np.atleast_1d(mean), np.atleast_1d(std)
        if not self.std.all():
            raise ValueError(f"std evaluated to zero, leading to division by zero: {std}")

    def __call__(self, x: Any) -> Any:
        if _is_picture(x):
            raise TypeError("a picture is made a tensor before it is normalized: ToTensor()")
        if x.dtype.kind not in "f" and not (isinstance(x, Tensor) and x.dtype.is_float):
            raise TypeError(f"Input tensor should be a float tensor. Got {x.dtype}.")

        def change(array: Array) -> Array:
            mean, std = (numbers.astype(array.dtype).reshape(-1, 1, 1) for numbers in (self.mean, self.std))
            found: Array = (array - mean) / std
            return found

        return _on_array(change, x)


class Resize:
    """Resizes to a height and width.

    Args:
        size: both; or one number, which the shorter side then has, the longer in proportion.
        interpolation: ``"nearest"``, ``"bilinear"``, ``"bicubic"``, ``"lanczos"``, ``"box"`` or
            ``"hamming"``, Pillow's, which average over what becomes smaller.
    """

    def __init__(self, size: int | Sequence[int], interpolation: str = "bilinear") -> None:
        if interpolation not in _FILTERS:
            raise ValueError(f"interpolation is one of {_FILTERS}, not {interpolation!r}")
        self.shorter = size if isinstance(size, int) else size[0] if len(size) == 1 else None
        self.size = _pair(size, "the size")
        self.interpolation = interpolation

    def _wanted(self, height: int, width: int) -> tuple[int, int]:
        if self.shorter is None:
            return self.size
        short, long = min(height, width), max(height, width)
        other = int(self.shorter * long / short)
        return (self.shorter, other) if height <= width else (other, self.shorter)

    def __call__(self, x: Any) -> Any:
        height, width = self._wanted(*_size_of(x))
        if (height, width) == _size_of(x):
            return x
        image = pillow()
        method = image.Resampling[self.interpolation.upper()]
        if _is_picture(x):
            return x.resize((width, height), method)

        def change(array: Array) -> Array:
            if array.dtype != np.uint8 and array.dtype.kind != "f":
                raise TypeError(f"arrays of uint8 or floats are resized, not of {array.dtype}")
            kind = np.uint8 if array.dtype == np.uint8 else np.float32
            planes = array.reshape(-1, *array.shape[-2:]).astype(kind, copy=False)
            made = [np.asarray(image.fromarray(plane).resize((width, height), method)) for plane in planes]
            return np.stack(made).reshape(*array.shape[:-2], height, width).astype(array.dtype, copy=False)

        return _on_array(change, x)


class CenterCrop:
    """Cuts out the middle; where there is less than that, puts black beside it.

    Args:
        size: height and width, or one number for both.
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _pair(size, "the size")

    def __call__(self, x: Any) -> Any:
        (height, width), (wanted, wide) = _size_of(x), self.size
        if wanted > height or wide > width:
            left, top = max(0, (wide - width) // 2), max(0, (wanted - height) // 2)
            right, bottom = max(0, (wide - width + 1) // 2), max(0, (wanted - height + 1) // 2)
            x = _padded(x, left, top, right, bottom, 0)
            height, width = _size_of(x)
        # To the even number where the middle lies between two, as PyTorch's.
        return _cropped(x, round((height - wanted) / 2.0), round((width - wide) / 2.0), wanted, wide)


class RandomCrop:
    """A part of a given size, at a random place.

    Args:
        size: height and width, or one number for both.
        padding: pixels added on each side first: one number, two (left and right, top and bottom), or four
            (left, top, right, bottom).
        pad_if_needed: whether pictures that are smaller are padded to the size.
        fill: of added pixels.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: Any = 0,
    ) -> None:
        self.size = _pair(size, "the size")
        sides = (0,) if padding is None else (padding,) if isinstance(padding, int) else tuple(padding)
        if len(sides) not in (1, 2, 4):
            raise ValueError(f"padding is one number, two or four, not {padding!r}")
        self.padding = tuple(sides) * (4 // len(sides))
        self.pad_if_needed = pad_if_needed
        self.fill = fill

    def __call__(self, x: Any) -> Any:
        left, top, right, bottom = self.padding
        x = _padded(x, left, top, right, bottom, self.fill)
        (height, width), (wanted, wide) = _size_of(x), self.size
        if self.pad_if_needed:
            across, down = max(0, wide - width), max(0, wanted - height)
            x = _padded(x, across, down, across, down, self.fill)
            height, width = _size_of(x)
        if wanted > height or wide > width:
            raise ValueError(
                f"Required crop size {(wanted, wide)} is larger than input image size {(height, width)}"
            )
        stream = random_stream()
        top, left = stream.below(height - wanted + 1), stream.below(width - wide + 1)
        return _cropped(x, top, left, wanted, wide)


class _RandomFlip:
    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p is a probability, from 0 to 1, not {p}")
        self.p = p

    def __call__(self, x: Any) -> Any:
        return self._flipped(x) if random_stream().random() < self.p else x

    def _flipped(self, x: Any) -> Any:
        raise NotImplementedError


class RandomHorizontalFlip(_RandomFlip):
    """Mirrors left and right, with a probability.

    Args:
        p: the probability.
    """

    def _flipped(self, x: Any) -> Any:
        if _is_picture(x):
            return x.transpose(pillow().Transpose.FLIP_LEFT_RIGHT)
        return _on_array(lambda array: array[..., ::-1], x)


class RandomVerticalFlip(_RandomFlip):
    """Mirrors top and bottom, with a probability.

    Args:
        p: the probability.
    """

    def _flipped(self, x: Any) -> Any:
        if _is_picture(x):
            return x.transpose(pillow().Transpose.FLIP_TOP_BOTTOM)
        return _on_array(lambda array: array[..., ::-1, :], x)


class RandomRotation:
    """Rotates about the middle, by a random angle; what is turned out of the picture is lost, the corners are
    filled.

    Args:
        degrees: the greatest angle to either side, or the least and the greatest, counter-clockwise.
        fill: of the corners.
    """

    def __init__(self, degrees: float | Sequence[float], fill: Any = 0) -> None:
        low, high = (-degrees, degrees) if isinstance(degrees, int | float) else degrees
        if low > high or not math.isfinite(low) or not math.isfinite(high):
            raise ValueError(f"degrees is an angle of at least 0, or two in their order, not {degrees!r}")
        self.degrees = (float(low), float(high))
        self.fill = fill

    def __call__(self, x: Any) -> Any:
        angle = random_stream().uniform(*self.degrees)
        image = pillow()
        if _is_picture(x):
            return x.rotate(angle, image.Resampling.NEAREST, fillcolor=self.fill)

        def change(array: Array) -> Array:
            planes = array.reshape(-1, *array.shape[-2:])
            kind = np.uint8 if array.dtype == np.uint8 else np.float32
            made = [
                np.asarray(image.fromarray(plane.astype(kind, copy=False)).rotate(angle, fillcolor=self.fill))
                for plane in planes
            ]
            return np.stack(made).reshape(array.shape).astype(array.dtype, copy=False)

        return _on_array(change, x)
