"""Weights of few bits stay so: products with them read what the model holds."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import vkml
from tests.cpu.native.epilogues import rounding_of_sums
from tests.quantized.few_bits import FewBits, Model, decoder_layer, random_weights
from vkml.cpu.native.executable import InstructionSet, has_byte_dots, instruction_set
from vkml.kernels import block_product

Array = np.ndarray[Any, Any]
needs_machine_code = pytest.mark.skipif(instruction_set() is None, reason="no machine code here")
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "4 bits": (200, 70, {}),
    "4 bits with zero points": (200, 70, {"has_zeros": True, "block": 16}),
    "2 bits": (64, 33, {"bits": 2, "has_zeros": True}),
    "8 bits": (130, 50, {"bits": 8, "block": 128, "has_zeros": True}),
    "4 bits of float16": (96, 40, {"dtype": np.float16}),
}


def rows_of(count: int, inner: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(count).standard_normal((count, inner)).astype(dtype)


def check_product(found: Array, x: Array, weights: FewBits, *, bias: Array | float = 0.0) -> None:
    """That a result is the product with the weights, rounded as float32 sums and the result's type are."""
    matrix, wide = weights.matrix, x.astype(np.float64)
    expected = wide @ matrix + bias
    size = {np.dtype(np.float32): 2.0**-24, np.dtype(np.float16): 2.0**-11}[found.dtype]
    bound = rounding_of_sums(wide, matrix) + 2 * size * (np.abs(expected) + np.abs(bias))
    if instruction_set() is None:  # the matrix is made of the result's type
        bound += size * (np.abs(wide) @ np.abs(matrix))
    assert (np.abs(found - expected) <= bound).all()


def steps_of(session: vkml.InferenceSession) -> list[tuple[tuple[str, ...], bool]]:
    """The operators of each step of the last plan, and whether it is machine code."""
    return [(tuple(step.operators), step.variant != "numpy") for step in session.report().steps]


@pytest.mark.parametrize("name", CASES)
def test_products_of_any_number_of_rows(name: str) -> None:
    inner, columns, how = CASES[name]
    weights, model = random_weights(inner, columns, **how), Model(inner, how.get("dtype", np.float32))
    session = vkml.InferenceSession(model.bytes(model.product("x", weights)), devices="cpu")
    for rows in (1, 3, 40):
        x = rows_of(rows, inner, how.get("dtype", np.float32))
        check_product(session.run(None, {"x": x})[0], x, weights)
    if instruction_set() is not None:
        assert (("MatMulNBits",), True) in steps_of(session)


@needs_machine_code
@pytest.mark.parametrize("rows", ["rows", 40])
@pytest.mark.parametrize("name", CASES)
def test_rows_may_be_rounded_where_the_model_allows_it(name: str, rows: Any) -> None:
    """As accuracy_level 4 says: to 127 steps of a block's greatest number."""
    inner, columns, how = CASES[name]
    dtype = how.get("dtype", np.float32)
    weights, model = random_weights(inner, columns, **how), Model(inner, dtype, rows=rows)
    data = model.bytes(model.product("x", weights, accuracy_level=4))
    session = vkml.InferenceSession(data, devices="cpu")
    block = how.get("block", 32)
    for count in (40, 1, 3, 40) if rows == "rows" else (40,):
        x = rows_of(count, inner, dtype)
        found = session.run(None, {"x": x})[0].astype(np.float64)
        wide = x.astype(np.float64)
        if instruction_set() is not InstructionSet.AVX512 or not has_byte_dots(InstructionSet.AVX512):
            check_product(found.astype(dtype), x, weights)
            continue
        rounded = np.zeros_like(wide)
        for first in range(0, inner, block):
            part = wide[:, first : first + block]
            step = np.abs(part).max(1, keepdims=True) / 127
            rounded[:, first : first + block] = np.rint(part / step) * step
        expected, exact = rounded @ weights.matrix, wide @ weights.matrix
        error, whole = np.abs(found - expected), np.abs(rounded - wide) @ np.abs(weights.matrix)
        size = 2.0**-10 if dtype == np.float16 else 2.0**-20
        # Where a number is between two steps either may be taken.
        assert (error <= size * (np.abs(wide) @ np.abs(weights.matrix)) + 0.02 * whole).all()
        assert (np.abs(found - exact) > 1e-3 * np.abs(exact)).any(), "nothing has been rounded"


@needs_machine_code
def test_strict_products_are_not_rounded() -> None:
    weights, model = random_weights(96, 40), Model(96, rows=40)
    data = model.bytes(model.product("x", weights, accuracy_level=4))
    x = rows_of(40, 96)
    with vkml.InferenceSession(data, devices="cpu", precision="highest") as session:
        check_product(session.run(None, {"x": x})[0], x, weights)


