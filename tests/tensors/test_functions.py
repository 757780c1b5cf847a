"""`Function`: gradients that the program states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml.autograd import Function, grad, once_differentiable
from vkml.errors import NotDifferentiable


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, times: float) -> Any:
        ctx.save_for_backward(x)
        ctx.times = times
        return x * x * x * times

    @staticmethod
    def backward(ctx: Any, incoming: Any) -> Any:
        (x,) = ctx.saved_tensors
        return incoming * 3 * x * x * ctx.times, None


class Exp(Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, incoming: Any) -> Any:
        (y,) = ctx.saved_tensors
        return incoming * y


def leaf(*elements: float, device: str = "cpu") -> Any:
    return vkml.tensor(elements, device=device, requires_grad=True)


def test_gradients_of_every_order(device_name: str) -> None:
    x = leaf(1.0, -2.0, device=device_name)
    y = Cube.apply(x * 1, 2.0).sum()
    assert y.item() == -14.0
    [first] = grad(y, x, create_graph=True)
    assert first is not None
    [second] = grad(first.sum(), x, create_graph=True)
    assert second is not None
    [third] = grad(second.sum(), x)
    assert third is not None
    np.testing.assert_allclose(first.detach().numpy(), [6.0, 24.0])
    np.testing.assert_allclose(second.detach().numpy(), [12.0, -24.0])
    np.testing.assert_allclose(third.numpy(), [12.0, 12.0])


def test_results_that_are_saved_have_gradients(device_name: str) -> None:
    x = leaf(0.5, device=device_name)
    y = Exp.apply(x)
    [first] = grad(y, x, create_graph=True)
    assert first is not None
    [second] = grad(first, x)
    assert second is not None
    np.testing.assert_allclose([first.item(), second.item()], [np.exp(0.5)] * 2, rtol=1e-6)


def test_backward_is_called_once_for_all_results() -> None:
    calls = []

    class Both(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            assert ctx.needs_input_grad == (True, False)
            return x + y, "text", x * y, (x > 0)

        @staticmethod
        def backward(ctx: Any, *incoming: Any) -> Any:
            calls.append([None if x is None else x.tolist() for x in incoming])
            return incoming[0] * 10 + incoming[2], None

    x, y = leaf(1.0, 2.0), vkml.tensor([3.0, 4.0])
    total, text, product, flags = Both.apply(x, y)
    assert text == "text" and not flags.requires_grad and product.requires_grad
    (total.sum() + 2 * product.sum()).backward()
    assert x.grad.tolist() == [12.0, 12.0]
    assert calls == [[[1.0, 1.0], None, [2.0, 2.0], None]]
    total, _, product, _ = Both.apply(x, y)
    product.sum().backward()
    assert calls[1] == [[0.0, 0.0], None, [1.0, 1.0], None]  # zeros for what nothing depends on


def test_without_zeros_and_without_gradients() -> None:
    class First(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            other = x + 1
            ctx.mark_non_differentiable(other)
            return x * 2, x * 3, other

        @staticmethod
        def backward(ctx: Any, *incoming: Any) -> Any:
            assert incoming[1] is None and incoming[2] is None
            return incoming[0] * 2

    x = leaf(1.0)
    first, _, other = First.apply(x)
    assert not other.requires_grad
    first.sum().backward()
    assert x.grad.tolist() == [2.0]
    with vkml.no_grad():
        assert not First.apply(x)[0].requires_grad


def test_what_is_changed_in_place() -> None:
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, incoming: Any) -> Any:
            return incoming * 2

    x = leaf(1.0, 3.0)
    h = x * 1
    assert Double.apply(h) is h
    (h * h).sum().backward()
    assert h.tolist() == [2.0, 6.0] and x.grad.tolist() == [8.0, 24.0]
    with pytest.raises(NotDifferentiable, match="leaf"):
        Double.apply(leaf(1.0))


def test_what_is_saved_may_not_be_changed_afterwards() -> None:
    x = leaf(2.0)
    h = x * 1
    y = Cube.apply(h, 1.0)
    h.zero_()
    with pytest.raises(
        RuntimeError, match=r"modified by an inplace operation at .*h\.zero_\(\).* of Cube needs"
    ):
        y.sum().backward()


def test_what_forward_changes_is_saved_as_it_leaves_it() -> None:
    class Square(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            kept = x.clone()
            ctx.save_for_backward(x, kept)
            kept.mul_(3)
            x.mul_(x)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, incoming: Any) -> Any:
            squared, kept = ctx.saved_tensors
            assert squared.tolist() == [4.0]
            return incoming * 2 / 3 * kept

    x = leaf(2.0)
    h = x * 1
    y = Square.apply(h)
    y.sum().backward()
    assert y is h and x.grad.tolist() == [4.0]


def test_functions_that_can_be_differentiated_once() -> None:
    class Square(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, incoming: Any) -> Any:
            (x,) = ctx.saved_tensors
            assert not (x * 1).requires_grad
            return incoming * 2 * x

    x = leaf(3.0)
    Square.apply(x).sum().backward()
    assert x.grad.tolist() == [6.0]
    [first] = grad(Square.apply(x).sum(), x, create_graph=True)
    assert first is not None
    with pytest.raises(NotDifferentiable, match="once_differentiable"):
        first.sum().backward()


def test_wrong_gradients() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, made: Any) -> Any:
            ctx.made = made
            return x * 1

        @staticmethod
        def backward(ctx: Any, incoming: Any) -> Any:
            return ctx.made(incoming)

    for made, words in (
        (lambda g: g, "number of gradients"),
        (lambda g: (g, None, g), "number of gradients"),
        (lambda g: (vkml.ones(3), None), "invalid gradient at index 0"),
    ):
        with pytest.raises(NotDifferentiable, match=words):
            Wrong.apply(leaf(1.0, 2.0), made).sum().backward()


def test_in_a_captured_step(device_name: str) -> None:
    w = leaf(1.0, -2.0, device=device_name)

    @vkml.jit
    def step(x: Any) -> Any:
        w.grad = None
        loss = (Cube.apply(w, 2.0) * x).sum()
        loss.backward()
        with vkml.no_grad():
            w.sub_(w.grad, alpha=0.01)
        return loss

    found = [step(vkml.ones(2, device=device_name)).item() for _ in range(4)]
    right, losses = np.array([1.0, -2.0]), []
    for _ in range(4):
        losses.append(float((2 * right**3).sum()))
        right = right - 0.06 * right**2
    np.testing.assert_allclose(found, losses, rtol=1e-5)
