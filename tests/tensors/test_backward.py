"""`backward`: hooks, gradients of what is no leaf, and histories that are gone."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import vkml
from vkml.errors import NotDifferentiable
from vkml.vulkan import Device


def test_hooks_change_what_flows_on() -> None:
    w = vkml.ones(3, requires_grad=True)
    seen = []
    w.register_hook(lambda grad: seen.append(grad.tolist()))
    h = w * 2
    h.retain_grad()
    h.register_hook(lambda grad: grad * 10)
    (h.sum() + (h * h).sum()).backward()
    assert h.grad is not None and w.grad is not None
    assert h.grad.tolist() == [50.0] * 3  # once, of the whole gradient: 10 (1 + 2 h)
    assert w.grad.tolist() == [100.0] * 3 and seen == [[100.0] * 3]
    with pytest.raises(NotDifferentiable, match="requires grad"):
        vkml.ones(1).register_hook(lambda grad: grad)


def test_hooks_are_taken_away_again() -> None:
    w = vkml.ones(2, requires_grad=True)
    handle = w.register_hook(lambda grad: grad * 10)
    with w.register_hook(lambda grad: grad + 1):
        w.sum().backward()
        assert w.grad is not None and w.grad.tolist() == [11, 11]
    w.sum().backward()
    assert w.grad.tolist() == [21, 21]
    handle.remove()
    handle.remove()
    w.sum().backward()
    assert w.grad.tolist() == [22, 22]
    for wrong in (lambda grad: grad.sum(), lambda grad: grad.double()):
        with w.register_hook(wrong), pytest.raises(RuntimeError, match="a hook has made"):
            w.sum().backward()
    with w.register_hook(lambda grad: 1), pytest.raises(TypeError, match="not int"):  # type: ignore[arg-type]
        w.sum().backward()


def test_hooks_behind_the_gradient() -> None:
    """An optimizer's step can be taken as soon as a gradient is there, which is then forgotten."""
    w, v = (vkml.ones(2, requires_grad=True) for _ in range(2))
    steps = {one: vkml.optim.SGD([one], lr=0.5) for one in (w, v)}

    def step(param: vkml.Tensor) -> None:
        steps[param].step()
        param.grad = None

    handles = [one.register_post_accumulate_grad_hook(step) for one in (w, v)]
    for _ in range(2):
        (w * v).sum().backward()
    assert w.grad is None and v.grad is None
    assert w.tolist() == v.tolist() == [0.25, 0.25]
    handles[0].remove()
    (w * v).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [0.25, 0.25] and v.tolist() == [0.125, 0.125]
    with pytest.raises(NotDifferentiable, match="leaves"):
        (w * 2).register_post_accumulate_grad_hook(step)
    with pytest.raises(RuntimeError, match="grad_outputs"):
        vkml.autograd.grad([w.sum()], [w], grad_outputs=[])


def test_what_was_released_is_no_silent_loss_of_gradients() -> None:
    w = vkml.ones(3, requires_grad=True)
    h = w * 2
    first, second = h.sum(), (h * h).sum()
    first.backward(retain_graph=True)
    second.backward()
    assert w.grad is not None and w.grad.tolist() == [2.0 + 8.0] * 3
    third = (h * w).sum()
    with pytest.raises(NotDifferentiable, match="retain_graph"):
        third.backward()
    with pytest.raises(NotDifferentiable, match="backward"):
        second.backward()


def test_arrays_are_read_when_they_are_given() -> None:
    array = np.ones(3, np.float32)
    results = [make(array) * 2 for make in (vkml.as_tensor, vkml.from_numpy, vkml.tensor)]
    results.append(vkml.ones(3) + array)
    array[:] = 7
    assert [result.tolist() for result in results] == [[2.0] * 3] * 4


def test_wrong_arguments() -> None:
    for act in (
        lambda: vkml.tensor("abc"),
        lambda: vkml.zeros(2, dtype="float32"),
        lambda: vkml.ones(2).to(dtype=np.float32),
        lambda: vkml.rand(2, dtype="float32"),
        lambda: vkml.ones(2) * [1, 2],
    ):
        with pytest.raises(TypeError):
            act()


def test_a_loss_comes_to_the_host_with_the_run(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `backward` was called on is looked at next: few elements need no copy of their own."""
    x = vkml.tensor([1.0, 2.0], device=vulkan_device_name, requires_grad=True)
    optimizer = vkml.optim.SGD([x], lr=0.5)
    loss = (x * x).sum()
    loss.backward()
    optimizer.step()

    def refuse(*given: object) -> None:
        raise AssertionError("a value was fetched from the device")

    monkeypatch.setattr(Device, "download", refuse)
    assert loss.item() == 5.0 and loss.device == vulkan_device_name
    with pytest.raises(AssertionError, match="fetched"):
        x.tolist()
    monkeypatch.undo()
    assert (x.detach() + loss.detach()).tolist() == [5.0, 5.0]


def test_what_one_thread_cannot_compute_undoes_nothing_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkml.tensors import backward

    layer = vkml.nn.BatchNorm1d(2)
    layer(vkml.tensor([[1.0, 2.0], [3.0, 6.0]]))  # its statistics are computed with what comes next

    def fail(*given: object) -> None:
        raise vkml.errors.OutOfMemory("there is none")

    def elsewhere() -> None:
        with monkeypatch.context() as patched, pytest.raises(vkml.errors.OutOfMemory):
            patched.setattr(backward, "evaluate", fail)
            (vkml.ones(2) + 1).tolist()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert layer.running_mean is not None
    np.testing.assert_allclose(layer.running_mean.numpy(), [0.2, 0.4], rtol=1e-6)
