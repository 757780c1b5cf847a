"""The array API with arrays of hypothesis' own strategies, as the public suite draws them, against NumPy.

There are few examples; `VKML_EXAMPLES=300` in the environment has more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import array_api

from vkml import xp

Array = np.ndarray[Any, Any]
xps: Any = array_api.make_strategies_namespace(xp, api_version="2024.12")
EXAMPLES = settings(
    max_examples=int(os.environ.get("VKML_EXAMPLES", "25")), deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip
ANY = xps.scalar_dtypes()
SHAPES = xps.array_shapes(min_dims=0, min_side=0, max_side=5)
NUMBERED = {"allow_nan": False}


def arrays(dtype: Any = ANY, shape: Any = SHAPES, **options: Any) -> Any:
    return xps.arrays(dtype, shape, **options)


def plain(x: Any) -> Array:
    """The elements as an array of NumPy's, a copy."""
    return np.array(x._elements()) if isinstance(x, xp.Array) else np.asarray(x)


def same(found: Any, expected: Any) -> None:
    """Types, shapes, values, and the signs of zeros."""
    mine, theirs = plain(found), np.asarray(expected)
    assert isinstance(found, xp.Array)
    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
    np.testing.assert_array_equal(mine, theirs)
    if mine.dtype.kind == "f":
        known = ~np.isnan(mine)
        np.testing.assert_array_equal(np.signbit(mine)[known], np.signbit(theirs)[known])


def drawn(*strategies: Any) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """A test with drawn arguments."""

    def wrap(function: Callable[..., None]) -> Callable[[], None]:
        made: Callable[[], None] = EXAMPLES(given(*strategies)(function))
        return made

    return wrap


def axes_of(x: Any) -> Any:
    """None, an axis or several."""
    if not x.ndim:
        return st.none()
    return st.none() | st.integers(-x.ndim, x.ndim - 1) | xps.valid_tuple_axes(x.ndim)


# -- indices -------------------------------------------------------------------------------------------------


@drawn(arrays(), st.data())
def test_basic_indices(x: Any, data: Any) -> None:
    key = data.draw(xps.indices(x.shape, allow_newaxis=True))
    same(x[key], plain(x)[key])
    key = data.draw(xps.indices(x.shape))
    value = data.draw(xps.from_dtype(x.dtype) | arrays(x.dtype, ()))
    written, expected = xp.asarray(x, copy=True), plain(x)
    written[key] = value
    expected[key] = plain(value)
    same(written, expected)


@drawn(arrays(), st.data())
def test_masks(x: Any, data: Any) -> None:
    some = st.lists(st.booleans(), min_size=x.ndim, max_size=x.ndim).map(
        lambda kept: tuple(size if is_kept else 0 for size, is_kept in zip(x.shape, kept, strict=True))
    )
    key = data.draw(arrays(xp.bool, st.sampled_from([tuple(x.shape), ()]) | some | SHAPES))
    try:
        expected = plain(x)[plain(key)]
    except IndexError:
        with pytest.raises(IndexError):
            x[key]
    else:
        same(x[key], expected)
    mask = data.draw(arrays(xp.bool, st.sampled_from([tuple(x.shape), ()])))
    value = data.draw(xps.from_dtype(x.dtype) | arrays(x.dtype, ()))
    written, whole = xp.asarray(x, copy=True), plain(x)
    written[mask] = value
    whole[plain(mask)] = plain(value)
    same(written, whole)


@drawn(arrays(shape=xps.array_shapes(max_dims=4)), st.data())
def test_arrays_of_integers_as_indices(x: Any, data: Any) -> None:
    dtype = data.draw(st.sampled_from([xp.int64, xp.int32, xp.int8, xp.uint8, xp.uint64]))
    shape = data.draw(xps.array_shapes(max_dims=3, max_side=3))
    key: list[Any] = []
    for size in x.shape:
        if data.draw(st.integers(0, 3)) == 0:
            key.append(data.draw(st.integers(-size, size - 1)))
        else:
            places = st.integers(0 if dtype.kind == "u" else -size, size - 1)
            like = data.draw(st.sampled_from([shape, (1,), (), (shape[-1],)]))
            key.append(data.draw(arrays(dtype, like, elements=places)))
    chosen = tuple(key[: data.draw(st.integers(1, len(key)))])
    same(x[chosen], plain(x)[tuple(plain(one) if isinstance(one, xp.Array) else one for one in chosen)])


