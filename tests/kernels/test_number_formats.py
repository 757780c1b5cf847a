"""Types that Slang lacks, on Vulkan: every code, to and from types that kernels compute in, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

import vkml
from tests.ops.test_cast import bits_of, every_code, interesting, is_defined
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.kernels.writer import CODED
from vkml.onnx import save_graph

SMALL = sorted(CODED, key=lambda dtype: dtype.code)
FLOAT32 = dtypes.FLOAT32


def check(device: str, sketch: Sketch, values: list[str], feed: dict[str, Any]) -> None:
    """Compares a model on a device with the same on the CPU; but for types that it lacks, all runs there."""
    model = save_graph(sketch.finish(*values))
    with vkml.InferenceSession(model, devices="cpu") as session:
        wanted = session.run(None, feed)
    with vkml.InferenceSession(model, devices=device) as session:
        found = session.run(None, feed)
        reasons = dict(session.report().fallbacks)
    assert all(" needs " in reason for reason in reasons.values()), reasons
    for value, mine, theirs in zip(values, found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(bits_of(mine), bits_of(theirs), value)


def test_casts(vulkan_device_name: str) -> None:
    sketch, feed, made = Sketch("casts", opset=25), {}, []
    wide = interesting(FLOAT32)
    for dtype in SMALL:
        name = f"codes_{dtype}"
        feed[name] = every_code(dtype)
        x = sketch.input(name, feed[name].shape, dtype)
        made.append(sketch.node("Cast", x, to=FLOAT32.code))
        if dtype.is_integer:
            made.append(sketch.node("Cast", x, to=dtypes.INT32.code))
        values = wide[is_defined(wide, dtype)]
        feed[f"wide_{dtype}"] = values
        w = sketch.input(f"wide_{dtype}", values.shape)
        overflows = dtype in (*dtypes.FLOAT8S, dtypes.FLOAT8E8M0)
        made += [sketch.node("Cast", w, to=dtype.code, saturate=each) for each in range(1 - overflows, 2)]
    half = sketch.node("Cast", w, to=dtypes.FLOAT16.code)
    made.append(sketch.node("Cast", half, to=dtypes.FLOAT8E5M2.code))
    check(vulkan_device_name, sketch, made, feed)


def test_constants_stay_packed(vulkan_device_name: str) -> None:
    """Elements are taken out of bytes that they share, in any order of axes, from the middle of a byte on."""
    sketch, feed, made = Sketch("packed", opset=25), {}, []
    random = np.random.default_rng(5)
    chosen = sketch.input("chosen", (3, 7), dtypes.BOOL)
    feed["chosen"] = random.random((3, 7)) < 0.5
    for dtype in SMALL:
        other = np.resize(every_code(dtype), (3, 7))
        constant = sketch.constant(np.resize(every_code(dtype), (7, 5))[::-1])
        feed[f"other_{dtype}"] = other
        ends = [sketch.constant(np.array(each)) for each in ([0, 1], [7, 4], [0, 1])]
        part = sketch.node("Transpose", sketch.node("Slice", constant, *ends), perm=(1, 0))
        part = part if dtype.bits == 4 else sketch.constant(other[::-1])
        made.append(sketch.node("Where", chosen, part, sketch.input(f"other_{dtype}", (3, 7), dtype)))
    check(vulkan_device_name, sketch, made, feed)
