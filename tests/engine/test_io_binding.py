"""Values that stay on devices: OrtValue, IOBinding, and runs with them."""

from __future__ import annotations

import gc
import inspect
import threading
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

import vkml
import vkml.onnx
from tests.control_models import model as control_model
from tests.patience import patience
from vkml import InferenceSession, IOBinding, OrtValue, RunOptions
from vkml.engine.device_array import DeviceArray
from vkml.engine.sketch import Sketch
from vkml.errors import Fail, InvalidArgument, UnknownOption

Array = np.ndarray[Any, Any]
SECOND = "output_1"
"""2 x."""


def softmax_and_double() -> bytes:
    """softmax(2 x) and 2 x, for x of [n, 5]."""
    sketch = Sketch("both", 17)
    x = sketch.input("x", ("n", 5))
    z = sketch.node("Mul", x, sketch.constant(np.array(2, np.float32)))
    return vkml.onnx.save_graph(sketch.finish(sketch.node("Softmax", z), z))


def expected(x: Array) -> tuple[Array, Array]:
    shifted = np.exp(2 * x - (2 * x).max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True), 2 * x


def numbers(n: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)


@pytest.fixture
def session(device_name: str) -> Any:
    with InferenceSession(softmax_and_double(), devices=device_name) as made:
        yield made


def names(session: InferenceSession) -> list[str]:
    return [value.name for value in session.get_outputs()]


def place_of(device_name: str) -> str:
    return device_name if device_name.startswith("vulkan") else "cpu"


