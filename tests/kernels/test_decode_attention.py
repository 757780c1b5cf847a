"""Attention of few rows: as exact as float32, masks, special values, keys in ranges, the choice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import vkml
from tests.engine.open_graphs import open_plans
from tests.kernels.attention_problems import LARGE, Problem, normal, operands
from tests.kernels.test_attention import MASKS, added, causal, special
from tests.kernels.test_row_spreads import is_slow_compiler
from tests.ops.test_attention import heads, model, past, reference
from vkml.engine import devices as device_registry
from vkml.engine.sketch import Sketch
from vkml.ir import TensorType, dtypes
from vkml.ir.size import Size, Sizes
from vkml.kernels import decode_attention
from vkml.kernels.attention import Attention
from vkml.kernels.decode_attention import MOST_SPLITS, Variant, choose, refusal
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.target import Target
from vkml.onnx import save_graph

Array = npt.NDArray[Any]


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    yield
    decode_attention.forced = None


def target_of(device: str) -> Target:
    from vkml import vulkan

    return device_registry.target_of(vulkan.find_device(device, True))


def lanes_of(device: str) -> int:
    return target_of(device).subgroup_size


HALVES, BYTES = ("float16", "storage_16bit"), ("int8", "storage_8bit")
"""What 16-bit floats and truth values take; where a device lacks it, nodes with such values are the CPU's."""


def has(device: str, *capabilities: str) -> bool:
    return target_of(device).capabilities.issuperset(capabilities)


def run(
    device: str, given: bytes, *feeds: dict[str, Array], splits: int = 1, needs: Sequence[str] = ()
) -> list[Array]:
    """First outputs, with guard zones round everything, by this kernel; a second run has the same bits."""
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(given, options, devices=device, precision="highest") as session:
        found = [session.run(None, feed)[0] for feed in feeds]
        again = [session.run(None, feed)[0] for feed in feeds]
        steps = session.report().steps
    if has(device, *needs):
        kernels = [step.kernel for step in steps if "Attention" in step.operators]
        expected = ["decode_attention"] if splits == 1 else ["decode_attention", "attention_merge"]
        assert kernels == expected, kernels
        assert not [step for step in steps if {"MatMul", "Softmax"} & {*step.operators}]
    assert all(first.tobytes() == second.tobytes() for first, second in zip(found, again, strict=True))
    return found


def check(device: str, problem: Problem, *, splits: int = 1) -> None:
    """As exact as sums of float32, or as results that are rounded once."""
    needs = [*(HALVES if problem.q.dtype == np.float16 else ()), *(BYTES if problem.mask is not None else ())]
    [found] = run(device, problem.model(), problem.feed, splits=splits, needs=needs)
    exact = problem.exact()
    scale = np.abs(exact).max()
    limit = {2: 6e-4, 4: 2e-6}[problem.q.dtype.itemsize]
    np.testing.assert_allclose(found, exact, rtol=limit, atol=limit * scale)


