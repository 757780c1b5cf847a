"""vkml's own NumPy, node by node, without any pass over the graph: what every device is compared with.

The one place of the fuzzer that knows vkml from inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import vkml.ops
from tests.fuzz.tensors import Array
from vkml.ir import Known, Node, TensorType
from vkml.ir.dtypes import DType
from vkml.onnx import load_graph
from vkml.passes import normalise
from vkml.passes.specialise import evaluate_constant, infer_types

READ_INPUTS = {"Shape": 0, "Size": 0, "EyeLike": 0, "CastLike": 1}
"""How many inputs an operator looks into, where it asks others for their shape or type only."""


class Mismatch(Exception):
    """An operator's inference and its evaluation contradict each other."""


class Disturbance(Protocol):
    """What is done to numbers on their way, to learn how far rounding may carry results."""

    plain: Mapping[str, Array]
    """All values without disturbance, by name."""

    def inputs(
        self, node: Node, arrays: list[Array | None], types: list[DType | None]
    ) -> list[Array | None]: ...

    def outputs(
        self, node: Node, inputs: list[Array | None], arrays: list[Array], types: list[DType]
    ) -> list[Array]: ...


@dataclass(frozen=True)
class Step:
    """A node that was evaluated, with its inputs and its outputs, in vkml's storage."""

    node: Node
    known: list[Known | None]
    inputs: list[Array | None]
    outputs: list[Array]
    types: list[TensorType]

    def results(self) -> dict[str, Known]:
        """What the node makes, by name."""
        return {
            name: Known(type_ if type_.is_static else TensorType(type_.dtype, array.shape), array)
            for name, array, type_ in zip(self.node.outputs, self.outputs, self.types, strict=False)
            if name
        }


class Evaluation:
    """A model, loaded; `vkml.Error` where it is refused."""

    def __init__(self, model: bytes) -> None:
        self.graph = normalise(load_graph(model))
        self.nodes = list(self.graph.nodes)
        needed = {value.name for value in self.graph.outputs}
        self.read = set(needed)
        """Values of which more than the shape and the type decides results."""
        self.current: Node | None = None
        """The node that is evaluated, or was when something was raised."""
        self.plain: tuple[dict[str, Array], dict[str, Array]] = ({}, {})
        """The last feed that was run without disturbance, with all values that came of it."""
        self.needed: set[int] = set()
        for number in reversed(range(len(self.nodes))):
            node = self.nodes[number]
            if needed & set(node.outputs):
                self.needed.add(number)
                needed |= set(node.operands)
                if self.read & set(node.outputs):
                    self.read |= set(node.operands[: READ_INPUTS.get(node.op)])

    def run(self, feed: Mapping[str, Array], disturbance: Disturbance | None = None) -> dict[str, Array]:
        """The values of all outputs, in vkml's storage; `bytes` is then what all of them took."""
        if disturbance is not None:
            if any(self.plain[0].get(name) is not array for name, array in feed.items()):
                self.run(feed)
            disturbance.plain = self.plain[1]
        values = self.start(feed)
        self.bytes = 0
        for step in self.steps(values, disturbance):
            values.update(step.results())
            self.bytes += sum(array.nbytes for array in step.outputs)
        if disturbance is None:
            found = {name: entry.value for name, entry in values.items() if entry.value is not None}
            self.plain = (dict(feed), found)
        results = {value.name: values[value.name].value for value in self.graph.outputs}
        return {name: array for name, array in results.items() if array is not None}

    def start(self, feed: Mapping[str, Array]) -> dict[str, Known]:
        """The values that are there before any node runs."""
        values = {
            name: Known(constant.type, constant.array) for name, constant in self.graph.constants.items()
        }
        for value in self.graph.inputs:
            if value.name not in feed:
                raise vkml.InvalidArgument(f"the feed lacks the input {value.name!r}")
            array = feed[value.name]
            if array.dtype != value.type.dtype.storage:
                raise vkml.InvalidArgument(
                    f"input {value.name!r} takes {value.type.dtype}, the feed has {array.dtype}"
                )
            values[value.name] = Known(TensorType(value.type.dtype, array.shape), array)
        return values

    def steps(
        self,
        values: Mapping[str, Known],
        disturbance: Disturbance | None = None,
        everything: bool = False,
    ) -> Iterator[Step]:
        """Evaluates node after node; the caller puts what comes out, or what it trusts more, in `values`."""
        for number, node in enumerate(self.nodes):
            if everything or number in self.needed:
                self.current = node
                found = [values[name] if name else None for name in node.operands]
                yield evaluated(node, found, disturbance)


def evaluated(node: Node, known: list[Known | None], disturbance: Disturbance | None = None) -> Step:
    """One node's outputs.

    Raises:
        Mismatch: they are not what was inferred.
    """
    arrays = [None if entry is None else entry.value for entry in known]
    kinds = [None if entry is None else entry.dtype for entry in known]
    read = known
    if disturbance is not None:
        arrays = disturbance.inputs(node, arrays, kinds)
        # What sizes hang on is disturbed, too.
        read = [
            None if entry is None else Known(entry.type, array)
            for entry, array in zip(known, arrays, strict=True)
        ]
    types = infer_types(node, read)
    with np.errstate(all="ignore"):
        outputs: list[Any] = evaluate_constant(node, arrays)
    for output, type_ in zip(outputs, types, strict=False):
        if not isinstance(output, np.ndarray) or output.dtype != type_.dtype.storage:
            raise Mismatch(
                f"{node.label}: inferred {type_}, evaluated {getattr(output, 'dtype', type(output))}"
            )
        if type_.is_static and output.shape != type_.dims:
            raise Mismatch(f"{node.label}: inferred {type_}, evaluated to the shape {list(output.shape)}")
    if disturbance is not None:
        outputs = disturbance.outputs(node, arrays, outputs, [type_.dtype for type_ in types])
    return Step(node, known, arrays, outputs, types)
