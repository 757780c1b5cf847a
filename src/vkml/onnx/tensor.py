"""Tensors of a model file as NumPy views, checked against their stated shape before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml import errors
from vkml.errors import InvalidGraph, InvalidProtobuf, ModelError
from vkml.ir import dtypes
from vkml.ir.dtypes import DType
from vkml.ir.graph import Constant, PackedConstant
from vkml.ir.packing import from_bytes
from vkml.ir.types import static
from vkml.onnx.external import ExternalFiles
from vkml.onnx.messages import SparseTensorProto, TensorProto
from vkml.onnx.wire import Buffer, decode_varints

Array = np.ndarray[Any, Any]

MAX_RANK = 64
"""NumPy's own bound."""

DENSE_LIMIT = 1 << 28
"""Bytes that a model's sparse tensors may grow to: their dense size is not bounded by the file's."""


class Tensor:
    """One tensor of a model file, made by `Model.tensors`; nothing is read before `array` is asked for."""

    def __init__(self, proto: TensorProto, files: ExternalFiles, where: str = "") -> None:
        self.proto = proto
        self.name = proto.name
        self._files = files
        self._where = where or f"tensor {proto.name!r}"

    @property
    def dtype(self) -> DType:
        try:
            return dtypes.from_code(self.proto.data_type)
        except ModelError as error:
            raise type(error)(f"{self._where}: {error}") from None

    @property
    def shape(self) -> tuple[int, ...]:
        return check_shape(self.proto.dims, self._where)

    @property
    def is_external(self) -> bool:
        """Whether the data lies in a file beside the model."""
        return self.proto.data_location == 1

    def array(self, *, aligned: bool = False) -> Array:
        """The data in its storage type (see `vkml.ir.dtypes`), read-only.

        Raw and external data, and float and double fields, come as views of the mapped file, without a copy;
        types below 8 bits are unpacked into a new array. Data in a file begin at any byte, so a view may be
        unaligned (``array.flags.aligned``): NumPy computes with it all the same, a little slower; code that
        reads elements through the address cannot.

        Args:
            aligned: Copy where the address is not a multiple of the element size.

        Returns:
            An array of `shape`.

        Raises:
            InvalidGraph: Type, shape and data do not fit together.
            InvalidProtobuf: The data of a typed field are malformed.
        """
        found = self._read()
        if self.dtype.is_packed:
            found = from_bytes(found, self.dtype, self.shape)
        elif aligned and not found.flags.aligned:
            found = found.copy()
        found.flags.writeable = False
        return found

    def constant(self) -> Constant:
        """The tensor as a graph holds it: without a copy, or packed where `array` unpacks."""
        if not self.dtype.is_packed:
            return Constant(self.dtype, self.shape, self.array())
        packed = self._read()
        packed.flags.writeable = False
        return PackedConstant(self.dtype, self.shape, Constant(dtypes.UINT8, packed.shape, packed))

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype.name}, {self.shape})"

    def _read(self) -> Array:
        """The data; of types below 8 bits the packed bytes, flat."""
        proto, dtype, shape = self.proto, self.dtype, self.shape
        if proto.segment is not None:
            raise errors.NotImplemented(f"{self._where} is split into segments, which vkml does not read")
        if proto.data_location not in (0, 1):
            raise InvalidProtobuf(f"{self._where}: data location {proto.data_location} is neither 0 nor 1")
        elements = math.prod(shape)
        if dtype == dtypes.STRING:
            return self._strings(shape, elements)
        if self.is_external:
            raw: Buffer | None = self._external(dtype.bytes_for(elements))
        else:
            raw = proto.raw_data
        if raw is None:
            flat = self._typed(dtype, elements)
        else:
            needed = dtype.bytes_for(elements)
            if len(raw) != needed:
                raise InvalidGraph(
                    f"{self._where}: {dtype.name} of shape {list(shape)} takes {needed} bytes, "
                    f"there are {len(raw)}"
                )
            flat = np.frombuffer(raw, _carrier(dtype))
        if dtype == dtypes.BOOL:
            # NumPy takes any byte for a bool, and computes nonsense with those that are neither 0 nor 1.
            flat = flat.view(np.bool_) if flat.max(initial=0) <= 1 else flat != 0
        return flat if dtype.is_packed else reshape(flat, shape, self._where)

    def _strings(self, shape: tuple[int, ...], elements: int) -> Array:
        texts = self.proto.string_data
        if self.is_external or self.proto.raw_data is not None:
            raise InvalidGraph(f"{self._where}: strings lie in string_data, never in raw or external data")
        if len(texts) != elements:
            raise InvalidGraph(
                f"{self._where}: shape {list(shape)} has {elements} strings, string_data has {len(texts)}"
            )
        flat = np.empty(elements, np.object_)
        for index, text in enumerate(texts):
            flat[index] = to_text(text, self._where)
        return reshape(flat, shape, self._where)

    def _typed(self, dtype: DType, elements: int) -> Array:
        name, width = _TYPED_FIELDS.get(dtype.name, ("int32_data", 0))
        data: Buffer = getattr(self.proto, name)
        parts = 2 if dtype.kind == "c" else 1
        needed = dtype.bytes_for(elements) if dtype.is_packed else elements * parts
        if width:
            found = len(data) // width if len(data) % width == 0 else -1
        else:
            found = int(np.count_nonzero(np.frombuffer(data, np.uint8) < 0x80))
        if found != needed:
            raise InvalidGraph(
                f"{self._where}: {dtype.name} of shape {list(self.shape)} takes {needed} numbers in {name}, "
                f"there are {found if found >= 0 else f'{len(data)} bytes'}"
            )
        if width:
            return np.frombuffer(data, dtype.storage)
        numbers = decode_varints(data)
        if dtype == dtypes.BOOL:
            values: Array = numbers != 0
            return values.view(np.uint8)
        # Fields of 32 bits carry smaller types, and halves as their bits, in the low end.
        unsigned = np.dtype(f"u{dtype.itemsize}")
        return numbers.astype(unsigned).view(_carrier(dtype))

    def _external(self, needed: int) -> Buffer:
        entries = {entry.key: entry.value for entry in self.proto.external_data}
        location = entries.get("location", "")
        if not location:
            raise InvalidGraph(f"{self._where}: its data are external, but no location is stated")
        view = self._files.view(location, self._where)
        offset = self._number(entries, "offset", 0)
        length = self._number(entries, "length", needed)
        if length != needed:
            raise InvalidGraph(
                f"{self._where}: {self.dtype.name} of shape {list(self.shape)} takes {needed} bytes, "
                f"its external data state a length of {length}"
            )
        if offset + length > len(view):
            raise InvalidGraph(
                f"{self._where}: its data are bytes {offset} to {offset + length} of {location!r}, "
                f"which has {len(view)} (a file cut short?)"
            )
        return view[offset : offset + length]

    def _number(self, entries: dict[str, str], key: str, default: int) -> int:
        text = entries.get(key, "")
        if not text:
            return default
        if len(text) > 20 or not (text.isascii() and text.isdecimal()):
            raise InvalidGraph(
                f"{self._where}: the {key} {text[:40]!r} of its external data is no byte count"
            )
        return int(text)


