"""Public models that lie beside this checkout, where they do: against onnxruntime, and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.cli.conftest import Command
from tests.conftest import vulkan_devices

FOLDER = Path(__file__).parents[3] / "shared" / "models"
MODELS = sorted(FOLDER.glob("*.onnx"))
pytestmark = pytest.mark.skipif(not MODELS, reason="no public models beside this checkout")
SYMBOLIC = 2
"""What dimensions without a size are set to."""


def feed_of(session: vkml.InferenceSession) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    return {
        value.name: rng.standard_normal(
            [size if isinstance(size, int) else SYMBOLIC for size in value.shape or ()]
        ).astype(types[value.type])
        for value in session.get_inputs()
    }


@pytest.mark.parametrize("path", MODELS or [Path("none")], ids=lambda path: path.stem)
def test_agrees_with_onnxruntime(device_name: str, path: Path) -> None:
    with vkml.InferenceSession(path, devices=device_name, precision="highest") as session:
        feed = feed_of(session)
        found = session.run(None, feed)
    peer = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for have, want in zip(found, peer.run(None, feed), strict=True):
        scale = np.abs(want.astype(np.float64)).max()
        assert np.abs(have.astype(np.float64) - want).max() <= 1e-3 * scale


@pytest.mark.parametrize("digit", [0, 1])
def test_pictures_are_classified(command: Command, digit: int) -> None:
    names = ["cpu", *(name for name, _ in vulkan_devices())]
    for name in names:
        words = ["run", str(FOLDER / "mnist_mlp_png_probs.onnx"), "-i", f"input={FOLDER / f'{digit}.png'}"]
        outcome = command(*words, "--device", name, "--precision", "highest", "--json")
        assert outcome.code == 0, outcome.err
        [probabilities] = outcome.json["outputs"][0]["values"]
        assert int(np.argmax(probabilities)) == digit and max(probabilities) > 0.99
