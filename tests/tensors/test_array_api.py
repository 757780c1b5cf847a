"""The array API: names, signatures, types and values against `array_api_strict`, arguments by hypothesis."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import vkml
from vkml import xp

strict.set_array_api_strict_flags(api_version="2024.12")
EXAMPLES = settings(
    max_examples=25, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip
KINDS = {
    "b": ["bool"],
    "i": ["int8", "int16", "int32", "int64"],
    "u": ["uint8", "uint16", "uint32", "uint64"],
    "f": ["float32", "float64"],
    "c": ["complex64", "complex128"],
}
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan")]


def _names(kinds: str) -> list[str]:
    return [name for kind in kinds for name in KINDS[kind]]


def _elements(dtype: str, low: float = -100, high: float = 100) -> st.SearchStrategy[Any]:
    kind = np.dtype(dtype).kind
    if kind == "c":
        parts = _elements("float32" if dtype == "complex64" else "float64", low, high)
        return st.builds(complex, parts, parts)
    if kind == "f":
        width = np.dtype(dtype).itemsize * 8
        numbers = st.floats(low, high, width=width, allow_subnormal=False).filter(
            lambda x: x == 0 or abs(x) > 1e-3
        )
        return st.one_of(numbers, st.sampled_from(SPECIAL))
    if kind == "b":
        return st.booleans()
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return st.integers(max(least, int(low)), min(most, int(high)))


def arrays(kinds: str, shapes: Any = SHAPES, **bounds: float) -> st.SearchStrategy[Any]:
    return st.sampled_from(_names(kinds)).flatmap(
        lambda name: hnp.arrays(name, shapes, elements=_elements(name, **bounds))
    )


@st.composite
def pairs(draw: Any, kinds: str, **bounds: float) -> tuple[Any, Any]:
    """Arrays of types of one kind and of shapes that are broadcast with each other."""
    kind = draw(st.sampled_from(kinds))
    names = [draw(st.sampled_from(KINDS[kind])) for _ in range(2)]
    if kind in "iu" and draw(st.integers(0, 3)) == 0:
        names[1] = draw(st.sampled_from(["int8", "uint8", "uint16"]))
        names[0] = "int64" if names[1] != "int8" else draw(st.sampled_from(KINDS["i"]))
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4)).input_shapes
    found = [
        draw(hnp.arrays(name, shape, elements=_elements(name, **bounds)))
        for name, shape in zip(names, shapes, strict=True)
    ]
    return found[0], found[1]


def _theirs(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return strict.asarray(value)
    return type(value)(map(_theirs, value)) if isinstance(value, list) else value


def _mine(value: Any, device: str = "cpu") -> Any:
    if isinstance(value, np.ndarray):
        return xp.asarray(value, device=device)
    return type(value)(_mine(one, device) for one in value) if isinstance(value, list) else value


def _same(mine: Any, theirs: Any, what: str, loose: float) -> None:
    if isinstance(theirs, tuple | list):
        assert len(mine) == len(theirs), what
        for one, other in zip(mine, theirs, strict=True):
            _same(one, other, what, loose)
        return
    if not hasattr(theirs, "dtype"):
        assert mine == theirs, what
        return
    assert isinstance(mine, xp.Array), what
    found, expected = mine.numpy(), np.asarray(theirs)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    if found.dtype.kind in "fc":
        rtol = (1e-5 if found.dtype in (np.float32, np.complex64) else 1e-11) * loose
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol, err_msg=what)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=what)


def check(
    name: str, arguments: Any, options: dict[str, Any] | None = None, loose: float = 1, device: str = "cpu"
) -> None:
    """The function of a name does what the reference's does."""
    options = options or {}
    shown = [(a.dtype.name, a.tolist()) if isinstance(a, np.ndarray) else a for a in arguments]
    what = f"{name} {shown} {options}"
    with np.errstate(all="ignore"):
        expected = operator.attrgetter(name)(strict)(*map(_theirs, arguments), **options)
    found = operator.attrgetter(name)(xp)(*(_mine(one, device) for one in arguments), **options)
    _same(found, expected, what, loose)


# -- names ---------------------------------------------------------------------------------------------------