def test_values_know_what_they_are(device_name: str) -> None:
    place = place_of(device_name)
    for dtype in (np.float32, np.float16, np.int64, np.bool_, np.uint8):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        value = OrtValue.ortvalue_from_numpy(array.copy(), place)
        assert value.shape() == [2, 3] and value.device_name() == place
        assert value.data_type() == {"b": "tensor(bool)"}.get(array.dtype.kind, value.data_type())
        assert value.element_type() == OrtValue.ortvalue_from_numpy(array).element_type()
        np.testing.assert_array_equal(value.numpy(), array)
        np.testing.assert_array_equal(np.from_dlpack(value), array)
        np.testing.assert_array_equal(np.asarray(value), array)
        value.update_inplace(array[::-1].copy())
        np.testing.assert_array_equal(value.numpy(), array[::-1])
        assert value.is_tensor() and value.has_value() and value.data_ptr()
        assert not value.is_sparse_tensor() and not value.is_tensor_sequence()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_values_of_all_ranks_and_none_at_all(device_name: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    value = OrtValue.ortvalue_from_numpy(array, place_of(device_name))
    assert value.shape() == list(shape) and value.numpy().shape == shape
    made = OrtValue.ortvalue_from_shape_and_type(shape, np.int32, place_of(device_name))
    assert made.shape() == list(shape) and made.data_type() == "tensor(int32)"


KNOWN_GAPS = {"as_sparse_tensor", "ort_value_from_sparse_tensor"}
"""vkml has no sparse tensors."""


@pytest.mark.parametrize("kind", ["IOBinding", "OrtValue"])
def test_what_onnxruntime_has_is_there_under_its_name(kind: str) -> None:
    """With the same parameters, but for those that say which allocator of onnxruntime's to use."""
    mine, theirs = getattr(vkml, kind), getattr(onnxruntime, kind)
    names = {name for name in dir(theirs) if not name.startswith("_")} - KNOWN_GAPS
    assert names - set(dir(mine)) == set()
    for name in names:
        wanted = list(inspect.signature(getattr(theirs, name)).parameters)
        found = list(inspect.signature(getattr(mine, name)).parameters)
        assert len(found) >= len([each for each in wanted if each not in ("vendor_id", "memory_info")]), name


def test_values_of_other_packages_arrays_share_their_memory() -> None:
    array = numbers(2)
    for source in (
        array,
        OrtValue.ortvalue_from_numpy(array),
        onnxruntime.OrtValue.ortvalue_from_numpy(array),
    ):
        value = OrtValue.from_dlpack(source)
        assert value.data_ptr() == array.ctypes.data and value.shape() == [2, 5]
        assert value.data_type() == "tensor(float)"
    truths = OrtValue.from_dlpack(onnxruntime.OrtValue.ortvalue_from_numpy(np.array([True, False])))
    assert truths.data_type() == "tensor(bool)" and truths.numpy().tolist() == [True, False]
    np.testing.assert_array_equal(np.from_dlpack(OrtValue.from_dlpack(array.T)), array.T)
    capsule = OrtValue.from_dlpack(array.__dlpack__())
    assert capsule.data_ptr() == array.ctypes.data
    for wrong in ([1.0], None):
        with pytest.raises(InvalidArgument, match="__dlpack__"):
            OrtValue.from_dlpack(wrong)


def test_a_value_of_a_device_is_read_by_other_packages(device_name: str) -> None:
    array = numbers(3)
    value = OrtValue.ortvalue_from_numpy(array.copy(), place_of(device_name))
    found = onnxruntime.OrtValue.from_dlpack(value)
    np.testing.assert_array_equal(found.numpy(), array)
    assert value.__dlpack_device__() == (1, 0)


def test_numbers_by_their_code() -> None:
    array = np.array([[0x3F80, 0x4000]], np.uint16)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(array, onnx.TensorProto.BFLOAT16)
    assert value.data_type() == "tensor(bfloat16)" and value.data_ptr() == array.ctypes.data
    assert value.numpy().astype(np.float32).tolist() == [[1.0, 2.0]]
    for wrong in (onnx.TensorProto.FLOAT, onnx.TensorProto.STRING):
        with pytest.raises(InvalidArgument, match="16 bits"):
            OrtValue.ortvalue_from_numpy_with_onnx_type(array, wrong)


def test_bytes_of_a_value(device_name: str) -> None:
    for shape, dtype, count in (((3, 5), np.float32, 60), ((0,), np.int64, 0), ((7,), ml_dtypes.int4, 7)):
        value = OrtValue.ortvalue_from_shape_and_type(shape, dtype, place_of(device_name))
        assert value.tensor_size_in_bytes() == count


def test_values_are_overwritten_by_values(device_name: str) -> None:
    place = place_of(device_name)
    for source_place in (place, "cpu"):
        target = OrtValue.ortvalue_from_shape_and_type((2, 5), np.float32, place)
        source = OrtValue.ortvalue_from_numpy(numbers(2), source_place)
        at = target.data_ptr()
        target.update_inplace(source)
        assert target.data_ptr() == at != source.data_ptr()
        np.testing.assert_array_equal(target.numpy(), numbers(2))
        for wrong in (numbers(3), numbers(2).astype(np.float16)):
            with pytest.raises(InvalidArgument, match="the value is"):
                target.update_inplace(OrtValue.ortvalue_from_numpy(wrong, source_place))


def test_an_array_on_the_cpu_is_the_value() -> None:
    array = numbers(2)
    value = OrtValue.ortvalue_from_numpy(array)
    array[0, 0] = 7
    assert value.numpy() is array and value.numpy()[0, 0] == 7


def test_wrong_arguments_are_named(device_name: str) -> None:
    for device in ("tpu", "vulkan:77", 3):
        with pytest.raises((InvalidArgument, vkml.NoDevice), match="device"):
            OrtValue.ortvalue_from_numpy(numbers(1), device)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="negative"):
        OrtValue.ortvalue_from_shape_and_type([-1], np.float32)
    value = OrtValue.ortvalue_from_numpy(numbers(1), place_of(device_name))
    for wrong in (numbers(2), np.zeros((1, 5)), [[1, 2, 3, 4, 5]]):
        with pytest.raises(InvalidArgument, match="the value is"):
            value.update_inplace(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("repeats", [1, 3])
def test_bound_values_are_read_and_written(session: InferenceSession, device_name: str, repeats: int) -> None:
    place = place_of(device_name)
    x = OrtValue.ortvalue_from_numpy(numbers(4), place)
    made = [OrtValue.ortvalue_from_shape_and_type((4, 5), np.float32, place) for _ in range(2)]
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    for name, value in zip(names(session), made, strict=True):
        binding.bind_ortvalue_output(name, value)
    for seed in range(repeats):
        x.update_inplace(numbers(4, seed))
        session.run_with_iobinding(binding)
        for value, result, wanted in zip(
            made, binding.get_outputs(), expected(numbers(4, seed)), strict=True
        ):
            assert result.data_ptr() == value.data_ptr()
            np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5)
    if place != "cpu":
        assert binding.repeat is not None, "values on a device go the short way"


def test_fresh_outputs_are_fresh(session: InferenceSession, device_name: str) -> None:
    binding = session.io_binding()
    for name in names(session):
        binding.bind_output(name, place_of(device_name))
    kept = []
    for n in (3, 4, 4, 7):
        binding.bind_cpu_input("x", numbers(n, n))
        session.run_with_iobinding(binding)
        kept.append((n, binding.get_outputs()))
    for n, values in kept:
        for value, wanted in zip(values, expected(numbers(n, n)), strict=True):
            np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5)


