"""What a caller may pass to `run`, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.robustness.models import INT64, model, node, product, value, weights

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def session() -> Any:
    with vkml.InferenceSession(product(), devices="cpu") as session:
        yield session


REFUSED: list[tuple[Any, tuple[str, ...]]] = [
    ({}, ("missing ['x']", "inputs are ['x']")),
    ({"x": X, "z": X}, ("unknown ['z']", "inputs are ['x']")),
    ({"z": X}, ("missing ['x']", "unknown ['z']")),
    ({"x": X.astype(np.float64)}, ("'x'", "float32", "float64", ".astype(np.float32)")),
    ({"x": X.astype(np.int32)}, ("'x'", "float32", "int32", ".astype(np.float32)")),
    ({"x": X > 0}, ("'x'", "float32", "bool")),
    ({"x": X[0]}, ("'x'", "['n', 4]", "[4]")),
    ({"x": X[None]}, ("'x'", "['n', 4]", "[1, 2, 4]")),
    ({"x": X[:, :3]}, ("'x'", "['n', 4]", "[2, 3]")),
    ({"x": np.float32(3)}, ("'x'", "['n', 4]", "[]")),
    ({"x": [[1, 2], [3]]}, ("'x'", "cannot be made an array")),
    ({"x": None}, ("'x'", "float32", "object")),
    ({"x": "text"}, ("'x'", "float32")),
    ({"x": {"a": 1}}, ("'x'", "float32")),
    ({"x": [[1j, 2, 3, 4]]}, ("'x'", "complex")),
    ({"x": [[1e300, 2, 3, 4]]}, ("'x'", "float32", "float64")),
    ({"x": [[10**40, 2, 3, 4]]}, ("'x'", "float32")),
    ([X], ("mapping", "a list", "['x']")),
    (None, ("mapping", "NoneType", "['x']")),
    (3, ("mapping", "an int")),
    ({"x"}, ("mapping", "a set")),
]


@pytest.mark.parametrize(("feed", "words"), REFUSED)
@pytest.mark.parametrize("has_run", [False, True])
def test_refused_feeds(session: Any, feed: Any, words: tuple[str, ...], has_run: bool) -> None:
    if has_run:  # the way a second run takes is another
        session.run(None, {"x": X})
    with pytest.raises(vkml.InvalidArgument) as caught:
        session.run(None, feed)
    for word in words:
        assert word in str(caught.value), caught.value
    assert isinstance(caught.value, ValueError)


class Lazy:
    """An array-like, as jax's, h5py's or torch's: an array when it is asked for one, or an exception."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.shape, self.dtype = (2, 4), np.dtype(np.float32)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if isinstance(self.made, BaseException):
            raise self.made
        return self.made


def test_array_likes_are_taken_at_every_run(device_name: str) -> None:
    with vkml.InferenceSession(product(), devices=device_name, precision="highest") as session:
        for array in (X, -X, X, 2 * X):
            [y] = session.run(None, {"x": Lazy(array)})
            np.testing.assert_allclose(y, array.astype(np.float64) @ weights(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, AttributeError, KeyError, OSError])
def test_what_array_likes_raise(session: Any, error: type[Exception], has_run: bool) -> None:
    """A torch tensor that requires a gradient raises RuntimeError, a closed h5py file others."""
    if has_run:
        session.run(None, {"x": X})
    with pytest.raises(vkml.InvalidArgument, match=r"'x' cannot be made an array.*call detach") as caught:
        session.run(None, {"x": Lazy(error("call detach"))})
    assert isinstance(caught.value.__cause__, error)


def test_memory_and_interrupts_of_array_likes(session: Any) -> None:
    with pytest.raises(vkml.OutOfMemory, match=r"'x'.*8 TiB"):
        session.run(None, {"x": Lazy(MemoryError("8 TiB"))})
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": Lazy(KeyboardInterrupt())})


def test_what_array_likes_raise_for_a_value() -> None:
    """`OrtValue` says the same of them as a feed does."""
    with pytest.raises(vkml.InvalidArgument, match=r"cannot be made an array.*call detach") as caught:
        vkml.OrtValue.ortvalue_from_numpy(Lazy(RuntimeError("call detach")))  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(vkml.OutOfMemory, match="8 TiB"):
        vkml.OrtValue.ortvalue_from_numpy(Lazy(MemoryError("8 TiB")))  # type: ignore[arg-type]
    with pytest.raises(vkml.InvalidArgument, match="datetime64"):
        vkml.OrtValue.ortvalue_from_numpy(np.zeros(2, "datetime64[s]"))


