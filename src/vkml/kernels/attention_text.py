"""What the kernels of attention and of its gradients are given alike: sizes, strides, alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.ir.size import is_multiple
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter

if TYPE_CHECKING:
    from vkml.kernels.attention import Attention
    from vkml.lowering.vulkan_builder import VulkanBuilder


def forwards(build: VulkanBuilder, view: View) -> View:
    """A view that does not run backwards."""
    return build.contiguous(view) if view.is_reversed else view


def write_sizes(writer: KernelWriter, given: Attention) -> None:
    """States the sizes of an attention."""
    names = ("BATCHES", "HEADS", "QUERY_ROWS", "HEAD_SIZE")
    for name, size in zip(names, given.q.shape, strict=True):
        writer.constant(size, name)
    writer.constant(given.k.shape[2], "KEY_ROWS")
    writer.constant(given.group, "GROUP")
    writer.constant(given.causal.offset if given.causal is not None else 0, "CAUSAL_OFFSET")


def write_strides(writer: KernelWriter, name: str, view: View) -> None:
    """States the strides of an operand but for those of its columns."""
    for axis, stride in zip(("BATCH", "HEAD", "ROW"), view.strides, strict=False):
        writer.constant(stride, f"{name}_{axis}")


def is_aligned(view: View, elements: int) -> bool:
    """Whether so many neighbours of a row may be read at once, from any row."""
    numbers = (view.shape[3], *view.strides[:3], view.offset)
    return view.strides[3] == 1 and all(is_multiple(number, elements) for number in numbers)


def bool_text(value: bool) -> str:
    """A truth value as Slang text."""
    return "true" if value else "false"
