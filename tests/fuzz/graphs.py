"""A random ONNX graph under construction: typed values, nodes in the form of the chosen opset."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, defs, helper, numpy_helper, shape_inference

from tests.fuzz.tensors import ANY, FLOAT, STRING, Array, Fill, numpy_type, random_tensor, weight

NEWEST = 26
"""The newest opset that onnxruntime reads; onnx itself has newer ones."""
SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33)


class Skip(Exception):
    """What was tried has no legal form here; the graph is as it was before."""


@dataclass(eq=False)
class Value:
    """A value of the graph; `shape` None where only a run tells."""

    name: str
    code: int
    shape: tuple[int, ...] | None
    data: Array | None = None
    """Its value, where it is an initializer."""

    @property
    def dims(self) -> tuple[int, ...]:
        assert self.shape is not None
        return self.shape

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def elements(self) -> int:
        return math.prod(self.dims)


@functools.cache
def schema_of(op: str, opset: int) -> Any:
    """The operator's schema at an opset; `Skip` where it has none, or a deprecated one."""
    try:
        schema = defs.get_schema(op, opset, "")
    except defs.SchemaError:
        raise Skip(f"{op} is not part of opset {opset}") from None
    if schema.deprecated:
        raise Skip(f"{op} is deprecated in opset {opset}")
    return schema


@functools.cache
def newest_schema_of(op: str) -> Any:
    """The last schema of an operator that was not deprecated."""
    for opset in range(defs.onnx_opset_version(), 0, -1):
        try:
            return schema_of(op, opset)
        except Skip:
            continue
    raise Skip(f"{op} is no operator of ONNX")


@functools.cache
def codes_of(op: str, opset: int, position: int) -> tuple[int, ...]:
    """Element types that an input may have."""
    formals = schema_of(op, opset).inputs
    formal = formals[min(position, len(formals) - 1)]
    names = [text[7:-1] for text in formal.types if text.startswith("tensor(")]
    return tuple(sorted(_code(name) for name in names))


def type_parameter(op: str, opset: int, position: int) -> str:
    formals = schema_of(op, opset).inputs
    return str(formals[min(position, len(formals) - 1)].type_str)


def _code(name: str) -> int:
    return int(onnx.TensorProto.DataType.Value(name.upper()))


