"""Modules and functions of tensors as models of ONNX: `vkml.onnx.export`."""

from vkml.exporting.exporter import TrainingMode, export
from vkml.exporting.sizes import Dim

__all__ = ["Dim", "TrainingMode", "export"]
