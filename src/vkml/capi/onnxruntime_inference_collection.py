"""Names of onnxruntime's module of that name: sessions, values and what checks their arguments."""

from vkml.engine.adapters import AdapterFormat
from vkml.engine.io_binding import IOBinding
from vkml.engine.memory_infos import OrtDevice, OrtDeviceVendorId, get_ort_device_type
from vkml.engine.model_compiler import ModelCompiler
from vkml.engine.ort_value import OrtValue, copy_tensors
from vkml.engine.providers import check_and_normalize_provider_args
from vkml.engine.session import InferenceSession
from vkml.engine.session_interface import SessionInterface as Session
from vkml.engine.sparse_tensor import SparseTensor

__all__ = [
    "AdapterFormat", "IOBinding", "InferenceSession", "ModelCompiler", "OrtDevice", "OrtDeviceVendorId",
    "OrtValue", "Session", "SparseTensor", "check_and_normalize_provider_args", "copy_tensors",
    "get_ort_device_type",
]  # fmt: skip
