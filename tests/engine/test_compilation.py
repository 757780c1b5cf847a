"""Kernels of a plan on their way to the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kernels.test_compiling import SOURCE
from vkml.engine import compilation
from vkml.engine.compilation import compile_kernels
from vkml.errors import CompileError, DeviceError
from vkml.kernels import compiling, slang
from vkml.kernels.spec import KernelSpec, KernelText
from vkml.vulkan import Device, Pipeline


class Driver:
    """Makes pipelines; notes when."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.known: dict[Hashable, Pipeline] = {}
        self.kept = 0

    def named_pipeline(self, name: Hashable, taken: list[Pipeline]) -> Pipeline | None:
        return self.known.get(name)

    def pipeline(self, spirv: bytes, *, label: str, name: Hashable, taken: Any, **more: Any) -> Pipeline:
        self.made.append(label)
        made = self.known[name] = cast(Pipeline, object())
        return made

    def keep_pipelines(self) -> None:
        self.kept += 1
        raise DeviceError("there is no room")  # which is nobody's loss


def kernel(size: int, constant: int = 0) -> KernelSpec:
    """The larger, the longer."""
    text = KernelText((), (), (), (SOURCE.format(size), "// " + "x" * size), False)
    return KernelSpec(f"{size}+{constant}", text, (constant,), 0)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """How many compiled at a time, from an empty cache on; 16 cores, and no processes."""
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilation, "usable_cores", lambda: 16)
    monkeypatch.setattr(compiling, "MOST_PROCESSES", 0)
    real, lock, counts, at_work = slang.compile_kernel, threading.Lock(), list[int](), 0

    def compile_(source: str) -> bytes:
        nonlocal at_work
        with lock:
            at_work += 1
            counts.append(at_work)
        time.sleep(0.01)
        try:
            return real(source)
        finally:
            with lock:
                at_work -= 1

    monkeypatch.setattr(slang, "compile_kernel", compile_)
    return counts


def test_a_driver_has_kernels_while_others_are_compiled(
    busy: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver()
    wanted = [kernel(size, constant) for size in range(1, 13) for constant in (0, 1)]
    ahead: list[int] = []
    real = slang.compile_kernel
    monkeypatch.setattr(
        slang, "compile_kernel", lambda source: (ahead.append(len(driver.made)), real(source))[1]
    )
    told: list[tuple[int, int]] = []
    found = compile_kernels(
        cast(Device, driver), wanted, [], lambda stage, done, total: told.append((done, total))
    )
    assert len(busy) == 12 and max(busy) == 1
    assert ahead[-1] > 0  # of kernels were with the driver before the last was compiled
    assert sorted(driver.made) == sorted(each.label for each in wanted)
    sizes = [int(label.partition("+")[0]) for label in driver.made]
    assert sum(sizes[:12]) > sum(sizes[12:])  # the longest first, on the whole
    assert found == {id(each): driver.known[each.name] for each in wanted}
    assert told == [(done, 24) for done in range(1, 25)]
    assert driver.kept == 1
    # All are known now, by whatever object asks.
    again = [kernel(size, constant) for size in range(1, 13) for constant in (0, 1)]
    assert set(compile_kernels(cast(Device, driver), again, []).values()) == set(found.values())
    assert len(driver.made) == 24
    assert driver.kept == 2  # they may have been compiled ahead; a cache that has nothing new is not saved


def test_the_largest_module_that_is_ready_is_next(busy: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the sources are: here the longest have the smallest modules."""
    compiled: list[str] = []
    wanted = [kernel(length, constant) for length in range(12, 0, -1) for constant in (0, 1)]
    sizes = {each.source: number for number, each in enumerate(wanted, 1)}

    def compile_(source: str, label: str) -> bytes:
        compiled.append(source)
        return b"x" * sizes[source]

    monkeypatch.setattr(compilation, "compile_kernel", compile_)
    with compilation._modules(wanted, 2, 16) as next_module:
        end = time.monotonic() + 60
        while any(thread.name.startswith("vkml-spirv") for thread in threading.enumerate()):
            assert time.monotonic() < end
            time.sleep(0.001)
        found = [next_module(each) for each in wanted]
    assert sorted(compiled) == sorted(sizes)
    assert [each.label for each, _ in found] == [
        f"{length}+{constant}" for length in range(1, 13) for constant in (0, 1)
    ]
    assert all(len(module) == sizes[each.source] for each, module in found)


def test_a_source_that_does_not_compile_ends_it(busy: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    wanted = [kernel(length, constant) for length in range(1, 13) for constant in (0, 1)]

    def compile_(source: str, label: str) -> bytes:
        if label == "7+0":
            raise CompileError("no kernel of that length")
        return source.encode()

    monkeypatch.setattr(compilation, "compile_kernel", compile_)
    with pytest.raises(CompileError, match="of that length"):
        compile_kernels(cast(Device, driver), wanted, [])
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith(("vkml-compile", "vkml-spirv"))
    ]
    assert not {"7+0", "7+1"} & set(driver.made)
