"""Whole models: a plan makes the same bits in each of its runs, and so does that of another session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from benchmarks.feeds import feed_of
from tests.benchmarks.test_small_models import SMALL
from tests.engine.device_models import DEVICE_MODELS
from vkml.lowering.kept import forget_lowerings
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
RUNS = 5


def check(path: str, feed: Feed, other: Feed, device: str) -> None:
    """Behind a run of other numbers, too, which leaves others in memory."""
    found: list[Sequence[Array]] = []
    between: list[Sequence[Array]] = []
    for runs in (RUNS, 2):
        forget_lowerings()
        with vkml.InferenceSession(path, devices=device) as session:
            for number in range(runs):
                found.append(session.run(None, feed))
                if number % 2 == 0:
                    between.append(session.run(None, other))
    assert any(one.tobytes() != two.tobytes() for one, two in zip(found[0], between[0], strict=True))
    for results in (found, between):
        for made in results[1:]:
            for first, again in zip(results[0], made, strict=True):
                assert (again.dtype, again.shape) == (first.dtype, first.shape)
                assert again.tobytes() == first.tobytes()


@pytest.mark.parametrize("name", DEVICE_MODELS)
def test_bits_of_small_models(name: str, device_name: str, tmp_path: Path) -> None:
    model, file = DEVICE_MODELS[name], tmp_path / "model.onnx"
    file.write_bytes(model.make())
    check(str(file), *[model.feed(np.random.default_rng(seed)) for seed in (0, 1)], device_name)


@pytest.mark.parametrize("name", SMALL)
def test_bits_of_the_zoo(name: str, either_device_name: str, tmp_path: Path) -> None:
    """In small; SwiftShader takes minutes for what others do in seconds."""
    file = tmp_path / f"{name}.onnx"
    save_graph(SMALL[name](), file)
    check(str(file), *[feed_of(str(file), seed) for seed in (0, 1)], either_device_name)
