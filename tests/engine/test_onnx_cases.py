"""ONNX's own cases of control flow, sequences and optionals: all of them pass on every device."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import vkml
from tests.control_models import assert_same
from vkml.ir.operator import REGISTRY

OPERATORS = {op for (_, op), spec in REGISTRY.items() if spec.stands_alone}
LEAST = 70
"""Cases of these operators in onnx 1.23; there can only be more."""


def _operators(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operators(attribute.g)


def _has_containers(graph: onnx.GraphProto) -> bool:
    kinds = {value.type.WhichOneof("value") for value in (*graph.input, *graph.output)}
    return bool(kinds & {"sequence_type", "optional_type"})


@functools.cache
def cases() -> Mapping[str, Any]:
    """Name → case, of those that have such operators or values."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = [case for kind in ("node", "simple") for case in load_model_tests(kind=kind)]
    for case in loaded:
        model = _model(case)
        used = {*_operators(model.graph), *(node.op_type for f in model.functions for node in f.node)}
        if used & OPERATORS or _has_containers(model.graph):
            found[case.name] = case
    return found


def _model(case: Any) -> onnx.ModelProto:
    return case.model if case.model is not None else onnx.load(Path(case.model_dir) / "model.onnx")


def _read(path: Path, type_: onnx.TypeProto) -> Any:
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        return numpy_helper.to_array(onnx.load_tensor(path))
    proto = onnx.SequenceProto() if kind == "sequence_type" else onnx.OptionalProto()
    proto.ParseFromString(path.read_bytes())
    return numpy_helper.to_list(proto) if kind == "sequence_type" else numpy_helper.to_optional(proto)


def _data(case: Any, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and outputs of each set."""
    if case.data_sets is not None:
        yield from ((list(inputs), list(outputs)) for inputs, outputs in case.data_sets)
        return
    given = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in given]
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield (
            [_read(folder / f"input_{at}.pb", value.type) for at, value in enumerate(inputs)],
            [_read(folder / f"output_{at}.pb", value.type) for at, value in enumerate(model.graph.output)],
        )


def test_there_are_as_many_as_there_were() -> None:
    assert len(cases()) >= LEAST


@pytest.mark.parametrize("name", sorted(cases()))
def test_case(device_name: str, name: str) -> None:
    model = _model(cases()[name])
    session = vkml.InferenceSession(model.SerializeToString(), devices=device_name)
    operators = [name for step in session.report().steps for name in step.operators]
    alone = [node.op_type for node in model.graph.node if node.op_type in OPERATORS]
    assert set(alone) <= set(operators) or "If" in alone  # whose branch may be taken always
    names = [value.name for value in session.get_inputs()]
    for inputs, outputs in _data(cases()[name], model):
        found = session.run(None, dict(zip(names, inputs, strict=True)))
        assert_same(found, outputs, name)