# -- conversions ---------------------------------------------------------------------------------------------


@drawn(arrays(shape=()))
def test_single_elements(x: Any) -> None:
    element = plain(x)[()]
    assert bool(x) is bool(element)
    assert complex(x) == complex(element) or np.isnan(element)
    if x.dtype.kind != "c" and np.isfinite(element):
        assert (int(x), float(x)) == (int(element), float(element))
        assert (type(int(x)), type(float(x)), type(complex(x))) == (int, float, complex)
    if x.dtype.is_integer:
        assert x.__index__() == int(element)
        assert [*range(300)][: x if 0 <= int(x) < 300 else 0] == [*range(300)][
            : int(x) if 0 <= int(x) < 300 else 0
        ]


@drawn(ANY, xps.array_shapes(min_dims=0, max_side=3), st.data())
def test_nested_lists(dtype: Any, shape: tuple[int, ...], data: Any) -> None:
    size = math.prod(shape)
    elements = data.draw(st.lists(xps.from_dtype(dtype), min_size=size, max_size=size))
    nested = np.array([*elements, None], object)[:-1].reshape(shape).tolist()
    same(xp.asarray(nested, dtype=dtype), np.array(elements, dtype.storage).reshape(shape))
    natural = {"b": xp.bool, "i": xp.int64, "f": xp.float32, "c": xp.complex64}
    if dtype.kind in natural:
        assert xp.asarray(nested).dtype is natural[dtype.kind]


@drawn(arrays(shape=xps.array_shapes(min_dims=0)), st.data())
def test_copies(x: Any, data: Any) -> None:
    copy = data.draw(st.sampled_from([None, True, False]))
    made, before = xp.asarray(x, copy=copy), plain(x)
    x[data.draw(xps.indices(x.shape, max_dims=0, allow_ellipsis=False))] = data.draw(xps.from_dtype(x.dtype))
    if copy is not None:
        same(made, before if copy else plain(x))


@drawn(arrays(shape=xps.array_shapes(max_side=2)), st.data())
def test_dlpack(x: Any, data: Any) -> None:
    version = data.draw(st.sampled_from([None, (0, 0), (1, 0), (2, 0)]))
    for copy in (None, True, False):
        x.__dlpack__(copy=copy, max_version=version, dl_device=(1, 0))
        made = xp.from_dlpack(x, copy=copy)
        same(made, plain(x))
        assert made.device == x.device
        same(xp.from_dlpack(plain(x), copy=copy), plain(x))
    same(xp.asarray(np.from_dlpack(x)), plain(x))


@drawn(arrays(), ANY)
def test_astype(x: Any, dtype: Any) -> None:
    elements = plain(x)
    assume(x.dtype.kind != "c" or dtype.kind == "c")
    if x.dtype.kind == "f" and dtype.is_integer:
        assume(np.isfinite(elements).all() and ((elements >= 0) & (elements < 100)).all())
    with np.errstate(all="ignore"):
        same(xp.astype(x, dtype), elements.astype(dtype.storage))


# -- creation ------------------------------------------------------------------------------------------------


@drawn(SHAPES | st.integers(0, 20), st.none() | ANY, st.data())
def test_filled(shape: Any, dtype: Any, data: Any) -> None:
    free = st.booleans() | st.integers(-9, 9) | st.floats(width=32) | st.complex_numbers(width=64)
    value = data.draw(free if dtype is None else xps.from_dtype(dtype))
    natural = {bool: xp.bool, int: xp.int64, float: xp.float32, complex: xp.complex64}
    x = xp.full(shape, value, dtype=dtype)
    same(x, np.full(shape, value, (dtype or natural[type(value)]).storage))
    same(xp.full_like(x, value), plain(x))
    for name in ("zeros", "ones"):
        same(getattr(xp, name)(shape, dtype=dtype), getattr(np, name)(shape, (dtype or xp.float32).storage))
        same(getattr(xp, f"{name}_like")(x), getattr(np, f"{name}_like")(plain(x)))


