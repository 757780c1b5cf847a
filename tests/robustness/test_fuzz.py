"""Damaged models all the way through a session: results or a `vkml.Error`, nothing else."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vkml
from tests.robustness import models
from vkml.ir import dtypes
from vkml.onnx.wire import encode_varint

MAKERS = (models.product, models.gather, models.convolution, models.shape_arithmetic, models.elementwise)
CORPUS = [make() for make in MAKERS]
NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 100, 127, 2**14, 2**31, 2**40, 2**62, 2**63, 2**64 - 1])
LARGEST_INPUT = 1 << 16


@st.composite
def damaged(draw: Any) -> bytes:
    data = draw(st.sampled_from(CORPUS))
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["flip", "bit", "number", "swap"]))
        if kind == "flip":
            data = data[:position] + bytes([draw(st.integers(0, 255))]) + data[position + 1 :]
        elif kind == "bit":
            data = (
                data[:position]
                + bytes([data[position] ^ 1 << draw(st.integers(0, 7))])
                + data[position + 1 :]
            )
        elif kind == "number":
            number = encode_varint(draw(NUMBERS))
            data = data[:position] + number + data[position + len(number) :]
        else:  # a piece of the same length from elsewhere: the lengths stay right and the rest is reached
            other, length = draw(st.sampled_from(CORPUS)), draw(st.integers(1, 12))
            start = draw(st.integers(0, len(other) - 1))
            piece = other[start : start + length]
            data = data[:position] + piece + data[position + len(piece) :]
    return data


def random_feed(session: vkml.InferenceSession, seed: int) -> dict[str, Any] | None:
    """An array for each input; None where one would be large."""
    random = np.random.default_rng(seed)
    names = {dtype.name: dtype for dtype in dtypes.ALL}
    feed: dict[str, Any] = {}
    for info in session.get_inputs():
        shape = tuple(size if isinstance(size, int) else 2 for size in info.shape)
        dtype = names[info.type.removeprefix("tensor(").removesuffix(")")]
        if math.prod(max(size, 1) for size in shape) > LARGEST_INPUT or len(shape) > 32:
            return None
        if dtype.kind == "s":
            feed[info.name] = np.full(shape, "text", object)
        elif dtype.kind in "fc":
            feed[info.name] = random.standard_normal(shape).astype(dtype.storage)
        else:
            feed[info.name] = random.integers(-2, 4, shape).astype(dtype.storage)
    return feed


def run(data: bytes, seed: int, device: str = "cpu") -> bool:
    """Whether the model ran to its end."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with vkml.InferenceSession(data, devices=device) as session:
                feed = random_feed(session, seed)
                if feed is None:
                    return False
                results = session.run(None, feed)
                for info, result in zip(session.get_outputs(), results, strict=True):
                    stated = [size for size in info.shape if isinstance(size, int)]
                    assert not stated or len(result.shape) == len(info.shape)
                return True
    except vkml.Error as error:
        assert str(error)
        return False


def test_corpus_runs() -> None:
    for seed, data in enumerate(CORPUS):
        assert run(data, seed) or data is CORPUS[1]  # whose indices are sometimes out of range


@settings(max_examples=4000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=damaged(), seed=st.integers(0, 5))
def test_damaged_models(data: bytes, seed: int) -> None:
    run(data, seed)


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=damaged(), seed=st.integers(0, 5))
def test_damaged_models_on_vulkan(vulkan_device_name: str, data: bytes, seed: int) -> None:
    if run(data, seed):
        run(data, seed, vulkan_device_name)


def test_every_byte_changed() -> None:
    ran = refused = 0
    for data in CORPUS:
        changed = bytearray(data)
        for position in range(len(data)):
            for replacement in (data[position] ^ 1, data[position] ^ 0x40):
                changed[position] = replacement
                if run(bytes(changed), position % 3):
                    ran += 1
                else:
                    refused += 1
            changed[position] = data[position]
    assert ran > 200 and refused > 200
