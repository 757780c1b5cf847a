"""Files of external tensor data: found only inside the model's folder, mapped read-only, each once."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from vkml.errors import Fail, InvalidArgument, InvalidGraph, NoSuchFile
from vkml.ir.mapped_file import MappedFile


def map_file(path: str | os.PathLike[str], *, follow_link: bool = True) -> memoryview:
    """A regular file's bytes as a read-only memoryview; the mapping lives as long as a view of it does.

    `follow_link` False refuses a path whose last part is a symbolic link.

    What happens when somebody writes into the file says `vkml.ir.mapped_file.MappedFile`.

    Raises:
        NoSuchFile: There is none.
        InvalidArgument: It is a directory, a device or a pipe.
        Fail: The operating system refuses it.
    """
    # Without O_NONBLOCK a named pipe would make `open` wait for a writer.
    names = (
        ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK")
        if follow_link
        else ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK", "O_NOFOLLOW")
    )
    flags = os.O_RDONLY
    for name in names:
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(f"there is no file {os.fspath(path)!r}") from None
    except ValueError as error:
        raise InvalidArgument(f"{os.fspath(path)!r} is no file name: {error}") from None
    except OSError as error:
        if os.path.isdir(path):
            raise InvalidArgument(f"{os.fspath(path)!r} is a directory, a file was expected") from None
        raise Fail(f"{os.fspath(path)!r} cannot be opened: {error.strerror}") from error
    try:
        state = os.fstat(descriptor)
        if stat.S_ISDIR(state.st_mode):
            raise InvalidArgument(f"{os.fspath(path)!r} is a directory, a file was expected")
        if not stat.S_ISREG(state.st_mode):
            raise InvalidArgument(f"{os.fspath(path)!r} is not a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    if state.st_size == 0:
        os.close(descriptor)
        return memoryview(b"")
    return MappedFile(descriptor, os.path.realpath(path)).view()


class ExternalFiles:
    """The files beside one model that its tensors may refer to."""

    def __init__(self, folders: Sequence[Path], advice: str = "") -> None:
        """Args:
        folders: Where files are looked for (the first), and where they may really lie once links are
            followed (any): the folder that names the model and, where that name is a link, the folder the
            model file is in, since download caches keep both files there.
        advice: What to do when there is no folder at all.
        """
        self._folders = tuple(Path(os.path.realpath(folder)) for folder in folders)
        self._advice = advice
        self._mapped: dict[str, memoryview] = {}

    def view(self, location: str, where: str) -> memoryview:
        """The whole file at `location`.

        Args:
            location: The path as the model states it, relative to the model's folder.
            where: What refers to it, for messages.

        Raises:
            InvalidArgument: The model came without a folder.
            InvalidGraph: The location leads out of the folder or is no regular file.
            NoSuchFile: There is no such file.
        """
        found = self._mapped.get(location)
        if found is None:
            # Resolved already: a link there now was put in its place since.
            found = map_file(self._resolve(location, where), follow_link=False)
            self._mapped[location] = found
        return found

    def provide(self, contents: Mapping[str, memoryview]) -> None:
        """Takes bytes in memory for files.

        Args:
            contents: location, as the model states it → the whole file.
        """
        self._mapped.update(contents)

    def views(self) -> tuple[memoryview, ...]:
        """The files viewed so far."""
        return tuple(self._mapped.values())

    def close(self) -> None:
        """Forgets the mappings; each ends with its last view."""
        self._mapped.clear()

    def _resolve(self, location: str, where: str) -> str:
        if not self._folders:
            raise InvalidArgument(f"{where} has its data in the file {location!r}: {self._advice}")
        parts = location.replace("\\", "/").split("/")
        if not location or "\0" in location or parts[0] == "" or ":" in parts[0] or ".." in parts:
            raise InvalidGraph(
                f"{where}: external data at {location!r} is refused; only a path inside the model's folder, "
                "relative and without '..', is followed"
            )
        candidate = os.path.join(self._folders[0], *parts)
        try:
            real = os.path.realpath(candidate, strict=True)
            mode = os.stat(real).st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise NoSuchFile(
                f"{where}: its data file {location!r} is not in {str(self._folders[0])!r}; "
                "it belongs beside the model"
            ) from None
        except OSError as error:
            raise InvalidGraph(
                f"{where}: external data at {location!r} is refused: {error.strerror}"
            ) from None
        if not any(Path(real).is_relative_to(folder) for folder in self._folders):
            raise InvalidGraph(
                f"{where}: external data at {location!r} is refused: a link leads out of the model's folder"
            )
        if not stat.S_ISREG(mode):
            raise InvalidGraph(f"{where}: external data at {location!r} is not a regular file; refused")
        return real
