"""Plans with open sizes on the CPU: results, what is made anew, memory; both instruction sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.lowering.cpu
import vkml.lowering.native_step
from benchmarks.models import gpt_with_past
from tests.engine.open_graphs import EDGES, open_graph
from tests.engine.open_graphs import check as check_open_graph
from tests.engine.open_models import OPEN_MODELS
from tests.engine.test_open_plans import dimensions, feed_of, open_plans
from tests.passes.test_fuse import evaluate
from tests.patience import patience
from vkml.cpu.native.assembler import Assembler
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.engine.cpu_bound import CpuBound
from vkml.engine.plan_cache import PlanCache
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, dtypes
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]

if instruction_set() is None:
    pytest.skip("no machine code here", allow_module_level=True)


@pytest.fixture(params=list(InstructionSet), ids=lambda value: value.value)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> InstructionSet:
    """The instruction set that programs made in the test use."""
    chosen: InstructionSet = request.param
    if chosen is InstructionSet.AVX512 and instruction_set() is not InstructionSet.AVX512:
        pytest.skip("no AVX-512")
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: chosen)
    return chosen


def check(session: vkml.InferenceSession, graph: Graph, feed: dict[str, Array], what: object) -> None:
    for made, wanted in zip(session.run(None, feed), evaluate(graph, feed), strict=True):
        assert made.dtype == wanted.dtype
        np.testing.assert_allclose(made, wanted, rtol=3e-5, atol=3e-5, err_msg=str(what))


@pytest.mark.parametrize("name", OPEN_MODELS)
def test_results_of_all_sizes(name: str, instructions: InstructionSet) -> None:
    graph = OPEN_MODELS[name]()
    names = dimensions(graph)
    random = np.random.default_rng(5)
    edges = EDGES if name not in ("maps", "convolutions") else EDGES[3:9]
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        for turn in range(12):
            numbers = {
                each: int(size) for each, size in zip(names, random.choice(edges, len(names)), strict=True)
            }
            check(session, graph, feed_of(graph, numbers, turn), numbers)
        if name != "convolutions":  # each size of which decides something else
            assert open_plans(session), "no plan stayed open"


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs_of_all_sizes(seed: int, instructions: InstructionSet) -> None:
    check_open_graph(open_graph(seed), "cpu")


def test_one_plan_is_enough_for_large_sizes() -> None:
    counts = [len(check_open_graph(open_graph(seed), "cpu")) for seed in range(40, 64, 2)]
    assert counts.count(1) >= len(counts) - 1, counts


def test_nothing_is_made_after_the_tenth_length(
    instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither plans nor code, however long the past grows."""
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))  # where no code is that would not be written
    written: list[int] = []
    finish = Assembler.finish

    def counted(self: Assembler) -> bytes:
        written.append(1)
        return finish(self)

    monkeypatch.setattr(Assembler, "finish", counted)
    planned: list[int] = []
    plan_open = PlanCache._plan_open
    monkeypatch.setattr(PlanCache, "_plan_open", lambda *given: (planned.append(1), plan_open(*given))[1])
    graph = gpt_with_past(blocks=1, width=32, heads=2, vocabulary=30, longest=512)
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        code = plans = 0
        for past in range(2, 200):
            feed = feed_of(graph, {"batch": 1, "new": 1, "past": past}, past)
            feed["input_ids"] %= 30
            check(session, graph, feed, past)
            if past == 11:
                code, plans = len(written), len(planned)
        assert (len(written), len(planned)) == (code, plans) and plans
        [plan] = open_plans(session)
        [program] = plan.programs
        assert isinstance(program, CpuBound) and not program._bindings, "a program for known sizes was made"


def test_a_length_that_comes_again_is_kept(instructions: InstructionSet) -> None:
    """Runs of changing sizes in any order, those of a plan for known sizes among them."""
    graph = OPEN_MODELS["encoder"]()
    random = np.random.default_rng(3)
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        lengths = [(2, 9), (3, 17), (2, 9), (1, 16), (3, 17), (5, 64), (2, 9), (2, 300), (3, 17)]
        for turn in range(30):
            batch, length = lengths[int(random.integers(len(lengths)))]
            check(session, graph, feed_of(graph, {"batch": batch, "length": length}, turn), (batch, length))


def test_recurrent_layers_of_open_sizes_are_machine_code(instructions: InstructionSet) -> None:
    random = np.random.default_rng(1)
    sketch = Sketch("recurrent", 17)
    x = sketch.input("x", ("steps", "batch", 5))
    weights = [
        sketch.constant(random.standard_normal(shape).astype(np.float32))
        for shape in ((1, 28, 5), (1, 28, 7), (1, 56))
    ]
    graph = sketch.finish(sketch.node("LSTM", sketch.node("Relu", x), *weights, hidden_size=7))
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        for steps, batch in ((4, 2), (5, 3), (9, 2), (4, 17), (5, 3), (31, 8)):
            numbers = {"steps": steps, "batch": batch}
            check(session, graph, feed_of(graph, numbers, steps), numbers)
            report = session.report(numbers)
            assert {step.variant for step in report.steps} <= {"avx2", "avx512"}
        assert open_plans(session)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((8, "n"), (0,)), (("n", 3, "m"), (1,)), ((2, 5, "m", 3), (0, 1))]
)
def test_reductions_of_known_axes_over_open_ones_stay_open(
    op: str, shape: tuple[int | str, ...], axes: tuple[int, ...], instructions: InstructionSet
) -> None:
    """The distance between what is reduced is open."""
    sketch = Sketch("reduced", 17)
    graph = sketch.finish(sketch.node(op, sketch.input("x", shape), axes=axes, keepdims=0))
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        for size in (9, 15, 33, 4, 7, 64):
            numbers = {"n": size, "m": 2 * size + 1}
            check(session, graph, feed_of(graph, numbers, size), numbers)
        [plan] = open_plans(session)
        assert plan.sizes is not None and not [guard for guard in plan.sizes.guards() if "==" in guard]
        assert len(session._runner.plans.kept) == 2


