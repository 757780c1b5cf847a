"""The models that are measured, built with seeded random weights.

Weights are scaled so that values neither vanish nor explode on their way through; nothing is trained. Sizes
are static, but those of `gpt_with_past`, and batch 1 unless the name says otherwise.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vkml.onnx
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.ir.graph import Graph

Array = np.ndarray[Any, Any]

OPSET = 17
"""The newest that every peer reads."""
EPSILON = 1e-5


class Network(Sketch):
    """A sketch with the layers that networks are made of; each method returns the name of its result."""

    def __init__(self, name: str, seed: int = 0) -> None:
        super().__init__(name, OPSET)
        self._generator = np.random.default_rng(seed)

    def normal(self, *shape: int, scale: float) -> str:
        """Constant normal values of a standard deviation."""
        values = self._generator.standard_normal(shape, np.float32)
        values *= np.float32(scale)
        return self.constant(values)

    def uniform(self, low: float, high: float, *shape: int) -> str:
        return self.constant(self._generator.uniform(low, high, shape).astype(np.float32))

    def scalar(self, value: float) -> str:
        return self.constant(np.float32(value))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def convolution(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        is_normalised: bool = False,
        activation: str = "",
        padding: int | None = None,
    ) -> str:
        """Two-dimensional convolution, padded to keep the size; batch normalisation; an activation."""
        source, target = channels
        fan = source // groups * kernel * kernel
        border = kernel // 2 if padding is None else padding
        inputs = [x, self.normal(target, source // groups, kernel, kernel, scale=math.sqrt(2 / fan))]
        if not is_normalised:
            inputs.append(self.normal(target, scale=0.01))
        y = self.node(
            "Conv",
            *inputs,
            kernel_shape=(kernel, kernel),
            strides=(stride, stride),
            pads=(border,) * 4,
            group=groups,
        )
        if is_normalised:
            y = self.batch_normalisation(y, target)
        return self.activation(y, activation)

    def batch_normalisation(self, x: str, channels: int) -> str:
        scale, variance = self.uniform(0.5, 1.0, channels), self.uniform(0.5, 1.5, channels)
        shift, mean = self.normal(channels, scale=0.01), self.normal(channels, scale=0.01)
        return self.node("BatchNormalization", x, scale, shift, mean, variance, epsilon=EPSILON)

    def activation(self, x: str, kind: str) -> str:
        """relu, relu6 (as Clip), silu (as x·sigmoid(x)), gelu (by Erf), or none."""
        if kind == "relu":
            return self.node("Relu", x)
        if kind == "relu6":
            return self.node("Clip", x, self.scalar(0), self.scalar(6))
        if kind == "silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        if kind == "gelu":
            error = self.node("Erf", self.node("Div", x, self.scalar(math.sqrt(2))))
            return self.node(
                "Mul", self.node("Mul", x, self.node("Add", error, self.scalar(1))), self.scalar(0.5)
            )
        return x

    def linear(self, x: str, source: int, target: int, *, has_bias: bool = True) -> str:
        """MatMul with a constant, and a bias added."""
        y = self.node("MatMul", x, self.normal(source, target, scale=1 / math.sqrt(source)))
        return self.node("Add", y, self.normal(target, scale=0.01)) if has_bias else y

    def layer_normalisation(self, x: str, width: int) -> str:
        ones, zeros = self.constant(np.ones(width, np.float32)), self.constant(np.zeros(width, np.float32))
        return self.node("LayerNormalization", x, ones, zeros, axis=-1, epsilon=EPSILON)


@dataclass(frozen=True)
class Transformer:
    """Sizes of a stack of transformer blocks."""

    batch: int
    length: int
    width: int = 768
    heads: int = 12
    hidden: int = 3072

    def attention(self, net: Network, x: str, mask: str = "") -> str:
        """Self-attention as exporters write it: projections, two batched products, Softmax between."""
        each = self.width // self.heads

        def heads(order: Sequence[int]) -> str:
            split = net.node(
                "Reshape",
                net.linear(x, self.width, self.width),
                net.integers(self.batch, self.length, self.heads, each),
            )
            return net.node("Transpose", split, perm=tuple(order))

        query, key, value = heads((0, 2, 1, 3)), heads((0, 2, 3, 1)), heads((0, 2, 1, 3))
        scores = net.node("Div", net.node("MatMul", query, key), net.scalar(math.sqrt(each)))
        if mask:
            scores = net.node("Add", scores, mask)
        mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), value)
        joined = net.node("Transpose", mixed, perm=(0, 2, 1, 3))
        flat = net.node("Reshape", joined, net.integers(self.batch, self.length, self.width))
        return net.linear(flat, self.width, self.width)

    def feed_forward(self, net: Network, x: str) -> str:
        return net.linear(
            net.activation(net.linear(x, self.width, self.hidden), "gelu"), self.hidden, self.width
        )

    def block(self, net: Network, x: str, *, normalises_first: bool, mask: str = "") -> str:
        """Attention and feed-forward with residuals, normalised before (GPT-2, ViT) or after (BERT)."""
        if normalises_first:
            x = net.node("Add", x, self.attention(net, net.layer_normalisation(x, self.width), mask))
            return net.node("Add", x, self.feed_forward(net, net.layer_normalisation(x, self.width)))
        x = net.layer_normalisation(net.node("Add", x, self.attention(net, x, mask)), self.width)
        return net.layer_normalisation(net.node("Add", x, self.feed_forward(net, x)), self.width)


def _finish(net: Network, value: str, *shape: int) -> Graph:
    net.output(value, "output", shape, dtypes.FLOAT32)
    return net.finish()


def chain_add(count: int) -> Graph:
    """Additions one after the other on one number: what a launch costs."""
    net = Network(f"chain_add_{count}")
    x = net.input("input", (1,))
    zero = net.constant(np.zeros(1, np.float32))
    for _ in range(count):
        x = net.node("Add", x, zero)
    return _finish(net, x, 1)


def matmul_layers(name: str, widths: Sequence[int]) -> Graph:
    """Products with large constant matrices, batch 1: what reading weights costs."""
    net = Network(name)
    x = net.node("Reshape", net.input("input", (1, 1, 28, 28)), net.integers(1, 784))
    for source, target in itertools.pairwise(widths):
        x = net.linear(x, source, target, has_bias=False)
    return _finish(net, net.node("Softmax", x, axis=-1), 1, widths[-1])


def plain_convolutions(name: str, channels: Sequence[int]) -> Graph:
    """3×3 convolutions on a 28×28 image, pooled after every second one."""
    net = Network(name)
    x, source, size = net.input("input", (1, 1, 28, 28)), 1, 28
    for index, target in enumerate(channels):
        x = net.convolution(x, (source, target), 3, activation="relu")
        source = target
        if index % 2:
            x, size = net.node("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2)), size // 2
    flat = source * size * size
    x = net.linear(net.node("Reshape", x, net.integers(1, flat)), flat, 10)
    return _finish(net, net.node("Softmax", x, axis=-1), 1, 10)


def mnist_like() -> Graph:
    """Twelve nodes of the kind and sizes of mnist-12 from the model zoo: two convolutions and a product."""
    net = Network("mnist_like")
    x = net.input("input", (1, 1, 28, 28))
    for channels, pool in (((1, 8), 2), ((8, 16), 3)):
        x = net.node("Conv", x, net.normal(channels[1], channels[0], 5, 5, scale=0.2), auto_pad="SAME_UPPER")
        x = net.node("Relu", net.node("Add", x, net.normal(channels[1], 1, 1, scale=0.1)))
        x = net.node("MaxPool", x, kernel_shape=(pool, pool), strides=(pool, pool))
    x = net.node("Reshape", x, net.integers(1, 256))
    return _finish(net, net.linear(x, 256, 10), 1, 10)


def _classifier(net: Network, x: str, width: int, batch: int) -> Graph:
    x = net.node("Flatten", net.node("GlobalAveragePool", x), axis=1)
    weight, bias = net.normal(1000, width, scale=1 / math.sqrt(width)), net.normal(1000, scale=0.01)
    return _finish(net, net.node("Gemm", x, weight, bias, transB=1), batch, 1000)


def resnet50(batch: int, size: int = 224) -> Graph:
    """He et al., Deep Residual Learning for Image Recognition, 2015; stride in the 3×3 convolution."""
    net = Network(f"resnet50_b{batch}")
    x = net.input("input", (batch, 3, size, size))
    x = net.convolution(x, (3, 64), 7, stride=2, is_normalised=True, activation="relu")
    x = net.node("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    width = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        middle = 64 << stage
        for index in range(count):
            stride = 2 if stage and index == 0 else 1
            y = net.convolution(x, (width, middle), 1, is_normalised=True, activation="relu")
            y = net.convolution(y, (middle, middle), 3, stride=stride, is_normalised=True, activation="relu")
            y = net.convolution(y, (middle, 4 * middle), 1, is_normalised=True)
            if index == 0:
                x = net.convolution(x, (width, 4 * middle), 1, stride=stride, is_normalised=True)
            x, width = net.node("Relu", net.node("Add", y, x)), 4 * middle
    return _classifier(net, x, width, batch)


MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks, stride of the first block: Sandler et al., MobileNetV2, 2018, table 2."""


