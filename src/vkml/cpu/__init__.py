"""The CPU device: its processor, memory and worker pool; its machine code is in `native`."""

from vkml.cpu.pool import WorkerPool, shared_pool

__all__ = ["WorkerPool", "shared_pool"]
