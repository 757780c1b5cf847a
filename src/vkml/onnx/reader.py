"""Opening a model file, by path or as bytes."""

from __future__ import annotations

import os
from pathlib import Path

from vkml.errors import InvalidArgument, InvalidProtobuf, NoModel, NoSuchFile, WrongType
from vkml.onnx.external import ExternalFiles, map_file
from vkml.onnx.model import Model

Source = str | os.PathLike[str] | bytes | bytearray | memoryview

_LFS_POINTER = b"version https://git-lfs"


def open(source: Source, *, base_directory: str | os.PathLike[str] | None = None) -> Model:
    """Opens an ONNX model without reading its weights.

    Args:
        source: A path, which is mapped and never read whole, or the model's bytes; what may change, like a
            bytearray or a mapping, is copied.
        base_directory: Where external data are looked for; by default the folder of the model file. A model
            given as bytes has no folder, and its external data are refused unless this is given.

    Returns:
        The model; a context manager.

    Raises:
        NoSuchFile: There is no such file.
        NoModel: The file is empty or a directory.
        InvalidProtobuf: It is not an ONNX model, or is cut short.

    Example:
        >>> import vkml
        >>> with vkml.onnx.open("digits.onnx") as model:
        ...     {name: tensor.shape for name, tensor in model.tensors().items()}
        {'conv1.weight': (16, 1, 3, 3), 'conv1.bias': (16,), ...}
    """
    folders: list[Path] = []
    if isinstance(source, bytes | bytearray | memoryview):
        label = "the model given as bytes"
        try:
            view = memoryview(source).cast("B")
        except TypeError as error:
            raise InvalidArgument(f"the model's memoryview cannot be read: {error}") from None
        if not isinstance(view.obj, bytes):
            view = memoryview(view.tobytes())  # its owner may change it while the model is in use
    elif isinstance(source, str | os.PathLike):
        label = os.fsdecode(source)
        try:
            view = map_file(label)
        except NoSuchFile:
            raise NoSuchFile(f"there is no model file {label!r} (looked in {os.getcwd()!r})") from None
        except InvalidArgument as error:
            raise NoModel(f"no model: {error}") from None
        folders = [Path(label).absolute().parent, Path(os.path.realpath(label)).parent]
    else:
        raise WrongType(f"a model is a path or bytes, not {type(source).__name__}")
    if len(view) == 0:
        raise NoModel(f"{label} is empty")
    if bytes(view[: len(_LFS_POINTER)]) == _LFS_POINTER:
        raise InvalidProtobuf(
            f"{label} is a Git LFS pointer, not the model; 'git lfs pull' brings the file itself"
        )
    if base_directory is not None:
        if not os.path.isdir(base_directory):
            raise InvalidArgument(f"base_directory {os.fspath(base_directory)!r} is not a folder")
        folders = [Path(os.fspath(base_directory))]
    files = ExternalFiles(
        folders, "a model given as bytes has no folder; pass base_directory, or open the model by its path"
    )
    try:
        return Model(view, label, files)
    except InvalidProtobuf:
        format_ = _foreign_format(view)
        if format_ is None:
            raise
        raise InvalidProtobuf(f"{label} is {format_}, not an ONNX model; export the model to ONNX") from None


def _foreign_format(view: memoryview) -> str | None:
    """The format of a file that is no ONNX model, by its first bytes, where other packages save models so."""
    start = bytes(view[:16])
    for at, mark, name in _FORMATS:
        if start[at:].startswith(mark):
            return name
    length = int.from_bytes(start[:8], "little")
    return "a safetensors file" if start[8:9] == b"{" and 8 + length <= len(view) else None


_FORMATS = (
    (0, b"PK\x03\x04", "a zip archive (PyTorch saves .pt and .pth files so)"),
    (0, b"\x80\x02", "a pickle (old PyTorch versions save so)"),
    (0, b"GGUF", "a GGUF file"),
    (0, b"\x89HDF", "an HDF5 file (Keras saves so)"),
    (0, b"\x93NUMPY", "an array of NumPy's"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ORTM", "a model in onnxruntime's own format"),
)
"""Offset, bytes there, and what a file is that has them."""
