"""What happens when the driver says no: a lost device, refused calls, a spoilt cache file."""

import numpy as np
import pytest

from tests.vulkan.helpers import GROUP, Adder, every_device, floats
from tests.vulkan.kernels import ADD, ADD_PUSH_BYTES
from vkml.errors import CompileError, DeviceError, DeviceLost
from vkml.vulkan import Device, cache, live_objects
from vkml.vulkan.instance import get_instance
from vkml.vulkan.structures import constants

LOST = constants.VK_ERROR_DEVICE_LOST


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    return tmp_path


def cache_files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@every_device
def test_lost_on_submission(info, monkeypatch):
    with Device(info) as device:
        adder = Adder(device, 64)
        functions = device.context.functions
        monkeypatch.setitem(vars(functions), "vkQueueSubmit2", lambda *_: LOST)
        monkeypatch.setattr(functions, "fault_report", lambda: "page fault at 0x10")
        broken = device.submission(adder.commands)
        with pytest.raises(
            DeviceLost, match=r"vkQueueSubmit2 returned VK_ERROR_DEVICE_LOST on vulkan"
        ) as caught:
            broken.submit()
        assert "page fault at 0x10" in str(caught.value) and info.title in str(caught.value)
        monkeypatch.undo()
        assert broken.timeline.value == 0
    assert live_objects() == {}


@every_device
def test_a_lost_device_says_what_the_driver_knows(info, monkeypatch):
    """VK_EXT_device_fault is asked first for counts, then for as many addresses and vendors."""

    def report(handle, counts, fault):
        counts.addressInfoCount = counts.vendorInfoCount = 1
        if fault:
            fault.description = b"page fault"
            fault.pAddressInfos[0].reportedAddress = 0xABC000
            fault.pVendorInfos[0].description = b"shader engine 3"
        return constants.VK_SUCCESS

    with Device(info) as device:
        adder = Adder(device, 64)
        context = device.context
        functions = context.functions
        monkeypatch.setitem(vars(functions), "vkQueueSubmit2", lambda *_: LOST)
        monkeypatch.setitem(vars(functions), "vkGetDeviceFaultInfoEXT", report)
        monkeypatch.setattr(functions, "fault_report", context._fault_report)
        broken = device.submission(adder.commands)
        with pytest.raises(DeviceLost, match="page fault; address 0xabc000; shader engine 3"):
            broken.submit()
        monkeypatch.undo()


@every_device
def test_an_interrupt_while_the_device_is_made(info, monkeypatch):
    """The device is destroyed: NVIDIA's driver crashes when its instance is destroyed first, at exit."""
    functions = get_instance().functions
    create, look_up = functions.vkCreateDevice, functions.vkGetDeviceProcAddr
    made, names = [], []

    def interrupted(*arguments):
        create(*arguments)
        made.append(arguments[-1][0])
        raise KeyboardInterrupt

    def noted(device, name):
        names.append((device, name))
        return look_up(device, name)

    monkeypatch.setitem(vars(functions), "vkCreateDevice", interrupted)
    monkeypatch.setitem(vars(functions), "vkGetDeviceProcAddr", noted)
    with pytest.raises(KeyboardInterrupt):
        Device(info)
    assert names == [(made[0], b"vkDestroyDevice")]
    assert live_objects() == {}


@every_device
@pytest.mark.parametrize("function", ["vkGetSemaphoreCounterValue", "vkWaitSemaphores"])
def test_lost_while_waiting(info, monkeypatch, function):
    with Device(info) as device:
        functions = device.context.functions
        monkeypatch.setitem(vars(functions), function, lambda *_: LOST)
        timeline = device.timeline()
        with pytest.raises(DeviceLost, match=function):
            timeline.wait(1, 0.0, 1.0)


@every_device
def test_refused_pipeline(info, monkeypatch):
    with Device(info) as device:
        monkeypatch.setitem(vars(device.context.functions), "vkCreateComputePipelines", lambda *_: -13)
        with pytest.raises(CompileError, match=r"kernel 'sum'.*VK_ERROR_UNKNOWN") as caught:
            device.pipeline(ADD, constants=[GROUP], push_constant_bytes=ADD_PUSH_BYTES, label="sum")
        assert isinstance(caught.value.__cause__, DeviceError)
        assert "ShaderModule" not in live_objects()


@every_device
def test_missing_function(info):
    with Device(info) as device, pytest.raises(DeviceError, match=r"no function vkNoSuchThing on vulkan"):
        device.context.functions.call("vkNoSuchThing")


@every_device
def test_pipeline_cache_is_kept_and_loaded(info, own_cache):
    a = floats(64, 1)
    with Device(info) as device:
        Adder(device, 64).run(a, a)
        assert device.save_pipeline_cache()
        assert not device.save_pipeline_cache()
    (path,) = cache_files(own_cache)
    assert info.uuid in path.name
    with Device(info) as device:
        assert device._pipelines.driver_cache.stored
        np.testing.assert_array_equal(Adder(device, 64).run(a, a), 2 * a)


@every_device
@pytest.mark.parametrize("damage", ["cut", "foreign", "other driver", "empty"])
def test_spoilt_cache_files(info, own_cache, damage):
    a = floats(64, 1)
    with Device(info) as device:
        Adder(device, 64)
        device.save_pipeline_cache()
        name = device._pipelines.driver_cache.name
    (path,) = cache_files(own_cache)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "foreign":
        path.write_bytes(b"#!/bin/sh\n" * 100)
    elif damage == "other driver":  # our container is right, the driver's data in it is not
        cache.write(name, bytes(range(256)) * 10)
    else:
        cache.write(name, b"")
    with Device(info) as device:
        np.testing.assert_array_equal(Adder(device, 64).run(a, a), 2 * a)
        device.save_pipeline_cache()
    assert live_objects() == {}


@every_device
def test_another_process_has_written_the_cache_meanwhile(info, own_cache):
    with Device(info) as first, Device(info) as second:
        for device, group in ((first, 32), (second, 64)):
            device.pipeline(ADD, constants=[group], push_constant_bytes=ADD_PUSH_BYTES)
        assert first.save_pipeline_cache()
        second.save_pipeline_cache()  # merges
        assert live_objects()["PipelineCache"] == 2
    with Device(info) as device:
        assert device._pipelines.driver_cache.stored


@every_device
def test_a_cache_folder_that_cannot_be_written(info, own_cache, monkeypatch):
    (own_cache / "file").write_bytes(b"")
    monkeypatch.setenv("VKML_CACHE_DIR", str(own_cache / "file"))
    with Device(info) as device:
        a = floats(64, 1)
        np.testing.assert_array_equal(Adder(device, 64).run(a, a), 2 * a)
        assert not device.save_pipeline_cache()


@every_device
def test_new_pipelines_are_kept_where_that_costs_little(info, own_cache, monkeypatch):
    """The first ones at once, later ones when to save them takes a share of what they took at most."""
    with Device(info) as device:
        known = device._pipelines.driver_cache
        Adder(device, 64)
        assert known._compiling_seconds > 0
        device.keep_pipelines()
        [path] = cache_files(own_cache)
        assert known._compiling_seconds == 0 and path.exists()
        path.unlink()
        saved: list[bool] = []
        monkeypatch.setattr(known, "save", lambda: saved.append(True))
        known._saving_seconds = 1.0
        known.note(4.0)
        device.keep_pipelines()
        assert saved == []
        known.note(0.1)
        device.keep_pipelines()
        assert saved == [True]
