"""Runs machine-learning models on any GPU through Vulkan, and on the CPU.

Example:
    >>> import vkml
    >>> vkml.devices()[-1].name
    'cpu'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkml.errors import *  # noqa: F403

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vkml import onnx
    from vkml.engine.devices import close_devices, devices
    from vkml.engine.io_binding import IOBinding
    from vkml.engine.options import ExecutionMode, GraphOptimizationLevel, RunOptions, SessionOptions
    from vkml.engine.ort_value import OrtValue
    from vkml.engine.report import PlanReport, StepReport
    from vkml.engine.session import InferenceSession, NodeArg

_LAZY = {
    "InferenceSession": "vkml.engine.session",
    "IOBinding": "vkml.engine.io_binding",
    "NodeArg": "vkml.engine.session",
    "OrtValue": "vkml.engine.ort_value",
    "RunOptions": "vkml.engine.options",
    "SessionOptions": "vkml.engine.options",
    "GraphOptimizationLevel": "vkml.engine.options",
    "ExecutionMode": "vkml.engine.options",
    "PlanReport": "vkml.engine.report",
    "StepReport": "vkml.engine.report",
    "devices": "vkml.engine.devices",
    "close_devices": "vkml.engine.devices",
}

__all__ = [  # noqa: F405
    "CompileError", "DeviceError", "DeviceLost", "EngineError", "Error", "ExecutionMode", "Fail",
    "GraphOptimizationLevel", "IOBinding", "IndexOutOfRange", "InferenceSession", "InvalidArgument",
    "InvalidGraph", "InvalidProtobuf", "ModelChanged", "ModelError", "NoDevice", "NoModel",
    "NoSuchFile", "NodeArg", "NotDifferentiable", "NotImplemented", "OrtValue", "OutOfMemory", "PlanReport",
    "RunOptions", "RuntimeException", "SessionOptions", "ShapeError", "StepReport", "UnknownOption",
    "UnsupportedOperator", "close_devices", "devices", "onnx",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    if name == "onnx":
        return importlib.import_module("vkml.onnx")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'vkml' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
