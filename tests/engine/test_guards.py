"""Guard zones: a kernel that writes outside its buffers is found out, one that does not is left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vkml
from vkml.engine import devices as device_registry
from vkml.engine.prepare import prepare
from vkml.engine.programs import VulkanBound
from vkml.engine.recorded import DIRECT_OUTPUT_BYTES
from vkml.engine.sketch import Sketch
from vkml.engine.weights import WeightStore
from vkml.errors import EngineError
from vkml.lowering.plan import VulkanProgram
from vkml.lowering.vulkan import Piece, lower
from vkml.onnx import save_graph
from vkml.passes import specialise
from vkml.vulkan import validation_messages

GUARD_BYTES = 256
pytestmark = pytest.mark.usefixtures("launches_of_their_own")


def lowered(device: str, *, elements: int, shift: int, level: int = 0) -> tuple[VulkanProgram, np.ndarray]:
    """x → Neg → Softmax, of whose two kernels that of `level` writes `shift` elements too far."""
    sketch = Sketch("guarded")
    data = np.arange(elements, dtype=np.float32).reshape(1, elements)
    graph = sketch.finish(sketch.node("Softmax", sketch.node("Neg", sketch.input("x", data.shape))))
    graph = specialise(prepare(graph), {"x": data.shape})
    [info] = [info for info in vkml.devices() if info.name == device]
    piece = Piece(graph.nodes, ("x",), tuple(value.name for value in graph.outputs))
    program = lower(piece, graph.types, graph.constants, device_registry.target_of(info), GUARD_BYTES)
    [first, *_] = program.levels[level]
    [target] = first.writes
    moved = replace(target, offset=target.offset + shift)
    arguments = tuple(moved if argument is target else argument for argument in first.arguments)
    program.levels[level][0] = replace(first, arguments=arguments)
    return program, data


@pytest.mark.parametrize(
    ("elements", "shift"), [(8, 0), (8, 4), (8, -4), (8, 8), (3, 0), (3, 1), (3, -1), (64, 4), (64, -4)]
)
def test_a_write_outside_is_found(vulkan_device_name: str, elements: int, shift: int) -> None:
    """Down to the one word next to a buffer, on either side."""
    check(lowered(vulkan_device_name, elements=elements, shift=shift), vulkan_device_name, shift)


@pytest.mark.parametrize(
    ("elements", "shift"),
    [
        *((elements, shift) for elements in (8, 2000) for shift in (0, 4, -4)),
        *((elements, shift) for elements in (3, 2001) for shift in (0, 1, -1)),
    ],
)
def test_a_write_outside_of_a_result_is_found(vulkan_device_name: str, elements: int, shift: int) -> None:
    """Of one that its kernel writes to the host's memory, and of one that is copied there.

    Vectors stay aligned, as their stores say they are: what a GPU does elsewhere is undefined.
    """
    program, data = lowered(vulkan_device_name, elements=elements, shift=shift, level=-1)
    [result] = program.outputs.values()
    assert result.buffer.bytes > DIRECT_OUTPUT_BYTES or elements < 2000
    check((program, data), vulkan_device_name, shift)


@pytest.mark.parametrize("elements", [8, 2000])
def test_runs_behind_others_that_an_event_has_ended_are_valid(
    vulkan_device_name: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validation layer knows of no end that only an event told."""
    said = len(validation_messages())
    [info] = [info for info in vkml.devices() if info.name == vulkan_device_name]
    monkeypatch.setattr(device_registry.open_device(info).context, "ends_by_event", True)
    sketch = Sketch("guarded")
    x = np.arange(elements, dtype=np.float32).reshape(1, elements)
    made = save_graph(sketch.finish(sketch.node("Softmax", sketch.input("x", x.shape))))
    options = vkml.SessionOptions(guard_bytes=GUARD_BYTES)
    with vkml.InferenceSession(made, options, devices=vulkan_device_name) as session:
        for _ in range(20):
            [found] = session.run(None, {"x": x})
            np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    assert len(validation_messages()) == said


def check(made: tuple[VulkanProgram, np.ndarray], vulkan_device_name: str, shift: int) -> None:
    """Runs a program whose kernel writes too far, or does not."""
    program, data = made
    [info] = [info for info in vkml.devices() if info.name == vulkan_device_name]
    device = device_registry.open_device(info)
    weights = WeightStore(lambda: device)
    bound = VulkanBound(program, device, weights, guard_bytes=GUARD_BYTES)
    try:
        if shift:
            with pytest.raises(EngineError, match="outside its buffers"):
                bound.run([data])
        else:
            [found] = bound.run([data])
            np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    finally:
        bound.close()
        weights.close()
