"""An opened VkDevice: its functions, its queues, and the objects that must be destroyed before it."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from vkml.errors import DeviceError, DeviceLost
from vkml.forks import renew_in_child
from vkml.vulkan import fork_safety
from vkml.vulkan.counters import created, destroyed
from vkml.vulkan.features import enable_features
from vkml.vulkan.info import DeviceInfo
from vkml.vulkan.instance import get_instance
from vkml.vulkan.loader import Functions, process_lock
from vkml.vulkan.queues import NativeCalls, Queue, choose_families
from vkml.vulkan.structures import NULL, chain, ffi, handle_number, structure, text

MOST_QUEUES = 2
"""Queues that compute, which take turns: barriers in one do not hold up what another runs."""
_SECONDS_AT_EXIT = 20.0
"""How long the end of the process waits for a device that was given up."""


class Key:
    """What an object of a device is destroyed by, at the latest when nobody has its key any more.

    So an interrupt may come at any place between making an object and putting it where it is freed.
    """

    context: Context | None = None
    number = -1

    def __del__(self) -> None:
        if self.context is not None:
            self.context.release(self)


class Context:
    """The part of a device that its objects share and that outlives none of them.

    Objects register how they are destroyed (`own`); `release` destroys one, `close` all that are left, newest
    first, then the device. What is registered must not refer to the Python objects: the context has to be
    usable from a finalizer after those are gone.
    """

    def __init__(self, info: DeviceInfo, native: NativeCalls | None = None) -> None:
        self.info = info
        self.title = str(info)
        fork_safety.require_usable(info)
        instance = get_instance()
        families = choose_families(instance.functions, info.handle)
        if families is None:
            raise DeviceError(f"{self.title} has no queue family that computes")
        indices = [families.compute] + ([families.transfer] if families.transfer is not None else [])
        features, extensions = enable_features(info.capabilities, info.extensions)
        counts = [min(families.compute_queues, MOST_QUEUES)] + [1] * (len(indices) - 1)
        priorities = ffi.new("float[]", [1.0] * MOST_QUEUES)
        queue_infos = [
            structure(
                "VkDeviceQueueCreateInfo",
                queueFamilyIndex=index,
                queueCount=count,
                pQueuePriorities=priorities,
            )
            for index, count in zip(indices, counts, strict=True)
        ]
        create = structure(
            "VkDeviceCreateInfo",
            queueCreateInfoCount=len(queue_infos),
            pQueueCreateInfos=queue_infos,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=extensions or NULL,
        )
        handle = ffi.new("VkDevice *")
        self.instance_functions = instance.functions
        get = instance.functions.vkGetDeviceProcAddr
        self.functions = Functions(lambda name: get(handle[0], name), self.title)
        fork_safety.note_opened(info.driver_id)
        try:
            with process_lock:
                result = instance.functions.vkCreateDevice(info.handle, chain(create, features), NULL, handle)
            created("Device", handle)
        except BaseException:
            # An interrupt during the call, which takes half a second on an H200; NVIDIA's driver crashes at
            # the exit of a process whose instance goes before its device.
            destroyed(handle)
            if handle[0]:
                self.functions.vkDestroyDevice(handle[0], NULL)
            fork_safety.note_closed(info.driver_id)
            raise
        if result:
            destroyed(handle)
            fork_safety.note_closed(info.driver_id)
            Functions(lambda name: NULL, self.title).fail("vkCreateDevice", result)
        self.handle: Any = handle[0]
        self._token = handle
        if info.capabilities.device_fault:
            self.functions.fault_report = self._fault_report
        self.families = indices
        self.compute_queues = [self._queue(families.compute, number, True) for number in range(counts[0])]
        self.compute_queue = self.compute_queues[0]
        self._turns = itertools.count()
        self.transfer_queue = (
            self.compute_queue if families.transfer is None else self._queue(families.transfer, 0, False)
        )
        """The compute queue, where there is no family that only copies."""
        self.has_names = instance.has_names
        # Re-entrant: a finalizer may release objects while this thread holds the lock.
        self._lock = threading.RLock()
        self._keys = itertools.count()
        self._owned: dict[int, Callable[[], None]] = {}
        self.is_closed = False
        self._why_given_up = ""
        self.native = native
        self.unsettled: dict[object, Callable[[], object]] = {}
        """By the submission's key: waits for a semaphore behind runs whose ends only events have told."""
        self.ends_by_event: bool | None = None
        """Whether an event tells the host sooner of a run's end than a semaphore; None: not known yet."""
        self.settling = threading.RLock()
        """Held by who does so; what is collected meanwhile may settle others."""
        self._settlers = 0
        self._process = os.getpid()
        renew_in_child(self._leave_to_parent)

    @property
    def _is_inherited(self) -> bool:
        """Whether this is a forked child's copy of what its parent has: the driver is not called."""
        return self._process != os.getpid()

    def _leave_to_parent(self) -> None:
        self.is_closed = True
        self._owned.clear()
        self.unsettled.clear()
        self.settling, self._settlers = threading.RLock(), 0

    def require_open(self) -> None:
        """Raises when the device has been closed, or is the parent's in a forked child."""
        if self._is_inherited:
            raise DeviceError(
                f"{self.title} was opened before this process was forked and is the parent's; make new "
                f"sessions here, or {fork_safety.SPAWN}"
            )
        if self._why_given_up:
            raise DeviceLost(self._why_given_up)
        if self.is_closed:
            raise DeviceError(f"{self.title} has been closed; open it again to use it")

    def own(
        self,
        kind: str,
        out: Any,
        destroy: Callable[[Any, Any, Any], None],
        forget: Callable[[], object] | None = None,
    ) -> Key:
        """Registers how an object is destroyed, before it is there: an interrupt must not lose it.

        Args:
            kind: its name without "Vk".
            out: memory for its handle, zero as long as there is none.
            destroy: the driver's function.
            forget: called behind it; may be called again after an interrupt.

        Returns:
            the key to release it by.
        """
        device = self.handle

        def destroy_it() -> None:
            # Another thread, or this one after an interrupt, finds it destroyed or does what is left: between
            # these two lines the interpreter does not look for either.
            handle, out[0] = out[0], 0
            if handle:
                destroy(device, handle, NULL)
            if forget is not None:
                forget()
            destroyed(out)

        key = Key()
        with self._lock:
            self.require_open()
            number = next(self._keys)
            self._owned[number] = destroy_it
            key.context, key.number = self, number
        created(kind, out)
        return key

    def release(self, key: Key) -> None:
        """Destroys an object, once: a second call and a call after `close` do nothing."""
        # Without the lock: keys may be garbage, which is collected in the midst of anything.
        destroy = self._owned.get(key.number)
        if destroy is None or self._is_inherited or self._why_given_up:
            return
        self.settle()
        destroy()
        self._owned.pop(key.number, None)
        key.context = None

    def settle(self) -> None:
        """Has the driver end all runs that only an event has told the end of.

        Their commands have run, but what they use may only be destroyed, or recorded anew, once a semaphore
        or the device's being idle says so.
        """
        # In this order: whoever takes a run from there is counted before, and until it has ended.
        if not self.unsettled and not self._settlers:
            return
        with self.settling:
            self._settlers += 1
            try:
                # What is there now: others may begin short runs faster than these are settled.
                for key in list(self.unsettled):
                    # Taken first: a run that another thread begins meanwhile is not settled by this.
                    end = self.unsettled.pop(key, None)
                    if end is not None:
                        self._settle(key, end)
            finally:
                self._settlers -= 1

    def _settle(self, key: object, end: Callable[[], object]) -> None:
        try:
            end()
        except DeviceError:
            pass
        except BaseException:  # an interrupt leaves it to whoever settles next
            self.unsettled.setdefault(key, end)
            raise

    def create(self, kind: str, function: str, info: Any) -> tuple[int, Key]:
        """Makes an object by `vkCreate…(device, info, NULL, &handle)`, named `kind` without "Vk".

        Returns:
            its handle, and the key to release it by.
        """
        self.require_open()
        out = ffi.new(f"Vk{kind} *")
        key = self.own(kind, out, getattr(self.functions, f"vkDestroy{kind}"))
        try:
            self.functions.call(function, self.handle, info, NULL, out)
        except BaseException:
            self.release(key)  # who keeps the exception keeps its frames, and what these hold
            raise
        return out[0], key

    def name(self, kind: str, handle: Any, label: str) -> None:
        """Gives an object a name that the validation layer's messages show.

        Args:
            kind: the constant's name after VK_OBJECT_TYPE_.
            handle: of the object.
            label: nothing happens when it is empty.
        """
        if not self.has_names or not label:
            return
        number = handle_number(handle)
        self.functions.call(
            "vkSetDebugUtilsObjectNameEXT",
            self.handle,
            structure(
                "VkDebugUtilsObjectNameInfoEXT",
                objectType=ffi.integer_const(f"VK_OBJECT_TYPE_{kind}"),
                objectHandle=number,
                pObjectName=label,
            ),
        )

    def wait_idle(self) -> None:
        """Waits until the device has finished everything submitted to it."""
        if self.native is not None:
            words = [queue.word_address for queue in (*self.compute_queues, self.transfer_queue)]
            words = list(dict.fromkeys(words))
            handles = (self.functions.vkDeviceWaitIdle, self.handle)
            function, argument = (handle_number(each) for each in handles)
            block = ffi.new("uint64_t[]", [function, argument, 0, len(words), *words])
            self.native.call_locked(handle_number(block))
            if block[2]:
                self.functions.fail("vkDeviceWaitIdle", int(ffi.cast("int32_t", block[2])))
            return
        with contextlib.ExitStack() as stack:
            locks = {id(queue.lock): queue.lock for queue in (*self.compute_queues, self.transfer_queue)}
            for lock in locks.values():
                stack.enter_context(lock)
            self.functions.call("vkDeviceWaitIdle", self.handle)

    def give_up(self, why: str, is_idle: Callable[[], bool]) -> None:
        """Leaves the device as it is: it does not answer, and neither would calls that destroy it.

        Args:
            why: what those read who use it.
            is_idle: whether it has answered after all. The process waits a while for that at its end: drivers
                in software whose threads are at work then end it by a segmentation fault.
        """
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            self._why_given_up = f"{self.title} was given up: {why}; open it again to use it"
        atexit.register(self._end, is_idle)

    def _end(self, is_idle: Callable[[], bool]) -> None:
        """At the end of the process: destroys a device that was given up and has answered meanwhile."""
        if self._is_inherited:
            return
        end = time.monotonic() + _SECONDS_AT_EXIT
        while not is_idle() and time.monotonic() < end:
            time.sleep(0.01)
        if is_idle():
            self._destroy()
        else:
            get_instance().leave()

    def close(self) -> None:
        """Destroys what is left and the device; idempotent."""
        if self._is_inherited:
            return
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        self._destroy()

    def _destroy(self) -> None:
        with self._lock:
            left = list(self._owned.values())
            self._owned.clear()
        # A lost device cannot become idle; everything is destroyed all the same.
        with contextlib.suppress(DeviceError):
            self.wait_idle()
        for destroy in reversed(left):
            destroy()
        with process_lock:
            self.functions.vkDestroyDevice(self.handle, NULL)
            fork_safety.note_closed(self.info.driver_id)
        destroyed(self._token)

    def next_queue(self) -> Queue:
        """One of the queues that compute, in turns."""
        return self.compute_queues[next(self._turns) % len(self.compute_queues)]

    def _queue(self, family: int, number: int, is_compute: bool) -> Queue:
        out = ffi.new("VkQueue *")
        self.functions.vkGetDeviceQueue(self.handle, family, number, out)
        return Queue(out[0], family, threading.RLock(), is_compute)

    def _fault_report(self) -> str:
        """What VK_EXT_device_fault knows about why the device was lost."""
        counts = structure("VkDeviceFaultCountsEXT")
        if self.functions.vkGetDeviceFaultInfoEXT(self.handle, counts, NULL) < 0:
            return ""
        addresses = ffi.new("VkDeviceFaultAddressInfoKHR[]", max(counts.addressInfoCount, 1))
        vendors = ffi.new("VkDeviceFaultVendorInfoKHR[]", max(counts.vendorInfoCount, 1))
        counts.vendorBinarySize = 0
        fault = structure("VkDeviceFaultInfoEXT", pAddressInfos=addresses, pVendorInfos=vendors)
        if self.functions.vkGetDeviceFaultInfoEXT(self.handle, counts, fault) < 0:
            return ""
        parts = [text(fault.description)]
        parts += [
            f"address {addresses[index].reportedAddress:#x}" for index in range(counts.addressInfoCount)
        ]
        parts += [text(vendors[index].description) for index in range(counts.vendorInfoCount)]
        return "; ".join(part for part in parts if part)
