"""Processes that compile kernels for this one: threads would take turns at the interpreter."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from pathlib import Path

from vkml.kernels.slang.errors import Unsupported

ANSWER_SECONDS = 30.0
"""After which a process that says nothing is given up: a kernel takes 50 ms."""
START_SECONDS = 0.2
"""For which somebody waits for a process to begin. That takes 40 ms where nothing is in its way; by this time
most kernels are compiled here."""
_LENGTH = struct.Struct("<?I")
"""Before what is said: whether it is a module, or a source; and its bytes."""
_WORK = "import sys; sys.path.insert(0, sys.argv[1]); from vkml.kernels.compiler_process import work; work()"


def is_possible() -> bool:
    """Whether this program's interpreter can be started once more.

    What is frozen into one file, or embedded in another program, would start that program instead.
    """
    name = os.path.basename(sys.executable or "").lower()
    is_plain = name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)
    return os.name == "posix" and is_plain


class CompilerProcess:
    """One of them. It knows nothing of this one but what it is sent, and ends when this one does.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        import subprocess

        import vkml

        ours, theirs = socket.socketpair()
        try:
            # Isolated, for nobody's start-up code is wanted there; with this one's caches of bytecode.
            flags = ["-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]
            if sys.pycache_prefix is not None:
                flags += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
            folder = str(Path(vkml.__path__[0]).parent)
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", _WORK, folder],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in a terminal is for this process
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        self._has_begun = False
        self.is_wanted = True
        """Whether it is to be asked again."""

    def compile(self, source: str) -> bytes | None:
        """SPIR-V of a source; None where the process has not begun yet, has ended or says nothing.

        Raises:
            Unsupported: the compiler does not know something in the source.
        """
        try:
            if not self._has_begun and not self._begins():
                return None
            _send(self._socket, True, source.encode())
            is_module, content = _receive(self._socket)
        except OSError:
            self.is_wanted = False
            return None
        except BaseException:  # an interrupt: an answer may come that nobody reads
            self.is_wanted = False
            raise
        if not is_module:
            raise Unsupported(content.decode())
        return content

    def _begins(self) -> bool:
        """Whether it has begun, or does so soon."""
        self._socket.settimeout(START_SECONDS)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        self._socket.settimeout(ANSWER_SECONDS)
        _receive(self._socket)
        self._has_begun = True
        return True

    def close(self) -> None:
        """Ends it, whatever it does."""
        self.is_wanted = False
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """In a forked child: it is the parent's."""
        self.is_wanted = False
        self._process.returncode = 0  # nobody waits for it here
        with contextlib.suppress(OSError):
            self._socket.close()


def work() -> None:
    """Compiles what comes in by the standard input, until the other end is closed."""
    import gc

    from vkml.kernels import slang

    # A few kernels, a few MiB each: to look for garbage among them would take a tenth of the time.
    gc.disable()
    with socket.socket(fileno=0) as other, contextlib.suppress(OSError):
        _send(other, True, b"")
        while True:
            _, source = _receive(other)
            try:
                module, is_module = slang.compile_kernel(source.decode()), True
            except Unsupported as problem:
                module, is_module = str(problem).encode(), False
            _send(other, is_module, module)


def _send(to: socket.socket, flag: bool, content: bytes) -> None:
    to.sendall(_LENGTH.pack(flag, len(content)) + content)


def _receive(source: socket.socket) -> tuple[bool, bytes]:
    flag, size = _LENGTH.unpack(_exactly(source, _LENGTH.size))
    return flag, _exactly(source, size)


def _exactly(source: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = source.recv(size - len(content))
        if not part:
            raise ConnectionError("the other end is closed")
        content += part
    return bytes(content)
