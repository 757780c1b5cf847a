"""Recordings: levels in order, chunks on one thread and several, assembled constants and labels."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.patience import patience
from vkml.cpu.native.assembler import R8, R9, RAX, RCX, RDI, RDX, RSI, Mem
from vkml.cpu.native.executable import Executable, InstructionSet, instruction_set
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.replay import WORTH_SECONDS, Recording
from vkml.cpu.native.vectors import VectorCode
from vkml.cpu.pool import WorkerPool

if instruction_set() is None:
    pytest.skip("no machine code here", allow_module_level=True)

SETS = [
    InstructionSet.AVX2,
    pytest.param(
        InstructionSet.AVX512,
        marks=pytest.mark.skipif(instruction_set() is not InstructionSet.AVX512, reason="no AVX-512"),
    ),
]
CHUNK = 1024


def axpy(instructions: InstructionSet, factor: float, addend: float) -> Kernel:
    """x = factor · x + addend over a chunk of floats whose byte offset the table holds."""
    code = VectorCode(instructions)
    code.mov(R8, Mem(RDI))
    code.add(R8, Mem(RSI))
    with code.loop(RCX, CHUNK // code.width):
        code.load(0, Mem(R8))
        code.mul_vector(0, 0, code.constant(factor))
        code.add_vector(0, 0, code.constant(addend))
        code.store(Mem(R8), 0)
        code.add_immediate(R8, code.bytes)
    code.ret()
    return Kernel("axpy", code.finish())


def table(chunks: int) -> np.ndarray:
    return (np.arange(chunks, dtype=np.int64) * CHUNK * 4).reshape(-1, 1)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_levels_run_in_order(instructions: InstructionSet, threads: int) -> None:
    chunks = 37
    x = np.random.default_rng(0).standard_normal(chunks * CHUNK).astype(np.float32)
    factors = [(1.5, 0.25), (-0.5, 1.0), (2.0, -3.0)]
    expected = x.copy()
    for factor, addend in factors:
        expected = expected * np.float32(factor) + np.float32(addend)
    kernels = [axpy(instructions, *pair) for pair in factors]
    seconds = 1.0 if threads > 1 else 0.0
    levels = [[(Launch(kernel, table(chunks), seconds), [x.ctypes.data])] for kernel in kernels]
    with WorkerPool(threads) as pool:
        recording = Recording(levels, pool)
        assert recording.threads == threads
        recording.run()
    np.testing.assert_array_equal(x, expected)


def gate() -> Kernel:
    """Waits until the word that its operand points to is not zero."""
    code = VectorCode(instruction_set())
    code.mov(R8, Mem(RDI))
    again = code.here()
    code.pause()
    code.mov(RAX, Mem(R8))
    code.test(RAX, RAX)
    code.jump_if("z", again)
    code.ret()
    return Kernel("gate", code.finish())


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clock of another thread's work")
@pytest.mark.parametrize("closed", [0, 1, 2])
def test_no_level_begins_before_all_of_the_one_before_is_done(closed: int) -> None:
    """One thread is held in a level; the other works long enough to have run the next, if it could."""
    opened = np.zeros(1, np.int64)
    marks = [np.zeros(CHUNK, np.float32) for _ in range(4)]
    kernel = axpy(instruction_set(), 0.0, 1.0)
    levels = [[(Launch(kernel, table(1), 1.0), [mark.ctypes.data])] for mark in marks]
    levels[closed].append((Launch(gate(), table(1), 1.0), [opened.ctypes.data]))
    known = set(threading.enumerate())
    with WorkerPool(2) as pool:
        recording = Recording(levels, pool)
        run = threading.Thread(target=recording.run, daemon=True)
        run.start()
        try:
            while len(threads := [t for t in threading.enumerate() if t.ident and t not in known]) < 2:
                time.sleep(0.001)
            clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident]
            assert len(clocks) == 2
            while not marks[closed + 1][-1] and any(time.clock_gettime(clock) < 0.05 for clock in clocks):
                time.sleep(0.001)
            begun = [bool(mark[-1]) for mark in marks]
        finally:
            opened[0] = 1
            run.join(patience(60))
    assert begun == [at <= closed for at in range(4)]
    assert all((mark == 1).all() for mark in marks)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("chunks", [1, 47, 480, 481, 509])
def test_short_chunks_are_claimed_several_at_a_time(threads: int, chunks: int) -> None:
    """Each is computed once, the last ones, too, which may be fewer than are claimed."""
    x = np.zeros(chunks * CHUNK, np.float32)
    launch = Launch(axpy(instruction_set(), 1.0, 1.0), table(chunks), WORTH_SECONDS)
    with WorkerPool(threads) as pool:
        recording = Recording([[(launch, [x.ctypes.data])]] * 3, pool)
        assert recording.threads == threads
        for _ in range(50):
            recording.run()
    np.testing.assert_array_equal(x, 150)


@pytest.mark.parametrize("threads", [2, 4])
def test_thousands_of_runs_lose_no_chunk(threads: int) -> None:
    chunks = 8
    x = np.zeros(chunks * CHUNK, np.float32)
    levels = [[(Launch(axpy(instruction_set(), 1.0, 1.0), table(chunks), 1.0), [x.ctypes.data])]] * 3
    with WorkerPool(threads) as pool:
        recording = Recording(levels, pool)
        for _ in range(2000):
            recording.run()
    assert x.min() == x.max() == 6000


def test_launches_of_one_level_all_run() -> None:
    arrays = [np.zeros(CHUNK * n, np.float32) for n in (1, 2, 5)]
    kernel = axpy(instruction_set(), 0.0, 7.0)
    level = [
        (Launch(kernel, table(n), WORTH_SECONDS), [a.ctypes.data])
        for n, a in zip((1, 2, 5), arrays, strict=True)
    ]
    with WorkerPool(2) as pool:
        Recording([level], pool).run()
    assert all((array == 7).all() for array in arrays)


def test_operands_may_change_between_runs() -> None:
    first, second = np.zeros(CHUNK, np.float32), np.zeros(CHUNK, np.float32)
    with WorkerPool(1) as pool:
        recording = Recording(
            [[(Launch(axpy(instruction_set(), 1.0, 1.0), table(1), 0.0), [first.ctypes.data])]], pool
        )
        recording.run()
        recording.operands[recording.first_operand[0]] = second.ctypes.data
        recording.run()
        recording.run()
    assert (first == 1).all() and (second == 2).all()


def test_threads_have_scratch_of_their_own() -> None:
    """A kernel that goes through scratch memory gives the same on every thread."""
    code = VectorCode(instruction_set())
    code.mov(R8, Mem(RDI))
    code.add(R8, Mem(RSI))
    code.mov(R9, RDX)
    with code.loop(RCX, CHUNK // code.width):
        code.load(0, Mem(R8))
        code.store(Mem(R9), 0)
        code.add_immediate(R8, code.bytes)
        code.add_immediate(R9, code.bytes)
    code.mov(R8, Mem(RDI, 8))
    code.add(R8, Mem(RSI))
    code.mov(R9, RDX)
    with code.loop(RCX, CHUNK // code.width):
        code.load(0, Mem(R9))
        code.store(Mem(R8), 0)
        code.add_immediate(R8, code.bytes)
        code.add_immediate(R9, code.bytes)
    code.ret()
    kernel = Kernel("through scratch", code.finish(), CHUNK * 4)
    source = np.random.default_rng(1).standard_normal(64 * CHUNK).astype(np.float32)
    target = np.zeros_like(source)
    with WorkerPool(4) as pool:
        recording = Recording(
            [[(Launch(kernel, table(64), 1.0), [source.ctypes.data, target.ctypes.data])]], pool
        )
        for _ in range(200):
            target[:] = 0
            recording.run()
            np.testing.assert_array_equal(target, source)


def test_several_recordings_share_a_pool() -> None:
    kernel = axpy(instruction_set(), 1.0, 1.0)
    arrays = [np.zeros(CHUNK * 16, np.float32) for _ in range(4)]
    with WorkerPool(2) as pool:
        recordings = [Recording([[(Launch(kernel, table(16), 1.0), [a.ctypes.data])]], pool) for a in arrays]

        def repeat(recording: Recording) -> None:
            for _ in range(300):
                recording.run()

        threads = [threading.Thread(target=repeat, args=(recording,)) for recording in recordings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all((array == 300).all() for array in arrays)


def test_a_visitor_between_two_runs_is_waited_for() -> None:
    """A worker that finds the gate closed has counted itself in for a moment; a run may begin just then."""
    x = np.zeros(CHUNK * 4, np.float32)
    launch = Launch(axpy(instruction_set(), 1.0, 1.0), table(4), 1.0)
    with WorkerPool(2) as pool:
        recording = Recording([[(launch, [x.ctypes.data])]], pool)
        recording._tokens.clear()  # no other worker
        gate = recording._block[8:9]
        gate += 2
        run = threading.Thread(target=recording.run, daemon=True)
        run.start()
        run.join(0.2)
        assert run.is_alive()
        assert gate[0] == 2
        gate -= 2
        run.join(patience(10))
        assert not run.is_alive()
        assert gate[0] == 0
        recording.run()
    assert (x == 2).all()


def test_unplaced_labels_are_found() -> None:
    code = VectorCode(InstructionSet.AVX2)
    code.jump(code.label())
    with pytest.raises(ValueError, match="never placed"):
        code.finish()


def test_code_cannot_be_written() -> None:
    """Memory is never writable and executable at once."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("no machine code here")
    code = Executable([axpy(InstructionSet.AVX2, 1.0, 1.0).code])
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= code.addresses[0] < end:
            assert rights.startswith("r-x"), rights
            return
    pytest.fail("the code is not mapped")