def test_arrays_of_the_host_are_read_and_written_at_each_run(session: InferenceSession) -> None:
    x, first, second = numbers(4), np.zeros((4, 5), np.float32), np.zeros((4, 5), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    one, two = names(session)
    binding.bind_output(one, "cpu", 0, np.float32, first.shape, first.ctypes.data)
    binding.bind_ortvalue_output(two, OrtValue.ortvalue_from_numpy(second))
    for seed in range(3):
        x[...] = numbers(4, seed)
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(first, expected(x)[0], rtol=1e-5)
        np.testing.assert_allclose(second, expected(x)[1], rtol=1e-5)
        copies = binding.copy_outputs_to_cpu()
        assert not any(np.shares_memory(copy, array) for copy in copies for array in (first, second))


def test_an_output_may_take_the_place_of_an_input(session: InferenceSession, device_name: str) -> None:
    place, array = place_of(device_name), numbers(4)
    x = OrtValue.ortvalue_from_numpy(array.copy(), place)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output(SECOND, x)
    for _ in range(3):
        session.run_with_iobinding(binding)
        array = 2 * array
        np.testing.assert_allclose(x.numpy(), array, rtol=1e-6)


def test_results_go_round_on_the_device(session: InferenceSession, device_name: str) -> None:
    """As keys and values do from token to token."""
    place, array = place_of(device_name), numbers(3)
    value = OrtValue.ortvalue_from_numpy(array, place)
    binding = session.io_binding()
    binding.bind_output(SECOND, place)
    for _ in range(5):
        binding.bind_ortvalue_input("x", value)
        session.run_with_iobinding(binding)
        [value] = binding.get_outputs()
        array = 2 * array
    np.testing.assert_allclose(value.numpy(), array, rtol=1e-6)
    assert value.device_name() == place


def test_memory_by_its_address(session: InferenceSession, device_name: str) -> None:
    place = place_of(device_name)
    x = OrtValue.ortvalue_from_numpy(numbers(2), place)
    z = OrtValue.ortvalue_from_shape_and_type((2, 5), np.float32, place)
    binding = session.io_binding()
    binding.bind_input("x", place, 0, np.float32, (2, 5), x.data_ptr())
    binding.bind_output(SECOND, place, 0, 1, (2, 5), z.data_ptr())
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(z.numpy(), 2 * numbers(2))
    if place != "cpu":
        with pytest.raises(InvalidArgument, match="no value of"):
            binding.bind_input("x", place, 0, np.float32, (2, 5), x.data_ptr() + 4)


def test_outputs_that_are_inputs_or_constants(device_name: str) -> None:
    sketch = Sketch("odd", 17)
    x = sketch.input("x", (2, 3))
    constant = sketch.constant(np.arange(3, dtype=np.float32))
    data = vkml.onnx.save_graph(sketch.finish(x, sketch.node("Identity", constant), sketch.node("Neg", x)))
    place = place_of(device_name)
    with InferenceSession(data, devices=device_name) as session:
        array = np.ones((2, 3), np.float32)
        given = OrtValue.ortvalue_from_numpy(array.copy(), place)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", given)
        for name in names(session):
            binding.bind_output(name, place)
        for _ in range(2):
            session.run_with_iobinding(binding)
            found = [value.numpy() for value in binding.get_outputs()]
            for value, wanted in zip(found, (array, np.arange(3), -array), strict=True):
                np.testing.assert_array_equal(value, wanted)
        given.update_inplace(np.zeros((2, 3), np.float32))
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), array)


