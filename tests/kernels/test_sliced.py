"""Products whose steps the threads of a workgroup share; software devices do not choose them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import vkml
import vkml.engine.devices
from tests.kernels.test_tiles import lavapipe
from tests.vulkan_cases import Cases
from vkml.engine.sketch import Sketch
from vkml.kernels import sliced
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph

__all__ = ["lavapipe"]


@pytest.fixture
def forced() -> Iterator[None]:
    yield
    sliced.forced = None


@pytest.mark.parametrize(
    "shape",
    [
        sliced.Shape(16, 16, 16, 1),
        sliced.Shape(16, 32, 8, 2),
        sliced.Shape(32, 16, 4, 3),
        sliced.Shape(32, 32, 4, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_shapes(lavapipe: str, forced: None, shape: sliced.Shape, name: str) -> None:
    sliced.forced = shape
    generator = np.random.default_rng(5)

    def normal(*sizes: int) -> np.ndarray:
        return (generator.standard_normal(sizes) / 4).astype(name)

    cases = Cases(seed=1)
    sizes = [(16, 64, 16), (64, 784, 40), (33, 100, 20), (20, 32, 33), (6, 7, 9), (35, 5, 64), (64, 1, 64)]
    # Each costs four compilations: one type has every other one of a shape, the other type the rest.
    for m, k, n in sizes[(shape.n // 16 + (name == "float32")) % 2 :: 2]:
        a, b, c = normal(m, k), normal(k, n), normal(n)
        atol = 2e-5 if name == "float32" else 4e-3
        cases.add("Gemm", a, b, c, atol=atol)
        cases.add("Gemm", np.ascontiguousarray(a.T), b, transA=1, atol=atol)
        cases.add("Gemm", a, np.ascontiguousarray(b.T), c, transB=1, atol=atol)
        cases.add("MatMul", normal(3, m, k), normal(3, k, n), atol=atol)
    cases.check(lavapipe)


def test_what_a_large_gpu_gets(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few results and many steps are shared; many results, few steps or very many steps are not."""
    real = vkml.engine.devices.target_of
    monkeypatch.setattr(
        vkml.engine.devices,
        "target_of",
        lambda info, precision="highest": replace(real(info, precision), processors=132),
    )
    forget_lowerings()
    found = {}
    generator = np.random.default_rng(6)
    sizes = ((64, 784, 256), (64, 128, 10), (512, 784, 256), (64, 16, 64), (1024, 256, 1024), (64, 4096, 64))
    sizes += ((256, 512, 784), (784, 512, 256))  # either way round
    for m, k, n in sizes:
        sketch = Sketch("product")
        a, b = sketch.input("a", (m, k)), sketch.input("b", (k, n))
        model = save_graph(sketch.finish(sketch.node("MatMul", a, b)))
        x, y = (generator.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        # Of "high", a GPU multiplies the larger ones in pieces of bfloat16.
        with vkml.InferenceSession(model, devices=lavapipe, precision="highest") as session:
            [made] = session.run(None, {"a": x, "b": y})
            found[m, k, n] = any("slices" in step.variant for step in session.report().steps)
        np.testing.assert_allclose(made, x.astype(np.float64) @ y, rtol=1e-4, atol=2e-4)
    assert [found[size] for size in sizes] == [True, True, True, False, False, False, True, True]
