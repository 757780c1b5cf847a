"""Every layer as a model: onnxruntime and sessions compute what the layer does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime  # noqa: F401  before any device is used
import pytest

import vkml
from tests.exporting.checking import checked, close, flat, reference, session_of
from tests.exporting.layers import CASES, NOT_ALONE
from vkml import nn

Array = np.ndarray[Any, Any]


def test_every_layer_is_here() -> None:
    layers = {
        name
        for name in nn.__all__
        if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    assert layers == set(CASES) | set(NOT_ALONE)


def _made(name: str, device: str) -> tuple[nn.Module, list[Array]]:
    vkml.manual_seed(3)
    layer = CASES[name].make().to(device).eval()
    return layer, list(CASES[name].inputs(3))


@pytest.mark.parametrize("name", CASES)
def test_a_layer_of_known_sizes(name: str) -> None:
    layer, inputs = _made(name, "cpu")
    made = vkml.onnx.export(layer, tuple(inputs))
    assert made is not None
    model = checked(made)
    stated = {tensor.name for tensor in model.graph.initializer}
    used = {key for key in layer.state_dict() if not key.endswith("num_batches_tracked")}
    assert not used or stated & used
    feeds = dict(zip([value.name for value in model.graph.input], inputs, strict=True))
    wanted = flat(layer(*(vkml.tensor(x) for x in inputs)))
    close(reference(made, feeds), wanted, "onnxruntime")
    close(session_of(made).run(None, feeds), wanted, "a session")


@pytest.mark.parametrize("name", CASES)
def test_a_layer_of_open_batches(name: str) -> None:
    case = CASES[name]
    layer, inputs = _made(name, "cpu")
    shapes = tuple(None if axis is None else {axis: "batch"} for axis in case.axes)
    given = tuple(inputs)
    made = vkml.onnx.export(layer, given, dynamic_shapes=shapes)
    assert made is not None
    model = checked(made)
    names = [value.name for value in model.graph.input]
    for size in (3, 1, 7):
        inputs = list(case.inputs(size))
        feeds = dict(zip(names, inputs, strict=True))
        wanted = flat(layer(*(vkml.tensor(x) for x in inputs)))
        close(reference(made, feeds), wanted, f"onnxruntime, batch {size}")
    close(session_of(made).run(None, feeds), wanted, "a session")
