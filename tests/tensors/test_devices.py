"""Where tensors are: what is written in place stays on its device, and what has no elements says so."""

from __future__ import annotations

import copy

import pytest

import vkml


def test_numbers_stay_on_the_device(device_name: str) -> None:
    """Made of constants alone they could be computed anywhere; the tensor is where it was."""
    x = vkml.ones(3, device=device_name)
    x.fill_(2)
    assert x.device == device_name
    y = x + 1
    assert y.device == device_name and y.tolist() == [3, 3, 3]
    x[1:] = 5
    x.zero_()
    assert x.device == device_name and (x * 2).device == device_name and x.tolist() == [0, 0, 0]
    z = vkml.tensor(4.0, device=device_name)
    z.copy_(7)
    assert z.device == device_name and (z + x).tolist() == [7, 7, 7]


def test_gradients_of_numbers(device_name: str) -> None:
    x = vkml.ones(3, device=device_name, requires_grad=True)
    x.sum().backward()
    assert x.grad is not None
    found = x.grad * 2
    assert found.device == device_name and found.tolist() == [2, 2, 2]
    x.grad.zero_()
    assert x.grad.device == device_name


def test_captured_numbers(device_name: str) -> None:
    x = vkml.ones(3, device=device_name)

    @vkml.jit
    def reset(y: vkml.Tensor) -> vkml.Tensor:
        x.fill_(4)
        return x + y

    for _ in range(3):
        assert reset(vkml.ones(3, device=device_name)).tolist() == [5, 5, 5]
    assert x.device == device_name and x.tolist() == [4, 4, 4]


def test_meta() -> None:
    """A type and a shape, through operations too; memory of 256 GiB is nobody's."""
    x = vkml.zeros(1 << 18, 1 << 18, device="meta", requires_grad=True)
    assert x.device == "meta" and x.is_meta and x.requires_grad and x.shape == (1 << 18, 1 << 18)
    y = (x @ x.T).sum(0)
    assert y.device == "meta" and y.shape == (1 << 18,)
    with pytest.raises(NotImplementedError, match="to_empty"):
        y.detach().numpy()
    with pytest.raises(NotImplementedError, match="to_empty"):
        vkml.tensor([1.0, 2.0], device="meta").cpu()
    assert repr(y.detach()) == "tensor(..., device='meta', size=(262144,))"
    z = vkml.ones(3)
    assert z.to("meta").is_meta and not z.is_meta
    z = z.to("meta")
    z.fill_(3)
    z.copy_(vkml.ones(3))
    assert z.is_meta
    with pytest.raises(ValueError, match="on cpu and meta"):
        vkml.ones(3) + z


def test_copies(device_name: str) -> None:
    x = vkml.tensor([1.0, 2.0], device=device_name, requires_grad=True)
    (x * 3).sum().backward()
    y = copy.deepcopy([x, x])
    assert y[0] is y[1] and y[0] is not x and y[0].requires_grad and y[0].device == device_name
    assert y[0].grad is not None and y[0].grad is not x.grad and y[0].grad.tolist() == [3, 3]
    with vkml.no_grad():
        y[0].mul_(2)
    assert x.tolist() == [1, 2] and y[0].tolist() == [2, 4]
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy(x * 2)
