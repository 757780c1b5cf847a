"""The graph: ONNX nodes in topological order over named values, as plain descriptions."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir.described import described
from vkml.ir.dtypes import STRING, DType
from vkml.ir.lazy import lazy
from vkml.ir.packing import from_bytes, to_bytes
from vkml.ir.types import TensorType, ValueType

CACHED = 1 << 16
"""Elements of constants that a processor's second cache holds."""


@functools.lru_cache(maxsize=4096)
def _tensor_type(dtype: DType, shape: tuple[int, ...]) -> TensorType:
    """One object for all constants of a type: what is computed of it once is known of all."""
    return TensorType(dtype, shape)


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose value is part of the graph. `array` is often a read-only view of a mapped file."""

    dtype: DType
    shape: tuple[int, ...]
    array: np.ndarray[Any, Any]
    """Of `shape`, in the dtype's storage type."""

    @lazy
    def type(self) -> TensorType:
        """Element type and shape."""
        return _tensor_type(self.dtype, self.shape)

    @lazy
    def is_open(self) -> bool:
        """Whether there are sizes among its elements that planning leaves open (`vkml.ir.size`)."""
        return self.array.dtype == object and self.dtype != STRING

    @property
    def data(self) -> np.ndarray[Any, Any]:
        """Its bytes, flat, as files and devices hold them (`vkml.ir.packing`); not for strings."""
        return to_bytes(self.array, self.dtype)

    def __repr__(self) -> str:
        return f"Constant({self.type})"


class PackedConstant(Constant):
    """A constant of fewer than 8 bits an element, kept packed: unpacked when its array is asked for.

    While anyone holds the array, everyone gets the same one.
    """

    def __init__(self, dtype: DType, shape: tuple[int, ...], packed: Constant) -> None:
        """Args:
        dtype: of the elements.
        shape: of the tensor.
        packed: its bytes, flat, as uint8.
        """
        put = object.__setattr__  # the base class is frozen
        put(self, "dtype", dtype)
        put(self, "shape", shape)
        put(self, "packed", packed)
        put(self, "_unpacked", None)

    packed: Constant
    _unpacked: weakref.ref[np.ndarray[Any, Any]] | None

    @property
    def array(self) -> np.ndarray[Any, Any]:
        found = self._unpacked() if self._unpacked is not None else None
        if found is None:
            found = from_bytes(self.packed.array, self.dtype, self.shape)
            found.flags.writeable = False
            object.__setattr__(self, "_unpacked", weakref.ref(found))
        return found

    @property
    def data(self) -> np.ndarray[Any, Any]:
        return self.packed.array


class MadeConstant(Constant):
    """A constant that is made of another one when its array is asked for, and kept by nobody else.

    While anyone holds the array, everyone gets the same one. It decides no shapes.
    """

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        source: Constant,
        make: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
    ) -> None:
        """Args:
        dtype: of the elements.
        shape: of the tensor.
        source: of what it is made.
        make: the source's array → its own.
        """
        put = object.__setattr__  # the base class is frozen
        put(self, "dtype", dtype)
        put(self, "shape", shape)
        put(self, "source", source)
        put(self, "make", make)
        put(self, "is_open", False)
        put(self, "_last", None)

    source: Constant
    make: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    _last: weakref.ref[np.ndarray[Any, Any]] | None

    @property
    def array(self) -> np.ndarray[Any, Any]:
        found = self._last() if self._last is not None else None
        if found is None:
            found = self.make(self.source.array)
            found.flags.writeable = False
            object.__setattr__(self, "_last", weakref.ref(found))
        return found

    def made_of(self, source: Constant) -> MadeConstant:
        """The same of another source."""
        return MadeConstant(self.dtype, self.shape, source, self.make)


class ScaledConstant(MadeConstant):
    """A constant that is another one times a factor for each index of the first axis.

    Who wants to know how large its elements are need not make them.
    """

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        source: Constant,
        factors: np.ndarray[Any, Any],
        largest: np.ndarray[Any, Any],
    ) -> None:
        """Args:
        dtype: of the elements.
        shape: of the tensor and of the source.
        source: of what it is made.
        factors: along the first axis, float64.
        largest: magnitudes of the elements along the first axis, flat.
        """
        super().__init__(dtype, shape, source, functools.partial(scaled, factors=factors))
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "largest", largest)

    factors: np.ndarray[Any, Any]
    largest: np.ndarray[Any, Any]

    def made_of(self, source: Constant) -> ScaledConstant:
        return ScaledConstant(self.dtype, self.shape, source, self.factors, self.largest)


