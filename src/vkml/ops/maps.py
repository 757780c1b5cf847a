"""Maps of ai.onnx.ml, from keys to numbers or strings: made of scores, and made tensors again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph, RuntimeException
from vkml.ir.dtypes import FLOAT32, INT64, STRING, DType
from vkml.ir.graph import Node
from vkml.ir.operator import INTS, OPTIONAL, STRINGS, Array, Operator, operator
from vkml.ir.types import UNKNOWN, Known, MapType, MapValue, SequenceType, TensorType, ValueType
from vkml.ops.checks import present, require_dtype, required
from vkml.ops.scores import DOMAIN, LABEL_TYPES, as_rows, labels_of


class _OnMaps(Operator):
    """Base of operators that take or make maps."""

    domain = DOMAIN
    stands_alone = True


def _map_type(node: Node, inputs: Sequence[Known | None], key: DType) -> MapType | None:
    """The type of a node's first input, a map with keys of a type; None where it is not known."""
    found = required(node, inputs, 0).stated
    if found.is_unknown:
        return None
    if not isinstance(found, MapType):
        raise InvalidGraph(f"{node.label}: its input must be a map, it is {found}")
    if found.key != key:
        raise InvalidGraph(f"{node.label}: its input must have keys of {key.name}, it is {found}")
    return found


def _map(node: Node, inputs: Sequence[Any], key: DType) -> MapValue:
    found = inputs[0]
    if not isinstance(found, MapValue) or found.type.key != key:
        what = found.type if isinstance(found, MapValue) else "none"
        raise RuntimeException(f"{node.label}: its input must be a map with keys of {key.name}, it is {what}")
    return found


@operator()
class ZipMap(_OnMaps):
    """Each row of scores as a map from labels to numbers."""

    attributes = {"classlabels_int64s": OPTIONAL, "classlabels_strings": OPTIONAL}
    attribute_types = LABEL_TYPES

    def check(self, node: Node) -> None:
        labels_of(node)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        x = required(node, inputs, 0).type
        if not x.is_unknown:
            require_dtype(node, required(node, inputs, 0), (FLOAT32,), "X")
        return [SequenceType(MapType(labels_of(node)[0], FLOAT32))]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        rows, (key, labels) = as_rows(present(inputs, 0)), labels_of(node)
        type_ = MapType(key, FLOAT32)
        if rows.ndim != 2 or rows.shape[1] != len(labels):
            raise RuntimeException(
                f"{node.label}: scores of the shape {list(rows.shape)} do not fit {len(labels)} labels"
            )
        return [[MapValue(type_, zip(labels, row, strict=True)) for row in rows.tolist()]]


@operator()
class DictVectorizer(_OnMaps):
    """The values of a map in the order of a vocabulary, zeros or empty strings where a key is not there."""

    attributes = {"int64_vocabulary": OPTIONAL, "string_vocabulary": OPTIONAL}
    attribute_types = {"int64_vocabulary": INTS, "string_vocabulary": STRINGS}

    def check(self, node: Node) -> None:
        self._vocabulary(node)

    def _vocabulary(self, node: Node) -> tuple[Any, ...]:
        texts, numbers = node.attributes["string_vocabulary"], node.attributes["int64_vocabulary"]
        if bool(texts) == bool(numbers):
            raise InvalidGraph(
                f"{node.label}: one of string_vocabulary and int64_vocabulary must be given, and no more"
            )
        return tuple(texts or numbers)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        found = _map_type(node, inputs, self._key(node))
        return [UNKNOWN if found is None else TensorType(found.element, (1, len(self._vocabulary(node))))]

    def _key(self, node: Node) -> DType:
        return STRING if node.attributes["string_vocabulary"] else INT64

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        given, words = _map(node, inputs, self._key(node)), self._vocabulary(node)
        nothing: Any = "" if given.type.element == STRING else 0
        made = np.empty((1, len(words)), given.type.element.storage)
        made[0, :] = [given.get(word, nothing) for word in words]
        return [made]


_CAST: Mapping[str, DType] = {"TO_FLOAT": FLOAT32, "TO_STRING": STRING, "TO_INT64": INT64}


@operator()
class CastMap(_OnMaps):
    """The values of a map by their keys, in order or at the places that the keys are."""

    attributes = {"cast_to": "TO_FLOAT", "map_form": "DENSE", "max_map": 1}

    def check(self, node: Node) -> None:
        if node.attributes["cast_to"] not in _CAST or node.attributes["map_form"] not in ("DENSE", "SPARSE"):
            raise InvalidGraph(
                f"{node.label}: cast_to is {node.attributes['cast_to']!r} (known are {', '.join(_CAST)}), "
                f"map_form {node.attributes['map_form']!r} (known are DENSE, SPARSE)"
            )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        _map_type(node, inputs, INT64)
        count = None if node.attributes["map_form"] == "DENSE" else node.attributes["max_map"]
        return [TensorType(_CAST[node.attributes["cast_to"]], (1, count))]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        given, dtype = _map(node, inputs, INT64), _CAST[node.attributes["cast_to"]]
        keys = sorted(given)
        values = [_cast(node, given[key], dtype) for key in keys]
        if node.attributes["map_form"] == "SPARSE":
            count = node.attributes["max_map"]
            if keys and not 0 <= keys[0] <= keys[-1] < count:
                raise RuntimeException(
                    f"{node.label}: keys are {keys[0]} to {keys[-1]}, those below {count} have a place"
                )
            filled: list[Any] = ["" if dtype == STRING else 0] * count
            for key, value in zip(keys, values, strict=True):
                filled[key] = value
            values = filled
        made: Array = np.empty((1, len(values)), dtype.storage)
        made[0, :] = values
        return [made]


def _cast(node: Node, value: Any, dtype: DType) -> Any:
    try:
        return str(value) if dtype == STRING else int(float(value)) if dtype == INT64 else float(value)
    except ValueError as error:
        raise RuntimeException(f"{node.label}: {value!r} is no number: {error}") from None
