"""The table of operators: opsets and types of each, and how devices compute it.

It asks the back ends: graphs of one node each, made by the fuzzer's recipes, are planned for the CPU of this
machine and for a GPU that has all types. Nothing runs, and no GPU is needed. A page gets it in the place of
the comment ``<!-- operators -->``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, defs, helper, numpy_helper

import vkml.ops  # noqa: F401  the registry
from tests.fuzz.graphs import GraphBuilder, Skip, Value, codes_of, schema_of
from tests.fuzz.recipes import RECIPES
from tests.fuzz.tensors import ANY, Fill
from vkml.engine.prepare import prepare
from vkml.errors import Error
from vkml.ir import Graph, Node
from vkml.ir.operator import REGISTRY, Operator
from vkml.kernels.writer import NEEDS
from vkml.lowering.cpu import compile_cpu
from vkml.lowering.target import Target
from vkml.lowering.vulkan import refusals
from vkml.onnx import load_graph
from vkml.onnx.function_bodies import body_of
from vkml.ops.upgrading import NEWEST
from vkml.passes import expand_steps, fuse, remove_dead, simplify, specialise

COMMENT = "<!-- operators -->"
SAMPLES = 3
"""Graphs of each type that are planned."""
TRIES = 16
"""Graphs that are made for these: some recipes give up, or make what constants decide."""
DEVICE = Target(
    frozenset(need for needs in NEEDS.values() for need in needs),
    shared_bytes=49152,
    max_invocations=1024,
    subgroup_size=32,
)
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft")
GROUPS = {
    "floats": ("float32", "float16", "bfloat16", "float64"),
    "integers": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    "bool": ("bool",),
    "string": ("string",),
    "complex": ("complex64", "complex128"),
    "float8": ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"),
    "types of 4 and 2 bits": ("float4e2m1", "int4", "uint4", "int2", "uint2"),
}
"""What element types are called together, where all of them that an operator takes are meant."""


_RENAMED = {"float": "float32", "double": "float64"}


class Way(Enum):
    """How a device computes a node."""

    KERNEL = "kernel"
    STEPS = "steps"
    NUMPY = "NumPy"


@dataclass
class Row:
    """What is known of an operator."""

    domain: str
    name: str
    opsets: tuple[int, ...]
    """Those in which it changed, the first one first."""
    cpu: Mapping[str, set[Way]] = field(default_factory=dict)
    """Element type → how graphs of it were planned."""
    vulkan: Mapping[str, set[Way]] = field(default_factory=dict)

    @property
    def on_cpu(self) -> str:
        """How the CPU computes it, in words."""
        if not self.cpu:
            return self._untried("NumPy")
        words = {
            frozenset({Way.KERNEL}): "machine code",
            frozenset({Way.KERNEL, Way.NUMPY}): "machine code for some forms",
            frozenset({Way.NUMPY}): "NumPy",
        }
        return _ways(self.cpu, words)

    @property
    def on_vulkan(self) -> str:
        """How a GPU computes it, in words."""
        if not self.vulkan:
            return self._untried("the CPU")
        kernel, steps, host = Way.KERNEL, Way.STEPS, Way.NUMPY
        words = {
            frozenset({kernel}): "a kernel",
            frozenset({kernel, steps}): "a kernel, or steps",
            frozenset({steps}): "steps",
            frozenset({kernel, host}): "a kernel for some forms",
            frozenset({kernel, steps, host}): "a kernel, or steps, for some forms",
            frozenset({steps, host}): "steps for some forms",
            frozenset({host}): "the CPU",
        }
        return _ways(self.vulkan, words)

    def _untried(self, otherwise: str) -> str:
        """By what the operator states of itself."""
        operator = REGISTRY.get((self.domain, self.name))
        if operator is None:
            return "the operators of its body"
        kind = type(operator)
        if operator.stands_alone:
            return "the engine, between plans"
        if operator.is_shape_only or kind.stated_constant is not Operator.stated_constant:
            return "known in planning"
        if kind.upgrade is not Operator.upgrade and kind.infer is Operator.infer:
            return "rewritten as other operators"
        if otherwise != "NumPy":
            if kind.lower is not Operator.lower or operator.is_pointwise:
                return "a kernel"
            if kind.steps is not Operator.steps:
                return "steps"
        return otherwise


class _Typed(GraphBuilder):
    """Makes graphs whose values have one element type, where an operator takes it, and some elements."""

    def __init__(self, rng: np.random.Generator, code: int) -> None:
        super().__init__(rng, NEWEST, most_elements=2000)
        self._wanted = code

    def code(self, codes: Sequence[int]) -> int:
        return self._wanted if self._wanted in codes else super().code(codes)

    def size(self) -> int:
        return max(super().size(), 1)

    def new(self, code: int, shape: Sequence[int], fill: Fill = ANY, constant: float = 0.5) -> Value:
        # The first is what a model computes; weights, scales and the like may be constants.
        return super().new(code, shape, fill, constant if self.inputs else 0.0)

    def decided(self, data: Any, code: int | None = None) -> Value:
        return self.constant(data, code)


def expanded(page: str) -> str:
    """A page with the tables in the place of its comment."""
    return page.replace(COMMENT, "\n\n".join(tables(rows()))) if COMMENT in page else page


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: a heading and a table for each domain."""
    for domain in DOMAINS:
        lines = [
            f"| {row.name} | {', '.join(map(str, row.opsets))} | {row.on_cpu} | {row.on_vulkan} |"
            for row in rows
            if row.domain == domain
        ]
        head = ["| operator | opsets | CPU | Vulkan |", "|---|---|---|---|"]
        yield "\n".join([f"## {domain or 'ai.onnx'}", "", *head, *lines])


