"""From a model file to the intermediate representation: checked, sorted, functions inlined."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from vkml import errors
from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph
from vkml.ir.graph import Constant, Graph, Node, Value
from vkml.ir.names import unused
from vkml.ir.types import UNKNOWN, TensorType
from vkml.onnx import reader
from vkml.onnx.alterations import UNALTERED, Alterations
from vkml.onnx.attributes import read_attribute
from vkml.onnx.messages import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
)
from vkml.onnx.model import Model, normal_domain, read_opsets
from vkml.onnx.order import sort_nodes
from vkml.onnx.tensor import DENSE_LIMIT, Tensor, densify
from vkml.onnx.value_types import kind_of, read_type

MAX_NESTING = 64
"""Subgraphs and function calls within one another; keeps Python's own stack far from its end."""

INLINE_LIMIT = 1 << 28
"""Bytes, roughly, that inlining functions may add: 300,000 nodes. Functions that call functions grow a graph
exponentially, so that a file of a kilobyte could fill any memory."""

_LABEL_LENGTH = 100

_FunctionKey = tuple[str, str, str]


def load_graph(
    source: reader.Source | Model,
    *,
    base_directory: str | os.PathLike[str] | None = None,
    alterations: Alterations = UNALTERED,
) -> Graph:
    """Reads a model into a graph.

    Initializers become constants (views of the mapped file), also those that are inputs as well; model-local
    functions are inlined; nodes come out in topological order.

    Args:
        source: A path, the model's bytes, or an opened `Model`.
        base_directory: Where external data lie, if not beside the model.
        alterations: What is taken instead of what the model states.

    Returns:
        The graph. Outputs whose type the model does not state have `vkml.ir.types.UNKNOWN`.

    Raises:
        InvalidProtobuf: The bytes are not a well-formed ONNX file.
        InvalidGraph: The graph in it is not well formed: names that nothing provides or two things provide,
            cycles, missing types, tensors whose data do not fit their shape. Says what and where.
        NotImplemented: Inputs that are sparse tensors; functions that inline to an absurd size.
        NoSuchFile: The model, or a file its tensors lie in, does not exist.

    Example:
        >>> graph = load_graph("digits.onnx")
        >>> [node.op for node in graph.nodes[:2]]
        ['Conv', 'Relu']
    """
    model = source if isinstance(source, Model) else reader.open(source, base_directory=base_directory)
    return _Loader(model, alterations).load()


def overridable(model: Model) -> tuple[Value, ...]:
    """Initializers that are inputs, too: values that a feed may have for them count instead.

    Before IR version 4 every initializer was an input, and none is meant so.
    """
    if model.ir_version < 4:
        return ()
    named = {item.name for item in model.graph.initializer}
    found = []
    for item in model.graph.input:
        if item.name in named:
            type_ = read_type(item.type, f"{model.label}: input {item.name!r}")
            found.append(Value(item.name, type_ or UNKNOWN))
    return tuple(found)


@dataclass(frozen=True)
class _Scope:
    """What names, attributes and versions mean at one place of the file."""

    opsets: Mapping[str, int]
    where: str
    depth: int = 0
    prefix: str = ""
    """Put before the names of values that a function's body defines."""
    names: dict[str, str] = field(default_factory=dict)
    """Inside a function: its formal names → the caller's."""
    arguments: Mapping[str, Any] | None = None
    """Inside a function: its attributes' values."""
    calls: tuple[_FunctionKey, ...] = ()

    def name(self, formal: str) -> str:
        if not self.prefix or not formal:
            return formal
        found = self.names.get(formal)
        return self.prefix + formal if found is None else found


def function_body(model: Model, function: FunctionProto, node: Node) -> list[Node]:
    """The nodes of a function's body in place of a node that calls it.

    Args:
        model: that the function is of; its body calls no other ones.
        function: what the node's operator is.
        node: of any graph. Values that are made besides its outputs are named after its first output.

    Raises:
        InvalidGraph: the node has inputs, outputs or attributes that the function lacks.
    """
    return _Loader(model, UNALTERED).body_of(function, node)


