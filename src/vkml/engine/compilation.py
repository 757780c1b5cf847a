"""Kernels to pipelines, many at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from vkml.cpu.processor import usable_cores
from vkml.engine.in_threads import in_threads
from vkml.errors import DeviceError
from vkml.kernels.compiling import compile_kernel, compiler_processes
from vkml.kernels.spec import KernelSpec

if TYPE_CHECKING:
    from vkml.engine.options import Progress
    from vkml.vulkan import Device, Pipeline

MOST_THREADS = 16
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

    def make(kernel: KernelSpec) -> Pipeline:
        return device.pipeline(
            module_of(kernel),
            constants=[value & 0xFFFFFFFF for value in kernel.constants],
            push_constant_bytes=kernel.push_bytes,
            subgroup_size=kernel.subgroup_size,
            label=kernel.label,
            name=kernel.name,
            taken=taken,
        )

    unique = {kernel.name: kernel for kernel in kernels}
    made: dict[Hashable, Pipeline] = {}
    for name in unique:
        found = device.named_pipeline(name, taken)
        if found is not None:
            made[name] = found
            if progress:
                progress("compile", len(made), len(unique))
    # The longest first: the last ones are to be done when the others are.
    missing = sorted(
        ((name, kernel) for name, kernel in unique.items() if name not in made),
        key=lambda entry: -len(entry[1].source),
    )
    if not missing:
        return {id(kernel): made[kernel.name] for kernel in kernels}
    cores = usable_cores()
    workers = min(MOST_THREADS, cores, len(missing))
    items = [kernel for _, kernel in missing]
    with (
        _compiled_ahead(items, workers, cores) as module_of,
        contextlib.closing(in_threads(make, items, workers, "vkml-compile")) as pipelines,
    ):
        for (name, _), pipeline in zip(missing, pipelines, strict=True):
            made[name] = pipeline
            if progress:
                progress("compile", len(made), len(unique))
    with contextlib.suppress(DeviceError):  # without it the next process compiles again
        device.keep_pipelines()
    return {id(kernel): made[kernel.name] for kernel in kernels}


@contextlib.contextmanager
def _compiled_ahead(
    kernels: Sequence[KernelSpec], workers: int, cores: int
) -> Iterator[Callable[[KernelSpec], bytes]]:
    """Kernels' modules, compiled in their order while threads are busy with the driver.

    Args:
        kernels: with those first that are wanted first.
        workers: threads that will ask for modules; of a single one each is compiled when it asks.
        cores: that there are.
    """
    if workers == 1:
        yield lambda kernel: compile_kernel(kernel.source, kernel.label)
        return
    firsts: dict[str, KernelSpec] = {}
    for kernel in kernels:
        firsts.setdefault(kernel.source, kernel)
    modules: dict[str, Future[bytes]] = {source: Future() for source in firsts}

    def compile_first(kernel: KernelSpec) -> None:
        try:
            modules[kernel.source].set_result(compile_kernel(kernel.source, kernel.label))
        except BaseException as error:
            modules[kernel.source].set_exception(error)

    with compiler_processes(firsts, cores) as processes:
        # One for each compiler, and one that reads what is in the cache meanwhile.
        threads = processes + 2
        with contextlib.closing(
            in_threads(compile_first, list(firsts.values()), threads, "vkml-spirv")
        ) as done:
            next(done)  # they begin, and go on
            yield lambda kernel: modules[kernel.source].result()
