"""The layers that are measured are those of the models."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.conv_units.layers import SETS
from benchmarks.models import MODELS


@pytest.mark.parametrize("name", ["resnet50_b1", "unet_256"])
def test_layers_are_the_models(name: str) -> None:
    """All but the first ones, of three channels, by filters, channels and kernel."""
    model = MODELS[name]()
    weights = [model.constants[node.inputs[1]].shape for node in model.nodes if node.op == "Conv"]
    of_model = Counter(tuple(shape[:3]) for shape in weights if shape[1] >= 8)
    of_set: Counter[tuple[int, ...]] = Counter()
    for layer in SETS[name]:
        of_set[layer.filters, layer.channels, layer.kernel] += layer.count
    assert of_set == of_model


def test_operations_are_those_of_the_paper() -> None:
    """ResNet-50 takes 4.1 GMAC for a picture; the first convolution's 0.12 are not among the layers."""
    total = sum(layer.operations * layer.count for layer in SETS["resnet50_b1"]) / 2
    assert total == pytest.approx(3.97e9, rel=0.02)