def scaled(
    array: np.ndarray[Any, Any], factors: np.ndarray[Any, Any], made: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """An array times factors of float64 along the first axis, each product rounded once.

    There is no copy of all of it in float64. `made` is where the products go.
    """
    made = np.empty(array.shape, array.dtype) if made is None else made
    along = factors.reshape(-1, *[1] * (array.ndim - 1))
    with np.errstate(all="ignore"):
        np.multiply(array, along, out=made, dtype=np.float64, casting="same_kind")
    return made


@described
class Node:
    """One application of an operator.

    `inputs` and `outputs` are value names, "" where an optional one is absent. `attributes` holds Python
    values: int, float, str, tuples of these, `Constant`, `Graph`, tuples of `Graph`. `version` is the opset
    version the model imports for the node's domain.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    version: int = 0
    within: str = ""
    """The label of the node that a model states and in whose place this one and others stand."""

    @lazy
    def label(self) -> str:
        """How messages call the node: ``Conv node 'conv1'``, by its first output where it has no name.

        What stands for another is called by that one: ``SwiGLU node 'gate' (in its body, Mul)``.
        """
        if self.within:
            return f"{self.within} (in its body, {self.op})"
        return f"{self.op} node '{self.name or next((o for o in self.outputs if o), '?')}'"

    @lazy
    def subgraphs(self) -> tuple[Graph, ...]:
        """The bodies among its attributes: of If, Loop, Scan, SequenceMap."""
        found: tuple[Graph, ...] = ()
        for value in self.attributes.values():
            if isinstance(value, Graph):
                found = (*found, value)
            elif isinstance(value, tuple | list) and value and isinstance(value[0], Graph):
                found = (*found, *value)
        return found

    @lazy
    def captures(self) -> tuple[str, ...]:
        """Values of the graph around it that its subgraphs read, each once."""
        bodies = self.subgraphs
        return tuple(dict.fromkeys(name for body in bodies for name in body.captures)) if bodies else ()

    @property
    def operands(self) -> tuple[str, ...]:
        """What its operator is given: its inputs, "" where one is absent, then what its subgraphs capture."""
        return self.inputs + self.captures if self.attributes and self.subgraphs else self.inputs

    @lazy
    def form(self) -> Form | None:
        """The same for nodes with which an operator does the same, whatever their values are called.

        None where that takes more than a look at the attributes: some are tensors, or bodies of control flow.
        """
        inputs: Hashable = len(self.inputs)
        if "" in self.inputs or len({*self.inputs}) < len(self.inputs):
            numbers: dict[str, int] = {}
            inputs = tuple([name and numbers.setdefault(name, len(numbers)) for name in self.inputs])
        outputs = tuple([bool(name) for name in self.outputs]) if "" in self.outputs else len(self.outputs)
        try:
            return form_of((self.op, self.domain, self.attribute_form, inputs, outputs))
        except (KeyError, TypeError):
            return None

    @lazy
    def attribute_form(self) -> Hashable:
        """Equal for attributes with which an operator does the same, bodies of groups and tensors included.

        Raises:
            TypeError: there is a tensor of more than a few numbers among them, or a body of control flow.
        """
        if not self.attributes:
            return ()
        parts: list[Hashable] = []
        for key, value in self.attributes.items():
            kind = _PLAIN.get(type(value))
            parts += [key, _form(value)] if kind is None else [key, kind, value]
        return tuple(parts)

    @lazy
    def key(self) -> str:
        """What tells it from other nodes of its graph: its first output."""
        return next(name for name in self.outputs if name)

    @lazy
    def reads(self) -> tuple[str, ...]:
        """All values it needs: its inputs that are there, then what its subgraphs capture."""
        present = self.inputs if "" not in self.inputs else tuple(name for name in self.inputs if name)
        return present + self.captures if self.attributes and self.subgraphs else present


@dataclass(frozen=True)
class Value:
    """A named, typed input or output of a graph."""

    name: str
    type: ValueType

    @property
    def tensor(self) -> TensorType:
        """Its type, where it is a tensor."""
        return self.type.tensor


@described
class Graph:
    """Nodes in topological order; every value is a graph input, a constant, or one node's output.

    A body of If or Loop may also read values of the graph around it: `captures`.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Constant]
    types: Mapping[str, TensorType] = field(default_factory=dict)
    """Types of tensors between nodes, as far as they were stated or inferred."""
    name: str = ""
    opsets: Mapping[str, int] = field(default_factory=dict)
    documentation: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    fold_allowance: int | None = None
    """Bytes that results folded to constants may still take; None: as many as its constants allow."""
    donated: tuple[tuple[str, str], ...] = ()
    """Inputs that are not needed behind a run, and the outputs to be written over them."""

    @lazy
    def form(self) -> Hashable:
        """Equal for bodies of groups that compute the same, whatever their values are called.

        Raises:
            TypeError: as an attribute of a node, or a constant, there is more than a few numbers.
        """
        numbers: dict[str, int] = {"": -1}
        parts: list[Hashable] = [self.name]
        for value in self.inputs:
            numbers[value.name] = len(numbers)
            parts.append(_key(value.type))
        for name, constant in self.constants.items():
            numbers[name] = len(numbers)
            parts.append(_contents(constant))
        for node in self.nodes:
            if node.form is None:
                raise TypeError(f"{node.label} is not compared")
            parts.append(node.form)
            parts += [numbers[name] for name in node.inputs]
            for name in node.outputs:
                if name:
                    numbers[name] = len(numbers)
                parts.append(_key(self.types.get(name)))
        return *parts, *[(numbers[value.name], _key(value.type)) for value in self.outputs]

    @lazy
    def captures(self) -> tuple[str, ...]:
        """Values from outside that it reads, as bodies do: nothing of its own gives them."""
        known = set(self.constants)
        known.update([value.name for value in self.inputs])
        for node in self.nodes:
            known.update(node.outputs)
        found = [name for node in self.nodes for name in node.reads if name not in known]
        found += [value.name for value in self.outputs if value.name not in known]
        return tuple(dict.fromkeys(found)) if found else ()


