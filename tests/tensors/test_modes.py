"""Whether gradients flow: contexts, decorators, `backward` of several tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import vkml
from vkml import autograd


def leaf() -> vkml.Tensor:
    return vkml.tensor([1.0, 2.0], requires_grad=True)


@pytest.mark.parametrize(
    ("context", "flows"),
    [
        (vkml.no_grad, False),
        (vkml.enable_grad, True),
        (vkml.inference_mode, False),
        (lambda: vkml.inference_mode(False), True),
        (lambda: vkml.set_grad_enabled(False), False),
    ],
)
@pytest.mark.parametrize("outside", [True, False])
def test_contexts(context: Callable[[], Any], flows: bool, outside: bool) -> None:
    x = leaf()
    with vkml.set_grad_enabled(outside):
        with context():
            assert vkml.is_grad_enabled() is flows and (x * 2).requires_grad is flows
        assert vkml.is_grad_enabled() is outside
    assert context()(lambda: (x * 2).requires_grad)() is flows


def test_decorators_without_parentheses() -> None:
    x = leaf()

    @vkml.no_grad
    def still(x: vkml.Tensor) -> vkml.Tensor:
        """Twice."""
        return x * 2

    @vkml.enable_grad
    def flowing(x: vkml.Tensor) -> vkml.Tensor:
        return x * 2

    assert not still(x).requires_grad and still.__doc__ == "Twice."
    with vkml.no_grad():
        assert flowing(x).requires_grad


def test_a_mode_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError), vkml.no_grad():
        raise ZeroDivisionError
    assert vkml.is_grad_enabled()


def test_backward_of_several_tensors() -> None:
    x = leaf()
    y, z = (x * 2).sum(), x * x
    autograd.backward([y, z], [None, vkml.tensor([1.0, 10.0])])
    assert x.grad is not None and x.grad.tolist() == [4.0, 42.0]
    with pytest.raises(RuntimeError, match="backward"):
        autograd.backward(y)
