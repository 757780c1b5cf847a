"""Devices: dispatches, submissions, teardown."""

import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

from tests.patience import patience
from tests.vulkan.helpers import GROUP, Adder, every_device, floats, run_python
from tests.vulkan.kernels import ADD, ADD_PUSH_BYTES, add_push
from vkml import vulkan
from vkml.engine.devices import close_devices, open_device
from vkml.errors import CompileError, DeviceError, InvalidArgument
from vkml.vulkan import Device, MemoryKind, live_objects, validation_messages
from vkml.vulkan.info import Capabilities

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))


@every_device
def test_dispatch(info):
    with Device(info) as device:
        adder = Adder(device, 1000)
        for seed in range(3):  # the same recording, replayed
            a, b = floats(1000, seed), floats(1000, seed + 10)
            np.testing.assert_array_equal(adder.run(a, b), a + b)
        assert adder.submission.timeline.value == 3
    assert live_objects() == {}


@every_device
def test_a_chain_with_barriers_of_dispatches_copies_and_fills(info):
    count = 4096
    with Device(info) as device:
        adder = Adder(device, count)
        recorder = device.recorder("chain")
        assert recorder.fill(adder.o, 0, 4 * count, 0x3F800000) is None  # 1.0
        for _ in range(10):  # b = o; o = a + b
            recorder.barrier()
            recorder.copy(adder.o, 0, adder.b, 0, 4 * count)
            recorder.barrier()
            recorder.dispatch(
                adder.pipeline,
                add_push(adder.a.address, adder.b.address, adder.o.address, count),
                count // GROUP,
            )
        result = device.allocate(4 * count, MemoryKind.READBACK, "result")
        recorder.barrier()
        recorder.copy(adder.o, 0, result, 0, 4 * count)
        recorder.barrier_to_host()
        submission = device.submission(recorder.finish())
        device.upload(adder.a, 0, np.arange(count, dtype=np.float32))
        submission.submit()
        submission.wait()
        result.invalidate()
        np.testing.assert_array_equal(result.host.view(np.float32), 10 * np.arange(count) + 1)


@every_device
def test_commands_recorded_anew_are_what_their_submission_runs(info):
    with Device(info) as device:
        memory = device.allocate(64, MemoryKind.READBACK)

        def record(word, again=None):
            recorder = device.recorder("fill", again=again)
            recorder.fill(memory, 0, 64, word)
            recorder.barrier_to_host()
            return recorder.finish()

        commands = record(1)
        submission = device.submission(commands)
        made = live_objects()
        for word in (1, 2, 3):
            submission.run()
            assert memory.host[:64].view(np.uint32).tolist() == [word] * 16
            assert record(word + 1, commands) is commands
        assert live_objects() == made


@every_device
def test_pipelines_are_made_once_per_content(info):
    with Device(info) as device:

        def make(**changes):
            return device.pipeline(
                ADD, **{"constants": [32], "push_constant_bytes": ADD_PUSH_BYTES, **changes}
            )

        assert make() is make()
        assert make(constants=[64]) is not make()
        size = info.limits.subgroup_size
        assert make(subgroup_size=size) is not make()


@every_device
def test_pipelines_compile_in_several_threads(info):
    with Device(info) as device:
        made: dict[int, list] = {size: [] for size in (1, 2, 4, 8, 16, 32)}

        def work():
            for size, pipelines in made.items():
                pipelines.append(device.pipeline(ADD, constants=[size], push_constant_bytes=ADD_PUSH_BYTES))

        run_threads([work] * 4)
        assert all(len(set(pipelines)) == 1 and len(pipelines) == 4 for pipelines in made.values())
        assert live_objects()["Pipeline"] == len(made)


@every_device
def test_wrong_arguments_are_named(info):
    with Device(info) as device:
        with pytest.raises(InvalidArgument, match=r"'mine'.*no SPIR-V"):
            device.pipeline(b"abc", push_constant_bytes=8, label="mine")
        most = info.limits.push_constant_bytes
        with pytest.raises(InvalidArgument, match=f"the device has {most}"):
            device.pipeline(ADD, push_constant_bytes=most + 4)
        with pytest.raises(InvalidArgument, match="subgroups of 3"):
            device.pipeline(ADD, push_constant_bytes=32, subgroup_size=3)
        adder = Adder(device, 64)
        recorder = device.recorder()
        with pytest.raises(InvalidArgument, match="takes 32 bytes of push constants, got 8"):
            recorder.dispatch(adder.pipeline, bytes(8), 1)
        with pytest.raises(InvalidArgument, match="no range of 512 bytes at offset 0"):
            recorder.copy(adder.a, 0, adder.b, 0, 512)
        with pytest.raises(InvalidArgument, match="multiples of 4"):
            recorder.fill(adder.a, 2, 8)
        with pytest.raises(InvalidArgument, match="1 and signals 0 timelines got 0 and 0 values"):
            device.submission(adder.commands, waits=[device.timeline()]).submit()


