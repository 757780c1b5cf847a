"""Values, bindings, devices, adapters, backends: behaviours that onnxruntime's public tests name, on both."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.dropin import models
from tests.dropin.models import X

CPU = ["CPUExecutionProvider"]


def session(ort: Any, model: bytes, options: Any = None) -> Any:
    return ort.InferenceSession(model, options, providers=CPU)


# -- OrtValue -----------------------------------------------------------------------------------------------


def test_ort_value(ort: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.device_name(), value.shape(), value.data_type()) == ("cpu", [3, 2], "tensor(float)")
    assert value.is_tensor() and value.has_value() and value.tensor_size_in_bytes() == 24
    assert not value.is_sparse_tensor() and not value.is_tensor_sequence() and value.element_type() == 1
    assert value.data_ptr() == X.ctypes.data
    made = session(ort, models.product())
    np.testing.assert_array_equal(made.run(["Y"], {"X": value})[0], X * X)
    [found] = made.run_with_ort_values(["Y"], {"X": value})
    assert isinstance(found, ort.OrtValue)
    np.testing.assert_array_equal(found.numpy(), X * X)
    np.testing.assert_array_equal(value.numpy(), X)
    typed = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X.astype(np.float16).view(np.uint16), 16)
    assert typed.element_type() == 16 and typed.data_type() == "tensor(bfloat16)"


def test_ort_value_from_shape_and_type(ort: Any) -> None:
    for kind in (np.int64, 7):
        value = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], kind, "cpu", 0)
        value.update_inplace(np.arange(6).reshape(2, 3))
        assert value.data_type() == "tensor(int64)" and value.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    other = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.int64))
    other.update_inplace(value)
    assert other.numpy().tolist() == value.numpy().tolist()


def test_ort_value_dlpack(ort: Any, state: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    other = state.OrtValue.from_dlpack(value._ortvalue.to_dlpack())
    assert other.data_ptr() == value.data_ptr()
    np.testing.assert_array_equal(other.numpy(), X)


def test_ort_value_dlpack_zero_size(state: Any) -> None:
    for shape in [(1, 8, 0, 4), (0,), (0, 4), (4, 0)]:
        found = state.OrtValue.from_dlpack(np.zeros(shape, np.float32).__dlpack__())
        assert list(found.shape()) == list(shape)


def test_ort_value_array_protocol(ort: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    for array in (np.asarray(value), np.asarray(value, np.float32)):
        assert array.ctypes.data == value.data_ptr() and array.dtype == np.float32
    assert np.array(value).ctypes.data != value.data_ptr()
    np.testing.assert_array_equal(np.asarray(value, np.float64), X.astype(np.float64))


def test_ort_value_dlpack_protocol(ort: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert value.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(ort.OrtValue.from_dlpack(value.__dlpack__()).numpy(), X)


def test_ort_value_from_dlpack_protocol_object(ort: Any) -> None:
    found = ort.OrtValue.from_dlpack(X)
    assert found.data_ptr() == X.ctypes.data and list(found.shape()) == [3, 2]
    assert ort.OrtValue.from_dlpack(found).data_ptr() == X.ctypes.data


def test_ort_value_from_dlpack_bool(ort: Any) -> None:
    for array in (np.array([True, False]), np.array([1, 255], np.uint8)):
        found = ort.OrtValue.from_dlpack(ort.OrtValue.ortvalue_from_numpy(array)).numpy()
        assert found.dtype == array.dtype and found.tolist() == array.tolist()


# -- SparseTensor -------------------------------------------------------------------------------------------

PLACES = np.array([3, 5, 15], np.int64)
COLUMNS, COUNTS = np.array([1, 1, 1], np.int64), np.array([0, 1, 2, 3, 3, 3, 3, 3, 3, 3], np.int64)
ELEMENTS = [np.array([1.0, 2.0, 3.0], np.float32), np.array(["xyz", "yxz", "zyx"])]


def test_sparse_tensor_coo_format(ort: Any) -> None:
    device = ort.OrtDevice.make("cpu", 0)
    for elements, kind in zip(ELEMENTS, ("float", "string"), strict=True):
        made = ort.SparseTensor.sparse_coo_from_numpy([9, 9], elements, PLACES, device)
        value = ort.OrtValue.ort_value_from_sparse_tensor(made)
        assert value.is_sparse_tensor() and not value.is_tensor()
        found = value.as_sparse_tensor()
        assert found.format() == ort.OrtSparseFormat.ORT_SPARSE_COO and found.dense_shape() == [9, 9]
        assert (found.data_type(), found.device_name()) == (f"sparse_tensor({kind})", "cpu")
        kept, places = found.values(), found.as_coo_view().indices()
        del made, value, found
        gc.collect()
        assert not places.flags.writeable and places.tolist() == PLACES.tolist()
        assert kept.tolist() == elements.tolist()
    made = ort.SparseTensor.sparse_coo_from_numpy([9, 9], ELEMENTS[0], PLACES, device)
    assert not made.values().flags.writeable
    for act in (made.as_csrc_view, lambda: made.to_cuda(ort.OrtDevice.make("cuda", 0))):
        with pytest.raises(RuntimeError):
            act()


def test_sparse_tensor_csr_format(ort: Any) -> None:
    device = ort.OrtDevice.make("cpu", 0)
    for elements, kind in zip(ELEMENTS, ("float", "string"), strict=True):
        made = ort.SparseTensor.sparse_csr_from_numpy([9, 9], elements, COLUMNS, COUNTS, device)
        assert made.format() == ort.OrtSparseFormat.ORT_SPARSE_CSRC and made.dense_shape() == [9, 9]
        assert made.data_type() == f"sparse_tensor({kind})" and made.values().tolist() == elements.tolist()
        view = made.as_csrc_view()
        for found, expected in ((view.inner(), COLUMNS), (view.outer(), COUNTS)):
            assert not found.flags.writeable and found.tolist() == expected.tolist()


# -- devices and allocators ---------------------------------------------------------------------------------


def test_ort_device(ort: Any) -> None:
    device = ort.OrtDevice.make("cpu", 0)
    assert (device.device_id(), device.device_type(), device.device_mem_type()) == (0, 0, 0)
    assert device.device_vendor_id() == ort.OrtDeviceVendorId.NONE
    assert ort.OrtDevice.make("cuda", 1).device_vendor_id() == ort.OrtDeviceVendorId.NVIDIA == 0x10DE
    kinds = [ort.OrtDevice.make(name, 0).device_type() for name in ("gpu", "dml", "webgpu", "npu", "cann")]
    assert kinds == [1, 1, 1, 3, 3]
    with pytest.raises(Exception, match="tpu"):
        ort.OrtDevice.make("tpu", 0)


def test_ort_memory_info(ort: Any) -> None:
    arena, memory = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ort.OrtDeviceMemoryType.DEFAULT
    plain = ort.OrtMemoryInfo("Cpu", arena, 0, ort.OrtMemType.DEFAULT)
    wide = ort.OrtMemoryInfo.create_v2("Cpu", ort.OrtMemoryInfoDeviceType.CPU, 0, 0, memory, 128, arena)
    for found in (plain, wide):
        assert (found.name, found.device_id, found.device_vendor_id) == ("Cpu", 0, 0)
        assert (found.mem_type, found.allocator_type) == (ort.OrtMemType.DEFAULT, arena)
        assert found.device_mem_type == memory


def test_create_allocator(ort: Any) -> None:
    found = ort.OrtArenaCfg(8, 0, 4, 2)
    assert (found.max_mem, found.arena_extend_strategy) == (8, 0)
    assert (found.initial_chunk_size_bytes, found.max_dead_bytes_per_chunk) == (4, 2)
    stated = {
        "max_mem": 32,
        "arena_extend_strategy": 11,
        "initial_chunk_size_bytes": 18,
        "max_dead_bytes_per_chunk": 14,
        "initial_growth_chunk_size_bytes": 12,
        "max_power_of_two_extend_bytes": 17,
    }
    made, empty = ort.OrtArenaCfg(stated), ort.OrtArenaCfg({})
    assert {name: getattr(made, name) for name in stated} == stated
    assert {name: getattr(empty, name) for name in stated} == dict.fromkeys(stated, -1) | {"max_mem": 0}
    with pytest.raises(RuntimeError):
        ort.OrtArenaCfg({"size": 1})


def test_ep_devices(ort: Any) -> None:
    found = ort.get_ep_devices()[-1]
    assert found.ep_name == "CPUExecutionProvider" and found.device.type == ort.OrtHardwareDeviceType.CPU
    assert isinstance(found.device.vendor_id, int) and "version" in found.ep_metadata
    assert found.memory_info(ort.OrtDeviceMemoryType.DEFAULT) is None
    options = ort.SessionOptions()
    assert not options.has_providers()
    options.add_provider_for_devices([found], {})
    assert options.has_providers()
    made = ort.InferenceSession(models.product(), options)
    assert made.get_providers() == CPU


def test_check_and_normalize_provider_args(ort: Any) -> None:
    module = importlib.import_module(f"{ort.__name__}.capi.onnxruntime_inference_collection")
    check = module.check_and_normalize_provider_args
    known = ["a", "b", "c"]
    for providers, options, expected in [
        (None, None, ([], [])),
        (["a"], None, (["a"], [{}])),
        ([("a", {1: 2}), "b"], None, (["a", "b"], [{"1": "2"}, {}])),
        (["a", "b"], [{1: 2}, {}], (["a", "b"], [{"1": "2"}, {}])),
    ]:
        assert check(providers, options, known) == expected
    with pytest.warns(UserWarning):
        assert check(["a", "b", "a"], [{"x": 1}, {}, {"y": 2}], known) == (["a", "b"], [{"x": "1"}, {}])
    for providers, options in [
        (3, None), ([3], None), (["a"], 3), (["a"], ["x"]), (["a", "b"], [{1: 2}]), ([("a", {})], [{}]),
    ]:  # fmt: skip
        with pytest.raises(ValueError):
            check(providers, options, known)


# -- adapters -----------------------------------------------------------------------------------------------


def written(ort: Any, path: Path) -> dict[str, Any]:
    """An adapter's file; returns its parameters."""
    parameters = {
        "A": np.full((4, 2), 2, np.float32),
        "B": np.full((2, 4), 3, np.float32),
        "count": np.arange(10).reshape(2, 5),
        "none": np.zeros((0, 4), np.float32),
    }
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(7)
    adapter.set_model_version(9)
    adapter.set_parameters(
        {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in parameters.items()}
    )
    adapter.export_adapter(str(path))
    return parameters


