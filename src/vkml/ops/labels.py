"""Operators of ai.onnx.ml that look values up in a table: LabelEncoder, CategoryMapper, OneHotEncoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph, RuntimeException
from vkml.ir.dtypes import FLOAT32, FLOAT64, INT16, INT32, INT64, STRING, DType, from_numpy
from vkml.ir.graph import Node
from vkml.ir.lazy import kept
from vkml.ir.operator import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    OPTIONAL,
    STRINGS,
    TENSOR,
    Array,
    Operator,
    operator,
)
from vkml.ir.operator import STRING as TEXT
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.scores import DOMAIN
from vkml.ops.texts import text_list, texts
from vkml.ops.upgrading import renew

_LISTS: Mapping[str, DType] = {"strings": STRING, "int64s": INT64, "floats": FLOAT32}
_DEFAULTS: Mapping[str, Any] = {"string": "_Unused", "int64": -1, "float": -0.0}
_TABLES = (STRING, INT64, FLOAT32, INT32, INT16, FLOAT64)
"""Types that tables have keys and values of."""


class Table:
    """Finds the places of keys; of keys that are there twice, the last."""

    def __init__(self, keys: Array) -> None:
        self._texts: dict[str, int] | None = None
        if keys.dtype == object:
            self._texts = {text: place for place, text in enumerate(text_list(keys))}
            return
        nan = np.flatnonzero(np.isnan(keys)) if keys.dtype.kind == "f" else np.zeros(0, np.int64)
        self._nan = int(nan[-1]) if len(nan) else -1
        order = np.argsort(keys, kind="stable")[: len(keys) - len(nan)]
        ordered = keys[order]
        is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)]
        self._keys, self._places = ordered[is_last], order[is_last]

    def find(self, values: Array) -> Array:
        """The places of values, -1 where a value is no key."""
        if self._texts is not None:
            get = self._texts.get
            found = np.array([get(text, -1) for text in text_list(values)], np.intp)
            return found.reshape(values.shape)
        if not len(self._keys):
            places = np.full(values.shape, -1, np.intp)
        else:
            at = np.minimum(np.searchsorted(self._keys, values), len(self._keys) - 1)
            places = np.where(self._keys[at] == values, self._places[at], -1)
        if self._nan >= 0:
            places = np.where(np.isnan(values), self._nan, places)
        return np.asarray(places)


class _Lookup(Operator):
    """An operator that replaces each element by what a table has for it."""

    domain = DOMAIN

    def table(self, node: Node, source: DType) -> tuple[Array, Array, Any]:
        """The keys for elements of a type, the values, and what stands for all else."""
        raise NotImplementedError(self.name)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        keys, values, _ = self.table(node, x.dtype)
        require_dtype(node, x, (from_numpy(keys.dtype),), "X")
        return [check_size(node, from_numpy(values.dtype), x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        source = from_numpy(x.dtype)
        keys, values, default = self.table(node, source)
        places = kept(node, f"table of {source}", lambda node: Table(keys)).find(x)
        made = np.empty(places.shape, values.dtype)
        made[...] = default
        is_found = places >= 0
        made[is_found] = values[places[is_found]]
        return [made]


@operator()
class LabelEncoder(_Lookup):
    """Each element replaced by the value that stands beside it among the keys."""

    attributes = {
        **{f"{side}_{kind}": OPTIONAL for side in ("keys", "values") for kind in (*_LISTS, "tensor")},
        **{f"default_{kind}": default for kind, default in _DEFAULTS.items()},
        "default_tensor": OPTIONAL,
    }
    attribute_types = {
        **{
            f"{side}_{kind}": type_
            for side in ("keys", "values")
            for kind, type_ in (
                ("strings", STRINGS),
                ("int64s", INTS),
                ("floats", FLOATS),
                ("tensor", TENSOR),
            )
        },
        "default_tensor": TENSOR,
        "classes_strings": STRINGS,
        "default_string": TEXT,
        "default_int64": INT,
        "default_float": FLOAT,
    }

    def upgrade(self, node: Node) -> Node:
        if node.version >= 2:
            return node
        classes = node.attributes.get("classes_strings", ())
        return renew(
            node,
            op="CategoryMapper",
            drop=["classes_strings"],
            attributes={"cats_strings": tuple(classes), "cats_int64s": tuple(range(len(classes)))},
        )

    def check(self, node: Node) -> None:
        self.table(node, STRING)

    def table(self, node: Node, source: DType) -> tuple[Array, Array, Any]:
        keys, values = self._side(node, "keys"), self._side(node, "values")
        if len(keys) != len(values):
            raise InvalidGraph(f"{node.label}: there are {len(keys)} keys and {len(values)} values")
        default = node.attributes["default_tensor"]
        if default is not None:
            return keys, values, np.asarray(default.array).reshape(-1)[0]
        name = "string" if values.dtype == object else "int64" if values.dtype.kind == "i" else "float"
        return keys, values, node.attributes[f"default_{name}"]

    def _side(self, node: Node, side: str) -> Array:
        given = [kind for kind in (*_LISTS, "tensor") if node.attributes[f"{side}_{kind}"] is not None]
        if len(given) != 1:
            raise InvalidGraph(
                f"{node.label}: one of {side}_strings, {side}_int64s, {side}_floats and {side}_tensor must "
                f"be given, there are {len(given)}"
            )
        value = node.attributes[f"{side}_{given[0]}"]
        if given[0] == "tensor":
            if value.dtype not in _TABLES:
                raise InvalidGraph(f"{node.label}: {side}_tensor is of type {value.dtype.name}")
            found = np.asarray(value.array).reshape(-1)
            return texts(found) if value.dtype == STRING else found
        made = np.empty(len(value), _LISTS[given[0]].storage)
        made[:] = value
        return made


@operator()
class CategoryMapper(_Lookup):
    """Strings replaced by the integers beside them, or integers by the strings."""

    attributes = {
        "cats_strings": OPTIONAL,
        "cats_int64s": OPTIONAL,
        "default_string": "_Unused",
        "default_int64": -1,
    }
    attribute_types = {"cats_strings": STRINGS, "cats_int64s": INTS}

    def check(self, node: Node) -> None:
        self.table(node, STRING)

    def table(self, node: Node, source: DType) -> tuple[Array, Array, Any]:
        names = np.empty(len(node.attributes["cats_strings"] or ()), np.object_)
        names[:] = node.attributes["cats_strings"] or ()
        numbers = np.asarray(node.attributes["cats_int64s"] or (), np.int64)
        if len(names) != len(numbers):
            raise InvalidGraph(
                f"{node.label}: cats_strings has {len(names)} elements, cats_int64s {len(numbers)}"
            )
        if source == STRING:
            return names, numbers, node.attributes["default_int64"]
        return numbers, names, node.attributes["default_string"]


@operator()
class OneHotEncoder(Operator):
    """Each element as ones and zeros, one for each category; floats stand for the integers before them."""

    domain = DOMAIN
    attributes = {"cats_strings": OPTIONAL, "cats_int64s": OPTIONAL, "zeros": 1}
    attribute_types = {"cats_strings": STRINGS, "cats_int64s": INTS}

    def check(self, node: Node) -> None:
        self._categories(node)

    def _categories(self, node: Node) -> Array:
        names, numbers = node.attributes["cats_strings"], node.attributes["cats_int64s"]
        if bool(names) == bool(numbers):
            raise InvalidGraph(
                f"{node.label}: one of cats_strings and cats_int64s must be given, and no more"
            )
        found = np.empty(len(names or numbers), np.object_ if names else np.int64)
        found[:] = names or numbers
        return found

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, categories = required(node, inputs, 0), self._categories(node)
        allowed = (STRING,) if categories.dtype == object else (INT64, FLOAT32, INT32, FLOAT64)
        require_dtype(node, x, allowed, "X")
        return [check_size(node, FLOAT32, (*x.dims, len(categories)))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, categories = present(inputs, 0), self._categories(node)
        if x.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                x = x.astype(np.int64)
        places = kept(node, "table", lambda node: Table(categories)).find(x)
        if not node.attributes["zeros"] and (places < 0).any():
            raise RuntimeException(
                f"{node.label}: {x[places < 0].reshape(-1)[0]!r} is none of its {len(categories)} categories"
            )
        return [(places[..., None] == np.arange(len(categories))).astype(np.float32)]
