"""Tensors and settings in files that hold no code: `save` and `load`, in the safetensors format."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vkml.errors import InvalidCheckpoint, NoSuchFile
from vkml.ir import DType, dtypes
from vkml.tensors import Tensor
from vkml.tensors.backward import compute
from vkml.tensors.creation import tensor

Array = np.ndarray[Any, Any]
_FORM = "vkml"
"""Key of the file's metadata under which the form of what was saved is, as JSON."""
_SUMS = "vkml.crc32"
"""Key of the checksums of all tensors, as JSON."""
_TYPES = {
    "F64": dtypes.FLOAT64, "F32": dtypes.FLOAT32, "F16": dtypes.FLOAT16, "BF16": dtypes.BFLOAT16,
    "I64": dtypes.INT64, "I32": dtypes.INT32, "I16": dtypes.INT16, "I8": dtypes.INT8, "U64": dtypes.UINT64,
    "U32": dtypes.UINT32, "U16": dtypes.UINT16, "U8": dtypes.UINT8, "BOOL": dtypes.BOOL,
    "F8_E4M3": dtypes.FLOAT8E4M3FN, "F8_E5M2": dtypes.FLOAT8E5M2, "C64": dtypes.COMPLEX64,
}  # fmt: skip


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Writes tensors, and what they are nested in, to a file; nothing is pickled.

    A mapping from names to tensors, as `Module.state_dict` gives it, becomes a plain safetensors file that
    PyTorch's `safetensors.torch.load_file` takes. In anything else tensors are named by where they are,
    ``"optimizer.state.0.exp_avg"``, and the rest is in the file's metadata.

    The file appears at once and whole: it is written beside its place, flushed to the disk and renamed, so
    that a process or a machine that stops in between leaves the one before as it was.

    Args:
        obj: tensors, NumPy arrays, numbers, strings, bytes, element types and None in mappings, lists and
            tuples.
        path: of the file; it is replaced.

    Raises:
        TypeError: something else is in it; the message says where.
        NoSuchFile: there is no such folder.
        OSError: the file cannot be written; the one before is as it was.
        ImportError: the package `safetensors` is not installed.

    Example:
        >>> import tempfile, vkml
        >>> path = tempfile.mkdtemp() + "/checkpoint.safetensors"
        >>> vkml.save({"epoch": 3, "weights": {"w": vkml.ones(2)}}, path)
        >>> found = vkml.load(path)
        >>> found["epoch"], found["weights"]["w"].tolist()
        (3, [1.0, 1.0])
    """
    package, place = _package(), Path(path)
    if not place.parent.is_dir():
        raise NoSuchFile(f"there is no folder {str(place.parent)!r} to save {place.name!r} in")
    tensors: dict[str, Tensor | Array] = {}
    form = _encoded(obj, "", tensors)
    compute([value for value in tensors.values() if isinstance(value, Tensor)])
    arrays = {name: _array(value) for name, value in tensors.items()}
    sums = {name: zlib.crc32(_bytes(array)) for name, array in arrays.items()}
    metadata = {_SUMS: json.dumps(sums)}
    if not _is_plain(obj):
        metadata[_FORM] = json.dumps(form)
    with _written_whole(place) as there:
        try:
            package.numpy.save_file(arrays, there, metadata=metadata)
        except package.SafetensorError as error:
            raise OSError(f"{str(place)!r} cannot be written: {error}") from None


def load(
    path: str | os.PathLike[str], device: Any = None, *, map_location: Any = None, weights_only: bool = True
) -> Any:
    """What `save` wrote, or the tensors of any safetensors file by their names.

    Args:
        path: of the file.
        device: where tensors go; the CPU where left out. NumPy arrays stay arrays.
        map_location: the same, by PyTorch's name.
        weights_only: for PyTorch's sake: there is nothing else in such a file.

    Returns:
        the same mappings, lists and tuples, with tensors that require no grad.

    Raises:
        NoSuchFile: there is none.
        InvalidCheckpoint: it is damaged, was not written to its end, or is none of these files.
        ImportError: the package `safetensors` is not installed.
    """
    if device is not None and map_location is not None:
        raise TypeError("device and map_location say the same: state one")
    device = map_location if device is None else device
    place = Path(path)
    if not place.is_file():
        raise NoSuchFile(f"there is no file {str(place)!r} to load")
    arrays, metadata = _read(place)
    for name, wanted in _json(place, metadata, _SUMS, {}).items():
        if name not in arrays:
            raise InvalidCheckpoint(f"{str(place)!r} is damaged: tensor {name!r} is missing from it")
        found = zlib.crc32(_bytes(arrays[name]))
        if found != wanted:
            raise InvalidCheckpoint(
                f"{str(place)!r} is damaged: tensor {name!r} has the checksum {found:08x}, {wanted:08x} was "
                "written; load the checkpoint before it"
            )
    form = _json(place, metadata, _FORM, None)
    if form is None:
        return {name: tensor(array, device=device) for name, array in arrays.items()}
    try:
        return _decoded(form, arrays, device)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpoint(
            f"{str(place)!r} is damaged: its metadata names what is not in it ({error})"
        ) from None


def _package() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "vkml.save and vkml.load need the package 'safetensors': pip install 'vkml[save]'"
        ) from error
    return safetensors


# --- from objects to JSON and back --------------------------------------------------------------------------


def _is_plain(obj: Any) -> bool:
    return isinstance(obj, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) and not value.dtype.is_complex
        for name, value in obj.items()
    )


def _encoded(value: Any, where: str, tensors: dict[str, Tensor | Array]) -> Any:
    """JSON for a value: itself where JSON has it, else a list of what it is and what it holds."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        number = value.item() if isinstance(value, np.generic) else value
        # JSON has no infinity and no NaN; a float that is subclassed is a float.
        is_finite = not isinstance(number, float) or abs(number) < float("inf")
        return number if is_finite else ["float", repr(float(number))]
    if isinstance(value, np.generic):
        return _encoded(value.item(), where, tensors)
    if isinstance(value, Tensor | np.ndarray):
        name = _unused(where or "tensor", tensors)
        tensors[name] = value
        kind = "tensor" if isinstance(value, Tensor) else "array"
        return [f"complex {kind}" if _is_complex(value) else kind, name]
    if isinstance(value, DType):
        return ["dtype", value.numpy_name]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _encoded(item, _at(where, key), tensors) for key, item in value.items()}
        pairs = [
            [_encoded(key, where, tensors), _encoded(item, _at(where, key), tensors)]
            for key, item in value.items()
        ]
        return ["mapping", pairs]
    if isinstance(value, list | tuple):
        items = [_encoded(item, _at(where, at), tensors) for at, item in enumerate(value)]
        return ["tuple" if isinstance(value, tuple) else "list", items]
    raise TypeError(
        f"vkml.save writes tensors, arrays, numbers, strings and None in mappings, lists and tuples, not the "
        f"{type(value).__name__} at {where or 'the top'!r}"
    )