@pytest.mark.parametrize("writer", ["onnxruntime", "vkml"])
def test_adater_export_read(ort: Any, writer: str, tmp_path: Path) -> None:
    """Each reads what either has written."""
    expected = written(importlib.import_module(writer), tmp_path / "adapter")
    read = ort.AdapterFormat.read_adapter(str(tmp_path / "adapter"))
    assert (read.get_adapter_version(), read.get_model_version(), read.get_format_version()) == (7, 9, 1)
    found = read.get_parameters()
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert list(found[name].shape()) == list(array.shape)
        np.testing.assert_array_equal(found[name].numpy(), array)


def test_run_with_adapter(ort: Any, tmp_path: Path) -> None:
    parameters = written(ort, tmp_path / "adapter")
    small = ort.AdapterFormat()
    kept = {name: ort.OrtValue.ortvalue_from_numpy(parameters[name]) for name in ("A", "B")}
    small.set_parameters(kept)
    small.export_adapter(str(tmp_path / "small"))
    adapter = ort.LoraAdapter()
    adapter.Load(str(tmp_path / "small"))
    options = ort.RunOptions()
    options.add_active_adapter(adapter)
    made, ones = session(ort, models.adaptable()), np.ones((4, 4), np.float32)
    assert (made.run(None, {"X": ones}, options)[0] == 4 * 13).all()


