"""The machine's devices by name, and those opened so far."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vkml.dataclasses import dataclass
from vkml.engine import closing
from vkml.engine.providers import CPU_PROVIDER, VULKAN_PROVIDER
from vkml.errors import InvalidArgument, NoDevice
from vkml.forks import renew_in_child
from vkml.process_settings import ProcessSetting

if TYPE_CHECKING:
    from vkml.kernels.fragment_layout import FragmentLayouts
    from vkml.kernels.packed_weights import Fragment
    from vkml.lowering.target import Target
    from vkml.vulkan import Device, DeviceInfo


@dataclass(frozen=True)
class CpuInfo:
    """The CPU as a device."""

    name: str
    title: str
    type: str
    driver: str
    """The instruction set of its machine code, or NumPy where there is none."""
    memory_bytes: int
    cores: int
    is_software: bool = False


def cpu_info() -> CpuInfo:
    """What the CPU is called, how many cores this process may use, how much memory the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = 0
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    from vkml.cpu.native.executable import InstructionSet, instruction_set

    found = instruction_set()
    driver = {None: "NumPy", InstructionSet.AVX2: "AVX2", InstructionSet.AVX512: "AVX-512"}[found]
    return CpuInfo("cpu", _cpu_title(), "cpu", driver, memory, cores)


def _cpu_title() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def devices(allow_software: bool | None = None) -> tuple[Any, ...]:
    """All devices of this machine, the best first, the CPU last.

    Args:
        allow_software: whether software Vulkan drivers count; None: only under VKML_ALLOW_SOFTWARE=1.

    Example:
        >>> import vkml
        >>> vkml.devices()[-1].name
        'cpu'
    """
    return (*vulkan_devices(allow_software), cpu_info())


def vulkan_devices(allow_software: bool | None) -> tuple[DeviceInfo, ...]:
    """All Vulkan devices, the best first; see `devices`."""
    from vkml import vulkan

    try:
        return vulkan.devices(allow_software)
    except NoDevice:
        return ()


@dataclass(frozen=True)
class Choice:
    """The devices that a session may use."""

    gpus: tuple[DeviceInfo, ...]
    """In the order in which they are to be filled."""
    takes_cpu: bool
    """Whether the CPU was named behind them, and takes what they have no memory for."""
    providers: list[str]
    """What stands for the choice in onnxruntime's words."""

    @property
    def multiplies_bytes(self) -> bool:
        """Whether all of the devices multiply 8-bit integers as such."""
        from vkml.cpu.native.executable import instruction_set

        if not self.gpus:
            return instruction_set() is not None
        return all(target_of(info).multiplies_bytes for info in self.gpus)

    @property
    def multiplies_depthwise_bytes(self) -> bool:
        """Whether these convolutions, and those over three axes, have a kernel on all: on the CPU alone."""
        return not self.gpus and self.multiplies_bytes


def resolve(wanted: str | Sequence[str] | None, otherwise: str) -> Choice:
    """The devices that a session's arguments name.

    Args:
        wanted: names of devices, "auto" or "all"; None for `otherwise`.
        otherwise: what its providers stand for.

    Raises:
        InvalidArgument: an unknown name.
        NoDevice: a device that is not there.
    """
    names = _names(wanted) or [otherwise]
    both, cpu = [VULKAN_PROVIDER, CPU_PROVIDER], [CPU_PROVIDER]
    if names == ["all"]:
        found = vulkan_devices(None)
        return Choice(found, True, both if found else cpu)
    if names == ["auto"]:
        found = vulkan_devices(None)[:1]
        return Choice(found, False, both if found else cpu)
    gpus: list[DeviceInfo] = []
    for name in names:
        if name == "cpu":
            return Choice(tuple(gpus), bool(gpus), both if gpus else cpu)
        from vkml import vulkan

        # Naming a software device is asking for it.
        info = vulkan.find_device("vulkan:0" if name == "vulkan" else name, True)
        if any(info.uuid == other.uuid for other in gpus):
            raise InvalidArgument(f"device {name!r} is named twice in {names}")
        gpus.append(info)
    return Choice(tuple(gpus), False, both)


def _names(wanted: Any) -> list[str]:
    if wanted is None:
        return []
    names = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    known = ("auto", "all", "cpu")
    for name in names:
        if not isinstance(name, str) or not (name in known or name.startswith("vulkan")):
            raise InvalidArgument(
                f"device {name!r} is not known: use 'auto', 'all', 'cpu', or a name from vkml.devices(), "
                "like 'vulkan:0'"
            )
    if len(names) > 1 and {"auto", "all"} & set(names):
        raise InvalidArgument(f"'auto' and 'all' stand alone, not in a list: {names}")
    if "cpu" in names[:-1]:
        raise InvalidArgument(f"the CPU takes what is left, so it is named last: {names}")
    return names


_SWITCH_SECONDS = 0.0005
"""After which the interpreter's threads take turns while a device opens: what that takes of the interpreter
lies between some forty calls of the driver, behind each of which it would wait for 5 ms."""
_switching = ProcessSetting(sys.getswitchinterval, sys.setswitchinterval)

