"""Memory: transfers with and without staging, the budget."""

import mmap
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.patience import patience
from tests.vulkan.helpers import Adder, device_parameters, every_device, floats
from vkml.errors import DeviceError, InvalidArgument, OutOfMemory
from vkml.vulkan import Device, MemoryKind, live_objects, transfer
from vkml.vulkan.structures import ffi

pytestmark = pytest.mark.usefixtures("own_cache")

ARRAYS = [
    np.arange(1000, dtype=np.float32),
    np.arange(24, dtype=np.int64).reshape(2, 3, 4).transpose(2, 0, 1),
    np.arange(100, dtype=np.uint8)[::3],
    np.float16(1.5),
    np.zeros(0, np.float32),
    np.array([True, False, True]),
]


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))


@every_device
@pytest.mark.parametrize("force_staging", [False, True])
@pytest.mark.parametrize("kind", list(MemoryKind))
def test_round_trips(info, kind, force_staging):
    with Device(info, force_staging=force_staging) as device:
        memory = device.allocate(10000, kind, "memory")
        is_mappable = info.visible_device_memory_bytes >= info.device_memory_bytes  # unified, or a whole BAR
        assert (memory.host is None) == (kind is MemoryKind.DEVICE and (force_staging or not is_mappable))
        assert memory.address % 4 == 0 and memory.address
        for array in ARRAYS:
            array = np.asarray(array)
            device.upload(memory, 36, array)
            read = device.download(memory, 36, array.nbytes)
            np.testing.assert_array_equal(read.view(array.dtype).reshape(array.shape), array)
            assert read.flags.owndata or read.base is None or read.size == 0
        device.upload(memory, 0, b"bytes too")
        assert device.download(memory, 0, 9).tobytes() == b"bytes too"


@every_device
@pytest.mark.parametrize("size", [1, 4096, 4097, 3 * 4096, 5 * 4096 + 7])
def test_staging_in_chunks(info, monkeypatch, size):
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 4096)
    with Device(info, force_staging=True) as device:
        memory = device.allocate(size + 64, MemoryKind.DEVICE, "memory")
        data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
        device.upload(memory, 0, np.zeros(memory.size, np.uint8))
        device.upload(memory, 21, data)
        np.testing.assert_array_equal(device.download(memory, 21, size), data)
        everything = device.download(memory)
        assert not everything[:21].any() and not everything[21 + size :].any()
        assert device.live_allocations <= 5
    assert live_objects() == {}


@every_device
@pytest.mark.parametrize("force_staging", [False, True])
@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 3 * 4096, 5 * 4096 + 7])
def test_chunks_passed_on(info, monkeypatch, size, force_staging):
    """To memory of the host, and to another device, staged or not on either side."""
    monkeypatch.setattr(transfer, "PASSED_BYTES", 4096)
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    for other_info in (case.values[0] for case in device_parameters()):
        with Device(info, force_staging=force_staging) as device, Device(other_info) as other:
            source = device.allocate(size + 64, MemoryKind.DEVICE, "source")
            target = other.allocate(size + 64, MemoryKind.DEVICE, "target")
            device.upload(source, 21, data)
            other.upload(target, 0, np.zeros(target.size, np.uint8))
            device.pass_on(source, 21, other, target, 13, size)
            np.testing.assert_array_equal(other.download(target, 13, size), data)
            everything = other.download(target)
            assert not everything[:13].any() and not everything[13 + size :].any()
            found = np.zeros(size, np.uint8)
            device.download_into(source, 21, found)
            np.testing.assert_array_equal(found, data)
            for at, there in ((-1, 0), (0, target.size + 1), (source.size, 0)):
                with pytest.raises(InvalidArgument, match="no range"):
                    device.pass_on(source, at, other, target, there, 64)
    assert live_objects() == {}


@every_device
def test_a_signal_handler_may_copy_in_the_midst_of_a_copy(info, monkeypatch):
    """Through memory of its own."""
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 4096)
    data = np.random.default_rng(0).integers(0, 256, (2, 3 * 4096), dtype=np.uint8)
    with Device(info, force_staging=True) as device:
        memories = [device.allocate(3 * 4096, MemoryKind.DEVICE, name) for name in ("outer", "inner")]
        start, found = transfer._Copy.start, []

        def interrupted(copy):
            start(copy)
            with monkeypatch.context() as patch:
                patch.setattr(transfer._Copy, "start", start)
                device.upload(memories[1], 0, data[1])
                found.append(device.download(memories[1]))

        monkeypatch.setattr(transfer._Copy, "start", interrupted)

        def copy():
            device.upload(memories[0], 0, data[0])
            found.append(device.download(memories[0]))

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        thread.join(patience(30))
        *inner, outer = found
        np.testing.assert_array_equal(outer, data[0])
        assert len(inner) == 6
        for each in inner:
            np.testing.assert_array_equal(each, data[1])
        assert device.live_allocations <= 2 + 4, "staging is not given back"


