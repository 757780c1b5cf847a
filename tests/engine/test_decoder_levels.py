"""How many levels a decoder's token takes on a GPU: each costs some microseconds, whatever it computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import vkml
from benchmarks.generation import BLOCKS, EACH, HEADS
from benchmarks.models import gpt_with_past
from tests.kernels.test_decode_attention import BYTES, has
from vkml.engine import planning
from vkml.lowering import vulkan
from vkml.lowering.plan import VulkanProgram
from vkml.onnx import save_graph


def token(past: int) -> dict[str, np.ndarray[Any, Any]]:
    kept = np.random.default_rng(past).standard_normal((1, HEADS, past, EACH), np.float32)
    names = [f"past.{block}.{what}" for block in range(BLOCKS) for what in ("key", "value")]
    return {"input_ids": np.array([[1]], np.int64), **dict.fromkeys(names, kept)}


@pytest.mark.parametrize(("past", "passes"), [(16, 1), (1000, 2)])
def test_a_layer_takes_five_levels_and_one_more_for_a_long_past(
    vulkan_device_name: str, past: int, passes: int
) -> None:
    """Queries, keys and values; attention; its projection; two products. Norms and copies are none."""
    if not has(vulkan_device_name, *BYTES, "int64"):
        return  # masks and positions are the CPU's: the plan is in pieces
    lower, programs = vulkan.lower, []

    def of_a_gpu(piece: Any, types: Any, constants: Any, target: Any, *more: Any) -> VulkanProgram:
        gpu = replace(target, processors=132, max_invocations=1024, shared_bytes=49152)
        programs.append(lower(piece, types, constants, gpu, *more))
        return lower(piece, types, constants, target, *more)

    model = save_graph(gpt_with_past())
    with (
        mock.patch.object(planning, "lower", of_a_gpu),
        vkml.InferenceSession(model, devices=vulkan_device_name, precision="highest") as session,
    ):
        for length in (past, past + 1):
            session.run(None, token(length))
    kernels = [dispatch.kernel.label for dispatch in programs[-1].dispatches]
    assert kernels.count("decode_attention") == BLOCKS
    assert kernels.count("attention_merge") == BLOCKS * (passes - 1)
    # Embeddings are gathered and added before, and the scores of the vocabulary are behind.
    assert len(programs[-1].levels) == 2 + BLOCKS * (4 + passes) + 1
