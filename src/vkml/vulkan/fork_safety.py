"""Which drivers a forked child may use anew: it lacks the threads that they have in its parent."""

from __future__ import annotations

import os
from collections import Counter
from enum import Enum

from vkml.errors import DeviceError
from vkml.forks import renew_in_child
from vkml.vulkan.info import DeviceInfo
from vkml.vulkan.structures import constants

SPAWN = "start processes by multiprocessing's method 'spawn'"


class _Use(Enum):
    """What a process may have done with a driver so that its forked children cannot use it anew."""

    LISTED = "had listed its devices"
    OPENED = "had opened one of its devices"
    OPEN = "had one of its devices open"


_BARS = {
    # The threads of a device end with the process. A child computes, and at its normal exit the driver waits
    # for those of the parent: a segmentation fault in pthread_join.
    constants.VK_DRIVER_ID_MESA_LLVMPIPE: _Use.OPENED,
    # All devices of a process share one scheduler, whose threads the child lacks: it waits for them for ever.
    constants.VK_DRIVER_ID_GOOGLE_SWIFTSHADER: _Use.OPEN,
}
"""As tried. Of other drivers the worst is assumed: NVIDIA's (580) hangs in vkCreateDevice where the parent
has a device open, and others share a file for each listed device, in which a child's buffers would get
addresses that the parent uses."""

_listed: set[int] = set()
_opened: set[int] = set()
_open: Counter[int] = Counter()
_inherited: dict[_Use, set[int]] = {use: set() for use in _Use}


def note_listed(driver: int) -> None:
    """Remembers that this process has listed a device of a driver."""
    _listed.add(driver)


def note_opened(driver: int) -> None:
    """Remembers that this process has opened a device of a driver."""
    _opened.add(driver)
    _open[driver] += 1


def note_closed(driver: int) -> None:
    """Remembers that this process has closed a device of a driver."""
    _open[driver] -= 1


def _renew() -> None:
    _inherited[_Use.LISTED].update(_listed)
    _inherited[_Use.OPENED].update(_opened)
    _inherited[_Use.OPEN].update(driver for driver, count in _open.items() if count)
    _open.clear()


renew_in_child(_renew)


def require_usable(info: DeviceInfo) -> None:
    """Checks that this process may open a device.

    Raises:
        DeviceError: it was forked from one that used the driver, which would hang here, or harm the parent.
    """
    if info.process != os.getpid():
        raise DeviceError(
            f"{info} was listed before this process was forked; list the devices anew to open one"
        )
    bar = _BARS.get(info.driver_id, _Use.LISTED)
    if info.driver_id in _inherited[bar]:
        raise DeviceError(
            f"{info}: this process was forked from one that {bar.value}, after which the driver "
            f"({info.driver}) does not work in the child; use Vulkan devices after the fork only, or {SPAWN}"
        )