def test_every_name_is_there() -> None:
    of_its_own = {"ArrayAPIStrictFlags", "Device", "set_array_api_strict_flags", "get_array_api_strict_flags",
                  "reset_array_api_strict_flags"}  # fmt: skip
    assert set(strict.__all__) - of_its_own <= set(dir(xp))
    assert set(strict.linalg.__all__) <= set(dir(xp.linalg))
    assert set(strict.fft.__all__) <= set(dir(xp.fft))
    methods = {name for name in dir(strict.ones(2)) if name.startswith("__") or name[0] != "_"}
    of_classes = {"__annotations__", "__buffer__", "__dict__", "__firstlineno__", "__static_attributes__"}
    assert methods - of_classes <= set(dir(xp.ones(2)))


FUNCTIONS = sorted(
    [name for name in strict.__all__ if inspect.isfunction(getattr(strict, name)) and hasattr(xp, name)]
    + [f"linalg.{name}" for name in strict.linalg.__all__]
    + [f"fft.{name}" for name in strict.fft.__all__]
)
METHODS = sorted(
    name
    for name in dir(strict.ones(2))
    if name[-2:] == "__" and callable(getattr(strict.ones(2), name)) and name in vars(type(strict.ones(2)))
)


def _check_signatures(mine: Any, theirs: Any) -> None:
    """Parameters of a place have their places, those of a name their names, those of a default a default."""
    own, others = (list(inspect.signature(one).parameters.values()) for one in (mine, theirs))
    named = {one.name: one for one in own if one.kind != one.POSITIONAL_ONLY}
    assert {one.name for one in others if one.kind == one.KEYWORD_ONLY} <= set(named)
    placed = [one for one in others if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]
    assert len(own) >= len(placed)
    for one, other in zip(placed, own, strict=False):
        assert one.kind == other.kind or (one.name, other.name) == ("stream", "stream"), (one, other)
        if one.kind == one.POSITIONAL_OR_KEYWORD:
            assert other.name == one.name
        assert one.default is one.empty or other.default is not other.empty, (one, other)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures(name: str) -> None:
    _check_signatures(*(operator.attrgetter(name)(space) for space in (xp, strict)))


@pytest.mark.parametrize(
    "name", [one for one in METHODS if not one.startswith(("__init", "__new", "__array__", "__buffer"))]
)
def test_signatures_of_methods(name: str) -> None:
    _check_signatures(getattr(xp.ones(2), name), getattr(strict.ones(2), name))


# -- elementwise ---------------------------------------------------------------------------------------------

ONE: dict[str, tuple[str, dict[str, float]]] = {
    **dict.fromkeys(
        ("abs", "negative", "positive", "round", "square", "isfinite", "isinf", "isnan"), ("iufc", {})
    ),
    **dict.fromkeys(("ceil", "floor", "sign", "trunc"), ("iuf", {})),
    **dict.fromkeys(("conj", "imag", "real"), ("c", {})),
    "bitwise_invert": ("biu", {}),
    "logical_not": ("b", {}),
    **dict.fromkeys(
        ("acos", "acosh", "asin", "asinh", "atan", "atanh", "exp", "expm1", "log", "log1p", "log2", "log10",
         "sinh", "cosh", "tanh", "sqrt", "reciprocal", "sin", "cos", "tan"),
        ("fc", {"low": -20, "high": 20}),
    ),
    "signbit": ("f", {}),
}  # fmt: skip
TWO: dict[str, tuple[str, dict[str, float]]] = {
    **dict.fromkeys(("add", "subtract", "multiply"), ("iufc", {})),
    **dict.fromkeys(("maximum", "minimum", "less", "less_equal", "greater", "greater_equal"), ("iuf", {})),
    **dict.fromkeys(("equal", "not_equal"), ("biufc", {})),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), ("b", {})),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), ("biu", {})),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), ("iu", {"low": 0, "high": 6})),
    **dict.fromkeys(("atan2", "copysign", "hypot", "logaddexp"), ("f", {})),
    "divide": ("fc", {}),
    **dict.fromkeys(("floor_divide", "remainder"), ("iuf", {"low": 1})),
    "pow": ("iuf", {"low": 0, "high": 5}),
    "nextafter": ("f", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ONE))
