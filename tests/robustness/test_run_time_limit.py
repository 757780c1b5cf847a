"""A device that does not answer is given up; nothing waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import vkml
from tests.vulkan.helpers import run_python
from vkml.errors import InvalidArgument

CODE = """
import time
import numpy as np
import vkml, vkml.onnx
from tests.robustness.models import product
from vkml.engine.devices import open_device
from vkml.engine.sketch import Sketch
from vkml.vulkan import find_device

sketch = Sketch("large", 17)
# Not long: the end of the process waits for it, and the machine may be busy.
size = 512 if open_device(find_device({name!r})).info.is_software else 1024
x = sketch.input("x", (size, size))
y = x
for _ in range(2):
    y = sketch.node("MatMul", y, x)
data = vkml.onnx.save_graph(sketch.finish(y))
X, SMALL = np.ones((size, size), np.float32), np.ones((1, 4), np.float32)
options = vkml.SessionOptions(run_time_limit=0.001)
session = vkml.InferenceSession(data, options, devices={name!r})
waiting = vkml.InferenceSession(product(), devices={name!r})
value = vkml.OrtValue.ortvalue_from_numpy(SMALL, {name!r})
start = time.perf_counter()
for run in range(3):
    try:
        session.run(None, {{"x": X}})
    except vkml.DeviceLost as error:
        print(error)
    else:
        raise AssertionError("no error")
try:
    waiting.run(None, {{"x": SMALL}})
except vkml.DeviceLost:
    pass
else:
    raise AssertionError("a session of the device goes on")
waiting.close(), session.close()
del value
[found] = vkml.InferenceSession(product(), devices="cpu").run(None, {{"x": SMALL}})
assert found.tolist() == [[-2.0, 2.0, 6.0]]
with vkml.InferenceSession(product(), devices={name!r}) as anew:
    assert anew.run(None, {{"x": SMALL}})[0].tolist() == [[-2.0, 2.0, 6.0]]
vkml.close_devices()
print("done")
"""


def test_a_run_that_takes_too_long(vulkan_device_name: str, tmp_path: Path) -> None:
    done = run_python(CODE.format(name=vulkan_device_name), tmp_path, VKML_VALIDATE="")
    assert done.returncode == 0, done.stderr
    *errors, last = done.stdout.splitlines()
    assert last == "done"
    assert len(errors) == 3
    assert all("was given up: a run took longer than the 0.001 s" in error for error in errors), errors


def test_limits_that_are_none() -> None:
    for wrong in (0, -1, "1", None, float("nan")):
        with pytest.raises(InvalidArgument, match="run_time_limit is a number of seconds"):
            vkml.SessionOptions(run_time_limit=wrong)  # type: ignore[arg-type]
    assert vkml.SessionOptions(run_time_limit=float("inf")).run_time_limit == float("inf")