def mobilenet_v2(batch: int, size: int = 224) -> Graph:
    """Inverted residuals with depthwise convolutions."""
    net = Network(f"mobilenet_v2_b{batch}")
    x = net.input("input", (batch, 3, size, size))
    x, width = net.convolution(x, (3, 32), 3, stride=2, is_normalised=True, activation="relu6"), 32
    for expansion, target, count, first_stride in MOBILENET_STAGES:
        for index in range(count):
            stride, inner = (first_stride if index == 0 else 1), width * expansion
            y = x
            if expansion > 1:
                y = net.convolution(y, (width, inner), 1, is_normalised=True, activation="relu6")
            y = net.convolution(
                y, (inner, inner), 3, stride=stride, groups=inner, is_normalised=True, activation="relu6"
            )
            y = net.convolution(y, (inner, target), 1, is_normalised=True)
            x, width = (net.node("Add", x, y) if width == target and stride == 1 else y), target
    x = net.convolution(x, (width, 1280), 1, is_normalised=True, activation="relu6")
    return _classifier(net, x, 1280, batch)


def bert_base(batch: int, length: int, blocks: int = 12, vocabulary: int = 30522) -> Graph:
    """An encoder of twelve blocks over token numbers; normalisation after each part."""
    net, sizes = Network(f"bert_base_b{batch}_s{length}"), Transformer(batch, length)
    tokens = net.input("input_ids", (batch, length), dtypes.INT64)
    words = net.node("Gather", net.normal(vocabulary, 768, scale=0.02), tokens)
    x = net.layer_normalisation(net.node("Add", words, net.normal(1, length, 768, scale=0.02)), 768)
    for _ in range(blocks):
        x = sizes.block(net, x, normalises_first=False)
    return _finish(net, x, batch, length, 768)


