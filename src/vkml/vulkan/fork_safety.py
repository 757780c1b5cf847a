"""Which drivers a forked child may use anew: it lacks the threads that they have in its parent."""

from __future__ import annotations

import atexit
import contextlib
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

_FILES = {constants.VK_DRIVER_ID_NVIDIA_PROPRIETARY: "/dev/nvidia"}
"""Files of a driver's that its library speaks to the device through. At the normal exit of a child NVIDIA's
(580) gives back, through the parent's files, what the parent has: its open devices then compute nonsense, and
it cannot open another."""

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
    for driver, beginning in _FILES.items():
        if driver in _listed:
            # Not at once: the child may list devices, to which the driver answers by these files.
            atexit.register(leave_files, beginning)


def leave_files(beginning: str, listing: str = "/proc/self/fd") -> None:
    """Puts the null device in the place of this process's open files whose paths begin so.

    Their numbers stay taken: whoever holds them finds no other file there.
    """
    try:
        numbers = [int(name) for name in os.listdir(listing)]
    except OSError:
        return
    null = None
    for number in numbers:
        with contextlib.suppress(OSError):  # that of the listing is closed by now
            if os.readlink(f"{listing}/{number}").startswith(beginning):
                null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) if null is None else null
                os.dup2(null, number, inheritable=os.get_inheritable(number))
    if null is not None:
        os.close(null)


renew_in_child(_renew)


def has_left_devices() -> bool:
    """Whether this process was forked from one that had opened a device, whatever its other threads did with
    that at the time."""
    return bool(_inherited[_Use.OPENED])


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
