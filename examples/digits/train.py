"""Trains the digits model with NumPy alone, and writes digits.onnx and the example pictures.

usage: python examples/digits/train.py [--epochs N] [--seed N] [--output DIR]

The data are the 1797 handwritten digits of 8×8 pixels that come with scikit-learn (nothing is downloaded): 80
% to train on, 20 % to test with. The network: two convolutions of 3×3 with ReLU and pooling, then one linear
layer with softmax.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import vkml.onnx
from vkml.ir import Constant, Graph, Node, TensorType, Value, dtypes

Array = np.ndarray[Any, Any]
Parameters = dict[str, Array]

FOLDER = Path(__file__).parent
TEST_SHARE = 0.2
CHANNELS = (16, 32)
OPSET = 17
PICTURES = 10
"""Pictures written: one of each digit, from the test set."""


@dataclass(frozen=True)
class Split:
    """Images of shape (N, 1, 8, 8) in 0..1 and their digits."""

    images: Array
    digits: Array


def split_digits(seed: int = 0) -> tuple[Split, Split]:
    """Training and test set; which is which depends on the seed alone."""
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    order = np.random.default_rng(seed).permutation(len(images))
    count = round(len(images) * TEST_SHARE)
    test, train = order[:count], order[count:]
    return Split(images[train], data.target[train]), Split(images[test], data.target[test])


# --- the network, forward and backward ----------------------------------------------------------------------


def initial_parameters(generator: np.random.Generator) -> Parameters:
    """Weights scaled to the number of values that flow into them (He initialisation)."""
    first, second = CHANNELS

    def weights(*shape: int) -> Array:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        values: Array = (generator.standard_normal(shape) * scale).astype(np.float32)
        return values

    return {
        "conv1.weight": weights(first, 1, 3, 3),
        "conv1.bias": np.zeros(first, np.float32),
        "conv2.weight": weights(second, first, 3, 3),
        "conv2.bias": np.zeros(second, np.float32),
        "linear.weight": weights(10, second * 4),
        "linear.bias": np.zeros(10, np.float32),
    }


def patches(x: Array) -> Array:
    """The 3×3 neighbourhood of each pixel, zero outside: (N, C, H, W) → (N, H, W, C·9)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    batch, channels, height, width = x.shape
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(batch, height, width, channels * 9)


def patches_backward(gradient: Array, channels: int) -> Array:
    """What `patches` does, backwards: adds each patch's gradient onto the pixels it was read from."""
    batch, height, width, _ = gradient.shape
    parts = gradient.reshape(batch, height, width, channels, 3, 3)
    padded = np.zeros((batch, channels, height + 2, width + 2), np.float32)
    for row in range(3):
        for column in range(3):
            part = parts[..., row, column].transpose(0, 3, 1, 2)
            padded[:, :, row : row + height, column : column + width] += part
    return padded[:, :, 1:-1, 1:-1]


@dataclass(frozen=True)
class ConvolutionTrace:
    """What a convolution's backward pass needs."""

    patches: Array
    positive: Array
    chosen: Array
    """Where each pooled value came from: one-hot over the four places of its 2×2 window."""


