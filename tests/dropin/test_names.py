"""Every public name of onnxruntime is there, and every member of its classes."""

from __future__ import annotations

import inspect
import types

import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as their_state
import pytest

import vkml
import vkml.capi.onnxruntime_pybind11_state as our_state
from vkml.engine.environment import API_VERSION

_COMPILED = "views of the data of compiled nodes, which no model for vkml has"
_PACKS = "packs weights for one of onnxruntime's kernels, as its quantizer does"
_SCHEMAS = "lists kernels and schemas that onnxruntime was built with, for its documentation"
_PACKAGES = "reads and writes folders with variants of a model for several providers, of which one is chosen"
_PLUGINS = "asks libraries of providers, which are not loaded"
ABSENT = {
    "OrtEpContextData": _COMPILED,
    "OrtEpContextDataBuffer": _COMPILED,
    "OrtCompiledModelCompatibility": _COMPILED,
    "get_compatibility_info_from_model": _COMPILED,
    "get_compatibility_info_from_model_bytes": _COMPILED,
    "get_model_compatibility_for_ep_devices": _COMPILED,
    "ModelPackage": _PACKAGES,
    "ModelPackageComponentContext": _PACKAGES,
    "ModelPackageContext": _PACKAGES,
    "ModelPackageOptions": _PACKAGES,
    "ModelPackageWriteMode": _PACKAGES,
    "OrtDeviceEpIncompatibilityReason": _PLUGINS,
    "get_hardware_device_ep_incompatibility_details": _PLUGINS,
    "get_hardware_devices": _PLUGINS,
    "SessionObjectInitializer": "what passes between two modules of onnxruntime",
    "get_session_initializer": "what passes between two modules of onnxruntime",
    "SparseBlockSparseView": "nothing in Python makes sparse tensors of blocks",
    "get_all_operator_schema": _SCHEMAS,
    "get_all_opkernel_def": _SCHEMAS,
    "get_registered_ep_kernel_defs": _SCHEMAS,
    "opkernel": _SCHEMAS,
    "schemadef": _SCHEMAS,
    "pack_fp4_weights_for_cuda_moe_gemm": _PACKS,
    "quantize_matmul_2bits": _PACKS,
    "quantize_matmul_4bits": _PACKS,
    "quantize_matmul_8bits": _PACKS,
    "quantize_matmul_bnb4": _PACKS,
    "quantize_qdq_matmul_2bits": _PACKS,
    "quantize_qdq_matmul_4bits": _PACKS,
}
"""Name → why it is not there."""


def _public(module: types.ModuleType) -> list[str]:
    """Names that are no modules: those are there once something in the process has imported them."""
    found = [name for name in dir(module) if not name.startswith("_")]
    return [name for name in found if not isinstance(getattr(module, name), types.ModuleType)]


def test_the_release_is_the_one_that_is_told() -> None:
    """The other tests compare with the release that `tools/constraints.txt` has installed."""
    assert onnxruntime.__version__ == API_VERSION


@pytest.mark.parametrize(("theirs", "ours"), [(onnxruntime, vkml), (their_state, our_state)])
def test_names(theirs: types.ModuleType, ours: types.ModuleType) -> None:
    missing = [name for name in _public(theirs) if name not in ABSENT and name not in dir(ours)]
    assert not missing
    assert not [name for name in ABSENT if hasattr(ours, name)]


def test_dir_lists_what_there_is() -> None:
    for name in dir(vkml):
        getattr(vkml, name)
    assert {"InferenceSession", "Tensor", "nn", "float32", "matmul", "get_available_providers"} <= set(
        dir(vkml)
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in _public(onnxruntime)
        if inspect.isclass(getattr(onnxruntime, name)) and name not in ABSENT
    ],
)
def test_members(name: str) -> None:
    """Methods, fields of instances, and of enumerations the numbers."""
    theirs, ours = getattr(onnxruntime, name), getattr(vkml, name)
    numbers = getattr(theirs, "__members__", None)
    if numbers is not None:
        assert {key: int(value) for key, value in numbers.items()} == {
            key: int(value) for key, value in ours.__members__.items()
        }
        return
    known = {*dir(ours), *getattr(ours, "__annotations__", ())}
    made = _instances().get(name)
    known |= set() if made is None else set(dir(made))
    assert not [key for key in dir(theirs) if not key.startswith("_") and key not in known]


def _instances() -> dict[str, object]:
    """Of classes whose fields are set as they are made."""
    info = vkml.OrtMemoryInfo("Cpu", vkml.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, vkml.OrtMemType.DEFAULT)
    return {"OrtMemoryInfo": info}


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_defaults_of_options(name: str) -> None:
    theirs, ours = getattr(onnxruntime, name)(), getattr(vkml, name)()
    for key in dir(theirs):
        value = getattr(theirs, key)
        if not key.startswith("_") and not callable(value):
            found = getattr(ours, key)
            assert found == (int(value) if hasattr(value, "value") else value), key


def test_exceptions_are_one_tree() -> None:
    raised = [
        name
        for name in _public(their_state)
        if inspect.isclass(found := getattr(their_state, name)) and issubclass(found, Exception)
    ]
    assert len(raised) > 10
    for name in raised:
        assert issubclass(getattr(our_state, name), vkml.Error), name
