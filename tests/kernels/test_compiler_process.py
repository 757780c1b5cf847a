"""Kernels compiled by other processes: the same modules, however those processes fare."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernels.test_compiling import SOURCE
from tests.patience import patience
from tests.robustness.processes import output_of
from vkml.errors import CompileError
from vkml.kernels import compiler_process, compiling, slang
from vkml.kernels.compiler_process import CompilerProcess
from vkml.kernels.compiling import compile_kernel, compiler_processes

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kernels are compiled in this process there")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, processes are waited for."""
    monkeypatch.setattr(compiler_process, "START_SECONDS", patience(30))


@pytest.fixture
def process() -> Iterator[CompilerProcess]:
    made = CompilerProcess()
    yield made
    made.close()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What this process compiles itself, from an empty cache on."""
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    log: list[str] = []
    real = slang.compile_kernel
    monkeypatch.setattr(slang, "compile_kernel", lambda source: (log.append(source), real(source))[1])
    return log


def sources(count: int) -> list[str]:
    return [SOURCE.format(size) for size in range(1, count + 1)]


def is_there(number: int) -> bool:
    """Whether a process of this number runs, or has ended with nobody told."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + patience(30)
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_another_process_compiles_the_same(process: CompilerProcess) -> None:
    large = SOURCE.format(7).replace("{ }", "{ int x = 0;" + " x += 1;" * 20_000 + " }")
    for source in (*sources(3), large):
        assert process.compile(source) == slang.compile_kernel(source)
    assert process.is_wanted


def test_what_another_process_does_not_know_is_said_as_here(process: CompilerProcess) -> None:
    source = SOURCE.format(1).replace("{ }", "{ switch (thread.x) { default: } }")
    with pytest.raises(slang.Unsupported) as here:
        slang.compile_kernel(source)
    with pytest.raises(slang.Unsupported) as there:
        process.compile(source)
    assert str(here.value) == str(there.value)
    assert process.compile(SOURCE.format(1)) is not None


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_does_not_answer_is_given_up(
    process: CompilerProcess, signal_: signal.Signals
) -> None:
    assert process.compile(SOURCE.format(1)) is not None
    process._socket.settimeout(0.2)
    os.kill(process._process.pid, signal_)
    assert process.compile(SOURCE.format(2)) is None and not process.is_wanted
    process.close()
    assert process._process.returncode == -signal.SIGKILL


def test_nobody_waits_long_for_a_process_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_process, "_WORK", "import time; time.sleep(1000)")
    monkeypatch.setattr(compiler_process, "START_SECONDS", 0.01)
    process = CompilerProcess()
    try:
        assert process.compile(SOURCE.format(1)) is None
        assert process.is_wanted  # it may begin yet
    finally:
        process.close()


def test_an_interrupt_from_the_keyboard_is_for_this_process_alone(process: CompilerProcess) -> None:
    assert os.getpgid(process._process.pid) != os.getpgid(0)


def test_kernels_are_shared_out(here: list[str]) -> None:
    wanted = sources(24)
    with ThreadPoolExecutor(8) as pool, compiler_processes(wanted, 16):
        started = list(compiling._processes)
        assert len(started) == min(compiling.MOST_PROCESSES, 24 // compiling.SOURCES_A_PROCESS)
        found = list(pool.map(compile_kernel, wanted))
    assert len(here) < 24
    assert not any(is_there(process._process.pid) for process in started)
    assert found == [compiling._compiled(source, "kernel") for source in wanted]


def test_few_kernels_or_cores_start_no_process(
    here: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler_process, "CompilerProcess", lambda: pytest.fail("a process is started"))
    wanted = sources(30)
    with compiler_processes(wanted[: compiling.LEAST_SOURCES - 1] * 20, 16):
        pass
    with compiler_processes(wanted, compiling.LEAST_CORES - 1):
        pass
    for source in wanted:
        compile_kernel(source)
    with compiler_processes(wanted, 16):  # all are in the cache
        pass
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    with compiler_processes(wanted, 16):
        pass


def test_processes_that_end_or_cannot_be_started_are_done_without(
    here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = sources(20)
    with ThreadPoolExecutor(4) as pool:
        with compiler_processes(wanted[:10], 16):
            assert compiling._processes
            for process in compiling._processes:
                os.kill(process._process.pid, signal.SIGKILL)
            found = list(pool.map(compile_kernel, wanted[:10]))
        assert len(here) == 10 and len(set(found)) == 10

        def fail() -> CompilerProcess:
            raise OSError("no more processes")

        monkeypatch.setattr(compiler_process, "CompilerProcess", fail)
        with compiler_processes(wanted[10:], 16):
            assert len(set(pool.map(compile_kernel, wanted[10:]))) == 10
        assert len(here) == 20


def test_an_error_of_another_process_names_the_kernel(here: list[str]) -> None:
    wrong = [
        source.replace("{ }", "{ switch (thread.x) { default: } }")
        for source in sources(4 * compiling.SOURCES_A_PROCESS)
    ]
    with ThreadPoolExecutor(4) as pool, compiler_processes(wrong, 16):
        for made in [pool.submit(compile_kernel, source, "odd") for source in wrong]:
            with pytest.raises(CompileError, match="its kernel odd has"):
                made.result()


ENDS_WITH_ITS_PARENT = """
    import os, sys
    from vkml.kernels.compiler_process import CompilerProcess
    made = CompilerProcess()
    print(made._process.pid, flush=True)
    os._exit(0)
"""


def test_a_process_ends_with_the_one_that_started_it() -> None:
    number = int(output_of(ENDS_WITH_ITS_PARENT))
    wait_until(lambda: not is_there(number))


FORKED = """
    import os
    from concurrent.futures import ThreadPoolExecutor
    from tests.kernels.test_compiler_process import sources
    from vkml.kernels import compiler_process, compiling

    compiler_process.START_SECONDS = 60
    wanted = sources(12)
    with compiling.compiler_processes(wanted, 16):
        [process, *others] = compiling._processes
        child = os.fork()
        if child == 0:
            assert not compiling._processes and compiling._compilers.qsize() == 1
            with ThreadPoolExecutor(2) as pool:
                assert len(set(pool.map(compiling.compile_kernel, wanted))) == 12
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert process.compile(wanted[0]) is not None
    print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_child_leaves_its_parents_processes_alone(tmp_path: Path) -> None:
    assert output_of(FORKED, VKML_CACHE_DIR=str(tmp_path)) == "done\n"