@drawn(st.data())
def test_arange_and_linspace(data: Any) -> None:
    dtype = data.draw(st.sampled_from([None, xp.int8, xp.uint8, xp.int64, xp.uint64, xp.float32, xp.float64]))
    least = 0 if dtype is not None and dtype.kind == "u" else -100
    start, stop = data.draw(st.integers(least, 100)), data.draw(st.integers(least, 100))
    step = data.draw(st.integers(1, 9) if least == 0 else st.integers(-9, 9).filter(bool))
    same(xp.arange(start, stop, step, dtype=dtype), np.arange(start, stop, step, (dtype or xp.int64).storage))
    if dtype is not None and dtype.is_float:
        found = xp.linspace(start, stop, 5, dtype=dtype, endpoint=step > 0)
        same(found, np.linspace(start, stop, 5, dtype=dtype.storage, endpoint=step > 0))


@drawn(st.integers(0, 6), st.none() | st.integers(0, 6), st.integers(-9, 9), st.none() | xps.numeric_dtypes())
def test_eye(rows: int, columns: int | None, k: int, dtype: Any) -> None:
    same(xp.eye(rows, columns, k=k, dtype=dtype), np.eye(rows, columns, k, (dtype or xp.float32).storage))


# -- arrangement ---------------------------------------------------------------------------------------------


@drawn(arrays(shape=xps.array_shapes(max_side=4)), st.data())
def test_arranged(x: Any, data: Any) -> None:
    elements, axis = plain(x), data.draw(st.integers(-x.ndim, x.ndim - 1))
    axes, shift = data.draw(axes_of(x)), data.draw(st.integers(-1000, 1000))
    order = tuple(data.draw(st.permutations(range(x.ndim))))
    same(xp.flip(x, axis=axes), np.flip(elements, axes))
    same(xp.roll(x, shift), np.roll(elements, shift))
    same(
        xp.roll(x, shift, axis=axes if axes != () else None),
        np.roll(elements, shift, axes or (0 if axes == 0 else None)),
    )
    same(xp.permute_dims(x, order), elements.transpose(order))
    same(xp.moveaxis(x, axis, order[0]), np.moveaxis(elements, axis, order[0]))
    same(xp.repeat(x, 2, axis=axis), np.repeat(elements, 2, axis))
    same(xp.repeat(x, 3), np.repeat(elements, 3))
    times = data.draw(st.lists(st.integers(0, 3), max_size=x.ndim + 1).map(tuple))
    same(xp.tile(x, times), np.tile(elements, times))
    same(xp.stack(xp.unstack(x, axis=axis), axis=axis), elements)
    same(xp.concat([x, x], axis=axis), np.concatenate([elements, elements], axis))
    same(xp.expand_dims(x, axis=axis), np.expand_dims(elements, axis))
    same(xp.reshape(x, x.shape[::-1]), elements.reshape(elements.shape[::-1]))
    size = x.shape[axis]
    places = data.draw(
        arrays(xp.int64, (data.draw(st.integers(0, 4)),), elements=st.integers(-size, size - 1))
    )
    same(xp.take(x, places, axis=axis), elements.take(plain(places), axis))
    along = data.draw(arrays(xp.int64, tuple(x.shape), elements=st.integers(-size, size - 1)))
    same(xp.take_along_axis(x, along, axis=axis), np.take_along_axis(elements, plain(along), axis))
    with pytest.raises(IndexError):
        xp.expand_dims(x, axis=x.ndim + 1)


@drawn(xps.mutually_broadcastable_shapes(3, min_side=0, max_side=4), ANY, st.data())
def test_broadcast_and_where(shapes: Any, dtype: Any, data: Any) -> None:
    condition, x, y = (
        data.draw(arrays(kind, shape))
        for kind, shape in zip((xp.bool, dtype, dtype), shapes.input_shapes, strict=True)
    )
    same(xp.where(condition, x, y), np.where(plain(condition), plain(x), plain(y)))
    for one, other in zip(xp.broadcast_arrays(x, y), np.broadcast_arrays(plain(x), plain(y)), strict=True):
        same(one, other)


# -- reductions, order, sets ---------------------------------------------------------------------------------