def test_run_base_model(ort: Any) -> None:
    made = session(ort, models.adaptable())
    assert (made.run(None, {"X": np.ones((4, 4), np.float32)}, ort.RunOptions())[0] == 4).all()


# -- IOBinding ----------------------------------------------------------------------------------------------


def test_bind_input_to_cpu_arr(ort: Any) -> None:
    made = session(ort, models.product())
    binding = made.io_binding()
    binding.bind_cpu_input("X", X)
    binding.bind_output("Y")
    binding.synchronize_inputs()
    made.run_with_iobinding(binding)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X * X)
    assert len(binding.get_outputs_as_ortvaluevector()) == 1
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()


def test_bind_input_and_preallocated_output(ort: Any) -> None:
    made = session(ort, models.product())
    binding, result = made.io_binding(), np.zeros((3, 2), np.float32)
    binding.bind_input("X", "cpu", 0, np.float32, [3, 2], X.ctypes.data)
    binding.bind_output("Y", "cpu", 0, np.float32, [3, 2], result.ctypes.data)
    made.run_with_iobinding(binding)
    np.testing.assert_array_equal(result, X * X)
    [found] = binding.get_outputs()
    assert (found.device_name(), found.shape()) == ("cpu", [3, 2])


def test_bind_input_and_bind_output_with_ortvalues(ort: Any) -> None:
    made = session(ort, models.product())
    binding, result = made.io_binding(), ort.OrtValue.ortvalue_from_numpy(np.zeros((3, 2), np.float32))
    binding.bind_ortvalue_input("X", ort.OrtValue.ortvalue_from_numpy(X))
    binding.bind_ortvalue_output("Y", result)
    made.run_with_iobinding(binding)
    np.testing.assert_array_equal(result.numpy(), X * X)


