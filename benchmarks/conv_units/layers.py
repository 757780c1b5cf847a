"""The convolutions of the measured models, and graphs of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkml.engine.sketch import Sketch
from vkml.ir import Constant, Graph, TensorType, dtypes
from vkml.ir.windows import Windows
from vkml.kernels.spec import KernelSpec
from vkml.kernels.views import Buffer, BufferKind, contiguous
from vkml.lowering.target import Target
from vkml.lowering.vulkan_builder import VulkanBuilder


@dataclass(frozen=True)
class Layer:
    """A square convolution with a bias and Relu, padded to keep the size."""

    batch: int
    channels: int
    filters: int
    size: int
    kernel: int = 3
    stride: int = 1
    count: int = 1
    """How often the model has it."""

    @property
    def output(self) -> int:
        return -(-self.size // self.stride)

    @property
    def operations(self) -> float:
        pixels = self.batch * self.output**2
        return 2.0 * pixels * self.filters * self.channels * self.kernel**2

    @property
    def label(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        return (
            f"b{self.batch} {self.size}² {self.channels}→{self.filters} {self.kernel}×{self.kernel}{stride}"
        )


def _resnet(batch: int) -> tuple[Layer, ...]:
    found = [Layer(batch, 64, 64, 56, 1)]
    width, size = 64, 56
    for stage, count in enumerate((3, 4, 6, 3)):
        middle = 64 << stage
        if stage:
            found.append(Layer(batch, width, middle, size, 1))
            found.append(Layer(batch, middle, middle, size, 3, 2))
            found.append(Layer(batch, width, 4 * middle, size, 1, 2))
            size //= 2
        found.append(Layer(batch, middle, middle, size, 3, 1, count - (stage > 0)))
        found.append(Layer(batch, middle, 4 * middle, size, 1, 1, count + (stage == 0)))
        width = 4 * middle
        found.append(Layer(batch, width, middle, size, 1, 1, count - 1))
    return tuple(found)


def _unet() -> tuple[Layer, ...]:
    found, width, size = [], 32, 256
    for target in (32, 64, 128, 256):
        if target > 32:
            found.append(Layer(1, width, target, size))
        found.append(Layer(1, target, target, size, count=2 if target < 256 else 1))
        width, size = target, size // 2
    for target in (128, 64, 32):
        found.append(Layer(1, 3 * target, target, 256 * 32 // target))
    found.append(Layer(1, 32, 3, 256, 1))
    return tuple(found)


SETS: dict[str, tuple[Layer, ...]] = {
    "resnet50_b1": _resnet(1),
    "resnet50_b32": _resnet(32),
    "unet_256": _unet(),
    "conv_many_255MB": (
        Layer(1, 512, 1024, 28),
        Layer(1, 1024, 2048, 14),
        Layer(1, 2048, 2048, 14),
    ),
}


def graph(layers: tuple[Layer, ...]) -> Graph:
    """All layers one after the other; the means of their results.

    Each one's input depends on the largest mean of the one before, so that none run side by side.
    """
    sketch = Sketch("layers", 17)
    random = np.random.default_rng(0)
    before = sketch.input("x", (1,))
    for index, layer in enumerate(layers):
        shape = (1, layer.channels, layer.size, layer.size)
        start = sketch.constant(random.standard_normal(shape, np.float32))
        ones = sketch.constant(np.ones((layer.batch, 1, 1, 1), np.float32))
        images = sketch.node("Add", start, sketch.node("Mul", ones, before))
        fan = layer.channels * layer.kernel**2
        weight = random.standard_normal(
            (layer.filters, layer.channels, layer.kernel, layer.kernel), np.float32
        )
        y = sketch.node(
            "Conv",
            images,
            sketch.constant(weight * np.float32(fan**-0.5)),
            sketch.constant(random.standard_normal(layer.filters, np.float32)),
            strides=(layer.stride, layer.stride),
            pads=(layer.kernel // 2,) * 2 + ((layer.kernel - 1) // 2,) * 2,
        )
        means = sketch.node("ReduceMean", sketch.node("Relu", y), axes=(2, 3), keepdims=0)
        sketch.output(means, f"means{index}", (layer.batch, layer.filters), dtypes.FLOAT32)
        largest = sketch.node("ReduceMax", means, keepdims=0)
        scale = sketch.constant(np.float32(1e-3))
        before = sketch.node(
            "Reshape", sketch.node("Mul", largest, scale), sketch.constant(np.ones(1, np.int64))
        )
    return sketch.finish()


def kernel_of(layer: Layer, target: Target) -> KernelSpec:
    """The first kernel that a layer becomes, without bias and Relu."""
    build = VulkanBuilder(target)
    half, rest = layer.kernel // 2, (layer.kernel - 1) // 2
    windows = Windows(
        (layer.size,) * 2,
        (layer.kernel,) * 2,
        (layer.stride,) * 2,
        (1, 1),
        (half,) * 2,
        (rest,) * 2,
        (layer.output,) * 2,
    ).over(3)
    dims = (layer.filters, layer.channels, *windows.kernel)
    held = Constant(dtypes.FLOAT32, dims, np.ones(dims, np.float32))
    image = TensorType(dtypes.FLOAT32, (layer.batch, layer.channels, *windows.spatial))
    x = contiguous(Buffer(BufferKind.INPUT, image.bytes, "x"), image)
    weight = contiguous(Buffer(BufferKind.CONSTANT, held.type.bytes, "weight", held), held.type)
    with build.step(TensorType(dtypes.FLOAT32, (layer.batch, layer.filters, *windows.output))):
        build.conv(x, weight, None, windows, group=1)
    return build.launches[0].kernel
