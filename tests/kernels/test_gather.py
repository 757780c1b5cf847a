"""Operators whose indices are data, on Vulkan: every axis, negative indices, strides, bad indices."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from tests.vulkan_cases import Array, Cases, Fixed
from vkml import errors
from vkml.onnx import save_graph

TYPES = ("float32", "float16", "int32", "int64", "uint8", "bool")


def indices(cases: Cases, size: int, shape: tuple[int, ...], name: str) -> Array:
    return np.asarray(cases.random.integers(-size, size, shape)).astype(name)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_gather(device_name: str, is_strided: bool) -> None:
    cases = Cases(51)
    for name in TYPES:
        for kind in ("int32", "int64"):
            shape = cases.shape(3, 2, 6)
            axis = int(cases.random.integers(0, 3))
            chosen = indices(cases, shape[axis], cases.shape(int(cases.random.integers(0, 3))), kind)
            cases.add("Gather", cases.array(name, shape), chosen, axis=axis)
    cases.add("Gather", cases.array("float32", (5,)), np.array(-2, np.int64))
    cases.add("Gather", cases.array("float32", (5, 3)), np.zeros((0, 2), np.int64))
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_gather_elements_and_tuples(device_name: str, is_strided: bool) -> None:
    cases = Cases(52)
    for name in TYPES:
        for kind in ("int32", "int64"):
            shape = cases.shape(3, 2, 6)
            axis = int(cases.random.integers(-3, 3))
            smaller = tuple(int(cases.random.integers(1, size + 1)) for size in shape)
            cases.add(
                "GatherElements",
                cases.array(name, shape),
                indices(cases, shape[axis], smaller, kind),
                axis=axis,
            )
            for batch in (0, 1):
                length = int(cases.random.integers(1, 3 - batch + 1))
                where = (*shape[:batch], *cases.shape(1), length)
                tuples = np.stack(
                    [indices(cases, shape[batch + place], where[:-1], kind) for place in range(length)],
                    axis=-1,
                )
                cases.add("GatherND", cases.array(name, shape), tuples, batch_dims=batch)
    cases.check(device_name, is_strided=is_strided)


def distinct(cases: Cases, shape: tuple[int, ...], count: int, length: int, kind: str) -> Array:
    """`count` different index tuples, some of them counted from the end."""
    sizes = shape[:length]
    flat = cases.random.permutation(int(np.prod(sizes)))[:count]
    found = np.stack(np.unravel_index(flat, sizes), axis=-1)
    return np.where(cases.random.random(found.shape) < 0.3, found - np.array(sizes), found).astype(kind)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_scatter(device_name: str, is_strided: bool) -> None:
    cases = Cases(53)
    for name in TYPES:
        for kind in ("int32", "int64"):
            shape = cases.shape(3, 2, 6)
            length = int(cases.random.integers(1, 4))
            count = int(cases.random.integers(1, np.prod(shape[:length]) + 1))
            tuples = distinct(cases, shape, count, length, kind)
            updates = cases.array(name, (count, *shape[length:]))
            cases.add("ScatterND", cases.array(name, shape), tuples, updates)
            axis = int(cases.random.integers(0, 3))
            lanes = cases.random.random(shape).argsort(axis=axis).astype(kind)
            cut = tuple(slice(0, int(cases.random.integers(1, size + 1))) for size in shape)
            cases.add(
                "ScatterElements",
                cases.array(name, shape),
                lanes[cut],
                cases.array(name, lanes[cut].shape),
                axis=axis,
            )
    cases.check(device_name, is_strided=is_strided)


def test_scatter_of_repeated_indices(device_name: str) -> None:
    cases = Cases(54)
    for reduction in ("add", "mul", "max", "min"):
        for name in ("float32", "float16", "int32", "int64"):
            x = cases.array(name, (4, 5))
            chosen = cases.random.integers(0, 4, (7, 1))
            cases.add(
                "ScatterND", x, chosen, cases.array(name, (7, 5)), reduction=reduction, may_fall_back=True
            )
            lanes = cases.random.integers(-4, 4, (3, 5))
            cases.add(
                "ScatterElements",
                x,
                lanes,
                cases.array(name, (3, 5)),
                reduction=reduction,
                may_fall_back=True,
            )
    cases.check(device_name)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_slices_of_repeated_indices(device_name: str, is_strided: bool) -> None:
    """More updates than a workgroup looks at at a time, and longer slices, by one index and by two."""
    cases = Cases(57)
    for reduction in ("add", "mul", "max", "min"):
        for name, kind in (("float32", "int64"), ("int32", "int32")):
            places = cases.random.integers(-5, 5, (600, 1)).astype(kind)
            cases.add(
                "ScatterND", cases.array(name, (5, 20)), places, cases.array(name, (600, 20)),
                reduction=reduction, may_fall_back=name != "float32",
            )  # fmt: skip
            pairs = cases.random.integers(0, (3, 2), (4, 5, 2)).astype(kind)
            cases.add(
                "ScatterND", cases.array(name, (3, 2, 300)), pairs, cases.array(name, (4, 5, 300)),
                reduction=reduction, may_fall_back=name != "float32",
            )  # fmt: skip
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_one_hot(device_name: str, is_strided: bool) -> None:
    cases = Cases(55)
    for kind in ("int32", "int64", "float32"):
        for axis in (-1, 0, 1):
            chosen = cases.random.integers(-6, 7, (3, 4)).astype(kind)
            values = Fixed(np.array([0.5, 2], np.float32))
            cases.add("OneHot", chosen, Fixed(np.array(5, np.int64)), values, axis=axis)
    cases.check(device_name, is_strided=is_strided)


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"])
@pytest.mark.parametrize("wrong", [5, -6, 2**31 - 1, 2**40, -(2**33)])
def test_an_index_out_of_range_is_an_error(device_name: str, op: str, wrong: int) -> None:
    cases = Cases(56)
    x = cases.array("float32", (5, 3))
    good = np.zeros((2, 3) if op.endswith("Elements") else (2, 1), np.int64)
    updates = [] if op.startswith("Gather") else [np.zeros((2, 3), np.float32)]
    cases.add(op, x, good, *updates)
    graph, feed, wanted = cases.graph()
    with vkml.InferenceSession(save_graph(graph), devices=device_name) as session:
        [before] = session.run(wanted, feed)
        bad = good.copy()
        bad[1, 0] = wrong
        with pytest.raises(errors.IndexOutOfRange, match="case0"):
            session.run(wanted, {**feed, "c0x1": bad})
        [after] = session.run(wanted, feed)
    np.testing.assert_array_equal(before, after)
