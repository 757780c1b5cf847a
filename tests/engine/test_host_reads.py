"""Captured steps whose large arguments the device reads from arrays of the host."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vkml
from tests.engine.test_trips import close_all
from tests.recording_notes import Notes
from tests.recordings import missing_barriers
from vkml import Tensor, nn, optim
from vkml.engine import host_imports, host_memory, host_reads
from vkml.engine.devices import open_device
from vkml.engine.host_imports import LEAST_USES, HostImports
from vkml.engine.host_memory import HostImport
from vkml.engine.host_reads import HostReads
from vkml.vulkan import Device, Submission, find_device
from vkml.vulkan.memory import Allocator

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 64, 300
WARM = LEAST_USES + 2
"""Calls from which on an array is read: the first two only run the function, and capture it."""


class Reads:
    """Which runs read arrays and which copied them, as it was decided."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[bool] = []
        self.subjects: list[HostReads] = []
        real = HostReads.prepare

        def noting(reads: HostReads, *arguments: Any) -> list[HostImport] | None:
            held = real(reads, *arguments)
            self.found.append(held is not None)
            self.subjects[:] = [reads]
            return held

        monkeypatch.setattr(HostReads, "prepare", noting)

    @property
    def latest(self) -> bool:
        return self.found[-1]


@pytest.fixture
def device(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> Device:
    """One that imports memory, taken for one whose own memory lies across a bus; no array is known."""
    found = open_device(find_device(vulkan_device_name, True))
    if not found.imports_host:
        pytest.skip("the device imports no memory of the host")
    monkeypatch.setattr(host_reads, "is_worthwhile", lambda device: device.imports_host)
    monkeypatch.setattr(host_reads, "imports", HostImports())
    monkeypatch.setattr(host_reads, "LEAST_BYTES", 64 << 10)
    return found


@pytest.fixture
def reads(device: Device, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def numbers(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, COLUMNS), np.float32)


def summed(name: str) -> Callable[[Any], Array]:
    """A captured function of an array, of whose elements it loses none."""
    weights = vkml.tensor(np.arange(1, COLUMNS + 1, dtype=np.float32), device=name)

    @vkml.jit(device=name)
    def sums(x: Tensor) -> Tensor:
        return (x.float() * weights).sum(1)

    return lambda x: np.asarray(sums(x).numpy())


def exact(x: Array) -> Array:
    return (x.astype(np.float64) * np.arange(1, COLUMNS + 1)).sum(1).astype(np.float32)


def agree(found: Array, x: Array) -> None:
    np.testing.assert_allclose(found, exact(x), rtol=1e-3, atol=1e-2)


def test_steps_of_slices_are_those_of_copies(
    vulkan_device_name: str, device: Device, reads: Reads, notes: Notes
) -> None:
    def trained(x: Array) -> list[float]:
        vkml.manual_seed(0)
        layers = nn.Sequential(nn.Linear(COLUMNS, 16), nn.ReLU(), nn.Linear(16, 4)).to(vulkan_device_name)
        optimizer = optim.SGD(layers.parameters(), lr=0.01)
        loss_of = nn.CrossEntropyLoss()

        @vkml.jit(device=vulkan_device_name)
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = loss_of(layers(x), y)
            loss.backward()
            optimizer.step()
            return loss

        y = np.random.default_rng(1).integers(0, 4, len(x))
        starts = [(number * 37) % (len(x) - ROWS) for number in range(14)]
        return [step(x[at : at + ROWS], y[at : at + ROWS]).item() for at in starts]

    x = numbers(500)
    read = trained(x)
    assert reads.found == [False] * (LEAST_USES - 1) + [True] * (14 - WARM + 1)
    copied = trained(np.frombuffer(bytearray(x.tobytes()), np.float32).reshape(x.shape))
    assert not any(reads.found[14 - 2 :])
    assert read == copied
    [site] = [site for site in notes.sites if site.module == "host_reads"]
    assert missing_barriers(notes.history, waits_show=True) == []
    assert missing_barriers(notes.history, {site}, waits_show=True)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64, ml_dtypes.bfloat16])
def test_places_within_an_array(vulkan_device_name: str, reads: Reads, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 100, ROWS * 8 * COLUMNS + 100).astype(dtype)
    act = summed(vulkan_device_name)
    rows = ROWS * 4
    for number, start in enumerate([0, 1, 2, 3, 5, 17, 31, 4096, len(x) - rows * COLUMNS]):
        part = x[start : start + rows * COLUMNS].reshape(rows, COLUMNS)
        agree(act(part), part)
        assert number < WARM - 1 or reads.latest


