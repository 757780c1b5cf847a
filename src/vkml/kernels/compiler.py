"""Slang source → SPIR-V, through the flat C API of libslang-compiler, loaded only on a cache miss.

Only kernels that vkml's own compiler does not know need it. The library comes with the PyPI package slangpy
(the extra `compiler`; itself it is never imported), from the system, or from the path in the environment
variable VKML_SLANG_LIBRARY. A library of the right name is taken when it has the compiler's functions: most
Linux systems have S-Lang, another libslang.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkml.errors import CompileError
from vkml.forks import renew_in_child
from vkml.vulkan import cache
from vkml.vulkan.spirv import keep_arithmetic, require_functions_of_doubles

if TYPE_CHECKING:
    from _thread import LockType

_OPTIONS = (
    *("-target", "spirv", "-profile", "spirv_1_5", "-O2", "-fp-mode", "precise"),
    # Where a module states a floating-point control, SPIRV-Tools' optimiser leaves arithmetic as it is;
    # otherwise it takes x / x for 1 and (x + c) - c for x. `keep_arithmetic` takes the statement out again.
    *("-denorm-mode-fp32", "preserve"),
    *("-warnings-disable", "41017,30856"),
)
_SLANG_LANGUAGE = 1
_COMPUTE_STAGE = 6
_ADVICE = (
    "pip install 'vkml[compiler]' brings one, or set VKML_SLANG_LIBRARY to the path of libslang-compiler; "
    "device 'cpu' needs none"
)
_CACHE_FORMAT = "spirv-4"


class NoCompiler(CompileError):
    """There is no Slang compiler."""


def compile_slang(source: str, label: str = "kernel", sessions: int = 1) -> bytes:
    """SPIR-V of the entry point ``main`` of a Slang source, from the disk cache where it was compiled before.

    The cache key is source and options, not the compiler: a machine with a filled cache needs none.

    Args:
        source: complete.
        label: for messages.
        sessions: how many sources threads may compile at once; each takes 150 MiB and more.

    Raises:
        CompileError: with the compiler's diagnostics, or because there is no compiler.
    """

    def make() -> bytes:
        session = _take_session(sessions)
        try:
            return session.compile(source, label)
        finally:
            _give_back(session)

    return kept((_CACHE_FORMAT, *_OPTIONS, source), make)


def kept(key: Sequence[str], make: Callable[[], bytes]) -> bytes:
    """SPIR-V from the disk cache, or made and put there.

    Args:
        key: all that it depends on.
        make: compiles it; of threads that want the same only one does.
    """
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()
    name = f"spirv/{digest[:2]}/{digest}"
    found = cache.read(name)
    if found is not None:
        return found
    with _changed:
        turn = _turns.setdefault(digest, threading.Lock())
    # Kernels differ in their constants more than in their sources: who waits for a thread that compiles the
    # same source finds it in the cache.
    with turn:
        found = cache.read(name)
        if found is None:
            found = make()
            cache.write(name, found)
        return found


def _take_session(limit: int) -> _Session:
    """An idle session or a new one, when fewer than `limit` are at work."""
    with _changed:
        while len(_sessions) - len(_idle) >= limit:
            _changed.wait(1.0)  # an interrupt may have kept back the notice
        if _idle:
            session = _idle[-1]
            del _idle[-1]
        else:
            session = _Session(open_library())
            _sessions.add(session)
        return session


def _give_back(session: _Session) -> None:
    with _changed:
        _idle.append(session)
        _changed.notify_all()


def close_compiler() -> None:
    """Gives back the memory of sessions that are not at work, until the next cache miss; idempotent."""
    with _changed:
        sessions = list(_idle)
        _idle.clear()
        _sessions.difference_update(sessions)
    for session in sessions:
        session.close()
    # glibc keeps what was freed in small pieces, here nearly all of it, until asked.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sessions and sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def find_library() -> Path | None:
    """Path of the Slang compiler's library, loaded and verified, or None."""
    try:
        return open_library().path
    except CompileError:
        return None


def open_library() -> Library:
    """The Slang compiler's library, of which the process loads one.

    Raises:
        NoCompiler: there is none; the message says what was tried.
    """
    global _library
    with _changed:
        if _library is None:
            _library = _load()
        return _library


def _load() -> Library:
    named = os.environ.get("VKML_SLANG_LIBRARY")
    problems = []
    for path in [Path(named)] if named else _candidates():
        try:
            return Library(path)
        except CompileError as error:
            problems.append(str(error))
    tried = "; ".join(problems)
    raise NoCompiler(f"there is no Slang compiler to compile a kernel with ({tried}): {_ADVICE}")


def _candidates() -> Iterator[Path]:
    """Where the library may be: in the package slangpy, then wherever the system looks for libraries."""
    package = importlib.util.find_spec("slangpy")
    for folder in (package.submodule_search_locations or ()) if package else ():
        for pattern in _library_patterns():
            yield from sorted(Path(folder).glob(pattern), reverse=True)
    for pattern in _library_patterns():
        name = pattern.replace("*", "")
        if (
            sys.platform == "win32"
        ):  # searches the folders of PATH; elsewhere it runs gcc, in a temporary folder
            found = ctypes.util.find_library(name)
            if found:
                yield Path(found)
        else:
            yield Path(name)


