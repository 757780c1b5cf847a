"""Calls of a driver's functions without the interpreter: submit and ask until done, or a table of calls."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

from vkml.cpu.native.assembler import (
    R8,
    R9,
    R12,
    RAX,
    RBP,
    RBX,
    RCX,
    RDI,
    RDX,
    RSI,
    Assembler,
    Label,
    Mem,
)
from vkml.cpu.native.executable import Executable, instruction_set

(
    _ASK,
    _DEVICE,
    _SEMAPHORE,
    _ANSWER,
    _AWAITED,
    _TIMES,
    _ASK_RESULT,
    _SUBMIT,
    _QUEUE,
    _INFO,
    _LOCK,
    _SUBMIT_RESULT,
) = (8 * place for place in range(12))
"""Offsets in the block of `submit`, `ask` and `run`."""
BLOCK_WORDS = 12
_RESET, _OF_DEVICE, _EVENT, _STATUS, _WHILE, _STATUS_TIMES, _STATUS_RESULT, _EVENT_SUBMIT = (
    8 * place for place in range(8)
)
"""Offsets in the block of `run_by_event` and `ask_event`, which is as long."""
ROW_WORDS = 8
"""Words of a row of `call_all`: a function's address and its six arguments."""
_SPINS = 200
"""Pauses after which a thread that waits for a lock gives its core away each time it looks."""
_SCHED_YIELD = 24
"""Linux's number of the system call."""
Calls = tuple[Callable[[int], None], ...]


@functools.cache
def calls() -> Calls | None:
    """Functions that take the address of a block of 64-bit words; the interpreter's threads run meanwhile.

    `submit`, `ask` and `run` take twelve words: the address of a function to ask (as
    `vkGetSemaphoreCounterValue`), its two arguments and the address where it leaves its answer, the least
    answer awaited, how often to ask, at least once, what the last call of it returned; the address of a
    function that submits (as `vkQueueSubmit2`), its queue and its one structure, the address of the queue's
    lock, which is a word, and what it returned. `run` submits and, where that returned 0, asks.
    `call_all` takes the address of rows and their number; a row is a function and six arguments.
    `call_locked` takes a function, its argument, what it returned, the number of locks and their addresses.
    `run_by_event` and `ask_event` take twelve words: the address of a function that resets (as
    `vkResetEvent`), its two arguments, which are those of the next one (as `vkGetEventStatus`), too, the
    answer for which that is asked again, how often to ask, at least once, what the last call of it returned;
    five words as the last five of `run`. `run_by_event` resets, submits and, where that returned 0, asks.

    Returns:
        these seven, in the order named; None where no machine code runs.
    """
    if instruction_set() is None:
        return None
    parts = [_submit_or_ask(True, False), _submit_or_ask(False, True), _submit_or_ask(True, True)]
    try:
        more = [_call_all(), _call_locked(), _ask_event(True), _ask_event(False)]
        code = Executable([*parts, *more])
    except OSError:
        return None
    _kept.append(code)
    return tuple(code.function(part, "void(*)(uintptr_t)") for part in range(7))


_kept: list[Executable] = []
_SAVED = (RBX, RBP, R12)
"""Three registers: the stack is then at a multiple of 16 for calls."""


def _enter() -> Assembler:
    code = Assembler(False)
    for register in _SAVED:
        code.push(register)
    code.mov(RBX, RDI)
    return code


def _leave(code: Assembler) -> bytes:
    for register in reversed(_SAVED):
        code.pop(register)
    code.ret()
    return code.finish()


def _acquire(code: Assembler, word: Mem) -> None:
    """Waits until the lock is this thread's; changes RAX, RCX, R11 and R9."""
    again, wait, done, is_free = code.label(), code.label(), code.label(), code.label()
    code.place(again)
    code.move_immediate(RAX, 1)
    code.exchange_add(word, RAX)
    code.test(RAX, RAX)
    code.jump_if("z", done)
    code.atomic_add_immediate(word, -1)
    code.move_immediate(R9, _SPINS)
    code.place(wait)
    code.pause()
    code.mov(RAX, word)
    code.test(RAX, RAX)
    code.jump_if("z", is_free)
    code.decrement(R9)
    code.jump_if("nz", wait)
    if sys.platform.startswith("linux"):
        code.move_immediate(RAX, _SCHED_YIELD)
        code.system_call()
    code.move_immediate(R9, 1)
    code.jump(wait)
    code.place(is_free)
    code.jump(again)
    code.place(done)


