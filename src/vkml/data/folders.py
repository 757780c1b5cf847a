"""`ImageFolder`: pictures in folders, whose names are their classes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkml.data.dataset import Dataset
from vkml.data.streams import permutation
from vkml.errors import InvalidData, NoSuchFile
from vkml.ir.dtypes import numpy_dtype
from vkml.pictures import ENDINGS, pillow, rgb

Array = np.ndarray[Any, Any]


class ImageFolder(Dataset[Any]):
    """Pictures of a folder, in which each class is a folder of its own, as in ``root/cat/1.png``.

    Pictures of all modes become red, green and blue of 8 bits, upright; palettes, grey, 16 bits and
    transparency (which black lies behind) included. An item is a pair of the picture and its class's number;
    the picture an array of float32 from 0 to 1 in the form channels, height, width, unless `transform` makes
    something else of it.

    Args:
        root: the folder; what is hidden in it, behind a name that begins with a dot, is no class.
        transform: is called with the picture, as Pillow has it.
        target_transform: is called with the class's number.
        extensions: of the files that are pictures; those behind other names are not looked at.
        files: the pictures, instead of all in the folder: paths, relative to `root`, or pairs of a path and a
            class's name; or the path of a text file with one a line, the class behind a tab. Where no class
            is given, it is the name of the folder that the file is in.
        preread: whether all files are read at once, and decoded from memory.
        order: ``"sorted"``, by class and path; ``"seeded"``: any order, the same for the same `seed`
            everywhere.
        seed: of the order.
        size: height and width that pictures are resized to; an int for both.
        normalize: means and deviations of the channels, or one of each: what is subtracted, and then divided
            by.
        dtype: ``float32``, or ``uint8`` for values from 0 to 255, a quarter of the bytes.
        allow_empty: whether a class may have no picture.

    Attributes:
        classes: names of the classes, sorted; a class's number is its place.
        class_to_idx: numbers by name.
        samples: path and class's number of each item.
        targets: the numbers.

    Raises:
        NoSuchFile: there is no such folder, or no class or picture in it.
        InvalidData: a listed file is of no known class, or, for an item, a file is damaged.
        MissingPackage: Pillow is not installed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        extensions: Sequence[str] = ENDINGS,
        *,
        files: Iterable[Any] | str | os.PathLike[str] | None = None,
        preread: bool = False,
        order: str = "sorted",
        seed: int = 0,
        size: int | tuple[int, int] | None = None,
        normalize: tuple[Any, Any] | None = None,
        dtype: Any = np.float32,
        allow_empty: bool = False,
    ) -> None:
        pillow()
        if order not in ("sorted", "seeded"):
            raise ValueError(f"order is 'sorted' or 'seeded', not {order!r}")
        self.root = Path(root)
        self.transform = transform
        self.target_transform = target_transform
        self.extensions = tuple(ending.lower() for ending in extensions)
        self.size = (size, size) if isinstance(size, int) else size
        self.normalize = None if normalize is None else _statistics(*normalize)
        self.dtype = numpy_dtype(dtype)
        if self.dtype.kind != "f" and self.dtype != np.uint8:
            raise ValueError(f"pictures become floats or uint8, not {self.dtype}")
        if self.dtype == np.uint8 and normalize is not None:
            raise ValueError("normalized pictures are floats: uint8 has no values below 0")
        if not self.root.is_dir():
            raise NoSuchFile(f"there is no folder {str(self.root)!r}")
        pairs = self._found(allow_empty) if files is None else self._listed(files)
        if order == "seeded":
            pairs = [pairs[at] for at in permutation(seed, len(pairs)).tolist()]
        self.class_to_idx = {name: at for at, name in enumerate(self.classes)}
        self.samples = [(path, self.class_to_idx[name]) for path, name in pairs]
        self.targets = [target for _, target in self.samples]
        self._bytes = [self._read(path) for path, _ in self.samples] if preread else None

    def _found(self, allow_empty: bool) -> list[tuple[str, str]]:
        self.classes = sorted(
            entry.name
            for entry in os.scandir(self.root)
            if entry.is_dir() and not entry.name.startswith(".")  # .ipynb_checkpoints, .git and their like
        )
        if not self.classes:
            raise NoSuchFile(f"Couldn't find any class folder in {self.root}.")
        pairs = []
        empty = []
        for name in self.classes:
            paths = [
                os.path.join(folder, file)
                for folder, _, found in sorted(os.walk(self.root / name, followlinks=True))
                for file in sorted(found)
                if file.lower().endswith(self.extensions)
            ]
            pairs += [(path, name) for path in paths]
            if not paths:
                empty.append(name)
        if empty and not allow_empty:
            raise NoSuchFile(
                f"Found no valid file for the classes {', '.join(empty)} in {self.root}. Supported "
                f"extensions are: {', '.join(self.extensions)}"
            )
        return pairs

    def _listed(self, files: Iterable[Any] | str | os.PathLike[str]) -> list[tuple[str, str]]:
        if isinstance(files, str | os.PathLike):
            files = _manifest(Path(files))
        pairs = []
        for entry in files:
            path, name = (entry, None) if isinstance(entry, str | os.PathLike) else entry
            where = self.root / path
            pairs.append((str(where), where.parent.name if name is None else str(name)))
        self.classes = sorted({name for _, name in pairs})
        return pairs

    def __len__(self) -> int:
        return len(self.samples)

    def item_name(self, index: int) -> str:
        """The file of an item.

        Args:
            index: of the item.
        """
        return self.samples[index][0]

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.samples[index]
        contents = self._read(path) if self._bytes is None else self._bytes[index]
        image = pillow()
        try:
            with image.open(io.BytesIO(contents)) as opened:
                picture = rgb(opened)
                if self.size is not None and picture.size != self.size[::-1]:
                    picture = picture.resize(self.size[::-1], image.Resampling.BILINEAR)
        except Exception as error:  # Pillow's readers raise all kinds of errors for damaged files
            raise InvalidData(f"{path} cannot be read as a picture: {error}") from error
        made = picture if self.transform is None else self.transform(picture)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return self._array(made), target

    def _array(self, made: Any) -> Any:
        if not isinstance(made, pillow().Image):
            return made
        pixels = np.asarray(made if made.mode in ("L", "RGB") else made.convert("RGB"))
        planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        if self.dtype == np.uint8:
            return np.ascontiguousarray(planes)
        found = np.empty(planes.shape, np.float32)
        np.true_divide(planes, np.float32(255), out=found)
        if self.normalize is not None:
            mean, deviation = self.normalize
            found -= mean
            found /= deviation
        return found.astype(self.dtype, copy=False)

    @staticmethod
    def _read(path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise InvalidData(f"{path} cannot be read: {error.strerror}") from error


def _statistics(mean: Any, deviation: Any) -> tuple[Array, Array]:
    """Means and deviations for arrays of the form channels, height, width."""
    found = [np.asarray(numbers, np.float32).reshape(-1, 1, 1) for numbers in (mean, deviation)]
    if any(len(numbers) not in (1, 3) for numbers in found):
        raise ValueError(f"means and deviations are one, or one a channel: {mean}, {deviation}")
    if not all(np.isfinite(numbers).all() for numbers in found) or not found[1].all():
        raise ValueError(f"means are finite, deviations are not 0: {mean}, {deviation}")
    return found[0], found[1]


def _manifest(path: Path) -> list[Any]:
    """Lines of a text file: a path each, and behind a tab its class."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise NoSuchFile(f"there is no list of files {str(path)!r}") from None
    except UnicodeDecodeError as error:
        raise InvalidData(f"{path} is no list of files in UTF-8: {error}") from None
    found: list[Any] = []
    for number, line in enumerate(lines, 1):
        parts = line.rstrip().split("\t")
        if not parts[0]:
            continue
        if len(parts) > 2:
            raise InvalidData(
                f"{path}, line {number}: a path and a class are expected, there are {len(parts)} parts"
            )
        found.append(parts[0] if len(parts) == 1 else tuple(parts))
    return found
