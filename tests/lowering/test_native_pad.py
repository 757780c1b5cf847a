"""Pad in machine code: modes, types, crops, fills, layouts; what it leaves to NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml.cpu.native.executable import instruction_set
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]

if instruction_set() is None:
    pytest.skip("no machine code here", allow_module_level=True)

PADS = ((3, 0), (1, 5), (-1, 2), (0, -3))
TYPES = {"float32": np.nan, "float16": -2.5, "float64": np.inf, "int64": 2**40, "uint8": 7, "bool": True}


def padded(x: Array, mode: str, fill: Any, pads: tuple[tuple[int, int], ...] = PADS) -> Array:
    """By NumPy's own function."""
    crops = [slice(max(-b, 0), size - max(-e, 0)) for size, (b, e) in zip(x.shape, pads, strict=True)]
    added = [(max(b, 0), max(e, 0)) for b, e in pads]
    settings = {"constant_values": np.asarray(fill, x.dtype)} if mode == "constant" else {}
    return np.pad(x[tuple(crops)], added, mode, **settings)  # type: ignore[call-overload,no-any-return]


def run(x: Array, mode: str, fill: Any, pads: tuple[tuple[int, int], ...] = PADS) -> tuple[Array, bool]:
    """What a session on the CPU makes of it, and whether by machine code."""
    sketch = Sketch("padded", 21)
    sides = [side for sides in zip(*pads, strict=True) for side in sides]
    inputs = [sketch.input("x", x.shape, dtypes.from_numpy(x.dtype)), sketch.constant(np.array(sides))]
    if fill is not None:
        inputs.append(sketch.constant(np.asarray(fill, x.dtype)))
    # Read by another node, too, so that it does not lie where the caller gets it.
    made = sketch.node("Transpose", sketch.node("Pad", *inputs, mode=mode), perm=tuple(range(x.ndim))[::-1])
    with vkml.InferenceSession(save_graph(sketch.finish(made)), devices="cpu") as session:
        [found] = session.run(None, {"x": x})
        return found.T, all(step.variant != "numpy" for step in session.report().steps)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("dtype", TYPES)
def test_modes_and_types(mode: str, dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 9, (4, 6, 7, 8)).astype(dtype)
    for fill in (TYPES[dtype], None) if mode == "constant" else (None,):
        found, is_native = run(x, mode, fill)
        np.testing.assert_array_equal(found, padded(x, mode, fill or 0))
        assert found.dtype == x.dtype and is_native


def test_nothing_but_the_fill() -> None:
    for shape, pads in (((0, 3), ((1, 2), (0, 1))), ((2,), ((-2, 4),))):
        found, is_native = run(np.ones(shape, np.float32), "constant", 5, pads)
        sizes = [size + begin + end for size, (begin, end) in zip(shape, pads, strict=True)]
        np.testing.assert_array_equal(found, np.full(sizes, 5))
        assert is_native


def test_more_than_there_is_comes_again_by_numpy() -> None:
    x = np.arange(3, dtype=np.float32)
    for mode in ("reflect", "wrap"):
        found, is_native = run(x, mode, None, ((7, 5),))
        np.testing.assert_array_equal(found, padded(x, mode, None, ((7, 5),)))
        assert not is_native


def test_images_with_their_channels_side_by_side() -> None:
    rng = np.random.default_rng(0)
    sketch = Sketch("images", 18)
    x = sketch.input("x", (1, 5, 6, 7))
    one = sketch.constant(rng.standard_normal((9, 5, 1, 1)).astype(np.float32))
    made = sketch.node("Conv", x, one)
    spaces = sketch.constant(np.array([0, 0, 1, 2, 0, 0, 3, 4]))
    weight = rng.standard_normal((4, 9, 3, 3)).astype(np.float32)
    y = sketch.node("Conv", sketch.node("Pad", made, spaces, mode="reflect"), sketch.constant(weight))
    values = rng.standard_normal((1, 5, 6, 7)).astype(np.float32)
    with vkml.InferenceSession(save_graph(sketch.finish(made, y)), devices="cpu") as session:
        convolved, found = session.run(None, {"x": values})
        assert all(step.variant != "numpy" for step in session.report().steps)
    surrounded = padded(convolved, "reflect", None, ((0, 0), (0, 0), (1, 3), (2, 4)))
    windows = np.lib.stride_tricks.sliding_window_view(surrounded, (3, 3), (2, 3))
    np.testing.assert_allclose(found, np.einsum("ncyxij,fcij->nfyx", windows, weight), rtol=1e-4, atol=1e-4)