def convolve(x: Array, weight: Array, bias: Array) -> tuple[Array, ConvolutionTrace]:
    """Convolution, ReLU and 2×2 max pooling: (N, C, H, W) → (N, D, H/2, W/2)."""
    columns = patches(x)
    values = columns @ weight.reshape(len(weight), -1).T + bias
    positive = values > 0
    batch, height, width, depth = values.shape
    windows = np.where(positive, values, 0).reshape(batch, height // 2, 2, width // 2, 2, depth)
    windows = windows.transpose(0, 1, 3, 5, 2, 4).reshape(batch, height // 2, width // 2, depth, 4)
    chosen = np.eye(4, dtype=np.float32)[windows.argmax(-1)]
    return windows.max(-1).transpose(0, 3, 1, 2), ConvolutionTrace(columns, positive, chosen)


def convolve_backward(gradient: Array, trace: ConvolutionTrace, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients of the input, the weight and the bias."""
    batch, height, width, depth = trace.positive.shape
    windows = gradient.transpose(0, 2, 3, 1)[..., None] * trace.chosen
    windows = windows.reshape(batch, height // 2, width // 2, depth, 2, 2).transpose(0, 1, 4, 2, 5, 3)
    values = windows.reshape(batch, height, width, depth) * trace.positive
    flat = values.reshape(-1, depth)
    weight_gradient = (flat.T @ trace.patches.reshape(len(flat), -1)).reshape(weight.shape)
    columns = values @ weight.reshape(depth, -1)
    return patches_backward(columns, weight.shape[1]), weight_gradient, flat.sum(0)


def probabilities(parameters: Parameters, images: Array) -> Array:
    """The network's output: (N, 10)."""
    return _forward(parameters, images)[0]


def _forward(parameters: Parameters, images: Array) -> tuple[Array, tuple[Any, ...]]:
    first, trace1 = convolve(images, parameters["conv1.weight"], parameters["conv1.bias"])
    second, trace2 = convolve(first, parameters["conv2.weight"], parameters["conv2.bias"])
    flat = second.reshape(len(images), -1)
    scores = flat @ parameters["linear.weight"].T + parameters["linear.bias"]
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True), (trace1, trace2, flat, second.shape)


def gradients(parameters: Parameters, images: Array, digits: Array) -> tuple[Parameters, float]:
    """Gradients of the mean cross-entropy, and its value."""
    given, (trace1, trace2, flat, shape) = _forward(parameters, images)
    loss = float(-np.log(given[np.arange(len(digits)), digits] + 1e-12).mean())
    error = (given - np.eye(10, dtype=np.float32)[digits]) / np.float32(len(digits))
    found: Parameters = {"linear.weight": error.T @ flat, "linear.bias": error.sum(0)}
    upper = (error @ parameters["linear.weight"]).reshape(shape)
    lower, found["conv2.weight"], found["conv2.bias"] = convolve_backward(
        upper, trace2, parameters["conv2.weight"]
    )
    _, found["conv1.weight"], found["conv1.bias"] = convolve_backward(
        lower, trace1, parameters["conv1.weight"]
    )
    return found, loss


# --- training -----------------------------------------------------------------------------------------------


def batches(data: Split, size: int, generator: np.random.Generator) -> Iterator[Split]:
    """The data in random order."""
    order = generator.permutation(len(data.images))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield Split(data.images[chosen], data.digits[chosen])


def train(data: Split, epochs: int = 40, seed: int = 0) -> Parameters:
    """Adam with a rate that falls to zero; the same seed gives the same parameters."""
    generator = np.random.default_rng(seed)
    parameters = initial_parameters(generator)
    means = {name: np.zeros_like(value) for name, value in parameters.items()}
    squares = {name: np.zeros_like(value) for name, value in parameters.items()}
    size = 64
    steps, total = 0, epochs * -(-len(data.images) // size)
    for _ in range(epochs):
        for batch in batches(data, size, generator):
            found, _ = gradients(parameters, batch.images, batch.digits)
            steps += 1
            rate = np.float32(3e-3 * 0.5 * (1 + np.cos(np.pi * steps / total)))
            for name, gradient in found.items():
                means[name] = np.float32(0.9) * means[name] + np.float32(0.1) * gradient
                squares[name] = np.float32(0.999) * squares[name] + np.float32(0.001) * gradient**2
                mean = means[name] / np.float32(1 - 0.9**steps)
                square = squares[name] / np.float32(1 - 0.999**steps)
                parameters[name] = parameters[name] - rate * mean / (np.sqrt(square) + np.float32(1e-8))
    return parameters


def accuracy(given: Array, digits: Array) -> float:
    """The share of rows whose largest value is at the right digit."""
    return float((given.argmax(1) == digits).mean())


# --- what is written ----------------------------------------------------------------------------------------


def to_graph(parameters: Parameters) -> Graph:
    """The network as a graph; its batch size stays open."""

    def node(op: str, inputs: tuple[str, ...], output: str, **attributes: Any) -> Node:
        return Node(op, inputs, (output,), attributes, name=output, version=OPSET)

    def convolution(index: int, source: str) -> tuple[Node, ...]:
        name = f"conv{index}"
        pool = {"kernel_shape": (2, 2), "strides": (2, 2)}
        return (
            node(
                "Conv",
                (source, f"{name}.weight", f"{name}.bias"),
                name,
                kernel_shape=(3, 3),
                pads=(1, 1, 1, 1),
            ),
            node("Relu", (name,), f"{name}.relu"),
            node("MaxPool", (f"{name}.relu",), f"{name}.pool", **pool),
        )

    return Graph(
        inputs=(Value("image", TensorType(dtypes.FLOAT32, ("batch", 1, 8, 8))),),
        outputs=(Value("probabilities", TensorType(dtypes.FLOAT32, ("batch", 10))),),
        nodes=(
            *convolution(1, "image"),
            *convolution(2, "conv1.pool"),
            node("Flatten", ("conv2.pool",), "flat", axis=1),
            node("Gemm", ("flat", "linear.weight", "linear.bias"), "scores", transB=1),
            node("Softmax", ("scores",), "probabilities", axis=1),
        ),
        constants={
            name: Constant(dtypes.FLOAT32, value.shape, np.ascontiguousarray(value))
            for name, value in parameters.items()
        },
        name="digits",
        opsets={"": OPSET},
        documentation="Handwritten digits of 8×8 pixels, white on black in 0..1, to probabilities of 0 to 9.",
    )


def write_pictures(test: Split, folder: Path) -> None:
    """One picture of each digit from the test set, and one of them enlarged."""
    from PIL import Image

    for digit in range(PICTURES):
        pixels = test.images[np.flatnonzero(test.digits == digit)[0], 0]
        picture = Image.fromarray(np.round(pixels * 255).astype(np.uint8))
        picture.save(folder / f"{digit}.png", optimize=True)
        if digit == 5:
            picture.resize((96, 96), Image.Resampling.BICUBIC).save(folder / "5-large.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    training, test = split_digits(options.seed)
    parameters = train(training, options.epochs, options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    vkml.onnx.save_graph(to_graph(parameters), options.output / "digits.onnx")
    write_pictures(test, options.output)
    share = accuracy(probabilities(parameters, test.images), test.digits)
    print(f"test accuracy {100 * share:.1f} % on {len(test.digits)} images; wrote digits.onnx and pictures")


if __name__ == "__main__":
    main()
