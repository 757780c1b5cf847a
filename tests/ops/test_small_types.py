"""Types that ml_dtypes adds to NumPy's: what moves elements takes all of them, what computes bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import defs

from tests.ops.checking import Array, inferred_types, run_operator
from vkml.errors import InvalidGraph
from vkml.ir import Constant, DType, dtypes
from vkml.ir.operator import REGISTRY
from vkml.ops.pointwise import Pointwise

SMALL = [dtype for dtype in dtypes.ALL if not dtype.is_native]


def elements(dtype: DType, *shape: int) -> Array:
    """Distinct elements, as far as the type has so many, none of them NaN or zero's twin."""
    found = np.arange(1 << min(dtype.bits, 8)).astype(np.uint16 if dtype.bits == 16 else np.uint8)
    if dtype == dtypes.BFLOAT16:
        found = (found << 6) + 0x3000
    codes = found.view(dtype.storage)
    codes = codes[(codes == codes) & (codes.astype(np.float32) != 0)]
    return np.resize(codes, shape)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


ELSEWHERE = {"BitCast", "Cast", "CastLike", "DequantizeLinear", "QuantizeLinear", "Shape", "Size"}
"""What makes elements of another type of them."""
MOVEMENTS: dict[str, tuple[list[tuple[int, ...] | Array], dict[str, Any]]] = {
    "CenterCropPad": ([(3, 4), ints(5, 2)], {}),
    "Compress": ([(3, 4), np.array([True, False, True])], {"axis": 0}),
    "Concat": ([(2, 3), (2, 1)], {"axis": 1}),
    "DepthToSpace": ([(1, 4, 2, 3)], {"blocksize": 2}),
    "Expand": ([(3, 1), ints(2, 1, 5)], {}),
    "Flatten": ([(2, 3, 2)], {}),
    "Gather": ([(3, 4), ints(2, -1)], {"axis": 1}),
    "GatherElements": ([(3, 4), np.array([[1, -1], [0, 2]])], {"axis": 1}),
    "GatherND": ([(3, 4), np.array([[1], [2]])], {}),
    "Identity": ([(3,)], {}),
    "OneHot": ([ints(0, 2), ints(3), (2,)], {}),
    "Pad": ([(2, 3), ints(1, 0, 0, 2), ()], {}),
    "Reshape": ([(2, 3), ints(3, -1)], {}),
    "ReverseSequence": ([(3, 2), ints(1, 3)], {}),
    "ScatterElements": ([(3, 2), np.array([[1, 0]]), (1, 2)], {}),
    "ScatterND": ([(3, 2), np.array([[1]]), (1, 2)], {}),
    "Slice": ([(5, 3), ints(4), ints(0), ints(0), ints(-2)], {}),
    "SpaceToDepth": ([(1, 1, 4, 2)], {"blocksize": 2}),
    "Split": ([(5, 2)], {"axis": 0}),
    "Squeeze": ([(1, 3, 1)], {}),
    "TensorScatter": ([(2, 4, 1), (2, 2, 1), ints(1, 2)], {"axis": 1}),
    "Tile": ([(2, 1), ints(2, 3)], {}),
    "Transpose": ([(2, 3, 2)], {"perm": (2, 0, 1)}),
    "Trilu": ([(3, 4)], {}),
    "Unsqueeze": ([(3,), ints(0)], {}),
    "Where": ([np.array([[True], [False]]), (2, 3), (3,)], {}),
}


@pytest.mark.parametrize("dtype", SMALL, ids=str)
@pytest.mark.parametrize("op", MOVEMENTS)
def test_elements_are_moved_whatever_they_are(op: str, dtype: DType) -> None:
    """As the operator moves float32, whose moves other tests compare with onnxruntime's."""
    if dtype == dtypes.FLOAT8E8M0 and op in ("CenterCropPad", "Trilu"):
        return  # it has no zero to put there
    stated, attributes = MOVEMENTS[op]
    inputs = [found if isinstance(found, np.ndarray) else elements(dtype, *found) for found in stated]
    outputs = 2 if op == "Split" else 1
    wide = [x.astype(np.float32) if x.dtype == dtype.storage else x for x in inputs]
    expected = run_operator(op, wide, attributes, opset=25, outputs=outputs)
    found = run_operator(op, inputs, attributes, opset=25, outputs=outputs)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == dtype.storage
        np.testing.assert_array_equal(mine, theirs.astype(dtype.storage))