class GraphBuilder:
    """Takes nodes one by one; everything random comes from `rng`."""

    def __init__(
        self, rng: np.random.Generator, opset: int, most_elements: int = 4000, is_network: bool = False
    ) -> None:
        """States what cases are like.

        Args:
            rng: all chance comes from it.
            opset: of the model.
            most_elements: of a tensor, roughly.
            is_network: whether it is of float32 and ordinary numbers, where an operator takes these.
        """
        self.rng = rng
        self.opset = opset
        self.most_elements = most_elements
        self.is_network = is_network
        self.values: list[Value] = []
        self.nodes: list[NodeProto] = []
        self.inputs: dict[str, tuple[Value, Fill]] = {}
        self.constants: dict[str, Value] = {}
        self._count = 0

    # -- chance ---------------------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def code(self, codes: Sequence[int]) -> int:
        if self.is_network and FLOAT in codes:
            return FLOAT
        weights = np.array([weight(code) for code in codes])
        return int(codes[int(self.rng.choice(len(codes), p=weights / weights.sum()))])

    def size(self) -> int:
        if self.chance(0.02):
            return 0
        return self.integer(34, 140) if self.chance(0.04) else self.pick(*SIZES)

    def shape(self, low: int = 0, high: int = 5) -> tuple[int, ...]:
        """A random shape with `low` to `high` axes."""
        rank = min(
            max(int(self.rng.choice([0, 1, 2, 3, 4, 5], p=[0.06, 0.16, 0.26, 0.24, 0.22, 0.06])), low), high
        )
        sizes: list[int] = []
        for _ in range(rank):
            size = self.size()
            sizes.append(size if math.prod(max(s, 1) for s in sizes) * size <= self.most_elements else 1)
        self.rng.shuffle(sizes)
        return tuple(sizes)

    # -- values ---------------------------------------------------------------------------------------------

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def input(self, code: int, shape: Sequence[int], fill: Fill = ANY) -> Value:
        """A new graph input."""
        value = Value(self.name(), code, tuple(shape))
        self.inputs[value.name] = (value, fill)
        self.values.append(value)
        return value

    def constant(self, data: Any, code: int | None = None) -> Value:
        """A new initializer; lists of integers become int64."""
        with np.errstate(all="ignore"):
            array = np.asarray(data) if code is None else np.asarray(data, numpy_type(code))
        known = STRING if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)
        value = Value(self.name(), int(known), array.shape, array)
        self.constants[value.name] = value
        self.values.append(value)
        return value

    def new(self, code: int, shape: Sequence[int], fill: Fill = ANY, constant: float = 0.45) -> Value:
        """A new input or, with probability `constant`, initializer."""
        if self.is_network and fill == ANY:
            fill = Fill("ordinary")
        if self.chance(constant):
            return self.constant(random_tensor(self.rng, code, shape, fill), code)
        return self.input(code, shape, fill)

    def decided(self, data: Any, code: int | None = None) -> Value:
        """A value that an operator needs to be this: an initializer, seldom an input that happens to be."""
        value = self.constant(data, code)
        if self.chance(0.12):
            del self.constants[value.name]
            self.inputs[value.name] = (Value(value.name, value.code, value.shape, value.data), Fill("fixed"))
        return value

    def having(
        self, codes: Sequence[int], low: int = 0, high: int = 9, accept: Callable[[Value], bool] | None = None
    ) -> Value | None:
        """An existing value of such a type and rank, the latest being likelier."""
        found = [
            value
            for value in self.values
            if value.shape is not None
            and value.code in codes
            and low <= len(value.shape) <= high
            and (accept is None or accept(value))
        ]
        if not found:
            return None
        return found[-1 - min(int(self.rng.exponential(2.0)), len(found) - 1)]

    def take(
        self,
        codes: Sequence[int],
        low: int = 0,
        high: int = 5,
        shape: Sequence[int] | None = None,
        fill: Fill = ANY,
        accept: Callable[[Value], bool] | None = None,
        reuse: float = 0.8,
    ) -> Value:
        """An existing value or a new one."""
        if shape is not None:
            wanted, others = tuple(shape), accept
            low = high = len(wanted)
            accept = lambda value: value.dims == wanted and (others is None or others(value))  # noqa: E731
        if self.chance(reuse):
            found = self.having(codes, low, high, accept)
            if found is not None:
                return found
        return self.new(self.code(codes), self.shape(low, high) if shape is None else shape, fill)

    def broadcastable(self, code: int, shape: Sequence[int], fill: Fill = ANY) -> Value:
        """A value that broadcasts to `shape`, often of that very shape."""
        wanted = tuple(shape)

        def fits(value: Value) -> bool:
            pairs = zip(reversed(value.dims), reversed(wanted), strict=False)
            return value.rank <= len(wanted) and all(a in (1, b) for a, b in pairs)

        if self.chance(0.7):
            found = self.having([code], 0, len(wanted), fits)
            if found is not None:
                return found
        sizes = [size if self.chance(0.7) else 1 for size in wanted]
        return self.new(code, sizes[self.integer(0, len(sizes)) if self.chance(0.4) else 0 :], fill)

    # -- nodes ----------------------------------------------------------------------------------------------

    def node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any] | None = None,
        outputs: int | Sequence[bool] = 1,
    ) -> list[Value]:
        """Adds a node, given in the operator's newest form and put into that of the graph's opset.

        Args:
            op: operator of the default domain.
            inputs: None where absent.
            attributes: as Python values; None where absent.
            outputs: how many, or which of them are there.

        Raises:
            Skip: this opset has no such form, or the result is too large.
        """
        given = {key: value for key, value in (attributes or {}).items() if value is not None}
        arguments, given = self._adapted(op, list(inputs), given)
        if any(isinstance(value, list) and not value for value in given.values()):
            raise Skip(f"{op}: an empty list has no type")
        wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
        names = [self.name() if is_there else "" for is_there in wanted]
        named = ["" if value is None else value.name for value in arguments]
        node = helper.make_node(op, named, names, **given)
        if self.chance(0.3):
            node.name = f"{op}_{len(self.nodes)}"
        types = self._inferred(op, node, [value for value in arguments if value is not None])
        made = []
        for name in names:
            if not name:
                continue
            code, shape = types.get(name, (0, None))
            if not code:
                raise Skip(f"{op}: the type of {name} is not known")
            if shape is not None and math.prod(shape) > self.most_elements * 4:
                raise Skip(f"{op} makes a large result")
            made.append(Value(name, code, shape))
        self.nodes.append(node)
        self.values += made
        return made

    def _adapted(
        self, op: str, inputs: list[Value | None], attributes: dict[str, Any]
    ) -> tuple[list[Value | None], dict[str, Any]]:
        """Inputs and attributes in the opset's form: what are inputs now were attributes once."""
        schema, newest = schema_of(op, self.opset), newest_schema_of(op)
        attributes = {key: value for key, value in attributes.items() if key in schema.attributes}
        for position, value in enumerate(inputs):
            if value is None:
                continue
            formal = newest.inputs[min(position, len(newest.inputs) - 1)].name
            key = {"K": "k", "constant_value": "value", "k": "k"}.get(formal, formal)
            if key not in schema.attributes or (
                position < len(schema.inputs) and schema.inputs[position].name == formal
            ):
                continue
            if value.data is None:
                raise Skip(f"{op}: {key} is an attribute in opset {self.opset}")
            is_list = str(schema.attributes[key].type).split(".")[-1][-1] == "S"
            attributes[key] = value.data.reshape(-1).tolist() if is_list else value.data.reshape(-1)[0].item()
            inputs[position] = None
        while inputs and inputs[-1] is None:
            inputs.pop()
        if not schema.min_input <= len(inputs) <= schema.max_input:
            raise Skip(f"{op} of opset {self.opset} takes other inputs")
        bound: dict[str, int] = {}
        for position, value in enumerate(inputs):
            if value is None:
                continue
            parameter = type_parameter(op, self.opset, position)
            homogeneous = schema.inputs[min(position, len(schema.inputs) - 1)].is_homogeneous
            if value.code not in codes_of(op, self.opset, position):
                raise Skip(f"{op} of opset {self.opset} does not take this type")
            if homogeneous and bound.setdefault(parameter, value.code) != value.code:
                raise Skip(f"{op}: inputs of different types")
        return inputs, attributes

    def _inferred(
        self, op: str, node: NodeProto, arguments: Sequence[Value]
    ) -> dict[str, tuple[int, tuple[int, ...] | None]]:
        types = {value.name: helper.make_tensor_type_proto(value.code, value.shape) for value in arguments}
        data = {
            value.name: numpy_helper.from_array(value.data, value.name)
            for value in arguments
            if value.data is not None and value.data.size < 1000
        }
        try:
            found = shape_inference.infer_node_outputs(
                schema_of(op, self.opset),
                node,
                types,
                data,
                opset_imports=[helper.make_opsetid("", self.opset)],
            )
        except Exception as error:
            raise Skip(f"{op}: {error}") from None
        made: dict[str, tuple[int, tuple[int, ...] | None]] = {}
        for name, proto in found.items():
            tensor = proto.tensor_type
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
            is_known = tensor.HasField("shape") and min(dims, default=0) >= 0
            made[name] = (tensor.elem_type, tuple(dims) if is_known else None)
        return made

    def attempt(self, recipe: Callable[[GraphBuilder, str], None], op: str) -> bool:
        """Runs a recipe; whatever it added is taken back if it gives up."""
        before = len(self.values), len(self.nodes), dict(self.inputs), dict(self.constants)
        try:
            recipe(self, op)
        except Skip:
            del self.values[before[0] :], self.nodes[before[1] :]
            self.inputs, self.constants = before[2], before[3]
            return False
        return True
