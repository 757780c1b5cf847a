"""Names of onnxruntime's package ``capi``, under which programs look for exceptions and classes."""

from vkml.capi import onnxruntime_pybind11_state, onnxruntime_validation

__all__ = ["onnxruntime_pybind11_state", "onnxruntime_validation"]
