"""Gradients of attention on matrix units: as exact as TF32, masks, shared heads, special values, edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkml
import vkml.ops
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine.placement import Placement, Site
from vkml.engine.plan_cache import Setting
from vkml.engine.plan_report import report
from vkml.engine.prepare import prepare_normalised
from vkml.engine.runner import Runner
from vkml.engine.weights import WeightStore
from vkml.ir import Constant, Graph, Node, TensorType, Value, dtypes
from vkml.ir.operator import REGISTRY
from vkml.ir.size import Size
from vkml.kernels import attention, attention_gradients
from vkml.kernels.attention_variants import Variant
from vkml.kernels.packed_weights import Fragment

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
KERNELS = {"attention_gradients_of_queries", "attention_gradients_of_keys"}
NAMES = ("dq", "dk", "dv")


@dataclass(frozen=True)
class Unit:
    """A device with matrix units."""

    name: str
    fragment: Fragment


@pytest.fixture
def unit(vulkan_device_name: str) -> Iterator[Unit]:
    target = device_registry.target_of(vulkan.find_device(vulkan_device_name, True))
    if target.fragment is None:
        pytest.skip("no fp16 matrix units on this device")
    yield Unit(vulkan_device_name, target.fragment)
    attention.forced = attention_gradients.forced = None


def force(unit: Unit, head: int = 16, **changes: Any) -> None:
    """Two subgroups, small, because lavapipe compiles for seconds."""
    base = Variant(unit.fragment, head, unit.fragment.m, unit.fragment.k, 2)
    base.check()
    attention.forced = base
    own = replace(base, **changes)
    own.check()
    attention_gradients.forced = own, own


def normal(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@dataclass
class Problem:
    """An attention and the gradient of its results."""

    q: Array
    k: Array
    v: Array
    d_out: Array
    mask: Array | None = None
    bias: Array | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def feed(self) -> dict[str, Array]:
        found = {name: getattr(self, name) for name in ("q", "k", "v", "mask", "bias", "d_out")}
        return {name: array for name, array in found.items() if array is not None}

    def graph(self, sizes: dict[str, tuple[Any, ...]] | None = None) -> Graph:
        """The attention with what it keeps, the rows' sums, and the gradients."""
        feed = self.feed
        q, k, v, mask, bias = (name if name in feed else "" for name in ("q", "k", "v", "mask", "bias"))
        known = REGISTRY["vkml", "Attention"]
        attributes = {**known.attributes, "scale": 0.25, **self.attributes}
        wide = "out", "d_out"
        nodes = [
            Node("Attention", (q, k, v, mask, bias), ("out", "sums"), attributes, "attention", "vkml", 1)
        ]
        if self.q.dtype != np.float32:
            wide = "wide out", "wide d_out"
            to_float = {**REGISTRY["", "Cast"].attributes, "to": 1}
            nodes += [
                Node("Cast", (name,), (made,), to_float, made, version=20)
                for name, made in zip(("out", "d_out"), wide, strict=True)
            ]
        nodes += [
            Node("Mul", wide, ("product",), {}, "product", version=20),
            Node("ReduceSum", ("product", "last"), ("deltas",), {"keepdims": 1}, "deltas", version=20),
            Node(
                "AttentionGradient", (q, k, v, "d_out", "sums", "deltas", mask, bias), NAMES, attributes,
                "gradient", "vkml", 1,
            ),
        ]  # fmt: skip
        inputs = tuple(
            Value(name, TensorType(dtypes.from_numpy(x.dtype), (sizes or {}).get(name, x.shape)))
            for name, x in feed.items()
        )
        types = [replace(value.tensor) for value in inputs if value.name in ("q", "k", "v")]
        outputs = tuple(Value(name, type_) for name, type_ in zip(NAMES, types, strict=True))
        last = Constant(dtypes.INT64, (1,), np.array([-1], np.int64))
        return Graph(inputs, outputs, tuple(nodes), {"last": last}, name="gradients", opsets={"": 20})

    def exact(self, rounded: Any = lambda x: x.astype(np.float64)) -> list[Doubles]:
        """In float64, operands of products rounded."""
        attributes = {"scale": 0.25, "softcap": 0.0, "group": 1, "causal_offset": None, **self.attributes}
        group, scale = attributes["group"], float(np.float32(attributes["scale"]))
        q, k, v, d_out = (rounded(x) for x in (self.q, self.k, self.v, self.d_out))
        if attributes.get("is_key_transposed"):
            k = k.swapaxes(-1, -2)
        k, v = (np.repeat(x, group, axis=-3) if group > 1 else x for x in (k, v))
        with np.errstate(all="ignore"):
            scores = q @ k.swapaxes(-1, -2) * scale
            slopes = np.ones_like(scores)
            if attributes["softcap"]:
                bounded = np.tanh(scores / attributes["softcap"])
                scores, slopes = bounded * attributes["softcap"], 1 - bounded**2
            keeps = np.ones(scores.shape, bool)
            if self.mask is not None:
                keeps = keeps & (self.mask ^ bool(attributes.get("is_mask_hiding")))
            if attributes["causal_offset"] is not None:
                keeps = keeps & np.tri(*scores.shape[-2:], attributes["causal_offset"], dtype=bool)
            scores = np.where(keeps, scores, float(np.float32(attributes.get("fill", -np.inf))))
            if self.bias is not None:
                scores = (scores + self.bias).astype(np.float32).astype(np.float64)
            largest = scores.max(axis=-1, keepdims=True)
            weights = np.exp(scores - largest)
            weights /= weights.sum(axis=-1, keepdims=True)
            if attributes.get("is_empty_zero"):
                weights = np.where(largest == -np.inf, 0, weights)
            of_weights = d_out @ v.swapaxes(-1, -2)
            # Results come from products, too; they and their gradient are summed up in fp32.
            delta = ((rounded(weights) @ v) * self.d_out.astype(np.float64)).sum(axis=-1, keepdims=True)
            of_scores = np.where(keeps, weights * (of_weights - delta) * slopes, 0) * scale
            weights, of_scores = rounded(weights), rounded(of_scores)
            found = [of_scores @ k, of_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ d_out]
        for at in (1, 2):
            if group > 1:
                *batch, heads, rows, columns = found[at].shape
                found[at] = found[at].reshape(*batch, heads // group, group, rows, columns).sum(axis=-3)
        if attributes.get("is_key_transposed"):
            found[1] = found[1].swapaxes(-1, -2)
        return found


def tf32(x: Array) -> Doubles:
    """Rounded to ten bits of mantissa."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bits = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


def run(unit: Unit, graph: Graph, *feeds: dict[str, Array], is_fused: bool = True) -> list[list[Array]]:
    """Gradients, with guard zones round everything; by their kernels, unless not `is_fused`."""
    device = vkml.tensor(0.0, device=unit.name).value.device
    assert device is not None
    options = vkml.SessionOptions(guard_bytes=256)
    target = device_registry.target_of(device.info, "high")
    weights = WeightStore(lambda: device, None, None)
    site = Site(device.info.name, lambda: device, target, weights)
    placement = Placement((site,), precision="high")
    setting = Setting("gradients", placement, options, (), lambda plan: None, lambda: None)
    runner = Runner(prepare_normalised(graph), setting)
    found = [[np.array(x) for x in runner.run([feed[v.name] for v in graph.inputs], NAMES)] for feed in feeds]
    shapes = {value.name: feeds[0][value.name].shape for value in graph.inputs}
    types = [TensorType(value.tensor.dtype, shapes[value.name]) for value in graph.inputs]
    planned = report(runner.planned(types)[0], {site.name: weights}, shapes)
    kernels = {step.kernel for step in planned.steps}
    runner.close()
    assert (kernels >= KERNELS) == is_fused, kernels
    return found


def error(found: Array, exact: Doubles) -> float:
    """Relative L2 error."""
    return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))


def check(unit: Unit, problem: Problem, allowance: float = 1.1) -> list[Array]:
    """No worse than TF32 of the same operands, but for chance."""
    [found] = run(unit, problem.graph(), problem.feed)
    exact, rounded = problem.exact(), problem.exact(tf32)
    for name, have, want, near in zip(NAMES, found, exact, rounded, strict=True):
        assert have.shape == want.shape
        assert np.isfinite(have).all(), name
        # Of fp16, results are rounded once more, and delta is made of rounded ones.
        limit = 1.5e-3 if problem.q.dtype == np.float16 else allowance * error(near, want)
        assert error(have, want) <= limit, (name, error(have, want), limit)
    return found


def operands(
    queries: int = 37, keys: int = 45, head: int = 16, *, batch: Any = (2, 3), dtype: Any = np.float32
) -> Problem:
    q, k, v, d_out = (
        normal(seed, *batch, rows, head) for seed, rows in enumerate((queries, keys, keys, queries), 1)
    )
    q *= np.random.default_rng(5).choice(np.array([1, 4], np.float32), (*q.shape[:-1], 1))
    return Problem(*(x.astype(dtype) for x in (q, k, v, d_out)))


TYPES = (np.float32, np.float16)
SIZES = {
    "whole tiles": (32, 32, 16),
    "edges": (37, 45, 16),
    "more rows than one scale has": (70, 150, 16),
    "small heads": (20, 33, 8),
    "one key": (17, 1, 16),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dtype", TYPES)
def test_gradients(unit: Unit, name: str, dtype: Any) -> None:
    force(unit)
    problem = operands(*SIZES[name], dtype=dtype)
    if name == "one key":  # whose probability is 1 whatever it is: rounding is all that its gradient has
        [found] = run(unit, problem.graph(), problem.feed)
        assert error(found[2], problem.exact()[2]) < 1e-3
        assert all(float(np.abs(x).max()) < 2e-2 for x in found[:2])
    else:
        check(unit, problem)


@pytest.mark.parametrize("changes", [{"held_in": "scratch"}, {"sub_rows": 16}, {"step": 16}], ids=str)
def test_ways(unit: Unit, changes: dict[str, Any]) -> None:
    force(unit, **changes)
    check(unit, replace(operands(), attributes={"causal_offset": 8}))


@pytest.mark.parametrize("has_mask", [False, True])
def test_sums_of_rows_from_scores_in_shared_memory(unit: Unit, has_mask: bool) -> None:
    force(unit)
    assert attention.forced is not None
    attention.forced = replace(attention.forced, rows_in="shared")
    problem = operands()
    if has_mask:
        problem.bias = normal(6, 3, 1, 45)
    check(unit, problem)


@pytest.mark.parametrize("head", [32, 96])
def test_wide_heads(unit: Unit, head: int) -> None:
    force(unit, head)
    check(unit, operands(18, 35, head - 8, batch=(1, 2)), 1.25)


def test_heads_of_any_size_in_float32(unit: Unit) -> None:
    force(unit)
    check(unit, operands(18, 35, 13, batch=(1, 2)), 1.25)


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_batches_of_one_axis_or_none(unit: Unit, batch: tuple[int, ...]) -> None:
    force(unit)
    check(unit, operands(20, 21, batch=batch), 1.25)


def test_operands_that_are_broadcast_go_by_steps(unit: Unit) -> None:
    force(unit)
    problem = operands(20, 21)
    problem.k = problem.k[:1]
    [found] = run(unit, problem.graph(), problem.feed, is_fused=False)
    exact = problem.exact()
    exact[1] = exact[1].sum(axis=0, keepdims=True)
    assert all(error(have, want) < 2e-3 for have, want in zip(found, exact, strict=True))


def added(seen: Array, fill: float) -> Array:
    return np.where(seen, 0, fill).astype(np.float32)


LARGE = -3.4028234663852886e38
"""The least float32, which masks are made of."""
SEEN = np.arange(45) < np.array([30, 45]).reshape(2, 1, 1, 1)
HOW: dict[str, dict[str, Any]] = {
    "causal": {"attributes": {"causal_offset": 0}},
    "causal, a past": {"attributes": {"causal_offset": 8}},
    "rows and keys unseen": {"attributes": {"causal_offset": -9, "is_empty_zero": 1}},
    "truth values": {"mask": normal(8, 2, 1, 37, 45) > -0.3},
    "hiding truth values": {"mask": normal(8, 45) > 0, "attributes": {"is_mask_hiding": 1}},
    "causal beside a mask": {
        "mask": normal(8, 37, 45) > -0.3,
        "attributes": {"causal_offset": 8, "is_empty_zero": 1},
    },
    "fill of an ordinary size": {"mask": normal(8, 37, 45) > 0, "attributes": {"fill": -1.5}},
    "padding, added": {"bias": added(SEEN, LARGE)},
    "padding, -inf": {"bias": added(SEEN, -np.inf)},
    "bias of heads": {"bias": normal(7, 3, 37, 45)},
    "bounded scores": {"attributes": {"softcap": 1.5}},
    "rows that see nothing": {
        "mask": np.arange(37)[:, None] % 5 + np.zeros(45) > 0,
        "attributes": {"is_empty_zero": 1},
    },
    "rows of which all is padding": {"bias": added(np.arange(37)[:, None] % 5 + np.zeros(45) > 0, LARGE)},
    "keys transposed": {"attributes": {"is_key_transposed": 1}},
}


@pytest.mark.parametrize("name", HOW)
def test_scores_of_all_kinds(unit: Unit, name: str) -> None:
    force(unit)
    problem = replace(operands(), **HOW[name])
    if problem.attributes.get("is_key_transposed"):
        problem.k = np.ascontiguousarray(problem.k.swapaxes(-1, -2))
    check(unit, problem)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("offset", [None, 4])
def test_shared_heads(unit: Unit, offset: int | None, dtype: Any) -> None:
    force(unit)
    problem = operands(20, 27, batch=(2, 6), dtype=dtype)
    problem.k, problem.v = problem.k[:, :2], problem.v[:, :2]
    problem.attributes = {"group": 3, "causal_offset": offset}
    problem.mask = normal(9, 6, 20, 27) > -1
    check(unit, problem)


@pytest.mark.parametrize(
    "powers", [(0, 0, 0, -60), (60, -60, 30, 20), (-30, 40, -40, -30), (5, 0, 60, 50)], ids=str
)
def test_magnitudes_of_all_sizes(unit: Unit, powers: tuple[int, ...]) -> None:
    """Those of scores stay: queries and keys are scaled against each other."""
    force(unit)
    problem = operands()
    q, k, v, d_out = (
        (x * np.float32(2.0**power)).astype(np.float32)
        for x, power in zip((problem.q, problem.k, problem.v, problem.d_out), powers, strict=True)
    )
    check(unit, Problem(q, k, v, d_out, attributes={"scale": 0.25 * 2.0 ** -(powers[0] + powers[1])}))


def test_small_gradients_of_float16_are_not_lost(unit: Unit) -> None:
    """Changes of scores would be below all that float16 has, where their operands are not scaled."""
    force(unit)
    problem = operands(37, 150, dtype=np.float16)
    problem.d_out = (problem.d_out * np.float16(2**-12)).astype(np.float16)
    problem.v = (problem.v * np.float16(2**-4)).astype(np.float16)
    problem.q = (problem.q * np.float16(8)).astype(np.float16)
    problem.k = (problem.k * np.float16(8)).astype(np.float16)
    problem.attributes = {"scale": 0.25 / 64}
    exact = problem.exact()
    [found] = run(unit, problem.graph(), problem.feed)
    for have, want in zip(found, exact, strict=True):
        # Results are subnormal numbers in part: of those, half of the distance between two is allowed.
        assert np.abs(have.astype(np.float64) - want).max() <= 2e-3 * np.abs(want).max() + 2.0**-25


def special(found: Array, wanted: Array) -> None:
    """The same NaN and infinities, and other numbers alike."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    infinite = np.isinf(wanted)
    np.testing.assert_array_equal(found[infinite], wanted[infinite])
    rest = np.isfinite(wanted)
    if rest.any():
        size = float(np.abs(wanted[rest]).max())
        np.testing.assert_allclose(found[rest], wanted[rest], rtol=5e-3, atol=2e-3 * size)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["q", "k", "v", "d_out"])
