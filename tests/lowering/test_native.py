"""Machine code against the operators' evaluation: both instruction sets, random geometries, sessions."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.lowering.cpu
from tests.vulkan_cases import Cases, Fixed
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.engine.sketch import Sketch
from vkml.ir import DType, dtypes
from vkml.lowering import native_images
from vkml.lowering.native_builder import NativeBuilder
from vkml.onnx import save_graph

if instruction_set() is None:
    pytest.skip("no machine code here", allow_module_level=True)

SETS = [
    InstructionSet.AVX2,
    pytest.param(
        InstructionSet.AVX512,
        marks=pytest.mark.skipif(instruction_set() is not InstructionSet.AVX512, reason="no AVX-512"),
    ),
]


@pytest.fixture(params=SETS, ids=lambda value: value.value)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> InstructionSet:
    """The instruction set that programs made in the test use."""
    chosen: InstructionSet = request.param
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: chosen)
    return chosen


def check(cases: Cases, instructions: InstructionSet, **options: bool) -> None:
    """Runs the cases on the CPU and asserts that each was machine code."""
    cases.check_once("cpu", options.get("is_strided", False), 99, f", {instructions}")
    graph, feed, wanted = cases.graph(**options)
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        session.run(wanted, feed)
        variants = {label: step.variant for step in session.report().steps for label in step.nodes}
    labels = {case.node.label for case in cases.cases if not case.may_fall_back}
    assert {label: variants[label] for label in labels} == dict.fromkeys(labels, instructions.value)


FLOATS = ["float32", "float16"]


def loose(dtype: str) -> dict[str, Any]:
    """Sums are added in another order; a float16 that they round to may be the next one."""
    return {"atol": 1e-4} if dtype == "float32" else {"atol": 1e-3, "rtol": 2e-3}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_convolutions(instructions: InstructionSet, is_strided: bool, dtype: str) -> None:
    cases = Cases(1)
    rng = cases.random
    for number in range(40):
        group = int(rng.choice([1, 1, 1, 2, 3]))
        channels, filters = group * int(rng.integers(1, 20)), group * int(rng.integers(1, 40))
        if number % 4 == 0:
            group = channels = filters = int(rng.integers(2, 40))
        rank = 1 if number % 7 == 0 else 2
        kernel = [int(k) for k in rng.integers(1, 5, rank)]
        dilations = [int(d) for d in rng.integers(1, 3, rank)]
        pads = [int(p) for p in rng.integers(0, 3, 2 * rank)]
        spatial = [int(rng.integers(1, 12)) + (k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
        x = cases.array(dtype, (int(rng.integers(1, 3)), channels, *spatial))
        weight = Fixed(cases.array(dtype, (filters, channels // group, *kernel)))
        bias = Fixed(cases.array(dtype, (filters,))) if rng.random() < 0.5 else None
        strides = [int(s) for s in rng.integers(1, 4, rank)]
        cases.add(
            "Conv",
            x,
            weight,
            bias,
            group=group,
            pads=pads,
            strides=strides,
            dilations=dilations,
            **loose(dtype),
        )
    check(cases, instructions, is_strided=is_strided)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_convolutions_with_computed_weights(
    instructions: InstructionSet, is_strided: bool, dtype: str
) -> None:
    """Weights that are inputs are packed during the run."""
    cases = Cases(3)
    rng = cases.random
    for number in range(24):
        group = int(rng.choice([1, 1, 2, 3]))
        channels, filters = group * int(rng.integers(1, 20)), group * int(rng.integers(8, 40))
        rank = 1 if number % 7 == 0 else 3 if number % 4 == 1 else 2
        kernel = [3] * rank if number % 3 == 0 else [int(k) for k in rng.integers(1, 5, rank)]
        dilations = [int(d) for d in rng.integers(1, 3, rank)]
        pads = [int(p) for p in rng.integers(0, 3, 2 * rank)]
        spatial = [int(rng.integers(1, 12)) + (k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
        x = cases.array(dtype, (int(rng.integers(1, 3)), channels, *spatial))
        weight = cases.array(dtype, (filters, channels // group, *kernel))
        bias = cases.array(dtype, (filters,)) if rng.random() < 0.5 else None
        strides = [int(s) for s in rng.integers(1, 4, rank)]
        cases.add(
            "Conv",
            x,
            weight,
            bias,
            group=group,
            pads=pads,
            strides=strides,
            dilations=dilations,
            **loose(dtype),
        )
    check(cases, instructions, is_strided=is_strided)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_products(instructions: InstructionSet, is_strided: bool, dtype: str) -> None:
    cases = Cases(2)
    rng = cases.random
    for number in range(40):
        m, k, n = (int(size) for size in rng.integers(1, 70, 3))
        if number % 5 == 0:
            m = 1
        lead = [(), (2,), (2, 3)][number % 3]
        a, b = (
            cases.array(dtype, (*lead, m, k)),
            cases.array(dtype, (*(lead if number % 2 else ()), k, n)),
        )
        cases.add("MatMul", a, Fixed(b) if number % 4 < 2 else b, **loose(dtype))
    for number in range(16):
        m, k, n = (int(size) for size in rng.integers(1, 70, 3))
        flips = {"transA": number & 1, "transB": number >> 1 & 1}
        a = cases.array(dtype, (k, m) if flips["transA"] else (m, k))
        b = cases.array(dtype, (n, k) if flips["transB"] else (k, n))
        c = cases.array(dtype, cases.broadcastable((m, n)))
        cases.add(
            "Gemm",
            a,
            Fixed(b) if number & 4 else b,
            c,
            alpha=0.5 if number & 8 else 1.0,
            **flips,
            **loose(dtype),
        )
    check(cases, instructions, is_strided=is_strided)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_pools_rows_and_reductions(instructions: InstructionSet, is_strided: bool, dtype: str) -> None:
    cases = Cases(3)
    rng = cases.random
    for number in range(24):
        rank = 1 if number % 5 == 0 else 3 if number % 3 == 1 else 2
        kernel = [int(k) for k in rng.integers(1, 4, rank)]
        pads = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]
        spatial = [int(size) for size in rng.integers(4, 12, rank)]
        x = cases.array(dtype, (2, int(rng.integers(1, 40)), *spatial))
        shared = {"kernel_shape": kernel, "pads": pads, "strides": [int(s) for s in rng.integers(1, 3, rank)]}
        shared["ceil_mode"] = number & 1
        if number % 2:
            cases.add("MaxPool", x, **shared)
        else:
            cases.add("AveragePool", x, count_include_pad=number >> 1 & 1, **shared)
    for columns in (1, 3, 16, 37, 100, 1000):
        x = cases.array(dtype, (3, 5, columns))
        cases.add("Softmax", x, axis=-1)
        cases.add("LogSoftmax", x, axis=-1)
        scale, bias = cases.array(dtype, (columns,)), cases.array(dtype, (columns,))
        cases.add("LayerNormalization", x, scale, bias, axis=-1, **loose(dtype))
        cases.add("RMSNormalization", x, scale, axis=-1, **loose(dtype))
    for op in ("Sum", "Mean", "Max", "Min", "SumSquare", "L1", "L2"):
        for axes in ((0,), (1,), (-1,), (1, 2), (0, 2), (0, 1, 2, 3)):
            x = cases.array(dtype, (3, 17, 5, 33))
            cases.add(
                f"Reduce{op}",
                x,
                Fixed(np.array(axes, np.int64)),
                keepdims=int(rng.integers(0, 2)),
                **loose(dtype),
            )
    cases.add("GlobalAveragePool", cases.array(dtype, (2, 37, 7, 7)))
    check(cases, instructions, is_strided=is_strided)


def test_pointwise_functions_pass_nan_and_infinities(instructions: InstructionSet) -> None:
    cases = Cases(4)
    for op in ("Abs", "Neg", "Sqrt", "Exp", "Log", "Tanh", "Sigmoid", "Erf", "Relu", "Floor", "Ceil", "Round",
               "Reciprocal", "HardSwish"):  # fmt: skip
        cases.add(op, cases.array("float32", (5, 67), special=True))
    # 1 + erf(x) is rounded near zero: far out on the left 1e-7 of x is lost.
    cases.add("Gelu", cases.array("float32", (5, 67), special=True), atol=1e-6)
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "GreaterOrEqual", "Equal"):
        for _ in range(3):
            shape = cases.shape(3, 1, 40)
            first, second = (
                cases.array("float32", cases.broadcastable(shape), special=True) for _ in range(2)
            )
            cases.add(op, first, second)
    cases.add(
        "Where", cases.array("bool", (7, 1)), cases.array("float32", (7, 33)), cases.array("float32", (33,))
    )
    check(cases, instructions)


def test_gathers_check_their_indices(instructions: InstructionSet) -> None:
    sketch = Sketch("pick", 17)
    table = sketch.constant(np.arange(50, dtype=np.float32).reshape(10, 5))
    indices = sketch.input("indices", (3,), dtypes.INT64)
    graph = sketch.finish(sketch.node("Gather", table, indices, axis=0))
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        [picked] = session.run(None, {"indices": np.array([0, -1, 3])})
        np.testing.assert_array_equal(picked[:, 0], [0, 45, 15])
        for wrong in (10, -11, 2**40):
            with pytest.raises(vkml.IndexOutOfRange):
                session.run(None, {"indices": np.array([0, wrong, 3])})
        session.run(None, {"indices": np.array([9, 9, 9])})


def test_one_session_runs_from_several_threads(instructions: InstructionSet) -> None:
    sketch = Sketch("net", 17)
    rng = np.random.default_rng(0)
    x = sketch.input("x", (1, 8, 20, 20))
    y = x
    for _ in range(3):
        weight = sketch.constant(rng.standard_normal((8, 8, 3, 3)).astype(np.float32) * np.float32(0.2))
        y = sketch.node("Relu", sketch.node("Conv", y, weight, kernel_shape=(3, 3), pads=(1, 1, 1, 1)))
    model = save_graph(sketch.finish(y))
    feeds = [rng.standard_normal((1, 8, 20, 20)).astype(np.float32) for _ in range(4)]
    wrong: list[int] = []
    with vkml.InferenceSession(model, devices="cpu") as session:
        expected = [session.run(None, {"x": feed})[0] for feed in feeds]

        def repeat(number: int) -> None:
            for _ in range(100):
                if not np.array_equal(session.run(None, {"x": feeds[number]})[0], expected[number]):
                    wrong.append(number)

        threads = [threading.Thread(target=repeat, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.parametrize("op", ["Softmax", "LayerNormalization", "ReduceMean", "MaxPool", "Conv", "MatMul"])
def test_more_addends_than_registers(instructions: InstructionSet, op: str) -> None:
    """What machine code has no registers for NumPy does: no model is refused for it."""
    rng = np.random.default_rng(0)
    sketch = Sketch("sum", 17)
    x = sketch.input("x", (2, 6, 5, 19))
    feed = {"x": rng.standard_normal((2, 6, 5, 19)).astype(np.float32)}
    extra: tuple[object, ...] = ()
    attributes: dict[str, object] = {}
    shape = (2, 6, 5, 19)
    if op == "LayerNormalization":
        extra = tuple(sketch.constant(rng.standard_normal(19).astype(np.float32)) for _ in range(2))
    elif op == "ReduceMean":
        attributes, shape = {"axes": (-1,), "keepdims": 1}, (2, 6, 5, 1)
    elif op == "MaxPool":
        attributes, shape = {"kernel_shape": (2, 2)}, (2, 6, 4, 18)
    elif op == "Conv":
        weight = rng.standard_normal((6, 6, 1, 1)).astype(np.float32)
        extra, attributes = (sketch.constant(weight),), {"kernel_shape": (1, 1)}
    elif op == "MatMul":
        extra = (sketch.constant(rng.standard_normal((19, 19)).astype(np.float32)),)
    made = sketch.node(op, x, *extra, **attributes)
    total = made
    for number in range(16):
        feed[f"addend{number}"] = rng.standard_normal(shape).astype(np.float32)
        total = sketch.node("Add", total, sketch.input(f"addend{number}", shape))
    with vkml.InferenceSession(save_graph(sketch.finish(total, made)), devices="cpu") as session:
        found, alone = session.run(None, feed)
    wanted = alone + sum(entry for name, entry in feed.items() if name != "x")
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_winograd_is_near_and_not_for_the_highest_precision(instructions: InstructionSet) -> None:
    rng = np.random.default_rng(0)
    sketch = Sketch("net", 17)
    x = sketch.input("x", (2, 32, 30, 27))
    weight = rng.standard_normal((48, 32, 3, 3)).astype(np.float32)
    y = sketch.node("Conv", x, sketch.constant(weight), kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    model = save_graph(sketch.finish(sketch.node("Relu", y)))
    feed = rng.standard_normal((2, 32, 30, 27)).astype(np.float32)
    padded = np.pad(feed.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.maximum(np.einsum("nchwyx,fcyx->nfhw", windows, weight.astype(np.float64)), 0)
    found = {}
    for precision, bound in (("highest", 1e-6), ("high", 1e-5)):
        options = vkml.SessionOptions(intra_op_num_threads=2)  # more find too little to do in its products
        with vkml.InferenceSession(model, options, devices="cpu", precision=precision) as session:
            [found[precision]] = session.run(None, {"x": feed})
        assert np.abs(found[precision] - expected).max() < bound * np.abs(expected).max()
    # Sums in the same order would be equal to the last bit.
    assert not np.array_equal(found["highest"], found["high"])


def test_convolutions_with_many_weights_are_added_up_in_stretches(
    instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_images, "PANEL_BYTES", 4096)
    counts = []
    product = native_images.product.product

    def counted(*args: Any, **options: Any) -> Any:
        counts.append(len(options["taps"]))
        return product(*args, **options)

    monkeypatch.setattr(native_images.product, "product", counted)
    cases = Cases(5)
    x, weight = cases.array("float32", (1, 70, 5, 6)), cases.array("float32", (70, 70, 3, 3))
    bias = Fixed(cases.array("float32", (70,)))
    cases.add("Conv", x, Fixed(weight), bias, pads=[1, 1, 1, 1], atol=1e-3)
    cases.add("Conv", x, Fixed(weight), bias, pads=[0, 2, 1, 0], strides=[2, 1], atol=1e-3)
    check(cases, instructions)
    assert counts and max(counts) < 9, counts


@pytest.mark.parametrize("op", ["MatMul", "Softmax", "ReduceSum"])
@pytest.mark.parametrize("is_repeated", [False, True])
def test_epilogues_choose_by_bools(instructions: InstructionSet, op: str, is_repeated: bool) -> None:
    """A mask as an operand of an epilogue, and what follows in another type as a launch of its own."""
    rng = np.random.default_rng(0)
    sketch = Sketch("masked", 17)
    shape = (2, 3, 7, 19)
    x = sketch.input("x", shape)
    feed: dict[str, Any] = {"x": rng.standard_normal(shape).astype(np.float32)}
    extra: tuple[object, ...] = ()
    attributes: dict[str, object] = {}
    if op == "MatMul":
        extra = (sketch.constant(rng.standard_normal((19, 19)).astype(np.float32)),)
    elif op == "ReduceSum":
        extra, attributes = (sketch.constant(np.array([-1])),), {"keepdims": 1}
    made = sketch.node(op, x, *extra, **attributes)
    places = (2, 3, 7, 1 if op == "ReduceSum" else 19)
    places = (2, 1, 1, places[3]) if is_repeated else places
    feed["mask"] = rng.random(places) < 0.5
    chosen = sketch.node(
        "Where", sketch.input("mask", places, dtypes.BOOL), made, sketch.constant(np.float32(-1e4))
    )
    doubled = sketch.node("Add", chosen, chosen)
    whole = sketch.node("Cast", doubled, to=dtypes.INT64.code)
    graph = sketch.finish(whole, doubled, made)
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        cast, found, alone = session.run(None, feed)
        steps = session.report().steps
    expected = np.where(feed["mask"], alone, np.float32(-1e4)) * 2
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(cast, expected.astype(np.int64))
    assert {step.variant for step in steps} == {instructions.value}


def test_a_chain_that_needs_more_registers_than_there_are(
    instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes several launches."""
    parts: list[int] = []
    halves = NativeBuilder._halves

    def counted(build: NativeBuilder, body: Any, *rest: Any) -> None:
        parts.append(len(body.nodes))
        halves(build, body, *rest)

    monkeypatch.setattr(NativeBuilder, "_halves", counted)
    sketch = Sketch("waves", 17)
    x = sketch.input("x", (5, 33))
    numbers = np.linspace(0.5, 1.5, 20 if instructions is InstructionSet.AVX2 else 36).astype(np.float32)
    base = sketch.node("Neg", x)
    waves = [sketch.node("Sub", base, sketch.constant(number)) for number in numbers]
    total = waves[0]
    # Every difference is needed once more when all have been added up.
    for wave in waves[1:]:
        total = sketch.node("Add", total, wave)
    for wave in waves:
        total = sketch.node("Mul", total, wave)
    values = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
    with vkml.InferenceSession(save_graph(sketch.finish(total)), devices="cpu") as session:
        [found] = session.run(None, {"x": values})
        steps = session.report().steps
    assert parts
    differences = [-values - number for number in numbers]
    expected = differences[0]
    for difference in differences[1:]:
        expected = expected + difference
    for difference in differences:
        expected = expected * difference
    np.testing.assert_array_equal(found, expected)
    assert {step.variant for step in steps} == {instructions.value}


