"""Known-answer graphs whose nodes have bodies, loops and gradients, each with what it makes in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.ir.graph import Graph
from vkml.passes.gradient_bodies import DOMAIN

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

_LIMIT = 1000
"""At which a loop ends."""


def _uniform(generator: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, Array]:
    return {name: generator.uniform(-2, 2, shape).astype(np.float32) for name, shape in shapes.items()}


def maximum_gradient(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """What elements get of windows' weights, by which their greatest elements are multiplied."""
    sketch = Sketch("maximum")
    feed = _uniform(generator, x=(2, 3, 11, 13), w=(2, 3, 6, 7))
    x, w = (sketch.input(name, value.shape) for name, value in feed.items())
    greatest = sketch.node("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    y = sketch.node("Mul", greatest, w)
    return sketch.finish(sketch.node("Gradient", x, w, domain=DOMAIN, xs=("x",), zs=("w",), y=y)), feed


def maximum_gradient_answer(feed: Feed) -> list[Array]:
    """Window by window."""
    x, w = feed["x"], feed["w"]
    found = np.zeros((*x.shape[:2], x.shape[2] + 2, x.shape[3] + 2))
    padded = np.full(found.shape, -np.inf)
    padded[:, :, 1:-1, 1:-1] = x
    for image, channel, down, across in np.ndindex(*w.shape):
        window = image, channel, slice(2 * down, 2 * down + 3), slice(2 * across, 2 * across + 3)
        at = np.unravel_index(np.argmax(padded[window]), (3, 3))
        found[window][at] += w[image, channel, down, across]
    return [found[:, :, 1:-1, 1:-1].astype(x.dtype)]


def attention_gradients(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Of queries, keys and values, whose results are multiplied by weights."""
    sketch = Sketch("gradients", 23)
    shape = (1, 2, 70, 64)
    feed = _uniform(generator, q=shape, k=shape, v=shape, w=shape)
    given = [sketch.input(name, shape) for name in feed]
    y = sketch.node("Mul", sketch.node("Attention", *given[:3]), given[3])
    of = sketch.node_with_outputs("Gradient", 3, *given, domain=DOMAIN, xs=("q", "k", "v"), zs=("w",), y=y)
    return sketch.finish(*of), feed


def attention_gradients_answer(feed: Feed) -> list[Array]:
    """By the probabilities, made whole."""
    q, k, v, w = (feed[name].astype(np.float64) for name in ("q", "k", "v", "w"))
    scale = 1 / math.sqrt(q.shape[-1])
    weights = np.exp(q @ k.swapaxes(-1, -2) * scale)
    weights /= weights.sum(-1, keepdims=True)
    of_weights = w @ v.swapaxes(-1, -2)
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True)) * scale
    found = of_scores @ k, of_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ w
    return [gradient.astype(feed["q"].dtype) for gradient in found]


def loop(generator: np.random.Generator) -> tuple[Graph, Feed]:
    """Numbers are doubled until one reaches a limit; the greatest of each trip are collected."""
    trip = Sketch("trip")
    trip.input("number", (), dtypes.INT64)
    trip.input("goes", (), dtypes.BOOL)
    doubled = trip.node("Mul", trip.input("before", (4, 9)), trip.constant(np.float32(2), "two"))
    greatest = trip.node("ReduceMax", doubled, keepdims=0)
    is_less = trip.node("Less", greatest, trip.constant(np.float32(_LIMIT), "limit"))
    trip.output(is_less, "goes on", (), dtypes.BOOL)
    trip.output(doubled, "after", (4, 9), dtypes.FLOAT32)
    trip.output(greatest, "greatest", (), dtypes.FLOAT32)
    sketch = Sketch("loop")
    feed = _uniform(generator, x=(4, 9))
    x = sketch.input("x", (4, 9))
    return sketch.finish(*sketch.node_with_outputs("Loop", 2, "", "", x, body=trip.finish())), feed


def loop_answer(feed: Feed) -> list[Array]:
    """Trip by trip; powers of two round nothing."""
    x, seen = feed["x"], [np.float32(0)]
    while seen[-1] < _LIMIT:
        x = x * 2
        seen.append(x.max())
    return [x, np.array(seen[1:])]
