"""`SparseTensor`: the elements of a tensor that are there, and where; in the shape of onnxruntime's."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.array_likes import as_array, as_sizes
from vkml.engine.memory_infos import OrtDevice
from vkml.errors import InvalidArgument, InvalidSetting, WrongType
from vkml.ir import dtypes

Array = np.ndarray[Any, Any]


class OrtSparseFormat(IntEnum):
    """How places of elements are written."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


@dataclass(frozen=True)
class SparseCooView:
    """Places as coordinates."""

    _indices: Array

    def indices(self) -> Array:
        """int64: in the flattened tensor, shape (n,), or row and column, shape (n, 2)."""
        return self._indices


@dataclass(frozen=True)
class SparseCsrView:
    """Places row by row."""

    _inner: Array
    _outer: Array

    def inner(self) -> Array:
        """int64, shape (n,): the column of each element."""
        return self._inner

    def outer(self) -> Array:
        """int64, shape (rows + 1,): how many elements there are before each row."""
        return self._outer


class SparseTensor:
    """Elements of a tensor and their places, on the host; made by its static methods.

    Example:
        >>> import vkml, numpy as np
        >>> device = vkml.OrtDevice.make("cpu", 0)
        >>> places = np.array([3, 5], np.int64)
        >>> sparse = vkml.SparseTensor.sparse_coo_from_numpy([9, 9], np.ones(2, np.float32), places, device)
        >>> sparse.dense_shape(), sparse.data_type()
        ([9, 9], 'sparse_tensor(float)')
    """

    def __init__(self, shape: Sequence[int], values: Array, view: SparseCooView | SparseCsrView) -> None:
        self._shape, self._values, self._view = list(shape), values, view
        self._dtype = dtypes.STRING if values.dtype == object else dtypes.from_numpy(values.dtype)

    @staticmethod
    def sparse_coo_from_numpy(
        dense_shape: Sequence[int], values: Array, coo_indices: Array, ort_device: OrtDevice
    ) -> SparseTensor:
        """A sparse tensor by coordinates.

        Args:
            dense_shape: of the whole tensor.
            values: shape (n,), of a type that ONNX has.
            coo_indices: int64, shape (n,), (2n,) or (n, 2); see `SparseCooView.indices`.
            ort_device: the CPU.

        Raises:
            InvalidArgument: there are more or fewer places than elements, or some lie outside.
        """
        shape, array = _checked(dense_shape, values, ort_device)
        places = _places(coo_indices, "coo_indices")
        if places.ndim == 1 and places.size == 2 * array.size and array.size:
            places = places.reshape(-1, 2)
        if places.shape not in ((array.size,), (array.size, 2)):
            raise InvalidArgument(
                f"{array.size} elements have places of shape ({array.size},) or "
                f"({array.size}, 2), not {list(places.shape)}"
            )
        limits = [int(np.prod(shape))] if places.ndim == 1 else list(shape)
        if places.ndim == 2 and len(shape) != 2:
            raise InvalidArgument(f"rows and columns are places of a tensor of two axes, not of {shape}")
        if places.size and (places.min() < 0 or (places >= limits).any()):
            raise InvalidArgument(f"places lie outside of a tensor of shape {shape}")
        return SparseTensor(shape, array, SparseCooView(places))

    @staticmethod
    def sparse_csr_from_numpy(
        dense_shape: Sequence[int],
        values: Array,
        inner_indices: Array,
        outer_indices: Array,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """A sparse matrix row by row.

        Args:
            dense_shape: rows and columns.
            values: shape (n,), of a type that ONNX has.
            inner_indices: int64, shape (n,): columns.
            outer_indices: int64, shape (rows + 1,): how many elements there are before each row.
            ort_device: the CPU.

        Raises:
            InvalidArgument: these do not fit together.
        """
        shape, array = _checked(dense_shape, values, ort_device)
        inner, outer = _places(inner_indices, "inner_indices"), _places(outer_indices, "outer_indices")
        if len(shape) != 2 or inner.shape != (array.size,) or outer.shape != (shape[0] + 1,):
            raise InvalidArgument(
                f"a matrix of shape {shape} with {array.size} elements has {array.size} columns and "
                f"{shape[0] + 1 if shape else 1} counts, not {list(inner.shape)} and {list(outer.shape)}"
            )
        if inner.size and (inner.min() < 0 or inner.max() >= shape[1]):
            raise InvalidArgument(f"columns lie outside of a matrix of shape {shape}")
        return SparseTensor(shape, array, SparseCsrView(inner, outer))

    def values(self) -> Array:
        """The elements; not to be written."""
        return self._values

    def as_coo_view(self) -> SparseCooView:
        """Their places as coordinates.

        Raises:
            InvalidSetting: they are not written so.
        """
        if not isinstance(self._view, SparseCooView):
            raise InvalidSetting(f"the places of this tensor are written as {self.format().name}")
        return self._view

    def as_csrc_view(self) -> SparseCsrView:
        """Their places row by row.

        Raises:
            InvalidSetting: they are not written so.
        """
        if not isinstance(self._view, SparseCsrView):
            raise InvalidSetting(f"the places of this tensor are written as {self.format().name}")
        return self._view

    def as_blocksparse_view(self) -> Any:
        """Raises `InvalidSetting`: there is nothing that makes tensors of blocks."""
        raise InvalidSetting(f"the places of this tensor are written as {self.format().name}")

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Raises `InvalidSetting`: vkml has no CUDA.

        Args:
            ort_device: where to.
        """
        raise InvalidSetting(f"sparse tensors are on the CPU; vkml has no CUDA to copy one to {ort_device!r}")

    def format(self) -> OrtSparseFormat:
        """How places are written."""
        is_coo = isinstance(self._view, SparseCooView)
        return OrtSparseFormat.ORT_SPARSE_COO if is_coo else OrtSparseFormat.ORT_SPARSE_CSRC

    def dense_shape(self) -> list[int]:
        """Sizes of the whole tensor."""
        return list(self._shape)

    def data_type(self) -> str:
        """As onnxruntime writes it: ``sparse_tensor(float)``."""
        return f"sparse_tensor({self._dtype.name})"

    def device_name(self) -> str:
        """``"cpu"``."""
        return "cpu"

    def _get_c_tensor(self) -> SparseTensor:
        """Itself: programs ask onnxruntime's for what it wraps."""
        return self


def _checked(dense_shape: Sequence[int], values: Any, device: OrtDevice) -> tuple[tuple[int, ...], Array]:
    if not isinstance(device, OrtDevice):
        raise WrongType(f"ort_device is a vkml.OrtDevice, not {device!r}")
    if device.device_type() != OrtDevice.make("cpu", 0).device_type():
        raise InvalidSetting("sparse tensors are made on the CPU")
    array = as_array(values, "the elements", "C")
    if array.ndim != 1:
        raise InvalidArgument(f"the elements have one axis, not the shape {list(array.shape)}")
    array = array.astype(object) if array.dtype.kind in "US" else array.view()
    array.flags.writeable = False
    return as_sizes(dense_shape, "a shape"), array


def _places(given: Any, what: str) -> Array:
    array = as_array(given, what, "C")
    if array.dtype != np.int64:
        raise InvalidArgument(f"{what} are int64, not {array.dtype}")
    array = array.view()
    array.flags.writeable = False
    return array
