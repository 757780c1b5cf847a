"""Finding the loader and the devices."""

from dataclasses import replace

import pytest

from tests.vulkan.helpers import every_device, run_python
from vkml.errors import NoDevice
from vkml.vulkan import DeviceInfo, DeviceType, devices, discovery, find_device
from vkml.vulkan.info import Capabilities, Limits
from vkml.vulkan.quirks import Quirk, apply_quirks

LIMITS = Limits((1, 1, 1), (1, 1, 1), 1, 1, 128, 32, 32, 32, 1.0, 64, 1, 1, 1, 1, 0, 1)


def make_info(**changes) -> DeviceInfo:
    info = DeviceInfo(
        name="",
        title="A GPU",
        vendor="A",
        type=DeviceType.DISCRETE,
        uuid="00",
        driver="driver",
        driver_id=1,
        driver_info="",
        driver_version=1,
        api_version=(1, 3, 0),
        is_software=False,
        device_memory_bytes=1,
        visible_device_memory_bytes=0,
        is_unified=False,
        limits=LIMITS,
        capabilities=Capabilities(),
    )
    return replace(info, **changes)


@every_device
def test_descriptions(info):
    assert info.uuid and info.title and info.driver
    assert info.api_version >= (1, 3, 0)
    assert info.capabilities.buffer_device_address and info.capabilities.timeline_semaphore
    assert info.limits.push_constant_bytes >= 128
    assert info.limits.max_invocations >= 128
    assert info.limits.min_subgroup_size <= info.limits.subgroup_size <= info.limits.max_subgroup_size
    assert info.device_memory_bytes > 0
    assert find_device(info.name) is info


@every_device
def test_names_count_from_zero_and_software_is_last(info):
    every = devices(True)
    assert [one.name for one in every] == [f"vulkan:{index}" for index in range(len(every))]
    assert sorted(one.is_software for one in every) == [one.is_software for one in every]
    assert not any(one.is_software for one in devices(False))


@every_device
def test_software_is_hidden_by_default(info, monkeypatch):
    monkeypatch.delenv("VKML_ALLOW_SOFTWARE", raising=False)
    assert not any(one.is_software for one in devices())
    if info.is_software:
        with pytest.raises(NoDevice, match="VKML_ALLOW_SOFTWARE=1"):
            find_device(info.name)


@every_device
def test_unknown_name_lists_what_there_is(info):
    with pytest.raises(NoDevice, match="vulkan:99") as caught:
        find_device("vulkan:99")
    assert info.title in str(caught.value)


def test_one_gpu_under_two_drivers():
    one = make_info(uuid="aa", pci=(0, 1, 0, 0), driver_id=1)
    assert discovery._is_same(one, make_info(uuid="aa", driver_id=2))
    assert discovery._is_same(one, make_info(uuid="bb", pci=(0, 1, 0, 0), driver_id=2))
    assert not discovery._is_same(
        one, make_info(uuid="bb", pci=(0, 1, 0, 0), driver_id=1)
    )  # two parts of one
    assert not discovery._is_same(one, make_info(uuid="bb", pci=(0, 2, 0, 0), driver_id=2))
    vendor = make_info(driver_id=next(iter(discovery._VENDOR_DRIVERS)))
    layered = make_info(driver_id=next(iter(discovery._LAYERED_DRIVERS)), api_version=(1, 4, 0))
    assert discovery._preference(vendor) > discovery._preference(layered)


def test_order():
    software = make_info(type=DeviceType.CPU, is_software=True)
    integrated = make_info(type=DeviceType.INTEGRATED, pci=(0, 0, 2, 0))
    first, second = make_info(pci=(0, 1, 0, 0), uuid="ff"), make_info(pci=(0, 2, 0, 0), uuid="00")
    assert sorted([software, integrated, second, first], key=discovery._order) == [
        first,
        second,
        integrated,
        software,
    ]


def test_quirks_turn_capabilities_off():
    info = make_info(driver_id=5, capabilities=Capabilities(float16=True, int8=True))
    table = (Quirk(5, "float16", "wrong sums"), Quirk(6, "int8", "other driver"))
    changed = apply_quirks(info, table)
    assert not changed.capabilities.float16 and changed.capabilities.int8
    assert changed.quirks == ("float16: wrong sums",)
    old = Quirk(5, "int8", "old", lambda one: one.driver_version < 1)
    assert apply_quirks(info, (old,)).capabilities.int8


def test_no_loader(tmp_path):
    code = """
import vkml.errors, vkml.vulkan as v
assert v.devices(True) == ()
(reason,) = v.rejected_devices()
print(reason.reason)
try:
    v.find_device("vulkan:0")
except vkml.errors.NoDevice as error:
    print(error)
"""
    done = run_python(code, tmp_path, VKML_VULKAN_LIBRARY="no-such-library.so")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("VKML_VULKAN_LIBRARY=no-such-library.so") == 2


def test_no_driver(tmp_path):
    code = "import vkml.vulkan as v; assert v.devices(True) == (); print(v.rejected_devices()[0].reason)"
    done = run_python(
        code, tmp_path, VK_DRIVER_FILES="no-such-driver.json", VK_ICD_FILENAMES="no-such-driver.json"
    )
    assert done.returncode == 0, done.stderr
    assert "Vulkan" in done.stdout


def test_importing_loads_no_vulkan(tmp_path):
    code = """
import sys, vkml, vkml.vulkan
bad = [name for name in sys.modules if name.startswith(("vkml.vulkan.", "cffi", "_cffi"))]
assert not bad, bad
"""
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
