"""Attention on matrix units: as exact as TF32, masks, special values, edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkml
from tests.kernels.attention_problems import (
    LARGE,
    Array,
    Problem,
    Unit,
    check,
    error,
    force,
    normal,
    operands,
    run,
    tf32,
    worst,
)
from vkml.engine import devices as device_registry
from vkml.engine import fragment_check
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.kernels import attention
from vkml.onnx import save_graph


@pytest.fixture
def unit(vulkan_device_name: str) -> Unit:
    from vkml import vulkan

    target = device_registry.target_of(vulkan.find_device(vulkan_device_name, True))
    if target.fragment is None:
        pytest.skip("no fp16 matrix units on this device")
    return Unit(vulkan_device_name, target.fragment)


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    yield
    attention.forced = None


TYPES = (np.float32, np.float16)
SIZES = {
    "whole tiles": (32, 32, 16),
    "edges": (37, 45, 16),
    "more keys than one scale has": (19, 150, 16),
    "small heads": (20, 33, 8),
    "one key": (17, 1, 16),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dtype", TYPES)
def test_attention(unit: Unit, name: str, dtype: Any) -> None:
    force(unit)
    check(unit, operands(*SIZES[name], dtype=dtype))


@pytest.mark.parametrize("changes", [{"stages": 2}, {"rows_in": "shared"}, {"held_in": "scratch"}], ids=str)
@pytest.mark.parametrize("has_mask", [False, True], ids=["plain", "masked"])
def test_ways(unit: Unit, changes: dict[str, Any], has_mask: bool) -> None:
    force(unit, **changes)
    problem = operands(37, 75, 16)
    if has_mask:
        problem.mask = np.random.default_rng(5).random((2, 1, 37, 75)) < 0.6
        problem.bias = normal(6, 3, 1, 75)
    check(unit, problem)


@pytest.mark.parametrize("head", [32, 96])
def test_wide_heads(unit: Unit, head: int) -> None:
    force(unit, head)
    check(unit, operands(18, 35, head - 8, batch=(1, 2)), 1.25)


def test_heads_of_any_size_in_float32(unit: Unit) -> None:
    force(unit)
    check(unit, operands(18, 35, 13, batch=(1, 2)), 1.25)


def test_batches_of_one_axis_or_none_and_broadcast_ones(unit: Unit) -> None:
    force(unit)
    check(unit, operands(20, 21, 16, batch=(3,)), 1.25)
    check(unit, operands(20, 21, 16, batch=()), 1.25)
    shared = operands(20, 21, 16)
    shared.k, shared.v = shared.k[:1], shared.v[:, :1]
    check(unit, shared, 1.25)


@pytest.mark.parametrize("dtype", TYPES)
def test_heads_in_the_middle_are_read_and_left_there(unit: Unit, dtype: Any) -> None:
    """Split by Reshape and Transpose and joined again: no kernel but attention's own runs."""
    force(unit)
    problem = operands(20, 20, 16, dtype=dtype)
    sketch = Sketch("heads")
    names = []
    for name, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        x = sketch.input(name, (2, 20, 48), dtypes.from_numpy(np.dtype(dtype)))
        split = sketch.node("Reshape", x, sketch.constant(np.array([2, 20, 3, 16], np.int64)))
        names.append(sketch.node("Transpose", split, perm=order))
    scores = sketch.node("MatMul", names[0], names[1])
    scores = sketch.node("Div", scores, sketch.constant(np.array(1 / problem.scale, dtype)))
    mixed = sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), names[2])
    joined = sketch.node("Transpose", mixed, perm=(0, 2, 1, 3))
    flat = sketch.node("Reshape", joined, sketch.constant(np.array([2, 20, 48], np.int64)))
    model = save_graph(sketch.finish(sketch.node("Neg", flat)))
    feed = {n: np.ascontiguousarray(a.swapaxes(1, 2)).reshape(2, 20, 48) for n, a in problem.feed.items()}
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(model, options, devices=unit.name) as session:
        [found] = session.run(None, feed)
        kernels = [step.kernel for step in session.report().steps]
    expected = ["attention_operands"] if dtype == np.float32 else []
    assert kernels[:-1] == [*expected, "attention"], kernels
    exact = -problem.exact().swapaxes(1, 2).reshape(2, 20, 48)
    assert error(found, exact) < 6e-4


def causal(queries: int, keys: int, offset: int = 0) -> npt.NDArray[np.bool_]:
    return np.tri(queries, keys, offset, dtype=np.bool_)


def added(seen: npt.NDArray[np.bool_], fill: float) -> Array:
    return np.where(seen, 0, fill).astype(np.float32)


