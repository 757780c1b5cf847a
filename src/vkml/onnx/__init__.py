"""The ONNX file format: a reader over mapped files, usable alone, and a writer; and `export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkml.onnx.load import load_graph
from vkml.onnx.model import Model, ModelMetadata
from vkml.onnx.reader import open
from vkml.onnx.tensor import Tensor
from vkml.onnx.writer import save_graph

if TYPE_CHECKING:
    from vkml.exporting import Dim, TrainingMode, export

__all__ = [
    "Dim", "Model", "ModelMetadata", "Tensor", "TrainingMode", "export", "load_graph", "open", "save_graph",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Of tensors and modules, which the file format alone does not need.
    if name in ("Dim", "TrainingMode", "export"):
        from vkml import exporting

        return getattr(exporting, name)
    raise AttributeError(f"module 'vkml.onnx' has no attribute {name!r}")
