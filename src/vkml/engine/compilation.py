"""Kernels to pipelines, many at the same time."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from vkml.cpu.heap import freed_memory_returned
from vkml.cpu.processor import usable_cores
from vkml.engine.in_threads import in_threads
from vkml.errors import DeviceError
from vkml.kernels.compiling import compile_kernel, compiler_processes
from vkml.kernels.spec import KernelSpec

if TYPE_CHECKING:
    from vkml.engine.options import Progress
    from vkml.vulkan import Device, Pipeline

MOST_THREADS = 12
"""That compile at a time. The driver's part, nearly all of it on a GPU, runs beside others' and in memory of
its own: some tens of MiB a thread with NVIDIA's."""


def compile_kernels(
    device: Device, kernels: Sequence[KernelSpec], taken: list[Pipeline], progress: Progress | None = None
) -> dict[int, Pipeline]:
    """Pipelines of kernels by identity, compiled in parallel.

    Args:
        device: to compile for.
        kernels: all of a program.
        taken: receives the pipelines that the caller has to release, also when compiling fails.
        progress: told after each.
    """
    unique = {kernel.name: kernel for kernel in kernels}
    made: dict[Hashable, Pipeline] = {}
    for name in unique:
        found = device.named_pipeline(name, taken)
        if found is not None:
            made[name] = found
            if progress:
                progress("compile", len(made), len(unique))
    # The longest first: the last ones are to be done when the others are.
    missing = [kernel for name, kernel in unique.items() if name not in made]
    missing.sort(key=lambda kernel: -len(kernel.source))
    if not missing:
        _keep(device)  # all were compiled while they were lowered
        return {id(kernel): made[kernel.name] for kernel in kernels}
    cores = usable_cores()
    workers = min(MOST_THREADS, cores, len(missing))
    with freed_memory_returned(), _modules(missing, workers, cores) as next_module:

        def make(kernel: KernelSpec) -> tuple[Hashable, Pipeline]:
            kernel, module = next_module(kernel)
            return kernel.name, make_pipeline(device, kernel, module, taken)

        with contextlib.closing(in_threads(make, missing, workers, "vkml-compile")) as pipelines:
            for name, pipeline in pipelines:
                made[name] = pipeline
                if progress:
                    progress("compile", len(made), len(unique))
    _keep(device)
    return {id(kernel): made[kernel.name] for kernel in kernels}


def _keep(device: Device) -> None:
    with contextlib.suppress(DeviceError):  # without it the next process compiles again
        device.keep_pipelines()


def make_pipeline(device: Device, kernel: KernelSpec, module: bytes, taken: list[Pipeline]) -> Pipeline:
    """A kernel's pipeline, by its name from now on.

    Args:
        device: to compile for.
        kernel: that is compiled.
        module: of its source.
        taken: receives the pipeline.
    """
    return device.pipeline(
        module,
        constants=[value & 0xFFFFFFFF for value in kernel.constants],
        push_constant_bytes=kernel.push_bytes,
        subgroup_size=kernel.subgroup_size,
        label=kernel.label,
        name=kernel.name,
        taken=taken,
    )


@contextlib.contextmanager
def _modules(
    kernels: Sequence[KernelSpec], workers: int, cores: int
) -> Iterator[Callable[[KernelSpec], tuple[KernelSpec, bytes]]]:
    """Says which kernel to take to the driver next, with its module; to be called once for each.

    Modules are compiled while threads are busy with the driver. Of those that are ready the largest comes
    first: what the driver takes goes by what is unrolled there, which a source does not show. The longest of
    resnet50's kernels (1.6 of 10.5 s, an H200) was 18th by the length of its source.

    Args:
        kernels: with those first that are to be compiled first.
        workers: threads that will ask; a single one gets the kernel that it asks with, compiled then.
        cores: that there are.
    """
    if workers == 1:
        yield lambda kernel: (kernel, compile_kernel(kernel.source, kernel.label))
        return
    users: dict[str, list[tuple[int, KernelSpec]]] = {}
    for number, kernel in enumerate(kernels):
        users.setdefault(kernel.source, []).append((number, kernel))
    ready: queue.PriorityQueue[tuple[int, int, KernelSpec, bytes | BaseException]] = queue.PriorityQueue()

    def compile_source(source: str | None) -> None:
        if source is None:
            return
        module: bytes | BaseException
        try:
            module = compile_kernel(source, users[source][0][1].label)
            size = len(module)
        except BaseException as error:
            module, size = error, 0
        for number, kernel in users[source]:
            ready.put((-size, number, kernel, module))

    def next_module(_kernel: KernelSpec) -> tuple[KernelSpec, bytes]:
        _, _, largest, module = ready.get()
        if isinstance(module, BaseException):
            raise module
        return largest, module

    with (
        compiler_processes(users, cores) as processes,
        # One for each compiler, and one that reads what is in the cache meanwhile.
        contextlib.closing(
            in_threads(compile_source, [None, *users], processes + 2, "vkml-spirv")
        ) as compiled,
    ):
        next(compiled)  # nothing: they begin, and go on
        yield next_module
