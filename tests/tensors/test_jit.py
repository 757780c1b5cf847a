"""Captured functions: what they compute, write and refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import Tensor, nn, optim
from vkml.engine.device_array import DeviceArray
from vkml.errors import CaptureError
from vkml.vulkan.commands import CommandRecorder

Array = np.ndarray[Any, Any]
OPTIMIZERS: dict[str, Callable[[list[Tensor]], optim.Optimizer]] = {
    "sgd": lambda params: optim.SGD(params, lr=0.1, momentum=0.5),
    "adam": lambda params: optim.Adam(params, lr=0.1, weight_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_that_are_not_captured(device_name: str, name: str) -> None:
    def trained(wrap: Callable[[Any], Any]) -> tuple[list[float], Array]:
        weight = vkml.zeros(3, requires_grad=True, device=device_name)
        optimizer = OPTIMIZERS[name]([weight])

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = ((weight - x) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        act = wrap(step)
        losses = [
            act(vkml.tensor([1.0, 2.0, 3.0 + number % 3], device=device_name)).item() for number in range(20)
        ]
        return losses, weight.detach().numpy()

    found, weight = trained(vkml.jit)
    wanted, exact = trained(lambda function: function)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(weight, exact, rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).reshape(-1),
        lambda x: (x * 2).T[1:],
        lambda x: ((x * 2).flatten(), [(x + 1)[0]]),
        lambda x: x.reshape(-1)[1:],
    ],
)
def test_views_are_returned(function: Callable[[Tensor], Any], device_name: str) -> None:
    act = vkml.jit(function)
    for at in range(4):
        x = vkml.tensor(np.arange(6, dtype=np.float32).reshape(2, 3) + at, device=device_name)
        found, wanted = act(x), function(x)
        assert repr(found) == repr(wanted)


def test_what_a_returned_view_shows_may_not_be_kept() -> None:
    kept: list[Tensor] = []

    @vkml.jit
    def act(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return kept[-1].reshape(-1)

    act(vkml.ones(2, 3))
    with pytest.raises(CaptureError, match="keeps a tensor"):
        act(vkml.ones(2, 3))


def layers(device: str) -> tuple[list[Tensor], Callable[[Tensor], Tensor]]:
    """Parameters of two layers, and a training step of them with momentum."""
    vkml.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return list(model.parameters()), step


def address_of(tensor: Tensor) -> int:
    data = tensor.value.data
    assert isinstance(data, DeviceArray)
    return data.address


def test_parameters_are_updated_where_they_lie(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient by a layer's input reads the weights that are updated beside it: that comes first."""
    device_name = vulkan_device_name
    found, captured = layers(device_name)
    wanted, plain = layers(device_name)
    captured = vkml.jit(captured)
    x = vkml.tensor(np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32), device=device_name)
    for _ in range(3):
        captured(x), plain(x)
    copies: list[object] = []
    copy = DeviceArray.copy_from
    monkeypatch.setattr(DeviceArray, "copy_from", lambda *given: (copies.append(given), copy(*given))[1])
    before = [address_of(parameter) for parameter in found]
    for _ in range(5):
        captured(x), plain(x)
    assert not copies
    assert [address_of(parameter) for parameter in found] == before
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of the commands that are recorded."""
    found: list[str] = []
    begin = CommandRecorder.__init__

    def noting(self: CommandRecorder, context: Any, label: str = "", *given: Any, **more: Any) -> None:
        found.append(label)
        begin(self, context, label, *given, **more)

    monkeypatch.setattr(CommandRecorder, "__init__", noting)
    return found


def test_later_runs_record_nothing(vulkan_device_name: str, recordings: list[str]) -> None:
    """Arguments from the host, parameters where they are, a loss that is looked at: one submission."""
    name = vulkan_device_name
    parameters, step = layers(name)
    wanted, plain = layers(name)
    captured = vkml.jit(step)
    rng = np.random.default_rng(3)
    for number in range(12):
        x = rng.standard_normal((4, 6)).astype(np.float32)
        if number == 4:
            recordings.clear()
        count = len(recordings)
        loss = captured(vkml.tensor(x, device=name)).item()
        assert number < 4 or len(recordings) == count
        np.testing.assert_allclose(loss, plain(vkml.tensor(x, device=name)).item(), rtol=1e-4)
    for one, other in zip(parameters, wanted, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_arrays_are_brought_to_a_device(device_name: str) -> None:
    """Of what was returned nothing changes when the caller writes into an array of before."""
    factor = vkml.tensor([2.0, 3.0], device=device_name)

    @vkml.jit(device=device_name)
    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * factor, x

    array = np.zeros(2, np.float32)
    results = []
    for number in range(6):
        array[:] = number
        results.append(scaled(array))
    for number, (twice, same) in enumerate(results):
        assert twice.device == same.device == device_name
        assert twice.tolist() == [2.0 * number, 3.0 * number]
        assert same.tolist() == [number, number]
    assert scaled(array[::-1])[1].tolist() == [5.0, 5.0]
    assert scaled(array.astype(">f4"))[0].tolist() == [10.0, 15.0]


def test_what_is_kept_of_an_array_is_a_copy(device_name: str) -> None:
    """The caller may write into an array that a captured function has put into a tensor of its own."""
    kept = vkml.zeros(2, device=device_name)

    @vkml.jit(device=device_name)
    def keep(x: Tensor) -> Tensor:
        kept.copy_(x)
        return x.sum()

    array = np.zeros(2, np.float32)
    for number in range(5):
        array[:] = number
        assert keep(array).item() == 2 * number
        array[:] = -1
        assert kept.tolist() == [number, number]


def test_whoever_holds_a_parameter_of_before_keeps_it(device_name: str) -> None:
    """Clones, views, detached tensors and what is recorded and not computed: nothing of it changes."""
    parameters, step = layers(device_name)
    captured = vkml.jit(step)
    x = vkml.tensor(np.ones((4, 6), np.float32), device=device_name)
    for _ in range(4):
        captured(x)
    weight = parameters[0]
    before = weight.detach().numpy()
    alias, row, twice, view = weight.detach(), weight.detach()[1], weight.detach() * 2, weight.view(-1)
    for _ in range(3):
        captured(x)
    now = weight.detach().numpy()
    assert not np.array_equal(now, before)
    np.testing.assert_array_equal(alias.numpy(), before)
    np.testing.assert_array_equal(row.numpy(), before[1])
    np.testing.assert_array_equal(twice.numpy(), before * 2)
    np.testing.assert_array_equal(view.detach().numpy(), now.reshape(-1))


def test_steps_go_on_from_where_a_tensor_was_written_to(device_name: str) -> None:
    """Somebody has a parameter, too, for a while: it is written elsewhere once, and read there then."""
    parameters, step = layers(device_name)
    wanted, plain = layers(device_name)
    captured = vkml.jit(step)
    rng = np.random.default_rng(5)
    held = []
    for number in range(14):
        x = rng.standard_normal((4, 6)).astype(np.float32)
        if number in (2, 5, 8):
            held.append(parameters[number % len(parameters)].detach())
        elif number == 10:
            held.clear()
        found = captured(vkml.tensor(x, device=device_name)).item()
        np.testing.assert_allclose(found, plain(vkml.tensor(x, device=device_name)).item(), rtol=1e-4)
        for one, other in zip(parameters, wanted, strict=True):
            np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_what_a_program_has_set_is_part_of_a_capture() -> None:
    @vkml.jit
    def scaled(x: Tensor) -> Tensor:
        factor = 2 if vkml.is_grad_enabled() else 3
        return x * factor + (10 if vkml.get_float32_matmul_precision() == "highest" else 0)

    x = vkml.tensor([1.0])
    before = vkml.get_float32_matmul_precision()
    for _ in range(3):
        assert scaled(x).tolist() == [2.0]
        with vkml.no_grad():
            assert scaled(x).tolist() == [3.0]
        vkml.set_float32_matmul_precision("highest")
        try:
            assert scaled(x).tolist() == [12.0]
        finally:
            vkml.set_float32_matmul_precision(before)


def test_tensors_that_are_written_between_runs_are_read_anew(device_name: str) -> None:
    """A state that another part of the program changes, in place or for another, on either side."""
    scale = vkml.tensor([2.0, 3.0], device=device_name)
    total = vkml.zeros(2, device=device_name)

    @vkml.jit
    def add(x: Tensor) -> Tensor:
        total.add_(x * scale)
        return total.sum()

    expected = np.zeros(2, np.float32)
    factors = np.array([2.0, 3.0], np.float32)
    for number in range(10):
        x = np.array([number, 1.0], np.float32)
        if number == 5:
            scale.mul_(2)
            factors = factors * 2
        if number == 7:
            total.fill_(100)
            expected = np.full(2, 100, np.float32)
        expected = expected + x * factors
        assert add(vkml.tensor(x, device=device_name)).item() == expected.sum()
    np.testing.assert_array_equal(total.numpy(), expected)


def test_the_function_is_called_twice_for_arguments_of_a_kind() -> None:
    calls = []

    @vkml.jit
    def scaled(x: Tensor, factors: dict[str, float], more: Array) -> tuple[Tensor, list[Tensor]]:
        calls.append(x.shape)
        return x * factors["twice"], [x + more, x]

    for number in range(4):
        x = vkml.tensor([1.0, number])
        twice, [total, same] = scaled(x, {"twice": 2.0}, np.full(2, number, np.float32))
        assert twice.tolist() == [2.0, 2.0 * number]
        assert total.tolist() == [1.0 + number, 2.0 * number]
        assert same.tolist() == [1.0, number]
    assert len(calls) == 2
    assert scaled(vkml.ones(2), {"twice": 3.0}, np.zeros(2, np.float32))[0].tolist() == [3.0, 3.0]
    assert len(calls) == 3
    scaled(vkml.ones(5), {"twice": 2.0}, np.zeros(5, np.float32))
    assert len(calls) == 4


def test_what_is_written_is_seen_by_later_runs_and_by_others(device_name: str) -> None:
    total = vkml.zeros(2, device=device_name)
    row = total[0:1]

    @vkml.jit
    def add(x: Tensor) -> Tensor:
        total.add_(x)
        return total * 2

    for number in range(1, 5):
        assert add(vkml.ones(2, device=device_name)).tolist() == [2.0 * number] * 2
        assert total.tolist() == [float(number)] * 2
    assert row.tolist() == [4.0]
    total.zero_()
    assert add(vkml.ones(2, device=device_name)).tolist() == [2.0, 2.0]


def test_one_within_another_is_part_of_it() -> None:
    inner = vkml.jit(lambda x: x + 1)

    @vkml.jit
    def outer(x: Tensor) -> Tensor:
        return inner(x) * inner(x * 2)

    for number in range(5):
        assert outer(vkml.full((2,), float(number))).tolist() == [(number + 1.0) * (2 * number + 1)] * 2
        assert inner(vkml.full((2,), float(number))).tolist() == [number + 1.0] * 2


def test_clones_of_what_is_written_stay(device_name: str) -> None:
    total = vkml.zeros(2, device=device_name)

    @vkml.jit
    def add(x: Tensor) -> None:
        total.add_(x)

    one = vkml.ones(2, device=device_name)
    copies = []
    for _ in range(5):
        add(one)
        copies.append(total.clone())
    assert [copy.tolist()[0] for copy in copies] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert one.tolist() == [1.0, 1.0]

    @vkml.jit
    def take(x: Tensor) -> None:
        total.copy_(x)

    for _ in range(3):
        take(one)
        add(one)
    assert total.tolist() == [2.0, 2.0] and one.tolist() == [1.0, 1.0]


def test_what_a_capture_cannot_repeat() -> None:
    weight = vkml.zeros(2, requires_grad=True)

    @vkml.jit
    def looks(x: Tensor) -> Tensor:
        return x * x.sum().item()

    @vkml.jit
    def adds(x: Tensor) -> Tensor:
        loss = (weight * x).sum()
        loss.backward()
        return loss

    x = vkml.ones(2)
    for function, words in ((looks, "look at"), (adds, "zero_grad")):
        function(x)
        with pytest.raises(CaptureError, match=words):
            function(x)
    assert vkml.ones(1).item() == 1  # nothing is captured any more


def test_tensors_made_within_are_made_anew_each_time() -> None:
    @vkml.jit
    def doubled(x: Tensor) -> Tensor:
        total = vkml.zeros(2)
        total.add_(x)
        total.mul_(2)
        return total + 1

    for number in range(5):
        assert doubled(vkml.full((2,), float(number))).tolist() == [2.0 * number + 1] * 2


def test_detached_state_is_that_of_each_run() -> None:
    state = vkml.ones(2)

    @vkml.jit
    def step(x: Tensor) -> Tensor:
        before = state.detach() * 1
        state.add_(x)
        return before

    assert [step(vkml.ones(2)).tolist()[0] for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_function_that_hands_on_a_parameter_hands_on_that_of_each_run() -> None:
    """It was the parameter of the capture: training stood still behind the second step."""

    class Same(vkml.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    w = vkml.tensor([1.0, 2.0], requires_grad=True)
    optimizer = vkml.optim.SGD([w], lr=0.25)

    @vkml.jit
    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = Same.apply(w).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss

    assert [step().item() for _ in range(4)] == [5.0, 5 / 4, 5 / 16, 5 / 64]


def test_a_capture_that_fails_leaves_tensors_as_they_were() -> None:
    state, calls, kept = vkml.zeros(2), [0], []

    @vkml.jit
    def looks(x: Tensor) -> Tensor:
        state.add_(x)
        calls[0] += 1
        return x * (x.sum().item() if calls[0] > 1 else 1.0)

    @vkml.jit
    def keeps(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return x

    x = vkml.ones(2)
    for function, words in ((looks, "look at"), (keeps, "keeps a tensor")):
        function(x)
        with pytest.raises(CaptureError, match=words):
            function(x)
    assert state.tolist() == [1.0, 1.0]
