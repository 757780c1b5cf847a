"""Gradients of normalisations and Dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import away_from, check, leaf, normal
from vkml import tracing
from vkml.errors import NotDifferentiable
from vkml.ir.dtypes import BFLOAT16
from vkml.tracing import apply, apply_all, value_of

torch = pytest.importorskip("torch")
F = torch.nn.functional
EPSILON = float(np.float32(1e-5))


def inputs_of(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    generator = np.random.default_rng(seed)
    return [normal(generator, *shape) for shape in shapes]


def standardised(x: Any, axes: list[int]) -> tuple[Any, Any, Any]:
    mean = x.mean(axes, keepdim=True)
    inverse = 1 / ((x - mean).square().mean(axes, keepdim=True) + EPSILON).sqrt()
    return (x - mean) * inverse, mean, inverse


def layer(x: Any, axis: int, scale: Any, bias: Any = 0.0) -> list[Any]:
    made, mean, inverse = standardised(x, list(range(axis % x.ndim, x.ndim)))
    return [made * scale + bias, mean, inverse]


@pytest.mark.parametrize(
    ("shape", "scale", "bias", "axis"),
    [
        ((3, 6), (6,), (6,), -1),
        ((3, 6), (6,), None, -1),
        ((2, 3, 4), (3, 4), (4,), 1),
        ((2, 3, 4), (1,), (2, 1, 1), 2),
        ((4,), (), (4,), 0),
    ],
    ids=str,
)
def test_layer_normalization(
    shape: tuple[int, ...], scale: tuple[int, ...], bias: tuple[int, ...] | None, axis: int
) -> None:
    inputs = inputs_of(shape, scale, *([] if bias is None else [bias]))
    check("LayerNormalization", inputs, {"axis": axis}, torch=lambda x, *rest: layer(x, axis, *rest)[0])


def test_layer_normalization_on_devices(device_name: str) -> None:
    inputs = inputs_of((3, 8), (8,), (8,))
    check(
        "LayerNormalization",
        inputs,
        torch=lambda x, scale, bias: F.layer_norm(x, (8,), scale, bias, EPSILON),
        differences=False,
        device=device_name,
    )


@pytest.mark.parametrize("counted", [(0,), (1,), (2,), (1, 2), (0, 2), (0, 1, 2)], ids=str)
def test_statistics_of_layer_normalization(counted: tuple[int, ...]) -> None:
    x, scale, bias = (leaf(array, None) for array in inputs_of((3, 4), (4,), (4,), seed=len(counted)))
    made = apply_all("LayerNormalization", [x, scale, bias], 3)
    tensors = [torch.tensor(np.asarray(value.data), requires_grad=True) for value in (x, scale, bias)]
    expected = layer(tensors[0], -1, *tensors[1:])
    # Statistics have 32 bits whatever the input has, and so have their cotangents.
    weights = [np.random.default_rng(at).standard_normal(made[at].dims).astype(np.float32) for at in counted]
    cotangents = [
        value_of(weight.astype(made[at].type.dtype.storage))
        for at, weight in zip(counted, weights, strict=True)
    ]
    found = tracing.gradients([made[at] for at in counted], cotangents, [x, scale, bias])
    tracing.evaluate([value for value in found if value is not None])
    wanted = torch.autograd.grad(
        [expected[at] for at in counted],
        tensors,
        [torch.tensor(weight.astype(np.float64)) for weight in weights],
        allow_unused=True,
    )
    for value, right in zip(found, wanted, strict=True):
        assert (value is None) == (right is None)
        if value is not None and right is not None:
            np.testing.assert_allclose(np.asarray(value.data), right.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("shape", "scale", "axis"), [((3, 6), (6,), -1), ((2, 3, 4), (3, 1), 1)], ids=str)
def test_rms_normalization(
    shape: tuple[int, ...], scale: tuple[int, ...], axis: int, device_name: str
) -> None:
    def rms(x: Any, scale: Any) -> Any:
        axes = list(range(axis % x.ndim, x.ndim))
        return x / (x.square().mean(axes, keepdim=True) + EPSILON).sqrt() * scale

    check("RMSNormalization", inputs_of(shape, scale), {"axis": axis}, torch=rms, device=device_name)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16.storage], ids=str)
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_normalizations_of_16_bits(op: str, dtype: Any, device_name: str) -> None:
    inputs = inputs_of((3, 32), (32,))
    check(op, [inputs[0] * 2 + 1, inputs[1]], second_order=False, device=device_name, dtype=dtype)


@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 3, 2, 2)], ids=str)
def test_instance_normalization(shape: tuple[int, ...], device_name: str) -> None:
    check(
        "InstanceNormalization",
        inputs_of(shape, shape[1:2], shape[1:2]),
        torch=lambda x, scale, bias: F.instance_norm(x, None, None, scale, bias, eps=EPSILON),
        device=device_name,
    )


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_normalization(groups: int, device_name: str) -> None:
    check(
        "GroupNormalization",
        inputs_of((2, 4, 3), (4,), (4,)),
        {"num_groups": groups},
        torch=lambda x, scale, bias: F.group_norm(x, groups, scale, bias, EPSILON),
        device=device_name,
    )


def test_group_normalization_with_a_scale_a_group() -> None:
    check(
        "GroupNormalization",
        inputs_of((2, 4, 3), (2,), (2,)),
        {"num_groups": 2},
        torch=lambda x, scale, bias: F.group_norm(
            x, 2, scale.repeat_interleave(2), bias.repeat_interleave(2), EPSILON
        ),
    )


def batch_inputs(*shape: int) -> list[Any]:
    channels = shape[1:2] or (1,)
    x, scale, bias, mean, variance = inputs_of(shape, *[channels] * 4, seed=len(shape))
    return [x, scale, bias, mean, abs(variance) + 0.5]


@pytest.mark.parametrize("shape", [(5, 3), (3, 2, 4), (2, 3, 2, 2)], ids=str)
def test_batch_normalization(shape: tuple[int, ...], device_name: str) -> None:
    check(
        "BatchNormalization",
        batch_inputs(*shape),
        torch=by_statistics,
        device=device_name,
    )


def by_statistics(x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """torch's own takes no gradients by its statistics."""
    inverse = 1 / (lanes(variance, x) + EPSILON).sqrt()
    return (x - lanes(mean, x)) * inverse * lanes(scale, x) + lanes(bias, x)