@pytest.mark.parametrize(("precision", "error"), [("highest", 2e-5), ("high", 2e-3)])
def test_products_on_a_device(vulkan_device_name: str, precision: str, error: float) -> None:
    """At high, GPUs round both operands to ten bits: 9e-4 of results up to 2.8 on an H200."""
    for inner, columns, how in CASES.values():
        dtype = how.get("dtype", np.float32)
        weights, model = random_weights(inner, columns, **how), Model(inner, dtype)
        bias = np.linspace(-1, 1, columns).astype(dtype)
        y = model.add("Relu", model.product("x", weights, bias))
        with vkml.InferenceSession(
            model.bytes(y), devices=vulkan_device_name, precision=precision
        ) as session:
            for rows in (1, 3, 20):
                x = rows_of(rows, inner, dtype)
                [found] = session.run(None, {"x": x})
                wide, matrix = x.astype(np.float64), weights.matrix
                expected = np.maximum(wide @ matrix + bias, 0)
                assert np.abs(found - expected).max() <= (error if dtype == np.float32 else 2e-2), (how, rows)
                kernels = [step.kernel for step in session.report({"rows": rows}).steps]
                if dtype == np.float32 and precision == "highest":  # SwiftShader lacks the other
                    assert kernels == (["block_product"] if rows < 9 else ["unpack_blocks", "matmul"])


def test_no_large_matrix_of_floats_is_made(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the last product of a language model: it would take gigabytes."""
    monkeypatch.setattr(block_product, "MOST_FLOAT_BYTES", 4 * 168 * 56 - 1)
    weights, model = random_weights(168, 56, has_zeros=True), Model(168)
    data = model.bytes(model.add("Relu", model.product("x", weights)))
    with vkml.InferenceSession(data, devices=vulkan_device_name) as session:
        for rows in (20, 33, 0):  # of known sizes, then of open ones
            x = rows_of(rows, 168)
            [found] = session.run(None, {"x": x})
            np.testing.assert_allclose(found, np.maximum(x @ weights.matrix, 0), atol=2e-5)
            kernels = [step.kernel for step in session.report({"rows": rows}).steps]
            assert kernels == (["block_product"] if rows else [])


@pytest.mark.parametrize("shape", [(2, 3), (0,), ()])
def test_rows_of_any_shape(shape: tuple[int, ...]) -> None:
    weights, model = random_weights(64, 40), Model(64)
    model.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * len(shape) + [64])
    session = vkml.InferenceSession(model.bytes(model.product("x", weights)), devices="cpu")
    x = np.random.default_rng(0).standard_normal((*shape, 64)).astype(np.float32)
    check_product(session.run(None, {"x": x})[0], x, weights)


@needs_machine_code
def test_what_follows_is_part_of_the_product() -> None:
    weights, bias = random_weights(64, 40), np.linspace(-1, 1, 40, dtype=np.float32)
    model = Model(64)
    y = model.add("Relu", model.product("x", weights, bias))
    session = vkml.InferenceSession(model.bytes(y), devices="cpu")
    x = rows_of(3, 64)
    [found] = session.run(None, {"x": x})
    np.testing.assert_allclose(found, np.maximum(x @ weights.matrix + bias, 0), rtol=1e-4, atol=1e-5)
    assert steps_of(session) == [(("MatMulNBits", "Relu"), True)]


@needs_machine_code
def test_rows_that_would_drive_one_another_from_the_cache_are_moved_apart() -> None:
    weights, model = random_weights(1024, 24), Model(1024)
    session = vkml.InferenceSession(model.bytes(model.product("x", weights)), devices="cpu")
    x = rows_of(30, 1024)
    check_product(session.run(None, {"x": x})[0], x, weights)


@needs_machine_code
@pytest.mark.parametrize("form", ["MatMulNBits", "DequantizeLinear"])
def test_weights_take_half_a_byte_each_once(form: str, tmp_path: Path) -> None:
    model, weights, path = Model(1024), random_weights(1024, 512), tmp_path / "model.onnx"
    write = model.product if form == "MatMulNBits" else model.dequantized_product
    path.write_bytes(model.bytes(write("x", weights)))
    expected = weights.codes.size // 2 + weights.scales.nbytes
    with vkml.InferenceSession(path, devices="cpu") as session:
        x = rows_of(1, 1024)
        tracemalloc.start()
        try:
            [found] = session.run(None, {"x": x})
            gc.collect()
            held = sum(
                trace.size
                for trace in tracemalloc.take_snapshot().traces
                if trace.size > weights.scales.nbytes // 2
            )
        finally:
            tracemalloc.stop()
        check_product(found, x, weights)
        assert session.report().memory["cpu"]["weights"] == expected
        assert steps_of(session) == [(("MatMulNBits",), True)]
    assert expected <= held < 1.05 * expected


def test_a_decoder_layer_agrees_with_onnxruntime() -> None:
    data, x = decoder_layer(5, 64, 4, 96), rows_of(5, 64)
    [expected] = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    [found] = vkml.InferenceSession(data, devices="cpu").run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_model_that_a_session_writes_has_few_bits_too(tmp_path: Path) -> None:
    model, weights, path = Model(256), random_weights(256, 96, has_zeros=True), tmp_path / "optimized.onnx"
    options = vkml.SessionOptions()
    options.optimized_model_filepath = str(path)
    vkml.InferenceSession(model.bytes(model.dequantized_product("x", weights)), options, devices="cpu")
    if instruction_set() is not None:
        assert path.stat().st_size < weights.codes.size
    x = rows_of(2, 256)
    [found] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    check_product(found, x, weights)
