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
        found = _foreign_format(view)
        if found is None:
            raise
        format_, advice = found
        raise InvalidProtobuf(f"{label} is {format_}, not an ONNX model; {advice}") from None


_TEXT = bytes([*b"\t\n\r\f", *range(0x20, 0x7F)])
"""What a text in ASCII is made of."""
_EXPORT = "export the model to ONNX"
_FROM_TORCH = f"load it with PyTorch and {_EXPORT} (torch.onnx.export)"
_FROM_TENSORFLOW = f"{_EXPORT} (tf2onnx)"
_WEIGHTS = f"it holds weights without the model's graph; {_EXPORT} from the program that made it"
_WRONG_FILE = "give the .onnx file"


def _foreign_format(view: memoryview) -> tuple[str, str] | None:
    """What a file is that is no ONNX model, by its first bytes, and what to do; None: they do not say."""
    start = bytes(view[:512])
    for at, mark, name, advice in _FORMATS:
        if start[at:].startswith(mark):
            return name, advice
    if start.startswith(b"PK\x03\x04"):
        return _zip_format(start)
    length = int.from_bytes(start[:8], "little")
    if start[8:9] == b"{" and 8 + length <= len(view):
        return "a safetensors file", _WEIGHTS
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "a web page (HTML)", "download the file itself, not the page that shows it"
    # A model begins with a field's tag, which is a control character.
    if not text.translate(None, _TEXT):
        return "a text file", f"{_WRONG_FILE} in its binary form"
    return None


def _zip_format(start: bytes) -> tuple[str, str]:
    """Which kind of archive it is, by the name of its first member."""
    length = int.from_bytes(start[26:28], "little")
    name = start[30 : 30 + length]
    if name.endswith(b".npy"):
        return "a zip archive of NumPy's arrays (.npz)", _WRONG_FILE
    if name in (b"metadata.json", b"config.json"):
        return "a zip archive as Keras saves models (.keras)", _FROM_TENSORFLOW
    if name.endswith((b".pkl", b"/version", b"/.format_version", b"/byteorder", b"/.data/serialization_id")):
        return "a zip archive (PyTorch saves .pt and .pth files so)", _FROM_TORCH
    return "a zip archive", "unpack it, and give the .onnx file in it, or export the model to ONNX"


_FORMATS = (
    (0, b"\x80\x02", "a pickle (old PyTorch versions save so)", _FROM_TORCH),
    (0, b"\x80\x03", "a pickle", _FROM_TORCH),
    (0, b"\x80\x04", "a pickle", _FROM_TORCH),
    (0, b"\x80\x05", "a pickle", _FROM_TORCH),
    (0, b"GGUF", "a GGUF file", _WEIGHTS),
    (0, b"ggml", "a GGML file", _WEIGHTS),
    (0, b"\x89HDF", "an HDF5 file (Keras saves .h5 files so)", _FROM_TENSORFLOW),
    (0, b"\x93NUMPY", "an array of NumPy's", _WRONG_FILE),
    (4, b"TFL3", "a TensorFlow Lite model", _FROM_TENSORFLOW),
    (4, b"ORTM", "a model in onnxruntime's own format", "give the .onnx file that it was made from"),
    (0, b"\x89PNG", "a PNG picture", _WRONG_FILE),
    (0, b"\xff\xd8\xff", "a JPEG picture", _WRONG_FILE),
    (0, b"GIF8", "a GIF picture", _WRONG_FILE),
    (8, b"WEBP", "a WebP picture", _WRONG_FILE),
    (0, b"II*\0", "a TIFF picture", _WRONG_FILE),
    (0, b"MM\0*", "a TIFF picture", _WRONG_FILE),
    (0, b"BM", "a BMP picture", _WRONG_FILE),
    (0, b"%PDF", "a PDF document", _WRONG_FILE),
    (0, b"\x1f\x8b", "compressed by gzip", "unpack it first (gunzip, tar)"),
    (0, b"BZh", "compressed by bzip2", "unpack it first (bunzip2, tar)"),
    (0, b"\xfd7zXZ", "compressed by xz", "unpack it first (unxz, tar)"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it first (unzstd)"),
    (0, b"7z\xbc\xaf", "a 7-Zip archive", "unpack it first"),
    (0, b"\x7fELF", "a program or library", _WRONG_FILE),
)
"""Offset, bytes there, what a file is that has them, and what to do."""