def test_nodes_on_the_cpu_between_values_on_a_device(vulkan_device_name: str) -> None:
    sketch = Sketch("mixed", 17)
    x = sketch.input("x", ("n", 6))
    y = sketch.node("Relu", x)
    cosine = sketch.node("Cos", sketch.node("Cast", y, to=11))  # of doubles there is none there
    z = sketch.node("Cast", cosine, to=1)
    data = vkml.onnx.save_graph(sketch.finish(sketch.node("Neg", z), y))
    array = numbers(4)[:, :1] * np.arange(6, dtype=np.float32)
    options = vkml.SessionOptions(log_severity_level=4)
    reference = InferenceSession(data, devices="cpu")
    with InferenceSession(data, options, devices=vulkan_device_name) as session:
        assert session.report({"n": 4}).fallbacks
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(array, vulkan_device_name))
        for name in names(session):
            binding.bind_output(name, vulkan_device_name)
        session.run_with_iobinding(binding)
        for value, wanted in zip(binding.get_outputs(), reference.run(None, {"x": array}), strict=True):
            np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_sizes_that_depend_on_data(device_name: str) -> None:
    sketch = Sketch("nonzero", 17)
    x = sketch.input("x", ("n",))
    found = sketch.node("NonZero", x)
    data = vkml.onnx.save_graph(sketch.finish(found, sketch.node("Neg", sketch.node("Shape", found))))
    place = place_of(device_name)
    with InferenceSession(data, devices=device_name) as session:
        binding = session.io_binding()
        for array in (np.array([0, 1, 0, 2], np.float32), np.array([3, 1, 0, 2], np.float32)):
            binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(array, place))
            for name in names(session):
                binding.bind_output(name, place)
            session.run_with_iobinding(binding)
            first, second = binding.get_outputs()
            np.testing.assert_array_equal(first.numpy(), np.array(np.nonzero(array)))
            assert second.numpy().tolist() == [-1, -int((array != 0).sum())]


def test_what_is_not_bound_or_does_not_fit_is_named(session: InferenceSession, device_name: str) -> None:
    place = place_of(device_name)
    binding = session.io_binding()
    with pytest.raises(InvalidArgument, match="no output is bound"):
        session.run_with_iobinding(binding)
    binding.bind_output(SECOND, place)
    with pytest.raises(InvalidArgument, match="missing \\['x'\\]"):
        session.run_with_iobinding(binding)
    with pytest.raises(InvalidArgument, match="no input 'y'"):
        binding.bind_cpu_input("y", numbers(1))
    with pytest.raises(InvalidArgument, match="no output 'x'"):
        binding.bind_output("x")
    with pytest.raises(InvalidArgument, match="OrtValue"):
        binding.bind_ortvalue_input("x", numbers(1))  # type: ignore[arg-type]
    for wrong, words in (((4, 6), "shape"), ((5,), "shape")):
        value = OrtValue.ortvalue_from_shape_and_type(wrong, np.float32, place)
        binding.bind_ortvalue_input("x", value)
        with pytest.raises(InvalidArgument, match=words):
            session.run_with_iobinding(binding)
    binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_shape_and_type((4, 5), np.float64, place))
    with pytest.raises(InvalidArgument, match="takes float32"):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("x", numbers(4))
    for shape, dtype in (((3, 5), np.float32), ((4, 5), np.float16)):
        binding.bind_ortvalue_output(SECOND, OrtValue.ortvalue_from_shape_and_type(shape, dtype, place))
        with pytest.raises(InvalidArgument, match="output 'output_1' is float32"):
            session.run_with_iobinding(binding)
    value = OrtValue.ortvalue_from_shape_and_type((4, 5), np.float32, place)
    binding.bind_ortvalue_output(SECOND, value)
    with pytest.raises(InvalidArgument, match="another output"):
        binding.bind_ortvalue_output(names(session)[0], value)
    other = InferenceSession(softmax_and_double(), devices="cpu")
    with other, pytest.raises(InvalidArgument, match="of this session"):
        other.run_with_iobinding(binding)


def test_clearing_and_binding_anew(session: InferenceSession, device_name: str) -> None:
    place = place_of(device_name)
    binding = IOBinding(session)
    z = OrtValue.ortvalue_from_shape_and_type((4, 5), np.float32, place)
    binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(numbers(4), place))
    binding.bind_ortvalue_output(SECOND, z)
    session.run_with_iobinding(binding)
    binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(numbers(4, 5), place))
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(z.numpy(), 2 * numbers(4, 5))
    binding.clear_binding_outputs()
    assert binding.get_outputs() == []
    binding.clear_binding_inputs()
    binding.bind_output(SECOND)
    with pytest.raises(InvalidArgument, match="missing"):
        session.run_with_iobinding(binding)


