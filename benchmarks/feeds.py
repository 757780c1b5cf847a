"""Random inputs of a model file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import vkml.onnx
from vkml.cli.inputs import random_feed

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Input:
    name: str
    shape: tuple[int | str | None, ...]
    type: str


def feed_of(path: str, seed: int = 0) -> dict[str, Array]:
    """Seeded random values for all inputs; symbolic sizes are 1."""
    with vkml.onnx.open(path) as model:
        graph = vkml.onnx.load_graph(model)
    infos = [
        _Input(value.name, value.tensor.shape or (), f"tensor({value.tensor.dtype.name})")
        for value in graph.inputs
        if value.name not in graph.constants
    ]
    return random_feed(infos, {}, seed)
