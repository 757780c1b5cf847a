"""Runs of a graph from host to host: how they are set, and how long each takes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

import vkml
import vkml.onnx
from vkml.ir.graph import Graph


@dataclass(frozen=True)
class Setting:
    """Where and how long to measure."""

    device: str
    precision: str
    seconds: float


def timed_runs(graph: Graph, setting: Setting, *, optimises: bool = False) -> list[float]:
    """Seconds of each of many runs."""
    model = vkml.onnx.save_graph(graph)
    assert model is not None
    options = vkml.SessionOptions()
    if not optimises:
        options.graph_optimization_level = vkml.GraphOptimizationLevel.ORT_DISABLE_ALL
    feed = {value.name: np.zeros(value.tensor.dims, np.float32) for value in graph.inputs}
    with vkml.InferenceSession(
        model, options, devices=setting.device, precision=setting.precision
    ) as session:
        for _ in range(4):
            session.run(None, feed)
        taken: list[float] = []
        until = time.perf_counter() + setting.seconds
        while len(taken) < 5 or (time.perf_counter() < until and len(taken) < 5000):
            started = time.perf_counter()
            session.run(None, feed)
            taken.append(time.perf_counter() - started)
    return taken


def median_run(graph: Graph, setting: Setting) -> float:
    """Median seconds of a run without optimisation."""
    return float(np.median(timed_runs(graph, setting)))