def test_functions_of_one(name: str) -> None:
    kinds, bounds = ONE[name]

    @EXAMPLES
    @given(arrays(kinds, **bounds))
    def run(x: Any) -> None:
        # At complex infinities NumPy has NaN, the standard what C has: test_array_api_special.py.
        assume(name != "expm1" or x.dtype.kind != "c" or not np.isinf(x).any())
        check(name, (x,))

    run()


@pytest.mark.parametrize("name", sorted(TWO))
def test_functions_of_two(name: str) -> None:
    kinds, bounds = TWO[name]

    @EXAMPLES
    @given(pairs(kinds, **bounds))
    def run(both: Any) -> None:
        # Of infinities the standard says otherwise than NumPy: 1 // -∞ is -0, not -1.
        assume(name != "floor_divide" or not any(np.isinf(one).any() for one in both))
        check(name, both, loose=10 if name == "pow" else 1)

    run()


OPERATORS: dict[str, tuple[str, dict[str, float]]] = {
    **dict.fromkeys(("add", "sub", "mul"), ("iufc", {})),
    **dict.fromkeys(("lt", "le", "gt", "ge"), ("iuf", {})),
    **dict.fromkeys(("eq", "ne"), ("biufc", {})),
    **dict.fromkeys(("and_", "or_", "xor"), ("biu", {})),
    "truediv": ("fc", {}),
    "floordiv": ("iuf", {"low": 1}),
    "mod": ("iuf", {"low": 1}),
    "pow": ("iuf", {"low": 0, "high": 5}),
    "lshift": ("iu", {"low": 0, "high": 5}),
    "rshift": ("iu", {"low": 0, "high": 5}),
}


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators(name: str) -> None:
    """Of two arrays, and of an array and a number from either side."""
    kinds, bounds = OPERATORS[name]
    act = getattr(operator, name)

    @EXAMPLES
    @given(pairs(kinds, **bounds), st.integers(0, 2))
    def run(both: Any, how: int) -> None:
        x, y = both
        assume(name != "floordiv" or not (np.isinf(x).any() or np.isinf(y).any()))
        number: Any = {"b": True, "i": 3, "u": 3, "f": 1.5, "c": 1 - 2j}[x.dtype.kind]
        given_ = [(x, y), (x, number), (number, x)][how]
        with np.errstate(all="ignore"):
            expected = act(*map(_theirs, given_))
        _same(act(*map(_mine, given_)), expected, f"{name} {x!r} {y!r} {how}", 10)

    run()


# -- reductions and arrangement ------------------------------------------------------------------------------


@st.composite
def reduced(draw: Any, kinds: str, least: int = 0) -> tuple[Any, dict[str, Any]]:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=least, max_side=4))
    x = draw(arrays(kinds, shape, low=-3, high=3))
    axes = st.integers(-x.ndim, x.ndim - 1) if x.ndim else st.none()
    axis = draw(
        st.one_of(
            st.none(), axes, st.lists(axes, max_size=2, unique_by=lambda at: at % max(x.ndim, 1)).map(tuple)
        )
        if x.ndim
        else st.none()
    )
    return x, {"axis": axis, "keepdims": draw(st.booleans())}


