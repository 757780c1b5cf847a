"""Kernels as a large GPU gets them, looked at where there is none.

`python -m tests.kernels.gpu_modules NAME DEVICE` plans a model for a software device as if it were an H200.
Each kernel is compiled to a module, which the validation layer looks at, and compared with what the GPU has.
A line says what is wrong with one, the last one how many there were and of which kinds. This is for a process
of its own: the layer's messages would fail a run of tests, and planning is left in the middle.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

import vkml
from benchmarks import models
from tests.conformance.suite import Case, suite
from tests.kernels.gpu_targets import like_h200
from vkml import nn, optim
from vkml.engine import devices, planning
from vkml.engine.devices import open_device
from vkml.errors import Error
from vkml.ir.graph import Graph
from vkml.kernels.slang import Unsupported, compile_kernel, workgroup_of
from vkml.kernels.source_marks import PHASE
from vkml.kernels.spec import KernelSpec
from vkml.lowering import vulkan
from vkml.lowering.plan import VulkanProgram
from vkml.lowering.target import Target
from vkml.onnx import save_graph
from vkml.vulkan import DeviceInfo, find_device, validation_messages
from vkml.vulkan.structures import ffi, structure

NETWORKS: dict[str, Callable[[], Graph]] = {
    "mnist": models.mnist_like,
    "resnet50": lambda: models.resnet50(1),
    "resnet50, 32 images": lambda: models.resnet50(32),
    "mobilenet_v2": lambda: models.mobilenet_v2(1),
    "unet": lambda: models.unet(256),
    "convolutions": models.MODELS["conv_few_15MB"],
    "bert": lambda: models.bert_base(8, 512, blocks=2, vocabulary=1000),
    "short bert": lambda: models.bert_base(1, 128, blocks=2, vocabulary=1000),
    "vit": lambda: models.vit_b16(1, blocks=2),
    "gpt2": lambda: models.gpt2(1, 256, blocks=2, vocabulary=1000),
    "lstm": lambda: models.lstm(1, 256, 16),
}
EVERY = 12
"""Which of ONNX's cases are lowered: 170 of 2033."""
_FOREIGN = ("VUID-VkShaderModuleCreateInfo-pCode-08740", "VUID-VkShaderModuleCreateInfo-pCode-08742")
"""What the software device lacks: capabilities and extensions."""
_OF_A_STEP = 12
"""Launches of a training step at the least: what comes before it has fewer."""


class _Lowered(BaseException):
    """Planning ends here: the software device is to compile none of it."""


