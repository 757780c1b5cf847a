"""Sessions of these tests have guard zones, whoever makes their options."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from tests.kernels.conftest import GUARD_BYTES
from vkml.engine.sketch import Sketch
from vkml.onnx import save_graph


@pytest.mark.parametrize("has_options", [False, True])
def test_a_session_has_guard_zones(vulkan_device_name: str, has_options: bool) -> None:
    sketch = Sketch("sum")
    model = save_graph(sketch.finish(sketch.node("Neg", sketch.input("x", (3,)))))
    options = vkml.SessionOptions(log_severity_level=3) if has_options else None
    with vkml.InferenceSession(model, options, devices=vulkan_device_name) as session:
        session.run(None, {"x": np.ones(3, np.float32)})
        [plan] = session._runner.plans.kept.values()
        assert [program._guard_bytes for program in plan.programs] == [GUARD_BYTES]
