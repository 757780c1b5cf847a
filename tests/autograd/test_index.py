"""Gradients of operators whose indices are data, and of those that choose elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal
from vkml import tracing
from vkml.ir.dtypes import INT64

RANDOM = np.random.default_rng(32)


def leaf(array: Any) -> tracing.Traced:
    value = tracing.value_of(array)
    value.tracks = value.is_leaf = True
    return value


def places(size: int, *shape: int, dtype: Any = np.int64) -> Any:
    """Indices, negative ones among them."""
    return RANDOM.integers(-size, size, shape).astype(dtype)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis: int, shape: tuple[int, ...], device_name: str) -> None:
    x = normal(RANDOM, 3, 4, 2)
    check("Gather", [x, places(x.shape[axis], *shape, dtype=np.int32)], {"axis": axis}, device=device_name)


def test_an_embedding_adds_up_rows(device_name: str) -> None:
    torch = pytest.importorskip("torch")

    check(
        "Gather", [normal(RANDOM, 6, 3), RANDOM.integers(0, 6, (2, 5))],
        torch=lambda x, i: torch.nn.functional.embedding(i, x), device=device_name,
    )  # fmt: skip


def test_one_constant_index_is_put_back_by_padding() -> None:
    x = leaf(normal(RANDOM, 2, 4, 3))
    made = tracing.apply("Gather", x, tracing.constant([-2], INT64), axis=1)
    [found] = tracing.gradients([made], [tracing.value_of(np.ones((2, 1, 3)))], [x])
    assert found is not None and found.application is not None and found.application.node.op == "Pad"
    tracing.evaluate([found])
    wanted = np.zeros((2, 4, 3))
    wanted[:, 2] = 1
    np.testing.assert_array_equal(np.asarray(found.data), wanted)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis: int, device_name: str) -> None:
    torch = pytest.importorskip("torch")

    x = normal(RANDOM, 3, 4, 5)
    check("GatherElements", [x, places(x.shape[axis], 2, 3, 4)], {"axis": axis}, device=device_name)
    check(
        "GatherElements", [x, RANDOM.integers(0, x.shape[axis], (2, 3, 4))], {"axis": axis},
        torch=lambda x, i: torch.gather(x, axis, i), device=device_name,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "indices"),
    [(0, (5, 2)), (0, (2, 2, 3)), (1, (3, 2)), (1, (3, 2, 1)), (2, (3, 4, 6, 1)), (0, (2, 1))],
)
def test_gather_tuples(batch: int, indices: tuple[int, ...], device_name: str) -> None:
    x = normal(RANDOM, 3, 4, 5)
    sizes = x.shape[batch : batch + indices[-1]]
    found = np.stack([places(size, *indices[:-1]) for size in sizes], -1)
    check("GatherND", [x, found], {"batch_dims": batch}, device=device_name)


def distinct(size: int, *shape: int, axis: int) -> Any:
    """Indices along an axis of which none is there twice."""
    moved = np.moveaxis(np.empty(shape, np.int64), axis, -1)
    found = np.stack([RANDOM.permutation(size)[: moved.shape[-1]] for _ in range(moved[..., 0].size)])
    return np.moveaxis(found.reshape(moved.shape), -1, axis)


@pytest.mark.parametrize("axis", [0, 2])
def test_scatter_elements(axis: int, device_name: str) -> None:
    torch = pytest.importorskip("torch")

    x = normal(RANDOM, 3, 4, 5)
    shape = (2, 3, 3)
    indices = distinct(x.shape[axis], *shape, axis=axis)
    check(
        "ScatterElements", [x, indices, normal(RANDOM, *shape)], {"axis": axis},
        torch=lambda x, i, u: torch.scatter(x, axis, i, u), device=device_name,
    )  # fmt: skip


REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@pytest.mark.parametrize("reduction", list(REDUCTIONS))
def test_scatter_elements_with_a_reduction(reduction: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")

    indices = RANDOM.integers(0, 3, (4, 6))
    check(
        "ScatterElements", [normal(RANDOM, 4, 3), indices, normal(RANDOM, 4, 6)],
        {"axis": 1, "reduction": reduction},
        torch=lambda x, i, u: torch.scatter_reduce(x, 1, i, u, REDUCTIONS[reduction]), device=device_name,
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["mul", "max", "min"])
def test_zeros_and_ties_of_a_scatter(reduction: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")

    x = np.array([[0.0, 2, 3, 1], [1, 0, 2, 2]])
    updates = np.array([[2.0, 0, 0, 3, 5, 1], [0, 4, 2, 2, 0, 2]])
    indices = np.array([[0, 1, 2, 2, 1, 3], [0, 0, 1, 2, 3, 3]])
    check(
        "ScatterElements", [x, indices, updates], {"axis": 1, "reduction": reduction},
        torch=lambda x, i, u: torch.scatter_reduce(x, 1, i, u, REDUCTIONS[reduction]),
        differences=reduction == "mul", second_order=False, device=device_name,
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", *REDUCTIONS])
@pytest.mark.parametrize("length", [1, 3])
def test_scatter_tuples(length: int, reduction: str, device_name: str) -> None:
    x = normal(RANDOM, 3, 4, 2)
    sizes = x.shape[:length]
    count = min(int(np.prod(sizes)), 5)
    flat = RANDOM.permutation(int(np.prod(sizes)))[:count]
    if reduction != "none":
        flat[1] = flat[0]
    indices = np.stack(np.unravel_index(flat, sizes), -1)
    inputs = [x, indices, normal(RANDOM, count, *x.shape[length:])]
    check("ScatterND", inputs, {"reduction": reduction}, device=device_name)


@pytest.mark.parametrize(
    ("mode", "positions"), [("linear", None), ("linear", [1, 3]), ("circular", [4, 2]), ("circular", None)]
)
@pytest.mark.parametrize("axis", [1, -2])
def test_a_cache_written_from_positions_on(axis: int, mode: str, positions: Any, device_name: str) -> None:
    shape = (2, 5, 3) if axis == 1 else (2, 2, 5, 3)
    cache, update = normal(RANDOM, *shape), normal(RANDOM, *(2 if size == 5 else size for size in shape))
    inputs = [cache, update, *([] if positions is None else [np.array(positions, np.int64)])]
    check("TensorScatter", inputs, {"axis": axis, "mode": mode}, device=device_name)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(("axis", "largest"), [(-1, 1), (0, 0)])
def test_top_k(axis: int, largest: int, outputs: int, device_name: str) -> None:
    x = RANDOM.permutation(24).reshape(4, 6) / 4
    check(
        "TopK", [x, np.array([2], np.int64)], {"axis": axis, "largest": largest}, outputs=outputs,
        torch=lambda x, _: x.topk(2, axis, bool(largest)), device=device_name,
    )  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int, device_name: str) -> None:
    indices = np.array([[0, 2, -1], [3, 9, 1]], np.int64)
    depth = np.array(4, np.int64)
    check("OneHot", [indices, depth, normal(RANDOM, 2)], {"axis": axis}, device=device_name)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("length", ["all", "fewer", "more"])
def test_compress(axis: int | None, length: str, device_name: str) -> None:
    x = normal(RANDOM, 4, 5)
    size = x.size if axis is None else x.shape[axis]
    condition = RANDOM.integers(0, 2, size + {"all": 0, "fewer": -2, "more": 3}[length]).astype(bool)
    condition[0], condition[1] = False, True
    check(
        "Compress", [x, condition], {} if axis is None else {"axis": axis}, constants=[1], device=device_name
    )


def test_compress_that_keeps_nothing() -> None:
    [found] = check("Compress", [normal(RANDOM, 3), np.zeros(3, bool)], constants=[1])
    assert found is not None and not found.any()


def test_eye_like_reads_no_element() -> None:
    x = leaf(normal(RANDOM, 2, 2))
    made = tracing.apply("Mul", tracing.apply("EyeLike", x), x)
    [found] = tracing.gradients([made], [tracing.value_of(np.full((2, 2), 3.0))], [x])
    assert found is not None
    tracing.evaluate([found])
    np.testing.assert_array_equal(np.asarray(found.data), 3 * np.eye(2))
