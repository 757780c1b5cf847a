"""Kernels' source to SPIR-V, from the disk cache where it was compiled before."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import queue
import threading
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vkml.errors import CompileError
from vkml.forks import renew_in_child
from vkml.vulkan import cache, spirv
from vkml.vulkan.spirv import keep_arithmetic, require_functions_of_doubles

if TYPE_CHECKING:
    from _thread import RLock

    from vkml.kernels.compiler_process import CompilerProcess

MOST_PROCESSES = 6
"""That compile beside this one: 13 MiB each."""
SOURCES_A_PROCESS = 3
"""To start a process takes as long as to compile one or two."""
LEAST_SOURCES = 10
"""Fewer are compiled here by the time that processes have begun."""
LEAST_CORES = 4
"""With fewer, drivers want those that there are."""


def compile_kernel(source: str, label: str = "kernel", compiler: CompilerProcess | None = None) -> bytes:
    """SPIR-V of a kernel.

    Args:
        source: complete; its entry point is ``main``.
        label: for messages.
        compiler: that is the caller's; None: the first that is free.

    Raises:
        CompileError: the source has something that the compiler does not know.
    """
    name = _entry(source)
    found = cache.read(name)
    if found is not None:
        return found
    with _changed:
        turn = _turns.setdefault(name, threading.RLock())
    # Kernels differ in their constants more than in their sources: who waits for a thread that compiles the
    # same source finds it in the cache.
    with turn:
        found = cache.read(name)
        if found is None:
            found = _compiled(source, label, compiler)
            cache.write(name, found)
        return found


def _compiled(source: str, label: str, compiler: CompilerProcess | None = None) -> bytes:
    # Here, for only who compiles needs it: no session on the CPU does, nor one that finds all in the cache.
    from vkml.kernels import slang

    try:
        found = compiler.compile(source) if compiler is not None and compiler.is_wanted else None
        module = _by_any_compiler(source) if found is None else found
    except slang.Unsupported as problem:
        raise CompileError(
            f"vkml's compiler does not know {problem}, which its kernel {label} has. This is a bug in vkml: "
            "please report it with the model; device 'cpu' compiles no kernels"
        ) from None
    require_functions_of_doubles(module, label)
    return keep_arithmetic(module)


def _by_any_compiler(source: str) -> bytes:
    """A module by the first compiler that is free, of this process or of another."""
    from vkml.kernels import slang

    if threading.current_thread() is threading.main_thread():
        # It alone gets interrupts, behind one of which nobody would give back what it had taken.
        return slang.compile_kernel(source)
    compilers = _compilers
    compiler = compilers.get()
    while compiler is not None and not compiler.is_wanted:
        compiler = compilers.get()
    try:
        found = None if compiler is None else compiler.compile(source)
        # What no other process has compiled is compiled here.
        return slang.compile_kernel(source) if found is None else found
    finally:
        compilers.put(compiler)


@contextlib.contextmanager
def compiler_processes(sources: Collection[str], cores: int) -> Iterator[int]:
    """Has processes beside this one compile within it, where sources are many and cores idle.

    Args:
        sources: that will be compiled, or are in the cache.
        cores: that there are.

    Returns:
        how many processes there are, those of others included.
    """
    missing = sum(not is_kept(source) for source in set(sources))
    there = len(_processes)
    count = min(MOST_PROCESSES, cores - 1, missing // SOURCES_A_PROCESS) - there
    if cores < LEAST_CORES or missing < LEAST_SOURCES or count < 1:
        yield there
        return
    from vkml.kernels import compiler_process

    if not compiler_process.is_possible():
        yield there
        return
    started: list[CompilerProcess] = []
    try:
        with contextlib.suppress(OSError):  # without them it takes longer
            for _ in range(count):
                started.append(compiler_process.CompilerProcess())
                _processes.add(started[-1])
                _compilers.put(started[-1])
        yield there + len(started)
    finally:
        for process in started:
            process.close()
            _processes.discard(process)


def is_kept(source: str) -> bool:
    """Whether the cache has the module of a source."""
    return cache.has(_entry(source))


class LentProcess:
    """A process that compiles for one thread, until it is left to all that compile.

    Raises:
        OSError: it cannot be started, or there is no need for one.
    """

    def __init__(self) -> None:
        from vkml.kernels import compiler_process

        with _changed:
            if len(_processes) >= MOST_PROCESSES or not compiler_process.is_possible():
                raise OSError("no further process is to be started")
            self.compiler = compiler_process.CompilerProcess()
            _processes.add(self.compiler)

    def leave_to_all(self) -> None:
        """Has whoever compiles next take it."""
        _compilers.put(self.compiler)

    def close(self) -> None:
        """Ends it."""
        self.compiler.close()
        _processes.discard(self.compiler)


def workgroup_of(source: str) -> tuple[int, list[tuple[str | None, int]]] | None:
    """What `slang.workgroup_of` says of a source, which is kept as modules are: sessions ask while they plan.

    Returns:
        The threads of its workgroups, and type and bytes of each variable that one shares; None where the
        compiler does not know the source, as whoever compiles it is told.
    """
    import json

    name = _entry(source, "workgroup")
    kept = cache.read(name)
    if kept is not None:
        threads, shared = json.loads(kept)
        return threads, [(type_, bytes_) for type_, bytes_ in shared]
    from vkml.kernels import slang

    try:
        found = slang.workgroup_of(source)
    except slang.Unsupported:
        return None
    cache.write(name, json.dumps(found).encode())
    return found


def _entry(source: str, what: str = "spirv") -> str:
    """The name in the cache of a source's module, or of what else is known of it."""
    digest = hashlib.sha256("\0".join((_compiler_version(), source)).encode()).hexdigest()
    return f"{what}/{digest[:2]}/{digest}"


@functools.cache
def _compiler_version() -> str:
    """What the compiler is known by: its text, so that nothing of an older one is taken."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).with_name("slang").glob("*.py")):
        digest.update(file.read_bytes())
    digest.update(Path(spirv.__file__).read_bytes())
    return digest.hexdigest()


def _only_this_one() -> queue.SimpleQueue[CompilerProcess | None]:
    found: queue.SimpleQueue[CompilerProcess | None] = queue.SimpleQueue()
    found.put(None)
    return found


_compilers = _only_this_one()
"""Those that are free: processes, and None for the one of this process. That is one for all threads: they
would take turns at the interpreter, and no kernel would be with the driver before nearly all are compiled."""
_processes: set[CompilerProcess] = set()
"""All that this process has started and not closed."""
_changed = threading.RLock()
"""Guards what follows."""
_turns: weakref.WeakValueDictionary[str, RLock] = weakref.WeakValueDictionary()
"""Cache entry → what a thread holds that compiles such a source, as long as any thread holds or wants it."""


def _renew() -> None:
    """In a forked child: nobody compiles."""
    global _compilers, _changed, _turns
    for process in _processes:
        process.leave()
    _processes.clear()
    _compilers, _changed, _turns = _only_this_one(), threading.RLock(), weakref.WeakValueDictionary()


renew_in_child(_renew)