def _submit(code: Assembler, first: int, failed: Label) -> None:
    """Submits under the queue's lock; the five words begin at an offset in the block."""
    submit, queue, info, lock, result = (first + 8 * place for place in range(5))
    code.mov(R12, Mem(RBX, lock))
    _acquire(code, Mem(R12))
    code.mov(RDI, Mem(RBX, queue))
    code.move_immediate(RSI, 1)
    code.mov(RDX, Mem(RBX, info))
    code.move_immediate(RCX, 0)
    code.call(Mem(RBX, submit))
    code.atomic_add_immediate(Mem(R12), -1)
    code.mov32(Mem(RBX, result), RAX)
    code.mov(RAX, Mem(RBX, result))
    code.test(RAX, RAX)
    code.jump_if("nz", failed)


def _submit_or_ask(submits: bool, asks: bool) -> bytes:
    code = _enter()
    done = code.label()
    if submits:
        _submit(code, _SUBMIT, done)
    if asks:
        code.mov(RBP, Mem(RBX, _TIMES))
        again = code.here()
        code.mov(RDI, Mem(RBX, _DEVICE))
        code.mov(RSI, Mem(RBX, _SEMAPHORE))
        code.mov(RDX, Mem(RBX, _ANSWER))
        code.call(Mem(RBX, _ASK))
        code.mov32(Mem(RBX, _ASK_RESULT), RAX)
        code.mov(RAX, Mem(RBX, _ASK_RESULT))
        code.test(RAX, RAX)
        code.jump_if("nz", done)
        code.mov(R8, Mem(RBX, _ANSWER))
        code.mov(RAX, Mem(R8))
        code.cmp(RAX, Mem(RBX, _AWAITED))
        code.jump_if("ge", done)
        code.pause()
        code.decrement(RBP)
        code.jump_if("nz", again)
    code.place(done)
    return _leave(code)


def _ask_event(submits: bool) -> bytes:
    code = _enter()
    done = code.label()
    if submits:
        code.mov(RAX, Mem(RBX, _WHILE))
        code.mov(Mem(RBX, _STATUS_RESULT), RAX)
        code.mov(RDI, Mem(RBX, _OF_DEVICE))
        code.mov(RSI, Mem(RBX, _EVENT))
        code.call(Mem(RBX, _RESET))
        _submit(code, _EVENT_SUBMIT, done)
    code.mov(RBP, Mem(RBX, _STATUS_TIMES))
    again = code.here()
    code.mov(RDI, Mem(RBX, _OF_DEVICE))
    code.mov(RSI, Mem(RBX, _EVENT))
    code.call(Mem(RBX, _STATUS))
    code.mov32(Mem(RBX, _STATUS_RESULT), RAX)
    code.mov(RAX, Mem(RBX, _STATUS_RESULT))
    code.cmp(RAX, Mem(RBX, _WHILE))
    code.jump_if("nz", done)
    code.pause()
    code.decrement(RBP)
    code.jump_if("nz", again)
    code.place(done)
    return _leave(code)


def _call_all() -> bytes:
    code = _enter()
    done = code.label()
    code.mov(R12, Mem(RBX, 0))
    code.mov(RBP, Mem(RBX, 8))
    code.test(RBP, RBP)
    code.jump_if("z", done)
    again = code.here()
    for place, register in enumerate((RDI, RSI, RDX, RCX, R8, R9), 1):
        code.mov(register, Mem(R12, 8 * place))
    code.call(Mem(R12, 0))
    code.add_immediate(R12, 8 * ROW_WORDS)
    code.decrement(RBP)
    code.jump_if("nz", again)
    code.place(done)
    return _leave(code)


def _call_locked() -> bytes:
    code = _enter()
    for is_before in (True, False):
        none = code.label()
        code.mov(RBP, Mem(RBX, 24))
        code.lea(R12, Mem(RBX, 32))
        code.test(RBP, RBP)
        code.jump_if("z", none)
        again = code.here()
        code.mov(R8, Mem(R12))
        if is_before:
            _acquire(code, Mem(R8))
        else:
            code.atomic_add_immediate(Mem(R8), -1)
        code.add_immediate(R12, 8)
        code.decrement(RBP)
        code.jump_if("nz", again)
        code.place(none)
        if is_before:
            code.mov(RDI, Mem(RBX, 8))
            code.call(Mem(RBX, 0))
            code.mov32(Mem(RBX, 16), RAX)
    return _leave(code)