def lanes(vector: Any, x: Any) -> Any:
    return vector.reshape(-1, *[1] * (x.ndim - 2))


@pytest.mark.parametrize("shape", [(5, 3), (3, 2, 4)], ids=str)
def test_batch_normalization_in_training(shape: tuple[int, ...], device_name: str) -> None:
    def batch(x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        axes = [axis for axis in range(x.ndim) if axis != 1]
        now = x.mean(axes)
        spread = (x - lanes(now, x)).square().mean(axes)
        made = (x - lanes(now, x)) / (lanes(spread, x) + EPSILON).sqrt() * lanes(scale, x) + lanes(bias, x)
        return made, mean * 0.75 + now * 0.25, variance * 0.75 + spread * 0.25

    check(
        "BatchNormalization",
        batch_inputs(*shape),
        {"training_mode": 1, "momentum": 0.75},
        outputs=3,
        torch=batch,
        device=device_name,
    )


@pytest.mark.parametrize("counted", [(0,), (1,), (2,)], ids=str)
def test_outputs_of_batch_normalization(counted: tuple[int, ...]) -> None:
    check("BatchNormalization", batch_inputs(4, 2), {"training_mode": 1}, outputs=3, counted=counted)


@pytest.mark.parametrize("is_training", [0, 1])
def test_batch_normalization_of_a_list(is_training: int) -> None:
    check("BatchNormalization", batch_inputs(5), {"training_mode": is_training})


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(p: int, device_name: str) -> None:
    [x] = inputs_of((2, 3, 4))
    x = away_from(x, 0)
    attributes = {"p": p, "axis": 1}
    check("LpNormalization", [x], attributes, torch=lambda x: F.normalize(x, p, 1, 0), device=device_name)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_zeros(p: int) -> None:
    x = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, -2.0]])
    [found] = check("LpNormalization", [x], {"p": p}, differences=False)
    assert found is not None and (found[0] == 0).all() and np.isfinite(found).all() and found[1].any()


@pytest.mark.parametrize(("shape", "axes"), [((2, 3, 2, 2), (0, 2, 3)), ((3, 4), (1,))], ids=str)
def test_mean_variance_normalization(shape: tuple[int, ...], axes: tuple[int, ...], device_name: str) -> None:
    def mean_variance(x: Any) -> Any:
        centred = x - x.mean(axes, keepdim=True)
        return centred / (centred.square().mean(axes, keepdim=True).sqrt() + 1e-9)

    check(
        "MeanVarianceNormalization",
        inputs_of(shape),
        {"axes": axes},
        torch=mean_variance,
        device=device_name,
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_normalization(size: int, device_name: str) -> None:
    attributes = {"size": size, "alpha": 0.5, "beta": 0.75, "bias": 1.5}

    def response(x: Any) -> Any:
        before, after = (size - 1) // 2, size // 2
        squares = F.pad(x.square(), (0, 0, before, after)).unfold(1, size, 1).sum(-1)
        return x / (1.5 + 0.5 / size * squares) ** 0.75

    check("LRN", inputs_of((2, 4, 3)), attributes, torch=response, device=device_name)


# --- Dropout ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0])
def test_dropout(ratio: float) -> None:
    x = leaf(np.arange(1.0, 41).reshape(5, 8), None)
    made, mask = apply_all("Dropout", [x, value_of(np.array(ratio)), value_of(np.array(True))], 2, seed=3)
    cotangent = np.random.default_rng(1).standard_normal((5, 8))
    [found] = tracing.gradients([made], [value_of(cotangent)], [x])
    assert found is not None
    tracing.evaluate([made, mask, found])
    kept = np.asarray(mask.data)
    assert kept.any() == (ratio < 1) and not kept.all()
    expected = np.where(kept, cotangent / (1 - ratio) if ratio < 1 else 0, 0)
    np.testing.assert_allclose(np.asarray(found.data), expected)


def test_dropout_in_inference_passes() -> None:
    x = leaf(np.ones(4), None)
    for rest in ([], [value_of(np.array(0.5)), value_of(np.array(False))]):
        made = apply_all("Dropout", [x, *rest], 2)[0]
        [found] = tracing.gradients([made], [value_of(np.arange(4.0))], [x])
        assert found is not None
        tracing.evaluate([found])
        assert np.asarray(found.data).tolist() == [0, 1, 2, 3]


def test_dropout_needs_its_mask() -> None:
    x = leaf(np.ones(4), None)
    made = apply("Dropout", x, value_of(np.array(0.5)), value_of(np.array(True)))
    with pytest.raises(NotDifferentiable, match="mask"):
        tracing.gradients([made], [value_of(np.ones(4))], [x])
