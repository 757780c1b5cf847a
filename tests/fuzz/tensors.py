"""Tensors of every ONNX element type: as NumPy arrays, as vkml takes them, with random values, in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

Array = np.ndarray[Any, Any]

FLOAT, DOUBLE, FLOAT16, BFLOAT16 = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
)
INT64, INT32, BOOL, STRING = TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.STRING
SIGNED = (TensorProto.INT8, TensorProto.INT16, INT32, INT64)
UNSIGNED = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
INTEGERS = (*SIGNED, *UNSIGNED)
FLOATS = (FLOAT, DOUBLE, FLOAT16)
COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)
NATIVE = (*FLOATS, *INTEGERS, BOOL)
"""The types that NumPy computes with and vkml has operators for."""
FLOAT8 = tuple(code for name, code in TensorProto.DataType.items() if name.startswith("FLOAT8"))
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
"""Floats of 16 bits, computed as float32 and rounded once."""
NARROW = tuple(code for name, code in TensorProto.DataType.items() if name in (
    "INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2", "FLOAT6E2M3", "FLOAT6E3M2"))  # fmt: skip
"""Types of less than a byte."""
WEIGHTS: dict[int, float] = {
    FLOAT: 12.0,
    DOUBLE: 3.0,
    FLOAT16: 3.0,
    INT64: 3.0,
    INT32: 3.0,
    BOOL: 2.0,
    STRING: 0.5,
    BFLOAT16: 0.5,
}
"""How often an element type is chosen where an operator takes several; 0.7 for other integers, else 0.15."""


def weight(code: int) -> float:
    return WEIGHTS.get(code, 0.7 if code in INTEGERS else 0.15)


def numpy_type(code: int) -> np.dtype[Any]:
    """The NumPy type whose values an element type has; object for strings."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(code))


def is_float(code: int) -> bool:
    return code in FLOATS or code == BFLOAT16 or code in FLOAT8 or code == TensorProto.FLOAT4E2M1


def is_computed_float(array: Array) -> bool:
    """Whether operators compute with numbers of this type, and may round them."""
    return array.dtype.kind == "f" or array.dtype in HALVES


def values_of(array: Array, code: int) -> Array:
    """What other runtimes' results mean, which have some types as bits: an array of `numpy_type`."""
    wanted = numpy_type(code)
    if code == STRING:
        return np.asarray([_text(item) for item in array.reshape(-1)], object).reshape(array.shape)
    if array.dtype == wanted or wanted.isbuiltin == 1 or array.dtype.itemsize != wanted.itemsize:
        return array
    return array.astype(wanted) if wanted.name.startswith(("int", "uint")) else array.view(wanted)


def _text(item: Any) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


# -- random values ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fill:
    """How a tensor is filled; kept beside a model's inputs, to fill them again at other sizes."""

    style: str = "any"
    """any, ordinary, specials, wide, whole, same, positive, unit, range, distinct, true"""
    low: float = 0
    """For `range` and `distinct`: the least value and, excluded, the greatest."""
    high: float = 0


ANY = Fill()
STYLES = (
    "ordinary",
    "ordinary",
    "ordinary",
    "specials",
    "specials",
    "wide",
    "whole",
    "whole",
    "same",
    "zeros",
)
SPECIALS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.nan,
    np.inf,
    -np.inf,
    0.5,
    1.5,
    2.5,
    -0.5,
    3.0,
    1e-3,
    1e4,
    -1e4,
    16777216.0,
)
TEXTS = ("", "a", "b", "ab", "é", "x\ny", "long " * 20, "0", "nan")


def indices(low: int, high: int) -> Fill:
    """Integers from `low` up to but without `high`."""
    return Fill("range", low, high)