def _is_complex(value: Tensor | Array) -> bool:
    return value.dtype.kind == "c"


def _at(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    """A name that nothing has, like another: those of different places may be spelled alike."""
    found, number = name, 1
    while found in taken or found == "__metadata__":
        number += 1
        found = f"{name}#{number}"
    return found


def _decoded(form: Any, arrays: Mapping[str, Array], device: Any) -> Any:
    if isinstance(form, dict):
        return {key: _decoded(item, arrays, device) for key, item in form.items()}
    if not isinstance(form, list):
        return form
    kind, held = form
    if kind == "tensor":
        return tensor(arrays[held], device=device)
    if kind == "array":
        return np.array(arrays[held])
    if kind in ("complex tensor", "complex array"):
        pairs = np.ascontiguousarray(arrays[held])
        whole = pairs.view(np.result_type(pairs.dtype, np.complex64))[..., 0]
        return tensor(whole, device=device) if kind == "complex tensor" else np.array(whole)
    if kind == "float":
        return float(held)
    if kind == "dtype":
        return dtypes.from_numpy(held)
    if kind == "bytes":
        return bytes.fromhex(held)
    if kind == "mapping":
        return {_decoded(key, arrays, device): _decoded(item, arrays, device) for key, item in held}
    items = [_decoded(item, arrays, device) for item in held]
    if kind not in ("tuple", "list"):
        raise ValueError(f"there is nothing called {kind!r}")
    return tuple(items) if kind == "tuple" else items


# --- files --------------------------------------------------------------------------------------------------


def _array(value: Tensor | Array) -> Array:
    found = value if isinstance(value, np.ndarray) else value.detach().numpy()
    if found.dtype.kind == "c":  # the format has no pairs of float64: the parts are a last axis
        found = np.stack([found.real, found.imag], -1)
    if dtypes.from_numpy(found.dtype) not in _TYPES.values():
        raise TypeError(f"safetensors files hold no {found.dtype.name}")
    little = found.astype(found.dtype.newbyteorder("<")) if found.dtype.byteorder == ">" else found
    return np.ascontiguousarray(little).reshape(found.shape)


def _bytes(array: Array) -> Any:
    """Its memory, for checksums."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@contextlib.contextmanager
def _written_whole(path: Path) -> Iterator[Path]:
    """A path beside another, whose file takes the other's place when it is written."""
    there = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        there.touch(exist_ok=False)
        mode = there.stat().st_mode
        yield there
        there.chmod(mode)  # as files of this process are, whatever wrote it
        with open(there, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(there, path)
    except BaseException:
        with contextlib.suppress(OSError):
            there.unlink()
        raise
    _flush_directory(path.parent)


def _flush_directory(path: Path) -> None:
    """Has the renaming reach the disk, where directories can be flushed."""
    if os.name == "nt":
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    package = _package()
    try:
        with package.safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            try:
                return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
            except (AttributeError, KeyError):  # a type that NumPy has not by itself
                pass
        found = package.deserialize(path.read_bytes())
    except package.SafetensorError as error:
        raise InvalidCheckpoint(
            f"{str(path)!r} is damaged, was not written to its end, or is no safetensors file: {error}"
        ) from None
    return {name: _of_bytes(path, name, entry) for name, entry in found}, metadata


def _of_bytes(path: Path, name: str, entry: Mapping[str, Any]) -> Array:
    dtype = _TYPES.get(entry["dtype"])
    if dtype is None:
        raise InvalidCheckpoint(
            f"tensor {name!r} of {str(path)!r} is of {entry['dtype']}, which vkml does not have"
        )
    return np.frombuffer(entry["data"], dtype.storage).reshape(entry["shape"])


def _json(path: Path, metadata: Mapping[str, str], key: str, otherwise: Any) -> Any:
    if key not in metadata:
        return otherwise
    try:
        return json.loads(metadata[key])
    except ValueError as error:
        raise InvalidCheckpoint(
            f"{str(path)!r} is damaged: its metadata {key!r} is no JSON ({error})"
        ) from None
