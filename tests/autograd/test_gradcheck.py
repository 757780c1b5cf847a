"""`gradcheck` finds gradients that are wrong, and takes those that are right."""

from __future__ import annotations

from typing import Any

import pytest

import vkml
from vkml import nn


class Cube(vkml.autograd.Function):
    factor = 3.0

    @staticmethod
    def forward(ctx: Any, x: vkml.Tensor) -> vkml.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @classmethod
    def backward(cls, ctx: Any, by_result: vkml.Tensor) -> vkml.Tensor:
        (x,) = ctx.saved_tensors
        return by_result * cls.factor * x * x


class WrongCube(Cube):
    factor = 3.01


class WrongSecond(Cube):
    @classmethod
    def backward(cls, ctx: Any, by_result: vkml.Tensor) -> vkml.Tensor:
        (x,) = ctx.saved_tensors
        return by_result * 3 * x * x.detach()


def leaf(*size: int) -> vkml.Tensor:
    vkml.manual_seed(0)
    return vkml.randn(*size, dtype=vkml.float64, requires_grad=True)


def test_gradients_that_are_right() -> None:
    x, w = leaf(2, 3), leaf(3, 2)
    assert vkml.autograd.gradcheck(Cube.apply, (x,))
    assert vkml.autograd.gradgradcheck(Cube.apply, x)
    assert vkml.autograd.gradcheck(lambda x, w, n: ((x @ w).tanh() * n, w.sum()), (x, w, 2.0))
    assert vkml.autograd.gradgradcheck(lambda x, w: nn.functional.gelu(x @ w), (x, w))


def test_gradients_that_are_wrong() -> None:
    x = leaf(4)
    with pytest.raises(RuntimeError, match="output 0 by input 0"):
        vkml.autograd.gradcheck(WrongCube.apply, (x,))
    assert not vkml.autograd.gradcheck(WrongCube.apply, (x,), raise_exception=False)
    assert vkml.autograd.gradcheck(WrongSecond.apply, (x,))
    with pytest.raises(vkml.autograd.GradcheckError):
        vkml.autograd.gradgradcheck(WrongSecond.apply, (x,))
    # What is detached has a gradient that is not stated.
    assert not vkml.autograd.gradcheck(lambda x: x * x.detach(), (x,), raise_exception=False)


def test_something_has_to_require_grad() -> None:
    with pytest.raises(ValueError, match="require grad"):
        vkml.autograd.gradcheck(lambda x: x, (vkml.ones(2),))
