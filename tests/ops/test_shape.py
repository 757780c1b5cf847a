"""Operators that change only the shape, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from vkml.engine.sketch import Sketch
from vkml.errors import ShapeError
from vkml.ir import Constant, DType, TensorType, dtypes, static
from vkml.onnx import save_graph

STORAGES = [np.float32, np.float16, np.float64, np.int8, np.uint16, np.int64, np.bool_]


def _array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(0), dtype, shape)


def _list(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("start", [None, 0, 1, -2, 5, -9])
@pytest.mark.parametrize("end", [None, 2, -1, 9, -9])
def test_shape(start: int | None, end: int | None) -> None:
    check_operator("Shape", [_array(2, 0, 4)], {"start": start, "end": end}, opset=15)


@pytest.mark.parametrize("dtype", [dtypes.UINT4, dtypes.INT4, dtypes.INT2, dtypes.FLOAT4E2M1], ids=str)
def test_shape_and_size_of_packed_types(device_name: str, dtype: DType) -> None:
    """Which lie in flat bytes in files: as a constant, where the model is folded, and as an input."""
    sketch = Sketch("sizes", opset=25)
    x = sketch.input("x", (3, 5, 1), dtype)
    stored = Constant(dtype, (3, 5, 1), np.zeros((3, 5, 1), dtype.storage))
    constant = sketch.node("Constant", value=stored)
    made = [sketch.node(op, value) for value in (x, constant) for op in ("Shape", "Size")]
    last = [sketch.node("Shape", value, start=-2) for value in (x, constant)]
    given = np.zeros((3, 5, 1), dtype.storage)
    with vkml.InferenceSession(save_graph(sketch.finish(*made, *last)), devices=device_name) as session:
        found = [array.tolist() for array in session.run(None, {"x": given})]
    assert found == [[3, 5, 1], 15] * 2 + [[5, 1]] * 2


def test_shape_and_size_of_a_scalar() -> None:
    check_operator("Shape", [_array()])
    check_operator("Size", [_array()])
    check_operator("Size", [_array(3, 4)])
    check_operator("Size", [_array(3, 0)])


@pytest.mark.parametrize(
    ("shape", "target", "allowzero"),
    [
        ((2, 3, 4), (4, 6), 0),
        ((2, 3, 4), (-1,), 0),
        ((2, 3, 4), (0, -1), 0),
        ((2, 3, 4), (0, 0, 2, 2), 0),
        ((2, 3, 4), (2, -1, 2), 0),
        ((), (1, 1), 0),
        ((1,), (), 0),
        ((0, 3, 4), (-1, 3), 0),
        ((0, 3), (3, 0), 1),
        ((0, 3), (5, 0, 7), 1),
    ],
)
def test_reshape(shape: tuple[int, ...], target: tuple[int, ...], allowzero: int) -> None:
    check_operator("Reshape", [_array(*shape), _list(*target)], {"allowzero": allowzero}, opset=14)


def test_reshape_of_an_empty_batch() -> None:
    assert run_operator("Reshape", [_array(0, 3, 4), _list(0, -1)])[0].shape == (0, 12)
    assert run_operator("Reshape", [_array(0, 3, 4), _list(0, 2, -1)])[0].shape == (0, 2, 6)


def test_reshape_of_opset_1_has_an_attribute() -> None:
    found = run_operator("Reshape", [_array(2, 6)], {"shape": (3, -1), "consumed_inputs": (0,)}, opset=1)[0]
    assert found.shape == (3, 4)


@pytest.mark.parametrize(
    ("shape", "target", "allowzero"),
    [
        ((2, 3), (4,), 0),
        ((2, 3), (-1, -1), 0),
        ((2, 3), (-2, 3), 0),
        ((2, 3), (4, -1), 0),
        ((2, 3), (2, 3, 0), 0),
        ((0, 3), (0, -1), 1),
        ((2, 3), (2**62, 4), 0),
    ],
)
def test_reshape_errors(shape: tuple[int, ...], target: tuple[int, ...], allowzero: int) -> None:
    with pytest.raises(ShapeError, match=r"'checked'.*cannot reshape"):
        inferred_types("Reshape", [_array(*shape), _list(*target)], {"allowzero": allowzero})


def test_unknown_shape_input_leaves_unknown_sizes() -> None:
    target = static(dtypes.INT64, (3,))
    assert inferred_types("Reshape", [_array(2, 3), target]) == [TensorType(dtypes.FLOAT32, (None,) * 3)]
    assert inferred_types("Expand", [_array(2, 3), target]) == [TensorType(dtypes.FLOAT32, (None,) * 3)]
    axes = static(dtypes.INT64, (1,))
    assert inferred_types("Unsqueeze", [_array(2, 3), axes]) == [TensorType(dtypes.FLOAT32, (None,) * 3)]
    assert inferred_types("Squeeze", [_array(2, 1), axes]) == [TensorType(dtypes.FLOAT32, (None,))]


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -3])
@pytest.mark.parametrize("opset", [11, 13])
def test_flatten(axis: int, opset: int) -> None:
    check_operator("Flatten", [_array(2, 3, 4)], {"axis": axis}, opset=opset)


def test_flatten_edges() -> None:
    check_operator("Flatten", [_array(2, 0, 4)], {"axis": 2})
    check_operator("Flatten", [_array()], {"axis": 0})
    with pytest.raises(ShapeError, match=r"axis 4.*rank 3"):
        inferred_types("Flatten", [_array(2, 3, 4)], {"axis": 4})


@pytest.mark.parametrize("axes", [None, (0,), (2,), (-1, 0), (-2,)])
def test_squeeze(axes: tuple[int, ...] | None) -> None:
    x = _array(1, 3, 1) if axes != (-2,) else _array(3, 1, 3)
    check_operator("Squeeze", [x], {"axes": axes}, opset=11)
    check_operator("Squeeze", [x] if axes is None else [x, _list(*axes)], opset=13)


@pytest.mark.parametrize("axes", [(0,), (2,), (-1,), (0, 3), (3, 0), (-1, 1)])
def test_unsqueeze(axes: tuple[int, ...]) -> None:
    check_operator("Unsqueeze", [_array(2, 3)], {"axes": axes}, opset=11)
    check_operator("Unsqueeze", [_array(2, 3), _list(*axes)], opset=13)


def test_squeeze_errors() -> None:
    with pytest.raises(ShapeError, match=r"axis 1.*size 3"):
        inferred_types("Squeeze", [_array(1, 3), _list(1)])
    with pytest.raises(ShapeError, match="axis 4"):
        inferred_types("Squeeze", [_array(1, 3), _list(4)])
    with pytest.raises(ShapeError, match="twice"):
        inferred_types("Unsqueeze", [_array(1, 3), _list(0, -4)])


@pytest.mark.parametrize("dtype", STORAGES)
@pytest.mark.parametrize("perm", [None, (0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_transpose(dtype: type, perm: tuple[int, ...] | None) -> None:
    check_operator("Transpose", [_array(2, 3, 4, dtype=dtype)], {"perm": perm}, opset=13)


def test_transpose_edges() -> None:
    check_operator("Transpose", [_array()])
    check_operator("Transpose", [_array(2, 0, 3)], {"perm": (1, 0, 2)})
    assert run_operator("Transpose", [_array(2, 3)])[0].flags.c_contiguous
    for perm in ((0, 0), (0, 2), (0,)):
        with pytest.raises(ShapeError):
            inferred_types("Transpose", [_array(2, 3)], {"perm": perm})


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((3, 1), (3, 4)),
        ((3, 1), (2, 1, 6)),
        ((3, 4), (1,)),
        ((), (2, 3)),
        ((1,), (0,)),
        ((2, 3), ()),
        ((1, 3), (2, 1)),
    ],
)
def test_expand(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    check_operator("Expand", [_array(*shape), _list(*target)], opset=13)


def test_expand_errors() -> None:
    for target in ((2,), (-1, 3)):
        with pytest.raises(ShapeError, match="expand"):
            inferred_types("Expand", [_array(2, 3), _list(*target)])
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("Expand", [_array(1), _list(2**40, 2**40)])
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("Expand", [_array(1), _list(2**62, 0)])


@pytest.mark.parametrize("opset", [1, 11])
def test_an_attribute_of_no_axes_squeezes_all(opset: int) -> None:
    """As where there is none: onnxruntime and onnx's evaluator agree."""
    [found] = run_operator("Squeeze", [np.ones((1, 2, 1), np.float32)], {"axes": ()}, opset=opset)
    assert found.shape == (2,)
