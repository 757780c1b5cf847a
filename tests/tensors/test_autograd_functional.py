"""`vkml.autograd.functional` against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.autograd.functional import hessian, jacobian

SHAPES = ((2, 3), (3,))
FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "elementwise": (1, lambda x: (x * x).sin()),
    "one number": (1, lambda x: x.exp().sum()),
    "another shape": (1, lambda x: x.sum(0)),
    "a constant": (1, lambda x: x.detach() * 2),
    "two inputs": (2, lambda x, y: x @ y),
    "an input unread": (2, lambda x, y: x * 2),
    "two outputs": (2, lambda x, y: (x * y, y.cumsum(0))),
    "a tuple of one": (1, lambda x: (x * 3,)),
}


def arrays(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(count)
    return [random.standard_normal(shape).astype(np.float32) for shape in SHAPES[:count]]


def same(found: Any, wanted: Any) -> None:
    """Tuples of tuples of tensors, of shape and nearly of value."""
    if isinstance(wanted, tuple):
        assert isinstance(found, tuple) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        assert not found.requires_grad and tuple(found.shape) == tuple(wanted.shape)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("is_tuple", [True, False])
def test_jacobian(name: str, is_tuple: bool, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    count, function = FUNCTIONS[name]
    ours = tuple([vkml.tensor(x, device=device_name) for x in arrays(count)])
    theirs = tuple([torch.tensor(x) for x in arrays(count)])
    if count == 1 and not is_tuple:
        same(jacobian(function, ours[0]), torch.autograd.functional.jacobian(function, theirs[0]))
    else:
        same(jacobian(function, ours), torch.autograd.functional.jacobian(function, theirs))


@pytest.mark.parametrize(
    ("count", "function"),
    [
        (1, lambda x: (x**3).sum()),
        (1, lambda x: (x.exp() * x.flip(0)).sum().reshape(1)),
        (1, lambda x: x.sum()),
        (2, lambda x, y: ((x @ y) ** 2).sum()),
        (2, lambda x, y: (x**2).sum()),
    ],
)
def test_hessian(count: int, function: Callable[..., Any], device_name: str) -> None:
    torch = pytest.importorskip("torch")
    ours = tuple([vkml.tensor(x, device=device_name) for x in arrays(count)])
    theirs = tuple([torch.tensor(x) for x in arrays(count)])
    same(hessian(function, ours), torch.autograd.functional.hessian(function, theirs))
    if count == 1:
        same(hessian(function, ours[0]), torch.autograd.functional.hessian(function, theirs[0]))


def test_gradients_flow_through_it() -> None:
    x = vkml.tensor([1.0, 2.0], requires_grad=True)
    jacobian(lambda x: x**3, x, create_graph=True).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0, 12.0]
    assert not jacobian(lambda x: x**3, x).requires_grad
    with vkml.no_grad():
        assert jacobian(lambda x: x**2, x).tolist() == [[2.0, 0.0], [0.0, 4.0]]


def test_errors() -> None:
    x = vkml.ones(2)
    with pytest.raises(RuntimeError, match="does not depend"):
        jacobian(lambda x: x.detach(), x, strict=True)
    with pytest.raises(RuntimeError, match="does not depend"):
        jacobian(lambda x, y: x * 2, (x, x), strict=True)
    with pytest.raises(RuntimeError, match="single element"):
        hessian(lambda x: x * x, x)
    with pytest.raises(TypeError, match="not float"):
        jacobian(lambda x: 2.0, x)
    with pytest.raises(NotImplementedError, match="jacfwd"):
        jacobian(lambda x: x, x, strategy="forward-mode")