@every_device
def test_a_failed_compilation_may_be_repeated(info, monkeypatch):
    with Device(info) as device:
        pipelines = device._pipelines
        real = pipelines._compile
        monkeypatch.setattr(pipelines, "_compile", lambda *_: (_ for _ in ()).throw(CompileError("once")))
        with pytest.raises(CompileError):
            device.pipeline(ADD, constants=[GROUP], push_constant_bytes=ADD_PUSH_BYTES)
        monkeypatch.setattr(pipelines, "_compile", real)
        assert device.pipeline(ADD, constants=[GROUP], push_constant_bytes=ADD_PUSH_BYTES)


@every_device
def test_submissions_from_several_threads(info):
    with Device(info) as device:
        wrong = []

        def work(number):
            adder = Adder(device, 500, f"adder {number}")
            for round_ in range(20):
                a, b = floats(500, 100 * number + round_), floats(500, 1000 + round_)
                if not np.array_equal(adder.run(a, b), a + b):
                    wrong.append(number)

        run_threads([lambda number=number: work(number) for number in range(4)])
        assert not wrong


@every_device
def test_timelines_order_submissions_and_the_host(info):
    with Device(info) as device:
        adder = Adder(device, 64)
        gate, done = device.timeline("gate"), device.timeline("done")
        second = device.submission(adder.record(), waits=[gate], signals=[done])
        a = np.ones(64, np.float32)
        for memory in (adder.a, adder.b, adder.o):
            device.upload(memory, 0, 0 * a)
        second.submit((5,), (7,))
        assert not second.wait(0.0, timeout_seconds=0.02)  # the gate is shut
        assert done.value == 0
        device.upload(adder.a, 0, a)
        gate.signal(5)
        assert done.wait(7, timeout_seconds=60)
        assert second.wait()
        np.testing.assert_array_equal(adder.read(adder.o), a)


