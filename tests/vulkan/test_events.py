"""Runs that an event ends: results, what is signalled in between, and what may be destroyed behind them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from tests.vulkan.helpers import Adder, every_device, floats
from tests.vulkan.kernels import add_push
from vkml.cpu.native.calls import calls
from vkml.errors import DeviceError
from vkml.vulkan import CommandBuffer, Device, DeviceInfo, live_objects, submission, validation_messages
from vkml.vulkan.queues import NativeCalls

pytestmark = pytest.mark.usefixtures("own_cache")
BEFORE, BETWEEN = submission._RUNS_BEFORE_EVENTS, submission._RUNS_BY_EVENTS


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    # A run that takes longer ends by the semaphore, and drivers in software are slow beside other processes.
    monkeypatch.setattr(submission, "DEFAULT_SPIN_SECONDS", 60.0)


class EventAdder(Adder):
    """o = a + b, whose last command sets an event."""

    def record(self, again: CommandBuffer | None = None) -> CommandBuffer:
        recorder = self.device.recorder("add", again=again, has_event=True)
        push = add_push(self.a.address, self.b.address, self.o.address, self.count)
        recorder.dispatch(self.pipeline, push, -(-self.count // 32))
        recorder.barrier_to_host()
        return recorder.finish()


def native_calls(info: DeviceInfo) -> NativeCalls:
    found = calls()
    if found is None or info.capabilities.portability_subset:
        pytest.skip("no machine code on this processor, or VKML_NATIVE=0")
    return NativeCalls(*found)


def opened(info: DeviceInfo) -> Device:
    device = Device(info, native=native_calls(info))
    device.context.ends_by_event = True
    return device


def run_many(adder: EventAdder, count: int) -> None:
    for _ in range(count):
        adder.submission.run()


@every_device
def test_runs_end_by_the_event_but_for_some(info: DeviceInfo) -> None:
    said = len(validation_messages())
    with opened(info) as device:
        adder = EventAdder(device, 1000)
        for seed in range(BEFORE + 4):
            a, b = floats(1000, seed), floats(1000, seed + 10)
            device.upload(adder.a, 0, a)
            device.upload(adder.b, 0, b)
            adder.submission.run()
            np.testing.assert_array_equal(adder.read(adder.o), a + b)
        assert adder.submission.timeline.value == BEFORE, "the others signalled nothing"
        adder.submission.run()
        assert len(device.context.unsettled) == 1
        run_many(adder, BETWEEN + 1 - BEFORE - 5)
        assert adder.submission.timeline.value == BEFORE + 1, "once in a while the driver is told"
        assert not device.context.unsettled
        run_many(adder, BETWEEN)
        assert adder.submission.timeline.value == BEFORE + 1
        assert adder.submission.submit() == BEFORE + 2, "a submission proper goes on from there"
        assert adder.submission.wait() and not device.context.unsettled
    assert live_objects() == {}
    assert len(validation_messages()) == said


@every_device
@pytest.mark.parametrize("is_sooner", [True, False])
def test_the_first_runs_tell_which_end_is_the_sooner(
    info: DeviceInfo, is_sooner: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def judged(times: list[float], others: list[float]) -> bool:
        seen.append((len(times), len(others)))
        return is_sooner

    monkeypatch.setattr(submission, "_is_sooner", judged)
    with opened(info) as device:
        device.context.ends_by_event = None
        adder = EventAdder(device, 100)
        run_many(adder, BEFORE + 2 * submission._TRIALS)
        assert seen == [(submission._TRIALS, submission._TRIALS)]
        assert device.context.ends_by_event is is_sooner
        value = adder.submission.timeline.value
        assert value == BEFORE + submission._TRIALS, "half of the runs ended by the semaphore"
        run_many(EventAdder(device, 100), BEFORE + 1)
        run_many(adder, 5)
        assert adder.submission.timeline.value == value + (0 if is_sooner else 5)
        assert len(seen) == 1, "what is known of a device is known of all its submissions"


def test_medians_are_compared() -> None:
    assert submission._is_sooner([1.0, 1.0, 9.0], [2.0, 2.0, 2.0])
    assert not submission._is_sooner([2.0, 2.0, 0.0], [1.0, 1.0, 9.0])


@every_device
def test_what_runs_used_is_settled_before_it_is_destroyed_or_recorded_anew(info: DeviceInfo) -> None:
    said = len(validation_messages())
    with opened(info) as device:
        adder, other = EventAdder(device, 100), EventAdder(device, 100)
        for each in (adder, other):
            run_many(each, BEFORE + 2)
        assert len(device.context.unsettled) == 2
        adder.record(adder.commands)
        assert not device.context.unsettled, "commands of the one run by event are recorded anew"
        for each in (adder, other):
            run_many(each, 3)
        other.o.free()
        assert not device.context.unsettled
        run_many(adder, 2)
        adder.submission.free()
        adder.commands.free()
        assert not device.context.unsettled
    assert live_objects() == {}
    assert len(validation_messages()) == said


@every_device
def test_waiting_covers_a_run_whose_end_nobody_saw(info: DeviceInfo) -> None:
    with opened(info) as device:
        adder = EventAdder(device, 1000)
        a, b = floats(1000, 1), floats(1000, 2)
        device.upload(adder.a, 0, a)
        device.upload(adder.b, 0, b)
        run_many(adder, BEFORE + 1)  # as if an interrupt had come right behind the last one
        assert adder.submission.wait(timeout_seconds=60)
        assert not device.context.unsettled
        np.testing.assert_array_equal(adder.read(adder.o), a + b)


@every_device
def test_a_run_that_takes_long_ends_by_the_semaphore(
    info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "_RUN_SPINS", 1)
    monkeypatch.setattr(submission, "DEFAULT_SPIN_SECONDS", 0.0)
    with opened(info) as device:
        adder = EventAdder(device, 1 << 20)
        a, b = floats(1 << 20, 1), floats(1 << 20, 2)
        device.upload(adder.a, 0, a)
        device.upload(adder.b, 0, b)
        for _ in range(20):
            run_many(adder, BEFORE + 1)
            if not device.context.unsettled:
                break
        assert not device.context.unsettled, "a million sums take longer than asking once"
        np.testing.assert_array_equal(adder.read(adder.o), a + b)


@every_device
def test_threads_settle_what_others_run(info: DeviceInfo) -> None:
    with opened(info) as device:
        adders = [EventAdder(device, 100) for _ in range(2)]
        is_done = threading.Event()

        def settle() -> None:
            while not is_done.is_set():
                device.context.settle()

        threads = [threading.Thread(target=settle) for _ in range(2)]
        threads += [threading.Thread(target=run_many, args=(adder, 300)) for adder in adders]
        for thread in threads:
            thread.start()
        for thread in threads[2:]:
            thread.join()
        is_done.set()
        for thread in threads[:2]:
            thread.join()
        device.context.settle()
        assert not device.context.unsettled


@every_device
def test_a_run_ends_after_its_commands_whoever_settles_meanwhile(
    info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is settled when a run has been noted, but not submitted, are the runs before it."""
    monkeypatch.setattr(submission, "_RUN_SPINS", 1)
    monkeypatch.setattr(submission, "DEFAULT_SPIN_SECONDS", 0.0)
    native, settled = native_calls(info), []

    def run_late(address: int) -> None:
        thread = threading.Thread(target=device.context.settle)
        thread.start()
        thread.join()
        settled.append(not device.context.unsettled)
        native.run_by_event(address)

    with Device(info, native=native._replace(run_by_event=run_late)) as device:
        device.context.ends_by_event = True
        adder = EventAdder(device, 1 << 20)
        b = floats(1 << 20, 20)
        device.upload(adder.b, 0, b)
        run_many(adder, BEFORE)
        for seed in range(10):
            a = floats(1 << 20, seed)
            device.upload(adder.a, 0, a)
            adder.submission.run()
            np.testing.assert_array_equal(adder.read(adder.o), a + b)
        assert settled == [True] * 10