SIZES = {
    "a token": (1, 40, 64),
    "one key": (3, 1, 16),
    "edges": (5, 33, 12),
    "the most rows": (15, 21, 16),
    "heads that are no vectors": (2, 9, 13),
    "wide heads": (1, 20, 200),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention(vulkan_device_name: str, name: str, dtype: Any) -> None:
    rows, keys, head = SIZES[name]
    if is_slow_compiler(vulkan_device_name):
        head = min(head, 136)  # wide, too; 200 take it more than a minute
    check(vulkan_device_name, operands(rows, keys, head, dtype=dtype))


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 2},
        {"rows": 3, "unroll": 2},
        {"team": 1, "unroll": 4},
        {"splits": 2},
        {"splits": 5, "rows": 2, "unroll": 3},
        {"lanes": 1, "team": 1, "threads": 8, "splits": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_masked", [False, True])
def test_variants(vulkan_device_name: str, changes: dict[str, Any], is_masked: bool) -> None:
    """Rows that are no multiple of a workgroup's, ranges that come out uneven or see nothing, lanes alone."""
    lanes = lanes_of(vulkan_device_name)
    decode_attention.forced = replace(Variant(1, lanes, 2, 4 * lanes, 1, 1), **changes)
    problem = operands(5, 37, 12)
    if is_masked:
        seen = np.random.default_rng(5).random((2, 1, 5, 37)) < 0.6
        seen[..., :20] = False
        problem = replace(problem, mask=seen, bias=normal(6, 3, 1, 37))
    check(vulkan_device_name, problem, splits=changes.get("splits", 1))


@pytest.mark.parametrize("name", MASKS)
def test_masks(vulkan_device_name: str, name: str) -> None:
    whole = operands(37, 45, 16)
    problem = replace(whole, **MASKS[name](whole))
    changes: dict[str, Any] = {"q": problem.q[..., :6, :]}
    for each in ("mask", "bias"):
        array = getattr(problem, each)
        if array is not None and array.ndim > 1 and array.shape[-2] == 37:
            changes[each] = array[..., :6, :]
    check(vulkan_device_name, replace(problem, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": added(causal(7, 9, 2), LARGE), "constants": ("bias",)},
        {"bias": added(causal(7, 9, 2), -np.inf), "constants": ("bias",)},
        {"mask": causal(7, 9, 2), "fill": -1e9, "constants": ("mask",)},
    ],
    ids=["added", "added, -inf", "truth values"],
)
def test_triangles_are_causality(vulkan_device_name: str, changes: dict[str, Any]) -> None:
    check(vulkan_device_name, replace(operands(7, 9, 16), **changes))


def test_scores_that_reach_what_hides_others_are_added_to_it(vulkan_device_name: str) -> None:
    problem = operands(6, 6, 16)
    problem.k[0, 0, 5] = problem.q[0, 0, 3]
    problem.q[0, 0, 3] *= np.float32(1e9)
    problem = replace(problem, bias=added(causal(6, 6), -1e9), constants=("bias",))
    [found] = run(vulkan_device_name, problem.model(), problem.feed)
    scores = problem.q[0, 0, 3] @ problem.k[0, 0].T * np.float32(problem.scale) + problem.bias[3]
    assert scores[4:].max() > scores[:4].max(), "a key that is hidden weighs most"
    np.testing.assert_allclose(found[0, 0, 3], problem.v[0, 0, scores.argmax()], rtol=1e-5)


GIVEN: dict[str, tuple[dict[str, Array], dict[str, Any]]] = {
    "shared heads": (heads(rows=1, keys=11), {}),
    "shared heads, rows": (heads(rows=5, keys=11, columns=16), {"is_causal": 1}),
    "a past": ({**heads(rows=1, keys=1), **past(21)}, {"is_causal": 1}),
    "a past, rows": ({**heads(rows=4, keys=4), **past(21)}, {"is_causal": 1, "scale": 0.7}),
    "softcap": (heads(rows=3, keys=9), {"softcap": 1.5}),
    "window": ({**heads(rows=3, keys=3), **past(12)}, {"left_window_size": 4, "is_causal": 1}),
    "a row that sees nothing": (
        {**heads(rows=3, keys=9), "mask": np.arange(3)[:, None] * np.ones((1, 9)) != 1},
        {},
    ),
    "values of another size": ({**heads(rows=3, keys=9), "v": normal(9, 2, 2, 9, 20)}, {"is_causal": 1}),
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("splits", [1, 3])
def test_attention_of_onnx(vulkan_device_name: str, name: str, splits: int) -> None:
    feed, attributes = GIVEN[name]
    needs = BYTES if "mask" in feed or "left_window_size" in attributes else ()
    if splits > 1:
        lanes = lanes_of(vulkan_device_name)
        decode_attention.forced = Variant(2, lanes, 4, 2 * lanes, 1, splits)
    [found] = run(vulkan_device_name, model(feed, **attributes), feed, splits=splits, needs=needs)
    [expected] = reference(feed, **attributes)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("columns", [16, 10])
def test_bfloat16_is_rounded_once(vulkan_device_name: str, columns: int) -> None:
    feed = heads(ml_dtypes.bfloat16, rows=2, keys=9, columns=columns)
    [found] = run(vulkan_device_name, model(feed), feed, needs=HALVES)
    wide = {name: array.astype(np.float32) for name, array in feed.items()}
    [exact] = reference(wide)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("is_cleared", [False, True])
def test_numbers_that_are_none(vulkan_device_name: str, is_cleared: bool, splits: int) -> None:
    """NaN and infinities among queries, keys and values, and rows that see nothing, as in steps."""
    problem = replace(operands(6, 11, 8, batch=(1, 4)), is_cleared=is_cleared)
    problem.q[0, 0, 1, 2] = np.nan
    problem.q[0, 0, 2, 0] = np.inf
    problem.k[0, 1, 3] = np.nan
    problem.k[0, 2, 10, 4] = -np.inf
    problem.v[0, 3, 10, 5] = np.inf
    problem.v[0, 0, 4, 6] = np.nan
    mask = np.ones((1, 4, 6, 11), np.bool_)
    mask[:, :, 4] = False
    mask[0, 3, :3, 10] = False
    problem.mask = mask
    if splits > 1:
        lanes = lanes_of(vulkan_device_name)
        decode_attention.forced = Variant(4, lanes, 2, 2 * lanes, 2, splits)
    [found] = run(vulkan_device_name, problem.model(), problem.feed, splits=splits, needs=BYTES)
    with np.errstate(all="ignore"):
        scores = problem.q @ problem.k.swapaxes(-1, -2) * np.float32(problem.scale)
        scores = np.where(mask, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        if is_cleared:
            weights = np.where(np.isnan(weights), np.float32(0), weights)
        wanted = weights @ problem.v
    assert np.isnan(wanted).any() and np.isinf(wanted).any() and np.isfinite(wanted).any()
    special(found, wanted)


def test_infinite_values_behind_the_last_key_of_a_range_are_not_met(vulkan_device_name: str) -> None:
    """A team without a key of its own reads one that is there, and takes nothing from it."""
    problem = operands(1, 3, 8, batch=(1, 1))
    problem.v[0, 0, 2, 1] = np.inf
    [found] = run(vulkan_device_name, problem.model(), problem.feed)
    assert found[0, 0, 0, 1] == np.inf
    assert np.isfinite(np.delete(found, 1, axis=-1)).all()


def test_heads_in_the_middle_and_transposed_keys_are_read_where_they_are(vulkan_device_name: str) -> None:
    problem = operands(4, 4, 16)
    sketch = Sketch("heads")
    names = []
    for name, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        x = sketch.input(name, (2, 4, 48))
        split = sketch.node("Reshape", x, sketch.constant(np.array([2, 4, 3, 16], np.int64)))
        names.append(sketch.node("Transpose", split, perm=order))
    across = sketch.input("across", (2, 3, 16, 4))
    results = []
    for keys in (names[1], across):
        scores = sketch.node("MatMul", names[0], keys)
        scores = sketch.node("Mul", scores, sketch.constant(np.float32(problem.scale)))
        mixed = sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), names[2])
        joined = sketch.node("Transpose", mixed, perm=(0, 2, 1, 3))
        results.append(sketch.node("Reshape", joined, sketch.constant(np.array([2, 4, 48], np.int64))))
    total = sketch.node("Sub", results[0], sketch.node("Neg", results[1]))
    feed = {n: np.ascontiguousarray(a.swapaxes(1, 2)).reshape(2, 4, 48) for n, a in problem.feed.items()}
    feed["across"] = np.ascontiguousarray(problem.k.swapaxes(-1, -2))
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(
        save_graph(sketch.finish(total)), options, devices=vulkan_device_name
    ) as session:
        [found] = session.run(None, feed)
        kernels = [step.kernel for step in session.report().steps]
    assert kernels[:2] == ["decode_attention"] * 2 and len(kernels) == 3, kernels
    exact = problem.exact().swapaxes(1, 2).reshape(2, 4, 48)
    np.testing.assert_allclose(found, 2 * exact, rtol=4e-6, atol=4e-6)


def test_values_that_begin_between_vectors(vulkan_device_name: str) -> None:
    problem = operands(2, 9, 16, batch=(1, 2))
    sketch = Sketch("offset")
    names, feed = [], {}
    for name in "qkv":
        array = getattr(problem, name)
        feed[name] = np.concatenate([np.zeros(3, np.float32), array.reshape(-1)])
        x = sketch.input(name, feed[name].shape)
        bounds = [sketch.constant(np.array([n], np.int64)) for n in (3, 1 << 40)]
        part = sketch.node("Slice", x, *bounds)
        names.append(sketch.node("Reshape", part, sketch.constant(np.array(array.shape, np.int64))))
    scores = sketch.node("MatMul", names[0], sketch.node("Transpose", names[1], perm=(0, 1, 3, 2)))
    scores = sketch.node("Mul", scores, sketch.constant(np.float32(problem.scale)))
    mixed = sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), names[2])
    [found] = run(vulkan_device_name, save_graph(sketch.finish(mixed)), feed)
    np.testing.assert_allclose(found, problem.exact(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("splits", [1, 2])
def test_what_follows_is_done_by_the_last_launch(vulkan_device_name: str, splits: int) -> None:
    if splits > 1:
        lanes = lanes_of(vulkan_device_name)
        decode_attention.forced = Variant(3, lanes, 4, 2 * lanes, 1, splits)
    problem = operands(3, 9, 16)
    sketch = Sketch("epilogue")
    q, k, v = (sketch.input(n, getattr(problem, n).shape) for n in "qkv")
    scores = sketch.node("MatMul", q, sketch.node("Transpose", k, perm=(0, 1, 3, 2)))
    scores = sketch.node("Mul", scores, sketch.constant(np.float32(problem.scale)))
    total = sketch.node("Add", sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), v), q)
    doubled = sketch.node("Mul", total, sketch.constant(np.float32(2)))
    with vkml.InferenceSession(
        save_graph(sketch.finish(total, doubled)), devices=vulkan_device_name
    ) as session:
        found = session.run(None, problem.feed)
        kernels = [step.kernel for step in session.report().steps]
    assert kernels == ["decode_attention", "attention_merge"][:splits]
    np.testing.assert_allclose(found[0], problem.exact() + problem.q, rtol=3e-6, atol=3e-6)
    np.testing.assert_array_equal(found[1], found[0] * 2)


