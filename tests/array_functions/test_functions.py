"""Functions of NumPy arrays: values, gradients, `out`, types, memory, threads."""

from __future__ import annotations

import concurrent.futures
import gc
import inspect
import tracemalloc
from typing import Any

import numpy as np
import pytest

import vkml
from tests.array_functions.cases import CASES, IMAGES, A, B, normal
from vkml.array_functions import FUNCTIONS, calls
from vkml.errors import CaptureError, InvalidArgument

Array = np.ndarray[Any, Any]


def arguments(name: str, case: Any) -> dict[str, Any]:
    """Arrays by the names of parameters: those that are no settings, in order."""
    function = FUNCTIONS[name]
    names = [one for one in function.__code__.co_varnames if one in inspect.signature(function).parameters]
    given = [one for one in names if one not in case.settings and one not in ("out", "device", "grad")]
    return dict(zip(_arrays_of(name, given), case.arrays, strict=False))


def _arrays_of(name: str, given: list[str]) -> list[str]:
    kept = {
        "layer_norm": ["input", "weight", "bias"], "rms_norm": ["input", "weight"],
        "group_norm": ["input", "weight", "bias"],
    }  # fmt: skip
    return kept.get(name, given)


def _wide(x: Array | None) -> Array | None:
    """As float64, where it is of floats."""
    return x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x


def test_every_function_is_here() -> None:
    names = {name for name in FUNCTIONS if not name.endswith("_backward")}
    assert names == set(CASES) | {"batch_norm_update", "forget_calls"}
    for name in names - {"forget_calls"}:
        assert getattr(vkml.ops, name) is FUNCTIONS[name]
        assert "device: a name" in (FUNCTIONS[name].__doc__ or "")


@pytest.mark.parametrize("name", CASES)
def test_values(name: str, device_name: str) -> None:
    case = CASES[name]
    made = FUNCTIONS[name](**arguments(name, case), **case.settings, device=device_name)
    assert isinstance(made, np.ndarray)
    if case.right is None:
        wide = [None if x is None else vkml.tensor(x.astype(np.float64)) for x in case.arrays]
        right = getattr(vkml.nn.functional, name)(*wide, **case.settings).numpy()
    else:
        wide = [
            None if x is None else x.astype(np.float64) if x.dtype.kind == "f" else x for x in case.arrays
        ]
        right = np.asarray(case.right(*wide))
    assert made.shape == right.shape
    np.testing.assert_allclose(made, right, 2e-4, 2e-5)
    out = np.empty_like(made)
    for _ in range(2):
        assert FUNCTIONS[name](**arguments(name, case), **case.settings, out=out, device=device_name) is out
        np.testing.assert_array_equal(out, made)
        out[...] = 0


@pytest.mark.parametrize("name", [name for name in CASES if f"{name}_backward" in FUNCTIONS])
def test_gradients_against_finite_differences(name: str, device_name: str) -> None:
    case = CASES[name]
    given = arguments(name, case)
    made = FUNCTIONS[name](**given, **case.settings, device="cpu")
    grad = np.asarray(normal(*made.shape, seed=9), np.float32)
    found = FUNCTIONS[f"{name}_backward"](grad, **given, **case.settings, device=device_name)
    found = list(found) if isinstance(found, tuple) else [found]
    keys = list(given)
    wide = {key: _wide(x) for key, x in given.items()}
    step = 1e-5
    assert len(found) == len(case.graded)
    for at, gradient in zip(case.graded, found, strict=True):
        x = wide[keys[at]]
        assert gradient.shape == x.shape and gradient.dtype == np.float32
        direction = np.random.default_rng(at).standard_normal(x.shape)
        ends = [
            FUNCTIONS[name](**{**wide, keys[at]: x + sign * step * direction}, **case.settings, device="cpu")
            for sign in (1, -1)
        ]
        slope = ((ends[0] - ends[1]) * grad).sum() / (2 * step)
        np.testing.assert_allclose((gradient * direction).sum(), slope, 2e-3, 2e-3)


def test_a_batch_norm_that_updates_its_statistics(device_name: str) -> None:
    x, mean, variance = IMAGES[2], np.zeros(3, np.float32), np.ones(3, np.float32)
    made = vkml.ops.batch_norm_update(x, mean, variance, momentum=0.5, device=device_name)
    axes = (0, 2, 3)
    right = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(made, right, 1e-3, 1e-4)
    np.testing.assert_allclose(mean, 0.5 * x.mean(axes), 1e-4, 1e-5)
    np.testing.assert_allclose(variance, 0.5 + 0.5 * x.var(axes, ddof=1), 1e-4, 1e-5)
    out = np.empty_like(made)
    assert vkml.ops.batch_norm_update(x, mean, variance, out=out, device=device_name) is out
    mean.flags.writeable = False
    with pytest.raises(InvalidArgument, match="read-only"):
        vkml.ops.batch_norm_update(x, mean, variance, device=device_name)


