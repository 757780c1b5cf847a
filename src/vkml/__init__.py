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
    from vkml import autograd, func, nn, onnx, optim, utils
    from vkml.engine.devices import close_devices, devices
    from vkml.engine.io_binding import IOBinding
    from vkml.engine.options import ExecutionMode, GraphOptimizationLevel, RunOptions, SessionOptions
    from vkml.engine.ort_value import OrtValue
    from vkml.engine.report import PlanReport, StepReport
    from vkml.engine.session import InferenceSession, NodeArg
    from vkml.tensors import Size, Tensor
    from vkml.tensors.jit import jit

_CREATION = (
    "arange", "as_tensor", "empty", "eye", "from_numpy", "full", "full_like", "linspace", "ones", "ones_like",
    "tensor", "zeros", "zeros_like",
)  # fmt: skip
_GENERATORS = (
    "Generator", "default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed",
    "seed", "set_rng_state",
)  # fmt: skip
_RANDOM = (
    "bernoulli", "multinomial", "normal", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "randperm",
)  # fmt: skip
_AUTOGRAD = ("enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled")
_PRECISION = ("get_float32_matmul_precision", "set_float32_matmul_precision")
_PROMOTION = ("get_default_dtype", "promote_types", "result_type", "set_default_dtype")
_OPERATIONS = (
    "abs", "acos", "acosh", "add", "all", "amax", "amin", "any", "argmax", "argmin", "asin", "asinh", "atan",
    "atanh", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_to", "cat", "ceil",
    "chunk", "clamp", "cos", "cosh", "cumsum", "div", "eq", "erf", "exp", "expm1", "flatten", "floor",
    "floor_divide", "fmod", "gather", "ge", "gt", "index_select", "isfinite", "isinf", "isnan", "le", "lerp",
    "log", "log10", "log1p", "log2", "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor",
    "logsumexp", "lt", "matmul", "maximum", "mean", "minimum", "mul", "ne", "neg", "norm", "permute", "pow",
    "prod", "reciprocal", "relu", "remainder", "reshape", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "softmax", "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "sub", "sum", "tan", "tanh",
    "topk", "transpose", "tril", "triu", "trunc", "unsqueeze", "var", "where",
)  # fmt: skip
_DTYPES = (
    "bfloat16", "bool", "float16", "float32", "float64", "int16", "int32", "int64", "int8", "uint16",
    "uint32", "uint64", "uint8",
)  # fmt: skip
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
    "Size": "vkml.tensors",
    "jit": "vkml.tensors.jit",
    "Tensor": "vkml.tensors",
    **dict.fromkeys(_CREATION, "vkml.tensors.creation"),
    **dict.fromkeys(_GENERATORS, "vkml.tensors.generator"),
    **dict.fromkeys(_RANDOM, "vkml.tensors.random"),
    **dict.fromkeys(_AUTOGRAD, "vkml.tensors.autograd"),
    **dict.fromkeys(_PROMOTION, "vkml.tensors.promotion"),
    **dict.fromkeys(_PRECISION, "vkml.tracing.precision"),
    **dict.fromkeys(_OPERATIONS, "vkml.tensors.operations"),
}

__all__ = [  # noqa: F405
    "AnomalyFound", "CaptureError", "CompileError", "DeviceError", "DeviceLost", "EngineError", "Error",
    "ExecutionMode", "Fail", "GraphOptimizationLevel", "IOBinding", "IndexOutOfRange", "InferenceSession", "InvalidArgument",
    "InvalidGraph", "InvalidProtobuf", "ModelChanged", "ModelError", "NoDevice", "NoModel",
    "NoSuchFile", "NodeArg", "NotDifferentiable", "NotImplemented", "OrtValue", "OutOfMemory", "PlanReport",
    "RunOptions", "RuntimeException", "SessionOptions", "ShapeError", "Size", "StepReport", "Tensor",
    "UnknownOption", "UnsupportedOperator", "autograd", "close_devices", "devices", "func", "jit", "nn", "onnx",
    "optim", "utils",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("autograd", "func", "nn", "onnx", "optim", "utils"):
        return importlib.import_module(f"vkml.{name}")
    if name in _DTYPES:
        from vkml.ir import dtypes

        return getattr(dtypes, name.upper())
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'vkml' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