def test_reports_say_what_a_plan_of_open_sizes_runs() -> None:
    graph = OPEN_MODELS["encoder"]()
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        for length in (8, 9):
            session.run(None, feed_of(graph, {"batch": 2, "length": length}, 0))
        for length in (9, 21):
            report = session.report({"batch": 2, "length": length})
            assert {step.variant for step in report.steps} <= {"avx2", "avx512"}
            assert any((2, length, 48) in step.output_shapes for step in report.steps)


def test_reports_say_whose_code_is_written_anew() -> None:
    graph = OPEN_MODELS["images"]()
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        for batch in (2, 3):
            session.run(None, feed_of(graph, {"batch": batch}, 0))
        steps = session.report({"batch": 3}).steps
        assert all("written anew" in step.reason for step in steps if "Conv" in step.operators)
        assert {step.reason for step in steps if "Softmax" in step.operators} == {"machine code"}


GROWING = """
import numpy as np
import vkml
from benchmarks.models import gpt_with_past
from vkml.onnx import save_graph
from tests.engine.test_open_plans import feed_of

graph = gpt_with_past(blocks=1, width=16, heads=1, vocabulary=100, longest=4096)
session = vkml.InferenceSession(save_graph(graph), devices="cpu")

def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

settled = 0.0
for past in range(2, 2103):
    session.run(None, feed_of(graph, {"batch": 1, "new": 1, "past": past}, 0))
    if past == 102:
        settled = resident()
print(resident() - settled)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_stays_flat_over_two_thousand_lengths() -> None:
    made = subprocess.run(
        [sys.executable, "-c", GROWING], capture_output=True, text=True, check=True, timeout=patience(600)
    )
    # What the values themselves take is below a megabyte.
    assert float(made.stdout) < 5, made.stdout


def halves(op: str) -> Graph:
    """One operator with constants of float16 that are repeated along an open batch."""
    sketch = Sketch(op, 21)
    x = sketch.input("x", ("n", 6, 5), dtypes.FLOAT16)
    random = np.random.default_rng(7)

    def constant(*shape: int) -> str:
        return sketch.constant(random.standard_normal(shape).astype(np.float16))

    if op == "MatMul":
        made = sketch.node("Add", sketch.node("MatMul", x, constant(5, 4)), constant(6, 4))
    elif op == "LayerNormalization":
        made = sketch.node(op, x, constant(5), constant(5))
    else:
        groups = {"num_groups": 2} if op == "GroupNormalization" else {}
        made = sketch.node(op, x, constant(6), constant(6), **groups)
    return sketch.finish(made)


@pytest.mark.parametrize(
    "op", ["InstanceNormalization", "GroupNormalization", "LayerNormalization", "MatMul"]
)
def test_constants_of_halves_are_repeated_for_any_size(op: str, instructions: InstructionSet) -> None:
    """Not for the sizes that an earlier plan was made with."""
    graph = halves(op)
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        for size in (2, 3, 4, 9, 40, 5):
            feed = feed_of(graph, {"n": size}, size)
            for made, wanted in zip(session.run(None, feed), evaluate(graph, feed), strict=True):
                np.testing.assert_allclose(made, wanted, rtol=4e-3, atol=4e-3, err_msg=str(size))
        assert len(open_plans(session)) == 1


def test_a_constant_cut_to_an_open_size_is_packed_for_each(instructions: InstructionSet) -> None:
    sketch = Sketch("cut", 21)
    x = sketch.input("x", (20, "n"))
    weight = sketch.constant(np.random.default_rng(7).standard_normal((40, 24)).astype(np.float32))
    end = sketch.node("Shape", x, start=1)
    part = sketch.node("Slice", weight, sketch.constant(np.array([0])), end)
    graph = sketch.finish(sketch.node("MatMul", x, part))
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        for size in (2, 3, 4, 9, 40, 5):
            check(session, graph, feed_of(graph, {"n": size}, size), size)


def test_results_that_shrink_as_a_size_grows_have_room(
    instructions: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A computed kernel: the larger it is, the smaller is what it makes; a layout serves sizes up to 16."""
    guards = []

    def guarded(count: int) -> Array:
        memory = np.zeros(count + (1 << 20), np.uint8)
        start = -memory.ctypes.data % 64
        guards.append(memory[start + count :])
        guards[-1][:] = 0xA5
        return memory[start : start + count]

    monkeypatch.setattr(vkml.lowering.native_step, "_aligned", guarded)
    sketch = Sketch("kernel", 21)
    image = sketch.input("image", (2, 3, 19, 19))
    kernel = sketch.input("kernel", (7, 3, "n", "n"))
    x = sketch.node("Conv", image, kernel)
    soft = sketch.node("Softmax", sketch.node("Relu", x), axis=-1)
    graph = sketch.finish(sketch.node("Softmax", sketch.node("Mul", soft, x), axis=-2))
    with vkml.InferenceSession(save_graph(graph), devices="cpu") as session:
        for size in (2, 14, 13, 7, 3, 5, 14, 2):
            check(session, graph, feed_of(graph, {"n": size}, size), size)
        assert open_plans(session)
    assert guards and all((guard == 0xA5).all() for guard in guards)
