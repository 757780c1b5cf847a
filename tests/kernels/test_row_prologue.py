"""Products of few rows that normalise their rows: as exact as two launches, and only where these are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkml
from tests.kernels.test_decode_attention import HALVES, has
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.kernels import row_prologue
from vkml.onnx import save_graph

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


@pytest.fixture(autouse=True)
def everywhere() -> Iterator[None]:
    row_prologue.forced = True
    yield
    row_prologue.forced = None


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


class Layer(Sketch):
    """A normalisation of rows and products of it."""

    def __init__(self, op: str, x: Array, *, axis: int = -1, epsilon: float = 1e-5) -> None:
        super().__init__("layer", 23)
        self.x = x
        columns = x.shape[axis:]
        self.scale, self.bias = normal(2, *columns) + 1, normal(3, *columns)
        self.is_centred, self.axes, self.epsilon = op == "LayerNormalization", tuple(range(axis, 0)), epsilon
        self.given = self.input("x", x.shape, dtypes.from_numpy(x.dtype))
        vectors = [self.scale, self.bias] if self.is_centred else [self.scale]
        names = [self.constant(vector.astype(x.dtype)) for vector in vectors]
        self.normal = self.node(op, self.given, *names, axis=axis, epsilon=epsilon)

    def rows(self) -> Doubles:
        """What the normalisation makes, in float64."""
        x = self.x.astype(np.float64)
        scale, bias = (vector.astype(self.x.dtype).astype(np.float64) for vector in (self.scale, self.bias))
        if not self.is_centred:
            return x / np.sqrt(np.square(x).mean(axis=self.axes, keepdims=True) + self.epsilon) * scale
        x = x - x.mean(axis=self.axes, keepdims=True)
        return x / np.sqrt(np.square(x).mean(axis=self.axes, keepdims=True) + self.epsilon) * scale + bias

    def product(self, weights: Array, name: str = "") -> str:
        return self.node("MatMul", name or self.normal, self.constant(weights.astype(self.x.dtype)))

    def run(self, device: str, *outputs: str) -> tuple[list[Array], list[tuple[str, ...]]]:
        """What comes out, and the operators of each launch."""
        options = vkml.SessionOptions(guard_bytes=256)
        made = save_graph(self.finish(*outputs))
        with vkml.InferenceSession(made, options, devices=device, precision="highest") as session:
            found = session.run(None, {"x": self.x})
            return found, [tuple(step.operators) for step in session.report().steps]


def close(found: Array, exact: Doubles, limit: float = 3e-6) -> None:
    np.testing.assert_allclose(found, exact, rtol=limit, atol=limit * np.abs(exact).max())


OPS = ("LayerNormalization", "RMSNormalization")


@pytest.mark.parametrize("shape", [(1, 1, 96), (1, 300), (3, 70), (2, 2, 64)], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_a_product_normalises_its_rows(vulkan_device_name: str, op: str, shape: Sequence[int]) -> None:
    layer = Layer(op, normal(1, *shape) * 3 + 1)
    weights = normal(4, shape[-1], 130)
    [found], launches = layer.run(vulkan_device_name, layer.product(weights))
    assert launches == [(op, "MatMul")], launches
    close(found, layer.rows() @ weights)


def test_weights_along_their_rows(vulkan_device_name: str) -> None:
    """Gemm of a transposed matrix, as linear layers are exported, with what follows."""
    layer = Layer("LayerNormalization", normal(1, 2, 96))
    weights, bias = normal(4, 70, 96), normal(5, 70)
    product = layer.node("Gemm", layer.normal, layer.constant(weights), layer.constant(bias), transB=1)
    [found], launches = layer.run(vulkan_device_name, layer.node("Relu", product))
    assert launches == [("LayerNormalization", "Gemm", "Relu")], launches
    close(found, np.maximum(layer.rows() @ weights.T + bias, 0))


def test_all_products_of_a_normalisation_compute_it(vulkan_device_name: str) -> None:
    layer = Layer("LayerNormalization", normal(1, 1, 128))
    weights = [normal(seed, 128, 64) for seed in (4, 5, 6)]
    first, second, third = (layer.product(each) for each in weights)
    total = layer.node("Add", layer.node("Mul", first, second), third)
    found, launches = layer.run(vulkan_device_name, total, first)
    assert all(launch[:2] == ("LayerNormalization", "MatMul") for launch in launches), launches
    assert len(launches) == 3
    exact = [layer.rows() @ each for each in weights]
    close(found[0], exact[0] * exact[1] + exact[2], 1e-5)
    close(found[1], exact[0])


def test_rows_of_halves_are_rounded_once_less(vulkan_device_name: str) -> None:
    layer = Layer("LayerNormalization", normal(1, 2, 96).astype(np.float16))
    weights = normal(4, 96, 64).astype(np.float16)
    [found], launches = layer.run(vulkan_device_name, layer.product(weights))
    if has(vulkan_device_name, *HALVES):
        assert launches == [("LayerNormalization", "MatMul")], launches
    close(found, layer.rows() @ weights.astype(np.float64), 2e-3)


def test_rows_that_are_no_numbers(vulkan_device_name: str) -> None:
    x = normal(1, 4, 96)
    x[1, 3], x[2, 5], x[3] = np.nan, np.inf, 0
    for op in OPS:
        layer = Layer(op, x)
        weights = normal(4, 96, 64)
        [found], launches = layer.run(vulkan_device_name, layer.product(weights))
        assert launches == [(op, "MatMul")], launches
        assert np.isnan(found[1:3]).all()
        assert np.isfinite(found[[0, 3]]).all()


def test_whatever_else_reads_a_normalisation_has_it_made(vulkan_device_name: str) -> None:
    weights = normal(4, 96, 64)

    def launches(make: Any) -> list[tuple[str, ...]]:
        layer = Layer("LayerNormalization", normal(1, 2, 96))
        outputs, exact = make(layer)
        found, made = layer.run(vulkan_device_name, *outputs)
        for each, wanted in zip(found, exact, strict=True):
            close(each, wanted)
        return made

    def an_output(layer: Layer) -> Any:
        return [layer.product(weights), layer.normal], [layer.rows() @ weights, layer.rows()]

    def an_epilogue(layer: Layer) -> Any:
        square = normal(5, 96, 96)
        made = layer.node("Add", layer.product(square), layer.normal)
        return [made], [layer.rows() @ square + layer.rows()]

    def the_matrix(layer: Layer) -> Any:
        rows = layer.constant(normal(6, 3, 2))
        return [layer.node("MatMul", rows, layer.normal)], [normal(6, 3, 2) @ layer.rows()]

    def both(layer: Layer) -> Any:
        turned = layer.node("Transpose", layer.normal, perm=(1, 0))
        return [layer.node("MatMul", layer.normal, turned)], [layer.rows() @ layer.rows().T]

    for make in (an_output, an_epilogue, the_matrix, both):
        assert ("LayerNormalization",) in launches(make), make.__name__


def test_rows_that_are_many_or_long_are_made_once(vulkan_device_name: str) -> None:
    for shape in ((5, 64), (1, 9000)):
        layer = Layer("RMSNormalization", normal(1, *shape))
        weights = normal(4, shape[-1], 16)
        [found], launches = layer.run(vulkan_device_name, layer.product(weights))
        assert ("RMSNormalization",) in launches
        close(found, layer.rows() @ weights, 1e-5)


def test_products_of_many_workgroups_leave_it_to_one_launch(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than any device has at once."""
    row_prologue.forced = None
    monkeypatch.setattr(row_prologue, "RESIDENT_GROUPS", 0)
    layer = Layer("RMSNormalization", normal(1, 1, 64))
    weights = normal(4, 64, 6000)
    [found], launches = layer.run(vulkan_device_name, layer.product(weights))
    assert launches == [("RMSNormalization",), ("MatMul",)], launches
    close(found, layer.rows() @ weights)


def test_normalisations_over_two_axes(vulkan_device_name: str) -> None:
    """Rows of the product are parts of the rows that are normalised."""
    layer = Layer("LayerNormalization", normal(1, 1, 4, 64), axis=-2)
    weights = normal(4, 64, 80)
    [found], launches = layer.run(vulkan_device_name, layer.product(weights))
    assert ("LayerNormalization",) in launches
    close(found, layer.rows() @ weights)
