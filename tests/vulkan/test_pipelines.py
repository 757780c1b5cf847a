"""Pipelines: how long they live, and the driver's cache that they are compiled with."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.patience import patience
from tests.robustness.interrupts import interrupted_everywhere
from tests.vulkan.helpers import Adder, every_device, floats
from tests.vulkan.kernels import ADD, ADD_PUSH_BYTES
from vkml.errors import CompileError
from vkml.vulkan import Device, driver_cache, live_objects, pipelines


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))


def make(device, size):
    return device.pipeline(ADD, constants=[size], push_constant_bytes=ADD_PUSH_BYTES)


def live():
    return live_objects().get("Pipeline", 0)


@every_device
def test_a_pipeline_lives_while_it_is_used_and_a_number_of_unused_ones_stay(info, monkeypatch):
    monkeypatch.setattr(pipelines, "UNUSED_PIPELINES", 2)
    with Device(info) as device:
        used = make(device, 1)
        assert make(device, 1) is used
        device.release(used)
        others = [make(device, size) for size in (2, 3, 4, 5)]
        assert live() == 5
        for other in others:
            device.release(other)
        assert live() == 3  # the used one, and the last two
        assert make(device, 4) is others[2] and make(device, 1) is used
        assert make(device, 2) is not others[0]
        assert live() == 4
    assert live_objects() == {}


@every_device
def test_the_longest_unused_goes_first(info, monkeypatch):
    monkeypatch.setattr(pipelines, "UNUSED_PIPELINES", 2)
    with Device(info) as device:
        first, second, third = (make(device, size) for size in (1, 2, 3))
        device.release(first)
        device.release(second)
        device.release(make(device, 1))  # used again
        device.release(third)
        assert make(device, 1) is first and make(device, 2) is not second


@every_device
def test_a_named_pipeline_is_found_as_long_as_it_is_there(info, monkeypatch):
    monkeypatch.setattr(pipelines, "UNUSED_PIPELINES", 1)
    with Device(info) as device:
        assert device.named_pipeline("add", []) is None

        def named(size, name):
            given = {"constants": [size], "push_constant_bytes": ADD_PUSH_BYTES}
            return device.pipeline(ADD, **given, name=name)

        first = named(1, "add")
        assert named(1, "sum") is first
        found = device.named_pipeline("add", [])
        assert found is first is device.named_pipeline("sum", [])
        for _ in range(3):
            device.release(first)
        device.release(make(device, 2))
        device.release(make(device, 3))
        assert device.named_pipeline("add", []) is first  # asked for four times, released three times
        for _ in range(2):
            device.release(first)
        device.release(make(device, 4))
        assert device.named_pipeline("add", []) is device.named_pipeline("sum", []) is None
        assert named(5, "add") is not first
    assert live_objects() == {}


@every_device
def test_unused_pipelines_still_work_when_they_are_asked_for_again(info):
    with Device(info) as device:
        a = floats(64, 1)
        for _ in range(3):
            adder = Adder(device, 64)
            np.testing.assert_array_equal(adder.run(a, a), 2 * a)
            for part in (adder.submission, adder.commands, adder.a, adder.b, adder.o):
                part.free()
            device.release(adder.pipeline)
        assert live() == 1


@every_device
def test_failed_compilations_leave_nothing(info, monkeypatch):
    monkeypatch.setattr(pipelines, "UNUSED_PIPELINES", 0)
    with Device(info) as device:
        real = device._pipelines._compile

        def refuse(*_):
            raise CompileError("no")

        monkeypatch.setattr(device._pipelines, "_compile", refuse)
        for _ in range(3):
            with pytest.raises(CompileError):
                make(device, 1)
        monkeypatch.setattr(device._pipelines, "_compile", real)
        device.release(make(device, 1))
        assert live() == 0 and not device._pipelines._made


@every_device
def test_releasing_does_not_wait(info, monkeypatch):
    """The garbage collector may close a session in a thread that holds the lock."""
    monkeypatch.setattr(pipelines, "UNUSED_PIPELINES", 0)
    with Device(info) as device:
        pipeline = make(device, 1)
        with device._pipelines._lock:
            device.release(pipeline)
        device.release(make(device, 2))
        assert live() == 0


@every_device
def test_a_signal_handler_may_ask_for_what_its_thread_compiles(info, monkeypatch):
    """Both have the same one."""
    found = []
    with Device(info) as device:
        compile_ = device._pipelines._compile

        def interrupted(*given):
            compiled = compile_(*given)
            if not found:
                found.append(None)
                found[0] = make(device, 1)
            return compiled

        monkeypatch.setattr(device._pipelines, "_compile", interrupted)
        thread = threading.Thread(target=lambda: found.append(make(device, 1)), daemon=True)
        thread.start()
        thread.join(patience(30))
        assert len(found) == 2 and found[0] is found[1]
        assert live() == 1
        device.release(found[0])
        device.release(found[1])
    assert live_objects() == {}


@every_device
def test_threads_that_ask_and_release(info, monkeypatch):
    monkeypatch.setattr(pipelines, "UNUSED_PIPELINES", 3)
    monkeypatch.setattr(driver_cache, "PIPELINES_PER_CACHE", 4)
    with Device(info) as device:
        together = threading.Barrier(4)

        def work(number):
            together.wait(patience(60))
            for index in range(24):
                pipeline = make(device, 1 + (index * (number + 1)) % 6)
                assert pipeline.handle
                device.release(pipeline)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        device.release(make(device, 1))
        assert live() == 3
        assert live_objects()["PipelineCache"] == 1


@every_device
def test_the_drivers_cache_is_replaced_before_it_grows_large(info, monkeypatch):
    monkeypatch.setattr(pipelines, "UNUSED_PIPELINES", 0)
    monkeypatch.setattr(driver_cache, "PIPELINES_PER_CACHE", 3)
    with Device(info) as device:
        handles = set()
        for size in range(1, 11):
            with device._pipelines.driver_cache.lend() as handle:
                handles.add(handle)
            device.release(make(device, size))
            assert live_objects()["PipelineCache"] == 1
        assert len(handles) > 1
        assert device.save_pipeline_cache()
        assert not device.save_pipeline_cache()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it met a finalizer
@every_device
def test_an_interrupt_at_every_place(info, monkeypatch):
    """Nobody waits for a pipeline that is not made, and what was asked for is given back."""
    monkeypatch.setattr(pipelines, "UNUSED_PIPELINES", 0)
    with Device(info) as device:
        found = device._pipelines

        def ask_and_release():
            taken = []
            try:
                given = {"constants": [1], "push_constant_bytes": ADD_PUSH_BYTES, "taken": taken}
                device.pipeline(ADD, **given, name="add")
                assert device.named_pipeline("add", taken) is taken[0]
                device.release_all(taken)
                assert not taken
            except KeyboardInterrupt:
                device.release_all(taken)
                raise

        def check():
            device.release_all([])  # what was on its way
            assert not found._made and not found._named and not found._unused and not found._released
            assert live() == live_objects().get("ShaderModule", 0) == 0
            with ThreadPoolExecutor(1) as pool:
                pool.submit(ask_and_release).result(patience(60))

        ask_and_release()
        files = ["vulkan/pipelines.py", "vulkan/context.py"]
        assert interrupted_everywhere(ask_and_release, check, files) > 50
