"""GPU timestamps in nanoseconds."""

from __future__ import annotations

import itertools

from vkml.errors import InvalidArgument
from vkml.vulkan.context import Context, Key
from vkml.vulkan.structures import constants, ffi, structure


class TimestampPool:
    """Room for a number of timestamps, written by `CommandRecorder.timestamp`.

    Where the queue writes no timestamps the pool exists all the same, writes nothing and reads None.
    """

    def __init__(self, context: Context, count: int) -> None:
        if count <= 0:
            raise InvalidArgument(f"a pool of {count} timestamps was asked for")
        self._context = context
        self.count = count
        self.handle = 0
        self._key: Key | None = None
        if context.info.capabilities.timestamps:
            info = structure(
                "VkQueryPoolCreateInfo", queryType=constants.VK_QUERY_TYPE_TIMESTAMP, queryCount=count
            )
            self.handle, self._key = context.create("QueryPool", "vkCreateQueryPool", info)

    def read(self) -> list[float | None]:
        """The timestamps in nanoseconds since an arbitrary moment; None where none has been written."""
        if not self.handle:
            return [None] * self.count
        context = self._context
        context.require_open()
        pairs = ffi.new("uint64_t[]", 2 * self.count)
        flags = constants.VK_QUERY_RESULT_64_BIT | constants.VK_QUERY_RESULT_WITH_AVAILABILITY_BIT
        context.functions.call(
            "vkGetQueryPoolResults",
            context.handle,
            self.handle,
            0,
            self.count,
            16 * self.count,
            pairs,
            16,
            flags,
        )
        limits = context.info.limits
        mask = (1 << limits.timestamp_bits) - 1
        return [
            (pairs[2 * index] & mask) * limits.timestamp_period_ns if pairs[2 * index + 1] else None
            for index in range(self.count)
        ]

    def read_intervals(self) -> list[float | None]:
        """Nanoseconds between each timestamp and the next; the counter may wrap in between."""
        limits = self._context.info.limits
        wrap = (1 << limits.timestamp_bits) * limits.timestamp_period_ns
        times = self.read()
        return [
            None if one is None or following is None else (following - one) % wrap
            for one, following in itertools.pairwise(times)
        ]

    def free(self) -> None:
        """Destroys it; idempotent. No command buffer that writes it must be running."""
        self.handle = 0
        if self._key is not None:
            self._context.release(self._key)