def test_what_is_not_finite_comes_out_as_by_steps(unit: Unit, where: str, value: float) -> None:
    force(unit)
    problem = replace(operands(20, 27, batch=(1, 2)), attributes={"causal_offset": 3})
    getattr(problem, where)[0, 1, 5, 2] = value
    [found] = run(unit, problem.graph(), problem.feed)
    for have, want in zip(found, problem.exact(), strict=True):
        special(have, want)


@pytest.mark.parametrize("where", ["q", "k", "v", "d_out"])
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_too_far_apart_are_computed_from_the_tensors(unit: Unit, where: str, dtype: Any) -> None:
    """A row that is 2^-30 of others keeps its own gradient where theirs are none.

    Sums of rows and delta are still what matrix units made: their rounding is not that of scores any more.
    """
    force(unit)
    problem = operands(20, 27, batch=(1, 2), dtype=dtype)
    getattr(problem, where)[0, :, 5] *= np.asarray(2.0**-30 if dtype == np.float32 else 2.0**-20, dtype)
    check(unit, problem, 2)
    if where == "d_out" and dtype == np.float32:
        [found] = run(unit, problem.graph(), problem.feed)
        exact = problem.exact()[0][0, :, 5]
        assert error(found[0][0, :, 5], exact) < 3e-3


