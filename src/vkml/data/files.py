"""Datasets of arrays in files, which are mapped, not read: NumPy's and raw binary ones."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkml.data.dataset import ArrayDataset
from vkml.errors import InvalidData, NoSuchFile
from vkml.ir.dtypes import numpy_dtype

Array = np.ndarray[Any, Any]
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Of a zip file's member: its signature, and how long its name and its extra field are."""


class NumpyDataset(ArrayDataset):
    """Rows of the arrays in a ``.npy`` file, or of several in one ``.npz`` or in several files.

    The files are mapped: nothing is read before its row is asked for, and a row goes straight from the file's
    pages into a batch. Only compressed members of an ``.npz`` are read whole.

    Args:
        path: of the file, or several paths, whose arrays are the parts of an item.
        names: of an ``.npz``: which arrays, in this order; all of them where left out.

    Raises:
        NoSuchFile: there is no such file.
        InvalidData: it is damaged, holds objects, or has no such array.

    Example:
        >>> import tempfile, numpy as np
        >>> from vkml.data import NumpyDataset
        >>> path = tempfile.mkdtemp() + "/a.npy"
        >>> np.save(path, np.arange(6).reshape(3, 2))
        >>> NumpyDataset(path)[1].tolist()
        [2, 3]
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        names: Sequence[str] | None = None,
    ) -> None:
        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        self.paths = [Path(one) for one in paths]
        arrays = [array for one in self.paths for array in _arrays(one, names)]
        is_single = len(arrays) == 1 and len(paths) == 1 and self.paths[0].suffix != ".npz"
        _check_rows(arrays, ", ".join(str(one) for one in self.paths))
        super().__init__(*arrays, single=is_single)


class BinaryDataset(ArrayDataset):
    """Records of one shape that follow each other in a file.

    Args:
        path: of the file, which is mapped.
        dtype: of the elements; with its byte order, as in ``">i2"``.
        shape: of a record.
        offset: bytes before the first record.
        count: how many records; as many as there are where left out.

    Raises:
        NoSuchFile: there is no such file.
        InvalidData: it ends in the middle of a record, or before `count` of them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: Any,
        shape: Sequence[int] = (),
        offset: int = 0,
        count: int | None = None,
    ) -> None:
        place, element = Path(path), numpy_dtype(dtype)
        if element.hasobject:
            raise InvalidData(f"{place}: objects are not read from files")
        if offset < 0 or any(size < 0 for size in shape):
            raise ValueError(f"the offset {offset} and the shape {tuple(shape)} are at least 0")
        _require(place)
        record = math.prod(shape) * element.itemsize
        there = place.stat().st_size - offset
        if there < 0 or not record:
            raise InvalidData(f"{place}: {there + offset} bytes, the first record of {record} is at {offset}")
        if count is None:
            if there % record:
                raise InvalidData(
                    f"{place}: its {there} bytes behind byte {offset} are no whole number of records of "
                    f"{record} bytes ({element}{list(shape)})"
                )
            count = there // record
        elif count * record > there:
            raise InvalidData(
                f"{place}: {count} records of {record} bytes are wanted, {there // record} are there"
            )
        array: Array = np.zeros((0, *shape), element)
        if count:
            array = np.memmap(place, element, "r", offset, (count, *shape))
        super().__init__(array, single=True)
        self.path = place

    def item_name(self, index: int) -> str:
        """File and record.

        Args:
            index: of the item.
        """
        return f"{self.path}, record {index}"


def _require(path: Path) -> None:
    if not path.is_file():
        raise NoSuchFile(f"there is no file {str(path)!r}")


def _check_rows(arrays: Sequence[Array], where: str) -> None:
    if any(not array.ndim for array in arrays) or len({len(array) for array in arrays}) > 1:
        raise InvalidData(
            f"{where}: the arrays' rows do not belong together: {[array.shape for array in arrays]}"
        )


def _arrays(path: Path, names: Sequence[str] | None) -> list[Array]:
    _require(path)
    try:
        if path.suffix == ".npz":
            return _members(path, names)
        return [np.load(path, mmap_mode="r", allow_pickle=False)]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, SyntaxError) as error:
        if isinstance(error, InvalidData):
            raise
        raise InvalidData(f"{path} cannot be read as a file of NumPy: {error}") from error


def _members(path: Path, names: Sequence[str] | None) -> list[Array]:
    with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as whole:
        wanted = list(whole.files if names is None else names)
        missing = [name for name in wanted if name not in whole.files]
        if missing:
            raise InvalidData(f"{path} has no array {missing[0]!r}; it has {list(whole.files)}")
        found = []
        for name in wanted:
            member = archive.getinfo(f"{name}.npy")
            is_stored = member.compress_type == zipfile.ZIP_STORED
            found.append(_mapped(path, member) if is_stored else whole[name])
        return found


def _mapped(path: Path, member: zipfile.ZipInfo) -> Array:
    """A member that is not compressed, where it lies in the file."""
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise InvalidData(f"{path} is damaged: {member.filename} is not where it is said to be")
        file.seek(name_bytes + extra_bytes, os.SEEK_CUR)
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read(file)
        if dtype.hasobject:
            raise InvalidData(f"{path}: {member.filename} holds objects, which are not read from files")
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if is_fortran else "C")
