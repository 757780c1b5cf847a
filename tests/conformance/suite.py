"""The cases of ONNX's backend suite, with the same data in every process."""

from __future__ import annotations

import functools
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

SEED = 20261122
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
"""All that the installed package has data of."""
_NODES = "onnx.backend.test.case.node."


@dataclass(frozen=True)
class Case:
    """One case: a model, and what comes of it."""

    name: str
    kind: str
    rtol: float
    atol: float
    operators: frozenset[str]
    """Of all nodes, those of bodies and functions included."""
    source: bytes | Path
    """The model, or its file."""
    _data_sets: Any = field(repr=False)

    def model(self) -> onnx.ModelProto:
        """The model, read."""
        if isinstance(self.source, Path):
            return onnx.load(self.source)
        return onnx.load_from_string(self.source)

    def source_for_session(self) -> str | bytes:
        """What a session is made of."""
        return str(self.source) if isinstance(self.source, Path) else self.source

    def data_sets(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Inputs and outputs of each run: arrays, lists of them, None for an optional of nothing."""
        for inputs, outputs in self._data_sets():
            yield [_plain(value) for value in inputs], [_plain(value) for value in outputs]


@functools.cache
def suite() -> Mapping[str, Case]:
    """Name → case, in the order of names.

    Raises:
        RuntimeError: something imported onnx's cases before, so that their data are not the seeded ones.
    """
    early = [name for name in sys.modules if name.startswith(_NODES)]
    if early:
        raise RuntimeError(f"{early[0]} was imported before its data's seed was set; ask suite() for cases")
    state, kept = np.random.get_state(), random.getstate()
    try:
        # Data are made when onnx's modules are imported.
        np.random.seed(SEED)
        random.seed(SEED)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            from onnx.backend.test.loader import load_model_tests

            loaded = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    finally:
        np.random.set_state(state)
        random.setstate(kept)
    found = {case.name: _case(case) for case in loaded}
    assert len(found) == len(loaded), "two cases of one name"
    return dict(sorted(found.items()))


def operators(graph: onnx.GraphProto) -> Iterator[str]:
    """The operators of a graph and of the bodies inside."""
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from operators(body)


def _case(case: Any) -> Case:
    source: bytes | Path
    if case.model is not None:
        model, source = case.model, case.model.SerializeToString()
        data_sets = functools.partial(iter, case.data_sets)
    elif case.model_dir is not None:
        source = Path(case.model_dir) / "model.onnx"
        model = onnx.load(source, load_external_data=False)
        data_sets = functools.partial(_stored_sets, source.parent, model)
    else:
        # Models without their weights, whose inputs the suite's own runner makes up.
        source = Path(onnx.__file__).parents[1] / case.url
        model = onnx.load(source, load_external_data=False)
        data_sets = functools.partial(_made_up_sets, source, model)
    nodes = (node.op_type for function in model.functions for node in function.node)
    used = frozenset({*operators(model.graph), *nodes})
    return Case(case.name, case.kind, case.rtol, case.atol, used, source, data_sets)


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _fed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    given = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in given]


def _stored_sets(folder: Path, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(folder.glob("test_data_set_*")):
        yield (
            [_read(data / f"input_{at}.pb", value.type) for at, value in enumerate(_fed(model))],
            [_read(data / f"output_{at}.pb", value.type) for at, value in enumerate(model.graph.output)],
        )


def _made_up_sets(file: Path, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    inputs = []
    for value in _fed(model):
        shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        count = int(np.prod(shape))
        inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    outputs = [file.with_name(f"{file.stem}_output_{at}.pb") for at in range(len(model.graph.output))]
    yield inputs, [numpy_helper.to_array(onnx.load_tensor(path)) for path in outputs]


def _read(path: Path, type_: onnx.TypeProto) -> Any:
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        return numpy_helper.to_array(onnx.load_tensor(path))
    proto = onnx.SequenceProto() if kind == "sequence_type" else onnx.OptionalProto()
    proto.ParseFromString(path.read_bytes())
    return numpy_helper.to_list(proto) if kind == "sequence_type" else numpy_helper.to_optional(proto)
