"""Runs one operator of vkml alone and compares it with onnxruntime or onnx's reference evaluator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkml.ops  # noqa: F401  (fills the registry)
from tests.comparing import assert_close
from vkml.ir import Constant, Known, Node, TensorType, dtypes, find, static
from vkml.ir.operator import normalise_attributes

Array = np.ndarray[Any, Any]
Input = Array | Constant | None

TOLERANCES = {"float16": (1e-3, 1e-4), "float32": (1e-5, 1e-6), "float64": (1e-12, 1e-13)}
"""Relative and absolute tolerance by the output's type, where a check states none."""


def run_operator(
    op: str,
    inputs: Sequence[Input],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 23,
    outputs: int | Sequence[str] = 1,
    domain: str = "",
) -> list[Array]:
    """Upgrades, infers and evaluates one node; asserts that what was inferred is what came out.

    Args:
        op: operator name.
        inputs: arrays, None where absent, a `Constant` for types NumPy does not have.
        attributes: as Python values (floats, ints, strings, tuples); arrays become `Constant`.
        opset: version of the node's domain.
        outputs: how many outputs, or their names with "" where absent.
        domain: the operator's domain.
    """
    values, types = _named_inputs(inputs)
    names = _output_names(outputs)
    node = Node(op, tuple(_input_names(inputs)), names, _attributes(attributes), "checked", domain, opset)
    for step in _upgraded(node):
        _run_node(step, values, types)
    return [values[name] for name in names if name]


def inferred_types(
    op: str,
    inputs: Sequence[Input | TensorType],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 23,
    outputs: int | Sequence[str] = 1,
    domain: str = "",
) -> list[TensorType]:
    """Only infers; an input given as a `TensorType` has no known value. For tests of error messages."""
    arrays = [None if isinstance(i, TensorType) else i for i in inputs]
    values, types = _named_inputs(arrays)
    types.update({f"x{i}": found for i, found in enumerate(inputs) if isinstance(found, TensorType)})
    names = [f"x{i}" if found is not None else "" for i, found in enumerate(inputs)]
    outs = _output_names(outputs)
    node = Node(op, tuple(names), outs, _attributes(attributes), "checked", domain, opset)
    for step in _upgraded(node):
        if step.op == "Constant" and step.outputs[0] not in types:
            constant = step.attributes["value"]
            values[step.outputs[0]], types[step.outputs[0]] = constant.array, constant.type
            continue
        normal = _normalised(step)
        found = find(normal).infer(normal, _known(normal, values, types))
        types.update(zip(normal.outputs, found, strict=False))
    return [types[name] for name in outs if name]


def check_operator(
    op: str,
    inputs: Sequence[Input],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 23,
    outputs: int | Sequence[str] = 1,
    domain: str = "",
    against: str = "onnxruntime",
    rtol: float | None = None,
    atol: float | None = None,
) -> list[Array]:
    """Runs the operator here and elsewhere and compares types, shapes and values.

    Args:
        against: "onnxruntime" (falls back to "onnx" where that lacks the operator or type), or "onnx".
        rtol: relative tolerance for floats; by type where None. Integers, bools and strings compare exactly.
        atol: absolute tolerance.

    The other arguments are those of `run_operator`; its results are returned.
    """
    found = run_operator(op, inputs, attributes, opset=opset, outputs=outputs, domain=domain)
    model = build_model(op, inputs, attributes, opset=opset, outputs=outputs, domain=domain)
    feed = {f"x{i}": _stored(array) for i, array in enumerate(inputs) if array is not None}
    expected = run_reference(model, feed, against)
    assert len(found) == len(expected)
    for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_same(mine, np.asarray(theirs), rtol, atol, f"{op}-{opset} output {index}")
    return found


def assert_same(
    found: Array, expected: Array, rtol: float | None = None, atol: float | None = None, what: str = ""
) -> None:
    """Asserts equal type and shape, and equal values: floats within a tolerance (NaN equals NaN)."""
    if expected.dtype.kind not in "OUS" and not dtypes.from_numpy(expected.dtype).is_native:
        assert found.dtype == expected.dtype, f"{what}: type {found.dtype}, expected {expected.dtype}"
        found, expected = found.astype(np.float32), expected.astype(np.float32)
        rtol, atol = rtol or 0, atol or 0
    loose = TOLERANCES.get(expected.dtype.name, (1e-5, 1e-6))
    assert_close(
        found,
        expected,
        rtol=loose[0] if rtol is None else rtol,
        atol=loose[1] if atol is None else atol,
        what=what,
    )


def build_model(
    op: str,
    inputs: Sequence[Input],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 23,
    outputs: int | Sequence[str] = 1,
    domain: str = "",
) -> onnx.ModelProto:
    """A model of the one node, for other runtimes."""
    feeds = [
        helper.make_tensor_value_info(f"x{i}", _code(array), list(_shape(array)))
        for i, array in enumerate(inputs)
        if array is not None
    ]
    names = _output_names(outputs)
    given = {key: _protobuf(value) for key, value in (attributes or {}).items() if value is not None}
    node = helper.make_node(op, _input_names(inputs), names, "checked", domain=domain, **given)
    results = [helper.make_empty_tensor_value_info(name) for name in names if name]
    graph = helper.make_graph([node], "checked", feeds, results)
    imports = [helper.make_opsetid(domain, opset)]
    if domain:
        imports.append(helper.make_opsetid("", 21))
    # Older file versions keep older runtimes willing to load the model.
    version = 13 if opset > 23 else 10 if opset > 18 else 8
    return helper.make_model(graph, opset_imports=imports, ir_version=version)


