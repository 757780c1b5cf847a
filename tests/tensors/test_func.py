"""`vkml.func`: gradients and Jacobians of functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml import func, nn
from vkml.errors import NotDifferentiable

Array = np.ndarray[Any, Any]


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_gradients_of_gradients(device_name: str) -> None:
    x = vkml.tensor(2.0, device=device_name)
    found: Any = lambda x: x**4  # noqa: E731
    for expected in (32.0, 48.0, 48.0, 24.0):
        found = func.grad(found)
        made = found(x)
        assert made.item() == pytest.approx(expected) and not made.requires_grad
    assert x.grad is None


def test_values_trees_and_several_arguments() -> None:
    def loss(parts: dict[str, Any], y: Any, factor: float) -> Any:
        return (parts["a"] * parts["b"][0] * y).sum() * factor

    a, b, y = (vkml.tensor(numbers(at, 3)) for at in range(3))
    (first, second), value = func.grad_and_value(loss, (0, 1))({"a": a, "b": [b]}, y, 2.0)
    np.testing.assert_allclose(first["a"].numpy(), 2 * (b * y).numpy(), rtol=1e-6)
    np.testing.assert_allclose(first["b"][0].numpy(), 2 * (a * y).numpy(), rtol=1e-6)
    np.testing.assert_allclose(second.numpy(), 2 * (a * b).numpy(), rtol=1e-6)
    again, gradient = func.value_and_grad(loss)({"a": a, "b": [b]}, y, 2.0)
    assert again.item() == value.item() and not again.requires_grad and set(gradient) == {"a", "b"}
    made, aux = func.grad(lambda x: ((x * x).sum(), "more"), has_aux=True)(a)
    assert aux == "more"
    np.testing.assert_allclose(made.numpy(), 2 * a.numpy(), rtol=1e-6)
    with pytest.raises(NotDifferentiable, match="one element"):
        func.grad(lambda x: x * 2)(a)


def test_gradients_flow_to_what_was_captured() -> None:
    w = vkml.tensor([3.0], requires_grad=True)
    made = func.grad(lambda x: (w * x * x).sum())(vkml.tensor([2.0]))
    made.sum().backward()
    assert made.item() == 12.0 and w.grad is not None and w.grad.item() == 4.0
    v = vkml.tensor([2.0], requires_grad=True)
    func.grad(lambda x: (x * x * x).sum())(v).sum().backward()
    assert v.grad is not None and v.grad.item() == 12.0


def test_products_with_jacobians(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    a, x, t = numbers(0, 4, 3), numbers(1, 3), numbers(2, 3)
    u = numbers(3, 4)

    def ours(x: Any) -> Any:
        return (vkml.tensor(a, device=device_name) @ x).sin(), x * x

    def theirs(x: Any) -> Any:
        return (torch.tensor(a) @ x).sin(), x * x

    value, tangent = func.jvp(
        ours, (vkml.tensor(x, device=device_name),), (vkml.tensor(t, device=device_name),)
    )
    right, expected = torch.func.jvp(theirs, (torch.tensor(x),), (torch.tensor(t),))
    for mine, other in zip((*value, *tangent), (*right, *expected), strict=True):
        assert not mine.requires_grad
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)
    made, pull = func.vjp(ours, vkml.tensor(x, device=device_name))
    _, other_pull = torch.func.vjp(theirs, torch.tensor(x))
    [mine] = pull((vkml.tensor(u, device=device_name), vkml.tensor(t, device=device_name)))
    [other] = other_pull((torch.tensor(u), torch.tensor(t)))
    np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)
    assert not made[0].requires_grad and not mine.requires_grad
    with pytest.raises(RuntimeError, match="shape"):
        pull((vkml.zeros(3, device=device_name), vkml.zeros(3, device=device_name)))
    with pytest.raises(RuntimeError, match="tangents"):
        func.jvp(ours, (vkml.tensor(x, device=device_name),), (vkml.zeros(4, device=device_name),))


def test_jacobians_and_hessians() -> None:
    torch = pytest.importorskip("torch")
    x, y = numbers(0, 2, 3), numbers(1, 3)

    def write(x: Any, y: Any) -> Any:
        return (x * y).sin() * x.sum()

    for name in ("jacrev", "jacfwd"):
        mine = getattr(func, name)(write, (0, 1))(vkml.tensor(x), vkml.tensor(y))
        right = getattr(torch.func, name)(write, (0, 1))(torch.tensor(x), torch.tensor(y))
        for a, b in zip(mine, right, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
    mine = func.hessian(lambda x: write(x, vkml.tensor(y)).sum())(vkml.tensor(x))
    right = torch.func.hessian(lambda x: write(x, torch.tensor(y)).sum())(torch.tensor(x))
    np.testing.assert_allclose(mine.numpy(), right.numpy(), rtol=1e-4, atol=1e-5)
    assert func.jacrev(lambda x: vkml.ones(2))(vkml.ones(3)).tolist() == [[0.0] * 3] * 2


def test_modules_as_functions() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    own = {name: value for name, value in model.named_parameters()}
    given = {name: vkml.tensor(numbers(at, *value.shape)) for at, (name, value) in enumerate(own.items())}
    x = vkml.tensor(numbers(9, 4, 3))

    def loss(parameters: Any) -> Any:
        return (func.functional_call(model, parameters, x) ** 2).sum()

    gradients = func.grad(loss)(given)
    assert {name: value for name, value in model.named_parameters()} == own
    model.load_state_dict({**model.state_dict(), **given})
    model.zero_grad()
    (model(x) ** 2).sum().backward()
    for name, value in model.named_parameters():
        assert value.grad is not None
        np.testing.assert_allclose(gradients[name].numpy(), value.grad.numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="unexpected"):
        func.functional_call(model, {"2.weight": x}, x)
    with pytest.raises(RuntimeError, match="missing"):
        func.functional_call(model, given, x, strict=True)


def test_tied_weights_are_replaced_together() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    double = vkml.tensor([[2.0, 0.0], [0.0, 2.0]])
    made = func.functional_call(model, {"0.weight": double}, vkml.ones(1, 2))
    assert made.tolist() == [[4.0, 4.0]]


def test_gradients_by_complex_numbers_and_of_wrong_arguments() -> None:
    z = vkml.tensor([1 + 2j, 3j])
    assert vkml.func.grad(lambda z: (abs(z) ** 2).sum())(z).tolist() == pytest.approx([2 + 4j, 6j])
    with pytest.raises(RuntimeError, match="floats"):
        vkml.func.grad(lambda x: x.sum())(vkml.tensor([1, 2]))
    with pytest.raises(RuntimeError, match="1 positional"):
        vkml.func.grad(lambda x: x.sum(), argnums=1)(z)
    with pytest.raises(RuntimeError, match="has_aux"):
        vkml.func.grad(lambda x: x.sum(), has_aux=True)(z)


def test_modules_are_stacked_and_computed_as_one() -> None:
    vkml.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval() for _ in range(3)]
    parameters, buffers = vkml.func.stack_module_state(models)
    assert parameters["0.weight"].shape == (3, 4, 3) and parameters["0.weight"].is_leaf
    assert parameters["0.weight"].requires_grad and not buffers["1.running_mean"].requires_grad
    x = vkml.randn(5, 3)

    def computed(parameters: Any, buffers: Any) -> Any:
        return vkml.func.functional_call(models[0], (parameters, buffers), (x,))

    found = vkml.vmap(computed)(parameters, buffers)
    for one, model in zip(found, models, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    for wrong in ([], [models[0], nn.Linear(3, 4)], [models[0], nn.Sequential(nn.Linear(3, 4)).eval()]):
        with pytest.raises(RuntimeError, match="stack_module_state"):
            vkml.func.stack_module_state(wrong)
