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


# -- inference mode ------------------------------------------------------------------------------------------


def made_in_inference_mode(device: str = "cpu") -> vkml.Tensor:
    with vkml.inference_mode():
        return vkml.tensor([1.0, 2.0], device=device) * 3


READERS: dict[str, Callable[[vkml.Tensor, vkml.Tensor], vkml.Tensor]] = {
    "itself": lambda w, x: w * x,
    "a part": lambda w, x: w[0] * x[0],
    "detached": lambda w, x: (w * x.detach()).sum(),
    "exponent": lambda w, x: w**x,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("is_known", [True, False])
def test_gradients_refuse_what_was_made_in_inference_mode(name: str, is_known: bool) -> None:
    w, x = leaf(), made_in_inference_mode()
    if is_known:
        x.numpy()
    assert x.is_inference() and not w.is_inference()
    for _ in range(3):  # gradients of one structure are recorded once
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            READERS[name](w, x).sum().backward()
    assert w.grad is None


def test_gradients_that_do_not_read_it_flow() -> None:
    w, x = leaf(), made_in_inference_mode()
    (w + x).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [1.0, 1.0]
    (w * x.clone()).sum().backward()
    assert w.grad.tolist() == [4.0, 7.0]
    with pytest.raises(RuntimeError, match="Inference tensors"):
        (w * x).sum().backward()
    (w * vkml.tensor([1.0, 2.0])).sum().backward()
    assert w.grad.tolist() == [5.0, 9.0]


def test_what_was_there_before_stays_what_it_was() -> None:
    w, buffer = leaf(), vkml.ones(2)
    with vkml.inference_mode():
        assert not w.detach().is_inference() and not buffer[0].is_inference()
        buffer.add_(1)
        with vkml.inference_mode(False):
            assert not vkml.ones(2).is_inference()
        assert vkml.ones(2).is_inference()
    assert not vkml.ones(2).is_inference() and not buffer.is_inference()
    (w * buffer).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 2.0]
    assert vkml.inference_mode()(lambda: vkml.ones(2))().is_inference()


def test_statistics_of_a_layer_that_ran_in_inference_mode() -> None:
    layer = vkml.nn.BatchNorm1d(2)
    run = vkml.jit(layer)
    with vkml.inference_mode():
        for _ in range(4):
            run(vkml.ones(3, 2))
    layer.eval()
    layer(vkml.ones(3, 2)).sum().backward()
    assert layer.weight.grad is not None and not layer.running_mean.is_inference()


def test_as_torch_refuses_it() -> None:
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        x = torch.ones(2)
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        w * x
    assert (w + x).requires_grad and (w * x.clone()).requires_grad
