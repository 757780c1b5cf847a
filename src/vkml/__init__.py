"""Runs machine-learning models on any GPU through Vulkan, and on the CPU.

Example:
    >>> import vkml
    >>> vkml.devices()[-1].name
    'cpu'
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from vkml.errors import *  # noqa: F403

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vkml import (
        amp,
        autograd,
        backend,
        capi,
        data,
        fft,
        func,
        linalg,
        nn,
        onnx,
        ops,
        optim,
        training,
        utils,
        xp,
    )
    from vkml.amp import GradScaler
    from vkml.engine.adapters import AdapterFormat, LoraAdapter
    from vkml.engine.devices import close_devices, devices
    from vkml.engine.environment import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        get_version_string,
        has_collective_ops,
        preload_dlls,
        print_debug_info,
        register_execution_provider_library,
        set_seed,
        unregister_execution_provider_library,
    )
    from vkml.engine.ep_devices import (
        OrtEpDevice,
        OrtHardwareDevice,
        OrtHardwareDeviceType,
        OrtSyncStream,
        get_ep_devices,
    )
    from vkml.engine.io_binding import IOBinding, SessionIOBinding
    from vkml.engine.logger_callback import set_default_logger_callback
    from vkml.engine.memory_infos import (
        OrtAllocatorType,
        OrtArenaCfg,
        OrtDevice,
        OrtDeviceMemoryType,
        OrtDeviceVendorId,
        OrtMemoryInfo,
        OrtMemoryInfoDeviceType,
        OrtMemType,
        create_and_register_allocator,
        create_and_register_allocator_v2,
    )
    from vkml.engine.model_compiler import ModelCompiler, OrtCompileApiFlags, OrtExternalInitializerInfo
    from vkml.engine.node_arg import NodeArg
    from vkml.engine.options import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        OrtExecutionProviderDevicePolicy,
        RunOptions,
        SessionOptions,
    )
    from vkml.engine.ort_value import OrtValue, copy_tensors
    from vkml.engine.process_defaults import (
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
    )
    from vkml.engine.report import PlanReport, StepReport
    from vkml.engine.session import InferenceSession
    from vkml.engine.session_interface import OrtEpAssignedNode, OrtEpAssignedSubgraph
    from vkml.engine.sparse_tensor import OrtSparseFormat, SparseTensor
    from vkml.installation import install_as_onnxruntime
    from vkml.onnx.model import ModelMetadata
    from vkml.saving import load, save
    from vkml.tensors import Size, Tensor
    from vkml.tensors.autocast import autocast
    from vkml.tensors.jit import jit
    from vkml.training import fit

_CREATION = (
    "arange", "as_tensor", "asarray", "empty", "empty_like", "eye", "from_dlpack", "from_numpy", "full",
    "full_like", "is_tensor", "linspace", "logspace", "numel", "ones", "ones_like", "scalar_tensor",
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
    "abs", "absolute", "acos", "acosh", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr",
    "adjoint", "all", "allclose", "amax", "amin", "aminmax", "angle", "any", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort", "argwhere", "asin", "asinh",
    "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "baddbmm", "bincount",
    "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "block_diag", "bmm", "broadcast_shapes", "broadcast_tensors", "broadcast_to", "bucketize", "can_cast",
    "cartesian_prod", "cat", "cdist", "ceil", "chain_matmul", "cholesky", "chunk", "clamp", "clamp_max",
    "clamp_min", "clip", "clone", "column_stack", "combinations", "complex", "concat", "concatenate",
    "conj", "copysign", "corrcoef", "cos", "cosh", "count_nonzero", "cov", "cross", "cummax", "cummin",
    "cumprod", "cumsum", "deg2rad", "det", "detach", "diag", "diag_embed", "diagflat", "diagonal",
    "diagonal_scatter", "diff", "digamma", "dist", "div", "divide", "dot", "dsplit", "dstack", "einsum",
    "eq", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expand", "expm1", "fix", "flatten", "flip",
    "fliplr", "flipud", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "gather",
    "gcd", "ge", "ger", "greater", "greater_equal", "gt", "heaviside", "histc", "hsplit", "hstack", "hypot",
    "i0", "imag", "index_add", "index_copy", "index_fill", "index_put", "index_select", "inner", "inverse",
    "is_complex", "is_floating_point", "is_nonzero", "isclose", "isfinite", "isin", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "istft", "kron", "kthvalue", "lcm", "ldexp", "le", "lerp", "less",
    "less_equal", "lgamma", "log", "log10", "log1p", "log2", "log_softmax", "logaddexp", "logaddexp2",
    "logcumsumexp", "logdet", "logical_and", "logical_not", "logical_or", "logical_xor", "logit",
    "logsumexp", "lt", "masked_fill", "masked_scatter", "masked_select", "matmul", "matrix_exp",
    "matrix_power", "max", "maximum", "mean", "median", "meshgrid", "min", "minimum", "mm", "mode",
    "moveaxis", "movedim", "msort", "mul", "multi_dot", "multiply", "mv", "nan_to_num", "nanmean",
    "nanmedian", "nanquantile", "nansum", "narrow", "ne", "neg", "negative", "nextafter", "nonzero", "norm",
    "not_equal", "one_hot", "outer", "permute", "pinverse", "polar", "polygamma", "positive", "pow", "prod",
    "quantile",
    "rad2deg", "ravel", "real", "reciprocal", "relu", "remainder", "repeat", "repeat_interleave", "reshape",
    "resolve_conj", "roll", "rot90", "round", "row_stack", "rsqrt", "rsub", "scatter", "scatter_add",
    "scatter_reduce", "searchsorted", "select", "select_scatter", "sgn", "sigmoid", "sign", "signbit",
    "sin", "sinc", "sinh", "slice_scatter", "slogdet", "softmax", "sort", "split", "split_with_sizes",
    "sqrt", "square", "squeeze", "stack", "std", "std_mean", "stft", "sub", "subtract", "sum", "swapaxes",
    "swapdims", "t", "take", "take_along_dim", "tan", "tanh", "tensor_split", "tensordot", "tile", "topk",
    "trace", "transpose", "trapezoid", "trapz", "tril", "tril_indices", "triu", "triu_indices",
    "true_divide", "trunc", "unbind", "unflatten", "unfold", "unique", "unique_consecutive",
    "unravel_index", "unsqueeze", "vander", "var", "var_mean", "vdot", "vecdot", "view_as_complex",
    "view_as_real", "vsplit", "vstack", "where", "xlogy",
)  # fmt: skip
_PACKAGES = (
    "amp", "autograd", "backend", "capi", "data", "distributions", "fft", "func", "linalg", "nn", "onnx",
    "ops", "optim", "special", "training", "utils", "xp",
)  # fmt: skip
_DTYPES = (
    "bfloat16", "bool", "complex128", "complex64", "float16", "float32", "float64", "int16", "int32",
    "int64", "int8", "uint16", "uint32", "uint64", "uint8",
)  # fmt: skip
_DTYPE_ALIASES = {
    "cdouble": "complex128", "cfloat": "complex64", "double": "float64", "float": "float32",
    "half": "float16", "int": "int32", "long": "int64", "short": "int16",
}  # fmt: skip
_CONSTANTS = {"e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None, "pi": math.pi}
_FUNCTIONAL = (
    "adaptive_avg_pool1d", "alpha_dropout", "avg_pool1d", "bilinear", "celu", "channel_shuffle", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_similarity",
    "dropout", "feature_alpha_dropout", "group_norm", "hardshrink", "layer_norm", "max_pool1d", "max_pool2d",
    "max_pool3d", "pairwise_distance", "pixel_shuffle", "pixel_unshuffle", "prelu", "relu_", "rms_norm",
    "rrelu", "selu", "threshold",
)  # fmt: skip
_WINDOWS = ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window")
_OPTIONS = (
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "OrtExecutionProviderDevicePolicy",
    "RunOptions", "SessionOptions",
)  # fmt: skip
_MEMORY = (
    "OrtAllocatorType", "OrtArenaCfg", "OrtDevice", "OrtDeviceMemoryType", "OrtDeviceVendorId", "OrtMemType",
    "OrtMemoryInfo", "OrtMemoryInfoDeviceType", "create_and_register_allocator",
    "create_and_register_allocator_v2",
)  # fmt: skip
_EP_DEVICES = ("OrtEpDevice", "OrtHardwareDevice", "OrtHardwareDeviceType", "OrtSyncStream", "get_ep_devices")
_ENVIRONMENT = (
    "cuda_version", "import_capi_exception", "package_name",
    "disable_telemetry_events", "enable_telemetry_events", "get_all_providers", "get_available_providers",
    "get_build_info", "get_device", "get_version_string", "has_collective_ops", "preload_dlls",
    "print_debug_info", "register_execution_provider_library", "set_seed",
    "unregister_execution_provider_library",
)  # fmt: skip
_PROCESS = (
    "set_default_logger_severity", "set_default_logger_verbosity", "set_global_thread_pool_sizes",
)  # fmt: skip
_LAZY = {
    "InferenceSession": "vkml.engine.session",
    "IOBinding": "vkml.engine.io_binding",
    "NodeArg": "vkml.engine.node_arg",
    "OrtValue": "vkml.engine.ort_value",
    **dict.fromkeys(_OPTIONS, "vkml.engine.options"),
    **dict.fromkeys(_MEMORY, "vkml.engine.memory_infos"),
    **dict.fromkeys(_EP_DEVICES, "vkml.engine.ep_devices"),
    **dict.fromkeys(_ENVIRONMENT, "vkml.engine.environment"),
    **dict.fromkeys(_PROCESS, "vkml.engine.process_defaults"),
    "set_default_logger_callback": "vkml.engine.logger_callback",
    "AdapterFormat": "vkml.engine.adapters",
    "LoraAdapter": "vkml.engine.adapters",
    "ModelCompiler": "vkml.engine.model_compiler",
    "OrtCompileApiFlags": "vkml.engine.model_compiler",
    "OrtExternalInitializerInfo": "vkml.engine.model_compiler",
    "install_as_onnxruntime": "vkml.installation",
    "onnxruntime_validation": "vkml.capi",
    "SessionIOBinding": "vkml.engine.io_binding",
    "OrtEpAssignedNode": "vkml.engine.session_interface",
    "OrtEpAssignedSubgraph": "vkml.engine.session_interface",
    "OrtSparseFormat": "vkml.engine.sparse_tensor",
    "SparseTensor": "vkml.engine.sparse_tensor",
    "ModelMetadata": "vkml.onnx.model",
    "copy_tensors": "vkml.engine.ort_value",
    "PlanReport": "vkml.engine.report",
    "StepReport": "vkml.engine.report",
    "devices": "vkml.engine.devices",
    "close_devices": "vkml.engine.devices",
    "Size": "vkml.tensors",
    "jit": "vkml.tensors.jit",
    "fit": "vkml.training",
    "autocast": "vkml.tensors.autocast",
    "get_autocast_dtype": "vkml.tensors.autocast",
    "is_autocast_enabled": "vkml.tensors.autocast",
    "GradScaler": "vkml.amp",
    "load": "vkml.saving",
    "save": "vkml.saving",
    "Tensor": "vkml.tensors",
    **dict.fromkeys(_CREATION, "vkml.tensors.creation"),
    **dict.fromkeys(_GENERATORS, "vkml.tensors.generator"),
    **dict.fromkeys(_RANDOM, "vkml.tensors.random"),
    **dict.fromkeys(_AUTOGRAD, "vkml.tensors.autograd"),
    "finfo": "vkml.tensors.type_information",
    "iinfo": "vkml.tensors.type_information",
    **dict.fromkeys(_PROMOTION, "vkml.tensors.promotion"),
    **dict.fromkeys(_PRECISION, "vkml.tracing.precision"),
    **dict.fromkeys(_OPERATIONS, "vkml.tensors.operations"),
    **dict.fromkeys(_FUNCTIONAL, "vkml.nn.functional"),
    **dict.fromkeys(_WINDOWS, "vkml.tensors.windows"),
    "device": "vkml.tensors.device",
    "set_printoptions": "vkml.tensors.printing",
    "vmap": "vkml.func",
}

__all__ = [  # noqa: F405
    "AdapterFormat", "AnomalyFound", "CaptureError", "ChangedInPlace", "CompileError", "DeviceError",
    "DeviceLost",
    "EngineError", "Error", "ExecutionMode", "ExecutionOrder", "Fail", "GradScaler",
    "GraphOptimizationLevel", "IOBinding", "IndexOutOfRange", "InferenceSession", "InvalidArgument",
    "InvalidCheckpoint", "InvalidData", "InvalidDevice", "InvalidGraph", "InvalidProtobuf", "InvalidSetting",
    "LoraAdapter", "MissingPackage", "ModelChanged", "ModelCompiler", "ModelError", "ModelLoadCanceled",
    "ModelMetadata", "NoDevice", "NoModel", "NoSuchFile", "NodeArg", "NotDifferentiable",
    "NotImplemented", "OperandError", "OrtAllocatorType", "OrtArenaCfg", "OrtCompileApiFlags",
    "OrtDevice", "OrtDeviceMemoryType", "OrtDeviceVendorId", "OrtEpAssignedNode", "OrtEpAssignedSubgraph",
    "OrtEpDevice", "OrtExecutionProviderDevicePolicy", "OrtExternalInitializerInfo", "OrtHardwareDevice",
    "OrtHardwareDeviceType", "OrtMemType", "OrtMemoryInfo", "OrtMemoryInfoDeviceType", "OrtSparseFormat",
    "OrtSyncStream", "OrtValue", "OutOfMemory", "PlanReport", "RunOptions", "RuntimeException",
    "SessionIOBinding", "SessionOptions", "ShapeError", "Size", "SparseTensor", "StepReport", "Tensor",
    "UnknownOption", "UnsupportedOperator", "WrongType", "amp", "autocast", "autograd", "backend", "capi",
    "close_devices", "copy_tensors", "create_and_register_allocator", "create_and_register_allocator_v2",
    "data", "devices", "disable_telemetry_events", "distributions", "enable_telemetry_events", "fft", "fit",
    "func",
    "get_all_providers", "get_available_providers", "get_build_info", "get_device", "get_ep_devices",
    "get_version_string", "has_collective_ops", "install_as_onnxruntime", "jit", "linalg", "load", "nn",
    "onnx", "ops", "optim", "preload_dlls", "print_debug_info", "register_execution_provider_library",
    "save", "set_default_logger_callback", "set_default_logger_severity", "set_default_logger_verbosity",
    "set_global_thread_pool_sizes", "set_seed", "special", "training",
    "unregister_execution_provider_library", "utils", "xp",
]  # fmt: skip


def __dir__() -> list[str]:
    names = {*globals(), *__all__, *_LAZY, *_PACKAGES, *_DTYPES, *_DTYPE_ALIASES, *_CONSTANTS, "version"}
    return sorted(names)


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"vkml.{name}")
    if name == "version":
        return __version__
    if name in _DTYPES or name in _DTYPE_ALIASES:
        from vkml.ir import dtypes

        return getattr(dtypes, _DTYPE_ALIASES.get(name, name).upper())
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'vkml' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
