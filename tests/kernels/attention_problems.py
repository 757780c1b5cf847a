"""Problems of attention with their exact results, and devices that run them in small variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

import vkml
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.kernels import attention
from vkml.kernels.attention_variants import (
    Variant,
)
from vkml.kernels.packed_weights import Fragment
from vkml.onnx import save_graph

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

LARGE = -3.4028234663852886e38
"""The least float32, which masks are made of."""


@dataclass(frozen=True)
class Unit:
    """A device with matrix units."""

    name: str
    fragment: Fragment


def force(unit: Unit, head: int = 16, **changes: Any) -> None:
    """Two subgroups, small, because lavapipe compiles for seconds."""
    base = Variant(unit.fragment, head, unit.fragment.m, unit.fragment.k, 2)
    attention.forced = replace(base, **changes)
    attention.forced.check()


def normal(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@dataclass
class Problem:
    """An attention: operands, and what becomes of scores."""

    q: Array
    k: Array
    v: Array
    scale: float = 0.2
    mask: Array | None = None
    fill: float = -np.inf
    bias: Array | None = None
    is_mask_hiding: bool = False
    constants: tuple[str, ...] = ()
    """Of mask and bias, those that are the model's."""
    is_cleared: bool = False
    """Whether zeros take the place of probabilities that are NaN."""

    def model(self, sizes: dict[str, Sequence[Any]] | None = None) -> bytes:
        """As exporters write it."""
        sketch = Sketch("attention")
        names: dict[str, str] = {}
        for name in ("q", "k", "v", "mask", "bias"):
            array = getattr(self, name)
            if array is None:
                continue
            if name in self.constants:
                names[name] = sketch.constant(array)
            else:
                shape = (sizes or {}).get(name, array.shape)
                names[name] = sketch.input(name, shape, dtypes.from_numpy(array.dtype))
        dtype, rank = self.q.dtype, self.k.ndim
        order = (*range(rank - 2), rank - 1, rank - 2)
        scores = sketch.node("MatMul", names["q"], sketch.node("Transpose", names["k"], perm=order))
        scores = sketch.node("Mul", scores, sketch.constant(np.array(self.scale, dtype)))
        if self.mask is not None:
            parts = [scores, sketch.constant(np.array(self.fill, dtype))]
            parts = parts[::-1] if self.is_mask_hiding else parts
            scores = sketch.node("Where", names["mask"], *parts)
        if self.bias is not None:
            scores = sketch.node("Add", scores, names["bias"])
        weights = sketch.node("Softmax", scores, axis=-1)
        if self.is_cleared:
            zero = sketch.constant(np.zeros((), dtype))
            weights = sketch.node("Where", sketch.node("IsNaN", weights), zero, weights)
        mixed = sketch.node("MatMul", weights, names["v"])
        return save_graph(sketch.finish(mixed))

    @property
    def feed(self) -> dict[str, Array]:
        found = {name: getattr(self, name) for name in ("q", "k", "v", "mask", "bias")}
        return {n: a for n, a in found.items() if a is not None and n not in self.constants}

    def exact(self, rounded: Callable[[Array], Doubles] = lambda x: x.astype(np.float64)) -> Doubles:
        """In float64, operands of products rounded."""
        with np.errstate(all="ignore"):
            scores = rounded(self.q) @ rounded(self.k).swapaxes(-1, -2) * float(self.q.dtype.type(self.scale))
            if self.mask is not None:
                keeps = ~self.mask if self.is_mask_hiding else self.mask
                scores = np.where(keeps, scores, float(self.q.dtype.type(self.fill)))
            if self.bias is not None:
                scores = scores + self.bias.astype(np.float64)
                scores = scores.astype(np.float32).astype(np.float64)  # -1e38 swallows what is added
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            return rounded(weights.astype(np.float32)) @ rounded(self.v)


def tf32(x: Array) -> Doubles:
    """Rounded to ten bits of mantissa."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bits = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


def run(
    unit: Unit, model: bytes, *feeds: dict[str, Array], precision: str = "high", is_fused: bool = True
) -> list[Array]:
    """First outputs, with guard zones round everything; by the attention kernel, unless not `is_fused`."""
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=unit.name, precision=precision) as session:
        found = [session.run(None, feed)[0] for feed in feeds]
        kernels = [step.kernel for step in session.report().steps]
    assert ("attention" in kernels) == is_fused, kernels
    return found


def error(found: Array, exact: Doubles) -> float:
    """Relative L2 error."""
    difference = found.astype(np.float64) - exact
    return float(np.linalg.norm(difference) / np.linalg.norm(exact))


def worst(found: Array, exact: Doubles) -> float:
    """The largest relative L2 error of a row."""
    difference = np.linalg.norm(found.astype(np.float64) - exact, axis=-1)
    return float((difference / np.linalg.norm(exact, axis=-1)).max())


def check(unit: Unit, problem: Problem, allowance: float = 1.05) -> None:
    """No worse than TF32 of the same operands, but for chance: the fewer the rows, the more of it."""
    [found] = run(unit, problem.model(), problem.feed)
    exact = problem.exact()
    assert np.isfinite(found).all()
    if problem.q.dtype == np.float16:
        assert error(found, exact) < 5e-4  # probabilities and results rounded once each
    else:
        assert error(found, exact) <= allowance * error(problem.exact(tf32), exact)


def operands(
    queries: int, keys: int, head: int, *, batch: Sequence[int] = (2, 3), dtype: Any = np.float32
) -> Problem:
    q, k, v = (normal(seed, *batch, rows, head) for seed, rows in ((1, queries), (2, keys), (3, keys)))
    q *= np.random.default_rng(4).choice(np.array([1, 4], np.float32), (*q.shape[:-1], 1))
    return Problem(q.astype(dtype), k.astype(dtype), v.astype(dtype), head**-0.5)