_open: dict[str, Device] = {}
_lock = threading.RLock()
"""Re-entrant for signal handlers, which may open a device while their thread is opening it."""
_opening: threading.Thread | None = None
"""Opens a device ahead, or has done so."""


def _renew() -> None:
    global _lock
    _lock = threading.RLock()
    _open.clear()


renew_in_child(_renew)


def open_device(info: DeviceInfo) -> Device:
    """The process's one open handle of a device; sessions share it."""
    device = opened(info)
    if device is not None:
        return device
    from vkml.cpu.native.calls import calls
    from vkml.vulkan import Device
    from vkml.vulkan.queues import NativeCalls

    closing.require_running()
    with _lock:
        device = opened(info)
        if device is None:
            found = calls()
            native = None if found is None else NativeCalls(*found)
            made = Device(info, native=native)
            device = opened(info)
            if device is None:
                device = _open[info.uuid] = made
            else:
                made.close()  # a signal handler has opened it meanwhile
        return device


def opened(info: DeviceInfo) -> Device | None:
    """A device that is open; None where it is not, or not yet."""
    device = _open.get(info.uuid)
    return None if device is None or device.is_closed else device


def open_ahead(wanted: str | Sequence[str] | None, otherwise: str) -> None:
    """Has a thread open the first of the devices that a session's arguments name, where it is not open yet.

    Drivers take long: 0.07 s to list devices and 0.17 s to open one on an H200's host, without the
    interpreter. Who asks for the device meanwhile waits for it; what goes wrong, that one is told.

    Args:
        wanted: as for `resolve`; of what is none, nothing is opened.
        otherwise: likewise.
    """
    global _opening
    try:
        names = _names(wanted) or [otherwise]
    except InvalidArgument:
        return
    if names[0] == "cpu" or any(not device.is_closed for device in _open.values()):
        return
    if _opening is not None and _opening.is_alive():
        return
    # Here, for the thread would share the interpreter with whoever goes on: it is to be with the driver soon.
    import vkml.vulkan.discovery

    def open_first() -> None:
        with _switching.changed(_SWITCH_SECONDS), contextlib.suppress(Exception):
            for info in resolve(names, otherwise).gpus[:1]:
                open_device(info)

    with contextlib.suppress(RuntimeError):  # no threads begin any more: the interpreter is ending
        _opening = threading.Thread(target=open_first, name="vkml-open")
        _opening.start()
    # These likewise, while the driver lists its devices.
    import vkml.cpu.native.calls
    import vkml.vulkan.device  # noqa: F401


def close_devices() -> None:
    """Closes every open device; sessions on them must be closed before."""
    with _lock:
        for device in list(_open.values()):
            device.close()
        _open.clear()


@functools.lru_cache(maxsize=32)
def target_of(info: DeviceInfo, precision: str = "highest") -> Target:
    """What lowering needs to know of a device, and of the precision wanted; sessions share it, and with it
    the lowerings that are kept for it."""
    from dataclasses import fields

    from vkml.lowering.target import Target

    names = (f.name for f in fields(info.capabilities))
    flags = frozenset(name for name in names if getattr(info.capabilities, name) is True)
    flags |= {f"subgroup_{operation}" for operation in info.capabilities.subgroup_operations}
    limits = info.limits
    fragments = fragments_of(info)
    fragment = fragments[0] if fragments else None
    alike = [each for each in fragments if each.k == fragments[0].k and each.n == 16]

    def holds_elements_once(fragment: Fragment) -> bool:
        from vkml.engine.fragment_check import holds_elements_once

        return holds_elements_once(info, functools.partial(open_device, info), fragment)

    def fragment_layouts(fragment: Fragment) -> FragmentLayouts | None:
        from vkml.engine.fragment_check import fragment_layouts

        return fragment_layouts(info, functools.partial(open_device, info), fragment)

    return Target(
        flags,
        push_bytes=min(256, limits.push_constant_bytes),
        shared_bytes=limits.shared_memory_bytes,
        max_invocations=1 << (limits.max_invocations.bit_length() - 1),  # kernels halve them, and double
        subgroup_size=limits.subgroup_size,
        max_groups=min(65535, *limits.max_workgroup_count),
        processors=1 if info.is_software else 132,
        strict_fp32=precision == "highest",
        fragment=fragment,
        wide_fragment=next((each for each in alike if each != fragment), None),
        bfloat16_fragment=next(iter(fragments_of(info, "bfloat16")), None),
        byte_fragment=next(iter(fragments_of(info, "int8", "int32")), None),
        fragment_layouts=fragment_layouts,
        holds_elements_once=holds_elements_once,
    )


def fragments_of(info: DeviceInfo, element: str = "float16", sums: str = "float32") -> list[Fragment]:
    """Of the matrix units' products with such sums; the best first: the most k, then the smallest."""
    from vkml.kernels.packed_weights import Fragment

    wanted = (element, element, sums, sums, "subgroup")
    found = [
        Fragment(each.m, each.n, each.k, info.limits.subgroup_size, element)
        for each in info.capabilities.cooperative_matrix
        if (each.a, each.b, each.c, each.result, each.scope) == wanted
    ]
    return sorted(found, key=lambda each: (-each.k, each.m * each.n))