def test_bind_input_types(ort: Any) -> None:
    for number, kind in ((1, np.float32), (7, np.int64), (9, np.bool_), (2, np.uint8), (10, np.float16)):
        made = session(ort, models.identity(number, ("n",)))
        binding, given = made.io_binding(), np.array([0, 1, 1], kind)
        binding.bind_input("input:0", "cpu", 0, kind, [3], given.ctypes.data)
        binding.bind_output("output:0", "cpu")
        made.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], given)


def test_run_with_ortvaluevector(ort: Any, state: Any) -> None:
    made, fetches, feeds = session(ort, models.product()), state.OrtValueVector(), state.OrtValueVector()
    feeds.push_back(ort.OrtValue.ortvalue_from_numpy(X)._get_c_value())
    device = ort.OrtDevice.make("cpu", 0)
    device = getattr(device, "_get_c_device", lambda: device)()
    made.run_with_ortvaluevector(ort.RunOptions(), ["X"], feeds, ["Y"], fetches, [device])
    np.testing.assert_array_equal(fetches[0].numpy(), X * X)


# -- compiling ----------------------------------------------------------------------------------------------


def test_ep_context_binary_information(ort: Any, state: Any) -> None:
    compiler = ort.ModelCompiler(ort.SessionOptions(), models.perceptron())
    compiler.set_ep_context_binary_information("files/", "model")
    compiler.set_ep_context_binary_information("files.onnx", "model")
    for wrong in (("", ""), ("files", "model"), ("files/", "")):
        with pytest.raises(state.InvalidArgument):
            compiler.set_ep_context_binary_information(*wrong)


def test_compile_to_bytes_file_and_stream(ort: Any, state: Any, tmp_path: Path) -> None:
    compiler = ort.ModelCompiler(ort.SessionOptions(), models.perceptron())
    path, pieces = tmp_path / "compiled.onnx", []
    compiler.compile_to_file(str(path))
    compiler.compile_to_stream(pieces.append)
    [expected] = session(ort, models.perceptron()).run(None, {"X": X})
    for source in (path.read_bytes(), compiler.compile_to_bytes(), b"".join(pieces)):
        np.testing.assert_allclose(session(ort, source).run(None, {"X": X})[0], expected, rtol=1e-5)
    strict = ort.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
    with pytest.raises(state.Fail):
        ort.ModelCompiler(ort.SessionOptions(), models.perceptron(), flags=strict).compile_to_file(str(path))
    with pytest.raises(TypeError):
        ort.ModelCompiler(ort.SessionOptions(), 3)


# -- ONNX's backends ----------------------------------------------------------------------------------------


def test_backend_run_model(ort: Any) -> None:
    backend = importlib.import_module(f"{ort.__name__}.backend")
    assert backend.supports_device("CPU") and backend.is_compatible(None, "CPU")
    rep = backend.prepare(models.product(), "CPU")
    for given in (X, [X]):
        np.testing.assert_array_equal(rep.run(given)[0], X * X)
    proto = models.proto([helper.make_node("Neg", ["X"], ["Y"])], [models.info("X")], [models.info("Y")])
    np.testing.assert_array_equal(backend.run(proto, [X], "CPU", graph_optimization_level=_level(ort))[0], -X)
    with pytest.raises((RuntimeError, ValueError)):
        backend.prepare(models.product(), "CPU", optimized_model_filepath="x")


def _level(ort: Any) -> Any:
    return ort.GraphOptimizationLevel.ORT_DISABLE_ALL


def test_allocation_plan_works_with_only_execute_path_to_fetches_option(ort: Any) -> None:
    options = ort.RunOptions()
    options.only_execute_path_to_fetches = True
    nodes = [helper.make_node("Neg", ["X"], ["A"]), helper.make_node("Abs", ["X"], ["B"])]
    made = session(ort, models.model(nodes, [models.info("X")], [models.info("A"), models.info("B")]))
    np.testing.assert_array_equal(made.run(["B"], {"X": -X}, options)[0], X)
