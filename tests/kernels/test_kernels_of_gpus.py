"""Kernels that a GPU is given and software devices never choose: vkml's own compiler knows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pytest

import vkml
from benchmarks.models import bert_base, plain_convolutions
from tests.kernels.gpu_targets import GPU
from vkml.engine import devices
from vkml.engine.ahead import Ahead
from vkml.engine.recorded import RecordedProgram
from vkml.engine.weights import WeightStore
from vkml.ir.graph import Constant, Graph
from vkml.kernels.slang import compile_kernel
from vkml.kernels.spec import KernelSpec
from vkml.lowering.target import Target
from vkml.onnx import save_graph
from vkml.vulkan.spirv import instructions, words_of

MULTIPLY_ADD = 4459
"""OpCooperativeMatrixMulAddKHR"""


class Asked(Exception):
    """The kernels are known; nobody runs them."""


@pytest.fixture
def kernels_of(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Graph], list[KernelSpec]]:
    """What a session asks to compile for a large GPU with matrix units."""
    real = devices.target_of
    sizes = ("shared_bytes", "max_invocations", "subgroup_size", "processors", "fragment", "wide_fragment")
    changed: dict[str, Any] = {name: getattr(GPU, name) for name in (*sizes, "fragment_layouts")}
    asked: list[KernelSpec] = []

    def target_of(*given: Any) -> Target:
        target = real(*given)
        able = target.capabilities | GPU.capabilities
        return replace(target, **changed, capabilities=able, holds_elements_once=lambda fragment: True)

    def kernels(program: RecordedProgram, weights: WeightStore, constants: Sequence[Constant]) -> NoReturn:
        asked.extend(known(program, weights, constants))
        raise Asked

    known = RecordedProgram._kernels

    monkeypatch.setattr(devices, "target_of", target_of)
    monkeypatch.setattr(RecordedProgram, "_kernels", kernels)
    # Software drivers fail at what is for a GPU.
    monkeypatch.setattr(Ahead, "want", lambda self, kernel: None)

    def ask(graph: Graph) -> list[KernelSpec]:
        asked.clear()
        with pytest.raises(Asked):
            vkml.InferenceSession(save_graph(graph), devices=vulkan_device_name, precision="high")
        return list({kernel.source: kernel for kernel in asked}.values())

    return ask


@pytest.mark.parametrize(
    ("make", "labels"),
    [
        (
            lambda: bert_base(1, 128, blocks=1, vocabulary=16),
            {"attention", "attention_operands", "layer_norm"},
        ),
        (lambda: plain_convolutions("convolutions", [128, 256, 512]), {"conv", "max_pool"}),
    ],
    ids=["bert", "convolutions"],
)
def test_all_of_a_gpus_kernels_compile(
    kernels_of: Callable[[Graph], list[KernelSpec]], make: Callable[[], Graph], labels: set[str]
) -> None:
    kernels = kernels_of(make())
    assert labels <= {kernel.label.split()[0] for kernel in kernels}
    products = 0
    for kernel in kernels:
        code = compile_kernel(kernel.source)
        products += any(line.opcode == MULTIPLY_ADD for line in instructions(words_of(code)))
    assert products >= 1
