"""No device, unknown devices, too little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from tests.robustness.models import model, node, product, unary, value
from tests.robustness.processes import output_of
from vkml.engine import planning
from vkml.vulkan import live_objects

X = np.ones((2, 4), np.float32)


# --- which device -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "", "CPU", 3, [3], ["cpu", "nope"], b"cpu", {"cpu": 1}])
def test_unknown_device(name: Any) -> None:
    with pytest.raises(vkml.InvalidArgument) as caught:
        vkml.InferenceSession(product(), devices=name)
    for word in ("device ", "'auto', 'all', 'cpu'", "vkml.devices()"):
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["vulkan:99", "vulkan:-1", "vulkanette"])
def test_device_that_is_not_there(name: str) -> None:
    with pytest.raises(vkml.NoDevice) as caught:
        vkml.InferenceSession(product(), devices=name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("providers", "said"),
    [
        (["NoSuchExecutionProvider"], "Unknown Provider Type: NoSuchExecutionProvider; vkml has Vulkan"),
        (["CPUExecutionProvider", "x"], "Unknown Provider Type: x"),
        ([3], "a provider is a name or a pair of a name and a dict of options, not 3"),
        (3, "providers is a list of names, not 3"),
        ([()], "a provider is a name or a pair"),
    ],
)
def test_unknown_provider(providers: Any, said: str) -> None:
    with pytest.raises(vkml.InvalidArgument, match=said):
        vkml.InferenceSession(product(), providers=providers)


@pytest.mark.parametrize("providers", ["CPUExecutionProvider", [("CPUExecutionProvider", {})]])
def test_providers(providers: Any) -> None:
    with vkml.InferenceSession(product(), providers=providers) as session:
        assert session.get_providers() == ["CPUExecutionProvider"] and session.device == "cpu"


def test_unknown_settings() -> None:
    with pytest.raises(
        vkml.InvalidArgument, match="precision 'hihg' is not known: use one of highest, high, medium"
    ):
        vkml.InferenceSession(product(), devices="cpu", precision="hihg")
    with pytest.raises(vkml.InvalidArgument, match=r"sess_options is a vkml\.SessionOptions, not 3"):
        vkml.InferenceSession(product(), 3, devices="cpu")  # type: ignore[arg-type]
    for strict in ("no", None, 1):
        with pytest.raises(vkml.InvalidArgument, match=f"strict is True or False, not {strict!r}"):
            vkml.InferenceSession(product(), devices="cpu", strict=strict)  # type: ignore[arg-type]
    for limit in (0, -1, 1.5, float("nan"), "half"):
        with pytest.raises(vkml.InvalidArgument, match="memory_limit is a share"):
            vkml.InferenceSession(product(), vkml.SessionOptions(memory_limit=limit), devices="cpu")  # type: ignore[arg-type]


NO_LOADER = """
    import numpy as np, vkml
    from tests.robustness.models import product
    assert [device.name for device in vkml.devices()] == ["cpu"]
    with vkml.InferenceSession(product()) as session:
        assert session.device == "cpu" and session.get_providers() == ["CPUExecutionProvider"]
        assert session.run(None, {"x": np.ones((1, 4), np.float32)})[0].tolist() == [[-2, 2, 6]]
    try:
        vkml.InferenceSession(product(), devices="vulkan:0")
    except vkml.NoDevice as error:
        print(error)
"""


def test_no_vulkan_loader() -> None:
    text = output_of(NO_LOADER, VKML_VULKAN_LIBRARY="/nowhere/libvulkan.so")
    assert "/nowhere/libvulkan.so" in text and "VKML_VULKAN_LIBRARY" in text


def test_no_vulkan_driver(tmp_path: Path, vulkan_device_name: str) -> None:
    text = output_of(NO_LOADER, VK_DRIVER_FILES=str(tmp_path / "none.json"), VKML_VALIDATE="")
    assert "vulkan:0" in text


def test_no_device_on_the_command_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from vkml.cli import main

    path = tmp_path / "product.onnx"
    path.write_bytes(product())
    for name, code in (("vulkan:99", 1), ("gpu", 2)):
        with pytest.raises(SystemExit) as ending:
            main(["run", str(path), "--random", "--device", name])
        error = capfd.readouterr().err
        assert ending.value.code == code and f"'{name}'" in error and error.count("\n") == 1


# --- too little memory --------------------------------------------------------------------------------------


def test_memory_limit_of_a_session(vulkan_device_name: str) -> None:
    before = live_objects()
    big = model(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [value("x", ("n", 512))],
        [value("y", ("n", 512))],
        {"w": np.ones((512, 512), np.float32)},
    )
    with vkml.InferenceSession(unary(), devices=vulkan_device_name) as other:
        other.run(None, {"x": X})
        allocations = live_objects()
        options = vkml.SessionOptions(memory_limit=1e-9)
        with vkml.InferenceSession(big, options, devices=vulkan_device_name) as session:
            for _ in range(2):
                with pytest.raises(vkml.OutOfMemory) as caught:
                    session.run(None, {"x": np.ones((1, 512), np.float32)})
                for word in (
                    vulkan_device_name,
                    "weights",
                    "1.0 MiB",
                    "free",
                    "limit of 1e-07 %",
                    "smaller batch",
                ):
                    assert word in str(caught.value), caught.value
                assert isinstance(caught.value, MemoryError)
            after = live_objects()
            assert {kind: after[kind] for kind in ("Buffer", "DeviceMemory")} == {
                kind: allocations[kind] for kind in ("Buffer", "DeviceMemory")
            }
        # The limit is the session's own: another on the same device is not touched.
        with vkml.InferenceSession(big, devices=vulkan_device_name) as session:
            assert session.run(None, {"x": np.ones((1, 512), np.float32)})[0].shape == (1, 512)
    assert set(before) <= set(live_objects())


def test_more_than_the_machine_has() -> None:
    sizes = [value("x", ("n",)), value("y", ("m", 1))]
    wide = model([node("Add", ["x", "y"], ["z"], "table")], sizes, [value("z", ("m", "n"))])
    x, y = np.ones(2**20, np.float32), np.ones((2**18, 1), np.float32)
    with vkml.InferenceSession(wide, devices="cpu") as session:
        with pytest.raises(vkml.OutOfMemory) as caught:
            session.run(None, {"x": x, "y": y})
        for word in ("cpu", "Add node 'table'", "1024.0 GiB", "are free", "smaller batch"):
            assert word in str(caught.value), caught.value
        assert session.run(None, {"x": x[:3], "y": y[:2]})[0].shape == (2, 3)


def test_numpy_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 3.00 TiB")

    with vkml.InferenceSession(product(), devices="cpu") as session:
        monkeypatch.setattr(planning, "make_plan", refuse)
        monkeypatch.setattr("vkml.engine.plan_cache.make_plan", refuse)
        with pytest.raises(vkml.OutOfMemory) as caught:
            session.run(None, {"x": X})
        for word in ("cpu", "Unable to allocate 3.00 TiB", "are free", "the model given as bytes"):
            assert word in str(caught.value)
        monkeypatch.undo()
        monkeypatch.setattr("vkml.lowering.cpu.CpuProgram.run", refuse)
        monkeypatch.setattr("vkml.lowering.native.NativeStep.run", refuse)
        with pytest.raises(vkml.OutOfMemory, match=r"cpu: Unable to allocate 3\.00 TiB"):
            session.run(None, {"x": X})
        monkeypatch.undo()
    with vkml.InferenceSession(product(), devices="cpu") as session:
        assert session.run(None, {"x": X})[0].shape == (2, 3)