class _Loader:
    """Converts one model; holds what all its graphs share."""

    def __init__(self, model: Model, alterations: Alterations) -> None:
        self._model = model
        self._alterations = alterations
        self._functions: dict[_FunctionKey, FunctionProto] = {}
        self._values: dict[int, Any] = {}
        """Attribute message → value, so that a function called often does not decode its tensors as often."""
        self._dense_bytes = 0
        self._inlined_bytes = 0
        self._calls = 0
        self._stems: set[str] = set()
        """What stands before the first "/" of values' names; each call of a function gets one of its own."""

    def load(self) -> Graph:
        model = self._model
        for function in model.functions:
            key = (normal_domain(function.domain), function.name, function.overload)
            if key in self._functions:
                raise InvalidGraph(f"{model.label}: the function {_function_label(key)} is defined twice")
            self._functions[key] = function
        if "" not in model.opsets and any(normal_domain(node.domain) == "" for node in model.graph.node):
            raise InvalidGraph(
                f"{model.label} imports no opset of the default domain ai.onnx (it imports "
                f"{model.opsets or 'none'}), so the meaning of its operators is not defined"
            )
        self._alterations = self._alterations.of_graph(model.graph)
        model.files.provide(self._alterations.files)
        if self._functions:
            self._stems.update(name.partition("/")[0] for name in _stated_names(model.graph))
        return self._graph(model.graph, _Scope(model.opsets, model.label), is_body=False)

    def _graph(self, proto: GraphProto, scope: _Scope, *, is_body: bool) -> Graph:
        where = scope.where
        constants = self._constants(proto, scope, is_body)
        inputs = self._inputs(proto, scope, constants, is_body)
        given = dict.fromkeys(constants, "initializer") | {value.name: "input" for value in inputs}
        nodes = self._nodes(proto.node, scope)
        ordered, outside = sort_nodes(nodes, given, where)
        if outside and not is_body:
            name, index = next(iter(outside.items()))
            more = len(outside) - 1
            raise InvalidGraph(
                f"{where}: {_reader(nodes[index], name)} reads {name!r}, which nothing in the model provides"
                + (f"; {more} more names are missing likewise" if more else "")
            )
        outputs = tuple(self._output(item, scope) for item in proto.output)
        produced = {name for node in nodes for name in node.outputs}
        for value in outputs:
            if value.name not in produced and value.name not in given:
                raise InvalidGraph(
                    f"{where}: no node produces the output {value.name!r}"
                    + ("; a value from outside needs an Identity node in the subgraph" if is_body else "")
                )
        if not outputs and not is_body:
            raise InvalidGraph(f"{where}: the graph has no outputs")
        return Graph(
            inputs=inputs,
            outputs=outputs,
            nodes=tuple(ordered),
            constants=constants,
            types=self._types(proto, scope),
            name=proto.name,
            opsets=dict(self._model.opsets),
            documentation=proto.doc_string if is_body else self._model.doc_string or proto.doc_string,
            metadata={} if is_body else dict(self._model.metadata),
        )

    def _constants(self, proto: GraphProto, scope: _Scope, is_body: bool) -> dict[str, Constant]:
        constants: dict[str, Constant] = {}
        items: list[tuple[str, TensorProto | SparseTensorProto]] = [
            (item.name, item) for item in proto.initializer
        ]
        items += [(item.values.name if item.values else "", item) for item in proto.sparse_initializer]
        for given, item in items:
            where = f"{scope.where}: initializer {given!r}"
            if not given:
                raise InvalidGraph(f"{scope.where}: an initializer has no name")
            name = scope.name(given)
            if name in constants:
                raise InvalidGraph(f"{where} is there twice")
            if is_body or name not in self._alterations.fed:
                constants[name] = self._initializer(item, where, is_body)
        return constants

    def _initializer(self, proto: TensorProto | SparseTensorProto, where: str, is_body: bool) -> Constant:
        if not is_body and isinstance(proto, TensorProto):
            instead = self._alterations.constant(proto, where)
            if instead is not None:
                return instead
        return self._constant(proto, where)

    def _constant(self, proto: TensorProto | SparseTensorProto, where: str) -> Constant:
        if isinstance(proto, TensorProto):
            return Tensor(proto, self._model.files, where).constant()
        constant = densify(proto, self._model.files, where, DENSE_LIMIT - self._dense_bytes)
        self._dense_bytes += constant.array.nbytes
        return constant

    def _inputs(
        self, proto: GraphProto, scope: _Scope, constants: Mapping[str, Constant], is_body: bool
    ) -> tuple[Value, ...]:
        found: dict[str, Value] = {}
        for item in proto.input:
            name, where = scope.name(item.name), f"{scope.where}: input {item.name!r}"
            if not item.name:
                raise InvalidGraph(f"{scope.where}: an input has no name")
            if name in found:
                raise InvalidGraph(f"{where} is there twice")
            # Before IR version 4 every initializer had to be an input too.
            if name in constants:
                if is_body:
                    raise InvalidGraph(f"{where} of a subgraph is also an initializer")
                continue
            type_ = read_type(item.type, where)
            if type_ is None and not is_body:
                kind = kind_of(item.type)
                if kind in ("nothing", "tensor"):
                    raise InvalidGraph(f"{where} has no element type")
                article = "an" if kind[0] in "aeiou" else "a"
                raise errors.NotImplemented(
                    f"{where} is {article} {kind} of which vkml knows nothing; it takes tensors, sequences "
                    "and optionals of them, and maps"
                )
            found[name] = Value(name, self._alterations.type(type_ or UNKNOWN, item))
        return tuple(found.values())

    def _output(self, item: ValueInfoProto, scope: _Scope) -> Value:
        if not item.name:
            raise InvalidGraph(f"{scope.where}: an output has no name")
        type_ = read_type(item.type, f"{scope.where}: output {item.name!r}") or UNKNOWN
        return Value(scope.name(item.name), self._alterations.type(type_))

    def _types(self, proto: GraphProto, scope: _Scope) -> dict[str, TensorType]:
        found = {}
        for item in proto.value_info:
            type_ = read_type(item.type, f"{scope.where}: value {item.name!r}")
            type_ = type_ and self._alterations.type(type_)
            if isinstance(type_, TensorType) and item.name:
                found[scope.name(item.name)] = type_
        return found

    def _nodes(self, protos: Sequence[NodeProto], scope: _Scope) -> list[Node]:
        nodes: list[Node] = []
        for proto in protos:
            key = (normal_domain(proto.domain), proto.op_type, proto.overload)
            function = self._functions.get(key)
            if function is None:
                nodes.append(self._node(proto, scope))
            else:
                nodes.extend(self._call(proto, key, function, scope))
        return nodes

    def _node(self, proto: NodeProto, scope: _Scope) -> Node:
        domain = normal_domain(proto.domain)
        version = scope.opsets.get(domain)
        label = _label(proto)
        if not proto.op_type:
            raise InvalidGraph(f"{scope.where}: {label} has no operator")
        if version is None:
            raise InvalidGraph(
                f"{scope.where}: {label} is of the domain {domain or 'ai.onnx'!r}, which is not imported "
                f"(imported are {sorted(key or 'ai.onnx' for key in scope.opsets)})"
            )
        if scope.prefix:
            self._charge(proto, scope)
        return Node(
            op=proto.op_type,
            inputs=tuple(map(scope.name, proto.input)) if scope.prefix else proto.input,
            outputs=tuple(map(scope.name, proto.output)) if scope.prefix else proto.output,
            attributes=self._attributes(proto, scope) if proto.attribute else {},
            name=scope.prefix + proto.name if proto.name else "",
            domain=domain,
            version=version,
        )

    def _attributes(self, proto: NodeProto, scope: _Scope) -> dict[str, Any]:
        where = f"{scope.where}: {_label(proto)}"
        found: dict[str, Any] = {}
        for item in proto.attribute:
            if not item.name or item.name in found:
                raise InvalidGraph(
                    f"{where} has the attribute {item.name!r} twice"
                    if item.name
                    else f"{where} has a nameless attribute"
                )
            if item.ref_attr_name:
                if scope.arguments is None:
                    raise InvalidGraph(
                        f"{where}: attribute {item.name!r} refers to {item.ref_attr_name!r} of a "
                        "function, but is in none"
                    )
                value = scope.arguments.get(item.ref_attr_name)
            else:
                value = self._attribute(item, scope, where)
            if value is not None:
                found[item.name] = value
        return found

    def _attribute(self, item: AttributeProto, scope: _Scope, where: str) -> Any:
        def read_graph(proto: GraphProto, where: str) -> Graph:
            return self._graph(proto, _deeper(scope, where=where), is_body=True)

        if item.g is not None or item.graphs:
            # Not kept: within a function, what a subgraph reads differs from call to call.
            return read_attribute(item, self._constant, read_graph, where)
        if id(item) not in self._values:
            self._values[id(item)] = read_attribute(item, self._constant, read_graph, where)
        return self._values[id(item)]

    def _call(
        self, proto: NodeProto, key: _FunctionKey, function: FunctionProto, scope: _Scope
    ) -> list[Node]:
        """The nodes of a function's body, in place of the node that calls it."""
        where = f"{scope.where}: {_label(proto)}"
        label = _function_label(key)
        if key in scope.calls:
            chain = " → ".join(
                _function_label(item) for item in [*scope.calls[scope.calls.index(key) :], key]
            )
            raise InvalidGraph(f"{where}: the function {label} calls itself: {chain}")
        for kind, formal, actual in (
            ("inputs", function.input, proto.input),
            ("outputs", function.output, proto.output),
        ):
            if len(actual) > len(formal):
                raise InvalidGraph(f"{where} has {len(actual)} {kind}, the function {label} {len(formal)}")
        self._calls += 1
        self._charge(proto, scope)
        self._charge(function, scope)
        stem = unused(f"{function.name[:40].replace('/', '.')}.{self._calls}", self._stems)
        self._stems.add(stem)
        # Not all the calls that lead here: messages, and the work of putting them together, would grow long.
        inside = f"{self._model.label}: function {label}, called by {_label(proto)}"
        body = _deeper(
            scope,
            where=inside,
            opsets={**self._model.opsets, **read_opsets(function.opset_import, inside)},
            prefix=f"{stem}/",
            names={},
            arguments=self._arguments(function, self._attributes(proto, scope), scope, where),
            calls=(*scope.calls, key),
        )
        inputs, outputs = (tuple(map(scope.name, names)) for names in (proto.input, proto.output))
        return self._body(function, inputs, outputs, body)

    def body_of(self, function: FunctionProto, node: Node) -> list[Node]:
        """The nodes of a function's body, in place of a node that is no message any more."""
        scope = _Scope({}, node.label)
        body = _deeper(
            scope,
            opsets=read_opsets(function.opset_import, node.label),
            prefix=f"{node.key}/",
            names={},
            arguments=self._arguments(function, node.attributes, scope, node.label),
        )
        for kind, formal, actual in (
            ("inputs", function.input, node.inputs),
            ("outputs", function.output, node.outputs),
        ):
            if len(actual) > len(formal):
                raise InvalidGraph(f"{node.label}: takes {len(formal)} {kind}, has {len(actual)}")
        return self._body(function, node.inputs, node.outputs, body)

    def _body(
        self, function: FunctionProto, inputs: Sequence[str], outputs: Sequence[str], body: _Scope
    ) -> list[Node]:
        """The nodes of a function's body that reads and makes values under the caller's names."""
        names = body.names
        for index, formal_name in enumerate(function.input):
            if formal_name in names:
                raise InvalidGraph(f"{body.where} has the input {formal_name!r} twice")
            names[formal_name] = inputs[index] if index < len(inputs) else ""
        copies: list[tuple[str, str]] = []
        for formal_name, actual_name in zip(function.output, outputs, strict=False):
            if not actual_name:
                continue
            if formal_name in names:
                copies.append((formal_name, actual_name))
            else:
                names[formal_name] = actual_name
        nodes = self._nodes(function.node, body)
        for formal_name, actual_name in copies:
            version = body.opsets.get("", 1)
            nodes.append(Node("Identity", (names[formal_name],), (actual_name,), version=version))
        produced = {name for node in nodes for name in node.outputs}
        for formal_name, actual_name in zip(function.output, outputs, strict=False):
            if actual_name and actual_name not in produced:
                raise InvalidGraph(f"{body.where}: no node produces the output {formal_name!r}")
        return nodes

    def _arguments(
        self, function: FunctionProto, given: Mapping[str, Any], scope: _Scope, where: str
    ) -> dict[str, Any]:
        """The values of a function's attributes: those that are given, and defaults of others."""
        declared = {*function.attribute, *(item.name for item in function.attribute_proto)}
        unknown = sorted(set(given) - declared)
        if unknown:
            raise InvalidGraph(
                f"{where}: attribute {unknown[0]!r} is not one of the function's {sorted(declared) or 'none'}"
            )
        inside = _Scope(scope.opsets, f"{where}: defaults of the function", scope.depth)
        defaults = {
            item.name: self._attribute(item, inside, inside.where)
            for item in function.attribute_proto
            if item.name not in given
        }
        return {**defaults, **given}

    def _charge(self, proto: NodeProto | FunctionProto, scope: _Scope) -> None:
        names = (*proto.input, *proto.output, proto.name)
        self._inlined_bytes += 512 + sum(100 + len(scope.prefix) + len(name) for name in names)
        self._inlined_bytes += 200 * len(proto.attribute) + len(scope.where)
        if self._inlined_bytes > INLINE_LIMIT:
            raise errors.NotImplemented(
                f"{scope.where}: inlining the model's functions makes the graph too large "
                f"(limit: {INLINE_LIMIT} bytes, about 300,000 nodes)"
            )