def named(types: Iterable[str], taken: Iterable[str]) -> str:
    """Element types in words, in the order of `GROUPS`.

    Args:
        types: those that are meant.
        taken: all that the operator takes: a group of which all are meant has one name.
    """
    wanted, all_ = set(types), set(taken)
    found: list[str] = []
    for group, members in GROUPS.items():
        here = [each for each in members if each in all_]
        meant = [each for each in here if each in wanted]
        found += [group] if meant == here and len(here) > 1 else meant
    rest = sorted(wanted - {each for members in GROUPS.values() for each in members})
    return ", ".join(found + rest)


def _ways(found: Mapping[str, set[Way]], words: Mapping[frozenset[Way], str]) -> str:
    """By way, the types that are computed so: ``machine code: floats; NumPy: strings``."""
    parts = []
    if len(ways := {frozenset(each) for each in found.values()}) == 1:
        return words[ways.pop()]
    for way, text in words.items():
        types = [each for each, ways in found.items() if ways == way]
        if types:
            parts.append(f"{text}: {named(types, found)}")
    return "; ".join(parts)


def rows() -> list[Row]:
    """All operators that there are, by domain and name."""
    found = [_row(domain, name) for domain in DOMAINS for name in sorted(_names(domain))]
    return [row for row in found if row is not None]


def _names(domain: str) -> set[str]:
    """Operators of a domain that vkml knows, and those that ONNX defines as functions."""
    known = {name for of, name in REGISTRY if of == domain}
    return known | {schema.name for schema in _schemas() if schema.domain == domain}


@cache
def _schemas() -> list[Any]:
    return [schema for schema in defs.get_all_schemas_with_history() if schema.since_version <= NEWEST]


def _row(domain: str, name: str) -> Row | None:
    opsets = sorted(
        schema.since_version for schema in _schemas() if (schema.domain, schema.name) == (domain, name)
    )
    operator = REGISTRY.get((domain, name))
    node = Node(name, (), ("y",), {}, domain=domain, version=NEWEST if not domain else 1)
    if operator is None and body_of(node) is None:
        return None
    row = Row(domain, name, tuple(opsets) or (1,))
    if not domain and name in RECIPES:
        row.cpu, row.vulkan = _tried(name)
    return row