REDUCTIONS = {
    "sum": ("iufc", 0), "prod": ("iufc", 0), "max": ("iuf", 1), "min": ("iuf", 1), "mean": ("fc", 1),
    "std": ("f", 1), "var": ("f", 1), "all": ("biufc", 0), "any": ("biufc", 0),
    "count_nonzero": ("biufc", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_reductions(name: str) -> None:
    @EXAMPLES
    @given(reduced(*REDUCTIONS[name]))
    def run(drawn: Any) -> None:
        # Whether a complex infinity is multiplied with a 1 that a product begins with, or divided by a count
        # as by a complex number, either of which makes NaN of its other part, is not stated.
        assume(
            name not in ("prod", "mean") or drawn[0].dtype.kind != "c" or bool(np.isfinite(drawn[0]).all())
        )
        check(name, (drawn[0],), drawn[1], loose=10)

    run()


AXIS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "argmax": ("iu", [{}, {"keepdims": True}]),
    "argmin": ("iuf", [{}, {"keepdims": True}]),
    "argsort": ("iu", [{}, {"descending": True}]),
    "sort": ("iu", [{}, {"descending": True}]),
    "cumulative_sum": ("iufc", [{}, {"include_initial": True}]),
    "cumulative_prod": ("iu", [{}, {"include_initial": True}]),
    "flip": ("biufc", [{}]),
    "expand_dims": ("biufc", [{}]),
    "roll": ("biufc", [{"shift": 2}]),
    "repeat": ("biufc", [{"repeats": 2}]),
    "diff": ("iufc", [{}, {"n": 2}]),
    "unstack": ("biufc", [{}]),
}


@pytest.mark.parametrize("name", sorted(AXIS))
def test_functions_along_an_axis(name: str) -> None:
    kinds, options = AXIS[name]

    @EXAMPLES
    @given(arrays(kinds, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), low=-3, high=3), st.data())
    def run(x: Any, data: Any) -> None:
        chosen = dict(data.draw(st.sampled_from(options)))
        more = [chosen.pop(key) for key in ("shift", "repeats") if key in chosen]
        check(name, (x, *more), {**chosen, "axis": data.draw(st.integers(-x.ndim, x.ndim - 1))}, loose=10)

    run()


A = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
V = np.array([3, 1, 2, 1], np.int64)
M = np.array([[4.0, 1.0, 0.5], [1.0, 5.0, 1.5], [0.5, 1.5, 6.0]])
C = M + 1j * M[::-1]
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("concat", ([A, A],), {"axis": 1}),
    ("concat", ([A, A.astype(np.float64)],), {"axis": None}),
    ("stack", ([A, A],), {"axis": -1}),
    ("reshape", (A, (4, -1)), {}),
    ("permute_dims", (A, (2, 0, 1)), {}),
    ("moveaxis", (A, 0, 2), {}),
    ("squeeze", (A[:1], 0), {}),
    ("matrix_transpose", (A,), {}),
    ("broadcast_to", (A[:1], (5, 3, 4)), {}),
    ("broadcast_arrays", (A[:1], A[0]), {}),
    ("flip", (A,), {}),
    ("roll", (A, 5), {}),
    ("roll", (A, (1, 2)), {"axis": (0, 2)}),
    ("tile", (A, (2, 1)), {}),
    ("repeat", (V, 2), {}),
    ("repeat", (V, np.array([1, 0, 2, 3])), {}),
    ("take", (A, np.array([1, 0, 1])), {"axis": 1}),
    ("take", (V, np.array([-1, 0])), {}),
    ("take_along_axis", (A, np.array([[[1]], [[0]]])), {"axis": 2}),
    ("where", (V > 1, V, np.array(7, np.int32)), {}),
    ("nonzero", (A > 3,), {}),
    ("searchsorted", (np.sort(V), np.array([[0, 2], [3, 9]])), {"side": "right"}),
    ("unique_all", (V,), {}),
    ("unique_counts", (V,), {}),
    ("unique_inverse", (V.reshape(2, 2),), {}),
    ("unique_values", (V,), {}),
    ("argmax", (A,), {"keepdims": True}),
    ("argmin", (A,), {}),
    ("arange", (5,), {}),
    ("arange", (1, 7, 2), {"dtype": "float64"}),
    ("arange", (0.0, 1.0, 0.25), {}),
    ("linspace", (0.0, 1.0, 5), {"endpoint": False, "dtype": "float32"}),
    ("eye", (3, 4), {"k": 1, "dtype": "float32"}),
    ("zeros", ((2, 3),), {"dtype": "int32"}),
    ("ones", (3,), {"dtype": "uint8"}),
    ("full", ((2,), True), {}),
    ("full", ((2,), 3), {}),
    ("zeros_like", (A,), {}),
    ("ones_like", (V,), {"dtype": "float32"}),
    ("full_like", (A, 2.5), {}),
    ("tril", (A,), {"k": -1}),
    ("triu", (A,), {"k": 1}),
    ("meshgrid", (V, V[:2]), {}),
    ("meshgrid", (V, V[:2]), {"indexing": "ij"}),
    ("astype", (A, "int8"), {}),
    ("clip", (A, 3.0, 9.0), {}),
    ("clip", (V, None, 2), {}),
    ("clip", (A, A[0], None), {}),
    ("matmul", (A, np.swapaxes(A, 1, 2)), {}),
    ("matmul", (V, V), {}),
    ("vecdot", (A, A), {}),
    ("tensordot", (A, A), {"axes": ((0, 2), (0, 2))}),
    ("tensordot", (V, V), {"axes": 1}),
    ("linalg.inv", (M,), {}),
    ("linalg.det", (M,), {}),
    ("linalg.slogdet", (M,), {}),
    ("linalg.cholesky", (M,), {}),
    ("linalg.cholesky", (M,), {"upper": True}),
    ("linalg.eigvalsh", (M,), {}),
    ("linalg.svdvals", (M[:2],), {}),
    ("linalg.pinv", (M[:2],), {}),
    ("linalg.matrix_rank", (M,), {}),
    ("linalg.matrix_power", (M, -2), {}),
    ("linalg.matrix_norm", (M,), {"ord": "nuc"}),
    ("linalg.matrix_norm", (A[0].astype(float),), {"keepdims": True}),
    ("linalg.vector_norm", (M,), {"axis": 1, "ord": 3}),
    ("linalg.vector_norm", (M,), {}),
    ("linalg.trace", (M,), {"offset": 1}),
    ("linalg.diagonal", (A,), {"offset": -1}),
    ("linalg.pinv", (C[:2],), {}),
    ("linalg.vecdot", (C, C), {}),
    ("linalg.inv", (C,), {}),
    ("linalg.matrix_norm", (C,), {"ord": 1}),
    ("linalg.vector_norm", (C,), {"axis": 0}),
    ("fft.fft", (C,), {"n": 5, "norm": "ortho"}),
    ("fft.irfftn", (C,), {"axes": (0, 1)}),
    ("fft.rfft", (M,), {"axis": 0}),
    ("fft.ihfft", (M,), {}),
    ("fft.hfft", (C,), {"norm": "forward"}),
    ("fft.fftshift", (C,), {"axes": 0}),
    ("linspace", (0.0, 1 + 2j, 3), {"dtype": "complex64"}),
    ("full", ((2,), 1j), {"dtype": "complex64"}),
    ("astype", (M, "complex64"), {}),
    ("linalg.solve", (M, M[0]), {}),
    ("linalg.solve", (M, M[:, :2]), {}),
    ("linalg.outer", (V, V), {}),
    ("linalg.cross", (M, M[::-1]), {}),
]  # fmt: skip