MASKS: dict[str, Callable[[Problem], dict[str, Any]]] = {
    "padding, added": lambda p: {"bias": added(np.arange(45) < [[[[30]]], [[[45]]]], LARGE)},
    "padding, -inf": lambda p: {"bias": added(np.arange(45) < [[[[30]]], [[[45]]]], -np.inf)},
    "bias of heads": lambda p: {"bias": normal(7, 3, 37, 45)},
    "rows": lambda p: {"bias": normal(7, 2, 1, 37, 1)},
    "truth values": lambda p: {"mask": normal(8, 2, 1, 37, 45) > 0, "fill": LARGE},
    "hiding truth values": lambda p: {"mask": normal(8, 45) > 0, "is_mask_hiding": True},
    "fill of an ordinary size": lambda p: {"mask": normal(8, 37, 45) > 0, "fill": -1.5},
    "mask and bias": lambda p: {
        "mask": causal(37, 45),
        "fill": -1e4,
        "bias": added(np.arange(45) < [[[[30]]], [[[45]]]], -1e4),
    },
    "first keys hidden": lambda p: {"bias": added(np.arange(45) >= 33, -np.inf)},
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(unit: Unit, name: str) -> None:
    force(unit)
    problem = operands(37, 45, 16)
    check(unit, replace(problem, **MASKS[name](problem)))


def test_masks_of_float16(unit: Unit) -> None:
    force(unit)
    problem = operands(37, 45, 16, dtype=np.float16)
    seen = np.arange(45) < np.array([30, 45]).reshape(2, 1, 1, 1)
    check(unit, replace(problem, mask=seen, fill=-np.inf))
    check(unit, replace(problem, bias=added(seen, -60000).astype(np.float16)))


CAUSAL: dict[str, dict[str, Any]] = {
    "added": {"bias": added(causal(40, 40), LARGE), "constants": ("bias",)},
    "added, -1e9": {"bias": added(causal(40, 40), -1e9), "constants": ("bias",)},
    "added, -inf, a past": {"bias": added(causal(40, 63, 23), -np.inf), "constants": ("bias",)},
    "truth values": {"mask": causal(40, 40), "fill": LARGE, "constants": ("mask",)},
    "hiding truth values": {"mask": ~causal(40, 40), "is_mask_hiding": True, "constants": ("mask",)},
}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks_are_known_as_such(unit: Unit, name: str, stages: int) -> None:
    force(unit, stages=stages)
    changes = CAUSAL[name]
    keys = changes[changes["constants"][0]].shape[-1]
    problem = replace(operands(40, keys, 16), **changes)
    from vkml.engine.prepare import prepare
    from vkml.onnx import load_graph
    from vkml.passes import fuse_attention, specialise

    graph = specialise(prepare(load_graph(problem.model())), {n: a.shape for n, a in problem.feed.items()})
    fused = fuse_attention(graph, lambda found: {each.node.outputs[0] for each in found})
    [node] = [each for each in fused.nodes if each.op == "Attention"]
    assert node.attributes["causal_offset"] == keys - 40
    check(unit, problem)


def test_scores_that_reach_what_hides_others_are_added_to_it(unit: Unit) -> None:
    """Of -1e9, scores of -2e9 leave something: the mask is not simply the end of a row."""
    force(unit)
    problem = operands(20, 20, 16)
    problem.q[0, 0, 3] *= np.float32(1e9)
    problem = replace(problem, bias=added(causal(20, 20), -1e9), constants=("bias",))
    [found] = run(unit, problem.model(), problem.feed)
    [wanted] = run(unit, problem.model(), problem.feed, precision="highest", is_fused=False)
    assert error(found, wanted.astype(np.float64)) < 1e-3
    np.testing.assert_allclose(found[0, 0, 3], wanted[0, 0, 3], rtol=1e-5, atol=1e-6)
    assert not np.allclose(wanted[0, 0, 3], problem.v[0, 0, :4].mean(axis=0), atol=0.1)


def special(found: Array, wanted: Array) -> None:
    """The same NaN and infinities, and other numbers alike."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    infinite = np.isinf(wanted)
    np.testing.assert_array_equal(np.isinf(found), infinite)
    np.testing.assert_array_equal(found[infinite], wanted[infinite])
    rest = np.isfinite(wanted)
    np.testing.assert_allclose(found[rest], wanted[rest], rtol=5e-3, atol=2e-3 * np.abs(wanted[rest]).max())


def both(unit: Unit, problem: Problem) -> tuple[Array, Array]:
    """What the kernel makes of a problem, and what the separate kernels do."""
    [found] = run(unit, problem.model(), problem.feed)
    [wanted] = run(unit, problem.model(), problem.feed, precision="highest", is_fused=False)
    return found, wanted


@pytest.mark.parametrize("rows_in", ["registers", "shared"])
@pytest.mark.parametrize("fill", [-np.inf, LARGE, -1e9])
def test_rows_that_see_nothing(unit: Unit, fill: float, rows_in: str) -> None:
    force(unit, rows_in=rows_in)
    problem = operands(20, 33, 16, batch=(1, 2))
    seen = normal(5, 20, 33) > -1
    seen[4] = seen[11] = False
    problem.q *= np.float32(0.1)
    for changes in ({"mask": seen, "fill": fill}, {"bias": added(seen, fill)}):
        found, wanted = both(unit, replace(problem, **changes))
        assert np.isnan(wanted[:, :, [4, 11]]).all() == (fill == -np.inf)
        special(found, wanted)


@pytest.mark.parametrize("rows_in", ["registers", "shared"])
def test_nan_becomes_zeros_where_the_model_says_so(unit: Unit, rows_in: str) -> None:
    """As PyTorch exports masks: rows that see nothing, and those of any other NaN, weigh nothing."""
    force(unit, rows_in=rows_in)
    problem = replace(operands(20, 33, 16, batch=(1, 2)), is_cleared=True)
    problem.q *= np.float32(0.1)
    seen = normal(5, 20, 33) > -1
    seen[4] = False
    bias = added(seen, -np.inf)
    bias[7, 3], bias[9, 5] = np.nan, np.inf
    found, wanted = both(unit, replace(problem, bias=bias))
    assert not wanted[0, 0, [4, 7, 9]].any() and wanted[0, 0, 5].all()
    special(found, wanted)
    problem.q[0, 1, 3, 5], problem.v[0, 0, 2, 1] = np.nan, np.inf
    found, wanted = both(unit, replace(problem, bias=bias))
    assert not wanted[0, 1, 3].any() and np.isnan(wanted[0, 0, 4, 1])
    special(found, wanted)


SPECIAL: dict[str, Callable[[Problem], None]] = {
    "infinity in a row": lambda p: p.q.__setitem__((0, 0, 3, 5), np.inf),
    "NaN in a row": lambda p: p.q.__setitem__((0, 1, 3, 5), np.nan),
    "infinities in a key": lambda p: p.k.__setitem__((0, 0, 7, slice(2, 4)), [np.inf, -np.inf]),
    "an infinity in a key": lambda p: p.k.__setitem__((0, 1, 7, 3), -np.inf),
    "NaN in a key": lambda p: p.k.__setitem__((0, 1, 7, 3), np.nan),
    "an infinity in a value": lambda p: p.v.__setitem__((0, 1, 7, 3), np.inf),
    "NaN in a value": lambda p: p.v.__setitem__((0, 0, 40, 3), np.nan),
    "products that overflow": lambda p: p.q.__setitem__((0, 0, 3), 1e38),
    "values near the end": lambda p: p.v.__imul__(np.float32(5e37)),
    "a row of zeros": lambda p: p.q.__setitem__((0, 0, 2), 0),
    "keys of zeros": lambda p: p.k.__setitem__((0, 1), 0),
    "values of zeros": lambda p: p.v.__setitem__((0, 0), 0),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_infinities_and_nan_come_out_where_they_belong(unit: Unit, name: str) -> None:
    force(unit)
    problem = operands(20, 45, 16, batch=(1, 2))
    SPECIAL[name](problem)
    found, wanted = both(unit, problem)
    special(found, wanted)


@pytest.mark.parametrize("value", [np.inf, np.nan, -np.inf])
def test_special_masks(unit: Unit, value: float) -> None:
    force(unit)
    problem = operands(20, 45, 16, batch=(1, 2))
    bias = np.zeros((20, 45), np.float32)
    bias[3, 40] = value
    special(*both(unit, replace(problem, bias=bias)))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_special_values_of_float16(unit: Unit, value: float) -> None:
    force(unit)
    for name in "qkv":
        problem = operands(20, 45, 16, batch=(1, 2), dtype=np.float16)
        problem.q *= np.float16(0.1)  # no probability is 0 in float16, which infinities would make NaN of
        getattr(problem, name)[0, 1, 3, 5] = value
        special(*both(unit, problem))


SCALES = [
    (1, 1, 1),
    (1e-7, 1e7, 1e-12),
    (1e5, 1e-5, 1e9),
    (1e-30, 1e30, 1e-30),
    (1e-42, 1e-42, 1),
    (1e20, 1e-20, 1e37),
]


@pytest.mark.parametrize("scales", SCALES, ids=str)
def test_badly_scaled_tensors_are_as_exact_as_tf32(unit: Unit, scales: tuple[float, float, float]) -> None:
    force(unit)
    problem = operands(37, 45, 16)
    for name, scale in zip("qkv", scales, strict=True):
        setattr(problem, name, getattr(problem, name) * np.float32(scale))
    check(unit, problem)


RANGES: dict[str, Callable[[Problem], None]] = {
    "rows of queries": lambda p: p.q.__imul__(powers(1, -20, 1, p.q.shape[:3])),
    "keys": lambda p: p.k.__imul__(powers(2, -6, 1, p.k.shape[:3])),
    "keys too far apart": lambda p: p.k.__imul__(powers(2, -12, 1, p.k.shape[:3])),
    "values": lambda p: p.v.__imul__(powers(3, -6, 0, p.v.shape[:3])),
    "values too far apart": lambda p: p.v.__imul__(powers(3, -12, 12, p.v.shape[:3])),
    "columns of values": lambda p: p.v.__imul__(powers(4, -10, 10, (16,))[:, 0]),
    "columns of queries and keys": lambda p: opposite(p, powers(4, -12, 12, (16,))[:, 0]),
}


def opposite(problem: Problem, columns: Array) -> None:
    problem.q *= columns
    problem.k /= columns


def powers(seed: int, low: float, high: float, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Random magnitudes, with one axis more."""
    drawn = 10 ** np.random.default_rng(seed).uniform(low, high, (*shape, 1))
    return drawn.astype(np.float32)


@pytest.mark.parametrize("name", RANGES)
def test_magnitudes_far_apart_are_as_exact_as_tf32(unit: Unit, name: str) -> None:
    """Row by row, and column by column: small results beside large ones, too."""
    force(unit)
    problem = operands(20, 150, 16, batch=(1, 2))
    RANGES[name](problem)
    [found] = run(unit, problem.model(), problem.feed)
    exact, of_tf32 = problem.exact(), problem.exact(tf32)
    assert error(found, exact) <= 1.2 * error(of_tf32, exact)
    assert worst(found, exact) <= 1.5 * worst(of_tf32, exact)
    by_column = (
        np.ascontiguousarray(np.moveaxis(each, -1, 0)).reshape(16, -1) for each in (found, exact, of_tf32)
    )
    mine, right, other = by_column
    assert worst(mine, right) <= 1.5 * worst(other, right)


def test_large_values_of_keys_that_weigh_nothing_do_no_harm(unit: Unit) -> None:
    force(unit)
    problem = operands(20, 45, 16)
    problem.v[:, :, 30:] *= np.float32(1e12)
    check(unit, replace(problem, bias=added(np.arange(45) < 30, -np.inf)))


def test_one_plan_serves_all_lengths(unit: Unit) -> None:
    force(unit)
    lengths = [(9, 9), (16, 16), (33, 40), (20, 100), (40, 33)]
    problems = [operands(queries, keys, 16, batch=(2, 2)) for queries, keys in lengths]
    for problem in problems:
        problem.bias = normal(5, 1, 1, 1, problem.k.shape[2])
    sizes = {
        "q": (2, 2, "queries", 16),
        "k": (2, 2, "keys", 16),
        "v": (2, 2, "keys", 16),
        "bias": (1, 1, 1, "keys"),
    }
    model = problems[0].model(sizes)
    for found, problem in zip(run(unit, model, *(p.feed for p in problems)), problems, strict=True):
        exact = problem.exact()
        assert error(found, exact) <= 1.25 * error(problem.exact(tf32), exact)


@pytest.mark.parametrize("dtype", TYPES)
def test_operands_that_run_backwards_and_results_in_the_middle_of_others(unit: Unit, dtype: Any) -> None:
    """Known when kernels are made only, after the kernel was asked for."""
    force(unit)
    problem = operands(20, 21, 16, dtype=dtype)
    problem.bias = normal(5, 20, 21).astype(dtype)
    sketch = Sketch("backwards")
    names = []
    for name, axis in (("q", 2), ("k", 2), ("v", 3), ("bias", 1)):
        array = getattr(problem, name)
        x = sketch.input(name, array.shape, dtypes.from_numpy(array.dtype))
        bounds = [sketch.constant(np.array([n], np.int64)) for n in (-1, -(1 << 40), axis, -1)]
        names.append(sketch.node("Slice", x, *bounds))
        setattr(problem, name, np.flip(array, axis))
    q, k, v, bias = names
    scores = sketch.node("MatMul", q, sketch.node("Transpose", k, perm=(0, 1, 3, 2)))
    scores = sketch.node("Add", sketch.node("Mul", scores, sketch.constant(np.array(0.25, dtype))), bias)
    mixed = sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), v)
    model = save_graph(sketch.finish(sketch.node("Concat", q, mixed, q, axis=3)))
    flipped = {"q": 2, "k": 2, "v": 3, "bias": 1}
    feed = {
        name: np.ascontiguousarray(np.flip(getattr(problem, name), axis)) for name, axis in flipped.items()
    }
    [found] = run(unit, model, feed)
    assert error(found[..., 16:32], problem.exact()) < 1e-3
    np.testing.assert_array_equal(found[..., 32:], problem.q)


