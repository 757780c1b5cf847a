"""Arrays of the program that devices read where they lie."""

from __future__ import annotations

import mmap
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.host_memory import HostImport, HostPages, forks
from vkml.forks import renew_in_child
from vkml.vulkan.structures import ffi

if TYPE_CHECKING:
    from vkml.vulkan import Device

Array = np.ndarray[Any, Any]
LEAST_USES = 3
"""Uses of an array from which on devices read it: to import it takes as long as to copy all of it once or
twice, of which an array that is soon gone would use only a part."""
MOST_IMPORTS = 64
"""Arrays at a time: each is an allocation of the driver's, of which there may be 4096."""
MOST_BYTES = 2 << 30
"""Of all of them together: the system can neither move nor swap their pages meanwhile."""
_MOST_KNOWN = 256
"""Arrays whose uses are counted."""
_IDLE = 4096
"""Uses of others since an array was used last, from which on it makes room for another. A loop over more
arrays than there is room for would else import one in each step."""
_PATIENCE = 64
"""Uses of an array that there was no room for until it is looked for again."""


class _Owner:
    """An array that has memory of its own, and what is known of it.

    Args:
        owner: the array. NumPy resizes none in place to which there is a weak reference: its memory stays
            where it is until it ends, when `forget` is called before the memory is given back.
        forget: called with the reference.
    """

    __slots__ = ("address", "forks", "latest", "pages", "reference", "size", "uses")

    def __init__(self, owner: Array, forget: Any) -> None:
        self.reference = weakref.ref(owner, forget)
        self.address = address_of(owner)
        self.size = owner.nbytes
        self.uses = 0
        self.latest = 0
        """When it was used last, in uses of all arrays."""
        self.forks = 0
        self.pages: HostPages | None = None
        """The whole pages round it, once a device reads it."""


class HostImports:
    """Which arrays have been used how often, and as what devices know them."""

    def __init__(self) -> None:
        self._owners: dict[int, _Owner] = {}
        """By identity, what came first in front."""
        self._uses = 0
        self._renew()
        renew_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._owners.clear()

    def find(self, array: Array, device: Device) -> tuple[HostImport, int] | None:
        """Where a device reads an array: what is to be held meanwhile, and the address of its first byte.

        None where the host is to copy the array: its memory is not NumPy's own (of mapped files drivers take
        some and refuse others), it has not been used often enough, there is no room for it, the driver
        refuses, or another thread asks at the moment.

        Args:
            array: contiguous, of at least one byte.
            device: that imports memory of the host.
        """
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner.base is not None:
            return None
        # Nobody waits: what is called in the midst of this, by a signal or a finalizer, would for ever.
        lock = self._lock
        if not lock.acquire(blocking=False):
            return None
        try:
            known = self._owners.get(id(owner))
            if known is None or known.reference() is not owner:
                if not owner.flags.owndata:
                    return None
                known = self._noted(owner)
            self._uses += 1
            known.uses += 1
            known.latest = self._uses
            if known.uses < LEAST_USES:
                return None
            if (known.pages is None or known.forks != forks()) and not self._has_room(known):
                known.uses -= _PATIENCE
                return None
            assert known.pages is not None
            found = known.pages.on(device)
        finally:
            lock.release()
        if found is None:
            return None
        at = address_of(array) - known.address
        if not 0 <= at <= known.size - array.nbytes:
            return None  # strides lead elsewhere
        return found, found.memory.address + known.address % mmap.PAGESIZE + at

    def _noted(self, owner: Array) -> _Owner:
        owners, key = self._owners, id(owner)

        def forget(_: object) -> None:
            owners.pop(key, None)

        while len(owners) >= _MOST_KNOWN:
            unused = [at for at, known in list(owners.items()) if known.pages is None]
            if not unused:
                break  # arrays have ended meanwhile
            owners.pop(unused[0], None)
        made = owners[key] = _Owner(owner, forget)
        return made

    def _has_room(self, wanted: _Owner) -> bool:
        """Gives an array's pages to be imported, where there is room for them."""
        page = mmap.PAGESIZE
        start = wanted.address // page * page
        size = -(-(wanted.address + wanted.size) // page) * page - start
        others = [one for one in list(self._owners.values()) if one.pages is not None and one is not wanted]
        others.sort(key=lambda one: -one.latest)
        while len(others) >= MOST_IMPORTS or size + sum(one.size for one in others) > MOST_BYTES:
            if not others or self._uses - others[-1].latest < _IDLE:
                return False
            oldest = others.pop()
            oldest.pages, oldest.uses = None, 0
        wanted.forks = forks()
        found = np.frombuffer(ffi.buffer(ffi.cast("char *", start), size), np.uint8)
        wanted.pages = HostPages(found, "an array of the program")
        return True


def address_of(array: Array) -> int:
    """Where an array begins; `array.ctypes` takes four times as long."""
    try:
        return int(ffi.cast("uintptr_t", ffi.from_buffer(array)))
    except (ValueError, TypeError, BufferError):  # of a type that NumPy lacks
        return int(array.ctypes.data)


imports = HostImports()
"""Those of this process."""
