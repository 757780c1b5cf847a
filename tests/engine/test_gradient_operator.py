"""Gradient of ai.onnx.preview.training in sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import vkml
from vkml.errors import InvalidGraph

Array = np.ndarray[Any, Any]
DOMAIN = "ai.onnx.preview.training"


def model(text: str) -> bytes:
    header = f'<ir_version: 8, opset_import: ["" : 18, "{DOMAIN}" : 1]>'
    return bytes(onnx.parser.parse_model(f"{header} {text}").SerializeToString())


def run(text: str, device: str, **feed: Any) -> list[Array]:
    session = vkml.InferenceSession(model(text), devices=[device])
    found = [session.run(None, feed) for _ in range(2)]  # the second by what was kept
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    return list(found[0])


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LINEAR = """
agraph (float[4,3] x, float[3,2] w, float[2] b) => (float[4,2] y, float[3,2] dw, float[2] db) {
    p = MatMul (x, w)
    s = Add (p, b)
    y = Tanh (s)
    dw, db = ai.onnx.preview.training.Gradient <xs = ["w", "b"], zs = ["x"], y = "y"> (w, b, x)
}"""


def test_gradients_of_a_layer(device_name: str) -> None:
    x, w, b = normal(0, 4, 3), normal(1, 3, 2), normal(2, 2)
    y, dw, db = run(LINEAR, device_name, x=x, w=w, b=b)
    slope = 1 - np.tanh(x @ w + b) ** 2
    np.testing.assert_allclose(dw, x.T @ slope, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(db, slope.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y, np.tanh(x @ w + b), rtol=1e-4, atol=1e-5)


def test_open_sizes() -> None:
    text = LINEAR.replace("[4,", "[n,")
    session = vkml.InferenceSession(model(text))
    w, b = normal(1, 3, 2), normal(2, 2)
    for rows in (4, 7, 4, 1):
        x = normal(rows, rows, 3)
        slope = 1 - np.tanh(x @ w + b) ** 2
        np.testing.assert_allclose(
            session.run(["dw"], {"x": x, "w": w, "b": b})[0], x.T @ slope, rtol=1e-4, atol=1e-5
        )


def test_derivatives_of_derivatives(device_name: str) -> None:
    text = """
    agraph (float x) => (float first, float second) {
        two = Constant <value = float {4.0}> ()
        y = Pow (x, two)
        first = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
        second = ai.onnx.preview.training.Gradient <xs = ["x"], y = "first"> (x)
    }"""
    first, second = run(text, device_name, x=np.float32(1.5))
    assert first == pytest.approx(4 * 1.5**3) and second == pytest.approx(12 * 1.5**2)


def test_other_points_intermediate_tensors_and_what_does_not_matter() -> None:
    text = """
    agraph (float[2] x, float[2] at, float[2] z) => (float[2] dh, float[2] dz) {
        h = Exp (x)
        y = Mul (h, h)
        dh, dz = ai.onnx.preview.training.Gradient <xs = ["h", "z"], y = "y"> (at, z)
    }"""
    dh, dz = run(text, "cpu", x=normal(0, 2), at=np.array([3.0, -1.0], np.float32), z=normal(1, 2))
    np.testing.assert_allclose(dh, [6.0, -2.0], rtol=1e-6)
    np.testing.assert_array_equal(dz, np.zeros(2))


def test_through_a_loop() -> None:
    text = """
    agraph (float x, int64 n) => (float dx) {
        y = Loop (n, "", x) <
            body = b (int64 i, bool goes, float a) => (bool on, float made) {
                on = Constant <value = bool {1}> ()
                made = Mul (a, a)
            }
        >
        dx = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
    }"""
    for trips in (1, 3, 2):
        [dx] = run(text, "cpu", x=np.float32(1.1), n=np.array(trips))
        assert dx == pytest.approx(2**trips * 1.1 ** (2**trips - 1), rel=1e-5)


def test_nodes_that_are_wrong() -> None:
    with pytest.raises(InvalidGraph, match="nothing in the graph makes 'q'"):
        vkml.InferenceSession(model(LINEAR.replace('y = "y"', 'y = "q"')))
    with pytest.raises(InvalidGraph, match="names 2 tensors and has 3 inputs"):
        vkml.InferenceSession(model(LINEAR.replace('zs = ["x"], ', "")))


def test_models_with_gradients_learn() -> None:
    found = vkml.nn.from_onnx(model(LINEAR))
    w = vkml.tensor(normal(1, 3, 2), requires_grad=True)
    _, dw, _ = found(vkml.tensor(normal(0, 4, 3)), w, vkml.tensor(normal(2, 2)))
    (dw * dw).sum().backward()
    assert w.grad is not None and np.isfinite(w.grad.numpy()).all() and w.grad.numpy().any()