def vit_b16(batch: int, blocks: int = 12) -> Graph:
    """Dosovitskiy et al., An Image is Worth 16x16 Words, 2020: patches of 16×16, twelve blocks."""
    net, sizes = Network(f"vit_b16_b{batch}"), Transformer(batch, 197)
    x = net.input("input", (batch, 3, 224, 224))
    weight, bias = net.normal(768, 3, 16, 16, scale=1 / math.sqrt(768)), net.normal(768, scale=0.01)
    x = net.node("Conv", x, weight, bias, kernel_shape=(16, 16), strides=(16, 16))
    x = net.node("Transpose", net.node("Reshape", x, net.integers(batch, 768, 196)), perm=(0, 2, 1))
    x = net.node("Concat", net.normal(batch, 1, 768, scale=0.02), x, axis=1)
    x = net.node("Add", x, net.normal(1, 197, 768, scale=0.02))
    for _ in range(blocks):
        x = sizes.block(net, x, normalises_first=True)
    x = net.node("Gather", net.layer_normalisation(x, 768), net.constant(np.int64(0)), axis=1)
    return _finish(net, net.linear(x, 768, 1000), batch, 1000)


def gpt2(batch: int, length: int, blocks: int = 12, vocabulary: int = 50257) -> Graph:
    """A decoder of twelve blocks on a whole prompt, with a causal mask, and the scores of all tokens."""
    net, sizes = Network(f"gpt2_b{batch}_s{length}"), Transformer(batch, length)
    tokens = net.input("input_ids", (batch, length), dtypes.INT64)
    words = net.node("Gather", net.normal(vocabulary, 768, scale=0.02), tokens)
    x = net.node("Add", words, net.normal(1, length, 768, scale=0.02))
    mask = net.constant(np.triu(np.full((1, 1, length, length), -1e9, np.float32), 1))
    for _ in range(blocks):
        x = sizes.block(net, x, normalises_first=True, mask=mask)
    x = net.linear(net.layer_normalisation(x, 768), 768, vocabulary, has_bias=False)
    return _finish(net, x, batch, length, vocabulary)