def test_what_changes_between_runs_is_read_anew(vulkan_device_name: str, reads: Reads) -> None:
    x = numbers(ROWS)
    act = summed(vulkan_device_name)
    for number in range(12):
        x[:] = numbers(ROWS, number)
        agree(act(x), x)
        x[:] = np.nan  # right after
    assert reads.latest


def test_an_import_ends_with_its_array(vulkan_device_name: str, device: Device, reads: Reads) -> None:
    act = summed(vulkan_device_name)
    x = numbers(ROWS * 3)
    for _ in range(WARM):
        act(x[:ROWS])
    assert reads.latest
    gc.collect()
    before = device.live_allocations
    part = x[5 : 5 + ROWS]
    del x
    agree(act(part), part)  # its owner lives on
    assert reads.latest and device.live_allocations == before
    del part
    assert device.live_allocations == before - 1
    assert not host_reads.imports._owners
    y = numbers(ROWS, 7)  # which may lie where the other one did
    agree(act(y), y)
    assert not reads.latest


def test_an_array_that_is_read_stays_where_it_is(vulkan_device_name: str, reads: Reads) -> None:
    act = summed(vulkan_device_name)
    x = numbers(ROWS)
    for _ in range(WARM):
        act(x)
    assert reads.latest
    with pytest.raises(ValueError, match="resize"):
        x.resize((ROWS * 2, COLUMNS), refcheck=False)


def test_what_is_no_memory_of_numpys_is_copied(vulkan_device_name: str, reads: Reads, tmp_path: Path) -> None:
    x = numbers(ROWS)
    np.save(tmp_path / "x.npy", x)
    act = summed(vulkan_device_name)
    for given in (
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        np.load(tmp_path / "x.npy", mmap_mode="c"),
        np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
    ):
        for _ in range(WARM):
            agree(act(given), x)
        assert not any(reads.found)


def test_what_is_not_contiguous_is_copied(vulkan_device_name: str, reads: Reads) -> None:
    x = numbers(ROWS * 2)
    act = summed(vulkan_device_name)
    for _ in range(WARM):
        act(x[:ROWS])
    for given in (x[::2], x[ROWS - 1 :: -1], np.asfortranarray(x[:ROWS])):
        agree(act(given), given)
    agree(act(x[1 : ROWS + 1]), x[1 : ROWS + 1])
    agree(act(x[1 : ROWS + 1]), x[1 : ROWS + 1])
    assert reads.latest


def test_read_only_arrays(vulkan_device_name: str, reads: Reads) -> None:
    x = numbers(ROWS)
    x.flags.writeable = False
    act = summed(vulkan_device_name)
    for _ in range(WARM):
        agree(act(x), x)
    assert reads.latest


def test_several_arguments_are_read_together_or_copied(vulkan_device_name: str, reads: Reads) -> None:
    @vkml.jit(device=vulkan_device_name)
    def act(x: Tensor, factor: Tensor, y: Tensor) -> Tensor:
        return (x * factor - y).sum(1)

    x, y, factor = numbers(ROWS * 2), numbers(ROWS * 2, 1), np.full(1, 3, np.float32)
    other = np.frombuffer(y.tobytes(), np.float32).reshape(y.shape)
    for number, second in enumerate([y] * WARM + [other] + [y] * 2):
        at = number + 1
        found = act(x[at : at + ROWS], factor + number, second[at : at + ROWS]).numpy()
        wanted = (x[at : at + ROWS] * (3 + number) - y[at : at + ROWS]).sum(1)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-2)
    assert reads.found[-4:] == [True, False, True, True]


