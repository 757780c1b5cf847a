"""Small models with open sizes as exporters write them: an encoder, image networks, pooled embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from benchmarks.models import Network
from tests.passes.test_open_sizes import MODELS
from vkml.ir import Graph, dtypes


def encoder(blocks: int = 2, width: int = 48, heads: int = 3, vocabulary: int = 101) -> Graph:
    """A transformer over ``batch`` × ``length`` tokens, with a mask of those that count."""
    net, each = Network("encoder"), width // heads
    tokens = net.input("ids", ("batch", "length"), dtypes.INT64)
    seen = net.input("mask", ("batch", "length"), dtypes.INT64)

    def size(axis: int) -> str:
        one = net.node("Gather", net.node("Shape", tokens), net.constant(np.int64(axis)), axis=0)
        return net.node("Unsqueeze", one, net.integers(0))

    split = net.node("Concat", size(0), size(1), net.integers(heads), net.integers(each), axis=0)
    merged = net.node("Concat", size(0), size(1), net.integers(width), axis=0)
    x = net.node("Gather", net.normal(vocabulary, width, scale=0.5), tokens)
    hidden = net.node("Cast", net.node("Unsqueeze", seen, net.integers(1, 2)), to=1)
    mask = net.node("Mul", net.node("Sub", net.scalar(1.0), hidden), net.scalar(-1e9))
    for _ in range(blocks):
        parts = [
            net.node("Transpose", net.node("Reshape", net.linear(x, width, width), split), perm=(0, 2, 1, 3))
            for _ in range(3)
        ]
        query, key, value = parts
        scores = net.node("MatMul", query, net.node("Transpose", key, perm=(0, 1, 3, 2)))
        scores = net.node("Add", net.node("Div", scores, net.scalar(math.sqrt(each))), mask)
        mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), value)
        mixed = net.node("Reshape", net.node("Transpose", mixed, perm=(0, 2, 1, 3)), merged)
        x = net.layer_normalisation(net.node("Add", x, net.linear(mixed, width, width)), width)
        inner = net.activation(net.linear(x, width, 2 * width), "gelu")
        x = net.layer_normalisation(net.node("Add", x, net.linear(inner, 2 * width, width)), width)
    first = net.node("Gather", x, net.constant(np.int64(0)), axis=1)
    return net.finish(x, net.activation(net.linear(first, width, 7), "sigmoid"))


def images(size: int = 12) -> Graph:
    """A classifier of ``batch`` images: plain, depthwise and strided convolutions, pooling, a linear end."""
    net = Network("images")
    x = net.input("image", ("batch", 3, size, size))
    x = net.node("Relu", net.convolution(x, (3, 24), 3, is_normalised=True))
    x = net.node("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
    y = net.node("Relu", net.convolution(x, (24, 24), 3, groups=24))
    x = net.node("Add", x, net.convolution(y, (24, 24), 1))
    x = net.node("Relu", net.convolution(x, (24, 40), 3, stride=2))
    x = net.node("Relu", net.convolution(x, (40, 40), 3))
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    return net.finish(net.node("Softmax", net.linear(x, 40, 11)))


def maps() -> Graph:
    """Images of any ``height`` × ``width``: convolutions down and up again, and what was there before."""
    net = Network("maps")
    x = net.input("image", ("batch", 2, "height", "width"))
    kept = net.node("Relu", net.convolution(x, (2, 16), 3))
    small = net.node("Relu", net.convolution(kept, (16, 16), 3, stride=2))
    mean = net.node("ReduceMean", small, axes=(2, 3), keepdims=1)
    gate = net.node("Sigmoid", net.convolution(mean, (16, 16), 1))
    wide = net.node("Mul", kept, gate)
    return net.finish(net.convolution(net.node("Concat", wide, kept, axis=1), (32, 4), 3), small)


def embeddings(width: int = 20, vocabulary: int = 100) -> Graph:
    """Means, maxima and norms of the embeddings of ``length`` tokens, and their products with one another."""
    net = Network("embeddings")
    tokens = net.input("ids", ("batch", "length"), dtypes.INT64)
    x = net.node("Gather", net.normal(vocabulary, width, scale=1.0), tokens)
    mean = net.node("ReduceMean", x, axes=(1,), keepdims=1)
    centred = net.node("Sub", x, mean)
    norm = net.node("ReduceL2", centred, axes=(-1,), keepdims=1)
    unit = net.node("Div", centred, net.node("Add", norm, net.scalar(1e-3)))
    alike = net.node("MatMul", unit, net.node("Transpose", unit, perm=(0, 2, 1)))
    highest = net.node("ReduceMax", alike, axes=(-1,), keepdims=0)
    turned = net.node("Transpose", net.node("Tanh", x), perm=(2, 1, 0))
    return net.finish(alike, highest, turned, net.node("ReduceSum", x, net.integers(1), keepdims=0))


OPEN_MODELS: dict[str, Callable[[], Graph]] = {
    **MODELS,
    "encoder": encoder,
    "images": images,
    "maps": maps,
    "embeddings": embeddings,
}
