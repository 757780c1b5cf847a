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


def test_hooks_of_tensors_that_are_gone() -> None:
    """A hook belongs to the history: forward() seldom keeps what it is registered on."""
    seen = []

    def forward(x: vkml.Tensor) -> vkml.Tensor:
        for _ in range(3):
            x = x * 2
            x.register_hook(lambda grad: seen.append(grad.tolist()) or grad + 1)
        return x + 1

    w = vkml.ones(2, requires_grad=True)
    forward(w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [22, 22]
    assert seen == [[1, 1], [4, 4], [10, 10]]


@pytest.mark.parametrize("way", ["backward", "grad", "inputs"])
def test_hooks_of_tensors_that_are_changed_in_place(way: str) -> None:
    """Each is called once, with the gradient by the elements that the tensor had then."""
    w = vkml.tensor([1.0, 2.0], requires_grad=True)
    h = w * 2
    first = h.register_hook(lambda grad: grad * 3)
    shown = h[:1]
    shown.register_hook(lambda grad: grad * 100)
    h.add_(1)
    h.register_hook(lambda grad: grad + 1)

    def gradient() -> object:
        (made,) = vkml.autograd.grad((h * h).sum(), [w], retain_graph=True)
        if way == "grad":
            return made.tolist()
        w.grad = None
        (h * h).sum().backward(retain_graph=True, inputs=[w] if way == "inputs" else None)
        assert w.grad is not None
        return w.grad.tolist()

    assert gradient() == [42, 66]  # ((2 h + 1) * 3) * 2
    first.remove()
    assert gradient() == [14, 22]


def test_hooks_of_leaves_stay_when_these_are_changed() -> None:
    w = vkml.ones(2, requires_grad=True)
    handle = w.register_hook(lambda grad: grad * 10)
    before = w.sum()
    with vkml.no_grad():
        w.add_(1)
    w.requires_grad_(False)
    w.mul_(1).requires_grad_()
    (before + (w * w).sum()).backward()
    assert w.grad is not None and w.grad.tolist() == [50, 50]
    handle.remove()
    (w * w).sum().backward()
    assert w.grad.tolist() == [54, 54]


def test_a_kept_gradient_is_that_of_the_last_elements() -> None:
    w = vkml.ones(2, requires_grad=True)
    h = w * 2
    h.retain_grad()
    read = h + 1
    h.mul_(3)
    (h + read * 10).sum().backward()
    assert h.grad is not None and h.grad.tolist() == [1, 1]
    assert w.grad is not None and w.grad.tolist() == [26, 26]


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
