"""Recorded launches, replayed by one call: on the calling thread alone, or together with the worker pool."""

from __future__ import annotations

import collections
import functools
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.cpu.native.assembler import (
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    RAX,
    RBP,
    RBX,
    RDI,
    RDX,
    RSI,
    RSP,
    Assembler,
    Label,
    Mem,
)
from vkml.cpu.native.executable import Executable
from vkml.cpu.native.kernel import Launch
from vkml.cpu.pool import DISPATCH_SECONDS, WorkerPool
from vkml.forks import renew_in_child

Array = np.ndarray[Any, Any]

_FUNCTION, _OPERANDS, _TABLE, _ROW_BYTES, _CHUNKS, _AWAITED, _AWAITED_COUNT, _DONE, _NEXT, _CLAIM = range(10)
"""Places in a record, eight bytes each; what threads write (`_NEXT`) lies on a line of its own, with how
much they add."""
_RECORD = 16
_LINE = 8
_CLAIM_SECONDS = 2e-6
"""How long chunks are expected to take that a thread claims at a time, if there are enough of them."""
_CLAIMS = 8
"""That are left to each thread at the least."""
_SAVED = (RBX, RBP, R12, R13, R14, R15)
_JOIN_SPINS = 2000
"""Pauses (some 40 cycles each) for which a worker that comes early waits for the run to open."""
_SPINS = 4000
"""Pauses after which a thread that waits for others gives its core away each time it looks: some 50 µs. With
more threads than cores, who spins keeps from working whom it waits for."""
_SCHED_YIELD = 24
"""Linux's number of the system call."""
WORTH_SECONDS = 3 * DISPATCH_SECONDS
"""Recordings estimated below this stay on the calling thread."""


