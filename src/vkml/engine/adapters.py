"""Files of adapters, as onnxruntime has them: tensors by name that runs take instead of a model's own.

The format is FlatBuffers': tables point forwards to what they hold, by offsets from where the offset is, and
backwards to a table of where their fields lie.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vkml.engine.device_array import on_host
from vkml.engine.ort_value import OrtValue
from vkml.errors import Fail, InvalidArgument, InvalidCheckpoint, NoSuchFile, WrongType
from vkml.ir import dtypes
from vkml.ir.packing import from_bytes, to_bytes

_MARK = b"TORT"
_FORMAT_VERSION = 1


class AdapterFormat:
    """The content of a file of an adapter.

    Example:
        >>> import vkml, numpy as np
        >>> adapter = vkml.AdapterFormat()
        >>> adapter.set_adapter_version(1)
        >>> adapter.set_parameters({"a": vkml.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))})
        >>> list(adapter.get_parameters())
        ['a']
    """

    def __init__(self) -> None:
        self._format_version = _FORMAT_VERSION
        self._adapter_version = 0
        self._model_version = 0
        self._parameters: dict[str, OrtValue] = {}

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """What a file holds.

        Args:
            file_path: of the file.

        Raises:
            NoSuchFile: there is none.
            InvalidCheckpoint: it is damaged, or something else.
        """
        try:
            content = Path(file_path).read_bytes()
        except FileNotFoundError:
            raise NoSuchFile(f"there is no file {os.fspath(file_path)!r}") from None
        except OSError as error:
            raise Fail(f"{os.fspath(file_path)!r} cannot be read: {error.strerror}") from error
        try:
            return _read(content)
        except (struct.error, ValueError, IndexError, OverflowError) as error:
            raise InvalidCheckpoint(
                f"{os.fspath(file_path)!r} is no adapter for onnxruntime, or damaged: {error}"
            ) from error

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Writes a file.

        Args:
            file_path: of the file.
        """
        try:
            Path(file_path).write_bytes(_written(self))
        except OSError as error:
            raise Fail(f"{os.fspath(file_path)!r} cannot be written: {error.strerror}") from error

    def get_format_version(self) -> int:
        """Version of the format."""
        return self._format_version

    def set_adapter_version(self, adapter_version: int) -> None:
        """Sets the adapter's own version.

        Args:
            adapter_version: any number.
        """
        self._adapter_version = int(adapter_version)

    def get_adapter_version(self) -> int:
        """The adapter's own version."""
        return self._adapter_version

    def set_model_version(self, model_version: int) -> None:
        """Sets the version of the model that it is for.

        Args:
            model_version: any number.
        """
        self._model_version = int(model_version)

    def get_model_version(self) -> int:
        """The version of the model that it is for."""
        return self._model_version

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Sets its tensors.

        Args:
            params: by name of the input that takes them.
        """
        for name, value in params.items():
            if not isinstance(name, str) or not isinstance(value, OrtValue) or not value.is_tensor():
                raise WrongType(f"parameters are OrtValues of tensors by name, not {name!r}: {value!r}")
        self._parameters = dict(params)

    def get_parameters(self) -> dict[str, OrtValue]:
        """Its tensors by name."""
        return dict(self._parameters)


class LoraAdapter:
    """Tensors of a file for `RunOptions.add_active_adapter`."""

    def __init__(self) -> None:
        self.parameters: dict[str, OrtValue] = {}
        """By name of the input that takes them."""

    def Load(self, file_path: str | os.PathLike[str]) -> None:
        """Reads a file; see `AdapterFormat.read_adapter`."""
        self.parameters = AdapterFormat.read_adapter(file_path).get_parameters()


# -- reading ------------------------------------------------------------------------------------------------


def _read(content: bytes) -> AdapterFormat:
    if content[4:8] != _MARK:
        raise ValueError("it does not begin as one")
    root = _Table(content, _Table.target(content, 0))
    adapter = AdapterFormat()
    adapter._format_version = root.integer(0)
    adapter._adapter_version, adapter._model_version = root.integer(1), root.integer(2)
    if adapter._format_version != _FORMAT_VERSION:
        raise ValueError(f"its format is of version {adapter._format_version}, not {_FORMAT_VERSION}")
    start, count = root.vector(3)
    for at in range(count):
        parameter = _Table(content, _Table.target(content, start + 4 * at))
        name = parameter.bytes(0).decode()
        first, rank = parameter.vector(1)
        shape = struct.unpack_from(f"<{rank}q", content, first)
        dtype = dtypes.from_code(parameter.integer(2))
        data = np.frombuffer(parameter.bytes(3), np.uint8)
        if min(shape, default=0) < 0 or data.size != dtype.bytes_for(int(np.prod(shape))):
            raise ValueError(f"the parameter {name!r} has {data.size} bytes for a shape of {list(shape)}")
        array = from_bytes(data, dtype, shape) if dtype.is_packed else data.view(dtype.storage).reshape(shape)
        adapter._parameters[name] = OrtValue(array.copy())
    return adapter


class _Table:
    """A table of a file."""

    def __init__(self, content: bytes, position: int) -> None:
        self._content, self._position = content, position
        [distance] = struct.unpack_from("<i", content, position)
        self._fields = position - distance
        if self._fields < 0:
            raise ValueError("a table of fields lies before the file")

    @staticmethod
    def target(content: bytes, position: int) -> int:
        """Where the offset at a position points to."""
        [distance] = struct.unpack_from("<I", content, position)
        return int(position + distance)

    def integer(self, field: int) -> int:
        """A number; 0 where the field is not there."""
        position = self._at(field)
        return int(struct.unpack_from("<i", self._content, position)[0]) if position else 0

    def vector(self, field: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        position = self._at(field)
        if not position:
            return 0, 0
        start = self.target(self._content, position)
        [count] = struct.unpack_from("<I", self._content, start)
        if count > len(self._content):
            raise ValueError(f"a vector has {count} elements")
        return start + 4, count

    def bytes(self, field: int) -> bytes:
        """The bytes of a vector of these."""
        start, count = self.vector(field)
        if start + count > len(self._content):
            raise ValueError("a vector passes the end")
        return self._content[start : start + count]

    def _at(self, field: int) -> int:
        """Where a field lies; 0 where it is not there."""
        [size] = struct.unpack_from("<H", self._content, self._fields)
        if 6 + 2 * field > size:
            return 0
        [offset] = struct.unpack_from("<H", self._content, self._fields + 4 + 2 * field)
        return self._position + offset if offset else 0


# -- writing ------------------------------------------------------------------------------------------------


def _written(adapter: AdapterFormat) -> bytes:
    """A file's bytes: each thing in front of what it points to."""
    file = _File()
    root = file.reserve(4)
    file.content += _MARK
    fields = file.table(root, 4)
    for field, number in enumerate((_FORMAT_VERSION, adapter._adapter_version, adapter._model_version)):
        file.put(fields + 4 * field, "<i", number)
    parameters = adapter.get_parameters()
    slots = file.vector(fields + 12, len(parameters), 4)
    for at, (name, value) in enumerate(parameters.items()):
        array = on_host(value.value)
        dtype = dtypes.from_numpy(array.dtype)
        if dtype == dtypes.STRING:
            raise InvalidArgument(f"the parameter {name!r} is of texts, which adapters do not hold")
        inner = file.table(slots + 4 * at, 4)
        file.put(inner + 8, "<i", dtype.code)
        file.text(inner, name.encode())
        shape = file.vector(inner + 4, array.ndim, 8)
        for axis, size in enumerate(array.shape):
            file.put(shape + 8 * axis, "<q", size)
        file.text(inner + 12, np.ascontiguousarray(to_bytes(array, dtype)).tobytes())
    return bytes(file.content)