@pytest.mark.parametrize("size", [7, 1 << 16])
def test_out_that_overlaps_an_input(size: int, device_name: str) -> None:
    for shift in (0, 1, 3):
        memory = normal(size + 3)
        a, out = memory[:size], memory[shift : shift + size]
        b = normal(size, seed=1)
        right = a + b
        vkml.ops.add(a, b, out=out, device=device_name)
        np.testing.assert_array_equal(out, right)
    square = normal(16, 16)
    right = square.astype(np.float64) @ square
    vkml.ops.matmul(square, square, out=square, device=device_name)
    np.testing.assert_allclose(square, right, 1e-3, 1e-4)


def test_arrays_that_are_not_contiguous(device_name: str) -> None:
    whole, target = normal(8, 12), np.zeros((4, 12), np.float32)
    for a, out in (
        (whole[::2, ::3], np.zeros((4, 4), np.float32)), (whole[:4, :4].T, target[:, ::3]),
        (whole[::-2, 4:8], np.zeros((4, 4), np.float32).T),
    ):  # fmt: skip
        assert vkml.ops.mul(a, a, out=out, device=device_name) is out
        np.testing.assert_array_equal(out, a * a)
    assert not target[:, 1].any()
    unaligned = np.frombuffer(b"x" + normal(5).tobytes(), np.uint8)[1:].view(np.float32)
    np.testing.assert_array_equal(vkml.ops.neg(unaligned, device=device_name), -unaligned)
    big = normal(5).astype(">f4")
    made = vkml.ops.neg(big, device=device_name)
    np.testing.assert_array_equal(made, -big)
    assert made.dtype.isnative


def test_out_that_does_not_fit() -> None:
    right = np.empty_like(A)
    for out, kind, text in (
        (np.empty((4, 3), np.float32), InvalidArgument, "shape"),
        (np.empty((3, 4), np.float64), InvalidArgument, "type float64"),
        (np.empty(12, np.float32), InvalidArgument, "shape"),
        ([1.0], TypeError, "must be an array"),
        (vkml.zeros(3, 4), TypeError, "must be an array"),
        ((right, right), InvalidArgument, "2 arrays"),
    ):
        with pytest.raises(kind, match=text):
            vkml.ops.add(A, B, out=out, device="cpu")
    right.flags.writeable = False
    with pytest.raises(InvalidArgument, match="read-only"):
        vkml.ops.add(A, B, out=right, device="cpu")
    both = np.empty_like(A)
    with pytest.raises(InvalidArgument, match="share memory"):
        vkml.ops.mul_backward(1.0, A, B, out=(both, both), device="cpu")
    first, second = vkml.ops.mul_backward(1.0, A, B, out=(both, None), device="cpu")
    assert first is both
    np.testing.assert_array_equal(first, B)
    np.testing.assert_array_equal(second, A)


def test_numbers_lists_and_types(device_name: str) -> None:
    np.testing.assert_array_equal(vkml.ops.add(A, 2, device=device_name), A + np.float32(2))
    np.testing.assert_array_equal(vkml.ops.sub(1.5, A, device=device_name), np.float32(1.5) - A)
    counts = np.arange(4, dtype=np.int32)
    made = vkml.ops.mul(counts, 2, device="cpu")
    assert made.dtype == np.int32
    np.testing.assert_array_equal(made, counts * 2)
    assert vkml.ops.mul(counts, 0.5, device="cpu").dtype == np.float32
    assert vkml.ops.add(A, A.astype(np.float64), device="cpu").dtype == np.float64
    assert vkml.ops.add([1.0, 2.0], np.float32([3, 4]), device="cpu").tolist() == [4, 6]
    half = vkml.ops.matmul(A.astype(np.float16), A.astype(np.float16), transpose_b=True, device=device_name)
    np.testing.assert_allclose(half.astype(np.float32), A @ A.T, 1e-2, 1e-2)
    assert vkml.ops.relu(np.float32(-3.0), device="cpu") == 0