@pytest.mark.parametrize("splits", [1, 3])
def test_any_length_of_the_past_is_one_plan(vulkan_device_name: str, splits: int) -> None:
    if splits > 1:
        lanes = lanes_of(vulkan_device_name)
        decode_attention.forced = Variant(2, lanes, 4, 2 * lanes, 1, splits)
    sizes = {"past_key": (2, 2, "past", 8), "past_value": (2, 2, "past", 8)}
    first = {**heads(rows=1, keys=1), **past(3)}
    options = vkml.SessionOptions(guard_bytes=256)
    given = model(first, 3, sizes, is_causal=1)
    with vkml.InferenceSession(given, options, devices=vulkan_device_name, precision="highest") as session:
        for count in (3, 4, 9, 300, 2):
            feed = {**first, **past(count)}
            for mine, right in zip(session.run(None, feed), reference(feed, 3, is_causal=1), strict=True):
                np.testing.assert_allclose(mine, right, rtol=2e-6, atol=2e-6)
        if not has(vulkan_device_name, *BYTES, "int64"):
            return  # the mask is the CPU's, of which the rest is not what this is about
        assert len(open_plans(session)) == 1
        kernels = [step.kernel for step in session.report().steps if "Attention" in step.operators]
    assert "decode_attention" in kernels and "softmax" not in kernels