def _carrier(dtype: DType) -> np.dtype[Any]:
    """The NumPy type as which data are read: bytes where they are still to be looked at or unpacked."""
    return np.dtype(np.uint8) if dtype.is_packed or dtype == dtypes.BOOL else dtype.storage


_TYPED_FIELDS = {
    "float": ("float_data", 4),
    "complex64": ("float_data", 4),
    "double": ("double_data", 8),
    "complex128": ("double_data", 8),
    "int64": ("int64_data", 0),
    "uint32": ("uint64_data", 0),
    "uint64": ("uint64_data", 0),
}
"""Element type → the field that holds it, bytes a number (0: varints). All others are in int32_data."""


def check_shape(dims: Sequence[int], where: str) -> tuple[int, ...]:
    """The dimensions as a shape; `InvalidGraph` where no array can have it."""
    if len(dims) > MAX_RANK:
        raise InvalidGraph(
            f"{where}: {len(dims)} dimensions are more than the {MAX_RANK} that an array can have"
        )
    if any(size < 0 for size in dims):
        raise InvalidGraph(f"{where}: the shape {list(dims)} has a negative dimension")
    if math.prod(size for size in dims if size) >= 1 << 60:
        raise InvalidGraph(f"{where}: the shape {list(dims)} has more elements than can be addressed")
    return tuple(dims)


