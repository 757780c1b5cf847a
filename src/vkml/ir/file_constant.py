"""Constants of a model that lie in its files, and copies of those that should not."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.ir import mapped_file
from vkml.ir.graph import Constant, Graph, MadeConstant, Node, PackedConstant, every_node
from vkml.ir.mapped_file import MappedFile, mapping_of

Array = np.ndarray[Any, Any]

OWNED_BYTES = 1 << 16
"""Constants up to here are copied: shapes, scalars, biases, which planning reads again and again."""


class FileConstant(Constant):
    """A constant in a mapped file: seen there whenever it is asked for, so that nothing holds the mapping."""

    def __init__(self, constant: Constant, file: MappedFile) -> None:
        """Args:
        constant: one whose array lies in the file.
        file: that file.
        """
        array = constant.array
        start = np.frombuffer(file.view(), np.uint8).__array_interface__["data"][0]
        put = object.__setattr__  # the base class is frozen
        put(self, "dtype", constant.dtype)
        put(self, "shape", constant.shape)
        put(self, "file", file)
        put(self, "_layout", (array.shape, array.dtype, array.strides))
        put(self, "_offset", array.__array_interface__["data"][0] - start)

    file: MappedFile
    _layout: tuple[tuple[int, ...], np.dtype[Any], tuple[int, ...]]
    _offset: int

    @property
    def array(self) -> Array:
        shape, dtype, strides = self._layout
        return np.ndarray(shape, dtype, self.file.view(), self._offset, strides)


def settled(constant: Constant, *, copies: bool = False) -> Constant:
    """The constant as a session may keep it: with an array of its own, or as a `FileConstant`.

    Args:
        constant: any.
        copies: whether large ones are copied, too.
    """
    if isinstance(constant, FileConstant):
        return constant
    if isinstance(constant, PackedConstant):
        packed = settled(constant.packed, copies=copies)
        same = packed is constant.packed
        return constant if same else PackedConstant(constant.dtype, constant.shape, packed)
    if isinstance(constant, MadeConstant):
        source = settled(constant.source, copies=copies)
        same = source is constant.source
        return constant if same else constant.made_of(source)
    mapping = mapping_of(constant.array)
    if mapping is None:
        return constant
    if copies or constant.array.nbytes <= OWNED_BYTES:
        return Constant(constant.dtype, constant.shape, owned(constant.array))
    return FileConstant(constant, mapping.file)


def owned(array: Array) -> Array:
    """The array, or a read-only copy of one that lies in a file."""
    if mapping_of(array) is None:
        return array
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


def settled_graph(graph: Graph, *, copies: bool = False) -> Graph:
    """The graph and its bodies with settled constants, those in attributes copied; one object stays one.

    What holds none that have to change stays the same object.
    """
    made: dict[int, Constant] = {}

    def once(constant: Constant) -> Constant:
        found = made.get(id(constant))
        if found is None:
            found = made[id(constant)] = settled(constant, copies=copies)
        return found

    def owned_value(value: Any) -> Any:
        if isinstance(value, tuple) and _holds_constants(value):
            made = tuple(map(owned_value, value))
            return value if all(map(operator.is_, made, value)) else made
        if isinstance(value, Constant):
            return settled(value, copies=True)
        return whole(value) if isinstance(value, Graph) else value

    def with_own_attributes(node: Node) -> Node:
        own = node.attributes
        if not any(_holds_constants(value) for value in own.values()):
            return node
        attributes = {key: owned_value(value) for key, value in own.items()}
        is_same = all(map(operator.is_, attributes.values(), own.values()))
        return node if is_same else replace(node, attributes=attributes)

    def whole(part: Graph) -> Graph:
        constants = {name: once(constant) for name, constant in part.constants.items()}
        nodes = tuple(map(with_own_attributes, part.nodes))
        is_same = all(map(operator.is_, constants.values(), part.constants.values()))
        if is_same and all(map(operator.is_, nodes, part.nodes)):
            return part
        return replace(part, constants=constants, nodes=nodes)

    return whole(graph)


def files_of(graph: Graph) -> tuple[MappedFile, ...]:
    """The files in which constants of a settled graph and of its bodies lie."""
    constants = [*graph.constants.values()]
    for node in every_node(graph):
        if node.attributes:
            constants += [constant for body in node.subgraphs for constant in body.constants.values()]
    held = [_stored(constant) for constant in constants]
    return tuple(dict.fromkeys(constant.file for constant in held if isinstance(constant, FileConstant)))


def release_pages(constant: Constant) -> None:
    """`mapped_file.release_pages` of what a file holds of a constant, if it does."""
    held = _stored(constant)
    if isinstance(held, FileConstant) or mapping_of(held.array) is not None:
        mapped_file.release_pages(held.array)


def _stored(constant: Constant) -> Constant:
    """What memory or a file holds of a constant."""
    if isinstance(constant, MadeConstant):
        return _stored(constant.source)
    return constant.packed if isinstance(constant, PackedConstant) else constant


def _holds_constants(value: Any) -> bool:
    # By types, of which a tuple of a million elements has one or two.
    types = set(map(type, value)) if isinstance(value, tuple) else {type(value)}
    return any(issubclass(type_, Constant | Graph) for type_ in types)