@pytest.mark.parametrize("op", ["MatMul", "Conv", "Softmax"])
@pytest.mark.parametrize(
    "target", [dtypes.FLOAT16, dtypes.UINT8, dtypes.INT16, dtypes.INT32, dtypes.BOOL], ids=str
)
def test_epilogues_end_in_other_types(instructions: InstructionSet, op: str, target: DType) -> None:
    rng = np.random.default_rng(0)
    sketch = Sketch("ends", 17)
    shape = (2, 6, 9, 19)
    x = sketch.input("x", shape)
    values = rng.standard_normal(shape).astype(np.float32) * 30
    extra: tuple[str, ...] = ()
    attributes: dict[str, object] = {}
    if op == "MatMul":
        extra = (sketch.constant(rng.standard_normal((19, 19)).astype(np.float32)),)
    elif op == "Conv":
        extra = (sketch.constant(rng.standard_normal((6, 6, 3, 3)).astype(np.float32)),)
        attributes = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    made = sketch.node(op, x, *extra, **attributes)
    total = sketch.node("Add", made, x)
    cast = sketch.node("Cast", total, to=target.code)
    with vkml.InferenceSession(save_graph(sketch.finish(cast, total)), devices="cpu") as session:
        found, plain = session.run(None, {"x": values})
        steps = session.report().steps
    whole = plain.astype(np.int64) if target.is_integer else plain
    np.testing.assert_array_equal(found, whole.astype(target.storage))
    assert {step.variant for step in steps} == {instructions.value}