def test_float16_between_words(unit: Unit) -> None:
    """Operands that begin at an odd place of a longer vector."""
    force(unit)
    problem = operands(20, 21, 16, batch=(1, 2), dtype=np.float16)
    sketch = Sketch("odd")
    names, feed = [], {}
    for name in "qkv":
        array = getattr(problem, name)
        feed[name] = np.concatenate([np.zeros(3, np.float16), array.reshape(-1)])
        x = sketch.input(name, feed[name].shape, dtypes.FLOAT16)
        bounds = [sketch.constant(np.array([n], np.int64)) for n in (3, 1 << 40)]
        part = sketch.node("Slice", x, *bounds)
        names.append(sketch.node("Reshape", part, sketch.constant(np.array(array.shape, np.int64))))
    scores = sketch.node("MatMul", names[0], sketch.node("Transpose", names[1], perm=(0, 1, 3, 2)))
    scores = sketch.node("Mul", scores, sketch.constant(np.float16(0.25)))
    mixed = sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), names[2])
    [found] = run(unit, save_graph(sketch.finish(mixed)), feed)
    assert error(found, problem.exact()) < 1e-3


def test_no_keys_at_all(unit: Unit) -> None:
    force(unit)
    problem = operands(20, 0, 16)
    [found] = run(unit, problem.model(), problem.feed, is_fused=False)
    np.testing.assert_array_equal(found, np.zeros((2, 3, 20, 16), np.float32))


