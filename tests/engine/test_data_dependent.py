"""Models whose shapes depend on data: planning runs nothing, plans are found again, reports hide nothing."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.vulkan_cases import assert_close
from vkml import errors
from vkml.engine import plan_cache
from vkml.engine.sketch import Sketch
from vkml.ir import Constant, Graph, dtypes
from vkml.ir.operator import REGISTRY
from vkml.onnx import save_graph
from vkml.passes import folding

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]


def one(sketch: Sketch, *values: int) -> str:
    return sketch.constant(np.array(values))


def found_pixels(size: int | str = 16) -> bytes:
    """Convolutions → the places of bright pixels → what lies there → a product."""
    random = np.random.default_rng(0)
    sketch = Sketch("pixels")
    value = sketch.input("x", (1, 1, size, size))
    channels = 1
    for layer in range(3):
        weight = random.standard_normal((4, channels, 3, 3)).astype(np.float32)
        value = sketch.node("Conv", value, sketch.constant(weight), pads=[1] * 4, name=f"conv{layer}")
        value, channels = sketch.node("Relu", value), 4
    x = sketch.node("Squeeze", "x", one(sketch, 0, 1))
    places = sketch.node("NonZero", sketch.node("Greater", x, sketch.constant(np.float32(0))), name="places")
    columns = sketch.node("Transpose", places, perm=[1, 0])
    rows = sketch.node("Transpose", sketch.node("Squeeze", value, one(sketch, 0)), perm=[1, 2, 0])
    features = sketch.node("GatherND", rows, columns)
    weight = sketch.constant(random.standard_normal((4, 3)).astype(np.float32))
    product = sketch.node("MatMul", features, weight, name="product")
    return save_graph(sketch.finish(sketch.node("Relu", product), columns))


def image(seed: int, bright: int, size: int = 16) -> Feed:
    """An image with that many bright pixels."""
    random = np.random.default_rng(seed)
    flat = -random.random(size * size, dtype=np.float32) - 0.1
    flat[random.permutation(size * size)[:bright]] *= -1
    return {"x": flat.reshape(1, 1, size, size)}


def reference(model: bytes, feed: Feed) -> list[Array]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, feed)]


def check(session: vkml.InferenceSession, model: bytes, feed: Feed) -> None:
    for made, wanted in zip(session.run(None, feed), reference(model, feed), strict=True):
        assert made.dtype == wanted.dtype
        assert_close(made, wanted, 1e-4, 1e-5, "output")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """The plans that sessions make, without keeping them: a plan closes when nobody holds it any more."""
    made: list[weakref.ref[Any]] = []
    make = plan_cache.make_plan

    def counted(*arguments: Any, **named: Any) -> Any:
        plan = make(*arguments, **named)
        made.append(weakref.ref(plan))
        return plan

    monkeypatch.setattr(plan_cache, "make_plan", counted)
    return made


@contextmanager
def never_evaluated(monkeypatch: pytest.MonkeyPatch, *operators: str) -> Iterator[None]:
    """Inside, NumPy's form of these operators fails."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("NumPy runs a node that machine code or the device should")

    with monkeypatch.context() as patch:
        for name in operators:
            patch.setattr(type(REGISTRY["", name]), "evaluate", refuse)
        yield


