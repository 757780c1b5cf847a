"""Operators of com.microsoft that are a few of ONNX's, against onnxruntime, or NumPy where it lacks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.ops.checking import assert_same, build_model, run_reference
from tests.ops.extension_cases import check_all_on, found_by, model_of
from vkml.errors import Error

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(905)


def real(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


X, COLUMNS = real(2, 3, 8), [real(8) for _ in range(3)]
WORDS, SEGMENTS = RANDOM.integers(0, 5, (2, 3)).astype(np.int32), np.array([[0, 1, 1], [1, 0, 0]], np.int32)
TABLES = [real(6, 8), real(7, 8), real(2, 8)]
MASK = np.array([[1, 1, 0], [1, 0, 0]], np.int32)
IMAGE, FILTER = real(2, 4, 6, 5), real(6, 2, 3, 3)
WINDOWS = {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1], "kernel_shape": [3, 3]}
LEAKING = {"activation": "LeakyRelu", "activation_alpha": 0.2}
LAST = np.moveaxis(IMAGE, 1, -1).copy()

DECAY = [-np.abs(real(1, 3, 2)), real(1, 3, 2)]
CASES: dict[str, tuple[list[Array | None], dict[str, Any], Sequence[str]]] = {
    "Gelu": ([X], {}, "y"),
    "BiasGelu": ([X, COLUMNS[0]], {}, "y"),
    "FastGelu": ([X], {}, "y"),
    "FastGelu with a bias": ([X, COLUMNS[0]], {}, "y"),
    "QuickGelu": ([X], {}, "y"),
    "QuickGelu of another slope": ([X], {"alpha": 1.1}, "y"),
    "FusedMatMul": ([X, real(8, 5)], {"alpha": 0.3}, "y"),
    "FusedMatMul transposed": ([real(2, 8, 3), real(2, 5, 8)], {"transA": 1, "transB": 1}, "y"),
    "FusedMatMul of batches behind": ([real(3, 2, 8), real(2, 8, 5)], {"transBatchA": 1}, "y"),
    "FusedMatMul of both": (
        [real(8, 2, 4, 3), real(5, 2, 4, 8)],
        {"transA": 1, "transB": 1, "transBatchA": 1, "transBatchB": 1, "alpha": 0.5},
        "y",
    ),
    "FusedMatMul of a vector": ([real(8), real(8, 5)], {"transA": 1}, "y"),
    "TransposeMatMul": ([real(8, 4), real(8, 5)], {"transA": 1}, "y"),
    "FusedGemm": ([real(3, 8), real(5, 8), real(5)], {"transB": 1, "beta": 0.5, "activation": "Relu"}, "y"),
    "FusedGemm leaking": ([real(3, 8), real(8, 5)], LEAKING, "y"),
    "FusedConv": ([IMAGE, FILTER, real(6)], {**WINDOWS, "activation": "Relu"}, "y"),
    "FusedConv alone": ([IMAGE, FILTER], WINDOWS, "y"),
    "FusedConv with a sum": (
        [IMAGE, FILTER, real(6), real(2, 6, 3, 4)],
        {**WINDOWS, "activation": "Clip", "activation_params": [-0.5, 1.0]},
        "y",
    ),
    "FusedConv of a gate": (
        [IMAGE, FILTER, real(6)],
        {**WINDOWS, "activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
        "y",
    ),
    "SkipLayerNormalization": ([X, real(2, 3, 8), *COLUMNS[:2]], {}, "ymis"),
    "SkipLayerNormalization with a bias": ([X, real(3, 8), *COLUMNS], {"epsilon": 1e-3}, ["y", "", "", "s"]),
    "SkipLayerNormalization without a shift": ([X, real(1, 3, 8), COLUMNS[0]], {}, "y"),
    "SkipSimplifiedLayerNormalization": ([X, real(2, 3, 8), *COLUMNS[:2]], {}, ["y", "", "i", "s"]),
    "SkipSimplifiedLayerNormalization alone": ([X, real(2, 3, 8), COLUMNS[0]], {"epsilon": 1e-3}, "y"),
    "EmbedLayerNormalization": ([WORDS, SEGMENTS, *TABLES, *COLUMNS[:2], MASK], {}, "yms"),
    "Inverse": ([real(2, 3, 3)], {}, "y"),
    "GridSample": ([IMAGE, RANDOM.uniform(-1.2, 1.2, (2, 3, 3, 2)).astype(np.float32)], {}, "y"),
    "Trilu": ([real(4, 5)], {"upper": 0}, "y"),
    "Pad": ([real(3, 4), np.array([1, 0, 0, 2]), np.full(1, 7, np.float32)], {}, "y"),
    "GatherND": ([real(3, 4), np.array([[1], [0]])], {}, "y"),
    "ExpandDims": ([real(3, 4), np.array(-1, np.int32)], {}, "y"),
    "LinearAttention": (
        [*(real(1, 3, 8) for _ in range(3)), None, *DECAY], {"q_num_heads": 2, "kv_num_heads": 2}, "ys",
    ),
    "EmbedLayerNormalization of places": (
        [WORDS, None, *TABLES[:2], None, *COLUMNS[:2], None, WORDS[:1]],
        {"epsilon": 1e-3},
        "ym",
    ),
}  # fmt: skip


def expected_conv(x: Array, *rest: Array, **attributes: Any) -> list[Any]:
    made = run_reference(build_model("Conv", [np.moveaxis(x, -1, 1).copy(), *rest[:2]], WINDOWS), dict(
        zip(("x0", "x1", "x2"), (np.moveaxis(x, -1, 1).copy(), *rest[:2]), strict=False)
    ))[0]  # fmt: skip
    made = np.moveaxis(made, 1, -1) + (rest[2] if len(rest) > 2 else 0)
    return [np.maximum(made, 0) if "activation" in attributes else made]


def expected_groups(x: Array, scale: Array, shift: Array, *more: Array, **attributes: Any) -> list[Array]:
    wide = x.astype(np.float64)
    for each in more:
        wide = wide + (each if each.ndim != 2 else each[:, None, None])
    last = wide if attributes.get("channels_last", 1) else np.moveaxis(wide, 1, -1)
    groups = last.reshape(last.shape[0], -1, attributes["groups"], last.shape[-1] // attributes["groups"])
    normal = groups - groups.mean((1, 3), keepdims=True)
    normal /= np.sqrt((normal**2).mean((1, 3), keepdims=True) + 1e-5)
    made = normal.reshape(last.shape) * scale + shift
    if attributes["activation"]:
        made = made / (1 + np.exp(-made))
    made = made if attributes.get("channels_last", 1) else np.moveaxis(made, -1, 1)
    return [made.astype(np.float32), wide.astype(np.float32)]


def gelu(x: Array) -> Array:
    from math import erf

    return x * (0.5 + 0.5 * np.vectorize(erf)(x / np.sqrt(2)))


GROUPS = {"groups": 2, "activation": 1}
LACKING: dict[str, tuple[list[Array], dict[str, Any], Sequence[str], Callable[..., list[Array]]]] = {
    "NhwcConv": ([LAST, FILTER, real(6)], WINDOWS, "y", expected_conv),
    "NhwcFusedConv": (
        [LAST, FILTER, real(6), real(2, 3, 4, 6)],
        {**WINDOWS, "activation": "Relu"},
        "y",
        expected_conv,
    ),
    "FusedMatMulActivation": (
        [real(8, 3), real(8, 5)],
        {"transA": 1, "alpha": 0.5, "activation": "Tanh"},
        "y",
        lambda a, b, **_: [np.tanh(0.5 * a.T @ b)],
    ),
    "BiasAdd": ([X, COLUMNS[0], real(2, 3, 8)], {}, "y", lambda *given: [sum(given)]),
    "BiasSplitGelu": (
        [X, COLUMNS[0]], {}, "y", lambda x, b: [(x + b)[..., :4] * gelu((x + b)[..., 4:]).astype(np.float32)],
    ),
    "GroupNorm": ([LAST, real(4), real(4)], GROUPS, "y", expected_groups),
    "GroupNorm of channels first": (
        [IMAGE, real(4), real(4)],
        {"groups": 2, "activation": 0, "channels_last": 0},
        "y",
        expected_groups,
    ),
    "SkipGroupNorm": ([LAST, real(4), real(4), real(2, 4), real(4)], GROUPS, "ys", expected_groups),
}  # fmt: skip


def case(name: str) -> tuple[Any, dict[str, Array]]:
    inputs, attributes, outputs = (CASES[name] if name in CASES else LACKING[name])[:3]
    return model_of(name.split()[0], inputs, attributes, outputs)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str) -> None:
    model, feed = case(name)
    for mine, theirs in zip(found_by(model, feed), run_reference(model, feed), strict=True):
        assert_same(mine, theirs, 1e-5, 1e-5, name)


@pytest.mark.parametrize("name", LACKING)
def test_agrees_with_numpy(name: str) -> None:
    inputs, attributes, outputs, compute = LACKING[name]
    model, feed = case(name)
    expected = compute(*inputs, **attributes)
    for mine, theirs in zip(found_by(model, feed), expected[: len(outputs)], strict=True):
        assert_same(mine, theirs, 1e-5, 1e-5, name)


def test_a_device_runs_them_all(vulkan_device_name: str) -> None:
    names = [name for name in (*CASES, *LACKING) if name != "Inverse"]  # which is the host's
    check_all_on(vulkan_device_name, map(case, names))


@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_layer_normalization_of_onnx(axis: int) -> None:
    inputs = [X, X[0] if axis == 1 else COLUMNS[0]]
    attributes = {"axis": axis, "epsilon": 1e-3}
    model = build_model("SimplifiedLayerNormalization", inputs, attributes, opset=21, outputs=2)
    feed = {f"x{at}": x for at, x in enumerate(inputs)}
    for mine, theirs in zip(found_by(model, feed), run_reference(model, feed), strict=True):
        assert_same(mine, theirs, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("FusedGemm", [real(2, 2), real(2, 2)], {"activation": "Loud"}, "'Loud' is none of Celu"),
        ("FusedMatMul", [real(2, 2), real(2, 2)], {"transBatchA": 1}, "A must have rank 3"),
        ("FusedMatMul", [real(2, 3), real(2, 2)], {}, r"FusedMatMul node 'checked' \(in its body, MatMul\)"),
        ("NhwcConv", [real(2, 2), FILTER], {}, "rank 3"),
        ("GroupNorm", [LAST, real(4), real(4)], {"groups": 2, "activation": 2}, "activation is 0 or 1"),
        ("EmbedLayerNormalization", [WORDS, None, *TABLES, *COLUMNS[:2]], {}, "come together"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    op: str, inputs: list[Array], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(Error, match=message):
        found_by(*model_of(op, inputs, attributes, "y"))
