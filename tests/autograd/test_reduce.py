"""Gradients of reductions, running totals and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import away_from, check, leaf, normal
from vkml import tracing
from vkml.errors import NotDifferentiable
from vkml.ir.dtypes import BFLOAT16
from vkml.tracing import value_of

torch = pytest.importorskip("torch")

Reduce = Callable[[Any, Sequence[int], bool], Any]


def prod(x: Any, axes: Sequence[int], keep: bool) -> Any:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=True)
    return x if keep else x.reshape([size for at, size in enumerate(x.shape) if at not in axes])


REDUCTIONS: dict[str, Reduce] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceProd": prod,
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keepdim=keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
}
AXES = [((2, 3, 4), (1,)), ((2, 3, 4), (0, -1)), ((5,), (0,)), ((3, 1, 2), (1, 2))]


def points(op: str, shape: Sequence[int], seed: int) -> Any:
    generator = np.random.default_rng(seed)
    if op in ("ReduceMax", "ReduceMin"):  # far enough from each other for differences
        return generator.permutation(int(np.prod(shape))).reshape(shape) * 0.1
    if op == "ReduceLogSum":
        return generator.uniform(0.3, 2, shape)
    return away_from(normal(generator, *shape), 0)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize(("shape", "axes"), AXES, ids=str)
def test_reductions(op: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    keep = len(axes) % 2
    counted = [axis % len(shape) for axis in axes]
    check(
        op,
        [points(op, shape, len(axes)), np.array(axes)],
        {"keepdims": keep},
        torch=lambda x, _: REDUCTIONS[op](x, counted, bool(keep)),
    )


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_on_devices(op: str, vulkan_device_name: str) -> None:
    inputs = [points(op, (2, 3, 4), 4), np.array([0, 2])]
    check(op, inputs, {"keepdims": 0}, differences=False, device=vulkan_device_name)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_over_all_axes_and_none(op: str) -> None:
    x = points(op, (2, 3), 5)
    check(op, [x], {"keepdims": 0}, torch=lambda x: REDUCTIONS[op](x, (0, 1), False))
    check(op, [x], {"noop_with_empty_axes": 1}, torch=lambda x: REDUCTIONS[op](x[None], (0,), False))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16.storage], ids=str)
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceLogSumExp", "ReduceL2"])
def test_reductions_of_16_bits(op: str, dtype: Any, device_name: str) -> None:
    x = points(op, (3, 40), 6) + (20 if op == "ReduceLogSumExp" else 0)
    check(op, [x, np.array([1])], second_order=False, device=device_name, dtype=dtype)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_ties_share(op: str, device_name: str) -> None:
    x = np.array([[1.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0], [4.0, 5.0, 6.0, 5.0]])
    for axes in ([1], [0, 1]):
        check(
            op,
            [x, np.array(axes)],
            torch=lambda x, _, axes=axes: REDUCTIONS[op](x, axes, True),
            differences=False,
            device=device_name,
        )


def test_norms_of_zeros() -> None:
    x = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 2.0]])
    for op in ("ReduceL1", "ReduceL2"):
        check(
            op, [x, np.array([1])], torch=lambda x, _, op=op: REDUCTIONS[op](x, [1], True), differences=False
        )


def test_products_of_zeros(device_name: str) -> None:
    x = normal(np.random.default_rng(7), 4, 3)
    x[0, 1] = x[1, 0] = x[1, 2] = x[2, 0] = x[2, 1] = x[2, 2] = 0
    check("ReduceProd", [x, np.array([1])], torch=lambda x, _: x.prod(1, keepdim=True), device=device_name)


def test_logarithms_of_sums_of_nothing() -> None:
    x = np.array([[-np.inf, 0.0, 1.0], [-np.inf, -np.inf, 2.0]])
    check("ReduceLogSumExp", [x, np.array([1])], torch=lambda x, _: x.logsumexp(1, True), differences=False)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceSumSquare"])
def test_reductions_of_nothing(op: str, shape: tuple[int, int]) -> None:
    [found] = check(op, [np.zeros(shape), np.array([1])], differences=False)
    assert found is not None and found.shape == shape


# --- running totals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reverse", [0, 1])
@pytest.mark.parametrize("is_exclusive", [0, 1])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_running_totals(op: str, is_exclusive: int, is_reverse: int, device_name: str) -> None:
    x = normal(np.random.default_rng(8), 3, 5)
    x[0, 2] = x[1, 1] = x[1, 3] = x[2, 0] = 0

    def totals(x: Any, _: Any) -> Any:
        x = x.flip(1) if is_reverse else x
        made = torch.cumsum(x, 1) if op == "CumSum" else torch.cumprod(x, 1)
        if is_exclusive:
            first = torch.zeros_like(x[:, :1]) if op == "CumSum" else torch.ones_like(x[:, :1])
            made = torch.cat([first, made[:, :-1]], 1)
        return made.flip(1) if is_reverse else made

    attributes = {"exclusive": is_exclusive, "reverse": is_reverse}
    check(op, [x, np.array(-1)], attributes, torch=totals, device=device_name)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_running_products_of_few(size: int) -> None:
    check("CumProd", [np.full((2, size), 1.5), np.array(1)], torch=lambda x, _: x.cumprod(1))


# --- softmax ------------------------------------------------------------------------------------------------

SOFTMAX = {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax}


@pytest.mark.parametrize(("shape", "axis"), [((3, 5), -1), ((2, 3, 4), 1), ((4,), 0), ((2, 1), 1)], ids=str)
@pytest.mark.parametrize("op", SOFTMAX)
def test_softmax(op: str, shape: tuple[int, ...], axis: int, device_name: str) -> None:
    x = normal(np.random.default_rng(9), *shape, scale=2)
    check(op, [x], {"axis": axis}, torch=lambda x: SOFTMAX[op](x, axis), device=device_name)


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("op", SOFTMAX)
def test_softmax_of_older_opsets(op: str, axis: int) -> None:
    x = normal(np.random.default_rng(10), 2, 3, 2)

    def flattened(x: Any) -> Any:
        return SOFTMAX[op](x.reshape(x.shape[:axis].numel(), -1), 1).reshape(x.shape)

    check(op, [x], {"axis": axis, "is_flattened": 1}, torch=flattened)


@pytest.mark.parametrize("op", SOFTMAX)
def test_softmax_of_numbers_that_overflow(op: str, device_name: str) -> None:
    x = np.array([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4], [90.0, 100.0, 89.0]])
    check(op, [x], torch=lambda x: SOFTMAX[op](x, 1), differences=False, device=device_name)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16.storage], ids=str)
@pytest.mark.parametrize("op", SOFTMAX)
def test_softmax_of_16_bits(op: str, dtype: Any, device_name: str) -> None:
    x = normal(np.random.default_rng(11), 3, 50)
    check(op, [x], second_order=False, device=device_name, dtype=dtype)


def test_hardmax_has_no_gradient() -> None:
    x = leaf(np.ones(3), None)
    with pytest.raises(NotDifferentiable, match="Hardmax has no gradient"):
        tracing.gradients([tracing.apply("Hardmax", x)], [value_of(np.ones(3))], [x])