def test_a_network_of_halves(instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values between nodes are halves in any layout; nothing of it is NumPy's."""
    rng = np.random.default_rng(0)
    sketch = Sketch("halves", 17)

    def constant(*shape: int) -> str:
        values = rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))
        return sketch.constant(values.astype(np.float16))

    x = sketch.input("x", (2, 3, 20, 22), dtypes.FLOAT16)
    y = sketch.node("Relu", sketch.node("Conv", x, constant(16, 3, 3, 3), pads=(1, 1, 1, 1)))
    y = sketch.node("MaxPool", y, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    z = sketch.node("Conv", y, constant(16, 1, 3, 3), pads=(1, 1, 1, 1), group=16)
    y = sketch.node("Add", sketch.node("Mul", z, sketch.node("Sigmoid", z)), y)
    y = sketch.node("Concat", y, sketch.node("Conv", y, constant(8, 16, 3, 3), pads=(1, 1, 1, 1)), axis=1)
    y = sketch.node("ReduceMean", y, sketch.constant(np.array([2, 3])), keepdims=0)
    y = sketch.node("LayerNormalization", y, constant(24), constant(24))
    y = sketch.node("Softmax", sketch.node("Gemm", y, constant(24, 10), constant(10)), axis=-1)
    graph = sketch.finish(y)
    feed = {"x": rng.standard_normal((2, 3, 20, 22)).astype(np.float16)}
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        [found] = session.run(None, feed)
        steps = session.report().steps
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: None)
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        [expected] = session.run(None, feed)
    # Sums of halves in another order: 2 roundings apart where it was measured, twice that allowed.
    np.testing.assert_allclose(found, expected, rtol=4 * 2.0**-10, atol=1e-4)
    assert {step.variant for step in steps} == {instructions.value}