@every_device
def test_what_is_being_settled_is_awaited(info: DeviceInfo) -> None:
    """Nothing is destroyed while another thread waits for the semaphore behind runs that may use it."""
    with opened(info) as device:
        adder = EventAdder(device, 100)
        run_many(adder, BEFORE + 1)
        [(key, end)] = device.context.unsettled.items()
        began, goes_on, events = threading.Event(), threading.Event(), []

        def end_late() -> None:
            began.set()
            assert goes_on.wait(60)
            end()
            events.append("settled")

        def free() -> None:
            adder.o.free()
            events.append("freed")

        device.context.unsettled[key] = end_late
        threads = [threading.Thread(target=device.context.settle), threading.Thread(target=free)]
        threads[0].start()
        assert began.wait(60)
        threads[1].start()
        threads[1].join(0.2)
        goes_on.set()
        for thread in threads:
            thread.join()
        assert events == ["settled", "freed"]


@every_device
def test_what_an_interrupt_leaves_is_settled_by_the_next(info: DeviceInfo) -> None:
    with opened(info) as device:
        adder = EventAdder(device, 100)
        run_many(adder, BEFORE + 1)
        unsettled = device.context.unsettled
        [(key, end)] = unsettled.items()

        def interrupted() -> None:
            raise KeyboardInterrupt

        unsettled[key] = interrupted
        with pytest.raises(KeyboardInterrupt):
            device.context.settle()
        assert unsettled == {key: interrupted}
        unsettled[key] = end
        device.context.settle()
        assert not unsettled


@every_device
def test_settling_does_not_wait_for_runs_that_begin_meanwhile(info: DeviceInfo) -> None:
    with opened(info) as device:
        unsettled, ends = device.context.unsettled, []

        def end() -> None:
            ends.append(end)
            assert len(ends) < 100, "for ever"
            unsettled[object()] = end

        unsettled["first"] = end
        device.context.settle()
        assert len(ends) == 1 and len(unsettled) == 1
        unsettled.clear()


@every_device
def test_a_run_is_not_begun_before_what_could_set_its_event_has_ended(info: DeviceInfo) -> None:
    seen: list[str] = []

    def noting(name: str) -> Callable[[int], None]:
        real = getattr(native, name)

        def note(address: int) -> None:
            seen.append(name)
            real(address)

        return note

    native = native_calls(info)
    native = native._replace(**{name: noting(name) for name in ("run", "run_by_event")})
    with Device(info, native=native) as device:
        device.context.ends_by_event = True
        adder = EventAdder(device, 100)
        run_many(adder, BEFORE)
        adder.submission.submit()  # whose end nobody waits for, as after an interrupt
        seen.clear()
        run_many(adder, 2)
        assert seen == ["run", "run_by_event", "run_by_event"]
        adder.submission.submit()
        assert adder.submission.wait()
        seen.clear()
        run_many(adder, 1)
        assert seen == ["run_by_event"]


@every_device
def test_a_closed_device_runs_nothing(info: DeviceInfo) -> None:
    device = opened(info)
    adder = EventAdder(device, 100)
    run_many(adder, BEFORE + 1)
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        adder.submission.run()
    adder.submission.free()
    assert live_objects() == {}