def test_a_device_that_refuses(
    vulkan_device_name: str, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refusing(self: Device, memory: Array, label: str = "") -> Any:
        asked.append(label)
        raise vkml.errors.DeviceError("it does not take them")

    monkeypatch.setattr(Device, "import_host", refusing)
    x = numbers(ROWS)
    act = summed(vulkan_device_name)
    for _ in range(3 * WARM):
        agree(act(x), x)
    assert not any(reads.found) and len(asked) == 1


def test_imports_are_bounded(vulkan_device_name: str, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_imports, "MOST_IMPORTS", 2)
    monkeypatch.setattr(host_imports, "_IDLE", 8)
    monkeypatch.setattr(host_imports, "_PATIENCE", 2)
    act = summed(vulkan_device_name)
    arrays = [numbers(ROWS, seed) for seed in range(3)]
    for _ in range(12):
        for x in arrays:
            agree(act(x), x)
    known = host_reads.imports._owners
    kept = [known[id(x)].pages is not None for x in arrays]
    assert kept.count(True) == 2 and reads.found[-3:] == kept
    late = arrays[kept.index(False)]
    for _ in range(20):  # the others are idle
        agree(act(late), late)
    assert reads.latest
    assert sum(owner.pages is not None for owner in host_reads.imports._owners.values()) == 2


def test_bytes_are_bounded(vulkan_device_name: str, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(ROWS)
    monkeypatch.setattr(host_imports, "MOST_BYTES", x.nbytes // 2)
    act = summed(vulkan_device_name)
    for _ in range(2 * WARM):
        agree(act(x), x)
    assert not any(reads.found)


def test_few_arrays_are_known(vulkan_device_name: str, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_imports, "_MOST_KNOWN", 3)
    act = summed(vulkan_device_name)
    kept = [numbers(ROWS, seed) for seed in range(8)]
    for _ in range(WARM):
        for x in kept:
            agree(act(x), x)
    assert len(host_reads.imports._owners) <= 3


def test_after_a_fork_pages_are_imported_anew(vulkan_device_name: str, device: Device, reads: Reads) -> None:
    x = numbers(ROWS)
    act = summed(vulkan_device_name)
    for _ in range(WARM):
        act(x)
    [owner] = host_reads.imports._owners.values()
    before = id(owner.pages)
    count = device.live_allocations
    host_memory._note_fork()
    x[:] = numbers(ROWS, 3)
    agree(act(x), x)
    assert reads.latest and id(owner.pages) != before and device.live_allocations == count


def test_an_interrupted_run_is_awaited(
    vulkan_device_name: str, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = numbers(ROWS)
    act = summed(vulkan_device_name)
    for _ in range(WARM):
        act(x)
    submission = reads.subjects[-1].submission
    assert isinstance(submission, Submission)
    run, settle, settled = submission.run, submission.settle, []

    def interrupted() -> None:
        submission.submit()
        raise KeyboardInterrupt

    def settling() -> None:
        settle()
        settled.append(submission.wait(0.0, 0.0))

    submission.run, submission.settle = interrupted, settling
    with pytest.raises(KeyboardInterrupt):
        act(x)
    assert settled == [True]
    submission.run, submission.settle = run, settle
    x[:] = numbers(ROWS, 5)
    agree(act(x), x)


def test_threads(vulkan_device_name: str, reads: Reads) -> None:
    act = summed(vulkan_device_name)
    shared = numbers(ROWS * 4)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = numbers(ROWS * 2, number)
            for turn in range(30):
                at = (turn * 7 + number) % ROWS
                x = (shared if turn % 2 else own)[at : at + ROWS]
                agree(act(x), x)
                if turn % 10 == 9:
                    own = numbers(ROWS * 2, turn)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert any(reads.found)


def test_nothing_waits_for_another_thread(vulkan_device_name: str, reads: Reads) -> None:
    x = numbers(ROWS)
    act = summed(vulkan_device_name)
    for _ in range(WARM):
        act(x)
    assert reads.latest
    with host_reads.imports._lock:
        agree(act(x), x)
    assert not reads.latest
    agree(act(x), x)
    assert reads.latest


@pytest.fixture
def staging(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices are opened anew, and the host reaches none of their memory."""
    close_all()
    make = Allocator.__init__

    def making(self: Allocator, context: Any, memory_limit: float, force_staging: bool) -> None:
        make(self, context, memory_limit, True)

    monkeypatch.setattr(Allocator, "__init__", making)
    yield
    close_all()


def test_beside_staged_arguments(vulkan_device_name: str, reads: Reads, staging: None, notes: Notes) -> None:
    @vkml.jit(device=vulkan_device_name)
    def act(x: Tensor, factor: Tensor) -> Tensor:
        return (x * factor).sum(1)

    x, factor = numbers(ROWS * 2), np.arange(1, COLUMNS + 1, dtype=np.float32)
    for number in range(WARM + 4):
        part = x[number : number + ROWS]
        agree(act(part, factor * (number + 1)).numpy() / (number + 1), part)
    assert reads.latest
    agree(act(np.frombuffer(x[:ROWS].tobytes(), np.float32).reshape(ROWS, COLUMNS), factor).numpy(), x[:ROWS])
    assert not reads.latest
