"""Convolutions of dequantised bytes on the CPU, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import vkml
from tests.ops.checking import run_operator
from vkml.cpu.native.executable import InstructionSet
from vkml.engine.sketch import Sketch
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]


def check_bytes(
    steps: Array, weight: Array, zero: int, attributes: Mapping[str, Any], instructions: InstructionSet
) -> Array:
    """Results of a convolution of dequantised bytes, all of it machine code, which are exact.

    Args:
        steps: the image's numbers, each a quarter.
        weight: the weight's, too.
        zero: what stands for 0 in the image.
        attributes: of the convolution.
        instructions: that the code is to use.
    """
    sketch, scale = Sketch("bytes", 17), np.float32(0.25)
    numbers = [sketch.constant(scale), sketch.constant(np.uint8(zero))]
    image = sketch.node("QuantizeLinear", sketch.input("x", steps.shape), *numbers)
    operands = [
        sketch.node("DequantizeLinear", image, *numbers),
        sketch.node("DequantizeLinear", sketch.constant(weight), sketch.constant(scale)),
    ]
    model = save_graph(sketch.finish(sketch.node("Conv", *operands, **attributes)))
    x = (steps.astype(np.float32) - zero) * scale
    with vkml.InferenceSession(model, devices="cpu") as session:
        [found] = session.run(None, {"x": x})
        assert {step.variant for step in session.report().steps} == {instructions.value}
    wide = [x.astype(np.float64), weight * 0.25]
    np.testing.assert_allclose(found, run_operator("Conv", wide, attributes)[0], rtol=1e-6)
    return np.asarray(found)
