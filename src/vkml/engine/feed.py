"""What a caller passes to `run`, checked against the model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.engine.array_likes import as_array
from vkml.engine.device_array import DeviceArray
from vkml.errors import Error, InvalidArgument
from vkml.ir import OptionalType, SequenceType, TensorType, Value, dtypes
from vkml.ir.dtypes import DType
from vkml.ir.types import MapType, MapValue

Array = np.ndarray[Any, Any]


def check_feed(inputs: Sequence[Value], feed: Mapping[str, Any]) -> list[Any]:
    """The feed as arrays of the inputs' types, in their order.

    Sequences are lists, optionals a value or None. NumPy arrays must have the input's type, in either byte
    order; lists and Python numbers take it where no value changes. Of the types that `ml_dtypes` adds to
    NumPy's, integers are taken from int8 and uint8 arrays, too, whose numbers they have, and bfloat16 and
    float8 as their bits in uint16 and uint8 arrays, as onnx and onnxruntime hand them over; what could be
    taken for something else is refused.

    Raises:
        InvalidArgument: a missing, extra, misshapen or mistyped input; inputs that disagree in a dimension.
        OutOfMemory: an array-like that is too large to become an array.
    """
    names = [value.name for value in inputs]
    if not isinstance(feed, Mapping):
        raise InvalidArgument(
            f"a feed is a mapping from input name to array, not {_article(type(feed).__name__)}; "
            f"the inputs are {names}"
        )
    missing = [name for name in names if name not in feed]
    known = set(names)
    extra = [name for name in feed if name not in known]
    if missing or extra:
        # The first words of these messages are onnxruntime's, which programs look for.
        what = (
            f"Required inputs ({missing}) are missing from input feed ({list(feed)})"
            if missing
            else f"Invalid input name: {extra[0]}"
        )
        parts = [f"missing {missing}"] if missing else []
        parts += [f"unknown {extra}"] if extra else []
        raise InvalidArgument(f"{what}: the feed does not fit: {', '.join(parts)}; the inputs are {names}")
    feeds = [check_input(value, feed[value.name]) for value in inputs]
    sizes: dict[str, tuple[int, str]] = {}
    for value, array in zip(inputs, feeds, strict=True):
        if not isinstance(value.type, TensorType):
            continue
        for dim, size in zip(value.type.shape or (), array.shape, strict=False):
            if isinstance(dim, str):
                first, where = sizes.setdefault(dim, (size, value.name))
                if first != size:
                    raise InvalidArgument(
                        f"the dimension '{dim}' is {first} in input '{where}' and {size} in input "
                        f"'{value.name}'"
                    )
    return feeds


def check_input(value: Value, given: Any) -> Any:
    """One input's array, of its type and shape; a list of them for a sequence, or None; see `check_feed`."""
    type_ = value.type
    if isinstance(type_, OptionalType):
        return None if given is None else check_input(Value(value.name, type_.element), given)
    if isinstance(type_, SequenceType):
        if not isinstance(given, list | tuple):
            raise InvalidArgument(
                f"input '{value.name}' is a sequence and takes a list of arrays, not "
                f"{_article(type(given).__name__)}"
            )
        return [
            check_input(Value(f"{value.name}[{at}]", type_.element), item) for at, item in enumerate(given)
        ]
    if isinstance(type_, MapType):
        return _check_map(value, type_, given)
    return _check_tensor(value, given)


def _check_map(value: Value, type_: MapType, given: Any) -> MapValue:
    """A dictionary with keys and values of its input's type."""
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"input '{value.name}' is a map and takes a dictionary, not {_article(type(given).__name__)}"
        )
    columns = []
    for dtype, what, items in (
        (type_.key, "keys", list(given)),
        (type_.element, "values", list(given.values())),
    ):
        column = Value(f"{value.name}: {what}", TensorType(dtype, None))
        plain = [item.item() if isinstance(item, np.generic) else item for item in items]
        columns.append(_check_tensor(column, plain).tolist() if items else [])
    return MapValue(type_, zip(*columns, strict=True))


def _check_tensor(value: Value, given: Any) -> Any:
    if isinstance(given, DeviceArray):
        return _check_device_array(value, given)
    array = as_array(given, f"input '{value.name}'")
    wanted = value.tensor.dtype
    if wanted == dtypes.UNDEFINED:  # of what a sequence holds, nothing may be stated
        wanted = dtypes.from_numpy(array.dtype)
        value = Value(value.name, TensorType(wanted, None))
    if wanted == dtypes.STRING:
        array = _texts(value, array)
    elif array.dtype != wanted.storage:
        array = _converted(value, array, given)
    _check_shape(value, array.shape)
    return array


def _check_device_array(value: Value, given: DeviceArray) -> Any:
    wanted = value.tensor
    if not wanted.is_unknown and given.dtype != wanted.dtype:
        raise InvalidArgument(
            f"{_mistyped(value, given.dtype.name)}: input '{value.name}' takes {wanted.dtype.numpy_name}, "
            f"got a value of {given.dtype.numpy_name}"
        )
    _check_shape(value, given.shape)
    return given


def _check_shape(value: Value, shape: tuple[int, ...]) -> None:
    stated = value.tensor.shape
    if stated is not None:
        fits = len(stated) == len(shape) and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(stated, shape, strict=False)
        )
        if not fits:
            shown = [dim if dim is not None else "?" for dim in stated]
            what = "Got invalid dimensions" if len(stated) == len(shape) else "Invalid rank"
            raise InvalidArgument(
                f"{what} for input: {value.name}: input '{value.name}' takes the shape {shown}, got "
                f"{list(shape)}"
            )