def test_a_short_way_ends_with_its_plan(vulkan_device_name: str) -> None:
    """Plans that leave the cache, memory made larger for open sizes, a session that is closed."""
    with InferenceSession(softmax_and_double(), devices=vulkan_device_name) as session:
        bindings = []
        for n in (4, 300, 40, 6, 2000, 7, 8, 9, 10, 11, 12, 13, 14, 15):
            binding = session.io_binding()
            binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(numbers(n, n), vulkan_device_name))
            for name in names(session):
                value = OrtValue.ortvalue_from_shape_and_type((n, 5), np.float32, vulkan_device_name)
                binding.bind_ortvalue_output(name, value)
            session.run_with_iobinding(binding)
            bindings.append((n, binding))
        for _ in range(2):
            for n, binding in bindings:
                for value in binding.get_outputs():
                    value.update_inplace(np.zeros((n, 5), np.float32))
                session.run_with_iobinding(binding)
                for value, wanted in zip(binding.get_outputs(), expected(numbers(n, n)), strict=True):
                    np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5)
    with pytest.raises(Fail, match="closed"):
        session.run_with_iobinding(bindings[-1][1])


def test_memory_of_values_takes_turns(vulkan_device_name: str) -> None:
    from vkml.engine.ort_value import device_of

    device = device_of(vulkan_device_name)
    assert device is not None
    first = DeviceArray(device, vkml.ir.dtypes.FLOAT32, (1000, 1000))
    address = first.address
    del first
    gc.collect()
    before = device.allocated_bytes
    for _ in range(20):
        value = DeviceArray(device, vkml.ir.dtypes.FLOAT32, (1000, 1000))
        assert value.address == address
        del value
    assert device.allocated_bytes <= before  # less where another test's threads have just let go of something


def test_runs_with_values_and_runs_in_another_thread(session: InferenceSession, device_name: str) -> None:
    x = OrtValue.ortvalue_from_numpy(numbers(4), place_of(device_name))
    first, second = session.run_with_ort_values(None, {"x": x})
    assert first.device_name() == "cpu"
    np.testing.assert_allclose(second.numpy(), 2 * numbers(4))
    [only] = session.run_with_ort_values([SECOND], {"x": x})
    np.testing.assert_allclose(only.numpy(), 2 * numbers(4))
    with pytest.raises(InvalidArgument, match="OrtValue"):
        session.run_with_ort_values(None, {"x": numbers(4)})  # type: ignore[dict-item]

    done, told = threading.Semaphore(0), []

    def callback(results: list[Array], data: Any, error: str) -> None:
        told.append((results, data, error))
        done.release()

    session.run_async([SECOND], {"x": numbers(4)}, callback, "mine")
    assert done.acquire(timeout=patience(60))
    session.run_async(None, {"x": numbers(4).astype(np.float64)}, callback)
    assert done.acquire(timeout=patience(60))
    (results, data, error), (nothing, _, failure) = told
    np.testing.assert_allclose(results[0], 2 * numbers(4))
    assert (data, error, nothing) == ("mine", "", []) and "takes float32" in failure
    with pytest.raises(InvalidArgument, match="callback"):
        session.run_async(None, {}, None)  # type: ignore[arg-type]


def test_options_of_runs(session: InferenceSession) -> None:
    options = RunOptions(logid="mine")
    assert options.run_tag == "mine"
    session.run(None, {"x": numbers(1)}, options)
    options.terminate = True
    with pytest.raises(Fail, match="terminate"):
        session.run(None, {"x": numbers(1)}, options)
    with pytest.raises(UnknownOption, match="did you mean 'terminate'"):
        options.terminat = True  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match="inference"):
        options.training_mode = True
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"