class Modules:
    """Of kernels, each looked at once.

    Args:
        device: a software device's name.
    """

    def __init__(self, device: str) -> None:
        self._context = open_device(find_device(device, True)).context
        self._targets = {precision: like_h200(precision == "highest") for precision in ("high", "highest")}
        self._seen: set[Any] = set()
        self.labels: set[str] = set()

    @property
    def count(self) -> int:
        return len(self._seen)

    def lower(self, act: Callable[[], object], precision: str, least: int = 0) -> Iterator[str]:
        """What is wrong with the kernels of the first plan that `act` makes and that has enough launches.

        Args:
            act: makes a plan for the device.
            precision: "highest" or "high".
            least: launches that the plan is to have.
        """
        lower, target_of, programs = vulkan.lower, devices.target_of, list[VulkanProgram]()

        def leaving(piece: Any, types: Any, constants: Any, target: Target, *more: Any) -> VulkanProgram:
            # The last argument has kernels compiled ahead, by the software device's driver.
            program = lower(piece, types, constants, target, *more[:-1])
            if len(program.dispatches) >= least:
                programs.append(program)
                raise _Lowered
            return lower(piece, types, constants, target_of(self._context.info, precision), *more)

        def of_gpu(info: DeviceInfo, precision: str = "highest") -> Target:
            return self._targets[precision]

        with (
            mock.patch.object(devices, "target_of", of_gpu),
            mock.patch.object(planning, "lower", leaving),
            contextlib.suppress(_Lowered),
        ):
            act()
        target = self._targets[precision]
        for program in programs:
            for dispatch in program.dispatches:
                if dispatch.kernel.name not in self._seen:
                    self._seen.add(dispatch.kernel.name)
                    self.labels.add(dispatch.kernel.label)
                    yield from self._faults(dispatch.kernel, target)

    def _faults(self, kernel: KernelSpec, target: Target) -> Iterator[str]:
        what = f"{kernel.label} ({kernel.variant})"
        try:
            spirv = compile_kernel(kernel.source)
        except Unsupported as problem:
            yield f"{what}: the compiler does not know {problem}"
            return
        for source in kernel.source.split(PHASE):
            threads, shared = workgroup_of(source)
            nbytes = sum(size for _, size in shared)
            if threads > target.max_invocations or nbytes > target.shared_bytes:
                yield f"{what}: {threads} threads share {nbytes} bytes"
        if kernel.push_bytes > target.push_bytes:
            yield f"{what}: {kernel.push_bytes} bytes are pushed"
        code = ffi.new("uint32_t[]", len(spirv) // 4)
        ffi.memmove(code, spirv, len(spirv))
        before = len(validation_messages())
        info = structure("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        _, key = self._context.create("ShaderModule", "vkCreateShaderModule", info)
        self._context.release(key)
        for message in validation_messages()[before:]:
            if not any(known in message for known in _FOREIGN):
                yield f"{what}: {message}".replace("\n", " ")


def _open(data: bytes | None, device: str, precision: str) -> None:
    assert data is not None
    with vkml.InferenceSession(data, devices=device, precision=precision):
        pass


def _cases(modules: Modules, device: str) -> Iterator[str]:
    options = vkml.SessionOptions()
    options.log_severity_level = 4
    for name in [*suite()][::EVERY]:
        case = suite()[name]
        inputs, _ = next(case.data_sets())

        def run(case: Case = case, inputs: list[Any] = inputs, precision: str = "high") -> None:
            source = case.source_for_session()
            with (
                contextlib.suppress(Error),  # what vkml refuses
                vkml.InferenceSession(source, options, devices=device, precision=precision) as session,
            ):
                names = [value.name for value in session.get_inputs()]
                session.run(None, dict(zip(names, inputs, strict=True)))

        for precision in ("high", "highest"):
            yield from modules.lower(functools.partial(run, precision=precision), precision)


def _training(device: str) -> Iterator[Callable[[], object]]:
    """Steps of a convolutional network and of a transformer."""
    images = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 64, 10),
    )  # fmt: skip
    words = nn.Sequential(
        nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(128 * 64, 10),
    )
    for network, shape in ((images, (16, 3, 32, 32)), (words, (16, 128, 64))):
        network.to(device)
        optimizer = optim.Adam(network.parameters())
        x = vkml.tensor(np.zeros(shape, np.float32), device=device)
        labels = vkml.tensor(np.zeros(16, np.int64), device=device)

        @vkml.jit
        def step(network: Any = network, optimizer: Any = optimizer, x: Any = x, labels: Any = labels) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(x), labels)
            loss.backward()
            optimizer.step()
            return loss

        yield step


def main(name: str, device: str) -> None:
    """Prints what is wrong with a network's kernels, with those of ONNX's cases or of training steps."""
    modules = Modules(device)

    def faults() -> Iterator[str]:
        if name == "cases":
            yield from _cases(modules, device)
            return
        for precision in ("high", "highest"):
            if name == "training":
                vkml.set_float32_matmul_precision(precision)
                for step in _training(device):
                    yield from modules.lower(step, precision, _OF_A_STEP)
            else:
                data = save_graph(NETWORKS[name]())
                yield from modules.lower(functools.partial(_open, data, device, precision), precision)

    for fault in faults():
        print(fault)
    print(modules.count, *sorted(modules.labels))


if __name__ == "__main__":
    main(*sys.argv[1:])