def _deeper(scope: _Scope, **changes: Any) -> _Scope:
    if scope.depth >= MAX_NESTING:
        raise InvalidGraph(f"{scope.where}: subgraphs and functions are nested more than {MAX_NESTING} deep")
    values = {key: getattr(scope, key) for key in _Scope.__dataclass_fields__}
    return _Scope(**{**values, "depth": scope.depth + 1, **changes})


def _reader(node: Node, name: str) -> str:
    """How messages call the node, itself or in a subgraph of it, that reads a value."""
    if name not in node.inputs:
        for body in node.subgraphs:
            if name in body.captures:
                inner = next(each for each in body.nodes if name in each.reads)
                return f"{_reader(inner, name)} in a subgraph of {node.label}"
    return node.label


def _stated_names(graph: GraphProto) -> Iterator[str]:
    """The names of the values that a graph defines itself, not in bodies."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer if tensor.values)
    for node in graph.node:
        yield from node.output


def _label(proto: NodeProto) -> str:
    # Cut, since labels are put together while reading too and a hostile name can be as long as the file.
    name = proto.name or next((name for name in proto.output if name), "?")
    return f"{proto.op_type[:_LABEL_LENGTH] or '?'} node '{name[:_LABEL_LENGTH]}'"


def _function_label(key: _FunctionKey) -> str:
    domain, name, overload = (part[:_LABEL_LENGTH] for part in key)
    return f"{domain or 'ai.onnx'}.{name}" + (f":{overload}" if overload else "")