def test_sequences_and_optionals_stay_on_the_host(device_name: str) -> None:
    text = """
    g (seq(float[n]) s, float[4] x, optional(float[4]) o) =>
        (seq(float[n]) t, float[4] y, optional(float[4]) p) {
      y = Neg(x)
      t = SequenceInsert(s, y)
      p = Identity(o)
    }"""
    session = vkml.InferenceSession(control_model(text), devices=device_name)
    x = np.arange(4, dtype=np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", vkml.OrtValue.ortvalue_from_numpy(x, device_name))
    binding.bind_cpu_input("s", [x])  # type: ignore[arg-type]
    binding.bind_cpu_input("o", None)  # type: ignore[arg-type]
    for name in "typ":
        binding.bind_output(name, device_name if name == "y" else "cpu")
    session.run_with_iobinding(binding)
    t, y, p = binding.get_outputs()
    assert t.is_tensor_sequence() and not t.is_tensor() and t.data_type() == "seq(tensor(float))"
    assert y.is_tensor() and y.device_name() == device_name
    assert not p.has_value()
    with pytest.raises(vkml.InvalidArgument, match="no tensor but a sequence"):
        t.numpy()
    copied = binding.copy_outputs_to_cpu()
    assert [array.tolist() for array in copied[0]] == [x.tolist(), (-x).tolist()]
    assert copied[1].tolist() == (-x).tolist() and copied[2] is None
    if device_name != "cpu":
        binding.bind_output("t", device_name)
        with pytest.raises(vkml.InvalidArgument, match="'t' is a sequence or an optional"):
            session.run_with_iobinding(binding)


def test_an_input_that_is_an_output_is_read_before_its_memory_is_written(device_name: str) -> None:
    """The sum is bound to the memory of x, and x itself is an output, asked for behind it."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3))
    total = onnx.helper.make_tensor_value_info("total", onnx.TensorProto.FLOAT, (2, 3))
    add = onnx.helper.make_node("Add", ["x", "x"], ["total"])
    graph = onnx.helper.make_graph([add], "both", [x], [total, x])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    place, array = place_of(device_name), np.arange(6, dtype=np.float32).reshape(2, 3)
    with InferenceSession(model.SerializeToString(), devices=device_name) as session:
        for bound in (place, "cpu"):
            value = OrtValue.ortvalue_from_numpy(array.copy(), place)
            binding = session.io_binding()
            binding.bind_ortvalue_input("x", value)
            binding.bind_ortvalue_output("total", value)
            binding.bind_output("x", bound)
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(value.numpy(), 2 * array)
            np.testing.assert_array_equal(binding.get_outputs()[1].numpy(), array)


def test_an_update_is_computed_where_the_value_lies(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """w − rate × gradient over w, at each run anew; nothing is copied, no other memory is taken."""
    sketch = Sketch("update", 17)
    w, gradient = sketch.input("w", ("n", 5)), sketch.input("gradient", ("n", 5))
    step = sketch.node("Mul", gradient, sketch.constant(np.array(0.5, np.float32)))
    model = vkml.onnx.save_graph(sketch.finish(sketch.node("Sub", w, step)))
    monkeypatch.setattr(DeviceArray, "copy_from", lambda *_: pytest.fail("copied"))
    with InferenceSession(model, devices=vulkan_device_name) as session:
        for rows in (3, 7, 1000, 7):
            start, change = numbers(rows), numbers(rows, 1)
            value = OrtValue.ortvalue_from_numpy(start, vulkan_device_name)
            slope = OrtValue.ortvalue_from_numpy(change, vulkan_device_name)
            binding = session.io_binding()
            binding.bind_ortvalue_input("w", value)
            binding.bind_ortvalue_input("gradient", slope)
            binding.bind_ortvalue_output(names(session)[0], value)
            for runs in range(1, 4):
                session.run_with_iobinding(binding)
                np.testing.assert_allclose(value.numpy(), start - 0.5 * runs * change, rtol=1e-5, atol=1e-6)
            assert binding.get_outputs()[0].data_ptr() == value.data_ptr()


@pytest.mark.parametrize("kind", ["list", "other byte order", "another shape"])
def test_inputs_that_become_other_arrays_are_read_at_each_run(
    session: InferenceSession, device_name: str, kind: str
) -> None:
    place, array = place_of(device_name), numbers(4)
    given: Any = array.tolist() if kind == "list" else array.copy()
    if kind == "other byte order":
        given = array.astype(">f4")
    binding = session.io_binding()
    binding.bind_cpu_input("x", given)
    for name in names(session):
        binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_shape_and_type((4, 5), np.float32, place))
    session.run_with_iobinding(binding)
    if kind == "another shape":
        given.resize((1, 5), refcheck=False)
        with pytest.raises(InvalidArgument, match="is float32\\[1, 5\\]"):
            session.run_with_iobinding(binding)
        return
    for row in given:
        row[0] = 3
    session.run_with_iobinding(binding)
    array[:, 0] = 3
    for value, wanted in zip(binding.get_outputs(), expected(array), strict=True):
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5)


def test_texts_have_no_place_on_a_device(
    vulkan_device_name: str, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(InvalidArgument, match="strings live on the CPU"):
        OrtValue.ortvalue_from_numpy(np.array(["a"], object), vulkan_device_name)
    gc.collect()
    assert not [str(each.message) for each in recwarn]


def test_whatever_fails_in_another_thread_is_told(
    session: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> Any:
        raise ValueError("of nobody's")

    monkeypatch.setattr(session, "run", fails)
    told: list[tuple[Any, ...]] = []
    done = threading.Event()
    session.run_async(None, {"x": numbers(1)}, lambda *found: (told.append(found), done.set()))
    assert done.wait(timeout=patience(60))
    assert told[0][0] == [] and "of nobody's" in told[0][2]
