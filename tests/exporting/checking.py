"""Exported models beside what they were exported from: ONNX's checker, onnxruntime, vkml's sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

import vkml

Array = np.ndarray[Any, Any]


def checked(made: bytes) -> onnx.ModelProto:
    """The model, which ONNX's checker and its shape inference take."""
    model = onnx.load_from_string(made)
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain for entry in model.opset_import} == {""}
    return model


def reference(made: bytes, feeds: Mapping[str, Array]) -> list[Array]:
    """What onnxruntime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def session_of(made: bytes, device: str = "cpu") -> vkml.InferenceSession:
    """A session on a device, and on the CPU for what it lacks."""
    return vkml.InferenceSession(made, devices=[device] if device == "cpu" else [device, "cpu"])


def flat(value: Any) -> list[Array]:
    """The tensors of nested results, as arrays."""
    if isinstance(value, vkml.Tensor):
        return [value.detach().cpu().numpy()]
    if isinstance(value, Mapping):
        return [array for item in value.values() for array in flat(item)]
    return [] if value is None else [array for item in value for array in flat(item)]


def close(found: Sequence[Array], wanted: Sequence[Array], what: str, rtol: float = 1e-4) -> None:
    """Raises where results differ by more than a share of themselves and of the greatest."""
    assert len(found) == len(wanted), what
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype, f"{what}: {one.dtype}{one.shape}"
        wide, right = one.astype(np.float64), other.astype(np.float64)
        finite = np.abs(right[np.isfinite(right)])
        np.testing.assert_allclose(wide, right, rtol, rtol * finite.max(initial=0) + 1e-7, err_msg=what)