def test_every_operator_that_may_move_small_types_is_tested() -> None:
    for (domain, op), spec in REGISTRY.items():
        if domain or op in ELSEWHERE or not defs.has(op) or spec.stands_alone:
            continue  # what stands alone hands whole values on
        schema = defs.get_schema(op)
        if not schema.inputs:
            continue
        variable = schema.inputs[0].type_str
        allowed = [c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable]
        if any("tensor(int4)" in types for types in allowed):
            assert op in MOVEMENTS, spec


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_fills(dtype: DType) -> None:
    one = elements(dtype, 1)
    fill = Constant(dtype, (1,), one)
    [found] = run_operator("ConstantOfShape", [ints(2, 3)], {"value": fill}, opset=25)
    np.testing.assert_array_equal(found, np.resize(one, (2, 3)))
    x = elements(dtype, 2, 3)
    [eye] = run_operator("EyeLike", [x], {"k": 1}, opset=25)
    assert eye.dtype == dtype.storage
    np.testing.assert_array_equal(eye.astype(np.float32) == 1, np.eye(2, 3, 1, dtype=bool))
    [constant] = run_operator("Constant", [], {"value": Constant(dtype, x.shape, x)}, opset=25)
    assert constant.dtype == dtype.storage
    np.testing.assert_array_equal(constant, x)
    [padded] = run_operator("Pad", [x, ints(0, 1, 0, 0), one[0]], opset=25)
    np.testing.assert_array_equal(padded[:, 0], np.resize(one, 2))


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_sizes_are_looked_at_whatever_the_type(dtype: DType) -> None:
    x = elements(dtype, 2, 3)
    assert run_operator("Shape", [x], opset=25)[0].tolist() == [2, 3]
    assert run_operator("Size", [x], opset=25)[0] == 6


@pytest.mark.parametrize("dtype", [dtypes.FLOAT8E4M3FN, dtypes.INT4, dtypes.UINT2], ids=str)
def test_what_computes_refuses(dtype: DType) -> None:
    x = elements(dtype, 2, 3)
    for op, inputs, attributes in (
        ("Add", [x, x], {}),
        ("ReduceSum", [x], {}),
        ("Softmax", [x], {}),
        ("MatMul", [x, x.T], {}),
        ("ScatterElements", [x, np.zeros((2, 3), np.int64), x], {"reduction": "add"}),
        ("ScatterND", [x, np.zeros((2, 1), np.int64), x], {"reduction": "max"}),
    ):
        with pytest.raises(InvalidGraph, match=dtype.name):
            inferred_types(op, inputs, attributes, opset=25)


IMAGE, KERNEL, VECTOR = (2, 4, 6, 5), (4, 4, 3, 3), (4,)
BFLOAT16 = dtypes.BFLOAT16.storage

COMPUTATIONS: dict[str, tuple[list[tuple[int, ...] | Array | None], dict[str, Any]]] = {
    "AffineGrid": ([(2, 2, 3), ints(2, 1, 3, 4)], {}),
    "ArgMax": ([(3, 40)], {"axis": 1}),
    "ArgMin": ([(3, 40)], {"axis": 1}),
    "AveragePool": ([IMAGE], {"kernel_shape": (2, 2)}),
    "BatchNormalization": ([IMAGE, VECTOR, VECTOR, VECTOR, VECTOR], {}),
    "Clip": ([(3, 4), np.array(-0.5, BFLOAT16), np.array(0.5, BFLOAT16)], {}),
    "SoftmaxCrossEntropyLoss": ([(3, 4), ints(1, 0, 3)], {}),
    "Col2Im": ([(1, 4, 4), ints(3, 3), ints(2, 2)], {}),
    "Conv": ([IMAGE, KERNEL, VECTOR], {}),
    "ConvTranspose": ([IMAGE, KERNEL, VECTOR], {}),
    "CumProd": ([(3, 4), np.array(0)], {}),
    "CumSum": ([(3, 4), np.array(0)], {}),
    "Attention": ([(1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8)], {}),
    "CausalConvWithState": ([(1, 3, 6), (3, 1, 4)], {}),
    "DFT": ([(1, 8, 1), None, ints(1)[0]], {}),
    "DeformConv": ([IMAGE, (4, 4, 3, 3), (2, 18, 4, 3)], {}),
    "Det": ([(2, 3, 3)], {}),
    "Einsum": ([(3, 4), (4, 2)], {"equation": "ij,jk->ik"}),
    "GRU": ([(3, 2, 4), (1, 15, 4), (1, 15, 5)], {"hidden_size": 5}),
    "Gemm": ([(3, 4), (4, 2), (2,)], {"alpha": 0.5}),
    "GridSample": ([IMAGE, (2, 3, 3, 2)], {}),
    "GroupNormalization": ([IMAGE, VECTOR, VECTOR], {"num_groups": 2}),
    "InstanceNormalization": ([IMAGE, VECTOR, VECTOR], {}),
    "LRN": ([IMAGE], {"size": 3}),
    "LSTM": ([(3, 2, 4), (1, 20, 4), (1, 20, 5)], {"hidden_size": 5}),
    "LayerNormalization": ([(3, 4), VECTOR, VECTOR], {}),
    "LpPool": ([IMAGE], {"kernel_shape": (2, 2)}),
    "MatMul": ([(2, 3, 4), (4, 5)], {}),
    "MaxPool": ([IMAGE], {"kernel_shape": (2, 2)}),
    "MaxRoiPool": ([IMAGE, np.array([[0, 0, 0, 3, 3]], BFLOAT16)], {"pooled_shape": (2, 2)}),
    "MaxUnpool": ([(1, 1, 1, 2), np.array([[[[1, 5]]]])], {"kernel_shape": (2, 2)}),
    "MeanVarianceNormalization": ([IMAGE], {}),
    "Mod": ([(3, 4), (3, 4)], {"fmod": 1}),
    "NegativeLogLikelihoodLoss": ([(3, 4), ints(1, 0, 3)], {}),
    "RNN": ([(3, 2, 4), (1, 5, 4), (1, 5, 5)], {"hidden_size": 5}),
    "RMSNormalization": ([(3, 4), VECTOR], {}),
    "Range": ([np.array(1, BFLOAT16), np.array(9, BFLOAT16), np.array(0.75, BFLOAT16)], {}),
    "Resize": ([IMAGE, None, np.array([1, 1, 2, 0.5], np.float32)], {"mode": "linear"}),
    "RoiAlign": ([IMAGE, np.array([[0, 0, 3, 3]], BFLOAT16), ints(1)], {}),
    "STFT": ([(1, 16, 1), ints(4)[0], (8,)], {}),
    "ScatterElements": ([(3, 4), np.array([[0, 0, 1, 1]]), (1, 4)], {"reduction": "add", "axis": 1}),
    "ScatterND": ([(3, 4), np.array([[0], [0]]), (2, 4)], {"reduction": "mul"}),
    "TopK": ([(3, 40), ints(4)], {}),
}
OUTPUTS = {"MaxPool": 2, "TopK": 2, "Unique": 4}
POSITIVE = {"Acosh", "BatchNormalization", "Log", "Pow", "ReduceLogSum", "Sqrt"}


