"""Whole models learn what they should, and as PyTorch's do from the same weights and batches."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import vkml
from benchmarks.language_models import Llama, adding, character_transformer, lora
from benchmarks.training_models import perceptron, resnet18
from tests.whole_models import tasks
from vkml import nn

WINDOW = 10
"""Losses whose mean is compared: those of single steps differ by roundings that training makes larger."""
SMALL_LLAMA = Llama(vocabulary=97, width=48, depth=2, heads=6, key_heads=2, inside=80, length=16)


def _torch() -> ModuleType:
    found: ModuleType = pytest.importorskip("torch")
    return found


# -- learning ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "epochs", "least"), [("cnn", 5, 0.965), ("mlp", 8, 0.955)])
def test_digits(network: str, epochs: int, least: float, either_device_name: str) -> None:
    # Where only the last layer learns it is 0.62 to 0.76, and 0.87 to 0.92, by the seed.
    assert tasks.digits_accuracy(either_device_name, epochs, network) >= least


def test_an_lstm_adds(either_device_name: str) -> None:
    def build(layers: Any) -> Any:
        return adding(layers, 16)

    losses, _ = tasks.train(
        vkml, build, tasks.weights_of(build), tasks.sums(32, 8, 300), either_device_name,
        optimizer="Adam", loss="MSELoss", lr=1e-2,
    )  # fmt: skip
    # Who says 1, the mean of sums, is wrong by their variance, 1 / 6; who finds one of the two, by 1 / 12.
    assert np.mean(losses[-30:]) < 0.5 / 12, losses[::30]


# -- as PyTorch does -----------------------------------------------------------------------------------------


def _compare(
    build: Callable[[Any], Any], batches: Any, device: str, share: float, **named: Any
) -> tuple[list[float], list[float]]:
    """Losses of both packages, which differ by no more than a share of them, smoothed over `WINDOW`."""
    torch, state, batches = _torch(), tasks.weights_of(build), list(batches)
    found, _ = tasks.train(vkml, build, state, batches, device, **named)
    wanted, _ = tasks.train(torch, build, state, batches, "cpu", **named)
    window = min(WINDOW, len(batches) // 2)
    np.testing.assert_allclose(
        tasks.smoothed(found, window), tasks.smoothed(wanted, window), rtol=share, atol=1e-4
    )
    return found, wanted


def test_a_character_transformer(either_device_name: str) -> None:
    written, vocabulary = tasks.text()

    def build(layers: Any) -> Any:
        return character_transformer(layers, vocabulary, width=32, depth=2, heads=2, length=32)

    found, _ = _compare(build, tasks.lines_of_text(8, 32, 100), either_device_name, 0.01, lr=1e-2)
    shares = np.bincount(written) / len(written)
    # Who knows how frequent characters are, and nothing of those before, has their entropy.
    assert np.mean(found[-20:]) < -(shares * np.log(shares)).sum() - 0.2


def test_examples_keep_their_targets_in_another_order() -> None:
    """What the full character transformer is trained on to see how far sums in another order lead."""
    for (x, y), (other_x, other_y) in zip(
        tasks.lines_of_text(8, 32, 3), tasks.reordered(tasks.lines_of_text(8, 32, 3), 1), strict=True
    ):
        lines = np.concatenate([x, y.reshape(8, 32)], 1).tolist()
        others = np.concatenate([other_x, other_y.reshape(8, 32)], 1).tolist()
        assert lines != others and sorted(lines) == sorted(others) and other_y.shape == y.shape


def test_a_perceptron(either_device_name: str) -> None:
    batches = tasks.perceptron_batches(40)
    found, _ = _compare(perceptron, batches, either_device_name, 0.01, optimizer="SGD", lr=0.05, momentum=0.9)
    assert np.mean(found[-4:]) < 0.2 * np.mean(found[:4])


def test_an_lstm(either_device_name: str) -> None:
    def build(layers: Any) -> Any:
        return adding(layers, 16)

    _compare(
        build, tasks.sums(32, 8, 40), either_device_name, 0.01, optimizer="Adam", loss="MSELoss", lr=1e-2
    )  # fmt: skip


def test_a_residual_network(either_device_name: str) -> None:
    batches = tasks.images(4, 48, 5)
    found, _ = _compare(resnet18, batches, either_device_name, 0.01, optimizer="SGD", lr=0.005, momentum=0.9)
    assert found[-1] < 0.5 * found[0]


def test_adapters_of_a_language_model(either_device_name: str) -> None:
    """Llama's layers, adapters of all projections: first gradients, and losses of later steps."""
    torch = _torch()

    def build(layers: Any) -> Any:
        return lora(layers, SMALL_LLAMA, r=4)

    state = tasks.weights_of(build)
    random = np.random.default_rng(1)
    for name, value in state.items():  # those of lora_B begin as zeros, and then gradients by lora_A are
        if "lora_B" in name:
            value[...] = 0.05 * random.standard_normal(value.shape)
    [(x, y), *_] = batches = tasks.tokens(SMALL_LLAMA, 2, 12)
    ours, theirs = build(nn), build(torch.nn)
    ours.load_state_dict(state)
    ours.to(either_device_name)
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    nn.functional.cross_entropy(
        ours(vkml.tensor(x, device=either_device_name)), vkml.tensor(y, device=either_device_name)
    ).backward()
    torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    parameters = dict(theirs.named_parameters())
    learned = [name for name, value in ours.named_parameters() if value.requires_grad]
    assert len(learned) == 2 * 7 * SMALL_LLAMA.depth
    for name, value in ours.named_parameters():
        gradient = parameters[name].grad
        assert (value.grad is None) == (gradient is None) == (name not in learned), name
        if gradient is not None:
            scale = gradient.abs().max().item()
            np.testing.assert_allclose(
                value.grad.numpy(), gradient.numpy(), rtol=1e-3, atol=1e-4 * scale, err_msg=name
            )
    found = []
    for package, device in ((vkml, either_device_name), (torch, "cpu")):
        losses, model = tasks.train(package, build, state, batches, device, lr=1e-2)
        found.append(losses)
        frozen = {name: x.detach() for name, x in model.state_dict().items() if "lora" not in name}
        for name, value in frozen.items():
            np.testing.assert_array_equal(value.numpy(), state[name], err_msg=name)
    np.testing.assert_allclose(*found, rtol=0.01)
    assert found[0][-1] < found[0][0] - 0.3


def test_captured_and_eager_steps_train_alike(either_device_name: str) -> None:
    """A transformer, and a network with batch statistics."""
    _, vocabulary = tasks.text()

    def transformer(layers: Any) -> Any:
        return character_transformer(layers, vocabulary, width=16, depth=1, heads=2, length=16)

    def network(layers: Any) -> Any:
        return layers.Sequential(
            layers.Conv2d(3, 4, 3), layers.BatchNorm2d(4), layers.ReLU(), layers.AdaptiveAvgPool2d(2),
            layers.Flatten(), layers.Linear(16, 10),
        )  # fmt: skip

    for build, batches in (
        (transformer, list(tasks.lines_of_text(4, 16, 8))),
        (network, tasks.images(4, 12, 8)),
    ):
        state = tasks.weights_of(build)
        captured, eager = (
            tasks.train(vkml, build, state, batches, either_device_name, captured=how, lr=1e-2)
            for how in (True, False)
        )
        np.testing.assert_allclose(captured[0], eager[0], rtol=1e-5)
        for name, value in captured[1].state_dict().items():
            wanted = eager[1].state_dict()[name].numpy()
            np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-3, atol=1e-5, err_msg=name)
