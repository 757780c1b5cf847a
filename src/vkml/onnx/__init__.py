"""The ONNX file format: a reader over mapped files, usable alone, and a writer."""

from vkml.onnx.load import load_graph
from vkml.onnx.model import Model, ModelMetadata
from vkml.onnx.reader import open
from vkml.onnx.tensor import Tensor
from vkml.onnx.writer import save_graph

__all__ = ["Model", "ModelMetadata", "Tensor", "load_graph", "open", "save_graph"]