@every_device
def test_two_chunks_travel_at_a_time(info, monkeypatch):
    """Before a chunk is written the next one has been asked for; what it lies in is not written meanwhile."""
    monkeypatch.setattr(transfer, "PASSED_BYTES", 4096)
    events = []
    start = transfer._Copy.start
    monkeypatch.setattr(transfer._Copy, "start", lambda copy: (events.append("start"), start(copy))[1])
    with Device(info, force_staging=True) as device:
        source = device.allocate(5 * 4096, MemoryKind.DEVICE, "source")
        data = np.random.default_rng(0).integers(0, 256, source.size, dtype=np.uint8)
        device.upload(source, 0, data)
        events.clear()
        for number, part in enumerate(device._transfers._read(source, 0, 5 * 4096, 4096)):
            events.append(number)
            np.testing.assert_array_equal(part, data[4096 * number :][:4096])
    assert events == ["start", "start", 0, "start", 1, "start", 2, "start", 3, 4]


@every_device
def test_devices_pass_on_to_each_other_at_the_same_time(info, monkeypatch):
    monkeypatch.setattr(transfer, "PASSED_BYTES", 4096)
    with Device(info, force_staging=True) as one, Device(info, force_staging=True) as other:
        ends = [(device, device.allocate(40960, MemoryKind.DEVICE, "memory")) for device in (one, other)]
        datas = [np.full(20480, number, np.uint8) for number in (1, 2)]
        for (device, memory), data in zip(ends, datas, strict=True):
            device.upload(memory, 0, data)

        def act(number):
            (device, memory), (target, there) = ends[number], ends[1 - number]
            for _ in range(30):
                device.pass_on(memory, 0, target, there, 20480, 20480)

        threads = [threading.Thread(target=act, args=(number,), daemon=True) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience(60))
            assert not thread.is_alive(), "they wait for each other"
        for (device, memory), data in zip(ends, datas[::-1], strict=True):
            np.testing.assert_array_equal(device.download(memory, 20480, 20480), data)


@every_device
def test_staging_through_a_queue_that_only_copies(info, monkeypatch):
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 4096)
    with Device(info, force_staging=True) as device:
        # The software drivers have one queue; what is special about a second one is recorded and submitted
        # all the same: its barriers, and the semaphore that hands the data over to the compute queue.
        device.context.transfer_queue = replace(device.context.compute_queue, is_compute=False)
        a, b = floats(5000, 1), floats(5000, 2)
        np.testing.assert_array_equal(Adder(device, 5000).run(a, b), a + b)
        timeline = device.submission(device.recorder("copies", transfer=True).finish())
        assert timeline.submit() == 1 and timeline.wait()
    assert live_objects() == {}


@every_device
def test_memory_that_is_not_coherent(info, monkeypatch):
    with Device(info) as device:
        adder = Adder(device, 64)
        calls = []
        for name in ("vkFlushMappedMemoryRanges", "vkInvalidateMappedMemoryRanges"):
            real = getattr(device.context.functions, name)
            monkeypatch.setitem(
                vars(device.context.functions), name, lambda *a, n=name, f=real: (calls.append(n), f(*a))[1]
            )
        for memory in (adder.a, adder.b, adder.o):
            memory.is_coherent = False
        a = floats(64, 1)
        np.testing.assert_array_equal(adder.run(a, a), 2 * a)
        assert calls.count("vkFlushMappedMemoryRanges") == 2
        assert calls.count("vkInvalidateMappedMemoryRanges") == 1 or not adder.o.is_cached


@every_device
def test_kernels_see_staged_data(info):
    with Device(info, force_staging=True) as device:
        a, b = floats(100, 1), floats(100, 2)
        np.testing.assert_array_equal(Adder(device, 100).run(a, b), a + b)


@every_device
def test_kernels_write_host_memory_directly(info):
    with Device(info) as device:
        adder = Adder(device, 64)
        adder.o.free()
        adder.o = device.allocate(256, MemoryKind.READBACK, "o")
        recorder = device.recorder()
        push = b"".join(memory.address.to_bytes(8, "little") for memory in (adder.a, adder.b, adder.o))
        recorder.dispatch(adder.pipeline, push + (64).to_bytes(8, "little"), 2)
        recorder.barrier_to_host()
        adder.submission = device.submission(recorder.finish())
        a = floats(64, 3)
        np.testing.assert_array_equal(adder.run(a, a), 2 * a)
        np.testing.assert_array_equal(adder.o.host.view(np.float32), 2 * a)