def joined_model(axis: int, parts: int, *, is_transposed: bool = False, keeps: bool = False) -> bytes:
    """A token's attention to keys and values that are joined of parts."""
    sketch = Sketch("joined")
    q = sketch.input("q", (1, 4, 1, 8))
    joined = []
    for name in "kv":
        shape = [1, 4, 6, 8]
        shape[axis] //= 1 if axis == 2 else parts
        if name == "k" and is_transposed:
            shape = [1, 4, 8, 6]
        names = [sketch.input(f"{name}{at}", shape) for at in range(parts)]
        along = 3 if name == "k" and is_transposed else axis
        joined.append(sketch.node("Concat", *names, axis=along))
    k, v = joined
    turned = k if is_transposed else sketch.node("Transpose", k, perm=(0, 1, 3, 2))
    scores = sketch.node("Mul", sketch.node("MatMul", q, turned), sketch.constant(np.float32(0.3)))
    mixed = sketch.node("MatMul", sketch.node("Softmax", scores, axis=-1), v)
    return save_graph(sketch.finish(mixed, *(joined if keeps else [])))


@pytest.mark.parametrize(
    ("how", "is_read_apart"),
    [
        ({"axis": 2, "parts": 2}, True),
        ({"axis": 2, "parts": 2, "keeps": True}, True),
        ({"axis": 2, "parts": 3}, False),
        ({"axis": 1, "parts": 2}, False),
        ({"axis": 2, "parts": 2, "is_transposed": True}, False),
    ],
    ids=str,
)
def test_keys_of_a_past_and_new_ones_are_read_where_they_are(
    vulkan_device_name: str, how: dict[str, Any], is_read_apart: bool
) -> None:
    options = vkml.SessionOptions(guard_bytes=256)
    with vkml.InferenceSession(joined_model(**how), options, devices=vulkan_device_name) as session:
        feed = {value.name: normal(at, *value.shape) for at, value in enumerate(session.get_inputs())}
        found = session.run(None, feed)
        steps = session.report().steps
    [attention] = [step for step in steps if step.kernel == "decode_attention"]
    assert ("Concat" in attention.operators) == is_read_apart
    copies = [step for step in steps if step.kernel == "copy"]
    assert bool(copies) == (not is_read_apart or how.get("keeps", False))
    if "is_transposed" in how:
        feed |= {name: feed[name].swapaxes(2, 3) for name in ("k0", "k1")}
    parts = [[feed[f"{name}{at}"] for at in range(how["parts"])] for name in "kv"]
    k, v = (np.concatenate(each, axis=how["axis"]) for each in parts)
    problem = Problem(feed["q"], k, v, 0.3)
    np.testing.assert_allclose(found[0], problem.exact(), rtol=2e-6, atol=2e-6)
    for mine, right in zip(found[1:], (k, v), strict=False):
        np.testing.assert_array_equal(mine, right)


