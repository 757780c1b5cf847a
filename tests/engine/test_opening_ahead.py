"""Devices that open while a session's modules are imported and its model is read."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.engine import devices as device_registry
from vkml.engine import planning
from vkml.errors import DeviceError
from vkml.ir import Graph, Node, TensorType, Value, dtypes
from vkml.onnx import save_graph
from vkml.vulkan import find_device


@pytest.fixture
def model(tmp_path: Path) -> Path:
    type_ = TensorType(dtypes.FLOAT32, (4,))
    nodes = (Node("Relu", ("x",), ("y",), version=14),)
    path = tmp_path / "model.onnx"
    save_graph(Graph((Value("x", type_),), (Value("y", type_),), nodes, {}), path)
    return path


def run_program(text: str, *arguments: str) -> str:
    """What a program in a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_device_opens_before_what_lowers_is_imported(model: Path, vulkan_device_name: str) -> None:
    """The driver is held back until main has imported what lowers: with one thread this would not end."""
    text = """
import sys, threading, time
from vkml.vulkan import device, discovery

listing, opening, seen = discovery._enumerate, device.Device.__init__, []

def list_devices():
    seen.append((threading.current_thread().name, "vkml.engine.runner" in sys.modules))
    return listing()

def open_late(*arguments, **more):
    end = time.monotonic() + 60
    while "vkml.engine.runner" not in sys.modules and time.monotonic() < end:
        time.sleep(0.001)
    seen.append("vkml.engine.runner" in sys.modules)
    opening(*arguments, **more)

discovery._enumerate, device.Device.__init__ = list_devices, open_late
import numpy, vkml
session = vkml.InferenceSession(sys.argv[1], devices=sys.argv[2])
assert session.run(None, {"x": numpy.float32([-1, 2, -3, 4])})[0].tolist() == [0, 2, 0, 4]
print(seen)
"""
    assert run_program(text, str(model), vulkan_device_name) == "[('vkml-open', False), True]\n"


def test_the_device_opens_while_nodes_are_lowered(
    model: Path, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_registry.close_devices()
    is_lowered = threading.Event()
    opening: Any = vkml.vulkan.Device.__init__  # type: ignore[attr-defined]

    def open_late(*arguments: Any, **more: Any) -> None:
        assert is_lowered.wait(60), "lowering waits for the device"
        opening(*arguments, **more)

    def lower(*arguments: Any, **more: Any) -> Any:
        is_lowered.set()
        return lowering(*arguments, **more)

    lowering = planning.lower
    monkeypatch.setattr("vkml.vulkan.device.Device.__init__", open_late)
    monkeypatch.setattr(planning, "lower", lower)
    session = vkml.InferenceSession(model, devices=vulkan_device_name)
    assert session.run(None, {"x": np.float32([-1, 2, -3, 4])})[0].tolist() == [0, 2, 0, 4]


def test_the_cpu_opens_nothing(model: Path) -> None:
    text = """
import sys, threading, vkml
starts = []
threading.Thread.start = lambda self: starts.append(self.name)
vkml.InferenceSession(sys.argv[1], devices="cpu")
print([name for name in starts if name == "vkml-open"], "vkml.vulkan.discovery" in sys.modules)
"""
    assert run_program(text, str(model)) == "[] False\n"


def test_a_model_that_is_refused_while_its_device_opens(model: Path, vulkan_device_name: str) -> None:
    """The process ends in order, and the device with it."""
    text = """
import sys, numpy, vkml
import vkml.onnx
def refuse(*arguments, **more):
    raise vkml.InvalidGraph("refused")
vkml.onnx.load_graph = refuse
try:
    vkml.InferenceSession(sys.argv[1], devices=sys.argv[2])
except vkml.InvalidGraph as error:
    print(error)
"""
    assert "refused" in run_program(text, str(model), vulkan_device_name)


def test_what_goes_wrong_is_told_who_asks(
    model: Path, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fail(*arguments: Any, **more: Any) -> Any:
        calls.append(threading.current_thread().name)
        raise DeviceError("no memory for a device")

    device_registry.close_devices()
    monkeypatch.setattr("vkml.vulkan.device.Context", fail)
    with pytest.raises(DeviceError, match="no memory for a device"):
        vkml.InferenceSession(model, devices=vulkan_device_name)
    assert calls[-1] == threading.main_thread().name
    monkeypatch.undo()
    session = vkml.InferenceSession(model, devices=vulkan_device_name)
    assert session.run(None, {"x": np.float32([-1, 2, -3, 4])})[0].tolist() == [0, 2, 0, 4]


def test_who_asks_meanwhile_gets_the_same_device(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = find_device(vulkan_device_name, True)
    device_registry.close_devices()
    began, may_go = threading.Event(), threading.Event()
    opening: Any = vkml.vulkan.Device.__init__  # type: ignore[attr-defined]

    def open_late(*arguments: Any, **more: Any) -> None:
        began.set()
        assert may_go.wait(60)
        opening(*arguments, **more)

    monkeypatch.setattr("vkml.vulkan.device.Device.__init__", open_late)
    device_registry.open_ahead([vulkan_device_name], "auto")
    assert began.wait(60)
    threading.Timer(0.05, may_go.set).start()
    found = device_registry.open_device(info)
    assert device_registry.open_device(info) is found and not found.is_closed
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("it is open"))
    device_registry.open_ahead([vulkan_device_name], "auto")