@every_device
def test_ranges_are_checked(info):
    with Device(info) as device:
        memory = device.allocate(100, MemoryKind.DEVICE, "small")
        for offset, size in ((-1, 4), (0, memory.size + 1), (memory.size, 1)):
            with pytest.raises(InvalidArgument, match=r"'small'.*no range"):
                device.upload(memory, offset, bytes(size))
            with pytest.raises(InvalidArgument, match=r"'small'.*no range"):
                device.download(memory, offset, size)
        with pytest.raises(InvalidArgument, match="a size of 0 bytes"):
            device.allocate(0, MemoryKind.DEVICE)


@every_device
def test_too_large_for_one_buffer(info):
    with Device(info) as device, pytest.raises(OutOfMemory) as caught:
        device.allocate(1 << 50, MemoryKind.DEVICE, "weights")
    message = str(caught.value)
    assert info.name in message and "weights needs 1048576.0 GiB" in message
    assert live_objects() == {}


@every_device
def test_the_budget_is_checked_first(info):
    share = (1 << 20) / info.device_memory_bytes  # one mebibyte, counting what vkml itself has allocated
    unaware = replace(info, capabilities=replace(info.capabilities, memory_budget=False))
    with Device(unaware, memory_limit=share) as device:
        first = device.allocate(100 << 10, MemoryKind.DEVICE, "first")
        with pytest.raises(OutOfMemory) as caught:
            device.allocate(4 << 20, MemoryKind.DEVICE, "activations")
        message = str(caught.value)
        assert info.name in message and info.title in message
        assert "activations needs 4.0 MiB" in message
        assert "are free" in message and "vkml itself holds 100.0 KiB" in message
        assert device.live_allocations == 1 and first.size == 100 << 10
        assert live_objects()["Buffer"] == 1


@every_device
def test_other_programs_count_where_the_driver_knows_them(info, monkeypatch):
    aware = replace(info, capabilities=replace(info.capabilities, memory_budget=True))
    with Device(aware) as device:

        def answer(_, properties):
            budget = ffi.cast("VkPhysicalDeviceMemoryBudgetPropertiesEXT *", properties.pNext)
            for heap in range(16):
                budget.heapBudget[heap], budget.heapUsage[heap] = 100 << 20, 90 << 20

        functions = device.context.instance_functions
        monkeypatch.setitem(vars(functions), "vkGetPhysicalDeviceMemoryProperties2", answer)
        assert device.free_bytes() == 5 << 20  # 95 % of 100 MiB less 90 MiB
        with pytest.raises(OutOfMemory, match=r"needs 6\.0 MiB, 5\.0 MiB of"):
            device.allocate(6 << 20, MemoryKind.DEVICE, "x")


@every_device
def test_the_driver_s_refusal_is_out_of_memory(info, monkeypatch):
    with Device(info) as device:
        monkeypatch.setitem(vars(device.context.functions), "vkAllocateMemory", lambda *_: -2)
        with pytest.raises(OutOfMemory, match="the driver refused it"):
            device.allocate(100, MemoryKind.DEVICE, "x")
        assert device.live_allocations == 0


@every_device
@pytest.mark.parametrize("limit", [0, 1.5, -1])
def test_wrong_limits(info, limit):
    with pytest.raises(InvalidArgument, match="memory_limit"):
        Device(info, memory_limit=limit)
    assert live_objects() == {}


@every_device
def test_counters(info):
    with Device(info) as device:
        free = device.free_bytes()
        memories = [device.allocate(1 << 20, kind, kind.value) for kind in MemoryKind]
        assert device.live_allocations == 3 and device.allocated_bytes == 3 << 20
        if not info.capabilities.memory_budget:
            assert free - device.free_bytes() >= 1 << 20
        for memory in memories:
            memory.free()
            memory.free()
        assert device.live_allocations == 0 and device.allocated_bytes == 0


@every_device
def test_memory_of_the_process_as_a_buffer(info):
    alignment = info.limits.host_pointer_alignment or mmap.PAGESIZE
    memory = mmap.mmap(-1, 4 * alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    data = np.frombuffer(memory, np.uint8)
    with Device(info) as device:
        if not device.imports_host:
            with pytest.raises(DeviceError, match="imports no memory"):
                device.import_host(data)
            return
        source = device.allocate(4 * alignment, MemoryKind.DEVICE, "source")
        values = np.random.default_rng(0).integers(0, 256, 4 * alignment, dtype=np.uint8)
        device.upload(source, 0, values)
        imported = device.import_host(data, "results")
        device.copy(source, 64, imported, 128, 1000)
        np.testing.assert_array_equal(data[128:1128], values[64:1064])
        assert not data[:128].any() and not data[1128:].any()
        data[5] = 77
        device.copy(imported, 0, source, 0, 64)
        assert device.download(source, 5, 1) == 77
        there = device.live_allocations
        imported.free()
        assert device.live_allocations == there - 1
        for wrong in (data[1:], data[: alignment + 1], data[:0]):
            with pytest.raises(InvalidArgument, match="not aligned"):
                device.import_host(wrong, "part")