def _library_patterns() -> tuple[str, ...]:
    if sys.platform == "win32":
        return ("slang-compiler.dll", "slang.dll")
    if sys.platform == "darwin":
        return ("libslang-compiler*.dylib", "libslang*.dylib")
    return ("libslang-compiler.so*", "libslang.so*")


class Library:
    """The C functions used, with their types.

    Attributes:
        path: as it was loaded; a bare name was found by the system.
        version: the compiler's own.

    Raises:
        CompileError: there is no library at the path, or it is another one.
    """

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise CompileError(f"{path} cannot be loaded: {error}") from error
        self.path = path
        pointer, text, integer = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
        self.create_session = self._bind(library, "spCreateSession", pointer, text)
        self.destroy_session = self._bind(library, "spDestroySession", None, pointer)
        self.create_request = self._bind(library, "spCreateCompileRequest", pointer, pointer)
        self.destroy_request = self._bind(library, "spDestroyCompileRequest", None, pointer)
        self.arguments = self._bind(
            library, "spProcessCommandLineArguments", integer, pointer, ctypes.POINTER(text), integer
        )
        self.add_unit = self._bind(library, "spAddTranslationUnit", integer, pointer, integer, text)
        self.add_source = self._bind(
            library, "spAddTranslationUnitSourceString", None, pointer, integer, text, text
        )
        self.add_entry = self._bind(library, "spAddEntryPoint", integer, pointer, integer, text, integer)
        self.compile = self._bind(library, "spCompile", integer, pointer)
        self.diagnostics = self._bind(library, "spGetDiagnosticOutput", text, pointer)
        self.code = self._bind(
            library, "spGetCompileRequestCode", pointer, pointer, ctypes.POINTER(ctypes.c_size_t)
        )
        self.version = (self._bind(library, "spGetBuildTagString", text)() or b"").decode(errors="replace")

    @staticmethod
    def _bind(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> ctypes._NamedFuncPointer:
        try:
            function: ctypes._NamedFuncPointer = getattr(library, name)
        except AttributeError:
            raise CompileError(f"{library._name} is no Slang compiler: it has no function {name}") from None
        function.restype, function.argtypes = result, arguments
        return function


class _Session:
    """A Slang session, made when it first compiles; not for two threads at once."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._session: Any = None

    def close(self) -> None:
        session, self._session = self._session, None
        if session:
            self._library.destroy_session(session)

    def __del__(self) -> None:
        if self._session:
            self.close()

    def forget(self) -> None:
        """Leaves the compiler's part as it is."""
        self._session = None

    def compile(self, source: str, label: str) -> bytes:
        library = self._library
        self._session = self._session or library.create_session(None)
        if not self._session:
            raise CompileError("the Slang compiler could not create a session")
        request = library.create_request(self._session)
        try:
            arguments = (ctypes.c_char_p * len(_OPTIONS))(*(o.encode() for o in _OPTIONS))
            if library.arguments(request, arguments, len(_OPTIONS)) < 0:
                raise CompileError(f"the Slang compiler refused its options {' '.join(_OPTIONS)}")
            unit = library.add_unit(request, _SLANG_LANGUAGE, label.encode())
            library.add_source(request, unit, f"{label}.slang".encode(), source.encode())
            library.add_entry(request, unit, b"main", _COMPUTE_STAGE)
            result = library.compile(request)
            if result < 0:
                text = (library.diagnostics(request) or b"").decode(errors="replace").strip()
                raise CompileError(f"kernel {label} did not compile:\n{text}")
            size = ctypes.c_size_t()
            code = library.code(request, ctypes.byref(size))
            if not code or not size.value:
                raise CompileError(f"kernel {label} compiled to nothing")
            module = ctypes.string_at(code, size.value)
        finally:
            library.destroy_request(request)
        require_functions_of_doubles(module, label)
        return keep_arithmetic(module)


_changed = threading.Condition()
"""Guards what follows."""
_library: Library | None = None
_idle: list[_Session] = []
"""Sessions, kept until `close_compiler`: one takes 0.2 s and 180 MiB to make and holds 150 MiB."""
_sessions: weakref.WeakSet[_Session] = weakref.WeakSet()
"""Those and the ones at work."""
_turns: weakref.WeakValueDictionary[str, LockType] = weakref.WeakValueDictionary()
"""Cache key → what a thread holds that compiles such a source, as long as any thread holds or wants it."""


def _renew() -> None:
    """In a forked child: nobody compiles. What a thread may have been at work with is not used again."""
    global _changed, _sessions, _turns
    for session in _idle:
        session.forget()
    _idle.clear()
    _changed, _sessions, _turns = threading.Condition(), weakref.WeakSet(), weakref.WeakValueDictionary()


renew_in_child(_renew)
