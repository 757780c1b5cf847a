"""Kernels that are compiled while others are lowered and while their device opens."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kernels.test_compiling import SOURCE
from vkml.engine import ahead as ahead_module
from vkml.engine import compilation
from vkml.engine.ahead import Ahead, compiled_ahead
from vkml.engine.compilation import compile_kernels
from vkml.errors import DeviceError
from vkml.kernels import compiler_process, compiling, slang
from vkml.kernels.spec import Dispatch, KernelSpec, KernelText
from vkml.vulkan import Device, Pipeline


class Driver:
    """Makes pipelines, and counts their users as devices do."""

    def __init__(self) -> None:
        self.made: list[Hashable] = []
        self.known: dict[Hashable, Pipeline] = {}
        self.users = 0
        self._lock = threading.Lock()

    def named_pipeline(self, name: Hashable, taken: list[Pipeline]) -> Pipeline | None:
        found = self.known.get(name)
        if found is not None:
            with self._lock:
                self.users += 1
            taken.append(found)
        return found

    def pipeline(self, spirv: bytes, *, name: Hashable, taken: list[Pipeline], **more: Any) -> Pipeline:
        with self._lock:
            if name not in self.known:
                self.made.append(name)
                self.known[name] = cast(Pipeline, object())
            self.users += 1
            taken.append(self.known[name])
        return self.known[name]

    def release_all(self, taken: list[Pipeline]) -> None:
        self.users -= len(taken)
        del taken[:]

    def keep_pipelines(self) -> None:
        pass


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ahead_module, "usable_cores", lambda: 4)
    monkeypatch.setattr(compilation, "usable_cores", lambda: 4)
    monkeypatch.setattr(compiling, "MOST_PROCESSES", 0)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def kernel(number: int) -> KernelSpec:
    text = KernelText((), (), (), (SOURCE.format(number),), False)
    return KernelSpec(f"kernel {number}", text, (), 0)


def wait_until(holds: Any) -> None:
    end = time.monotonic() + 30
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)
    assert holds()


def test_modules_are_made_while_the_device_opens(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    is_open = threading.Event()
    wanted = [kernel(number) for number in range(5)]

    def opened() -> Device:
        assert is_open.wait(30)
        return cast(Device, driver)

    taken: list[Pipeline] = []
    with compiled_ahead(opened) as ahead:
        for each in wanted:
            ahead.want(each)
            ahead.want(each)
        wait_until(lambda: all(compiling.is_kept(each.source) for each in wanted))
        assert not driver.made
        is_open.set()
        wait_until(lambda: len(driver.made) == 5)
        ahead.stop()
        monkeypatch.setattr(slang, "compile_kernel", lambda source: 1 / 0)
        found = compile_kernels(cast(Device, driver), wanted, taken)
        assert driver.users == 10
    assert driver.users == len(taken) == 5, "what nobody else wants is given back"
    assert found == {id(each): driver.known[each.name] for each in wanted}
    assert sorted(map(str, driver.made)) == sorted(str(each.name) for each in wanted)


def test_what_goes_wrong_ahead_goes_wrong_for_who_asks(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def refuse(source: str) -> bytes:
        refused.append(source)
        raise slang.Unsupported("everything")

    monkeypatch.setattr(slang, "compile_kernel", refuse)
    with compiled_ahead(lambda: cast(Device, driver)) as ahead:
        ahead.want(kernel(1))
        wait_until(lambda: bool(refused))

    def absent() -> Device:
        raise DeviceError("there is none")

    with compiled_ahead(absent) as ahead:
        ahead.want(kernel(2))
        wait_until(lambda: len(refused) == 2)
    assert not driver.made and not driver.users
    assert not [each for each in threading.enumerate() if each.name.startswith("vkml-ahead")]


def test_an_error_waits_for_what_the_driver_has(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is closed next has no thread inside."""
    begun, ended = threading.Event(), []

    def slow(*arguments: Any, **more: Any) -> Pipeline:
        begun.set()
        time.sleep(0.1)
        ended.append(time.monotonic())
        return Driver.pipeline(driver, *arguments, **more)

    monkeypatch.setattr(driver, "pipeline", slow)
    with pytest.raises(KeyError), compiled_ahead(lambda: cast(Device, driver)) as ahead:
        ahead.want(kernel(1))
        assert begun.wait(30)
        raise KeyError
    assert len(ended) == 1 and not driver.users


def test_processes_compile_while_others_lower(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one makes the first module, and further ones once nobody lowers any more."""
    monkeypatch.setattr(compiling, "MOST_PROCESSES", 2)
    monkeypatch.setattr(compiler_process, "START_SECONDS", 60.0)  # the machine may be busy
    monkeypatch.setattr(ahead_module, "usable_cores", lambda: 8)
    here: list[str] = []
    real = slang.compile_kernel
    monkeypatch.setattr(slang, "compile_kernel", lambda source: (here.append(source), real(source))[1])
    wanted = [kernel(number) for number in range(12)]
    with compiled_ahead(lambda: cast(Device, driver)) as ahead:
        for each in wanted:
            ahead.want(each)
        assert all(ahead.wait(each, lambda: False) for each in wanted)
        wait_until(lambda: len(compiling._processes) == 2)
        assert len(here) < 12
        started = [process._process for process in compiling._processes]
        ahead.want_all(())
    assert sorted(map(str, driver.made)) == sorted(str(each.name) for each in wanted)
    assert not compiling._processes and all(process.poll() is not None for process in started)
    assert all(compiling.compile_kernel(each.source) == slang_module(each.source) for each in wanted[:3])


def slang_module(source: str) -> bytes:
    return compiling._compiled(source, "kernel")


def launches() -> Iterator[tuple[Dispatch, bool]]:
    text = KernelText((), (), (), (SOURCE.format(1),), False)
    for groups, form, is_sure in (
        ((1, 1, 64), None, True),
        ((8, 1, 1), None, False),
        ((64, 1, 1), "add", False),
    ):
        spec = KernelSpec(f"{groups} {form}", text, (), 0, form=form)
        yield Dispatch(spec, groups, (), (), ()), is_sure


def test_launches_that_may_become_part_of_others_wait(driver: Driver) -> None:
    ahead = Ahead(lambda: cast(Device, driver))
    wanted: list[Hashable] = []
    ahead.want = lambda kernel: wanted.append(kernel.name)  # type: ignore[method-assign]
    given = list(launches())
    for launch, _ in given:
        ahead.launch(launch)
    assert wanted == [launch.kernel.name for launch, is_sure in given if is_sure]


def test_nobody_waits_for_threads_that_end_with_the_program(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is planning when the main one ends goes on by itself."""
    with compiled_ahead(lambda: cast(Device, driver), most=2) as compiler:
        monkeypatch.setattr(threading, "main_thread", lambda: threading.Thread())
        compiler.want(kernel(0))
        compiler.want_all([kernel(0), kernel(1)])
        compiler.wait_for([kernel(0), kernel(1)], None)
        assert not compiler.wait(kernel(0), lambda: False)
        assert driver.made == []
