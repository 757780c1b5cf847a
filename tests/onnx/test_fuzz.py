"""Damaged files: whatever the bytes, a graph or a `vkml.Error` comes out, in bounded time and memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vkml.onnx
from tests.onnx import models
from vkml.errors import Error
from vkml.ir import Graph
from vkml.onnx.tensor import DENSE_LIMIT
from vkml.onnx.wire import encode_varint

CORPUS = {kind: make().SerializeToString() for kind, make in models.KINDS.items()}
ALLOWED = DENSE_LIMIT + (64 << 20)
"""Bytes that reading a file of a few kilobytes may take at its peak."""

BYTES = st.binary(max_size=12)
NUMBERS = st.sampled_from([0, 1, 127, 128, 2**14, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1])


@st.composite
def damaged(draw) -> bytes:
    data = draw(st.sampled_from(sorted(CORPUS)).map(CORPUS.__getitem__))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["flip", "truncate", "number", "insert", "delete", "splice", "repeat"]))
        if kind == "flip":
            data = data[:position] + bytes([draw(st.integers(0, 255))]) + data[position + 1 :]
        elif kind == "truncate":
            data = data[:position]
        elif kind == "number":
            # Lengths, dimensions and types are all such numbers.
            data = data[:position] + encode_varint(draw(NUMBERS)) + data[position + 1 :]
        elif kind == "insert":
            data = data[:position] + draw(BYTES) + data[position:]
        elif kind == "delete":
            data = data[:position] + data[position + draw(st.integers(1, 40)) :]
        else:
            other = (
                draw(st.sampled_from(sorted(CORPUS)).map(CORPUS.__getitem__)) if kind == "splice" else data
            )
            start = draw(st.integers(0, len(other)))
            data = data[:position] + other[start : start + draw(st.integers(1, 200))] + data[position:]
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model")
    (path / "weights.bin").write_bytes(models.external()[1])
    return path


def read(data: bytes, folder: Path) -> None:
    try:
        with vkml.onnx.open(data, base_directory=folder) as model:
            assert isinstance(vkml.onnx.load_graph(model), Graph)
            model.describe()
            for tensor in model.tensors().values():
                tensor.array()
    except Error as error:
        assert str(error)


@pytest.mark.parametrize("kind", CORPUS)
def test_corpus_is_sound(kind, folder):
    graph = vkml.onnx.load_graph(CORPUS[kind], base_directory=folder)
    assert graph.nodes


@settings(max_examples=700, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=damaged())
def test_damaged_models(data, folder):
    tracemalloc.start()
    try:
        read(data, folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < ALLOWED


@pytest.mark.parametrize("kind", CORPUS)
def test_every_byte_changed(kind, folder):
    data = bytearray(CORPUS[kind])
    for position in range(len(data)):
        kept = data[position]
        for replacement in (kept ^ 0x80, kept ^ 0x01, 0xFF):
            data[position] = replacement
            read(bytes(data), folder)
        data[position] = kept


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.binary(max_size=200))
def test_random_bytes(data, folder):
    read(data, folder)