def every_node(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph, each before those of its subgraphs."""
    for node in graph.nodes:
        yield node
        if node.attributes:
            for body in node.subgraphs:
                yield from every_node(body)


def with_bodies(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """The node with its subgraphs changed; itself where it has none, or they stay as they are."""
    if not node.attributes or not node.subgraphs:
        return node

    def changed(value: Any) -> Any:
        if isinstance(value, Graph):
            return change(value)
        if isinstance(value, tuple) and value and isinstance(value[0], Graph):
            made = tuple(map(changed, value))
            return value if all(map(operator.is_, made, value)) else made
        return value

    attributes = {key: changed(value) for key, value in node.attributes.items()}
    is_same = all(attributes[key] is value for key, value in node.attributes.items())
    return node if is_same else replace(node, attributes=attributes)


def attribute_key(attributes: Mapping[str, Any]) -> Hashable:
    """Equal for attributes with which an operator does the same."""
    return tuple((key, _bits(value)) for key, value in attributes.items())


_MOST_NUMBERS = 64
"""Elements of constants that are part of a form."""
_FORMS_KEPT = 8192
_PLAIN: Mapping[type, str] = {int: "int", bool: "bool", str: "str", type(None): "None"}
"""Types of attributes that are compared as they are."""


class Form:
    """What nodes that are alike have in common: one object for all, as quickly compared as any object is.

    It hashes as an object does, where tuples of what a node consists of are gone through each time that they
    are looked up. Forms that are equal may still be two once there were very many.
    """

    __slots__ = ()


_forms: dict[Hashable, Form] = {}


def form_of(parts: Hashable) -> Form:
    """The form that stands for equal parts; `TypeError` where they cannot be hashed."""
    found = _forms.get(parts)
    if found is None:
        if len(_forms) >= _FORMS_KEPT:
            _forms.clear()
        found = _forms.setdefault(parts, Form())
    return found


def _key(type_: ValueType | None) -> Hashable:
    return type_.key if isinstance(type_, TensorType) else type_


def _form(value: Any) -> Hashable:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, tuple | list):
        if len(value) > _MOST_NUMBERS:
            raise TypeError("a long list is not compared")
        if {*map(type, value)} == {int}:
            return int, *value
        return tuple([_form(item) for item in value])
    if isinstance(value, Graph):
        return value.form
    return _contents(value) if isinstance(value, Constant) else (type(value), value)


def _contents(constant: Constant) -> Hashable:
    if constant.array.size > _MOST_NUMBERS or constant.array.dtype == object:
        raise TypeError("a large tensor is not compared")
    return constant.dtype, constant.shape, constant.array.tobytes()


def _bits(value: Any) -> Hashable:
    """Equal for equal values of an attribute: 0.0 is not -0.0, nor is 1 True."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, tuple | list):
        return tuple(_bits(item) for item in value)
    return type(value), value