def test_epilogues_and_results_repeat(unit: Unit) -> None:
    force(unit)
    problem = operands(20, 33, 16)
    sketch = Sketch("epilogue")
    q, k, v = (sketch.input(n, getattr(problem, n).shape) for n in "qkv")
    scores = sketch.node("MatMul", q, sketch.node("Transpose", k, perm=(0, 1, 3, 2)))
    scores = sketch.node("Mul", scores, sketch.constant(np.float32(problem.scale)))
    mixed = sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), v)
    total = sketch.node("Add", mixed, q)
    half = sketch.node("Cast", sketch.node("Mul", total, sketch.constant(np.float32(0.5))), to=10)
    model = save_graph(sketch.finish(total, half))
    with vkml.InferenceSession(model, devices=unit.name) as session:
        first, again = (session.run(None, problem.feed) for _ in range(2))
        kernels = [step.kernel for step in session.report().steps]
    assert kernels == ["attention_operands", "attention"]
    assert error(first[0], problem.exact() + problem.q) < 5e-4
    np.testing.assert_array_equal(first[1], (first[0] * np.float32(0.5)).astype(np.float16))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))


def test_highest_is_strict_and_software_devices_are_left_alone(unit: Unit) -> None:
    problem = operands(20, 33, 16)
    run(unit, problem.model(), problem.feed, is_fused=min(unit.fragment.m, unit.fragment.k) >= 16)
    force(unit)
    [found] = run(unit, problem.model(), problem.feed, precision="highest", is_fused=False)
    assert error(found, problem.exact()) < 1e-6


def test_a_device_says_where_the_elements_of_fragments_are(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkml import vulkan

    target = device_registry.target_of(vulkan.find_device(unit.name, True))
    found = target.fragment_layouts(unit.fragment)
    assert found is not None
    for layout, columns in ((found.a, unit.fragment.k), (found.sums, unit.fragment.n)):
        lanes, elements = 1 << len(layout.lanes), 1 << len(layout.elements)
        places = {layout.place(lane, element) for lane in range(lanes) for element in range(elements)}
        assert places == {(row, column) for row in range(unit.fragment.m) for column in range(columns)}
    monkeypatch.setattr(fragment_check, "_layouts", {})
    monkeypatch.setattr(fragment_check, "layouts_of", lambda found, fragment: None)
    assert target.fragment_layouts(unit.fragment) is None
