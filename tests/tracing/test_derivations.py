"""Gradients of structures that have been differentiated before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn
from vkml.tracing import derivations

Array = np.ndarray[Any, Any]


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One more entry for each time that something is derived from operators."""
    found: list[int] = []
    derive = derivations.gradients

    def counted(*arguments: Any, **named: Any) -> Any:
        found.append(1)
        return derive(*arguments, **named)

    monkeypatch.setattr(derivations, "gradients", counted)
    monkeypatch.setattr(derivations, "_derivations", {})
    return found


def test_equal_structures_are_derived_once(derived: list[int], device_name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(4):
        x = vkml.tensor(rng.standard_normal((3, 4)), device=device_name, requires_grad=True)
        w = vkml.tensor(rng.standard_normal((4, 5)), device=device_name, requires_grad=True)
        loss = vkml.tanh(x @ w).sum()
        loss.backward()
        slope = 1 - np.tanh(x.detach().numpy() @ w.detach().numpy()) ** 2
        assert x.grad is not None and w.grad is not None
        assert x.grad.device == w.grad.device == device_name
        np.testing.assert_allclose(x.grad.numpy(), slope @ w.detach().numpy().T, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(w.grad.numpy(), x.detach().numpy().T @ slope, rtol=1e-5, atol=1e-6)
    assert len(derived) == 1


def _gradient(x: Array, act: Any) -> Array:
    leaf = vkml.tensor(x, requires_grad=True)
    act(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad.numpy()


X = np.arange(1.0, 7.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (lambda x: x[0].sum(), lambda x: x[1].sum(), [[0, 0, 0], [1, 1, 1]]),
        (lambda x: (x * x).sum(), lambda x: (x * x.detach()).sum(), X),
        (lambda x: x.sum(0).max(), lambda x: x.sum(1).max(), [[0, 0, 0], [1, 1, 1]]),
        (lambda x: (x * 2).sum(), lambda x: (x * 3).sum(), np.full((2, 3), 3)),
        (lambda x: (x**2).sum(), lambda x: (x**3).sum(), 3 * X**2),
        (lambda x: x.double().sum(), lambda x: x.sum(), np.ones((2, 3))),
    ],
    ids=["places", "detached", "axes", "numbers", "exponents", "types"],
)  # fmt: skip
def test_what_differs_is_derived_of_its_own(one: Any, other: Any, wanted: Any) -> None:
    for _ in range(2):
        _gradient(X, one)
        np.testing.assert_allclose(_gradient(X, other), wanted, rtol=1e-6)


def test_which_of_the_leaves_learns_is_part_of_the_structure(derived: list[int]) -> None:
    for frozen in (False, True, False):
        w, b = vkml.ones(3, requires_grad=True), vkml.ones(3, requires_grad=not frozen)
        ((w + b) ** 2).sum().backward()
        assert (b.grad is None) == frozen
        assert w.grad is not None and w.grad.numpy().tolist() == [4, 4, 4]
    assert len(derived) == 2


def test_hooks_are_called_each_time() -> None:
    for number in range(3):
        x = vkml.ones(2, requires_grad=True)
        y = x * 3
        y.register_hook(lambda found, by=number: found * by)
        (y * 5).sum().backward()
        assert x.grad is not None and x.grad.numpy().tolist() == [15 * number] * 2


def test_functions_of_the_program_are_called_each_time() -> None:
    factors = iter((2.0, 3.0, 4.0))

    class Scaled(vkml.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, found: Tensor) -> Tensor:
            return found * next(factors)

    for wanted in (2, 3, 4):
        x = vkml.ones(2, requires_grad=True)
        Scaled.apply(x).sum().backward()
        assert x.grad is not None and x.grad.numpy().tolist() == [wanted, wanted]


def test_random_numbers_are_those_of_the_forward_pass() -> None:
    model = nn.Dropout(0.5)
    for _ in range(3):
        x = vkml.ones(64, requires_grad=True)
        y = model(x)
        y.sum().backward()
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())


def test_gradients_are_added_and_retained_graphs_differentiated_again() -> None:
    for _ in range(3):
        x = vkml.tensor([1.0, 2.0], requires_grad=True)
        loss = (x**3).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), [6, 24], rtol=1e-6)
        with pytest.raises(vkml.errors.NotDifferentiable, match="retain_graph"):
            loss.backward()


def test_outputs_that_nobody_reads_are_counted() -> None:
    """The gradient of Concat is a Split; nobody asks for the parts that are no variables."""
    for _ in range(3):
        x = vkml.arange(6.0).reshape(3, 2).requires_grad_()
        y = x
        for _ in range(4):
            y = vkml.cat([vkml.ones(1, 2), vkml.ones(2, 2), y * 2, vkml.ones(1, 2)])
        (y * vkml.arange(float(y.numel())).reshape(y.shape)).sum().backward()
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), 16 * np.arange(24.0, 30).reshape(3, 2))


def test_old_derivations_go(derived: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derivations, "KEPT", 4)
    for size in range(1, 12):
        _gradient(np.ones(size), lambda x: (x * x).sum())
        assert len(derivations._derivations) <= 4
    assert len(derived) == 11


def test_an_error_points_at_the_line_of_the_second_time(device_name: str) -> None:
    """Where a derivative was applied is where backward() is called now."""
    wheres = []
    for _ in range(2):
        x = vkml.ones(3, device=device_name, requires_grad=True)
        (x * x).sum().backward()
        assert x.grad is not None
        application = x.grad.value.application
        assert application is not None and application.origin is not None
        wheres.append(application.origin[0].co_name)
    (x * x * x).sum()
    assert wheres == ["test_an_error_points_at_the_line_of_the_second_time"] * 2
