"""`OrtValue`: a tensor on the host or on a device, in the shape of onnxruntime's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine import devices as device_registry
from vkml.engine.array_likes import as_array, as_sizes
from vkml.engine.device_array import DeviceArray, Value, on_host, put
from vkml.engine.memory_infos import ACCELERATORS, OrtMemoryInfo
from vkml.engine.sparse_tensor import SparseTensor
from vkml.errors import InvalidArgument, InvalidDevice, WrongType
from vkml.forks import renew_in_child
from vkml.ir import DType, dtypes

if TYPE_CHECKING:
    from vkml.vulkan import Device

Array = np.ndarray[Any, Any]


class OrtValue:
    """A tensor that sessions take and give, on the host or on a device; made by its static methods.

    Example:
        >>> import vkml, numpy as np
        >>> value = vkml.OrtValue.ortvalue_from_numpy(np.arange(3, dtype=np.float32))
        >>> value.device_name(), value.shape(), value.data_type()
        ('cpu', [3], 'tensor(float)')
    """

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        """The array, or the value on a device; of outputs that are no tensors a list, or None."""

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Array, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A value with an array's elements.

        Args:
            numpy_obj: of any element type that ONNX has. On the CPU the value is this array, not a copy,
                where it is in C order.
            device_type: ``"cpu"``, ``"vulkan"`` or the name of a device, as in ``"vulkan:0"``; onnxruntime's
                names of accelerators, as ``"cuda"``, stand for ``"vulkan"``.
            device_id: which one, for ``"vulkan"``.
            vendor_id: accepted.

        Raises:
            InvalidArgument: no such device, or no array of such elements.
            OutOfMemory: the device, or the host, has too little memory.
        """
        array = as_array(numpy_obj, "the value", "C")
        dtype = dtype_of(array.dtype)
        device = device_of(device_type, device_id)
        if device is None:
            return OrtValue(array)
        made = DeviceArray(device, dtype, array.shape)
        made.write(array.astype(dtype.storage, copy=False))
        return OrtValue(made)

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """A value to be written: its elements are what memory held before.

        Args:
            shape: its sizes.
            element_type: a NumPy type, or ONNX's number of one.
            device_type: as for `ortvalue_from_numpy`.
            device_id: likewise.
            vendor_id: likewise.
            memory_info: where it is to be, instead.
        """
        if memory_info is not None:
            device_type, device_id = memory_info.name.lower(), memory_info.device_id
        dtype, sizes = dtype_of(element_type), as_sizes(shape, "a shape")
        device = device_of(device_type, device_id)
        return OrtValue(
            np.empty(sizes, dtype.storage) if device is None else DeviceArray(device, dtype, sizes)
        )

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Array, onnx_element_type: int) -> OrtValue:
        """A value on the CPU whose elements are an array's bits, taken for another type of as many.

        Args:
            data: in C order, or a copy is made.
            onnx_element_type: ONNX's number of the type.
        """
        array, dtype = as_array(data, "the value", "C"), dtype_of(onnx_element_type)
        if dtype.kind == "s" or array.dtype.hasobject or dtype.itemsize != array.itemsize:
            raise InvalidArgument(
                f"elements of {8 * array.itemsize} bits are not to be taken for {dtype.name}"
            )
        return OrtValue(array.view(dtype.storage))

    @staticmethod
    def ort_value_from_sparse_tensor(sparse_tensor: SparseTensor) -> OrtValue:
        """A value that holds a sparse tensor.

        Args:
            sparse_tensor: what it holds, not a copy.
        """
        if not isinstance(sparse_tensor, SparseTensor):
            raise WrongType(f"a vkml.SparseTensor is taken, not {type(sparse_tensor).__name__}")
        return OrtValue(sparse_tensor)

    def as_sparse_tensor(self) -> SparseTensor:
        """The sparse tensor that it holds.

        Raises:
            InvalidArgument: it holds something else.
        """
        if not isinstance(self.value, SparseTensor):
            raise InvalidArgument(f"the value is no sparse tensor but {self!r}")
        return self.value

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        """A value on the CPU that shares memory with another package's tensor, which lies there, too.

        Args:
            data: has ``__dlpack__`` and ``__dlpack_device__``, or is what the first of these returns.
            is_bool_tensor: whether bytes in it are truth values, which some packages pass on as bytes.

        Raises:
            InvalidArgument: it is neither, or lies elsewhere.
        """
        if type(data).__name__ == "PyCapsule":
            data = _Capsule(data)
        if not hasattr(data, "__dlpack__") or not hasattr(data, "__dlpack_device__"):
            raise InvalidArgument(f"a tensor with __dlpack__ is taken, not {type(data).__name__}")
        try:
            array = np.from_dlpack(data)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidArgument(f"__dlpack__ gave no tensor on the CPU: {error}") from error
        if array.dtype == np.uint8 and (
            is_bool_tensor or _holds_truths(data)
        ):  # as packages do that know no truth values there
            array = array.view(np.bool_)
        return OrtValue(as_array(array, "the value", "C"))

    @property
    def _dtype(self) -> DType:
        value = self._tensor
        return value.dtype if isinstance(value, DeviceArray) else dtypes.from_numpy(value.dtype)

    @property
    def _tensor(self) -> Value:
        if isinstance(self.value, np.ndarray | DeviceArray):
            return self.value
        found = "a sequence" if isinstance(self.value, list) else "an optional that holds nothing"
        if isinstance(self.value, SparseTensor):
            raise InvalidArgument("the value is a sparse tensor; as_sparse_tensor() gives it")
        raise InvalidArgument(f"the value is no tensor but {found}; IOBinding.copy_outputs_to_cpu() gives it")

    def numpy(self) -> Array:
        """The value as an array: itself where it is on the CPU, else a copy."""
        found = self._tensor
        return found.numpy() if isinstance(found, DeviceArray) else found

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(self._tensor.shape)

    def data_type(self) -> str:
        """As onnxruntime writes it: ``tensor(float)``."""
        if isinstance(self.value, list) and self.value:
            return f"seq({OrtValue(self.value[0]).data_type()})"
        if isinstance(self.value, SparseTensor):
            return self.value.data_type()
        return f"tensor({self._dtype.name})"

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return self._dtype.code

    def device_name(self) -> str:
        """``"cpu"``, ``"vulkan:0"``, …"""
        return self.value.device.info.name if isinstance(self.value, DeviceArray) else "cpu"

    def data_ptr(self) -> int:
        """The address of the first byte, on its device."""
        if isinstance(self.value, DeviceArray):
            return self.value.address
        return int(self.value.__array_interface__["data"][0])

    def tensor_size_in_bytes(self) -> int:
        """Bytes that its elements take in memory."""
        return self._tensor.nbytes

    def has_value(self) -> bool:
        """Whether there is one: an optional may hold nothing."""
        return self.value is not None

    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self.value, np.ndarray | DeviceArray)

    def is_sparse_tensor(self) -> bool:
        """Whether it is a sparse tensor."""
        return isinstance(self.value, SparseTensor)

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence of tensors."""
        return isinstance(self.value, list)

    def update_inplace(self, np_arr: Array | OrtValue) -> None:
        """Overwrites its elements, in the memory that it has; no run may be using it.

        Args:
            np_arr: an array, or a value anywhere, of its type and shape.
        """
        if isinstance(np_arr, OrtValue):
            other = np_arr._tensor
            if isinstance(self.value, DeviceArray) and isinstance(other, DeviceArray):
                self.value.require_like(other.dtype, other.shape)
                put(other, self.value)
                return
            np_arr = on_host(other)
        if not isinstance(np_arr, np.ndarray) or np_arr.dtype != self._dtype.storage:
            found = np_arr.dtype if isinstance(np_arr, np.ndarray) else type(np_arr).__name__
            raise InvalidArgument(f"the value is {self.data_type()}, got {found}")
        if isinstance(self.value, DeviceArray):
            self.value.write(np_arr)
        elif np_arr.shape != self.value.shape:
            raise InvalidArgument(f"the value is of shape {self.shape()}, the array {list(np_arr.shape)}")
        else:
            np.copyto(self.value, np_arr)

    def _get_c_value(self) -> OrtValue:
        """Itself: programs ask onnxruntime's for what it wraps."""
        return self

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def to_dlpack(self) -> Any:
        """As ``__dlpack__``."""
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the host: values of a device are copied there

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype, copy=copy)

    def __repr__(self) -> str:
        if isinstance(self.value, SparseTensor):
            return f"<OrtValue {self.data_type()} {self.value.dense_shape()}>"
        if not self.is_tensor():
            return f"<OrtValue {'of nothing' if self.value is None else f'of {len(self.value)} values'}>"
        return f"<OrtValue {self.data_type()} {self.shape()} on {self.device_name()}>"


