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
from tests.control_models import model
from tests.robustness.models import product
from vkml.engine.devices import open_device
from vkml.engine.sketch import Sketch
from vkml.vulkan import find_device

# Not long: the end of the process waits for it, and the machine may be busy.
SIZE = 512 if open_device(find_device({name!r})).info.is_software else 1024

def products():
    sketch = Sketch("large", 17)
    x = sketch.input("x", (SIZE, SIZE))
    y = x
    for _ in range(2):
        y = sketch.node("MatMul", y, x)
    return vkml.onnx.save_graph(sketch.finish(y)), {{}}

LOOP = '''
    loop (int64 m, bool go, float[SIZE, SIZE] x) => (float[SIZE, SIZE] y) {{
        y = Loop (m, go, x) <body = trip (int64 i, bool on, float[SIZE, SIZE] before)
            => (bool more, float[SIZE, SIZE] after) {{
            after = MatMul (before, x)
            MORE
        }}>
    }}'''
ENDS = {{
    "counted": "more = Identity (on)",
    "gated": "top = ReduceMax <keepdims = 0> (after) none = Constant <value_float = -1.0> () "
    "more = Greater (top, none)",
}}

def loop():
    feed = {{"m": np.array(3), "go": np.array(True)}}
    return model(LOOP.replace("MORE", ENDS[{kind!r}]).replace("SIZE", str(SIZE))), feed

data, feed = products() if {kind!r} in ("plain", "bound", "left") else loop()
X, SMALL = np.ones((SIZE, SIZE), np.float32), np.ones((1, 4), np.float32)
options = vkml.SessionOptions(run_time_limit=0.001)
session = vkml.InferenceSession(data, options, devices={name!r})
waiting = vkml.InferenceSession(product(), devices={name!r})
others = [device.name for device in vkml.devices() if device.name != {name!r}]
going_on = [vkml.InferenceSession(product(), devices=other) for other in others]
for other in going_on:
    other.run(None, {{"x": SMALL}})
value = vkml.OrtValue.ortvalue_from_numpy(SMALL, {name!r})
binding = session.io_binding()
if {kind!r} == "bound":
    binding.bind_ortvalue_input("x", vkml.OrtValue.ortvalue_from_numpy(X, {name!r}))
    binding.bind_output(session.get_outputs()[0].name, {name!r})

def act():
    if {kind!r} == "left":  # as after an interrupt, behind which others are to find a device that is idle
        [plan] = session._runner.plans.alive
        [program] = plan.programs
        program.start([X])
        program.settle()
        waiting.run(None, {{"x": SMALL}})
    elif {kind!r} == "bound":
        session.run_with_iobinding(binding)
    else:
        session.run(None, {{"x": X, **feed}})

for run in range(3):
    try:
        act()
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
del value, binding
for other in going_on:  # the CPU and other GPUs
    assert other.run(None, {{"x": SMALL}})[0].tolist() == [[-2.0, 2.0, 6.0]]
with vkml.InferenceSession(product(), devices={name!r}) as anew:
    assert anew.run(None, {{"x": SMALL}})[0].tolist() == [[-2.0, 2.0, 6.0]]
for other in going_on:
    other.close()
vkml.close_devices()
print("done with", len(others))
"""


@pytest.mark.parametrize("kind", ["plain", "bound", "left", "counted", "gated"])
def test_a_run_that_takes_too_long(vulkan_device_name: str, kind: str, tmp_path: Path) -> None:
    code = CODE.format(name=vulkan_device_name, kind=kind)
    done = run_python(code, tmp_path, VKML_VALIDATE="")
    assert done.returncode == 0, done.stderr
    *errors, last = done.stdout.splitlines()
    assert last == f"done with {len(vkml.devices(True)) - 1}"
    assert len(errors) == 3
    assert all("was given up: a run took longer than the 0.001 s" in error for error in errors), errors


def test_limits_that_are_none() -> None:
    for wrong in (0, -1, "1", None, float("nan")):
        with pytest.raises(InvalidArgument, match="run_time_limit is a number of seconds"):
            vkml.SessionOptions(run_time_limit=wrong)  # type: ignore[arg-type]
    assert vkml.SessionOptions(run_time_limit=float("inf")).run_time_limit == float("inf")
