"""Large values that one GPU makes and another reads: in chunks, and right whatever else reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
import vkml.onnx
from tests.engine.test_device_assignments import PartFailed, make_fail, plans_of
from tests.robustness.test_threads import in_threads
from vkml.engine import flight
from vkml.engine.sketch import Sketch
from vkml.vulkan import Device, transfer

Array = np.ndarray[Any, Any]
WIDTH = 200


@pytest.fixture(scope="module")
def gpus() -> list[str]:
    found = [device.name for device in vkml.devices(True) if device.name != "cpu"]
    if len(found) < 2:
        pytest.skip("fewer than two Vulkan devices on this machine")
    return found[:2]


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is passed on, in bytes, with limits so low that small values are."""
    monkeypatch.setattr(flight, "PASSED_BYTES", 4096)
    monkeypatch.setattr(transfer, "PASSED_BYTES", 40_000)
    sizes: list[int] = []
    download_into = Device.download_into

    def noting(self: Device, memory: Any, offset: int, target: Array) -> None:
        sizes.append(target.size)
        download_into(self, memory, offset, target)

    monkeypatch.setattr(Device, "download_into", noting)
    return sizes


def there_and_back(rows: int | str, *, with_outputs: bool = False) -> bytes:
    """|x| by the first, its negative by the second, their products with x by the first again."""
    sketch = Sketch("passing", 17)
    x = sketch.input("x", (rows, WIDTH))
    positive = sketch.node("Abs", x, name="first")
    negative = sketch.node("Neg", positive, name="second")
    end = sketch.node("Add", sketch.node("Mul", negative, x, name="third"), positive, name="fourth")
    outputs = (end, positive, negative) if with_outputs else (end,)
    return vkml.onnx.save_graph(sketch.finish(*outputs))


def whole(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-9, 9, (rows, WIDTH)).astype(np.float32)


def expected(x: Array) -> list[Array]:
    return [-np.abs(x) * x + np.abs(x), np.abs(x), -np.abs(x)]


@pytest.mark.parametrize("with_outputs", [False, True])
@pytest.mark.parametrize("rows", [300, "n"])
def test_there_and_back(gpus: list[str], rows: int | str, with_outputs: bool, passed: list[int]) -> None:
    model = there_and_back(rows, with_outputs=with_outputs)
    places = {"second": gpus[1], "*": gpus[0]}
    with vkml.InferenceSession(model, devices=gpus, placement=places) as session:
        for run, count in enumerate((300, 300, 290, 301) if rows == "n" else (300, 300)):
            x = whole(count, run)
            passed.clear()
            found = session.run(None, {"x": x})
            for mine, wanted in zip(found, expected(x), strict=False):
                np.testing.assert_array_equal(mine, wanted)
            assert passed == [x.nbytes, x.nbytes]


def test_small_values_and_those_that_the_cpu_reads_go_through_the_host(
    gpus: list[str], passed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first device reads again itself stays there all the same."""
    x = whole(300)
    for places, limit in (
        ({"second": gpus[1], "*": gpus[0]}, x.nbytes + 1),
        ({"second": gpus[1], "third": "cpu", "*": gpus[0]}, 4096),
    ):
        monkeypatch.setattr(flight, "PASSED_BYTES", limit)
        with vkml.InferenceSession(there_and_back(300), devices=[*gpus, "cpu"], placement=places) as session:
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected(x)[0])
        assert passed == [x.nbytes]
        passed.clear()


def test_threads_pass_on_their_own_values(gpus: list[str], passed: list[int]) -> None:
    places = {"second": gpus[1], "*": gpus[0]}
    with vkml.InferenceSession(there_and_back("n"), devices=gpus, placement=places) as session:

        def body(thread: int) -> None:
            x = whole(100 + thread % 3, thread)
            for _ in range(25):
                np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected(x)[0])

        in_threads(body)
    assert len(passed) == 8 * 25 * 2


@pytest.mark.parametrize("act", ["start", "finish"])
def test_a_failure_behind_what_was_passed_on(
    gpus: list[str], act: str, passed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"second": gpus[1], "*": gpus[0]}
    with vkml.InferenceSession(there_and_back(300), devices=gpus, placement=places) as session:
        x = whole(300)
        session.run(None, {"x": x})
        [plan] = plans_of(session)
        with monkeypatch.context() as patched:
            make_fail(patched, plan.programs, 1, act)
            with pytest.raises(PartFailed):
                session.run(None, {"x": whole(300, 1)})
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected(x)[0])


def test_bound_values_are_passed_on_to_where_they_are_wanted(gpus: list[str], passed: list[int]) -> None:
    with vkml.InferenceSession(there_and_back(300), devices=gpus[0]) as session:
        binding, [output] = session.io_binding(), session.get_outputs()
        given = vkml.OrtValue.ortvalue_from_numpy(whole(300), gpus[1])
        made = vkml.OrtValue.ortvalue_from_shape_and_type((300, WIDTH), np.float32, gpus[1])
        binding.bind_ortvalue_input("x", given)
        binding.bind_ortvalue_output(output.name, made)
        for seed in range(3):
            given.update_inplace(whole(300, seed))
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(made.numpy(), expected(whole(300, seed))[0])
        copied = vkml.OrtValue.ortvalue_from_shape_and_type((300, WIDTH), np.float32, gpus[0])
        copied.update_inplace(made)
        np.testing.assert_array_equal(copied.numpy(), made.numpy())
    assert passed == [made.tensor_size_in_bytes()] * 3