def test_heavy_nodes_stay_on_the_device_on_both_sides(
    device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (16, "size"):
        model = found_pixels(size)
        with (
            vkml.InferenceSession(model, devices=device_name) as session,
            never_evaluated(monkeypatch, "Conv", "MatMul"),
        ):
            for seed, bright in enumerate((7, 7, 40, 0, 256)):
                check(session, model, image(seed, bright))


def test_equal_sizes_find_their_plans_again(device_name: str, plans: list[weakref.ref[Any]]) -> None:
    model = found_pixels()
    options = vkml.SessionOptions(plan_cache_size=2)
    with vkml.InferenceSession(model, options, devices=device_name) as session:
        for seed in range(5):
            check(session, model, image(seed, 30))
        assert len(plans) == 2
        check(session, model, image(9, 31))
        assert len(plans) == 3
        for bright in range(6):
            session.run(None, image(9, bright))
        check(session, model, image(9, 30))
        assert sum(plan() is not None for plan in plans) <= 2 * options.plan_cache_size


def test_what_the_cpu_does_is_reported_and_refused_by_strict_sessions(
    vulkan_device_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for size in (16, "size"):
        caplog.clear()
        model = found_pixels(size)
        with vkml.InferenceSession(model, devices=vulkan_device_name) as session:
            check(session, model, image(1, 7))
            if size == "size":
                check(session, model, image(1, 7, 8))
            report = session.report({"size": 16} if size == "size" else None)
        fallbacks = dict(report.fallbacks)
        assert "depends on data" in fallbacks.pop("NonZero node 'places'")
        assert all(
            "needs int" in reason for reason in fallbacks.values()
        )  # int64, bool: SwiftShader has none
        device_of = {label: step.device for step in report.steps for label in step.nodes}
        assert device_of["NonZero node 'places'"] == "cpu"
        for node in ("Conv node 'conv0'", "Conv node 'conv2'", "MatMul node 'product'"):
            assert device_of[node] == vulkan_device_name
        assert any("places" in text and "[2, 1]" in text for text in report.assumed)
        warnings = [record.message for record in caplog.records if "on the CPU instead" in record.message]
        assert sum("places" in text for text in warnings) == 1
        with pytest.raises(errors.NotImplemented, match="places"):
            vkml.InferenceSession(model, devices=vulkan_device_name, strict=True)


def test_strict_sessions_on_the_cpu_are_where_they_should_be() -> None:
    model = found_pixels()
    with vkml.InferenceSession(model, devices="cpu", strict=True) as session:
        check(session, model, image(1, 7))
        assert session.report().fallbacks == ()


def cropped() -> bytes:
    """An image cut and folded by numbers that are computed from the image."""
    sketch = Sketch("cropped")
    x = sketch.input("x", ("n", 8))
    heavy = sketch.node("MatMul", x, sketch.constant(np.eye(8, dtype=np.float32)), name="product")
    most = sketch.node("ReduceMax", heavy, keepdims=0, name="most")
    count = sketch.node("Cast", most, to=dtypes.INT64.code, name="count")
    end = sketch.node("Reshape", count, one(sketch, 1))
    cut = sketch.node("Slice", heavy, one(sketch, 0), end, one(sketch, 1), name="cut")
    rows = sketch.node("Gather", sketch.node("Shape", heavy), one(sketch, 0))
    target = sketch.node("Concat", end, rows, axis=0)
    turned = sketch.node("Reshape", cut, target, name="turned")
    again = sketch.node("MatMul", turned, sketch.node("Transpose", turned), name="again")
    return save_graph(sketch.finish(again, count))


def test_shapes_computed_from_data(
    device_name: str, plans: list[weakref.ref[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cropped()
    with vkml.InferenceSession(model, devices=device_name, strict=device_name == "cpu") as session:
        with never_evaluated(monkeypatch, "MatMul", "ReduceMax"):
            for seed, most in enumerate((3, 5, 3, 3, 5)):
                x = np.random.default_rng(seed).random((4, 8), dtype=np.float32)
                x[1, 2] = most + 0.5
                check(session, model, {"x": x})
        assert len(plans) == 3  # one before the cut, one for each width behind it
        assert any("holds ones" in text for text in session.report({"n": 4}).assumed)


def test_masks_of_one_length_share_a_plan(device_name: str, plans: list[weakref.ref[Any]]) -> None:
    sketch = Sketch("masked")
    ids, mask = sketch.input("ids", (1, "n"), dtypes.INT64), sketch.input("mask", (1, "n"), dtypes.INT64)
    table = sketch.constant(np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32))
    length = sketch.node("ReduceSum", mask, one(sketch, 1), keepdims=0)
    values = sketch.node("Gather", table, ids)
    kept = sketch.node("Slice", values, one(sketch, 0), length, one(sketch, 1))
    zero, step = (sketch.constant(np.array(value)) for value in (0, 1))
    last = sketch.node("Squeeze", length, one(sketch, 0))
    places = sketch.node("Cast", sketch.node("Range", zero, last, step), to=dtypes.FLOAT32.code)
    filled = sketch.node(
        "ConstantOfShape", length, value=Constant(dtypes.FLOAT32, (1,), np.full(1, 2, np.float32))
    )
    weights = sketch.node("Unsqueeze", sketch.node("Mul", places, filled), one(sketch, 1))
    model = save_graph(sketch.finish(sketch.node("Mul", kept, weights)))
    with vkml.InferenceSession(model, devices=device_name) as session:
        random = np.random.default_rng(1)
        for length_fed in (3, 6, 3, 6, 3):
            feed = {"ids": random.integers(0, 50, (1, 9)), "mask": np.zeros((1, 9), np.int64)}
            feed["mask"][0, random.permutation(9)[:length_fed]] = 1
            check(session, model, feed)
        assert len(plans) == 3


def test_outputs_of_all_segments_in_any_order(device_name: str) -> None:
    sketch = Sketch("outputs")
    x = sketch.input("x", (2, 3))
    table = sketch.constant(np.arange(3, dtype=np.float32))
    places = sketch.node("NonZero", x)
    count = sketch.node("Shape", places)
    unique = sketch.node("Unique", sketch.node("Cast", places, to=dtypes.FLOAT32.code))
    total = sketch.node("ReduceSum", unique, keepdims=0)
    graph = sketch.finish(x, table, places, count, unique, total, sketch.node("Relu", x))
    model = save_graph(graph)
    data = np.array([[0, 1, 2], [3, 0, 5]], np.float32)
    expected = reference(model, {"x": data})
    with vkml.InferenceSession(model, devices=device_name) as session:
        names = [value.name for value in session.get_outputs()]
        for wanted in (names, names[::-1], [names[2], names[0], names[2], names[1], names[0]]):
            given = data.copy()
            found = session.run(wanted, {"x": given})
            for at, (name, array) in enumerate(zip(wanted, found, strict=True)):
                np.testing.assert_array_equal(array, expected[names.index(name)])
                assert not np.shares_memory(array, given)
                assert not any(np.shares_memory(array, other) for other in found[at + 1 :])
            for array in found:
                array[...] = 9


def test_inputs_that_are_shapes_make_a_plan_each_and_nothing_larger_is_computed_from_them(
    device_name: str, plans: list[weakref.ref[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch = Sketch("filled")
    shape = sketch.input("shape", (2,), dtypes.INT64)
    image_shape = sketch.node("Concat", one(sketch, 1, 1), sketch.node("Mul", shape, one(sketch, 2)), axis=0)
    filled = sketch.node(
        "ConstantOfShape", image_shape, value=Constant(dtypes.FLOAT32, (1,), np.full(1, 2, np.float32))
    )
    weight = sketch.constant(np.random.default_rng(0).standard_normal((4, 1, 3, 3)).astype(np.float32))
    model = save_graph(sketch.finish(sketch.node("Conv", filled, weight)))
    with (
        vkml.InferenceSession(model, devices=device_name, strict=True) as session,
        never_evaluated(monkeypatch, "Conv"),
    ):
        for fed in ((4, 5), (6, 4), (4, 5)):
            check(session, model, {"shape": np.array(fed)})
    assert len(plans) == 2


def random_model(random: np.random.Generator) -> tuple[Graph, Feed]:
    """A random graph of vectors whose lengths come from data, in several ways."""
    sketch = Sketch("random")
    feed: Feed = {}
    vectors = []
    for at in range(2):
        feed[f"x{at}"] = random.integers(-3, 4, int(random.integers(1, 9))).astype(np.float32)
        vectors.append(sketch.input(f"x{at}", ("n",)) if at == 0 else sketch.input(f"x{at}", ("m",)))
    feed["size"] = np.array([int(random.integers(1, 6))])
    sizes = [sketch.input("size", (1,), dtypes.INT64), one(sketch, 3)]
    for _ in range(int(random.integers(4, 14))):
        x = vectors[int(random.integers(len(vectors)))]
        size = sizes[int(random.integers(len(sizes)))]
        other = sizes[int(random.integers(len(sizes)))]
        kind = int(random.integers(10))
        if kind == 0:
            places = sketch.node("NonZero", x)
            vectors.append(sketch.node("Gather", x, sketch.node("Squeeze", places, one(sketch, 0))))
        elif kind == 1:
            vectors.append(sketch.node("Unique", x))
        elif kind == 2:
            vectors.append(sketch.node("Slice", x, one(sketch, 0), size))
        elif kind == 3:
            square = sketch.node("Tile", x, size)
            vectors.append(sketch.node("Relu", square))
        elif kind == 4:
            vectors.append(sketch.node("Concat", x, vectors[0], axis=0))
        elif kind == 5:
            vectors.append(sketch.node("Neg", x))
        elif kind == 6:
            sizes.append(sketch.node("Shape", x))
        elif kind == 7:
            sizes.append(sketch.node("Min", sketch.node("Add", size, other), one(sketch, 4)))
        elif kind == 8:
            mean = sketch.node("ReduceSum", sketch.node("Abs", x), keepdims=1)
            small = sketch.node("Min", mean, sketch.constant(np.full(1, 5, np.float32)))
            sizes.append(sketch.node("Cast", small, to=dtypes.INT64.code))
        else:
            fill = Constant(dtypes.FLOAT32, (1,), np.full(1, 1.5, np.float32))
            vectors.append(sketch.node("ConstantOfShape", size, value=fill))
    return sketch.finish(*dict.fromkeys(vectors[-4:]), *dict.fromkeys(sizes[-2:])), feed


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs(device_name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(2 if device_name != "cpu" else 8):
        graph, feed = random_model(random)
        model = save_graph(graph)
        with vkml.InferenceSession(model, devices=device_name) as session:
            for _ in range(2):
                check(session, model, feed)
                feed = {
                    name: array if name == "size" else random.integers(-3, 4, array.shape).astype(np.float32)
                    for name, array in feed.items()
                }
            session.report()


def test_sizes_that_data_decide_lie_beside_open_ones(device_name: str) -> None:
    """The one plan of two sizes, in which the CPU makes results of a size that nobody knows before."""
    sketch = Sketch("beside")
    x, y = sketch.input("x", (2, 2)), sketch.input("y", ("n", 3))
    model = save_graph(sketch.finish(sketch.node("Unique", x), sketch.node("Neg", y)))
    data = np.float32([[1, 2], [2, 1]])
    with vkml.InferenceSession(model, devices=device_name) as session:
        for rows in (2, 3, 4):
            other = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
            found, negative = session.run(None, {"x": data, "y": other})
            assert found.tolist() == [1, 2]
            np.testing.assert_array_equal(negative, -other)


@pytest.mark.parametrize("is_sized_folded", [True, False])
@pytest.mark.parametrize("rows", [40, "rows"])
def test_values_that_decide_sizes_and_are_larger_than_what_is_folded(
    device_name: str, rows: int | str, is_sized_folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indices as Longformer's export makes them: the places of a fill's ones, counted out over rows."""
    monkeypatch.setattr(folding, "FOLD_LIMIT", 1 << 10)
    if not is_sized_folded:
        monkeypatch.setattr(folding, "SIZED_LIMIT", 0)
    sketch = Sketch("counted")
    x = sketch.input("x", (rows, 64))
    values = x
    for _ in range(2):
        shape = sketch.node("Shape", values)
        count = sketch.node("ReduceProd", shape, keepdims=1)
        one_each = Constant(dtypes.FLOAT32, (1,), np.ones(1, np.float32))
        ones = sketch.node("ConstantOfShape", count, value=one_each)
        places = sketch.node("Transpose", sketch.node("NonZero", ones), perm=[1, 0])
        grid = sketch.node("Reshape", sketch.node("Squeeze", places, one(sketch, 1)), shape)
        indices = sketch.node("Reshape", sketch.node("Slice", grid, *cut(sketch)), one(sketch, -1))
        flat = sketch.node("Reshape", sketch.node("Relu", values), one(sketch, -1))
        values = sketch.node("Reshape", sketch.node("Gather", flat, indices), one(sketch, -1, 64))
    model = save_graph(sketch.finish(values))
    with vkml.InferenceSession(model, devices=device_name) as session:
        for size in (40, 40) if rows == 40 else (40, 56, 33):
            data = np.random.default_rng(size).standard_normal((size, 64), np.float32)
            check(session, model, {"x": data})
        report = session.report({"rows": 40} if rows == "rows" else None)
        assert is_sized_folded == all("NonZero" not in label for step in report.steps for label in step.nodes)


def cut(sketch: Sketch) -> tuple[str, str, str]:
    """From row 3 on, all but the last."""
    return one(sketch, 3), one(sketch, -1), one(sketch, 0)