def test_wrong_arguments() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        vkml.ops.add(A, normal(5), device="cpu")
    with pytest.raises(TypeError, match=r"vkml\.add"):
        vkml.ops.add(vkml.tensor(A), B)
    with pytest.raises(RuntimeError, match="string is not allowed"):
        vkml.ops.relu(np.array(["a"]), device="cpu")
    with pytest.raises(TypeError, match="relu takes an array in place 0, not None"):
        vkml.ops.relu(None, device="cpu")
    with pytest.raises(InvalidArgument, match="no device"):
        vkml.ops.relu(A, device="tpu")
    with pytest.raises(RuntimeError, match="floats alone"):
        vkml.ops.add_backward(1.0, np.arange(3), np.arange(3), device="cpu")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vkml.ops.nothing
    with pytest.raises(TypeError, match="unexpected"):
        vkml.ops.relu(A, size=3)
    with pytest.raises(TypeError, match="unhashable type: 'dict'"):
        vkml.ops.softmax(A, {})


def test_results_are_the_caller_s(device_name: str) -> None:
    first = vkml.ops.add(A, B, device=device_name)
    kept = first.copy()
    second = vkml.ops.add(A * 2, B, device=device_name)
    np.testing.assert_array_equal(first, kept)
    assert not np.may_share_memory(first, second)
    first[...] = 7
    np.testing.assert_array_equal(vkml.ops.add(A, B, device=device_name), kept)


@pytest.mark.parametrize("size", [1024, 1 << 15])
def test_memory_stays_flat(size: int, device_name: str) -> None:
    """10,000 calls, half of them on the CPU's first size, allocate nothing that stays."""
    count = 10_000 if size == 1024 and device_name == "cpu" else 600
    a, b, out = normal(size), normal(size, seed=1), np.empty(size, np.float32)
    for _ in range(20):
        vkml.ops.add(a, b, out=out, device=device_name)
        vkml.ops.relu(a, device=device_name)
    plans = len(calls._calls)
    tracemalloc.start()
    grown = []
    # What something else of this process takes meanwhile, it takes once; calls would each time.
    while len(grown) < 3 and (not grown or grown[-1] >= 64 << 10):
        gc.collect()
        before = tracemalloc.take_snapshot()
        for _ in range(count // 2):
            vkml.ops.add(a, b, out=out, device=device_name)
            vkml.ops.relu(a, device=device_name)
        gc.collect()
        after = tracemalloc.take_snapshot()
        grown.append(sum(one.size_diff for one in after.compare_to(before, "filename")))
    tracemalloc.stop()
    assert grown[-1] < 64 << 10, f"{grown} bytes"
    assert len(calls._calls) == plans


def test_plans_are_bounded() -> None:
    vkml.ops.forget_calls()
    before = calls.CALLS_KEPT
    calls.CALLS_KEPT = 8
    try:
        vkml.ops.neg(normal(1), device="cpu")
        [often] = calls._calls.values()
        for size in range(2, 20):
            vkml.ops.neg(normal(size), device="cpu")
            vkml.ops.neg(normal(1), device="cpu")
            assert len(calls._calls) <= 8
            assert often in calls._calls.values(), "a plan that is in use is let go of"
    finally:
        calls.CALLS_KEPT = before


def test_functions_are_planned_without_the_elements() -> None:
    """A plan made for one call serves others, so nothing in it may hang on elements."""
    before = dict(calls._calls)
    with pytest.raises(CaptureError):
        calls.run(calls.Function("looks", lambda x: x * float(x.sum())), (A,), (), None, "cpu")
    assert set(calls._calls) == set(before)


def test_threads(device_name: str) -> None:
    arrays = [normal(2048, seed=at) for at in range(8)]

    def work(at: int) -> bool:
        x = arrays[at]
        return all(
            np.array_equal(vkml.ops.add(x, 1.0, device=device_name), x + np.float32(1)) for _ in range(20)
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_the_best_device_is_the_default() -> None:
    assert calls._best() is calls._named(vkml.devices()[0].name)
    np.testing.assert_array_equal(vkml.ops.add(A, B), A + B)
    np.testing.assert_array_equal(vkml.ops.add(A, B, device="auto"), A + B)


def test_operators_keep_their_modules() -> None:
    from vkml.ops.matmul import matmul_geometry
    from vkml.ops.softmax import Softmax

    assert callable(matmul_geometry) and isinstance(Softmax, type)
    assert callable(vkml.ops.matmul) and callable(vkml.ops.softmax)
    assert "conv2d_backward" in dir(vkml.ops)
    assert str(inspect.signature(vkml.ops.conv2d)).startswith("(input, weight, bias=None, stride=1")