# --- the rule -------------------------------------------------------------------------------------------

GPU = Target(
    frozenset({"subgroup_shuffle"}),
    shared_bytes=49152,
    max_invocations=1024,
    subgroup_size=32,
    processors=132,
)


def given(
    heads: int = 8,
    queries: int | Size = 1,
    keys: int | Size = 100,
    head: int = 64,
    *,
    values: int | None = None,
    key_heads: int | None = None,
    dtype: Any = dtypes.FLOAT32,
) -> Attention:
    def view(heads: int, rows: int | Size, columns: int) -> View:
        type_ = TensorType(dtype, (1, heads, rows, columns))
        return contiguous(Buffer(BufferKind.INPUT, 0, "x"), type_)

    shared = heads if key_heads is None else key_heads
    return Attention(
        view(heads, queries, head), view(shared, keys, head), view(shared, keys, values or head), 0.1
    )


def test_what_is_of_few_rows() -> None:
    for fine in (given(), given(queries=15), given(dtype=dtypes.BFLOAT16), given(values=32)):
        assert refusal(fine) == ""
    refused = {
        "16 rows": given(queries=16),
        "of double": given(dtype=dtypes.FLOAT64),
        "keys of 260 columns": given(head=260, values=64),
        "values of 260 columns": given(values=260),
        "no keys": given(keys=0),
        "a scale of inf": replace(given(), scale=math.inf),
    }
    for reason, asked in refused.items():
        assert reason in refusal(asked), reason


def test_queries_that_share_keys_share_a_workgroup() -> None:
    assert choose(GPU, given()).rows == 1
    assert choose(GPU, given(heads=32, key_heads=8)).rows == 4
    assert choose(GPU, given(heads=32, key_heads=8, queries=3)).rows == 6  # 12 in two workgroups
    assert choose(GPU, given(heads=32, key_heads=2)).rows == 8
    assert choose(GPU, given(heads=32, key_heads=2, head=256)).rows == 4  # registers


def test_long_pasts_are_split_as_far_as_the_device_has_room() -> None:
    assert choose(GPU, given(keys=256)).splits == 1
    assert choose(GPU, given(keys=257)).splits == 8
    assert choose(GPU, given(keys=4096)).splits == 33
    assert choose(GPU, given(heads=1, keys=1 << 16)).splits == MOST_SPLITS
    assert choose(GPU, given(heads=200, keys=4096)).splits == 1
    assert choose(replace(GPU, processors=1), given(keys=4096)).splits == 1
    # Of halves a workgroup takes twice as many.
    assert choose(GPU, given(keys=512, dtype=dtypes.FLOAT16)).splits == 1


def test_no_range_is_empty() -> None:
    for keys in range(1, 3000, 7):
        splits = choose(GPU, given(keys=keys, head=128)).splits
        each = -(-keys // splits)
        assert each * (splits - 1) < keys


def test_short_and_long_pasts_are_two_plans() -> None:
    for example, splits in ((20, 1), (1000, 33)):
        sizes = Sizes()
        with sizes.deciding():
            keys = sizes.symbol("past", example) + 1
            assert choose(GPU, given(keys=keys)).splits == splits
        assert len(sizes.guards()) == 1
        assert sizes.holds({"past": 255}) == (splits == 1)
        assert sizes.holds({"past": 256}) == (splits > 1)


def test_workgroups_fit_devices() -> None:
    for lanes in (4, 8, 16, 32, 64):
        for head in (1, 13, 64, 128, 256):
            for queries in (1, 4, 15):
                for keys in (1, 50, 5000):
                    target = replace(GPU, subgroup_size=lanes, max_invocations=256)
                    variant = choose(target, given(queries=queries, keys=keys, head=head))
                    assert variant.lanes == lanes and lanes % variant.team == 0
                    assert variant.threads % lanes == 0 and variant.threads <= 256
    alone = choose(replace(GPU, capabilities=frozenset()), given())
    assert (alone.lanes, alone.team) == (1, 1)
