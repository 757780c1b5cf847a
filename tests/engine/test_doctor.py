"""The doctor: facts of an installation, and which kernels have a known answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import vkml
from tests.kernels.gpu_targets import GPU
from vkml.engine import devices, doctor, gated_trips, host_reads
from vkml.engine.ahead import Ahead
from vkml.engine.recorded import RecordedProgram
from vkml.engine.weights import WeightStore
from vkml.ir.graph import Constant
from vkml.kernels import bfloat16_units, byte_units
from vkml.kernels.host_read import read_kernel
from vkml.kernels.loop_gate import gate_kernel
from vkml.kernels.packed_weights import Fragment
from vkml.kernels.spec import KernelSpec
from vkml.lowering.target import Target
from vkml.onnx import save_graph
from vkml.vulkan import Device, Pipeline, cache, find_device


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    (tmp_path / "photo.jpg").write_bytes(bytes(5000))
    cache.write("spirv/ab/x", bytes(3 << 20))
    assert dict(doctor.facts())["cache folder"] == f"{tmp_path} (1 entry, 3.0 MiB)"
    cache.write("spirv/ab/y", b"")
    assert dict(doctor.facts())["cache folder"] == f"{tmp_path} (2 entries, 3.0 MiB)"
    monkeypatch.setattr(cache, "folder", lambda: None)
    assert dict(doctor.facts())["cache folder"].startswith("none: there is no home folder")


BYTES = Fragment(16, 8, 32, 32, "int8")
BFLOAT16 = Fragment(16, 8, 16, 32, "bfloat16")
TARGETS: dict[str, dict[str, Any]] = {
    "no units": {"fragment": None, "wide_fragment": None},
    "units": {"byte_fragment": BYTES},
    "units of bfloat16": {"fragment": None, "wide_fragment": None, "bfloat16_fragment": BFLOAT16},
}
"""GPUs of three kinds, beside what the device at hand is able to."""
NO_CASE = {
    "fragment_layout": "measures the device before a kernel of matrix units is chosen",
    "number_formats": "functions, of which a kernel has those that it calls",
    "pointwise_math": "functions, of which a kernel has those that it calls",
}
"""Templates that no case reaches, and why."""


class Asked(vkml.Error):
    """The kernels are known; nobody runs them."""


@pytest.fixture
def kernels_of(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, doctor.Case], list[KernelSpec]]:
    """What a session asks to compile for a case on a GPU of one of the `TARGETS`."""
    real = devices.target_of
    names = ("shared_bytes", "max_invocations", "subgroup_size", "processors", "fragment", "wide_fragment")
    gpu = {name: getattr(GPU, name) for name in (*names, "fragment_layouts")}
    needs = {*GPU.capabilities, *byte_units.NEEDS, *bfloat16_units.NEEDS, "storage_8bit", "storage_16bit"}
    asked: list[KernelSpec] = []
    kind = ""

    def target_of(*given: Any) -> Target:
        target = real(*given)
        able = target.capabilities | needs | {"int16", "int64", "float16", "subgroup_shuffle"}
        changed = {**gpu, "bfloat16_fragment": None, "byte_fragment": None, **TARGETS[kind]}
        return replace(target, **changed, capabilities=able, holds_elements_once=lambda fragment: True)

    def kernels(program: RecordedProgram, weights: WeightStore, constants: Sequence[Constant]) -> NoReturn:
        asked.extend(known(program, weights, constants))
        raise Asked

    known = RecordedProgram._kernels

    monkeypatch.setattr(devices, "target_of", target_of)
    monkeypatch.setattr(RecordedProgram, "_kernels", kernels)
    # Software drivers fail at what is for a GPU.
    monkeypatch.setattr(Ahead, "want", lambda self, kernel: None)

    def ask(target: str, case: doctor.Case) -> list[KernelSpec]:
        nonlocal kind
        kind = target
        asked.clear()
        graph, feed = case.build(np.random.default_rng(doctor.seed_of(case.name)))
        model = save_graph(graph)
        # Bodies are planned when they are run.
        with (
            pytest.raises(Asked),
            vkml.InferenceSession(model, devices=vulkan_device_name, precision=case.precision) as session,
        ):
            session.run(None, dict(feed))
        return list(asked)

    return ask


@pytest.fixture
def of_engine(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> list[KernelSpec]:
    """The kernels of no node that cases run with: what ends loops, and what reads arrays of the host.

    Those of the first are on no device without bools, of the second on none without memory of the host.
    """
    found: list[KernelSpec] = []
    for module in (gated_trips, host_reads):
        real = module.compile_kernels

        def noting(
            device: Device, kernels: Sequence[KernelSpec], taken: list[Pipeline], real: Any = real
        ) -> Any:
            found.extend(kernels)
            return real(device, kernels, taken)

        monkeypatch.setattr(module, "compile_kernels", noting)
    monkeypatch.setattr(host_reads, "is_worthwhile", lambda device: device.imports_host)
    info = find_device(vulkan_device_name, True)
    has_bools = "storage_8bit" in devices.target_of(info).capabilities
    [loop], [host] = (
        [doctor.run_case(case, vulkan_device_name) for case in doctor.cases(family)]
        for family in ("loop", "host")
    )
    assert (loop.status, host.status) == (doctor.PASS if has_bools else doctor.ON_CPU, doctor.PASS), loop
    expected = ([gate_kernel()] if has_bools else []) + (
        [read_kernel()] if devices.open_device(info).imports_host else []
    )
    assert [kernel.label for kernel in found] == [kernel.label for kernel in expected]
    return [gate_kernel(), read_kernel()]


def test_every_kernel_of_a_gpu_has_a_known_answer(
    of_engine: list[KernelSpec],
    kernels_of: Callable[[str, doctor.Case], list[KernelSpec]],
) -> None:
    found = [kernel for target in TARGETS for case in doctor.CASES for kernel in kernels_of(target, case)]
    sources = "\n".join({kernel.source for kernel in (*found, *of_engine)})
    templates = {
        file.name.removesuffix(".slang"): file.read_text(encoding="utf-8").splitlines()[0]
        for file in resources.files("vkml.kernels").iterdir()
        if file.name.endswith(".slang")
    }
    assert {name for name, first in templates.items() if first not in sources} == set(NO_CASE)
    variants = {f"{kernel.label}: {kernel.variant}" for kernel in found}
    for wanted in (
        "matmul: 16x16 tile, 8 slices of K",
        "matmul: 128x64x16 tile",
        "matmul: matrix units, 1 piece of scaled fp16",
        "matmul: matrix units, 2 pieces of scaled fp16",
        "matmul: matrix units, 2 pieces of bfloat16",
        "matmul: matrix units, halves",
        "byte_matmul: matrix units, int8",
        "byte_matmul: 128x64x16 tile",
        "conv: matrix units",
        "conv: 32x32x32 tile",
        "gemv: ",
        "add_partials: ",
        "recurrent: all steps",
        "recurrent: one step",
        "copy: 4 × 4 elements",
        "attention_gradients_of_queries: matrix units",
        "attention_gradients_of_keys: matrix units",
        "phases: one workgroup: matmul, log_softmax, matmul",
        "Mul+Sub: 6 tensors; ",
    ):
        assert any(variant.startswith(wanted) for variant in variants), (wanted, sorted(variants))
    in_pieces = [variant for variant in variants if variant.endswith("two pieces")]
    assert {"block" in variant for variant in in_pieces} == {True, False}, "tiles with a halo, and windows"
    labels = {kernel.label for kernel in found}
    assert labels >= {"copy", "gather", "gather_elements", "gather_tuples", "pad", "resize", "roi_align"}
    for function in ("from_bfloat16(", "from_float8e4m3fn(", "exponential(", "hyperbolic_tangent("):
        assert function in sources, function