@pytest.mark.parametrize("dtype", [dtypes.INT64, dtypes.INT32, dtypes.UINT8, dtypes.FLOAT64], ids=str)
def test_chains_of_other_types_are_one_launch(instructions: InstructionSet, dtype: DType) -> None:
    """What exported models do to positions and masks."""
    rng = np.random.default_rng(0)
    sketch = Sketch("positions", 17)
    shape = (3, 7, 19)
    ids, other = sketch.input("ids", shape, dtype), sketch.input("other", (7, 1), dtype)
    total = sketch.node("Add", sketch.node("Mul", ids, ids), other)
    same = sketch.node("Equal", total, ids)
    chosen = sketch.node(
        "Where", sketch.node("Not", same), total, sketch.constant(np.array(3, dtype.storage))
    )
    graph = sketch.finish(sketch.node("Cast", chosen, to=dtypes.FLOAT32.code), same)
    feed = {
        "ids": rng.integers(0, 4, shape).astype(dtype.storage),
        "other": rng.integers(0, 3, (7, 1)).astype(dtype.storage),
    }
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        number, equal = session.run(None, feed)
        steps = session.report().steps
    sums = feed["ids"] * feed["ids"] + feed["other"]
    np.testing.assert_array_equal(equal, sums == feed["ids"])
    np.testing.assert_array_equal(number, np.where(sums == feed["ids"], 3, sums).astype(np.float32))
    assert [step.variant for step in steps] == [instructions.value]