class Unspeakable:
    """What somebody else's class may be."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __int__(self) -> int:
        raise RuntimeError("no number")

    __index__ = __int__


def test_what_other_arguments_raise_for_a_value(session: Any) -> None:
    value = vkml.OrtValue.ortvalue_from_numpy(X)
    binding = session.io_binding()
    strange: Any = Unspeakable()
    for attempt in (
        lambda: value.update_inplace(strange),
        lambda: vkml.OrtValue.ortvalue_from_numpy(X, strange),
        lambda: vkml.OrtValue.ortvalue_from_shape_and_type([2, strange]),
        lambda: vkml.OrtValue.ortvalue_from_shape_and_type(strange),
        lambda: vkml.OrtValue.ortvalue_from_shape_and_type([2], strange),
        lambda: binding.bind_ortvalue_input("x", strange),
        lambda: binding.bind_input("x", "cpu", 0, np.float32, [2, strange], 0),
        lambda: binding.bind_input("x", "cpu", 0, np.float32, [2, 4], strange),
        lambda: binding.bind_input("x", "cpu", 0, strange, [2, 4], 0),
    ):
        with pytest.raises(vkml.InvalidArgument):
            attempt()


TAKEN: dict[str, Any] = {
    "Fortran": np.asfortranarray(X),
    "strided": np.repeat(np.repeat(X, 2, 0), 3, 1)[::2, ::3],
    "reversed": X[::-1, ::-1],
    "transposed": np.ascontiguousarray(X.T).T,
    "read-only": np.broadcast_to(X[:1], (3, 4)),
    "other byte order": X.astype(">f4"),
    "unaligned": np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 4),
    "list": X.tolist(),
    "list of integers": [[1, -2, 3, 4]],
    "list of rows": list(X),
    "no rows": np.zeros((0, 4), np.float32),
    "many rows": np.tile(X, (500, 1)),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_taken_feeds(device_name: str, kind: str) -> None:
    with vkml.InferenceSession(product(), devices=device_name, precision="highest") as session:
        for _ in range(2):
            (y,) = session.run(None, {"x": TAKEN[kind]})
            expected = np.asarray(TAKEN[kind], np.float64) @ weights()
            assert y.shape == expected.shape and y.dtype == np.float32
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_not_a_number(device_name: str) -> None:
    x = np.full((3, 4), np.nan, np.float32)
    x[1], x[2] = np.inf, 1
    with vkml.InferenceSession(product(), devices=device_name) as session:
        (y,) = session.run(None, {"x": x})
    assert np.isnan(y[0]).all() and np.isfinite(y[2]).all()


def test_scalars_and_python_numbers(device_name: str) -> None:
    sums = model(
        [node("Add", ["a", "b"], ["y"])],
        [value("a", (), INT64), value("b", ("n",), INT64)],
        [value("y", ("n",), INT64)],
    )
    with vkml.InferenceSession(sums, devices=device_name) as session:
        assert session.run(None, {"a": 3, "b": [1, 2]})[0].tolist() == [4, 5]
        assert session.run(None, {"a": np.int64(3), "b": []})[0].shape == (0,)
        assert session.run(None, {"a": np.array(3), "b": np.array([-3])})[0].tolist() == [0]
        for wrong in (3.5, 2**63, True, "3", [3]):
            with pytest.raises(vkml.InvalidArgument, match="'a'"):
                session.run(None, {"a": wrong, "b": [1]})


def test_dimensions_that_disagree(device_name: str) -> None:
    both = model(
        [node("Add", ["a", "b"], ["y"])], [value("a", ("n", 4)), value("b", ("n", 4))], [value("y", None)]
    )
    with vkml.InferenceSession(both, devices=device_name) as session:
        with pytest.raises(vkml.InvalidArgument) as caught:
            session.run(None, {"a": X, "b": np.ones((3, 4), np.float32)})
        for word in ("'n'", "2 in input 'a'", "3 in input 'b'"):
            assert word in str(caught.value)
        np.testing.assert_array_equal(session.run(None, {"a": X, "b": X})[0], X + X)


def test_empty_batches(device_name: str) -> None:
    random = np.random.default_rng(0)
    constants = {"w": random.standard_normal((3, 2, 3, 3)).astype(np.float32), "f": weights()[:3]}
    whole = model(
        [
            node("Conv", ["x", "w"], ["c"]),
            node("Relu", ["c"], ["r"]),
            node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2]),
            node("ReduceMean", ["m"], ["a"], keepdims=0, axes=[2, 3]),
            node("MatMul", ["a", "f"], ["p"]),
            node("Softmax", ["p"], ["s"]),
            node("Transpose", ["s"], ["y"]),
        ],
        [value("x", ("n", 2, 5, 5))],
        [value("y", (3, "n")), value("m", ("n", 3, 2, 2))],
        constants,
        opset=17,
    )
    with vkml.InferenceSession(whole, devices=device_name) as session:
        for rows in (0, 1, 0, 2):
            y, m = session.run(None, {"x": np.ones((rows, 2, 5, 5), np.float32)})
            assert y.shape == (3, rows) and m.shape == (rows, 3, 2, 2)
            np.testing.assert_allclose(y.sum(0), np.ones(rows), rtol=1e-5)


def test_shape_from_the_feed(device_name: str) -> None:
    reshape = model(
        [node("Reshape", ["x", "s"], ["r"], "form"), node("Relu", ["r"], ["y"])],
        [value("x", (2, 4)), value("s", (2,), INT64)],
        [value("y", ("a", "b"))],
    )
    with vkml.InferenceSession(reshape, devices=device_name) as session:
        for shape in ([4, 2], [-1, 1], [0, 4], [8, 1]):
            np.testing.assert_array_equal(
                session.run(None, {"x": abs(X), "s": np.array(shape)})[0].reshape(-1), abs(X).reshape(-1)
            )
        for shape in ([3, 3], [-1, -1], [2**40, 2**40], [-2, 4], [0, 3]):
            with pytest.raises(vkml.ShapeError, match="Reshape node 'form'"):
                session.run(None, {"x": X, "s": np.array(shape)})


def test_size_from_the_feed(device_name: str) -> None:
    wide = model(
        [node("Expand", ["x", "s"], ["e"], "wide"), node("Neg", ["e"], ["y"], "flip")],
        [value("x", (1,)), value("s", (2,), INT64)],
        [value("y", ("a", "b"))],
    )
    one = np.ones(1, np.float32)
    with vkml.InferenceSession(wide, devices=device_name) as session:
        for shape, kind in (([2**18, 2**20], vkml.OutOfMemory), ([2**40, 2**40], vkml.ShapeError)):
            with pytest.raises(kind):
                session.run(None, {"x": one, "s": np.array(shape)})
            assert session.run(None, {"x": one, "s": [2, 2]})[0].tolist() == [[-1, -1], [-1, -1]]


def test_output_names(device_name: str) -> None:
    two = model(
        [node("Relu", ["x"], ["r"]), node("Neg", ["r"], ["n"]), node("Identity", ["x"], ["same"])],
        [value("x", (2, 4))],
        [value("n", (2, 4)), value("r", (2, 4)), value("same", (2, 4)), value("x", (2, 4))],
    )
    r = np.maximum(X, 0)
    expected = {"n": -r, "r": r, "same": X, "x": X}
    with vkml.InferenceSession(two, devices=device_name) as session:
        for names in (None, [], ["r"], ["r", "n"], ("x", "same"), ["n", "n", "r", "n"], ["x", "x"]):
            results = session.run(names, {"x": X})
            for name, result in zip(names or ["n", "r", "same", "x"], results, strict=True):
                np.testing.assert_array_equal(result, expected[name])
            for i, one in enumerate([X, *results]):
                assert not any(np.shares_memory(one, other) for other in results[i:]), names
        for wrong, words in (
            (["q"], ("no output 'q'", "['n', 'r', 'same', 'x']")),
            ("n", ("list of names", "'n'")),
            ([3], ("no output '3'",)),
            (3, ("list of names", "3")),
            (["n", ["r"]], ("no output '['r']'",)),
        ):
            with pytest.raises(vkml.InvalidArgument) as caught:
                session.run(wrong, {"x": X})
            for word in words:
                assert word in str(caught.value)


def test_closed_session(device_name: str) -> None:
    session = vkml.InferenceSession(product(), devices=device_name)
    session.run(None, {"x": X})
    session.close()
    session.close()
    for act in (lambda: session.run(None, {"x": X}), session.report):
        with pytest.raises(vkml.Fail, match="closed; make a new one"):
            act()
    assert session.get_inputs()[0].name == "x"


def test_closed_devices(vulkan_device_name: str) -> None:
    with vkml.InferenceSession(product(), devices=vulkan_device_name) as session:
        session.run(None, {"x": X})
        vkml.close_devices()
        with pytest.raises(vkml.DeviceError, match="has been closed"):
            session.run(None, {"x": X})
    with vkml.InferenceSession(product(), devices=vulkan_device_name) as session:
        session.run(None, {"x": X})


@pytest.mark.parametrize("wrong", [[1, 2], [b"a", None]])
def test_strings(wrong: list[Any]) -> None:
    texts = model([node("Identity", ["x"], ["y"])], [value("x", ("n",), 8)], [value("y", ("n",), 8)])
    with vkml.InferenceSession(texts, devices="cpu") as session:
        for right in (["a", "bc"], np.array(["a", "bc"]), np.array(["a", "bc"], object)):
            assert session.run(None, {"x": right})[0].tolist() == ["a", "bc"]
        with pytest.raises(vkml.InvalidArgument, match="takes strings"):
            session.run(None, {"x": np.array(wrong, object)})


def test_bits_of_bfloat16() -> None:
    raw = model([node("Identity", ["x"], ["y"])], [value("x", (2,), 16)], [value("y", (2,), 16)])
    with vkml.InferenceSession(raw, devices="cpu") as session:
        with pytest.raises(vkml.InvalidArgument, match=r"takes bfloat16, got float32; .*ml_dtypes\.bfloat16"):
            session.run(None, {"x": np.ones(2, np.float32)})
        [found] = session.run(None, {"x": np.array([1, 0x3F80], np.uint16)})
        assert found.view(np.uint16).tolist() == [1, 0x3F80] and found[1] == 1