def random_tensor(rng: np.random.Generator, code: int, shape: Sequence[int], fill: Fill = ANY) -> Array:
    """Random values of an element type, as NumPy has them."""
    shape, dtype = tuple(shape), numpy_type(code)
    style = str(rng.choice(STYLES)) if fill.style == "any" else fill.style
    if code == STRING:
        return np.array([TEXTS[i] for i in rng.integers(0, len(TEXTS), np.prod(shape, dtype=int))],
                        object).reshape(shape)  # fmt: skip
    if style == "range":
        return rng.integers(int(fill.low), max(int(fill.high), int(fill.low) + 1), shape).astype(dtype)
    if style == "distinct":
        size, last = int(np.prod(shape[-1:])), int(fill.high - fill.low)
        rows = [rng.permutation(last)[:size] for _ in range(int(np.prod(shape[:-1])))]
        return (np.array(rows, np.int64).reshape(shape) + int(fill.low)).astype(dtype)
    if style == "true" or code == BOOL:
        return np.asarray(rng.random(shape) < (0.7 if style == "true" else 0.5)).astype(dtype)
    with np.errstate(all="ignore"):
        if code in COMPLEX:
            parts = [random_tensor(rng, FLOAT, shape, fill) for _ in range(2)]
            # An array also where it is one number: a sum of two of these is none.
            return np.asarray(parts[0] + 1j * parts[1]).astype(dtype)
        if is_float(code):
            return _floats(rng, shape, style, dtype)
        return _integers(rng, shape, style, code, dtype)


def _floats(rng: np.random.Generator, shape: tuple[int, ...], style: str, dtype: np.dtype[Any]) -> Array:
    ordinary = np.asarray(rng.standard_normal(shape) * (1 if rng.random() < 0.7 else 5))
    if style == "specials":
        largest, tiny = (float(np.finfo(np.float32).max), 1e-38) if dtype.itemsize >= 4 else (6e4, 6e-8)
        pool = np.array([*SPECIALS, largest, -largest, tiny, -tiny, 2 * tiny])
        share = rng.choice([0.05, 0.3, 0.9])
        ordinary = np.where(rng.random(shape) < share, rng.choice(pool, shape), ordinary)
    elif style == "wide":
        reach = 30 if dtype.itemsize >= 4 else 4
        ordinary = np.asarray(ordinary * 10.0 ** rng.uniform(-reach, reach, shape))
    elif style == "whole":
        ordinary = np.asarray(rng.integers(-9, 10, shape), np.float64)
    elif style in ("same", "zeros"):
        ordinary = np.full(shape, 0.0 if style == "zeros" else rng.choice(SPECIALS[2:4] + SPECIALS[7:]))
    elif style == "positive":
        ordinary = np.abs(ordinary) + 0.1
    elif style == "unit":
        ordinary = np.asarray(rng.uniform(-1, 1, shape))
    return ordinary.astype(dtype)


def _integers(
    rng: np.random.Generator, shape: tuple[int, ...], style: str, code: int, dtype: np.dtype[Any]
) -> Array:
    if code in NARROW:
        return rng.integers(0, 2, shape).astype(dtype)
    info = np.iinfo(dtype)
    near = rng.integers(-9 if info.min else 0, 10, shape)
    if style == "specials":
        edges = np.array([info.min, info.max, 0, 1, info.max - 1, info.min + 1], dtype)
        return np.where(rng.random(shape) < 0.3, rng.choice(edges, shape), near.astype(dtype))
    if style == "wide":
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    if style in ("same", "zeros", "positive"):
        near = np.abs(near) + 1 if style == "positive" else np.zeros(shape, np.int64)
    return np.asarray(near).astype(dtype)


# -- files --------------------------------------------------------------------------------------------------


def save_tensors(path: Path, entries: Sequence[tuple[str, int, Array]], notes: dict[str, Any]) -> None:
    """Writes labelled tensors and notes into an .npz: bits and texts, for NumPy's format lacks most types."""
    arrays: dict[str, Any] = {}
    described = []
    for number, (label, code, array) in enumerate(entries):
        entry = {"label": label, "code": code, "shape": list(array.shape)}
        if code == STRING:
            entry["texts"] = [_text(item) for item in array.reshape(-1)]
        else:
            flat = np.ascontiguousarray(array.astype(numpy_type(code), copy=False)).reshape(-1)
            arrays[f"tensor_{number}"] = flat.view(np.uint8)
        described.append(entry)
    arrays["notes"] = np.frombuffer(json.dumps({"tensors": described, **notes}).encode(), np.uint8)
    np.savez(path, **arrays)


def load_tensors(path: Path) -> tuple[list[tuple[str, int, Array]], dict[str, Any]]:
    """What `save_tensors` wrote."""
    with np.load(path, allow_pickle=False) as file:
        notes = json.loads(bytes(file["notes"]))
        found = []
        for number, entry in enumerate(notes.pop("tensors")):
            code, shape = entry["code"], entry["shape"]
            if code == STRING:
                array = np.array(entry["texts"], object).reshape(shape)
            else:
                array = file[f"tensor_{number}"].view(numpy_type(code)).reshape(shape)
            found.append((entry["label"], code, array))
    return found, notes
