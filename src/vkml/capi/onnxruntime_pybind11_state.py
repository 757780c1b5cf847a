"""Names of onnxruntime's module of that name: its exceptions, and the classes of one layer below."""

from __future__ import annotations

from vkml.engine.adapters import AdapterFormat, LoraAdapter
from vkml.engine.environment import (
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    has_collective_ops,
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
from vkml.engine.io_binding import SessionIOBinding
from vkml.engine.logger_callback import set_default_logger_callback
from vkml.engine.memory_infos import (
    ArenaExtendStrategy,
    OrtAllocatorType,
    OrtArenaCfg,
    OrtDevice,
    OrtDeviceMemoryType,
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
from vkml.engine.ort_value import OrtValue, OrtValueVector, copy_tensors
from vkml.engine.process_defaults import (
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
)
from vkml.engine.session import InferenceSession
from vkml.engine.session_interface import OrtEpAssignedNode, OrtEpAssignedSubgraph
from vkml.engine.sparse_tensor import OrtSparseFormat, SparseCooView, SparseCsrView, SparseTensor
from vkml.errors import (
    DeviceError,
    DeviceLost,
    EngineError,
    Error,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelError,
    ModelLoadCanceled,
    NoModel,
    NoSuchFile,
    NotImplemented,
    RuntimeException,
)
from vkml.onnx.model import ModelMetadata

EPFail = DeviceError
DeviceReset = DeviceLost
kNextPowerOfTwo = ArenaExtendStrategy.kNextPowerOfTwo
kSameAsRequested = ArenaExtendStrategy.kSameAsRequested


class ModelLoaded(ModelError):
    """Never raised: a session is made with its model."""


class ModelRequiresCompilation(ModelError):
    """Never raised: models are compiled as sessions are made."""


class NotFound(Error):
    """Never raised: what is not found has classes of its own."""


def get_default_session_options() -> SessionOptions:
    """Options that nobody has changed."""
    return SessionOptions()


__all__ = [
    "AdapterFormat", "ArenaExtendStrategy", "DeviceReset", "EPFail", "EngineError", "ExecutionMode",
    "ExecutionOrder", "Fail", "GraphOptimizationLevel", "InferenceSession", "InvalidArgument", "InvalidGraph",
    "InvalidProtobuf", "LoraAdapter", "ModelCompiler", "ModelLoadCanceled", "ModelLoaded", "ModelMetadata",
    "ModelRequiresCompilation", "NoModel", "NoSuchFile", "NodeArg", "NotFound", "NotImplemented",
    "OrtAllocatorType", "OrtArenaCfg", "OrtCompileApiFlags", "OrtDevice", "OrtDeviceMemoryType",
    "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "OrtEpDevice", "OrtExecutionProviderDevicePolicy",
    "OrtExternalInitializerInfo", "OrtHardwareDevice", "OrtHardwareDeviceType", "OrtMemType", "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType", "OrtSparseFormat", "OrtSyncStream", "OrtValue", "OrtValueVector", "RunOptions",
    "RuntimeException", "SessionIOBinding", "SessionOptions", "SparseCooView", "SparseCsrView",
    "SparseTensor", "copy_tensors", "create_and_register_allocator", "create_and_register_allocator_v2",
    "disable_telemetry_events", "enable_telemetry_events", "get_all_providers", "get_available_providers",
    "get_build_info", "get_default_session_options", "get_device", "get_ep_devices", "get_version_string",
    "has_collective_ops", "kNextPowerOfTwo", "kSameAsRequested", "register_execution_provider_library",
    "set_default_logger_callback", "set_default_logger_severity", "set_default_logger_verbosity",
    "set_global_thread_pool_sizes", "set_seed", "unregister_execution_provider_library",
]  # fmt: skip
