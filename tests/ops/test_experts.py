"""Mixtures of experts against onnxruntime, and where its CPU has none, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import assert_same, run_reference
from tests.ops.extension_cases import found_by, model_of
from vkml.errors import InvalidGraph, NotImplemented, ShapeError

Array = np.ndarray[Any, Any]
EXPERTS, COLUMNS, INNER = 4, 8, 16


def real(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def given(rows: int, experts: int = EXPERTS, *, fused: int = 1, gated: bool = False) -> list[Array | None]:
    """Inputs of MoE: `fused` times as many columns of the first layer."""
    inner = fused * INNER
    layers = [real(experts, inner, COLUMNS), real(experts, inner)]
    layers += [real(experts, COLUMNS, INNER), real(experts, COLUMNS)]
    if gated:
        layers += [real(experts, INNER, COLUMNS, seed=1), real(experts, INNER, seed=3)]
    return [real(rows, COLUMNS), 2 * real(rows, experts), *layers]


SWIGLU = {"activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.0}
CASES: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    **{
        f"{name}, k={k}": (given(5), {"activation_type": name, "k": k, "normalize_routing_weights": k - 1})
        for name, k in (("relu", 1), ("gelu", 2), ("silu", 2), ("identity", 1))
    },
    "no biases": ([*given(5)[:3], None, given(5)[4]], {"activation_type": "relu", "k": 2}),
    "in turns": (given(5, fused=2), {**SWIGLU, "swiglu_fusion": 1, "k": 2}),
    "batches": ([real(2, 3, COLUMNS), *given(6)[1:]], {"k": 2}),
    "one row of many experts": (given(1, 20), {"activation_type": "silu", "k": 2}),
    "two rows of many experts": (
        given(2, 20, fused=2),
        {**SWIGLU, "swiglu_fusion": 1, "k": 3, "normalize_routing_weights": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str, either_device_name: str) -> None:
    inputs, attributes = CASES[name]
    model, feed = model_of("MoE", inputs, attributes, "y")
    [wanted], [found] = run_reference(model, feed), found_by(model, feed, either_device_name)
    assert_same(found, wanted, 2e-5, 2e-5)


def by_numpy(inputs: list[Any], k: int, alpha: float, beta: float, limit: float, fusion: int) -> Array:
    x, scores, first, of_first, second, of_second, *gate = inputs
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    made = np.zeros_like(x)
    for row in range(len(x)):
        for expert in np.argsort(-shares[row])[:k]:
            hidden = first[expert] @ x[row] + of_first[expert]
            beside = gate[0][expert] @ x[row] + gate[1][expert] if gate else None
            if fusion == 2:
                hidden, beside = np.split(hidden, 2)
            hidden, beside = np.minimum(hidden, limit), np.clip(beside, -limit, limit)
            hidden = hidden / (1 + np.exp(-alpha * hidden)) * (beside + beta)
            made[row] += shares[row, expert] * (second[expert] @ hidden + of_second[expert])
    return made


@pytest.mark.parametrize(("fusion", "rows"), [(0, 5), (2, 5), (2, 1)])
def test_gates_beside_and_behind(fusion: int, rows: int) -> None:
    inputs = given(rows, 9, fused=2 if fusion else 1, gated=not fusion)
    model, feed = model_of("MoE", inputs, {**SWIGLU, "swiglu_fusion": fusion, "k": 2}, "y")
    [found] = found_by(model, feed)
    assert_same(found, by_numpy(inputs, 2, 1.702, 1.0, 1.0, fusion), 2e-5, 2e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"activation_type": "tanh"}, InvalidGraph, "one of relu"),
        ({"k": 5}, ShapeError, "5 of 4 experts"),
        ({"activation_type": "swiglu"}, InvalidGraph, "wants a gate's weights"),
        ({"use_sparse_mixer": 1}, NotImplemented, "use_sparse_mixer"),
    ],
)
def test_what_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    model, feed = model_of("MoE", given(3), change, "y")
    with pytest.raises(error, match=message):
        found_by(model, feed)


def test_weights_of_another_shape_are_refused() -> None:
    inputs = given(3)
    inputs[4] = real(EXPERTS, COLUMNS, INNER + 1)
    model, feed = model_of("MoE", inputs, {}, "y")
    with pytest.raises(vkml.Error, match="input 4 has the shape"):
        found_by(model, feed)
