"""Random shapes, values and attributes: operators answer as they inferred, or raise vkml's errors."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import pytest

import vkml.ops  # noqa: F401  (fills the registry)
from vkml.errors import Error
from vkml.ir import Constant, Known, Node, dtypes, find, static
from vkml.ir.operator import MANY, REGISTRY, normalise_attributes

FAMILIES = {
    f"vkml.ops.{family}"
    for family in (
        *("matmul", "einsum", "conv", "conv_transpose", "pool", "unpool", "norm", "image", "sampling"),
        *("shape", "slicing", "padding", "rearrange", "creation", "index", "selection"),
    )
}
UPGRADED = {"Scatter", "Upsample"}
"""Names that no node has any more once it is in its newest form."""
OPERATORS = sorted(
    name
    for (_, name), spec in REGISTRY.items()
    if type(spec).__module__ in FAMILIES and name not in UPGRADED and spec.inputs[1]
)

INTEGERS = [0, 0, 1, 1, 1, 2, 2, 3, 4, -1, -1, -2, -3, 7, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]
LISTS = {"axes", "dilations", "kernel_shape", "output_padding", "output_shape", "pads", "perm", "strides"}
STRINGS = {
    "auto_pad": ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "?"],
    "coordinate_transformation_mode": [
        "half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
        "?",
    ],
    "equation": ["ij,jk->ik", "ij", "...i->...", "ii->i", "->", ",", "i...j...", "ij->", "a,b->ab", "é"],
    "keep_aspect_ratio_policy": ["stretch", "not_larger", "not_smaller"],
    "mode": [
        "constant",
        "reflect",
        "edge",
        "wrap",
        "nearest",
        "linear",
        "cubic",
        "DCR",
        "CRD",
        "avg",
        "max",
        "circular",
    ],
    "nearest_mode": ["floor", "ceil", "round_prefer_floor"],
    "padding_mode": ["zeros", "border", "reflection"],
    "reduction": ["none", "add", "max"],
}
SELDOM_RIGHT = {"ConvTranspose", "Compress", "AffineGrid", "RoiAlign", "Col2Im", "ConvInteger", "MaxUnpool"}
"""Whose shapes fit together by chance too seldom; their own tests show right cases."""
TYPES = [np.float32] * 6 + [np.int64] * 6 + [np.float16, np.int32, np.uint8, np.int8, np.bool_]


FLOATS = {
    "alpha",
    "beta",
    "bias",
    "cubic_coeff_a",
    "epsilon",
    "extrapolation_value",
    "momentum",
    "spatial_scale",
}


def _integers(generator: np.random.Generator, length: int) -> tuple[int, ...]:
    """Mostly small ones."""
    choices = INTEGERS if generator.random() < 0.2 else INTEGERS[:-5]
    return tuple(choices[index] for index in generator.integers(0, len(choices), length))


def _attribute(generator: np.random.Generator, key: str, rank: int) -> Any:
    if key in STRINGS:
        return STRINGS[key][generator.integers(len(STRINGS[key]))]
    if key in LISTS:
        length = rank if generator.integers(4) else int(generator.integers(0, 6))
        if key == "pads":
            length *= 2
        return _integers(generator, length)
    if key in FLOATS:
        return [0.0, 1.0, -0.5, 1e-5, math.inf, math.nan, 3e38][generator.integers(7)]
    if key == "value":
        return Constant(dtypes.INT64, (1,), np.array([3], np.int64))
    if key == "dtype":
        return int(generator.integers(0, 26))
    return _integers(generator, 1)[0]


def _array(generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return np.asarray(generator.standard_normal(shape) * 2).astype(dtype)
    if dtype == np.int64 and generator.random() < 0.1:
        return np.array(INTEGERS)[generator.integers(0, len(INTEGERS), shape)]
    return np.asarray(generator.integers(0 if generator.random() < 0.5 else -3, 5, shape)).astype(dtype)


def _case(op: str, generator: np.random.Generator) -> tuple[Node, list[np.ndarray | None]]:
    spec = find(Node(op, (), ("y",)))
    rank = int(generator.integers(0, 5))
    shape = tuple(int(size) for size in generator.choice([0, 1, 1, 2, 2, 3, 4, 4, 5], rank))
    common = TYPES[generator.integers(len(TYPES))]
    count = int(generator.integers(spec.inputs[0], min(spec.inputs[1], spec.inputs[0] + 3) + 1))
    arrays: list[np.ndarray | None] = []
    for index in range(count):
        roll = generator.random()
        if index >= spec.inputs[0] and roll < 0.2 and spec.inputs[1] != MANY:
            arrays.append(None)
        elif index in spec.value_inputs and roll < 0.9:
            kind = np.float32 if op == "Resize" and index < 3 else np.int64
            arrays.append(_array(generator, (max(rank + int(generator.integers(-1, 2)), 0),), kind))
        elif index and roll < 0.5:
            own = tuple(
                int(size) for size in generator.choice([0, 1, 1, 2, 3, 4], int(generator.integers(0, 4)))
            )
            arrays.append(_array(generator, own, TYPES[generator.integers(len(TYPES))]))
        elif index and roll < 0.7 and rank > 1:
            arrays.append(_array(generator, shape[1:2], common))
        else:
            arrays.append(_array(generator, shape, common if roll < 0.9 else np.int64))
    attributes = {
        key: _attribute(generator, key, max(rank - 2, 0))
        for key, default in spec.attributes.items()
        if type(default).__name__ == "_Required" or generator.random() < 0.4
    }
    names = tuple("" if array is None else f"x{index}" for index, array in enumerate(arrays))
    outputs = int(generator.integers(spec.outputs[0], min(spec.outputs[1], 4) + 1))
    node = Node(op, names, tuple(f"y{index}" for index in range(outputs)), attributes, "hostile", version=23)
    return dataclasses.replace(node, attributes=normalise_attributes(node, spec)), arrays


@pytest.mark.parametrize("op", OPERATORS)
def test_answers_or_raises(op: str) -> None:
    generator = np.random.default_rng(sum(map(ord, op)))
    answered = 0
    for _ in range(400):
        node, arrays = _case(op, generator)
        spec = find(node)
        types = [None if a is None else static(dtypes.from_numpy(a.dtype), a.shape) for a in arrays]
        known = [
            None if kind is None else Known(kind, array if index in spec.value_inputs else None)
            for index, (kind, array) in enumerate(zip(types, arrays, strict=True))
        ]
        without_values = [None if kind is None else Known(kind) for kind in types]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                inferred = spec.infer(node, known)
        except Error as error:
            assert "hostile" in str(error), error
            inferred = None
        try:
            unknown = spec.infer(node, without_values)
        except Error:
            unknown = None
        if inferred is None:
            continue
        assert len(inferred) == len(node.outputs), node
        if unknown is not None:
            for exact, vague in zip(inferred, unknown, strict=True):
                assert vague.dtype == exact.dtype
                if vague.shape is not None and exact.shape is not None:
                    pairs = zip(vague.shape, exact.shape, strict=True)
                    assert all(v is None or e is None or v == e for v, e in pairs), (node, exact)
        if any(type_.is_static and type_.bytes > 2**20 for type_ in inferred):
            continue
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                results = spec.evaluate(node, arrays)
        except Error as error:
            assert "hostile" in str(error), error
            continue
        answered += 1
        for type_, result in zip(inferred, results, strict=True):
            assert result.dtype == type_.dtype.storage, (node, type_, result.dtype)
            assert type_.shape is not None
            sizes = zip(type_.shape, result.shape, strict=True)
            assert all(wanted in (None, size) for wanted, size in sizes), (node, type_, result.shape)
    assert answered or op in SELDOM_RIGHT, (
        f"none of the cases for {op} was a right one: the test shows too little"
    )