def gpt_with_past(
    blocks: int = 2, width: int = 256, heads: int = 4, vocabulary: int = 1000, longest: int = 16384
) -> Graph:
    """A small decoder that takes and gives the keys and values of its past, as exporters write one.

    Sizes ``batch``, ``new`` (tokens) and ``past`` (tokens before) are open; positions and the causal mask are
    computed from them.
    """
    net, each = Network("gpt_with_past"), width // heads
    tokens = net.input("input_ids", ("batch", "new"), dtypes.INT64)

    def size(value: str, axis: int) -> str:
        shape = net.node("Shape", value)
        return net.node("Gather", shape, net.constant(np.int64(axis)), axis=0)

    def joined(*parts: str) -> str:
        return net.node("Concat", *parts, axis=0)

    def vector(value: str) -> str:
        return net.node("Unsqueeze", value, net.integers(0))

    past_shape = ("batch", heads, "past", each)
    kept = [
        (net.input(f"past.{at}.key", past_shape), net.input(f"past.{at}.value", past_shape))
        for at in range(blocks)
    ]
    batch, new, past = size(tokens, 0), size(tokens, 1), size(kept[0][0], 2)
    total = net.node("Add", past, new)
    zero, one = net.constant(np.int64(0)), net.constant(np.int64(1))
    rows = net.node("Range", past, total, one)
    words = net.node("Gather", net.normal(vocabulary, width, scale=0.5), tokens)
    x = net.node("Add", words, net.node("Gather", net.normal(longest, width, scale=0.1), rows))
    columns = net.node("Range", zero, total, one)
    is_seen = net.node("LessOrEqual", columns, net.node("Unsqueeze", rows, net.integers(1)))
    mask = net.node("Where", is_seen, net.scalar(0.0), net.scalar(-1e9))
    split = joined(vector(batch), vector(new), net.integers(heads), net.integers(each))
    merged = joined(vector(batch), vector(new), net.integers(width))
    for at, (past_key, past_value) in enumerate(kept):
        normal = net.layer_normalisation(x, width)
        query, key, value = (
            net.node(
                "Transpose",
                net.node("Reshape", net.linear(normal, width, width), split),
                perm=(0, 2, 1, 3),
            )
            for _ in range(3)
        )
        key = net.node("Concat", past_key, key, axis=2)
        value = net.node("Concat", past_value, value, axis=2)
        net.output(key, f"present.{at}.key", ("batch", heads, None, each), dtypes.FLOAT32)
        net.output(value, f"present.{at}.value", ("batch", heads, None, each), dtypes.FLOAT32)
        scores = net.node("MatMul", query, net.node("Transpose", key, perm=(0, 1, 3, 2)))
        scores = net.node("Add", net.node("Div", scores, net.scalar(math.sqrt(each))), mask)
        mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), value)
        mixed = net.node("Reshape", net.node("Transpose", mixed, perm=(0, 2, 1, 3)), merged)
        x = net.node("Add", x, net.linear(mixed, width, width))
        normal = net.layer_normalisation(x, width)
        hidden = net.activation(net.linear(normal, width, 4 * width), "gelu")
        x = net.node("Add", x, net.linear(hidden, 4 * width, width))
    logits = net.linear(net.layer_normalisation(x, width), width, vocabulary, has_bias=False)
    net.output(logits, "logits", ("batch", "new", vocabulary), dtypes.FLOAT32)
    return net.finish()


