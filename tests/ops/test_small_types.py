"""Element types that ml_dtypes adds to NumPy's: every operator that only moves elements takes all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import defs

from tests.ops.checking import Array, run_operator
from vkml.ir import Constant, DType, dtypes
from vkml.ir.operator import REGISTRY

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
        if domain or op in ("Cast", "CastLike", "Shape", "Size") or not defs.has(op):
            continue
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
