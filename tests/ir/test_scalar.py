"""Scalar forms: equal trees are one object, types are kept apart, operators evaluate to what forms say."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import vkml.ops  # noqa: F401  (fills the registry)
from tests.kernels.test_pointwise_math import VARIANTS, float_inputs
from vkml.errors import InvalidGraph
from vkml.ir import Constant, Graph, Known, Node, TensorType, Value, dtypes, scalar, static
from vkml.ir.lowering import CannotLower
from vkml.ir.operator import REGISTRY, normalise_attributes
from vkml.ir.scalar import Scalar, argument, constant, ordered
from vkml.ir.scalar_body import scalar_results
from vkml.ops.scalar_evaluation import evaluate

X, Y = argument(0, dtypes.FLOAT32), argument(1, dtypes.FLOAT32)


def test_equal_trees_are_one_object() -> None:
    assert X * 2 + Y is X * 2.0 + Y
    assert X * 2 + Y is not Y + X * 2
    assert argument(0, dtypes.FLOAT16) is X


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1.0, 1.5), (float("inf"), float("-inf"))])
def test_other_numbers_are_other_objects(a: float, b: float) -> None:
    assert constant(a, dtypes.FLOAT32) is not constant(b, dtypes.FLOAT32)


def test_a_number_is_of_its_type() -> None:
    assert constant(1, dtypes.BOOL) is not constant(1, dtypes.INT32)
    assert constant(1, dtypes.INT64) is not constant(1, dtypes.INT32)
    assert constant(float("nan"), dtypes.FLOAT32) is constant(float("nan"), dtypes.FLOAT32)
    assert constant(0.1, dtypes.FLOAT32).value == float(np.float32(0.1))
    assert constant(300, dtypes.UINT8).value == 44 and constant(200, dtypes.INT8).value == -56


def test_types_do_not_mix() -> None:
    whole = argument(2, dtypes.INT32)
    with pytest.raises(TypeError, match="add of float and int32"):
        X + whole
    assert (X + scalar.convert(whole, dtypes.FLOAT32)).dtype == dtypes.FLOAT32
    assert scalar.convert(X, dtypes.FLOAT16) is X
    assert (X < 1).dtype == dtypes.BOOL


def test_trees_go_when_nobody_holds_them() -> None:
    kept = weakref.ref(argument(7, dtypes.FLOAT32) * 3)
    gc.collect()
    assert kept() is None


def test_order_of_a_deep_tree() -> None:
    total = X
    for _ in range(20000):
        total = total + X
    order = ordered([total])
    assert len(order) == 20001 and order[0] is X and order[-1] is total


def test_inputs_come_first() -> None:
    shared = X * Y
    results = [shared + X, scalar.where(shared < 0, shared, Y)]
    order = ordered(results)
    assert len(set(order)) == len(order)
    for at, entry in enumerate(order):
        assert all(order.index(known) < at for known in entry.inputs)


def form_of(op: str, types: list[Any], attributes: dict[str, Any]) -> tuple[Node, Scalar, Any] | None:
    spec = REGISTRY["", op]
    node = Node(op, tuple(f"x{i}" for i in range(len(types))), ("y",), attributes, version=28)
    node = Node(op, node.inputs, node.outputs, normalise_attributes(node, spec), version=28)
    try:
        result = spec.infer(node, [Known(static(dtype, ())) for dtype in types])[0].dtype
    except InvalidGraph:
        return None
    form = spec.scalar(node, [argument(n, dtype) for n, dtype in enumerate(types)], types, result)
    return None if form is None else (node, form, result)


HALVES = (dtypes.FLOAT16, dtypes.BFLOAT16)
"""Types whose forms are those of float32, in which they are computed."""
POINTWISE = sorted(
    op
    for (domain, op), spec in REGISTRY.items()
    if not domain and spec.is_pointwise and op not in ("Cast", "CastLike", "Identity", "Clip", "Where")
)
# The same formula in another order, and the least number whose spacing counts, for what is cancelled.
UNITS = {"Gelu": 64, "Celu": 64, "HardSwish": 4, "HardSigmoid": 4, "Mish": 16, "Pow": 16}
LEAST = {"HardSwish": 1.0, "HardSigmoid": 1.0}


@pytest.mark.parametrize("op", POINTWISE)
@pytest.mark.parametrize("dtype", [*(d for d in dtypes.NUMBERS if d not in HALVES), dtypes.BOOL], ids=str)
def test_forms_are_what_operators_evaluate(op: str, dtype: Any) -> None:
    spec = REGISTRY["", op]
    arity = spec.inputs[0] if spec.inputs[1] < 9 else 3
    seen = False
    for attributes in VARIANTS.get(op, [{}]):
        found = form_of(op, [dtype] * arity, attributes)
        if found is None:
            continue
        seen = True
        node, form, result = found
        arrays = inputs_of(op, dtype, arity)
        expected = spec.evaluate(node, arrays)[0]
        [value] = evaluate([form], arrays)
        assert form.dtype == scalar.arithmetic_type(result)
        if not result.is_float:
            np.testing.assert_array_equal(value, expected)
            continue
        wide = [array.astype(np.float64) for array in arrays]
        precise = spec.evaluate(node, wide)[0] if dtype.bits == 32 else expected
        with np.errstate(all="ignore"):
            unit = np.spacing(np.maximum(np.abs(value), LEAST.get(op, 1e-3)))
            right = np.abs(value - precise) <= UNITS.get(op, 4) * unit
        right |= (value == expected) | (np.isnan(value) & np.isnan(expected))
        assert right.all(), (op, attributes, [array[~right][:4] for array in (*arrays, value, expected)])
    assert seen or dtype not in getattr(spec, "allowed", ())


def inputs_of(op: str, dtype: Any, arity: int) -> list[Any]:
    if dtype.is_float:
        return [array.astype(dtype.storage) for array in float_inputs(op, 4096, arity)]
    rng = np.random.default_rng(3)
    if dtype == dtypes.BOOL:
        return [rng.integers(0, 2, 64).astype(bool) for _ in range(arity)]
    info = np.iinfo(dtype.storage)
    edges = np.array(
        [0, 1, 2, 3, info.max, info.max - 1, info.min, info.min + 1, info.max // 2], dtype.storage
    )
    arrays = []
    for index in range(arity):
        some = rng.integers(info.min, info.max, 200, dtype.storage, endpoint=True)
        few = rng.integers(-8 if info.min else 0, 9, 200).astype(dtype.storage)
        pairs = np.repeat(edges, edges.size) if index % 2 else np.tile(edges, edges.size)
        arrays.append(np.concatenate([pairs, some, few]))
    return arrays


def body(*nodes: Node, constants: dict[str, Any] | None = None) -> Graph:
    float_ = TensorType(dtypes.FLOAT32, (2,))
    given = {name: Constant(dtypes.FLOAT32, v.shape, v) for name, v in (constants or {}).items()}
    types = {name: float_ for node in nodes for name in node.outputs}
    return Graph((Value("a", float_), Value("b", float_)), (Value("y", float_),), nodes, given, types)


def test_bodies() -> None:
    two = np.array(2, np.float32)
    first = body(Node("Add", ("b", "two"), ("t",)), Node("Mul", ("t", "a"), ("y",)), constants={"two": two})
    other = body(Node("Add", ("b", "k"), ("s",)), Node("Mul", ("s", "a"), ("y",)), constants={"k": two})
    [result] = scalar_results(first)
    assert result is (Y + 2) * X
    assert scalar_results(other) == scalar_results(first)


def test_a_body_without_a_form_says_why() -> None:
    wrong = body(Node("Add", ("a", "c"), ("y",)), constants={"c": np.zeros(2, np.float32)})
    with pytest.raises(CannotLower, match="more than one element"):
        scalar_results(wrong)
    softmax = body(Node("Softmax", ("a",), ("y",), {"axis": -1}))
    with pytest.raises(CannotLower, match="Softmax of float has no form"):
        scalar_results(softmax)