@drawn(arrays(xps.numeric_dtypes(), xps.array_shapes(min_dims=0, min_side=0, max_side=4)), st.data())
def test_sums(x: Any, data: Any) -> None:
    elements, axis, keeps = plain(x), data.draw(axes_of(x)), data.draw(st.booleans())
    with np.errstate(all="ignore"):
        for name in ("sum", "prod"):
            expected = getattr(np, name)(elements, axis=axis, keepdims=keeps)
            found = getattr(xp, name)(x, axis=axis, keepdims=keeps)
            assert found.shape == expected.shape
            assert found.dtype is {"i": xp.int64, "u": xp.uint64}.get(x.dtype.kind, x.dtype)
            if x.dtype.is_integer:
                np.testing.assert_array_equal(plain(found), expected)
                same(getattr(xp, name)(x, axis=axis, keepdims=keeps, dtype=xp.int16),
                     getattr(np, name)(elements, axis=axis, keepdims=keeps, dtype=np.int16))  # fmt: skip
    for name in ("all", "any"):
        expected = getattr(np, name)(elements, axis=axis, keepdims=keeps)
        same(getattr(xp, name)(x, axis=axis, keepdims=keeps), expected)
    if x.ndim and x.dtype.is_integer:
        along, includes = data.draw(st.integers(-x.ndim, x.ndim - 1)), data.draw(st.booleans())
        for name in ("cumulative_sum", "cumulative_prod"):
            theirs = getattr(strict, name)(strict.asarray(elements), axis=along, include_initial=includes)
            same(getattr(xp, name)(x, axis=along, include_initial=includes), np.asarray(theirs))


@drawn(arrays(xps.real_dtypes(), xps.array_shapes(max_side=4), elements=NUMBERED), st.data())
def test_order(x: Any, data: Any) -> None:
    elements, axis, keeps = plain(x), data.draw(axes_of(x)), data.draw(st.booleans())
    for name in ("max", "min"):
        expected = getattr(np, name)(elements, axis=axis, keepdims=keeps)
        found = getattr(xp, name)(x, axis=axis, keepdims=keeps)
        np.testing.assert_array_equal(plain(found), expected)
        assert (found.dtype, found.shape) == (x.dtype, expected.shape)
    along, is_descending = data.draw(st.integers(-x.ndim, x.ndim - 1)), data.draw(st.booleans())
    for name in ("argmax", "argmin"):
        same(
            getattr(xp, name)(x, axis=along, keepdims=keeps),
            getattr(np, name)(elements, along, keepdims=keeps),
        )
    order = strict.argsort(strict.asarray(elements), axis=along, descending=is_descending)
    same(xp.argsort(x, axis=along, descending=is_descending), np.asarray(order))
    in_order = np.take_along_axis(elements, np.asarray(order), along)
    np.testing.assert_array_equal(plain(xp.sort(x, axis=along, descending=is_descending)), in_order)
    ascending = xp.sort(xp.reshape(x, (-1,)))
    for side in ("left", "right"):
        expected = np.searchsorted(plain(ascending), elements, side)
        same(xp.searchsorted(ascending, x, side=side), expected)


@drawn(arrays())
def test_sets(x: Any) -> None:
    elements = plain(x)
    values, indices, inverse, counts = xp.unique_all(x)
    assert values.dtype is x.dtype and inverse.shape == x.shape
    assert {indices.dtype, inverse.dtype, counts.dtype} == {xp.int64}
    np.testing.assert_array_equal(elements.reshape(-1)[plain(indices)], plain(values))
    np.testing.assert_array_equal(plain(values)[plain(inverse)], elements)
    assert plain(counts).sum() == elements.size
    for place in map(int, plain(indices)):
        if elements.reshape(-1)[place] == elements.reshape(-1)[place]:
            assert not (elements.reshape(-1)[:place] == elements.reshape(-1)[place]).any()


@drawn(arrays(xps.real_dtypes(), elements=NUMBERED), st.data())
def test_clip(x: Any, data: Any) -> None:
    bounds = [data.draw(st.none() | xps.from_dtype(x.dtype).filter(lambda one: one == one)) for _ in range(2)]
    if None not in bounds:
        bounds.sort()
    elements = plain(x)
    expected = elements if bounds == [None, None] else np.clip(elements, *bounds)
    np.testing.assert_array_equal(plain(xp.clip(x, *bounds)), expected)
    limit = data.draw(arrays(x.dtype, tuple(x.shape), elements=NUMBERED))
    np.testing.assert_array_equal(plain(xp.clip(x, max=limit)), np.minimum(elements, plain(limit)))


