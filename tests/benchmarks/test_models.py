"""The benchmark's models: valid ONNX, of the sizes their names and sources state."""

from __future__ import annotations

import numpy as np
import pytest

import vkml.onnx
from benchmarks.models import (
    MODELS,
    Network,
    Transformer,
    chain_add,
    lstm,
    matmul_layers,
    mobilenet_v2,
    plain_convolutions,
    resnet50,
    unet,
)
from benchmarks.peers.ncnn_format import translate
from vkml.ir import dtypes
from vkml.ir.graph import Graph


def parameters(graph: Graph) -> int:
    return sum(value.type.elements for value in graph.constants.values() if value.dtype.is_float)


def check(graph: Graph) -> None:
    """onnx finds it valid, and onnxruntime runs it to finite values of the stated shape."""
    import onnx
    import onnxruntime

    model = vkml.onnx.save_graph(graph)
    assert model is not None
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    feed = {
        each.name: generator.random(each.type.dims).astype(np.float32)
        if each.type.dtype.is_float
        else generator.integers(0, 2, each.type.dims)
        for each in graph.inputs
    }
    for value, output in zip(session.run(None, feed), graph.outputs, strict=True):
        assert value.shape == output.type.dims
        assert np.isfinite(value).all() and (value.size == 1 or value.std() > 0)


@pytest.mark.parametrize(
    "graph",
    [
        chain_add(3),
        matmul_layers("layers", (784, 32, 10)),
        plain_convolutions("convolutions", (4, 6, 8)),
        unet(16),
        lstm(2, 6, 5),
    ],
    ids=lambda graph: graph.name,
)
def test_small_variants_run(graph: Graph) -> None:
    check(graph)


@pytest.mark.parametrize("is_masked", [False, True])
def test_transformer_blocks_run(is_masked: bool) -> None:
    net, sizes = Network("block"), Transformer(2, 5, width=8, heads=2, hidden=16)
    x = net.input("x", (2, 5, 8))
    mask = net.constant(np.triu(np.full((1, 1, 5, 5), -1e9, np.float32), 1)) if is_masked else ""
    net.output(sizes.block(net, x, normalises_first=is_masked, mask=mask), "y", (2, 5, 8), dtypes.FLOAT32)
    check(net.finish())


def test_parameter_counts_are_those_of_the_papers() -> None:
    # Batch normalisation keeps four vectors a layer; the usual counts leave two of them out.
    assert parameters(resnet50(1)) == 25_557_032 + 53_120
    assert parameters(mobilenet_v2(1)) == 3_504_872 + 34_112 + 2 * 35


def test_names_match_their_graphs() -> None:
    for name in (
        "chain_add_1",
        "chain_add_100",
        "conv_few_15MB",
        "unet_256",
        "mobilenet_v2_b1",
        "lstm_bidirectional_2x256_s128",
    ):
        assert MODELS[name]().name == name


def test_ncnn_translation_fuses_and_splits() -> None:
    layers, weights = translate(unet(16))
    kinds = [line.split()[0] for line in layers.splitlines()[2:]]
    assert kinds.count("Convolution") == kinds.count("Swish") + 1 == 15
    assert "Sigmoid" not in kinds and "BinaryOp" not in kinds
    assert kinds.count("Split") == 3
    assert len(weights) == 4 * (parameters(unet(16)) - 3 * 4 + kinds.count("Convolution"))