class _File:
    """A file as it grows."""

    def __init__(self) -> None:
        self.content = bytearray()

    def reserve(self, size: int, alignment: int = 4, before: int = 0) -> int:
        """Room for that many bytes; what lies `before` bytes on is aligned."""
        self.content += bytes(-(len(self.content) + before) % alignment)
        position = len(self.content)
        self.content += bytes(size)
        return position

    def put(self, position: int, form: str, number: int) -> None:
        """Writes a number."""
        struct.pack_into(form, self.content, position, number)

    def table(self, pointer: int, fields: int) -> int:
        """A table of fields of 4 bytes; returns where the first lies."""
        listing = self.reserve(4 + 2 * fields)
        struct.pack_into(
            f"<{2 + fields}H", self.content, listing, 4 + 2 * fields, 4 + 4 * fields,
            *(4 + 4 * field for field in range(fields)),
        )  # fmt: skip
        table = self.reserve(4 + 4 * fields)
        self.put(table, "<i", table - listing)
        self.put(pointer, "<I", table - pointer)
        return table + 4

    def vector(self, pointer: int, count: int, size: int) -> int:
        """A vector of elements of `size` bytes; returns where the first lies."""
        start = self.reserve(4 + count * size, max(4, size), before=4)
        self.put(start, "<I", count)
        self.put(pointer, "<I", start - pointer)
        return start + 4

    def text(self, pointer: int, data: bytes) -> None:
        """A vector of bytes that begins at a multiple of 8, with a 0 behind it, as texts have."""
        start = self.reserve(4, 8, before=4)
        self.put(start, "<I", len(data))
        self.put(pointer, "<I", start - pointer)
        self.content += data + b"\0"