@pytest.mark.parametrize("is_named", [False, True])
def test_arrays_of_any_device_are_exchanged_without_a_copy(is_named: bool, device_name: str) -> None:
    x = xp.asarray([1.0, 2.0], device=device_name)
    shared = xp.from_dlpack(x, copy=False, **({"device": x.device} if is_named else {}))
    assert shared.device == x.device
    x[0] = 5
    assert shared.tolist() == [5, 2]
    assert xp.from_dlpack(x, copy=True).tolist() == [5, 2]


def test_exchange_with_another_device_is_a_copy(device_name: str) -> None:
    x = xp.asarray([1.0, 2.0], device=device_name)
    for other in {"cpu", device_name} - {str(x.device)}:
        with pytest.raises(ValueError, match="copy=False"):
            xp.from_dlpack(x, device=other, copy=False)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord", [2, 1, 0, 3, -1, np.inf, -np.inf])
def test_norms_along_no_axis(ord: float, keepdims: bool) -> None:
    values = np.array([[3 + 4j, -2], [0, 1e-3j]], np.complex64)
    found = xp.linalg.vector_norm(xp.asarray(values), axis=(), ord=ord, keepdims=keepdims)
    assert (found.dtype, found.shape) == (xp.float32, (2, 2))
    with np.errstate(divide="ignore"):
        expected = np.linalg.norm(values[..., None], ord, axis=-1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("columns", [(), (2,), (0,)])
def test_solve_joins_types(columns: tuple[int, ...]) -> None:
    matrix = xp.asarray([[2.0, 1.0], [1.0, 3.0]], dtype=xp.float32)
    right = xp.ones((2, *columns), dtype=xp.float64)
    for one, other, kind in (
        (matrix, right, xp.float64),
        (xp.astype(matrix, xp.float64), xp.astype(right, xp.float32), xp.float64),
        (matrix, xp.astype(right, xp.complex64), xp.complex64),
        (matrix, xp.astype(right, xp.complex128), xp.complex128),
    ):
        found = xp.linalg.solve(one, other)
        assert (found.dtype, found.shape) == (kind, other.shape)
        back = xp.matmul(one, found).numpy()
        np.testing.assert_allclose(back, np.ones(other.shape), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "options"), CALLS, ids=[f"{one[0]}-{at}" for at, one in enumerate(CALLS)]
)
def test_calls(name: str, arguments: tuple[Any, ...], options: dict[str, Any], device_name: str) -> None:
    def typed(space: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def one(value: Any) -> Any:
            return getattr(space, value) if isinstance(value, str) and hasattr(space, value) else value

        more = {key: one(value) for key, value in options.items()}
        if (
            space is strict
            and name in ("arange", "linspace", "eye", "zeros", "ones", "full")
            and "dtype" not in more
        ):
            # What is not stated is the namespace's own choice: float64 there.
            more = (
                more
                if name != "arange" or isinstance(arguments[0], int)
                else {**more, "dtype": strict.float32}
            )
        return tuple(map(one, arguments)), more

    theirs, their_options = typed(strict)
    mine, my_options = typed(xp)
    expected = operator.attrgetter(name)(strict)(*map(_theirs, theirs), **their_options)
    found = operator.attrgetter(name)(xp)(*(_mine(one, device_name) for one in mine), **my_options)
    _same(found, expected, name, 100)


@pytest.mark.parametrize("name", ["linalg.qr", "linalg.svd", "linalg.eigh"])
def test_factors_give_the_matrix(name: str) -> None:
    found = operator.attrgetter(name)(xp)(xp.asarray(M))
    if name.endswith("qr"):
        made = found.Q @ found.R
    elif name.endswith("svd"):
        made = (found.U * found.S) @ found.Vh
    else:
        made = (found.eigenvectors * found.eigenvalues) @ found.eigenvectors.mT
    np.testing.assert_allclose(made.numpy(), M, rtol=1e-10)
    assert found._fields == operator.attrgetter(name)(strict)(strict.asarray(M))._fields


def test_tolerances_of_each_matrix() -> None:
    many = np.stack([M, np.diag([1.0, 0.15, 0.15])])
    rtol = np.array([0.1, 0.2])
    ranks = xp.linalg.matrix_rank(xp.asarray(many), rtol=xp.asarray(rtol))
    assert ranks.tolist() == [3, 1]
    found = xp.linalg.pinv(xp.asarray(many), rtol=xp.asarray(rtol))
    np.testing.assert_allclose(found.numpy(), np.linalg.pinv(many, rtol=rtol), atol=1e-12)


# -- arrays --------------------------------------------------------------------------------------------------


def test_properties_and_conversions(device_name: str) -> None:
    x = xp.asarray(A, device=device_name)
    assert (x.size, x.ndim, x.shape, x.device) == (24, 3, (2, 3, 4), device_name)
    assert x.mT.shape == (2, 4, 3)
    assert x.__array_namespace__(api_version="2024.12") is xp
    assert vkml.ones(2).__array_namespace__() is xp
    assert (float(x[0, 0, 1]), int(x[0, 0, 2]), bool(x[0, 0, 0])) == (1.0, 2, False)
    assert x.to_device("cpu").device == "cpu"
    assert np.from_dlpack(x).tolist() == A.tolist()
    assert xp.from_dlpack(A).numpy().tolist() == A.tolist()
    x[0] = 5.0
    x[1, x[1] > 20.0] = -1.0
    expected = A.copy()
    expected[0] = 5
    expected[1][expected[1] > 20] = -1
    np.testing.assert_array_equal(x.numpy(), expected)
    x += 1.0
    assert isinstance(x, xp.Array)
    assert isinstance(x[..., None, ::2], xp.Array)
    assert isinstance(-abs(x), xp.Array)
    np.testing.assert_array_equal(x[:, ::-1].numpy(), (expected + 1)[:, ::-1])


def test_types_are_joined_as_the_standard_says() -> None:
    scalar = xp.asarray(1.0, dtype=xp.float64)
    assert (
        xp.ones(3, dtype=xp.float32) + scalar
    ).dtype == xp.float64  # a tensor without axes would not count
    assert (vkml.ones(3) + vkml.tensor(1.0, dtype=vkml.float64)).dtype == vkml.float32
    assert xp.result_type(xp.int8, xp.uint8) == xp.int16
    assert xp.result_type(xp.ones(2, dtype=xp.float32), 1) == xp.float32
    assert not xp.can_cast(xp.int64, xp.int32)
    assert xp.can_cast(xp.int8, xp.int16)
    assert xp.isdtype(xp.uint8, ("bool", "integral"))
    assert not xp.isdtype(xp.float32, "complex floating")
    assert (xp.finfo(xp.float32).eps, xp.iinfo(xp.int8).min) == (2.0**-23, -128)
    with pytest.raises(TypeError, match="common type"):
        xp.add(xp.ones(2, dtype=xp.uint64), xp.ones(2, dtype=xp.int64))
    with pytest.raises(TypeError, match="int32"):
        xp.sin(xp.ones(2, dtype=xp.int32))
    quotient = xp.floor_divide(xp.asarray([1.0, -1.0]), xp.asarray([-xp.inf, -xp.inf]))
    assert np.signbit(quotient.numpy()).tolist() == [True, False]
    assert quotient.tolist() == [0, 0]
    assert xp.floor_divide(xp.asarray(xp.inf), xp.asarray(-2.0)).tolist() == -xp.inf
    assert xp.floor_divide(xp.asarray([10], dtype=xp.int8), 13).tolist() == [0]  # their product wraps round
    assert (xp.ones(2, dtype=xp.float64) * 1j).dtype == xp.complex128
    assert (2j + xp.ones(2)).dtype == (xp.ones(2, dtype=xp.complex64) + 1.5).dtype == xp.complex64
    assert xp.result_type(xp.float64, xp.complex64) == xp.complex128
    with pytest.raises(TypeError, match="complex128"):
        xp.astype(xp.asarray(1j, dtype=xp.complex128), xp.float64)
    with pytest.raises(OverflowError):
        xp.ones(2, dtype=xp.int8) + 300


def test_information() -> None:
    information = xp.__array_namespace_info__()
    assert information.default_dtypes()["integral"] == xp.int64
    assert information.default_dtypes()["complex floating"] == xp.complex64
    assert set(information.dtypes(kind=("complex floating", "bool"))) == {"complex64", "complex128", "bool"}
    assert set(information.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert "cpu" in information.devices()
    assert information.default_device() == "cpu"
    assert information.capabilities()["boolean indexing"]


def test_gradients_flow_through_arrays() -> None:
    x = xp.asarray([1.0, 2.0]).requires_grad_()
    xp.sum(xp.exp(x) * x).backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp([1.0, 2.0]) * [2, 3], rtol=1e-6)  # type: ignore[union-attr]


def test_numbers_between_complex_ones_are_complex() -> None:
    for start, stop in ((1 + 1j, 2), (0, 1j)):
        found = xp.linspace(start, stop, 3)
        assert found.dtype == xp.complex64
        np.testing.assert_allclose(found.numpy(), np.linspace(start, stop, 3), rtol=1e-6)


def test_negative_indices_count_from_the_end() -> None:
    """As the standard has it, and PyTorch has not."""
    x, places = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.array([[-1, 0], [1, -3]])
    np.testing.assert_array_equal(
        xp.take_along_axis(xp.asarray(x), xp.asarray(places), axis=1).numpy(),
        np.take_along_axis(x, places, 1),
    )
    np.testing.assert_array_equal(xp.take(xp.asarray(x), xp.asarray([-1, 0]), axis=1).numpy(), x[:, [-1, 0]])
    with pytest.raises(IndexError, match="index -1 at"):
        vkml.take_along_dim(vkml.tensor(x), vkml.tensor(places), 1)
