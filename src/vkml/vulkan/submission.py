"""Timeline semaphores, and submissions prepared once and repeated cheaply."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from vkml.errors import DeviceError, InvalidArgument
from vkml.vulkan.commands import CommandBuffer
from vkml.vulkan.context import Context
from vkml.vulkan.queues import Queue
from vkml.vulkan.structures import chain, constants, ffi, handle_number, structure

DEFAULT_SPIN_SECONDS = 0.002
"""Spinning this long before blocking: a wake-up out of a blocking wait costs 20 µs on the H200."""

# Blocking waits are cut into pieces so that Python sees an interrupt from the keyboard.
_SLICE_NS = 200_000_000
_ALL_COMMANDS = constants.VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT
_TIMEOUT = constants.VK_TIMEOUT

Wait = Callable[[int, float, float | None], bool]


class Timeline:
    """A semaphore that counts up; device and host wait for values of it and signal them."""

    def __init__(self, context: Context, label: str = "") -> None:
        self._context = context
        kind = structure(
            "VkSemaphoreTypeCreateInfo", semaphoreType=constants.VK_SEMAPHORE_TYPE_TIMELINE, initialValue=0
        )
        self.handle, self._key = context.create(
            "Semaphore", "vkCreateSemaphore", chain(structure("VkSemaphoreCreateInfo"), kind)
        )
        context.name("SEMAPHORE", self.handle, label)
        self._wait = _make_wait(context, self.handle)

    @property
    def value(self) -> int:
        """The value reached so far."""
        self._context.require_open()
        out = ffi.new("uint64_t *")
        self._context.functions.call("vkGetSemaphoreCounterValue", self._context.handle, self.handle, out)
        return int(out[0])

    def signal(self, value: int) -> None:
        """Sets the value from the host; it must be higher than any reached or pending."""
        self._context.require_open()
        info = structure("VkSemaphoreSignalInfo", semaphore=self.handle, value=value)
        self._context.functions.call("vkSignalSemaphore", self._context.handle, info)

    def wait(
        self, value: int, spin_seconds: float = DEFAULT_SPIN_SECONDS, timeout_seconds: float | None = None
    ) -> bool:
        """Waits until the value is reached; other Python threads run meanwhile.

        Args:
            value: to wait for.
            spin_seconds: how long to ask again and again before blocking.
            timeout_seconds: how long to block at most; None for ever.

        Returns:
            whether it was reached.
        """
        return self._wait(value, spin_seconds, timeout_seconds)

    def free(self) -> None:
        """Destroys it; idempotent. Nothing must wait for it any more."""
        self._context.release(self._key)


_RUN_SPINS = 1000
"""Times `Submission.run` asks before it looks at the clock: at about 0.1 µs each, 0.4 by the interpreter."""
_RUNS_BEFORE_EVENTS = 8
"""Of a submission, that end by its semaphore: what runs a few times is soon freed, and settled for it."""
_TRIALS = 16
"""Runs that end either way, in turns, before a device is known to tell of one sooner than of the other."""
_RUNS_BY_EVENTS = 255
"""Between two that end by the semaphore: drivers keep what they know of submissions until one does."""


class Submission:
    """Command buffers with everything a submission of them needs, prepared once.

    `submit()` starts them and returns the value that `timeline` will have when they are done; `wait()` waits
    for the last one. One replay must have finished before the next is submitted. Both are closures over
    local variables: they are what every run of a model pays for.

    Attributes:
        submit: `submit(wait_values=(), signal_values=()) -> int`, one value for each of `waits`, `signals`.
        wait: `wait(spin_seconds=0.002, timeout_seconds=None) -> bool`.
        run: `run()`, a submission and the wait for it in one, with the least overhead; only without `waits`
            and `signals`. When it takes longer than the `time_limit`, in seconds, the device is given up.
            Where the commands set an event, that may end it, and nothing is signalled: a semaphore interrupts
            the host, which takes some hosts 30 µs (an H200's: 45 µs a run, and 13 until a word came that a
            kernel wrote, with nothing signalled). Which of both is the sooner, a device's first runs tell.
        finish: `finish()`, the second half of `run`: waits for the last submission.
        settle: `settle()`, waits for what was submitted last, whatever tells its end and whoever has seen it:
            for what is to be done after an exception. It gives the device up as `run` does.
        timeline: signalled with 1, 2, 3, … by the submissions.
    """

    __slots__ = ("_by_event", "_own", "finish", "run", "settle", "submit", "timeline", "wait")

    def __init__(
        self,
        context: Context,
        command_buffers: CommandBuffer | Sequence[CommandBuffer],
        waits: Sequence[Timeline] = (),
        signals: Sequence[Timeline] = (),
        label: str = "",
        time_limit: float | None = None,
        queue: Queue | None = None,
    ) -> None:
        buffers = [command_buffers] if isinstance(command_buffers, CommandBuffer) else list(command_buffers)
        queues = {buffer.queue.family: buffer.queue for buffer in buffers}
        if len(queues) > 1:
            raise InvalidArgument("the command buffers of one submission were recorded for different queues")
        queue = next(iter(queues.values()), queue or context.compute_queue)
        self.timeline = Timeline(context, label)
        self.submit, self.run, self.finish, current = _make_submit(
            context, queue, buffers, self.timeline, waits, signals, time_limit
        )
        self.settle = self.finish
        self.wait = _make_wait_last(self.timeline, current)
        self._own = self.timeline
        self._by_event: _RunsByEvent | None = None
        event = buffers[0].event if len(buffers) == 1 and not waits and not signals else None
        if event is not None:
            by_event = self._by_event = _RunsByEvent(self, context, buffers[0], event, time_limit)
            self.submit, self.run = by_event.submit, by_event.run
            self.wait, self.finish, self.settle = by_event.wait, by_event.finish, by_event.settle

    def free(self) -> None:
        """Destroys its timeline; idempotent. It must not be running."""
        if self._by_event is not None:
            self._by_event.free()
        self._own.free()


class _RunsByEvent:
    """The closures of a submission whose runs an event may end.

    Such runs are pending, for the driver, until a semaphore is signalled behind them. That is seen to by
    `submit`, `wait`, `free` and `Context.settle`.

    Args:
        of: the submission, whose closures know its semaphore alone.
        context: of the device.
        commands: that it submits.
        event: that these set.
        time_limit: as of the submission.
    """

    def __init__(
        self, of: Submission, context: Context, commands: CommandBuffer, event: Any, time_limit: float | None
    ) -> None:
        native, functions, queue = context.native, context.functions, commands.queue
        assert native is not None, "commands have an event where there are native calls"
        buffer_info = structure("VkCommandBufferSubmitInfo", commandBuffer=commands.handle)
        info = structure("VkSubmitInfo2", commandBufferInfoCount=1, pCommandBufferInfos=buffer_info)
        waiting, done = constants.VK_EVENT_RESET, constants.VK_EVENT_SET
        block = ffi.new("uint64_t[12]")
        reset, status, submit_to_queue = (
            handle_number(getattr(functions, f"vk{name}"))
            for name in ("ResetEvent", "GetEventStatus", "QueueSubmit2")
        )
        device, handle = handle_number(context.handle), handle_number(event)
        block[0:6] = [reset, device, handle, status, waiting, _RUN_SPINS]
        block[7:11] = [submit_to_queue, *map(handle_number, (queue.handle, info)), queue.word_address]
        address, run_natively, ask = handle_number(block), native.run_by_event, native.ask_event
        submit_signalled, run_signalled, wait_signalled = of.submit, of.run, of.wait
        finish_signalled = of.finish
        unsettled, key, clock = context.unsettled, object(), time.perf_counter
        runs, by_event, under_way = [0], [False], [False]
        """How many there were, how the last one ends, and whether nobody has seen it end."""
        times: tuple[list[float], list[float]] = ([], [])
        behind: list[Submission] = []

        def signalled_behind() -> Submission:
            """A submission of nothing, whose semaphore says that all that was submitted before has ended."""
            if not behind:
                behind.append(Submission(context, (), time_limit=time_limit, queue=queue))
            return behind[0]

        def end() -> None:
            with context.settling:
                signalled_behind().run()

        def run() -> None:
            count = runs[0] = runs[0] + 1
            if count <= _RUNS_BEFORE_EVENTS or not count % (_RUNS_BY_EVENTS + 1):
                run_by_semaphore()
            elif context.ends_by_event:
                run_by_event()
            elif context.ends_by_event is None:
                is_timed_by_event = count % 2 == 0
                started = clock()
                (run_by_event if is_timed_by_event else run_by_semaphore)()
                times[is_timed_by_event].append(clock() - started)
                if len(times[True]) >= _TRIALS:
                    context.ends_by_event = _is_sooner(times[True], times[False])
            else:
                run_by_semaphore()

        def run_by_semaphore() -> None:
            by_event[0], under_way[0] = False, True
            run_signalled()
            under_way[0] = False
            if unsettled:
                unsettled.pop(key, None)

        def run_by_event() -> None:
            if context.is_closed:
                context.require_open()
            if under_way[0]:
                end()  # else an earlier run, whose end nobody waited for, could set the event of this one
            # Noted first, for `wait` after an interrupt, and again: another thread that settled in between
            # has done so for what was submitted before.
            by_event[0] = under_way[0] = True
            unsettled[key] = end
            run_natively(address)
            unsettled[key] = end
            if block[6] == done:
                under_way[0] = False
                return
            if block[11]:
                under_way[0] = False
                functions.fail("vkQueueSubmit2", _signed(block[11]))
            start = clock()
            while block[6] == waiting and clock() - start < DEFAULT_SPIN_SECONDS:
                ask(address)
            if block[6] != done:
                end()  # blocks, gives the device up in the end, or says that it is lost
                unsettled.pop(key, None)
            under_way[0] = False

        def submit(*values: Sequence[int]) -> int:
            by_event[0], under_way[0] = False, True
            return submit_signalled(*values)

        def finish() -> None:
            finish_signalled()
            under_way[0] = False
            unsettled.pop(key, None)

        def settle() -> None:
            if by_event[0]:
                end()
                under_way[0] = False
                unsettled.pop(key, None)
            else:
                finish()

        def wait(spin_seconds: float = DEFAULT_SPIN_SECONDS, timeout_seconds: float | None = None) -> bool:
            if by_event[0]:
                with context.settling:
                    last = signalled_behind()
                    last.submit()
                    is_done = last.wait(spin_seconds, timeout_seconds)
            else:
                is_done = wait_signalled(spin_seconds, timeout_seconds)
            if is_done:
                under_way[0] = False
                unsettled.pop(key, None)
            return is_done

        def free() -> None:
            if under_way[0] or key in unsettled:
                with contextlib.suppress(DeviceError):
                    end()
            unsettled.pop(key, None)
            for submission in behind:
                submission.free()

        self.run, self.submit, self.wait, self.finish, self.free = run, submit, wait, finish, free
        self.settle = settle
        self._kept = buffer_info, info, block, queue, commands


def _is_sooner(times: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the median of some times is less than that of others."""
    first, second = (sorted(each)[len(each) // 2] for each in (times, others))
    return first < second


def _semaphore_infos(timelines: Sequence[Timeline]) -> Any:
    infos = ffi.new("VkSemaphoreSubmitInfo[]", max(len(timelines), 1))
    pattern = structure("VkSemaphoreSubmitInfo", stageMask=_ALL_COMMANDS)
    for info, timeline in zip(infos, timelines, strict=False):
        info.sType, info.stageMask, info.semaphore = pattern.sType, pattern.stageMask, timeline.handle
    return infos


def _make_submit(
    context: Context,
    queue: Any,
    buffers: Sequence[CommandBuffer],
    own: Timeline,
    waits: Sequence[Timeline],
    signals: Sequence[Timeline],
    time_limit: float | None,
) -> tuple[Callable[..., int], Callable[[], None], Callable[[], None], list[int]]:
    """The `submit`, `run` and `finish` closures, and a list of one number: the last value submitted."""
    command_infos = [
        structure("VkCommandBufferSubmitInfo", commandBuffer=buffer.handle) for buffer in buffers
    ]
    signal_infos = _semaphore_infos([own, *signals])
    wait_infos = _semaphore_infos(waits)
    info = structure(
        "VkSubmitInfo2",
        commandBufferInfoCount=len(command_infos),
        pCommandBufferInfos=command_infos,
        waitSemaphoreInfoCount=len(waits),
        pWaitSemaphoreInfos=wait_infos,
        signalSemaphoreInfoCount=1 + len(signals),
        pSignalSemaphoreInfos=signal_infos,
    )
    own_info = signal_infos[0]
    lock, queue_handle = queue.lock, queue.handle
    queue_submit = context.functions.vkQueueSubmit2
    fail = context.functions.fail
    current = [0]
    needs_values = bool(waits or signals)
    null = 0

    get_value, device, semaphore = context.functions.vkGetSemaphoreCounterValue, context.handle, own.handle
    wait_for, spins, native, clock = own._wait, range(_RUN_SPINS), context.native, time.perf_counter
    out = ffi.new("uint64_t *")
    block = ffi.new("uint64_t[12]")
    address = handle_number(block)
    submit_natively, ask, run_natively = native[:3] if native is not None else (None, None, None)
    if native is not None:
        # What these functions are told; the value awaited is the fifth word.
        block[0:6] = [*map(handle_number, (get_value, device, semaphore, out)), 0, _RUN_SPINS]
        block[7:11] = [*map(handle_number, (queue_submit, queue_handle, info)), queue.word_address]

    def submit(wait_values: Sequence[int] = (), signal_values: Sequence[int] = ()) -> int:
        value = current[0] + 1
        if context.is_closed:
            context.require_open()
        if needs_values:
            if len(wait_values) != len(waits) or len(signal_values) != len(signals):
                raise InvalidArgument(
                    f"a submission that waits for {len(waits)} and signals {len(signals)} timelines got "
                    f"{len(wait_values)} and {len(signal_values)} values"
                )
            for index, number in enumerate(wait_values):
                wait_infos[index].value = number
            for index, number in enumerate(signal_values):
                signal_infos[index + 1].value = number
        own_info.value = value
        # Counted first: an interrupt right after the call must not let the next submission reuse the value.
        current[0] = value
        if submit_natively is not None:
            submit_natively(address)
            result = block[11]
        else:
            with lock:
                result = queue_submit(queue_handle, 1, info, null)
        if result:
            current[0] = value - 1
            fail("vkQueueSubmit2", _signed(result))
        return value

    def await_value(value: int) -> None:
        spin = DEFAULT_SPIN_SECONDS
        if ask is not None:
            block[4] = value
            start = clock()
            while out[0] < value and not block[6] and clock() - start < DEFAULT_SPIN_SECONDS:
                ask(address)
            if out[0] >= value:
                return
            spin = 0.0
        else:
            for _ in spins:
                if get_value(device, semaphore, out):
                    break
                if out[0] >= value:
                    return
        if not wait_for(value, spin, time_limit):
            why = f"a run took longer than the {time_limit:g} s that it may take"
            context.give_up(why, lambda: bool(get_value(device, semaphore, out)) or out[0] >= value)
            context.require_open()

    def run() -> None:
        if run_natively is None:
            await_value(submit())
            return
        value = current[0] + 1
        if context.is_closed:
            context.require_open()
        own_info.value = block[4] = value
        # Counted first: an interrupt right after the call must not let the next submission reuse the value.
        current[0] = value
        run_natively(address)
        if out[0] < value:
            if block[11]:
                current[0] = value - 1
                fail("vkQueueSubmit2", _signed(block[11]))
            await_value(value)

    def finish() -> None:
        if context.is_closed:
            context.require_open()
        await_value(current[0])

    keep = (signal_infos, wait_infos, info, block, out, queue, own, buffers, waits, signals)
    submit.__kept__ = run.__kept__ = finish.__kept__ = keep  # type: ignore[attr-defined]
    return submit, run, finish, current


def _signed(result: int) -> int:
    """A VkResult whose 32 bits were read without their sign."""
    return int(ffi.cast("int32_t", result))


def _make_wait(context: Context, semaphore: int) -> Wait:
    """A closure that waits for a value of a semaphore."""
    functions, device = context.functions, context.handle
    get_value, wait_semaphores = functions.vkGetSemaphoreCounterValue, functions.vkWaitSemaphores
    fail, clock = functions.fail, time.perf_counter
    # Shared by all threads that wait: whatever one reads from it has been reached.
    out = ffi.new("uint64_t *")

    def wait(value: int, spin_seconds: float, timeout_seconds: float | None) -> bool:
        if context.is_closed:
            context.require_open()
        start = 0.0
        while True:
            result = get_value(device, semaphore, out)
            if result:
                fail("vkGetSemaphoreCounterValue", result)
            if out[0] >= value:
                return True
            now = clock()
            if not start:
                start = now
            elif now - start > spin_seconds:
                break
        semaphores, values = ffi.new("VkSemaphore[1]", [semaphore]), ffi.new("uint64_t[1]", [value])
        info = structure("VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=semaphores, pValues=values)
        end = None if timeout_seconds is None else start + timeout_seconds
        while True:
            if context.is_closed:  # a signal handler may have closed or forked
                context.require_open()
            left = _SLICE_NS if end is None else min(_SLICE_NS, int((end - clock()) * 1e9))
            result = wait_semaphores(device, info, max(left, 0))
            if result == 0:
                return True
            if result != _TIMEOUT:
                fail("vkWaitSemaphores", result)
            if end is not None and clock() >= end:
                return False

    return wait


def _make_wait_last(timeline: Timeline, current: list[int]) -> Callable[..., bool]:
    wait_for = timeline._wait

    def wait(spin_seconds: float = DEFAULT_SPIN_SECONDS, timeout_seconds: float | None = None) -> bool:
        return wait_for(current[0], spin_seconds, timeout_seconds)

    return wait