def run_reference(
    model: onnx.ModelProto, feed: Mapping[str, Array], against: str = "onnxruntime"
) -> list[Any]:
    """Outputs of a model by onnxruntime, or by onnx's evaluator where that cannot or is not asked to."""
    if against == "onnxruntime":
        runtime = pytest.importorskip("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = runtime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            if type(error).__name__ not in ("NotImplemented", "Fail", "InvalidGraph"):
                raise
        else:
            return list(session.run(None, dict(feed)))
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, dict(feed)))


def random_array(
    generator: np.random.Generator, dtype: Any, shape: Sequence[int], scale: float = 3.0
) -> Array:
    """Random numbers that suit a NumPy dtype: normal floats, integers over a small range, bools."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.asarray(generator.standard_normal(shape) * scale).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(generator.integers(0, 2, shape)).astype(np.bool_)
    return np.asarray(generator.integers(0 if dtype.kind == "u" else -20, 21, shape)).astype(dtype)


def _upgraded(node: Node) -> list[Node]:
    upgraded = find(node).upgrade(node)
    return [upgraded] if isinstance(upgraded, Node) else list(upgraded)


def _normalised(node: Node) -> Node:
    return dataclasses.replace(node, attributes=normalise_attributes(node, find(node)))


def _known(node: Node, values: Mapping[str, Array], types: Mapping[str, TensorType]) -> list[Known | None]:
    return [Known(types[name], values.get(name)) if name else None for name in node.inputs]


def _run_node(node: Node, values: dict[str, Array], types: dict[str, TensorType]) -> None:
    if node.op == "Constant":
        constant = node.attributes["value"]
        values[node.outputs[0]], types[node.outputs[0]] = constant.array, constant.type
        return
    node = _normalised(node)
    spec = find(node)
    assert spec.inputs[0] <= len(node.inputs) <= spec.inputs[1], f"{node.label}: {len(node.inputs)} inputs"
    assert spec.outputs[0] <= len(node.outputs) <= spec.outputs[1], (
        f"{node.label}: {len(node.outputs)} outputs"
    )
    known = _known(node, values, types)
    inferred = spec.infer(node, known)
    copies = [None if not name else np.array(values[name]) for name in node.inputs]
    results = spec.evaluate(node, [values[name] if name else None for name in node.inputs])
    assert len(inferred) >= len(node.outputs), f"{node.label}: inferred {len(inferred)} outputs"
    assert len(results) >= len(node.outputs), f"{node.label}: evaluated {len(results)} outputs"
    for name, copy in zip(node.inputs, copies, strict=True):
        if copy is not None and copy.dtype.kind != "O":
            assert values[name].tobytes() == copy.tobytes(), f"{node.label} changed its input {name}"
    for name, type_, result in zip(node.outputs, inferred, results, strict=False):
        if not name:
            continue
        assert isinstance(result, np.ndarray), f"{node.label} output {name}: {type(result)} is not an array"
        assert result.dtype == type_.dtype.storage, (
            f"{node.label} output {name}: {result.dtype}, inferred {type_}"
        )
        assert result.shape == type_.dims, f"{node.label} output {name}: {result.shape}, inferred {type_}"
        values[name], types[name] = result, type_


def _named_inputs(inputs: Sequence[Input]) -> tuple[dict[str, Array], dict[str, TensorType]]:
    values: dict[str, Array] = {}
    types: dict[str, TensorType] = {}
    for index, found in enumerate(inputs):
        if isinstance(found, Constant):
            values[f"x{index}"], types[f"x{index}"] = found.array, found.type
        elif found is not None:
            values[f"x{index}"] = found
            types[f"x{index}"] = static(dtypes.from_numpy(found.dtype), found.shape)
    return values, types


def _input_names(inputs: Sequence[Input]) -> list[str]:
    return ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]


def _output_names(outputs: int | Sequence[str]) -> tuple[str, ...]:
    return tuple(f"y{i}" for i in range(outputs)) if isinstance(outputs, int) else tuple(outputs)


def _attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in (attributes or {}).items():
        if isinstance(value, np.ndarray):
            made[key] = Constant(dtypes.from_numpy(value.dtype), value.shape, value)
        elif isinstance(value, list):
            made[key] = tuple(value)
        elif isinstance(value, float):
            # A model file stores float attributes in 32 bits.
            made[key] = float(np.float32(value))
        elif value is not None:
            made[key] = value
    return made


def _protobuf(value: Any) -> Any:
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def _code(found: Array | Constant) -> int:
    if isinstance(found, Constant):
        return found.dtype.code
    return TensorProto.STRING if found.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(found.dtype)


def _shape(found: Array | Constant) -> tuple[int, ...]:
    return tuple(found.shape)


def _stored(found: Array | Constant) -> Array:
    return found.array if isinstance(found, Constant) else np.asarray(found)