def unet(size: int) -> Graph:
    """Ronneberger et al., U-Net, 2015, in four scales with SiLU and nearest upsampling."""
    net = Network(f"unet_{size}")
    x, width = net.input("input", (1, 3, size, size)), 3
    skipped: list[tuple[str, int]] = []

    def double(x: str, source: int, target: int) -> str:
        x = net.convolution(x, (source, target), 3, activation="silu")
        return net.convolution(x, (target, target), 3, activation="silu")

    for target in (32, 64, 128):
        x, width = double(x, width, target), target
        skipped.append((x, width))
        x = net.node("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
    x, width = double(x, width, 256), 256
    for skip, target in reversed(skipped):
        scales = net.constant(np.array([1, 1, 2, 2], np.float32))
        nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        x = net.node("Resize", x, "", scales, mode="nearest", **nearest)
        x, width = double(net.node("Concat", x, skip, axis=1), width + target, target), target
    return _finish(net, net.convolution(x, (width, 3), 1), 1, 3, size, size)


def lstm(layers: int, hidden: int, steps: int) -> Graph:
    """Bidirectional LSTM layers as PyTorch exports them, batch 1; the input is as wide as a direction."""
    net = Network(f"lstm_bidirectional_{layers}x{hidden}_s{steps}")
    x, width, scale = net.input("input", (steps, 1, hidden)), hidden, hidden**-0.5
    for _ in range(layers):
        rows = 4 * hidden
        weights = [net.uniform(-scale, scale, 2, rows, size) for size in (width, hidden)]
        bias = net.uniform(-scale, scale, 2, 2 * rows)
        y = net.node("LSTM", x, *weights, bias, hidden_size=hidden, direction="bidirectional")
        side_by_side = net.node("Transpose", y, perm=(0, 2, 1, 3))
        x, width = net.node("Reshape", side_by_side, net.integers(steps, 1, 2 * hidden)), 2 * hidden
    return _finish(net, x, steps, 1, width)


MODELS: dict[str, Callable[[], Graph]] = {
    **{f"chain_add_{n}": (lambda n=n: chain_add(n)) for n in (1, 10, 100, 1000, 10000)},  # type: ignore[misc]
    "conv_few_15MB": lambda: plain_convolutions("conv_few_15MB", (128, 256, 512)),
    "conv_many_255MB": lambda: plain_convolutions("conv_many_255MB", (512, 1024, 2048, 2048)),
    "matmul_1GB_16layers": lambda: matmul_layers("matmul_1GB_16layers", (784, *[4032] * 16, 10)),
    "matmul_1GB_1layer": lambda: matmul_layers("matmul_1GB_1layer", (784, 338000, 10)),
    "mnist_like": mnist_like,
    "resnet50_b1": lambda: resnet50(1),
    "resnet50_b32": lambda: resnet50(32),
    "mobilenet_v2_b1": lambda: mobilenet_v2(1),
    "bert_base_b1_s128": lambda: bert_base(1, 128),
    "bert_base_b8_s512": lambda: bert_base(8, 512),
    "vit_b16_b1": lambda: vit_b16(1),
    "gpt2_b1_s256": lambda: gpt2(1, 256),
    "unet_256": lambda: unet(256),
    "gpt_with_past": gpt_with_past,
    "lstm_bidirectional_2x256_s128": lambda: lstm(2, 256, 128),
}
"""Name → builder of every model."""

DEFAULT_MODELS = (
    "chain_add_1",
    "chain_add_100",
    "conv_few_15MB",
    "resnet50_b1",
    "mobilenet_v2_b1",
    "bert_base_b1_s128",
    "vit_b16_b1",
    "unet_256",
)
"""What is measured when no model is named: a few minutes in all."""


def folder() -> Path:
    """Where built models are kept: VKML_BENCHMARK_DIR, or a folder among the temporary files."""
    return Path(os.environ.get("VKML_BENCHMARK_DIR") or Path(tempfile.gettempdir()) / "vkml-benchmarks")


def model_file(name: str) -> Path:
    """The file of a model: a path as it is, a known name's built on first use."""
    path = Path(name)
    if path.suffix == ".onnx":
        return path
    if name not in MODELS:
        raise SystemExit(
            f"there is no model {name!r}; there is {', '.join(MODELS)}, or give the path of an .onnx file"
        )
    built = folder() / f"{name}.onnx"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        vkml.onnx.save_graph(MODELS[name](), built)
    return built