def takes_bfloat16(op: str) -> bool:
    schema = defs.get_schema(op)
    variable = schema.inputs[0].type_str if schema.inputs else ""
    allowed = [c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable]
    return any("tensor(bfloat16)" in types for types in allowed)


DRAWN = {"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"}
ROUNDED_STEPS = {"LinearAttention", "RotaryEmbedding"}
"""Each step of ONNX's own body is rounded."""
ALIKE = {*MOVEMENTS, *ELSEWHERE, *DRAWN, *ROUNDED_STEPS, "EyeLike"}
"""What moves elements, or is tested elsewhere."""
COMPUTING = [
    op
    for (domain, op), spec in REGISTRY.items()
    if not domain and defs.has(op) and takes_bfloat16(op) and not spec.stands_alone
    if op in COMPUTATIONS or op not in ALIKE
]


@pytest.mark.parametrize("op", COMPUTING)
def test_bfloat16_is_computed_in_float32_and_rounded_once(op: str) -> None:
    """Exactly what float32 gives for the same numbers, rounded; float32's results are tested elsewhere."""
    spec, schema, random = REGISTRY["", op], defs.get_schema(op), np.random.default_rng(7)
    operands = min(spec.inputs[1], 2) if isinstance(spec, Pointwise) else 1
    stated, attributes = COMPUTATIONS.get(op, ([IMAGE] * operands, {}))
    inputs: list[Array | None] = []
    for found in stated:
        if isinstance(found, tuple):
            made = np.asarray(random.standard_normal(found))
            found = np.asarray(np.abs(made) if op in POSITIVE else made).astype(BFLOAT16)
        inputs.append(found)
    wide = [x.astype(np.float32) if x is not None and x.dtype == BFLOAT16 else x for x in inputs]
    opset, outputs = max(25, schema.since_version), OUTPUTS.get(op, 1)
    expected = run_operator(op, wide, attributes, opset=opset, outputs=outputs)
    results = run_operator(op, inputs, attributes, opset=opset, outputs=outputs)
    if schema.outputs[0].type_str == schema.inputs[0].type_str:
        assert results[0].dtype == BFLOAT16
    for mine, theirs in zip(results, expected, strict=True):
        assert mine.shape == theirs.shape
        assert mine.tobytes() == theirs.astype(mine.dtype).tobytes(), (mine, theirs)


def test_bfloat16_clips_to_its_own_largest_number() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1], BFLOAT16)
    [found] = run_operator("Clip", [x])
    largest = np.array(0x7F7F, np.uint16).view(BFLOAT16).astype(np.float32)
    np.testing.assert_array_equal(found.astype(np.float32), [largest, -largest, np.nan, 1])
