"""What operations are called with in comparisons with PyTorch: names as there, arguments drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Random = np.random.Generator
Case = tuple[str, Callable[[Random], tuple[Any, ...]], dict[str, Any]]
FLOATS = (np.float32, np.float64)
ANY = (np.float32, np.float64, np.int64, np.int32, np.uint8, np.int16)
INTEGERS = (np.int64, np.int32, np.uint8, np.int8)


def array(r: Random, shape: Any = None, dtypes: Any = FLOATS, low: float = -3, high: float = 3) -> Any:
    """Elements of a type among some; shapes drawn where none is stated, sometimes empty or of no axis."""
    if shape is None:
        shape = tuple(r.integers(1, 5, r.integers(1, 4)))
    dtype = np.dtype(dtypes[r.integers(len(dtypes))])
    if dtype.kind == "f":
        return r.uniform(low, high, shape).astype(dtype)
    if dtype.kind == "b":
        return r.integers(0, 2, shape).astype(np.bool_)
    return r.integers(0 if dtype.kind == "u" else low, high + 1, shape).astype(dtype)


def pair(r: Random, dtypes: Any = FLOATS, low: float = -3, high: float = 3) -> tuple[Any, Any]:
    """Two of shapes that are broadcast with each other, of one type or of two."""
    shape = tuple(r.integers(1, 5, r.integers(1, 4)))
    other = tuple(1 if r.random() < 0.3 else size for size in shape)[r.integers(len(shape)) :]
    return array(r, shape, dtypes, low, high), array(r, other, dtypes, low, high)


def special(r: Random, dtypes: Any = FLOATS) -> Any:
    """With NaN, infinities and zeros of both signs among others."""
    found = array(r, (3, 4), dtypes)
    if found.dtype.kind == "f":
        found.reshape(-1)[r.permutation(12)[:5]] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    return found


def square(r: Random, batch: Any = (2,), size: int = 3, dtypes: Any = FLOATS) -> Any:
    """Matrices that are far from singular."""
    found = r.uniform(-1, 1, (*batch, size, size)) + 3 * np.eye(size)
    return found.astype(np.dtype(dtypes[r.integers(len(dtypes))]))


def axis(x: Any, r: Random) -> int:
    return int(r.integers(-x.ndim, x.ndim))


def with_axis(r: Random, dtypes: Any = FLOATS, **options: Any) -> tuple[Any, ...]:
    x = array(r, None, dtypes, **options)
    return x, axis(x, r)


def same(r: Random, count: int, dtypes: Any = FLOATS) -> tuple[Any, ...]:
    """Several of one shape and type."""
    first = array(r, None, dtypes)
    return (first, *(array(r, first.shape, (first.dtype,)) for _ in range(count - 1)))


def _index(r: Random, size: int, shape: Any) -> Any:
    return r.integers(0, size, shape)


def _scatter(r: Random, dtypes: Any = FLOATS) -> tuple[Any, ...]:
    x = array(r, (4, 5), dtypes)
    along = int(r.integers(2))
    index = (
        np.stack([r.permutation(4)[:3] for _ in range(4)], 1)
        if along == 0
        else np.stack([r.permutation(5)[:3] for _ in range(3)])
    )
    return x, along, index, array(r, index.shape, (x.dtype,))


def _slices(r: Random, dtypes: Any = FLOATS) -> tuple[Any, ...]:
    x = array(r, (4, 3), dtypes)
    return x, 0, r.permutation(4)[:2], array(r, (2, 3), (x.dtype,))


def one(f: Callable[[Random], Any]) -> Callable[[Random], tuple[Any, ...]]:
    return lambda r: (f(r),)


def cases() -> list[Case]:
    """All of them."""
    found: list[Case] = []

    def add(names: str, make: Callable[[Random], tuple[Any, ...]], **options: Any) -> None:
        found.extend((name, make, options) for name in names.split())

    inside = one(lambda r: array(r, None, FLOATS, -0.9, 0.9))
    positive = one(lambda r: array(r, None, FLOATS, 0.1, 4))
    add(
        "abs neg sign floor ceil round trunc square relu sigmoid exp exp2 expm1 sin cos tanh sinh cosh atan"
        " asinh"
        " erf frac sinc deg2rad rad2deg signbit isnan isinf isfinite isposinf isneginf positive erfinv"
        " nan_to_num",
        one(lambda r: array(r, None, FLOATS, -0.99, 0.99)),
    )
    add(
        "abs sign square exp sin tanh isnan isinf isfinite isposinf nan_to_num floor ceil trunc"
        " signbit neg round",
        one(lambda r: array(r, None, (np.int64, np.int32, np.int8))),
    )
    add("asin acos atanh erfinv tan", inside)
    add("log log2 log10 log1p sqrt rsqrt reciprocal", positive)
    add("acosh", one(lambda r: array(r, None, FLOATS, 1.1, 4)))
    add("logit", one(lambda r: array(r, None, FLOATS, 0.1, 0.9)))
    add(
        "abs floor exp tanh sigmoid sqrt relu isnan isinf isfinite isposinf isneginf signbit nan_to_num sinc"
        " trunc round frac",
        one(special),
    )
    add(
        "add sub mul maximum minimum fmax fmin eq ne lt le gt ge copysign atan2 hypot logaddexp"
        " logaddexp2 xlogy",
        pair,
    )
    add("add mul eq ne lt le gt ge maximum minimum", lambda r: pair(r, (*ANY, np.bool_)))
    add("sub", lambda r: pair(r, ANY))
    add("div true_divide fmod remainder floor_divide", lambda r: pair(r, FLOATS, 0.2, 4))
    add("div fmod remainder floor_divide", lambda r: pair(r, (np.int64, np.int32), 1, 5))
    add(
        "maximum minimum fmax fmin atan2 hypot logaddexp copysign add mul eq lt isclose",
        lambda r: (special(r, (np.float64,)), special(r, (np.float64,))),
    )
    add(
        "atan2",
        lambda r: (
            np.array([0.0, -0.0, 0.0, -0.0, 1.0, -1.0, 0.0]),
            np.array([1.0, 1, -1, -0.0, 0, 0, -np.inf]),
        ),
    )
    add("nextafter", lambda r: (array(r, (6,), (np.float32,)), array(r, (6,), (np.float32,))))
    add("pow", lambda r: pair(r, FLOATS, 0.2, 3))
    add("pow", lambda r: (array(r), int(r.integers(0, 4))))
    add("bitwise_and bitwise_or bitwise_xor", lambda r: pair(r, (*INTEGERS, np.bool_), 0, 50))
    add("bitwise_left_shift bitwise_right_shift", lambda r: pair(r, (np.int64, np.int32), 0, 5))
    add("bitwise_not logical_not", one(lambda r: array(r, None, (*INTEGERS, np.bool_))))
    add("logical_and logical_or logical_xor", lambda r: pair(r, (*ANY, np.bool_)))
    add("gcd lcm", lambda r: pair(r, (np.int64, np.int32), -12, 12))
    add("heaviside", lambda r: (special(r, (np.float32,)), np.array(0.5, np.float32)))
    add("clamp", lambda r: (array(r), -1.0, 0.5))
    add("clamp_min clamp_max", lambda r: (array(r), 0.25))
    add("lerp", lambda r: (*same(r, 2), 0.3))
    add("addcmul", lambda r: same(r, 3), value=0.5)
    add("addcdiv", lambda r: tuple(np.abs(x) + 0.5 for x in same(r, 3)), value=0.5)
    add("float_power", lambda r: (array(r, None, FLOATS, 0.1, 3), 2))
    add("ldexp", lambda r: (array(r, (3,), (np.float32,)), np.array([1, 2, 0])))

    add("sum mean prod amax amin logsumexp", with_axis)
    add("sum prod cumsum cumprod", lambda r: with_axis(r, (*INTEGERS, np.bool_)))
    add("sum nansum nanmean mean amax amin cumsum", lambda r: (special(r), 1))
    add("max min", one(array))
    add("max min median mode cummax cummin sort argsort", with_axis)
    add(
        "max min median argmax argmin sort",
        lambda r: with_axis(r, (np.int64, np.int32, np.uint8), low=-50, high=50),
    )
    add(
        "max min amax amin median nanmedian sort argmax cummax cummin",
        lambda r: (special(r, (np.float64,)), 1),
    )
    add("median nanmedian max min sum mean prod argmax argmin any all count_nonzero", one(array))
    add("any all count_nonzero", lambda r: with_axis(r, (np.bool_, np.int64)))
    add("std var", lambda r: (array(r, (4, 3)), 0))
    add("std_mean var_mean", lambda r: (array(r, (4, 3)), 0))
    add("kthvalue", lambda r: (array(r, (5, 4)), 2, int(r.integers(2))))
    add("quantile nanquantile", lambda r: (array(r, (5, 4)), 0.3, int(r.integers(2))))
    add("quantile", lambda r: (array(r, (5, 4), (np.float64,)), np.array([0.0, 0.25, 1.0]), 0))
    for how in ("lower", "higher", "midpoint", "nearest"):
        add("quantile", lambda r: (array(r, (5,)), 0.6), interpolation=how)
    add("quantile nanquantile", lambda r: (special(r, (np.float64,)), 0.6, 1), keepdim=True)
    add("logcumsumexp cumprod cumsum", with_axis)
    add("topk", lambda r: (array(r, (5, 4)), 2, int(r.integers(2))))
    add("diff", lambda r: (array(r, (5, 4)),), n=2, dim=0)
    add("searchsorted", lambda r: (np.sort(array(r, (3, 6), (np.float32,))), array(r, (3, 4), (np.float32,))))
    add("searchsorted", lambda r: (np.arange(8), array(r, (3, 4), (np.int64,))), right=True)
    add("bucketize", lambda r: (array(r, (3, 4), (np.float32,)), np.array([-1, 0, 1], np.float32)))
    add("isin", lambda r: (array(r, (3, 4), (np.int64,)), np.array([1, 2])))
    add("bincount", lambda r: (r.integers(0, 6, 9),), minlength=3)
    add("bincount", lambda r: (r.integers(0, 6, 9), r.random(9)))
    add("histc", lambda r: (array(r, (20,), FLOATS, -1, 5), 6, 0, 4))
    add("histc", lambda r: (array(r, (20,)),), bins=7)
    add("unique", lambda r: (array(r, (3, 4), (np.int64,)),), return_inverse=True, return_counts=True)
    add("unique", lambda r: (array(r, (6, 2), (np.int64,), 0, 1),), dim=0)
    add("unique_consecutive", lambda r: (np.sort(array(r, (9,), (np.int64,))),), return_counts=True)
    add("cov corrcoef", lambda r: (array(r, (3, 6)),))
    add("trapezoid", lambda r: (array(r, (3, 6)),), dx=0.5)
    add("norm", lambda r: (array(r), 2))
    add("norm", lambda r: (array(r), 3))
    add("dist", lambda r: same(r, 2))

    add("movedim", lambda r: (array(r, (2, 3, 4)), (0, 1), (1, -1)))
    add("swapaxes transpose", lambda r: (array(r, (2, 3, 4)), 0, -1))
    add("adjoint", lambda r: (array(r, (2, 3)),))
    add("ravel flatten fliplr flipud", lambda r: (array(r, (2, 3)),))
    add("flip", lambda r: (array(r, (2, 3, 4)), (0, 2)))
    add("roll", lambda r: (array(r, (2, 3, 4)), (1, -2), (0, 2)))
    add("roll", lambda r: (array(r, (2, 3)), 4))
    for k in range(4):
        add("rot90", lambda r, k=k: (array(r, (2, 3)), k, (0, 1)))
    add("tile", lambda r: (array(r, (2, 3)), (2,)))
    add("tile", lambda r: (array(r, (3,)), (2, 2)))
    add("repeat_interleave", lambda r: (array(r, (2, 3)), 2, 1))
    add("repeat_interleave", lambda r: (array(r, (3,)), np.array([2, 0, 1])))
    add("unbind", lambda r: (array(r, (2, 3)), 1))
    add("tensor_split", lambda r: (array(r, (7, 2)), 3))
    add("tensor_split", lambda r: (array(r, (7, 2)), (2, 5)))
    add("chunk", lambda r: (array(r, (7, 2)), 3))
    add("narrow", lambda r: (array(r, (7, 2)), 0, 2, 3))
    add("select", lambda r: (array(r, (7, 2)), 0, -2))
    add("unflatten", lambda r: (array(r, (2, 6)), 1, (2, -1)))
    add("hstack vstack dstack column_stack atleast_2d atleast_3d", lambda r: (same(r, 2),))
    add("atleast_1d atleast_2d atleast_3d", lambda r: (array(r, ()),))
    add("broadcast_tensors", lambda r: (array(r, (3, 1)), array(r, (4,))))
    for offset in (-1, 0, 2):
        add("diagonal diag", lambda r, offset=offset: (array(r, (3, 4)), offset))
        add("diag_embed", lambda r, offset=offset: (array(r, (2, 3)), offset))
        add("diag diagflat", lambda r, offset=offset: (array(r, (3,)), offset))
        add("tril triu", lambda r, offset=offset: (array(r, (3, 4)), offset))
    add("diagonal", lambda r: (array(r, (2, 3, 4)), 1, 2, 0))
    add("trace", lambda r: (array(r, (3, 4)),))
    add("block_diag", lambda r: (array(r, (2, 3)), array(r, (1, 2))))
    add("meshgrid", lambda r: (r.random(2), r.random(3)), indexing="xy")
    add("cartesian_prod", lambda r: (np.arange(2), np.arange(3)))
    add("combinations", lambda r: (array(r, (4,)),), r=2)
    add("vander", lambda r: (array(r, (4,)), 3))
    add("tril_indices triu_indices", lambda r: (3, 4, 1))

    add("gather", lambda r: (array(r, (3, 4)), 1, _index(r, 4, (3, 2))))
    add("take_along_dim", lambda r: (array(r, (3, 4)), _index(r, 4, (1, 2)), 1))
    add("scatter", _scatter)
    add("scatter", lambda r: (*_scatter(r)[:3], 2.5))
    add("scatter", _scatter, reduce="add")
    add("scatter_add", _scatter)
    add("scatter_add", lambda r: (np.zeros(3), 0, _index(r, 3, (6,)), r.random(6)))
    for how in ("sum", "amax", "amin", "mean", "prod"):
        add("scatter_reduce", lambda r, how=how: (r.random(3), 0, _index(r, 3, (6,)), r.random(6), how))
    add("index_add index_copy", _slices)
    add("index_fill", lambda r: (*_slices(r)[:3], 1.5))
    add("index_select", lambda r: _slices(r)[:3])
    add("masked_fill", lambda r: (array(r, (3, 4)), r.random((3, 4)) < 0.5, 2.0))
    add("masked_select", lambda r: (array(r, (3, 4)), r.random((3, 4)) < 0.5))
    add("masked_scatter", lambda r: (r.random((3, 4)), r.random((3, 4)) < 0.5, r.random(12)))
    add("nonzero argwhere", lambda r: (array(r, (3, 4), (np.int64,), 0, 1),))
    add("take", lambda r: (array(r, (3, 4)), _index(r, 12, (2, 2))))
    add("where", lambda r: (r.random((3, 4)) < 0.5, *same_of(r, (3, 4))))
    add("where", lambda r: (r.random((3, 4)) < 0.5,))

    add("mm matmul", lambda r: (r.random((3, 4)), r.random((4, 2))))
    add("bmm", lambda r: (r.random((2, 3, 4)), r.random((2, 4, 2))))
    add("mv", lambda r: (r.random((3, 4)), r.random(4)))
    add("dot vdot inner", lambda r: (r.random(4), r.random(4)))
    add("inner", lambda r: (r.random((2, 4)), r.random((3, 4))))
    add("outer", lambda r: (r.random(3), r.random(4)))
    add("addmm", lambda r: (r.random(2), r.random((3, 4)), r.random((4, 2))), beta=0.5, alpha=2)
    add("addmv", lambda r: (r.random(3), r.random((3, 4)), r.random(4)))
    add("addr", lambda r: (r.random((3, 4)), r.random(3), r.random(4)))
    add("baddbmm", lambda r: (r.random((2, 3, 2)), r.random((2, 3, 4)), r.random((2, 4, 2))), beta=0)
    add("addbmm", lambda r: (r.random((3, 2)), r.random((2, 3, 4)), r.random((2, 4, 2))))
    add("tensordot", lambda r: (r.random((2, 3, 4)), r.random((3, 4, 5))))
    add("tensordot", lambda r: (r.random((2, 3, 4)), r.random((4, 2, 5)), ((0, 2), (1, 0))))
    add("kron", lambda r: (r.random((2, 3)), r.random((4,))))
    add("cross", lambda r: (r.random((2, 3)), r.random((2, 3)), 1))
    add("chain_matmul", lambda r: (r.random((2, 3)), r.random((3, 4)), r.random((4, 2))))
    add("cdist", lambda r: (r.random((2, 3, 4)), r.random((2, 5, 4))))
    add("cdist", lambda r: (r.random((3, 4)), r.random((5, 4)), 1.0))
    add("matrix_power", lambda r: (square(r), 3))
    add("matrix_power", lambda r: (square(r), -2))
    add("matrix_power", lambda r: (square(r), 0))

    add("linalg.inv linalg.det linalg.slogdet linalg.cond", one(square))
    add("linalg.solve", lambda r: (square(r, (2,), 3, (np.float64,)), r.random((2, 3, 2))))
    add("linalg.solve", lambda r: (square(r, (), 3, (np.float64,)), r.random(3)))
    add("linalg.solve", lambda r: (square(r, (2,), 3, (np.float64,)), r.random((2, 2, 3))), left=False)
    add("linalg.solve_triangular", lambda r: (square(r, (), 3, (np.float64,)), r.random((3, 2))), upper=True)
    add("linalg.cholesky", lambda r: (spd(r),))
    add("linalg.matrix_exp", lambda r: (square(r, (2,), 3, (np.float64,)) * 4,))
    add("linalg.householder_product", lambda r: (r.random((2, 4, 3)), r.random((2, 3))))
    add("linalg.householder_product", lambda r: (r.random((4, 3)), np.array([0.5, 0.0])))
    add("linalg.qr", lambda r: (r.random((2, 4, 3)) + np.eye(4, 3),))
    add("linalg.svdvals linalg.pinv linalg.matrix_rank", lambda r: (r.random((2, 4, 3)),))
    add("linalg.pinv", lambda r: (r.random((3, 4)),))
    add("linalg.eigvalsh", lambda r: (spd(r),))
    add("linalg.multi_dot", lambda r: ((r.random(3), r.random((3, 4)), r.random((4, 2))),))
    for p in (2, 1, 0, float("inf"), float("-inf"), 3):
        add("linalg.vector_norm", lambda r, p=p: (r.random((3, 4)) + 0.1, p, 1))
    for kind in ("fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf")):
        add("linalg.matrix_norm", lambda r, kind=kind: (r.random((2, 3, 4)), kind))
    add("linalg.norm", lambda r: (array(r, (3, 4)),))
    add("linalg.norm", lambda r: (array(r, (3, 4)), None, 1))
    add("linalg.norm", lambda r: (array(r, (3, 4)), "fro"))
    add("linalg.vecdot", lambda r: (r.random((3, 4)), r.random((3, 4))))
    add("linalg.tensorinv", lambda r: (square(r, (), 6, (np.float64,)).reshape(2, 3, 6),))
    add("linalg.tensorsolve", lambda r: (square(r, (), 6, (np.float64,)).reshape(2, 3, 6), r.random((2, 3))))
    add("linalg.cross", lambda r: (r.random((2, 3)), r.random((2, 3))))
    add("linalg.vander", lambda r: (r.random(3),), N=4)
    return found


def same_of(r: Random, shape: Any) -> tuple[Any, Any]:
    """Two of one type."""
    first = array(r, shape)
    return first, array(r, shape, (first.dtype,))


def spd(r: Random) -> Any:
    """A symmetric matrix whose eigenvalues are positive and apart."""
    found = r.random((2, 3, 3))
    return found @ np.swapaxes(found, -1, -2) + np.diag([1.0, 3.0, 6.0])
