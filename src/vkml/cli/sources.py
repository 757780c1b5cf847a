"""Where the command line gets an input's value from: a file, or the standard input."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vkml.cli.guard import UsageError
from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument
from vkml.pictures import ENDINGS

STANDARD_INPUT = "-"
ARRAY_STARTS = {b"\x93NUMPY": ".npy", b"PK": ".npz"}
"""First bytes of NumPy's files → the ending of their names."""
_PICTURE_STARTS = (
    (0, b"\x89PNG"), (0, b"\xff\xd8\xff"), (0, b"GIF8"), (0, b"BM"), (0, b"II*\0"), (0, b"MM\0*"),
    (8, b"WEBP"), (0, b"P5"), (0, b"P6"),
)  # fmt: skip
"""Offset and bytes there, of files that hold pictures."""


_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
TABLE_ENDINGS = (".csv", ".tsv")
KNOWN_ENDINGS = (".npy", ".npz", ".pb", *TABLE_ENDINGS, *ENDINGS)
"""Of the names of files that inputs are read from."""


@dataclass(frozen=True)
class Source:
    """A file, or what came on the standard input, which has no path.

    Attributes:
        name: what messages call it.
        path: of the file; None for the standard input.
        data: what came on the standard input.
    """

    name: str
    path: Path | None = None
    data: bytes = b""

    @property
    def ending(self) -> str:
        """Of its name, in small letters; told by its first bytes where there is none that is known."""
        if self.path is None:
            return told_ending(self.data) or ".pb"
        named = self.path.suffix.lower()
        if named in KNOWN_ENDINGS or not self.path.is_file():
            return named
        with self.path.open("rb") as file:
            return told_ending(file.read(16)) or named

    @property
    def is_picture(self) -> bool:
        """Whether its name, or what came without one, is a picture's."""
        return self.ending in ENDINGS

    @property
    def is_text(self) -> bool:
        """Whether what came on the standard input begins as texts do, and no file of numbers."""
        return self.path is None and _CONTROL.search(self.data[:512]) is None

    @contextmanager
    def as_file(self, name: str) -> Iterator[Path]:
        """The file; what came on the standard input is one of this name until the end."""
        if self.path is not None:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="vkml-") as folder:
            file = Path(folder) / name
            file.write_bytes(self.data)
            yield file

    def require(self) -> None:
        """`UsageError` where there is no such file."""
        if self.path is not None:
            check_file(self.path)

    def open(self) -> BinaryIO:
        """Opens it, from its beginning."""
        return io.BytesIO(self.data) if self.path is None else self.path.open("rb")

    def __str__(self) -> str:
        return self.name


def source(word: str, option: str = "-i") -> Source:
    """What a word of the command line names.

    Args:
        word: a path, or ``-`` for the standard input, which is read to its end.
        option: what messages call the place of the word.

    Raises:
        UsageError: nothing is named.
        InvalidArgument: nothing came.
    """
    if not word:
        raise UsageError(f"{option}: the name of a file is missing")
    if word != STANDARD_INPUT:
        return Source(word, Path(word))
    return Source("the standard input", None, _standard_input(option))


def _standard_input(option: str) -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(f"{option} -: the standard input is a terminal; pipe or redirect a file into it")
    data = sys.stdin.buffer.read()
    if not data:
        raise InvalidArgument("the standard input is empty")
    return data


@contextmanager
def model_file(path: Path, inputs: Sequence[str] = ()) -> Iterator[Path]:
    """The file of a model; what comes on the standard input, where that is meant, is one until the end.

    Args:
        path: the file, or ``-``.
        inputs: the words that name values of inputs, ``FILE`` or ``NAME=FILE``.

    Raises:
        UsageError: the standard input is to be the model and an input.
        InvalidArgument: nothing came on it.
    """
    if str(path) != STANDARD_INPUT:
        yield path
        return
    if any(word.rpartition("=")[2] == STANDARD_INPUT for word in inputs):
        raise UsageError("the standard input (-) can be the model or an input, not both")
    with source(STANDARD_INPUT, "MODEL").as_file("standard-input.onnx") as file:
        yield file


def told_ending(data: bytes) -> str:
    """The ending of files that begin so: arrays of NumPy's and pictures; "" for others."""
    for start, ending in ARRAY_STARTS.items():
        if data.startswith(start):
            return ending
    if any(data[at:].startswith(start) for at, start in _PICTURE_STARTS):
        return ENDINGS[0]
    return ""


def check_file(path: Path) -> None:
    """`UsageError` where there is no file."""
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a directory; a file was expected")