class OrtValueVector(list[OrtValue]):
    """A list of values with the methods that onnxruntime's has."""

    def push_back(self, value: OrtValue) -> None:
        """Appends a value."""
        self.append(value)

    def reserve(self, count: int) -> None:
        """Accepted: lists grow by themselves."""

    def shrink_to_fit(self) -> None:
        """Accepted."""


class _Capsule:
    """What ``__dlpack__`` has returned, as something that has the method."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copies values into others, each of the same type and shape, from and to any device.

    Args:
        src: what is copied.
        dst: as many values, written.
        stream: accepted: copies are done when this returns.
    """
    if len(src) != len(dst):
        raise InvalidArgument(f"there are {len(src)} values to copy, and {len(dst)} to copy them to")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


def _holds_truths(data: Any) -> bool:
    """Whether a tensor of another package is one of truth values."""
    if callable(getattr(data, "data_type", None)):
        return bool(data.data_type() == "tensor(bool)")
    dtype = getattr(data, "dtype", None)
    return str(getattr(dtype, "name", dtype)) in ("bool", "torch.bool")


_by_name: dict[str, Device] = {}
"""Devices that were asked for by a name with their number."""
renew_in_child(_by_name.clear)


def device_of(device_type: str, device_id: int = 0) -> Device | None:
    """The device that onnxruntime's two arguments name; None for the CPU.

    Raises:
        InvalidDevice: they name none.
    """
    known = _by_name.get(device_type) if isinstance(device_type, str) else None
    if known is not None and not known.is_closed:
        return known
    if not isinstance(device_type, str) or not isinstance(device_id, int | np.integer):
        found = f"{type(device_type).__name__} and {type(device_id).__name__}"
        raise InvalidArgument(f"a device is a name and a number, not {found}")
    kind = device_type.lower()
    if kind == "cpu":
        return None
    if kind in ACCELERATORS:
        kind = "vulkan"
    if kind.partition(":")[0] != "vulkan":
        raise InvalidDevice(
            f"there is no device {device_type!r}: use 'cpu', 'vulkan' with a number, or a name of "
            "vkml.devices()"
        )
    from vkml.vulkan import find_device

    device = device_registry.open_device(find_device(kind if ":" in kind else f"vulkan:{device_id}", True))
    if ":" in device_type:
        _by_name[device_type] = device
    return device


def dtype_of(element_type: Any) -> DType:
    """The element type that a NumPy type, or ONNX's number of one, stands for."""
    if isinstance(element_type, int | np.integer):
        return dtypes.from_code(int(element_type))
    try:
        return dtypes.from_numpy(element_type)
    except Exception as error:  # np.dtype asks objects for their `dtype`, whose code may raise anything
        is_named = isinstance(element_type, str | type | np.dtype)
        found = element_type if is_named else type(element_type).__name__
        raise InvalidArgument(f"{found} is no element type: {error}") from error