def _mistyped(value: Value, found: str) -> str:
    """What is wrong in onnxruntime's words, which programs look for."""
    expected = value.tensor.dtype.name
    return f"Unexpected input data type. Actual: (tensor({found})) , expected: (tensor({expected}))"


def _found(array: Array) -> str:
    """The element type of an array as onnxruntime writes it."""
    try:
        return dtypes.from_numpy(array.dtype).name
    except Error:
        return str(array.dtype)


def _whole(given: Any, array: Array) -> Array:
    """Python's integers beyond 2**63, of which NumPy may make float64, as uint64; the rest as it is."""
    items = np.asarray(given, object)
    if items.size and all(type(item) is int and 0 <= item < 2**64 for item in items.reshape(-1)):
        return items.astype(np.uint64)
    return array


def _converted(value: Value, array: Array, given: Any) -> Array:
    wanted = value.tensor.dtype
    is_array = isinstance(given, np.ndarray | np.generic)
    if not is_array and wanted == dtypes.UINT64 and array.dtype.kind == "f":
        array = _whole(given, array)
    found = array.dtype.newbyteorder("=")
    if found == wanted.storage:
        return array.astype(wanted.storage)
    if is_array and wanted.is_packed and wanted.is_integer and found in (np.int8, np.uint8):
        return _in_range(value, array)
    if is_array and wanted in _BITS and found == _BITS[wanted]:
        return array.astype(found).view(wanted.storage)
    if not is_array:
        if wanted.is_native and _may_become(array, wanted):
            return array.astype(wanted.storage)
        if isinstance(given, list) and wanted.is_native and array.dtype.kind == "b" and wanted.kind in "fiu":
            return array.astype(wanted.storage)
        if not wanted.is_native and array.dtype.kind in "fiu":
            return _exactly(value, array)
    raise InvalidArgument(
        f"{_mistyped(value, _found(array))}: input '{value.name}' takes {wanted.numpy_name}, got "
        f"{array.dtype}; {_advice(array, wanted)}"
    )


_BITS = {
    dtype: np.dtype(np.uint16 if dtype.bits == 16 else np.uint8)
    for dtype in dtypes.ALL
    if dtype.is_float and not dtype.is_native and not dtype.is_packed
}
"""Types whose bits have a customary form: nobody has numbers in an array of that type for such an input."""


def _in_range(value: Value, array: Array) -> Array:
    """Numbers as elements of fewer bits; `InvalidArgument` where these would lose some."""
    dtype = value.tensor.dtype
    if not dtypes.can_hold(dtype, array):
        least, most = dtypes.integer_bounds(dtype)
        raise InvalidArgument(
            f"input '{value.name}' is {dtype.name}, whose numbers are {least} to {most}; there are numbers "
            f"from {array.min()} to {array.max()}"
        )
    return array.astype(dtype.storage)


def _exactly(value: Value, array: Array) -> Array:
    """Python's numbers as elements of a type that holds few; `InvalidArgument` where one would change."""
    wanted = value.tensor.dtype
    with np.errstate(all="ignore"):
        made = array.astype(wanted.storage)
        kept = made.astype(np.float64)
        is_changed = (kept != array) & ~(np.isnan(kept) & np.isnan(array))
        if not is_changed.any():
            return made
    example = array[is_changed].reshape(-1)[0]
    raise InvalidArgument(
        f"input '{value.name}' takes {wanted.numpy_name}, which does not have the number {example}; to have "
        f"it rounded, pass an array converted with .astype(ml_dtypes.{wanted.numpy_name})"
    )


def _may_become(array: Array, wanted: DType) -> bool:
    """Whether Python's numbers, which know neither float32 nor int8, may be taken for that type."""
    kind = array.dtype.kind
    if array.size == 0 and kind == "f":  # what NumPy makes of an empty list
        return wanted.kind in "fiub"
    if wanted.kind == "b":
        return kind in "iu" and bool(((array == 0) | (array == 1)).all())
    if wanted.kind not in "fiu" or kind not in ("fiu" if wanted.is_float else "iu"):
        return False
    return dtypes.can_hold(wanted, array)


def _advice(array: Array, wanted: DType) -> str:
    name = wanted.storage.name if wanted.is_native else f"ml_dtypes.{wanted.storage.name}"
    if wanted.is_native:
        name = f"np.{name}"
    if array.dtype.kind in "fiub" and wanted.kind in "fiub":
        return f"convert it with .astype({name})"
    return f"pass an array of {name}"


def _texts(value: Value, array: Array) -> Array:
    if array.dtype.kind == "U" or (array.size == 0 and array.dtype != object):
        return array.astype(object)
    if array.dtype.kind in "SV" and array.dtype.names is None:
        made = np.empty(array.shape, object)
        try:
            made.reshape(-1)[:] = [bytes(item).rstrip(b"\0").decode() for item in array.reshape(-1)]
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"input '{value.name}': the bytes are no text in UTF-8: {error}") from None
        return made
    if array.dtype != object or not all(isinstance(item, str | bytes) for item in array.reshape(-1)):
        raise InvalidArgument(
            f"{_mistyped(value, _found(array))}: input '{value.name}' takes strings, got {array.dtype}; pass "
            "an array of Python strings"
        )
    return array


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "aeiouAEIOU" else f"a {noun}"