def _tried(op: str) -> tuple[Mapping[str, set[Way]], Mapping[str, set[Way]]]:
    cpu: dict[str, set[Way]] = defaultdict(set)
    vulkan: dict[str, set[Way]] = defaultdict(set)
    try:
        codes = codes_of(op, NEWEST, 0) if schema_of(op, NEWEST).inputs else (TensorProto.FLOAT,)
    except Skip:
        return cpu, vulkan
    for code in codes:
        name = _RENAMED.get(name := TensorProto.DataType.Name(code).lower(), name)
        for model in _models(op, code):
            vulkan[name].add(on_vulkan(model))
            cpu[name].add(on_cpu(model))
    return cpu, vulkan


def _models(op: str, code: int) -> Iterator[bytes]:
    """Models of one node that takes a type, of static shapes, none of which waits for data."""
    made = 0
    for number in range(TRIES):
        build = _Typed(np.random.default_rng([number, code]), code)
        try:
            RECIPES[op](build, op)
        except Skip:
            continue
        model = _model(build, code)
        if model is not None and _planned(model) is not None:
            yield model
            made += 1
            if made == SAMPLES:
                return


def _model(build: _Typed, code: int) -> bytes | None:
    """What a recipe has built; None where that is not one node whose first input has the type."""
    [*before, node] = build.nodes
    given = [value for name in node.input for value in build.values if value.name == name]
    if before or (given and given[0].code != code):
        return None
    inputs = [
        helper.make_tensor_value_info(each.name, each.code, each.shape) for each, _ in build.inputs.values()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    constants = [
        numpy_helper.from_array(each.data, name)
        for name, each in build.constants.items()
        if each.data is not None
    ]
    graph = helper.make_graph([node], "one", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", NEWEST)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=12).SerializeToString())


def _planned(model: bytes, multiplies_bytes: bool = False) -> Graph | None:
    """The graph as it is given to devices; None where nothing is left of it, or shapes wait for data."""
    try:
        graph = prepare(load_graph(model), multiplies_bytes=multiplies_bytes)
        shapes = {value.name: value.tensor.dims for value in graph.inputs}
        graph = remove_dead(simplify(specialise(graph, shapes)))
    except Error:
        return None
    return graph if graph.nodes and all(type_.is_static for type_ in graph.types.values()) else None


def on_vulkan(model: bytes) -> Way:
    """How a GPU with all types computes a model; NumPy where it leaves any of it to the CPU."""

    def accepted(graph: Graph, nodes: Iterable[Node]) -> set[str]:
        nodes = list(nodes)
        return {node.key for node in nodes} - refusals(nodes, graph.types, graph.constants, DEVICE).keys()

    graph = _planned(model)
    assert graph is not None
    before = {node.op for node in graph.nodes}
    expanded = expand_steps(graph, accepted)
    if refusals(expanded.nodes, expanded.types, expanded.constants, DEVICE):
        return Way.NUMPY
    return Way.KERNEL if before == {node.op for node in expanded.nodes} else Way.STEPS


def on_cpu(model: bytes) -> Way:
    """How the CPU of this machine computes a model; NumPy where machine code has no form of any of it."""
    graph = _planned(model, multiplies_bytes=True)
    assert graph is not None
    graph = fuse(expand_steps(graph, lambda graph, nodes: (), on_host=True))
    inputs = [value.name for value in graph.inputs]
    outputs = [value.name for value in graph.outputs]
    program = compile_cpu(
        graph.nodes, graph.types, graph.constants, threads=1, inputs=inputs, outputs=outputs
    )
    return Way.NUMPY if any(form.variant == "numpy" for _, form in program.forms) else Way.KERNEL
