"""The benchmark models in small, on every device, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import models, verify
from vkml.ir.graph import Graph
from vkml.onnx import save_graph

SMALL: dict[str, Callable[[], Graph]] = {
    "chain_add": lambda: models.chain_add(40),
    "matmul_layers": lambda: models.matmul_layers("matmul", (784, 96, 40, 10)),
    "plain_convolutions": lambda: models.plain_convolutions("convolutions", (8, 16, 32)),
    "resnet50": lambda: models.resnet50(2, size=32),
    "mobilenet_v2": lambda: models.mobilenet_v2(1, size=32),
    "bert_base": lambda: models.bert_base(2, 9, blocks=1, vocabulary=50),
    "vit_b16": lambda: models.vit_b16(1, blocks=1),
    "gpt2": lambda: models.gpt2(1, 7, blocks=1, vocabulary=60),
    "unet": lambda: models.unet(16),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_model(name: str, device_name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    save_graph(SMALL[name](), path)
    error, _ = verify.relative_error(str(path), device_name)
    assert error <= verify.TOLERANCE
