"""Kernels that only large GPUs choose: their modules are valid, and within what such a GPU has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.gpu_modules import NETWORKS
from tests.patience import patience

AMONG = {
    "mobilenet_v2": {"separable", "channel_means"},
    "resnet50, 32 images": {"conv", "max_pool", "reduce"},
    "bert": {"attention", "matmul", "split_rows"},
    "gpt2": {"attention", "layer_norm", "matmul"},
    "lstm": {"recurrent"},
    "cases": {"byte_matmul", "decode_attention", "conv_transpose", "phases"},
    "training": {
        "attention",
        "attention_gradients_of_queries",
        "attention_gradients_of_keys",
        "cross_entropy",
    },
}
"""Kernels that there must be, or planning went another way than on a GPU."""


def output_of(names: tuple[str, ...], *words: str) -> list[str]:
    """Lines of a process that runs under the validation layer."""
    if not names:
        pytest.skip("no Vulkan device to test on")
    done = subprocess.run(
        [sys.executable, *words, names[0]],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "VKML_VALIDATE": "1", "VK_LAYER_DUPLICATE_MESSAGE_LIMIT": "100000"},
        capture_output=True,
        text=True,
        timeout=patience(240),
        check=False,
    )
    if "there is no VK_LAYER_KHRONOS_validation" in done.stderr:
        pytest.skip("no validation layer on this machine")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", [*NETWORKS, "cases", "training"])
def test_modules_are_valid(vulkan_device_names: tuple[str, ...], name: str) -> None:
    *faults, last = output_of(vulkan_device_names, "-m", "tests.kernels.gpu_modules", name)
    assert not faults
    _, *labels = last.split()
    assert {*labels} >= AMONG.get(name, set())


CHANGED = """
import sys
import numpy as np
from tests.kernels import gpu_modules
made = gpu_modules.compile_kernel
def compile_kernel(source):
    words = np.frombuffer(made(source), np.uint32).copy()
    at = 5
    while words[at] != 3 << 16 | 14:  # the memory model, which gets an addressing without pointers
        at += words[at] >> 16
    words[at + 1] = 0
    return words.tobytes()
gpu_modules.compile_kernel = compile_kernel
gpu_modules.workgroup_of = lambda source: (32, [(None, 49153)])
gpu_modules.main("mnist", sys.argv[1])
"""


def test_faults_are_told(vulkan_device_names: tuple[str, ...]) -> None:
    *faults, last = output_of(vulkan_device_names, "-c", CHANGED)
    count = int(last.split()[0])
    assert len([fault for fault in faults if "spirv-val" in fault]) == count > 0, faults
    assert len([fault for fault in faults if "32 threads share 49153 bytes" in fault]) >= count, faults
