"""The devices these tests run on, and small programs on them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.patience import patience
from tests.vulkan.kernels import ADD, ADD_PUSH_BYTES, add_push
from vkml.vulkan import CommandBuffer, Device, DeviceInfo, Memory, MemoryKind, devices, rejected_devices

GROUP = 32


def device_parameters() -> list:
    """One parameter a device; one that skips, with the reason, where there is none."""
    found = devices()
    if not found:
        reason = "; ".join(one.reason for one in rejected_devices()) or "VKML_ALLOW_SOFTWARE=1 is not set"
        reason = f"no Vulkan device: {reason}"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")]
    return [pytest.param(info, id=info.driver.replace(" ", "-")) for info in found]


every_device = pytest.mark.parametrize("info", device_parameters())


class Adder:
    """o = a + b, recorded once."""

    def __init__(self, device: Device, count: int, label: str = "adder", code: bytes = ADD) -> None:
        self.device, self.count = device, count
        self.a, self.b, self.o = (
            device.allocate(4 * count, MemoryKind.DEVICE, f"{label} {x}") for x in "abo"
        )
        self.pipeline = device.pipeline(
            code, constants=[GROUP], push_constant_bytes=ADD_PUSH_BYTES, label="add"
        )
        self.commands = self.record()
        self.submission = device.submission(self.commands)

    def record(self) -> CommandBuffer:
        recorder = self.device.recorder("add")
        push = add_push(self.a.address, self.b.address, self.o.address, self.count)
        with recorder.region("one add"):
            recorder.dispatch(self.pipeline, push, -(-self.count // GROUP))
        recorder.barrier()
        return recorder.finish()

    def run(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.device.upload(self.a, 0, a)
        self.device.upload(self.b, 0, b)
        self.submission.submit()
        assert self.submission.wait(timeout_seconds=patience(60))
        return self.read(self.o)

    def read(self, memory: Memory) -> np.ndarray:
        return self.device.download(memory, 0, 4 * self.count).view(np.float32)


def run_python(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in an interpreter of its own, with a cache folder of its own."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, (str(root / "src"), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=patience(240),
        cwd=root,
        env={**os.environ, "VKML_CACHE_DIR": str(tmp_path), "PYTHONPATH": path, **environment},
        check=False,
    )


def floats(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


__all__ = ["GROUP", "Adder", "DeviceInfo", "device_parameters", "every_device", "floats", "run_python"]