# -- products ------------------------------------------------------------------------------------------------


@drawn(xps.mutually_broadcastable_shapes(2, min_side=0, max_side=4), xps.numeric_dtypes(), st.data())
def test_matmul(shapes: Any, dtype: Any, data: Any) -> None:
    x, y = (data.draw(arrays(dtype, shape)) for shape in shapes.input_shapes)
    with np.errstate(all="ignore"):
        try:
            expected = np.matmul(plain(x), plain(y))
        except ValueError:
            with pytest.raises((ValueError, RuntimeError)):
                xp.matmul(x, y)
            return
    found = x @ y
    assert (found.shape, plain(found).dtype) == (expected.shape, expected.dtype)
    if dtype.is_integer:
        same(found, expected)


@drawn(xps.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=2), st.integers(0, 3), st.integers(0, 3),
       xps.floating_dtypes() | xps.complex_dtypes(), st.data())  # fmt: skip
def test_linear_algebra(stack: tuple[int, ...], rows: int, columns: int, dtype: Any, data: Any) -> None:
    """Types and shapes of stacks of matrices, empty ones among them."""
    parts = st.floats(-10, 10, width=32) if dtype.is_float else st.complex_numbers(max_magnitude=10, width=64)
    x = data.draw(arrays(dtype, (*stack, rows, columns), elements=parts))
    real = {xp.complex64: xp.float32, xp.complex128: xp.float64}.get(dtype, dtype)
    if rows and columns:
        for order in (-math.inf, -2, -1, 1, 2, math.inf, "fro", "nuc"):
            norm = xp.linalg.matrix_norm(x, ord=order, keepdims=True)
            assert (norm.dtype, norm.shape) == (real, (*stack, 1, 1))
    q, r = xp.linalg.qr(x)
    np.testing.assert_allclose(plain(q @ r), plain(x), atol=1e-3)
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    assert s.dtype is real
    np.testing.assert_allclose(plain(u) * plain(s)[..., None, :] @ plain(vh), plain(x), atol=1e-3)
    assert xp.linalg.pinv(x).shape == (*stack, columns, rows)
    assert xp.linalg.matrix_rank(x).shape == stack
    same(xp.linalg.diagonal(x, offset=1), np.diagonal(plain(x), 1, -2, -1))
    square = x @ xp.conj(x.mT) + xp.eye(rows, dtype=dtype)
    for name in ("inv", "cholesky"):
        made = getattr(xp.linalg, name)(square)
        assert (made.dtype, made.shape) == (dtype, square.shape)
    values, vectors = xp.linalg.eigh(square)
    assert (values.dtype, vectors.dtype, values.shape) == (real, dtype, (*stack, rows))
    assert xp.linalg.eigvals(square).dtype.is_complex
    sign, size = xp.linalg.slogdet(square)
    assert (sign.dtype, size.dtype, size.shape) == (dtype, real, stack)
    assert xp.linalg.solve(square, x).shape == x.shape
    assert xp.linalg.solve(square, xp.ones(rows, dtype=dtype)).shape == (*stack, rows)
    for power in (-2, 0, 3):
        assert xp.linalg.matrix_power(square, power).shape == square.shape


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_fourier(name: str) -> None:
    kinds = xps.floating_dtypes() if name in ("rfft", "ihfft") else xps.complex_dtypes()

    @drawn(arrays(kinds, xps.array_shapes(max_side=4).filter(lambda shape: math.prod(shape) > 1)), st.data())
    def run(x: Any, data: Any) -> None:
        axis, norm = data.draw(st.integers(-1, x.ndim - 1)), data.draw(st.sampled_from(["ortho", "forward"]))
        n = data.draw(st.none() | st.integers(1, 8))
        assume(name not in ("irfft", "hfft") or n is not None or x.shape[axis] > 1)
        with np.errstate(all="ignore"):
            expected = getattr(np.fft, name)(plain(x), n=n, axis=axis, norm=norm)
        found = getattr(xp.fft, name)(x, n=n, axis=axis, norm=norm)
        assert (found.shape, plain(found).dtype) == (expected.shape, expected.dtype)

    run()