def test_rows_of_zeros_are_no_reason_to_be_slow(unit: Unit) -> None:
    """Loss masks make these: they do not count among magnitudes."""
    force(unit)
    problem = operands()
    problem.d_out[:, :, 10:20] = 0
    found = check(unit, problem)
    assert (found[0][:, :, 10:20] == 0).all()


def test_results_repeat(unit: Unit) -> None:
    force(unit)
    problem = operands()
    first, again = run(unit, problem.graph(), problem.feed, problem.feed)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))


def test_random_shapes(unit: Unit) -> None:
    """Rows that are no multiple of a tile, heads of all kinds."""
    generator = np.random.default_rng(21)
    force(unit)
    for _ in range(6):
        group, kv_heads = (int(x) for x in generator.integers(1, 4, 2))
        queries, keys = (int(x) for x in generator.integers(16, 90, 2))
        head = int(generator.integers(1, 17))
        problem = operands(queries, keys, head, batch=(int(generator.integers(1, 3)), group * kv_heads))
        problem.k, problem.v = problem.k[:, :kv_heads], problem.v[:, :kv_heads]
        problem.attributes = {"group": group, "is_empty_zero": 1}
        if generator.random() < 0.5:
            problem.attributes["causal_offset"] = int(generator.integers(-8, keys))
        if generator.random() < 0.5:
            problem.bias = normal(3, group * kv_heads, 1, keys)
        check(unit, problem, 1.3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_open_sizes(unit: Unit, is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan for all, whose kernels take their sizes from push constants."""
    force(unit)
    emit, are_open = attention_gradients.emit, []

    def noted(build: Any, asked: Any, *more: Any) -> None:
        emit(build, asked, *more)
        are_open.append(isinstance(asked.given.q.shape[2], Size))

    monkeypatch.setattr(attention_gradients, "emit", noted)
    attributes = {"causal_offset": 0} if is_causal else {}
    problems = [
        replace(operands(rows, rows, batch=(batch, 3)), attributes=attributes)
        for batch, rows in ((2, 37), (1, 70), (3, 26), (2, 133))
    ]
    sizes = {name: ("batch", 3, "rows", 16) for name in ("q", "k", "v", "d_out")}
    made = run(unit, problems[0].graph(sizes), *(problem.feed for problem in problems))
    for found, problem in zip(made, problems, strict=True):
        exact, rounded = problem.exact(), problem.exact(tf32)
        for have, want, near in zip(found, exact, rounded, strict=True):
            assert error(have, want) <= 1.25 * error(near, want)
    assert any(are_open)
