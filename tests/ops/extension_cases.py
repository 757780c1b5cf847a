"""Models of one node of com.microsoft, and all of them in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import compose

import vkml
from tests.ops.checking import assert_same, build_model

Array = np.ndarray[Any, Any]


def model_of(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], outputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model, and what it is fed."""
    model = build_model(op, inputs, attributes, opset=1, domain="com.microsoft", outputs=list(outputs))
    return model, {f"x{at}": x for at, x in enumerate(inputs) if x is not None}


def found_by(model: onnx.ModelProto, feed: Mapping[str, Array], device: str = "cpu") -> list[Array]:
    """What a session makes, strict where that is fair."""
    with vkml.InferenceSession(
        model.SerializeToString(), devices=device, strict=runs_everything(device)
    ) as session:
        return session.run(None, dict(feed))


def runs_everything(device: str) -> bool:
    """Whether a device must leave the CPU nothing: SwiftShader has no bools and no indices of 64 bits."""
    [found] = [each for each in vkml.devices() if each.name == device]
    return device != "cpu" and "swiftshader" not in f"{found.title} {found.driver}".lower()


def check_all_on(device: str, models: Iterable[tuple[onnx.ModelProto, Mapping[str, Array]]]) -> None:
    """Runs models as one, and compares with the CPU."""
    whole: onnx.ModelProto | None = None
    feed: dict[str, Array] = {}
    expected: list[Array] = []
    for at, (model, given) in enumerate(models):
        expected += found_by(model, given)
        prefix = f"n{at}/"
        feed |= {f"{prefix}{key}": array for key, array in given.items()}
        part = compose.add_prefix(model, prefix)
        if whole is None:
            whole = part
            continue
        for field in ("node", "input", "output", "initializer"):
            getattr(whole.graph, field).extend(getattr(part.graph, field))
    assert whole is not None
    names = [output.name for output in whole.graph.output]
    for name, mine, theirs in zip(names, found_by(whole, feed, device), expected, strict=True):
        assert_same(mine, theirs, 1e-4, 1e-5, name)
