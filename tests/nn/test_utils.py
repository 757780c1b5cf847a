"""Gradients and parameters of whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor
from vkml.nn import utils

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(7)
SHAPES = ((3, 4), (4,), (), (2, 2, 2))
GRADIENTS = [RANDOM.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def _params(device: str) -> list[Tensor]:
    params = [vkml.zeros(*shape, device=device, requires_grad=True) for shape in (*SHAPES, (5,))]
    for param, gradient in zip(params, GRADIENTS, strict=False):  # the last one has none
        param.grad = vkml.tensor(gradient, device=device)
    return params


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, np.inf])
@pytest.mark.parametrize("limit", [0.7, 1e4])
def test_norms(device_name: str, norm: float, limit: float) -> None:
    params = _params(device_name)
    total = utils.clip_grad_norm_(iter(params), limit, norm)
    flat = np.concatenate([gradient.ravel() for gradient in GRADIENTS])
    wanted = np.linalg.norm(flat, norm)
    np.testing.assert_allclose(total.item(), wanted, rtol=1e-5)
    np.testing.assert_allclose(
        utils.get_total_norm([vkml.tensor(g) for g in GRADIENTS], norm).item(), wanted, rtol=1e-5
    )
    factor = min(1.0, limit / (wanted + 1e-6))
    for param, gradient in zip(params, GRADIENTS, strict=False):
        assert param.grad is not None and param.grad.device == device_name
        np.testing.assert_allclose(param.grad.numpy(), gradient * factor, rtol=1e-5)
    assert params[-1].grad is None


def test_values(device_name: str) -> None:
    params = _params(device_name)
    utils.clip_grad_value_(params, 0.3)
    for param, gradient in zip(params, GRADIENTS, strict=False):
        assert param.grad is not None
        np.testing.assert_allclose(param.grad.numpy(), gradient.clip(-0.3, 0.3), rtol=1e-6)
    utils.clip_grad_value_(params[0], 0.1)
    assert params[0].grad is not None and params[0].grad.abs().amax().item() == pytest.approx(0.1)


def test_what_is_not_finite() -> None:
    params = _params("cpu")
    assert params[0].grad is not None
    params[0].grad[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    assert np.isnan(utils.clip_grad_norm_(params, 1.0).item())
    assert utils.get_total_norm([]).item() == 0
    assert utils.clip_grad_norm_([], 1.0).item() == 0


def test_in_a_row(device_name: str) -> None:
    """There and back; gradients flow to the parameters."""
    params = _params(device_name)
    utils.vector_to_parameters(vkml.arange(30.0, device=device_name), params)
    assert params[1].tolist() == [12.0, 13.0, 14.0, 15.0] and params[2].item() == 16.0
    row = utils.parameters_to_vector(params)
    assert row.tolist() == list(map(float, range(30)))
    for param in params:
        param.grad = None
    (row * row).sum().backward()
    for param in params:
        assert param.grad is not None
        np.testing.assert_allclose(param.grad.numpy(), 2 * param.detach().numpy())
    with pytest.raises(ValueError, match="31 elements"):
        utils.vector_to_parameters(vkml.zeros(31, device=device_name), params)
    with pytest.raises(TypeError, match="tensor"):
        utils.vector_to_parameters([1.0], params)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["norm", "value", "vector"])
def test_captured(device_name: str, kind: str) -> None:
    def trained(is_captured: bool) -> Array:
        weight = vkml.ones(2, 3, device=device_name, requires_grad=True)
        bias = vkml.zeros(3, device=device_name, requires_grad=True)
        optimizer = vkml.optim.SGD([weight, bias], lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = ((x @ weight + bias) ** 2).sum()
            loss.backward()
            total = loss
            if kind == "norm":
                total = utils.clip_grad_norm_([weight, bias], 0.5)
            elif kind == "value":
                utils.clip_grad_value_([weight, bias], 0.2)
            optimizer.step()
            if kind == "vector":
                utils.vector_to_parameters(utils.parameters_to_vector([weight, bias]) * 0.9, [weight, bias])
            return total

        act = vkml.jit(step) if is_captured else step
        for number in range(5):
            act(vkml.full((4, 2), 1.0 + number % 2, device=device_name))
        return np.concatenate([weight.detach().numpy().ravel(), bias.detach().numpy()])

    np.testing.assert_allclose(trained(True), trained(False), rtol=1e-5, atol=1e-6)


def test_against_torch() -> None:
    torch = pytest.importorskip("torch")
    for norm in (0, 0.5, 2, float("inf")):
        params = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
        for param, gradient in zip(params, GRADIENTS, strict=True):
            param.grad = torch.tensor(gradient)
        ours = _params("cpu")
        wanted = torch.nn.utils.clip_grad_norm_(params, 0.3, norm)
        np.testing.assert_allclose(utils.clip_grad_norm_(ours, 0.3, norm).item(), wanted.item(), rtol=1e-5)
        for one, other in zip(ours, params, strict=False):
            assert one.grad is not None
            np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-5)
