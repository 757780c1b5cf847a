"""Models and data of the trainings, of any size, for vkml and for PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import vkml
from benchmarks.language_models import Llama
from benchmarks.training_models import digits as digits_network
from vkml import nn

Array = np.ndarray[Any, Any]
Batches = Iterable[tuple[Array, Array]]
ROOT = Path(__file__).parents[2]


# -- loops ---------------------------------------------------------------------------------------------------


def weights_of(build: Callable[[Any], Any], seed: int = 0) -> dict[str, Array]:
    """The state that both packages begin with."""
    vkml.manual_seed(seed)
    return {name: value.numpy() for name, value in build(nn).state_dict().items()}


def train(
    package: Any, build: Callable[[Any], Any], state: Mapping[str, Array], batches: Batches, device: str, *,
    optimizer: str = "AdamW", loss: str = "CrossEntropyLoss", captured: bool = True, cycle: int = 0,
    **settings: Any,
) -> tuple[list[float], Any]:  # fmt: skip
    """The loss of every step, and the model that was trained.

    Args:
        package: vkml or torch.
        build: the model, of a package's `nn`.
        state: that it begins with.
        batches: inputs and targets.
        device: the package's own name of it.
        optimizer: its name; it learns what requires grad.
        loss: its name.
        captured: whether vkml's step is captured.
        cycle: steps of one rise of the learning rate to what it is and of its fall; 0 for a constant one.
        settings: of the optimizer.
    """
    is_ours = package is vkml
    make = vkml.tensor if is_ours else package.from_numpy
    model = build(package.nn)
    model.load_state_dict({name: make(value.copy()) for name, value in state.items()})
    model.to(device)
    learned = [value for value in model.parameters() if value.requires_grad]
    updates = getattr(package.optim, optimizer)(learned, **settings)
    loss_of = getattr(package.nn, loss)()

    def step(x: Any, y: Any) -> Any:
        updates.zero_grad()
        found = loss_of(model(x), y)
        found.backward()
        updates.step()
        return found

    schedules = package.optim.lr_scheduler
    schedule = schedules.OneCycleLR(updates, settings["lr"], total_steps=cycle + 1) if cycle else None
    act = vkml.jit(step, device=device) if is_ours and captured else step
    losses = []
    for x, y in batches:
        losses.append(float(act(make(x).to(device), make(y).to(device)).item()))
        if schedule is not None:
            schedule.step()
    return losses, model


def smoothed(losses: list[float], window: int) -> Array:
    """Means of as many losses as are in a window, at each place that it fits."""
    total = np.cumsum(np.concatenate([[0.0], losses]))
    return (total[window:] - total[:-window]) / window


# -- images --------------------------------------------------------------------------------------------------


@functools.cache
def digits(seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """Images and classes of scikit-learn's digits, 80 % to train on and 20 % to test with."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    order = np.random.default_rng(seed).permutation(len(images))
    test, learned = np.split(order, [round(len(images) * 0.2)])
    return images[learned], data.target[learned], images[test], data.target[test]


def shuffled(x: Array, y: Array, batch: int, epochs: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Batches of all examples in another order each epoch; what does not fill one is left out."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for at in range(0, len(x) - batch + 1, batch):
            part = order[at : at + batch]
            yield x[part], y[part]


def digits_accuracy(device: str, epochs: int, network: str = "cnn", seed: int = 0) -> float:
    """Share of the test set that a network of two convolutions, or a perceptron, tells right."""
    x, y, test, wanted = digits()
    build = digits_network if network == "cnn" else _flat_perceptron
    batches = list(shuffled(x, y, 64, epochs, seed))
    _, model = train(
        vkml, build, weights_of(build, seed), batches, device, optimizer="Adam", lr=5e-3, cycle=len(batches)
    )
    model.eval()
    with vkml.no_grad():
        found = model(vkml.tensor(test, device=device)).numpy().argmax(1)
    return float((found == wanted).mean())


def _flat_perceptron(layers: Any) -> Any:
    return layers.Sequential(layers.Flatten(), layers.Linear(64, 128), layers.ReLU(), layers.Linear(128, 10))


def images(batch: int, size: int, steps: int, seed: int = 0) -> list[tuple[Array, Array]]:
    """The same few random images in every step, of 10 classes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, 3, size, size), np.float32)
    y = rng.integers(0, 10, batch)
    return [(x, y)] * steps


def perceptron_batches(steps: int, seed: int = 0) -> list[tuple[Array, Array]]:
    """Four batches of random vectors, again and again, whose classes are the greatest of ten projections."""
    rng = np.random.default_rng(seed)
    projection = rng.standard_normal((784, 10), np.float32)
    xs = [rng.standard_normal((64, 784), np.float32) for _ in range(4)]
    batches = [(x, (x @ projection).argmax(1)) for x in xs]
    return [batches[at % 4] for at in range(steps)]


# -- sequences -----------------------------------------------------------------------------------------------


@functools.cache
def text() -> tuple[Array, int]:
    """The project's documentation as numbers of characters, and how many different ones there are."""
    written = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    characters = sorted(set(written))
    number = {character: at for at, character in enumerate(characters)}
    return np.array([number[character] for character in written]), len(characters)


def lines_of_text(batch: int, length: int, steps: int, seed: int = 0) -> Iterator[tuple[Array, Array]]:
    """Pieces of the documentation, and the characters behind each of theirs."""
    written, _ = text()
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        starts = rng.integers(0, len(written) - length - 1, batch)
        pieces = np.stack([written[start : start + length + 1] for start in starts])
        yield pieces[:, :-1].copy(), pieces[:, 1:].reshape(-1).copy()


def reordered(batches: Batches, seed: int) -> Iterator[tuple[Array, Array]]:
    """The same examples in another order inside of each batch, of targets that are one or several an example.

    Losses and gradients are means over the batch: the same numbers, added up in another order.
    """
    rng = np.random.default_rng(seed)
    for x, y in batches:
        order = rng.permutation(len(x))
        yield x[order], y.reshape(len(x), -1)[order].reshape(y.shape)


def sums(batch: int, length: int, steps: int, seed: int = 0) -> Iterator[tuple[Array, Array]]:
    """The adding problem: numbers from [0, 1), two of which are marked, and the sum of these."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        numbers = rng.random((batch, length), np.float32)
        marks = np.zeros_like(numbers)
        half = length // 2
        marks[np.arange(batch), rng.integers(0, half, batch)] = 1
        marks[np.arange(batch), rng.integers(half, length, batch)] = 1
        yield np.stack([numbers, marks], -1), (numbers * marks).sum(1, keepdims=True)


def tokens(sizes: Llama, batch: int, steps: int, seed: int = 0) -> list[tuple[Array, Array]]:
    """The same random tokens in every step, and those behind each: what there is to learn is by heart."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, sizes.vocabulary, (batch, sizes.length + 1))
    return [(drawn[:, :-1].copy(), drawn[:, 1:].reshape(-1).copy())] * steps
