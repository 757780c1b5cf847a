"""Another name of `vkml.capi.onnxruntime_pybind11_state`, as onnxruntime has it."""

from vkml.capi.onnxruntime_pybind11_state import *  # noqa: F403