def reshape(flat: Array, shape: tuple[int, ...], where: str) -> Array:
    """`flat` in `shape`, whose element count it has."""
    try:
        return flat.reshape(shape)
    except ValueError as error:
        raise InvalidGraph(f"{where}: no array can have the shape {list(shape)}: {error}") from None


def to_text(data: Buffer, where: str) -> str:
    """UTF-8 bytes as str."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidProtobuf(f"{where}: a string is not UTF-8: {error}") from None


def densify(proto: SparseTensorProto, files: ExternalFiles, where: str, limit: int = DENSE_LIMIT) -> Constant:
    """A sparse tensor as a dense constant of at most `limit` bytes.

    Raises:
        InvalidGraph: Its values, indices and shape do not fit together.
        NotImplemented: Dense it would be larger than `limit`.
    """
    if proto.values is None:
        raise InvalidGraph(f"{where}: a sparse tensor has no values")
    source = Tensor(proto.values, files, where)
    shape = check_shape(proto.dims, where)
    dtype, values, elements = source.dtype, source.array(), math.prod(shape)
    if len(source.shape) != 1:
        raise InvalidGraph(
            f"{where}: the values of a sparse tensor have one dimension, not {len(source.shape)}"
        )
    needed = static(dtype, shape).host_bytes
    if needed > limit:
        raise errors.NotImplemented(
            f"{where}: a sparse tensor of shape {list(shape)} takes {needed} bytes dense, "
            f"{limit} are left of the {DENSE_LIMIT} that vkml lets the sparse tensors of a model grow to"
        )
    dense = np.full(elements, "", np.object_) if dtype == dtypes.STRING else np.zeros(elements, dtype.storage)
    if proto.indices is not None:
        dense[_flat_indices(Tensor(proto.indices, files, where), shape, values.size, where)] = values
    elif values.size:
        raise InvalidGraph(f"{where}: a sparse tensor has values and no indices")
    dense.flags.writeable = False  # before the reshape: a view of it keeps that
    return Constant(dtype, shape, reshape(dense, shape, where))


def _flat_indices(tensor: Tensor, shape: tuple[int, ...], count: int, where: str) -> Array:
    indices = tensor.array()
    if tensor.dtype != dtypes.INT64 or indices.shape not in ((count,), (count, len(shape))):
        raise InvalidGraph(
            f"{where}: the indices of a sparse tensor of {count} values in {len(shape)} dimensions are int64 "
            f"of shape [{count}] or [{count}, {len(shape)}], not {tensor.dtype.name} of {list(indices.shape)}"
        )
    bounds = np.array([math.prod(shape)] if indices.ndim == 1 else shape, np.int64)
    table = indices.reshape(count, -1) if count else indices.reshape(0, bounds.size)
    if ((table < 0) | (table >= bounds)).any():
        raise InvalidGraph(f"{where}: an index of a sparse tensor lies outside the shape {list(shape)}")
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))] if indices.ndim == 2 else [1]
    flat: Array = (table * np.array(strides, np.int64)).sum(axis=1)
    return flat