class Recording:
    """Launches in levels; those of one level run at the same time, the next begins when all are done.

    A recording runs once at a time: `run` must not be called by two threads at once.

    Args:
        levels: pairs of a launch and the addresses of its operands.
        pool: whose threads take part.
    """

    def __init__(self, levels: Sequence[Sequence[tuple[Launch, Sequence[int]]]], pool: WorkerPool) -> None:
        levels = [level for level in levels if level]
        entries = [(at, launch, operands) for at, level in enumerate(levels) for launch, operands in level]
        codes = list(dict.fromkeys(launch.kernel.code for _, launch, _ in entries))
        self._code = Executable(codes)
        place = dict(zip(codes, self._code.addresses, strict=True))
        seconds = sum(launch.seconds for _, launch, _ in entries)
        self.threads = pool.size if seconds >= WORTH_SECONDS else 1
        self._pool = pool
        self._tables = {id(launch.table): launch.table for _, launch, _ in entries}
        done = _aligned(len(levels) * _LINE)
        totals = [sum(len(launch.table) for launch, _ in level) for level in levels]
        starts = np.cumsum([0, *(len(operands) for _, _, operands in entries)])
        self.operands = _aligned(int(starts[-1]))
        """Addresses of all operands, launch after launch; may be changed between runs."""
        self.first_operand = starts[:-1].tolist()
        """Where each launch's operands begin there."""
        records = _aligned(len(entries) * _RECORD)
        self.operands[:] = [address for _, _, operands in entries for address in operands]
        at_operands, at_done = self.operands.ctypes.data, done.ctypes.data
        written: list[int] = []
        for (level, launch, _), start in zip(entries, self.first_operand, strict=True):
            record = [0] * _RECORD
            record[_FUNCTION] = place[launch.kernel.code]
            record[_OPERANDS] = at_operands + 8 * start
            record[_TABLE] = launch.address
            record[_ROW_BYTES] = launch.table.shape[1] * 8
            record[_CHUNKS] = len(launch.table)
            if level:
                record[_AWAITED] = at_done + 8 * _LINE * (level - 1)
                record[_AWAITED_COUNT] = totals[level - 1]
            record[_DONE] = at_done + 8 * _LINE * level
            record[_CLAIM] = _claimed(launch, self.threads)
            written += record
        records[:] = written
        scratch = max((launch.kernel.scratch_bytes for _, launch, _ in entries), default=0)
        stride = -(-scratch // 64) * 8 + 2 * _LINE
        self._scratch = _aligned(stride * self.threads)
        self._scratch_addresses = [self._scratch.ctypes.data + 8 * stride * i for i in range(self.threads)]
        self._records, self._done = records, done
        self._block = _aligned(2 * _LINE)
        self._block[:6] = (records.ctypes.data, len(entries), done.ctypes.data, len(levels),
                           done.ctypes.data + 8 * _LINE * (len(levels) - 1), sum(totals[-1:]))  # fmt: skip
        self._address = self._block.ctypes.data
        self._is_empty = not entries
        self._launches = [launch for _, launch, _ in entries]
        self._parts: list[tuple[slice, Recording]] = []
        """Each launch by itself, made when times are first asked for."""
        self._serial, self._lead, self._join = _drivers()
        self._tokens = collections.deque(range(self.threads - 1), self.threads - 1)
        """One for each thread that may be invited: those invited before that have not come hold theirs."""
        self._has_all_tokens = True
        renew_in_child(self._renew)

    def run(self) -> None:
        """Runs every launch; returns when all are done and no other thread is at work on them."""
        if self._is_empty:
            return
        if self.threads == 1:
            self._serial(self._address, self._scratch_addresses[0])
            return
        tokens = self._tokens
        if not self._has_all_tokens:
            tokens.extend(range(self.threads - 1))  # those too many fall out
        # An interrupt may come between taking one and handing it over; the next run then begins with all.
        self._has_all_tokens = False
        while tokens:
            token = tokens.pop()
            if not self._pool.invite(self._help):
                tokens.append(token)
                break
        self._has_all_tokens = True
        self._lead(self._address, self._scratch_addresses[0])

    def _help(self, worker: int) -> None:
        self._tokens.append(worker)
        self._join(self._address, self._scratch_addresses[worker])

    def _renew(self) -> None:
        """In a forked child: whom the parent invited does not come, and nobody is at work."""
        self._has_all_tokens = False
        self._block[_GATE // 8] = 0

    def run_each(self) -> list[float]:
        """Runs the launches one after another, each on all threads; the seconds that each took."""
        if not self._parts:
            stops = [*self.first_operand[1:], len(self.operands)]
            self._parts = [
                (slice(start, stop), Recording([[(launch, self.operands[start:stop].tolist())]], self._pool))
                for launch, start, stop in zip(self._launches, self.first_operand, stops, strict=True)
            ]
        seconds = []
        for place, part in self._parts:
            part.operands[:] = self.operands[place]
            before = time.perf_counter()
            part.run()
            seconds.append(time.perf_counter() - before)
        return seconds


def _claimed(launch: Launch, threads: int) -> int:
    """Chunks that a thread claims at a time: counters that threads share take some 50 ns."""
    chunks = len(launch.table)
    wanted = int(_CLAIM_SECONDS * chunks / max(launch.seconds, 1e-9))
    return max(1, min(wanted, chunks // (_CLAIMS * threads)))


def _aligned(count: int) -> Array:
    """Zeroed int64 at an address that is a multiple of a cache line."""
    whole = np.zeros(count + _LINE, np.int64)
    skip = -whole.ctypes.data % 64 // 8
    return whole[skip : skip + count]


_GATE = 8 * _LINE
"""Offset in the block of the word that counts workers at work by twos; its lowest bit: a run is open."""
_AT, _LEFT, _THREAD_SCRATCH, _BLOCK, _ROW, _COUNT, _CLAIMED = (8 * i for i in range(7))
"""Offsets on the driver's stack."""
_STACK = 64


@functools.cache
def _drivers() -> tuple[Any, Any, Any]:
    code = Executable([_serial_driver(), _parallel_driver(True), _parallel_driver(False)])
    functions = tuple(code.function(part, "void(*)(uintptr_t, uintptr_t)") for part in range(3))
    _kept.append(code)
    return functions


_kept: list[Executable] = []


def _enter(code: Assembler) -> None:
    for register in _SAVED:
        code.push(register)
    code.sub_immediate(RSP, _STACK)
    code.mov(Mem(RSP, _BLOCK), RDI)
    code.mov(Mem(RSP, _THREAD_SCRATCH), RSI)


def _leave(code: Assembler) -> None:
    code.zero_upper()
    code.add_immediate(RSP, _STACK)
    for register in reversed(_SAVED):
        code.pop(register)
    code.ret()


def _start_records(code: Assembler) -> None:
    code.mov(R8, Mem(RSP, _BLOCK))
    code.mov(RAX, Mem(R8, 0))
    code.mov(Mem(RSP, _AT), RAX)
    code.mov(RAX, Mem(R8, 8))
    code.mov(Mem(RSP, _LEFT), RAX)


def _next_record(code: Assembler, again: Any) -> None:
    code.mov(R8, Mem(RSP, _AT))
    code.add_immediate(R8, 8 * _RECORD)
    code.mov(Mem(RSP, _AT), R8)
    code.mov(RAX, Mem(RSP, _LEFT))
    code.decrement(RAX)
    code.mov(Mem(RSP, _LEFT), RAX)
    code.jump_if("nz", again)


def _call_for_each_row(code: Assembler) -> None:
    """Calls the function of R8's record for the row at RSI and those behind it, as many as the stack says."""
    chunk = code.here()
    code.mov(RDI, Mem(R8, 8 * _OPERANDS))
    code.mov(RDX, Mem(RSP, _THREAD_SCRATCH))
    code.call(Mem(R8, 8 * _FUNCTION))
    code.mov(R8, Mem(RSP, _AT))
    code.mov(RSI, Mem(RSP, _ROW))
    code.add(RSI, Mem(R8, 8 * _ROW_BYTES))
    code.mov(Mem(RSP, _ROW), RSI)
    code.mov(RAX, Mem(RSP, _COUNT))
    code.decrement(RAX)
    code.mov(Mem(RSP, _COUNT), RAX)
    code.jump_if("nz", chunk)


def _serial_driver() -> bytes:
    code = Assembler(False)
    _enter(code)
    _start_records(code)
    record = code.here()
    code.mov(R8, Mem(RSP, _AT))
    code.mov(RAX, Mem(R8, 8 * _CHUNKS))
    code.mov(Mem(RSP, _COUNT), RAX)
    code.mov(RSI, Mem(R8, 8 * _TABLE))
    code.mov(Mem(RSP, _ROW), RSI)
    _call_for_each_row(code)
    _next_record(code, record)
    _leave(code)
    return code.finish()


def _parallel_driver(is_leader: bool) -> bytes:
    """Claims some chunks of a record at a time, by an atomic counter. Who comes late skips what is done."""
    code = Assembler(False)
    leave = code.label()
    _enter(code)
    if is_leader:
        _reset(code)
        code.mov(R8, Mem(RSP, _BLOCK))
        # Added, not set: who came between two runs may not have taken back its count yet.
        code.atomic_add_immediate(Mem(R8, _GATE), 1)
    else:
        _join_run(code, leave)
    _start_records(code)
    record = code.here()
    # The level before must be complete.
    code.mov(R8, Mem(RSP, _AT))
    code.mov(R9, Mem(R8, 8 * _AWAITED))
    code.mov(R10, Mem(R8, 8 * _AWAITED_COUNT))
    claim, spin, finished = code.label(), code.label(), code.label()
    code.test(R9, R9)
    code.jump_if("z", claim)
    _wait_for(code, spin, R9, R10)
    code.place(claim)
    code.mov(RAX, Mem(R8, 8 * _CLAIM))
    code.mov(R10, RAX)
    code.exchange_add(Mem(R8, 8 * _NEXT), RAX)
    code.mov(R9, Mem(R8, 8 * _CHUNKS))
    code.sub(R9, RAX)
    code.jump_if("le", finished)
    # The last ones may be fewer.
    whole = code.label()
    code.cmp(R10, R9)
    code.jump_if("le", whole)
    code.mov(R10, R9)
    code.place(whole)
    code.mov(Mem(RSP, _CLAIMED), R10)
    code.mov(Mem(RSP, _COUNT), R10)
    code.multiply(RAX, Mem(R8, 8 * _ROW_BYTES))
    code.mov(RSI, Mem(R8, 8 * _TABLE))
    code.add(RSI, RAX)
    code.mov(Mem(RSP, _ROW), RSI)
    _call_for_each_row(code)
    code.mov(RAX, Mem(RSP, _CLAIMED))
    code.mov(R9, Mem(R8, 8 * _DONE))
    code.exchange_add(Mem(R9), RAX)
    code.jump(claim)
    code.place(finished)
    _next_record(code, record)
    if is_leader:
        code.mov(R8, Mem(RSP, _BLOCK))
        code.mov(R9, Mem(R8, 32))
        code.mov(R10, Mem(R8, 40))
        _wait_for(code, code.label(), R9, R10)
        # Closed to those who come now; wait for those who are in.
        code.atomic_add_immediate(Mem(R8, _GATE), -1)
        code.lea(R9, Mem(R8, _GATE))
        code.move_immediate(R10, 0)
        _wait_for(code, code.label(), R9, R10)
    else:
        code.mov(R8, Mem(RSP, _BLOCK))
        code.atomic_add_immediate(Mem(R8, _GATE), -2)
    code.place(leave)
    _leave(code)
    return code.finish()


def _reset(code: Assembler) -> None:
    """Sets the counters of every record and level to zero; nobody else is inside."""
    code.mov(R8, Mem(RSP, _BLOCK))
    code.move_immediate(RAX, 0)
    code.mov(R9, Mem(R8, 0))
    with_records = Mem(R8, 8)
    code.mov(R10, with_records)
    with code.loop(R10):
        code.mov(Mem(R9, 8 * _NEXT), RAX)
        code.add_immediate(R9, 8 * _RECORD)
    code.mov(R9, Mem(R8, 16))
    code.mov(R10, Mem(R8, 24))
    with code.loop(R10):
        code.mov(Mem(R9), RAX)
        code.add_immediate(R9, 8 * _LINE)


def _join_run(code: Assembler, leave: Any) -> None:
    enter = code.label()
    code.mov(R8, Mem(RSP, _BLOCK))
    code.move_immediate(R10, _JOIN_SPINS)
    code.move_immediate(R9, 1)
    with code.loop(R10):
        code.mov(RAX, Mem(R8, _GATE))
        code.test(RAX, R9)
        code.jump_if("nz", enter)
        code.pause()
    code.jump(leave)
    code.place(enter)
    code.move_immediate(RAX, 2)
    code.exchange_add(Mem(R8, _GATE), RAX)
    is_in = code.label()
    code.test(RAX, R9)
    code.jump_if("nz", is_in)
    code.atomic_add_immediate(Mem(R8, _GATE), -2)
    code.jump(leave)
    code.place(is_in)


def _wait_for(code: Assembler, again: Label, address: int, count: int) -> None:
    """Waits until the word equals the count: spins, and after a while lets other threads run in between."""
    done, spin = code.label(), code.label()
    code.move_immediate(R11, _SPINS)
    code.place(again)
    code.mov(RAX, Mem(address))
    code.cmp(RAX, count)
    code.jump_if("e", done)
    code.pause()
    if not sys.platform.startswith("linux"):
        code.jump(again)
        code.place(done)
        return
    code.decrement(R11)
    code.jump_if("nz", again)
    code.place(spin)
    # The call changes RCX and R11 besides RAX.
    code.move_immediate(RAX, _SCHED_YIELD)
    code.system_call()
    code.move_immediate(R11, 1)
    code.jump(again)
    code.place(done)
