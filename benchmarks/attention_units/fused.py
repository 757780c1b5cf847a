"""Attention as exporters write it, and models of it, with and without the fused form."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import vkml
from benchmarks.attention_units.problems import Problem
from benchmarks.feeds import feed_of
from benchmarks.micro.runs import Setting, timed_runs
from benchmarks.models import model_file
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, dtypes

MODELS = ("bert_base_b8_s512", "bert_base_b1_s128", "vit_b16_b1", "gpt2_b1_s256")
ORDER = (True, False)
FEW, MANY = 2, 14
"""Layers, of whose times the difference counts."""


@dataclass(frozen=True)
class Pair:
    """Seconds with and without the fused form."""

    label: str
    fused: float
    separate: float
    difference: float = 0.0
    """The largest of the outputs, relative to the largest value."""
    kernels: tuple[str, ...] = ()
    """Attention kernels, as the report has them."""


@contextmanager
def fusing(is_on: bool) -> Iterator[None]:
    """Plans made inside have attention in one kernel, where the device has one, or as it ever was."""
    if is_on:
        yield
        return
    with mock.patch("vkml.engine.planning.fuse_attention", lambda graph, accepted: graph):
        yield


def layers(problem: Problem, count: int) -> Graph:
    """A chain of self-attentions, each with its heads split and joined, from one number to one number."""
    sketch = Sketch("layers")
    width = problem.heads * problem.head_size
    shape = (problem.batch, problem.queries, width)
    start = np.random.default_rng(0).standard_normal(shape, np.float32)
    value = sketch.node("Add", sketch.constant(start), sketch.input("x", (1,)))
    split = sketch.constant(np.array([*shape[:2], problem.heads, problem.head_size], np.int64))
    joined = sketch.constant(np.array(shape, np.int64))
    root = sketch.constant(np.float32(1 / problem.scale))
    lengths = (problem.queries, problem.keys)
    mask = (
        sketch.constant(np.triu(np.full((1, 1, *lengths), -1e9, np.float32), 1)) if problem.is_causal else ""
    )
    for _ in range(count):
        heads = sketch.node("Reshape", value, split)
        q, k, v = (
            sketch.node("Transpose", heads, perm=order)
            for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        )
        scores = sketch.node("Div", sketch.node("MatMul", q, k), root)
        if mask:
            scores = sketch.node("Add", scores, mask)
        mixed = sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), v)
        value = sketch.node("Reshape", sketch.node("Transpose", mixed, perm=(0, 2, 1, 3)), joined)
    sketch.output(sketch.node("ReduceMax", value, keepdims=0), "y", (), dtypes.FLOAT32)
    return sketch.finish()


def measure_layer(problem: Problem, device: str, seconds: float) -> Pair:
    """What one more layer costs, its heads' splitting and joining with it."""
    setting = Setting(device, "high", seconds)
    found = {}
    for is_on in (True, False):
        with fusing(is_on):
            few, many = (
                float(np.median(timed_runs(layers(problem, count), setting, optimises=True)))
                for count in (FEW, MANY)
            )
        found[is_on] = (many - few) / (MANY - FEW)
    return Pair(problem.label, found[True], found[False])


def measure_model(name: str, device: str, seconds: float) -> Pair:
    """Whole runs from host to host, in turns."""
    path = os.fspath(model_file(name))
    feed = feed_of(path)
    sessions: dict[bool, Any] = {}
    results: dict[bool, list[Any]] = {}
    times: dict[bool, list[float]] = {True: [], False: []}
    for is_on in ORDER:
        with fusing(is_on):
            sessions[is_on] = vkml.InferenceSession(path, devices=device, precision="high")
            results[is_on] = sessions[is_on].run(None, feed)
    steps = sessions[True].report().steps
    until = time.perf_counter() + 2 * seconds
    while time.perf_counter() < until or len(times[True]) < 5:
        for is_on in ORDER:
            for _ in range(3):
                started = time.perf_counter()
                sessions[is_on].run(None, feed)
                times[is_on].append(time.perf_counter() - started)
    for session in sessions.values():
        session.close()
    gap = 0.0
    for left, right in zip(results[True], results[False], strict=True):
        scale = float(np.abs(right).max(initial=0)) or 1.0
        gap = max(gap, float(np.abs(left - right).max(initial=0)) / scale)
    kernels = dict.fromkeys(f"{step.kernel}: {step.variant}" for step in steps if "attention" in step.kernel)
    fused, separate = (float(np.median(times[is_on])) for is_on in (True, False))
    return Pair(name, fused, separate, gap, tuple(kernels))
