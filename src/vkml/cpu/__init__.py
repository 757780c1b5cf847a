"""The CPU device: array kernels on NumPy and BLAS, blocked for the cache, spread over a worker pool."""

from vkml.cpu.pool import WorkerPool, shared_pool

__all__ = ["WorkerPool", "shared_pool"]