@every_device
def test_timestamps(info):
    with Device(info) as device:
        adder = Adder(device, 1 << 16)
        pool = device.timestamps(3)
        recorder = device.recorder()
        recorder.reset_timestamps(pool)
        recorder.timestamp(pool, 0)
        push = add_push(adder.a.address, adder.b.address, adder.o.address, 1 << 16)
        recorder.dispatch(adder.pipeline, push, (1 << 16) // GROUP)
        recorder.timestamp(pool, 1)
        submission = device.submission(recorder.finish())
        submission.submit()
        submission.wait()
        start, end, unwritten = pool.read()
        first, second = pool.read_intervals()
        assert unwritten is None and second is None
        if info.capabilities.timestamps:
            assert end >= start and first >= 0
        with pytest.raises(InvalidArgument):
            device.recorder().timestamp(pool, 3)


@every_device
def test_without_timestamps(info):
    blind = replace(info, capabilities=replace(info.capabilities, timestamps=False))
    with Device(blind) as device:
        pool = device.timestamps(2)
        recorder = device.recorder()
        recorder.reset_timestamps(pool)
        recorder.timestamp(pool, 0)
        recorder.timestamp(pool, 1)
        submission = device.submission(recorder.finish())
        submission.submit()
        submission.wait()
        assert pool.read() == [None, None] and pool.read_intervals() == [None]


@every_device
def test_everything_off_still_computes(info):
    kept = {"buffer_device_address": True, "timeline_semaphore": True, "synchronization2": True}
    bare = replace(info, capabilities=Capabilities(**kept, maintenance4=info.capabilities.maintenance4))
    with Device(bare) as device:
        a = floats(100, 1)
        np.testing.assert_array_equal(Adder(device, 100).run(a, a), 2 * a)
        assert device.free_bytes() > 0


@every_device
def test_close_destroys_everything_and_can_be_repeated(info):
    device = Device(info)
    adder = Adder(device, 64)
    adder.submission.submit()  # close waits for it
    assert device.live_allocations == 3 and device.allocated_bytes >= 3 * 256
    device.close()
    device.close()
    assert live_objects() == {} and device.is_closed
    assert device.live_allocations == 0 and device.allocated_bytes == 0
    adder.a.free()
    adder.submission.free()
    adder.commands.free()
    for use in (
        lambda: device.allocate(4, MemoryKind.DEVICE),
        lambda: device.recorder(),
        lambda: device.pipeline(ADD, push_constant_bytes=32),
        lambda: adder.submission.submit(),
        lambda: adder.submission.wait(),
        lambda: device.timeline(),
        lambda: device.upload(adder.b, 0, b"abcd"),
        lambda: device.wait_idle(),
        lambda: device.save_pipeline_cache(),
    ):
        with pytest.raises(DeviceError, match="has been closed"):
            use()


@every_device
def test_a_forgotten_device_is_destroyed_by_the_collector(info):
    device = Device(info)
    adder = Adder(device, 64)
    gone = weakref.ref(device)
    del device, adder
    gc.collect()
    assert gone() is None
    assert live_objects() == {}


@every_device
def test_freeing_parts(info):
    with Device(info) as device:
        # Where the host does not read device memory, a device keeps the staging of its first download.
        adder = Adder(device, 64)
        device.download(adder.a, 0, 256)
        for part in (adder.submission, adder.commands, adder.a, adder.b, adder.o):
            part.free()
        before = live_objects()
        adder = Adder(device, 64)
        adder.run(floats(64, 1), floats(64, 2))
        pool = device.timestamps(2)
        for part in (adder.submission, adder.commands, adder.a, adder.b, adder.o, pool):
            part.free()
            part.free()
        device.recorder()
        assert live_objects() == before


@every_device
def test_exit_without_close(info, tmp_path):
    code = f"""
import numpy as np
from tests.vulkan.helpers import Adder
from vkml.vulkan import Device, find_device, validation_messages
device = Device(find_device({info.name!r}, True))
adder = Adder(device, 64)
adder.run(np.ones(64, np.float32), np.ones(64, np.float32))
adder.submission.submit()
other = Device(find_device({info.name!r}, True))
recorder = other.recorder()
import atexit; atexit.register(lambda: print("messages", len(validation_messages())))
"""
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "messages 0" in done.stdout
    assert done.stderr == ""


@every_device
def test_the_validation_layer_reports_a_missing_barrier(info, tmp_path):
    code = f"""
from vkml.vulkan import Device, MemoryKind, find_device, validation_messages
with Device(find_device({info.name!r}, True)) as device:
    memory = device.allocate(64, MemoryKind.DEVICE, "the buffer")
    recorder = device.recorder()
    recorder.fill(memory, 0, 64, 1)
    recorder.fill(memory, 0, 64, 2)
    recorder.finish()
print(validation_messages())
"""
    done = run_python(code, tmp_path, VKML_VALIDATE="1")
    assert done.returncode == 0, done.stderr
    if "there is no VK_LAYER_KHRONOS_validation" in done.stderr:
        assert done.stderr.count("\n") == 1
        pytest.skip("no validation layer on this machine")
    assert "WRITE_AFTER_WRITE" in done.stdout.upper().replace("-", "_"), done.stdout
    assert "the buffer" in done.stdout


def test_a_missing_validation_layer_is_one_warning(tmp_path):
    code = "from vkml.vulkan import devices; devices(); devices()"
    done = run_python(
        code, tmp_path, VKML_VALIDATE="1", VK_LAYER_PATH=str(tmp_path), XDG_DATA_DIRS=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    if done.stderr:  # there may be a layer in a place the environment does not govern, or no Vulkan at all
        assert done.stderr.count("there is no VK_LAYER_KHRONOS_validation") == 1


@every_device
def test_no_validation_messages_so_far(info):
    assert validation_messages() == ()


def run_threads(works):
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


@every_device
def test_a_signal_handler_may_open_what_its_thread_opens(info, monkeypatch):
    """Both have the same device, and nobody has another one."""
    found = []

    class Interrupted(Device):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            if not found:
                found.append(None)
                found[0] = open_device(info)

    monkeypatch.setattr(vulkan, "Device", Interrupted)
    thread = threading.Thread(target=lambda: found.append(open_device(info)), daemon=True)
    thread.start()
    thread.join(patience(30))
    assert len(found) == 2 and found[0] is found[1]
    assert live_objects()["Device"] == 1
    close_devices()
    assert live_objects() == {}
