"""Models cut over several devices at random, by memory, in threads, and when a device's part fails."""

from __future__ import annotations

import functools
import gc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.onnx
from tests.comparing import assert_close
from tests.engine.device_models import DEVICE_MODELS, Array, reference, whole
from tests.robustness.test_threads import in_threads
from vkml.engine.devices import open_device
from vkml.engine.plan import Plan
from vkml.engine.sketch import Sketch
from vkml.vulkan import find_device, live_objects

SEEDS = 5
"""Random assignments of each model."""
THREADS, RUNS = 8, 80


@pytest.fixture(scope="module")
def gpus() -> list[str]:
    found = [device.name for device in vkml.devices(True) if device.name != "cpu"]
    if len(found) < 2:
        pytest.skip("fewer than two Vulkan devices on this machine")
    return found[:2]


@functools.cache
def source_of(name: str) -> bytes:
    return DEVICE_MODELS[name].make()


def feeds_of(name: str, count: int = 2) -> list[dict[str, Array]]:
    return [DEVICE_MODELS[name].feed(np.random.default_rng([at, 7])) for at in range(count)]


@functools.cache
def on_one_device(name: str, device: str) -> list[list[Array]]:
    """The results of all feeds, all of it on a device."""
    with vkml.InferenceSession(source_of(name), devices=device, precision="highest") as session:
        return [session.run(None, feed) for feed in feeds_of(name)]


def plans_of(session: vkml.InferenceSession) -> list[Plan]:
    """Those that were made, of bodies, too."""
    runners = [session._runner]
    for runner in runners:
        runners += [
            b.runner for h in runner.hosts.values() for b in h.bodies.values() if b.runner is not None
        ]
    return [plan for runner in runners for plan in runner.plans.kept.values()]


def check(session: vkml.InferenceSession, name: str, devices: list[str]) -> None:
    """Compares runs of a session with float64, and with its devices bit for bit where these agree."""
    alone = [on_one_device(name, device) for device in devices]
    for at, feed in enumerate(feeds_of(name)):
        found = session.run(None, feed)
        wanted = reference(source_of(name), feed)
        for number, (mine, exact) in enumerate(zip(found, wanted, strict=True)):
            ones = [each[at][number] for each in alone]
            agree = all(one.tobytes() == ones[0].tobytes() for one in ones)
            what = f"{name}, feed {at}, output {number}"
            if agree:
                assert mine.dtype == ones[0].dtype and mine.tobytes() == ones[0].tobytes(), what
            if DEVICE_MODELS[name].is_exact:
                assert agree, f"{what}: the devices do not agree"
                np.testing.assert_array_equal(mine, exact, err_msg=what)
            assert_close(mine, exact, rtol=2e-5, atol=2e-6, what=what)


def labels_of(source: bytes) -> dict[str, str]:
    """Label → first output of each node."""
    graph = vkml.onnx.load_graph(vkml.onnx.open(source))
    return {node.label: node.outputs[0] for node in graph.nodes}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", DEVICE_MODELS)
def test_nodes_on_random_devices(gpus: list[str], name: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 21])
    devices, model, labels = [*gpus, "cpu"], DEVICE_MODELS[name], labels_of(source_of(name))
    # Neighbours share a device in half of the seeds, so that pieces have one node, or several.
    assigned, last = {}, devices[int(rng.integers(3))]
    for output in labels.values():
        if seed % 2 or rng.random() < 0.4:
            last = devices[int(rng.integers(3))]
        assigned[output] = last
    options: Mapping[str, Any] = {"placement": assigned, "precision": "highest", "devices": devices}
    with vkml.InferenceSession(source_of(name), _silent(), **options) as session:
        check(session, name, devices)
        report = session.report()
        if model.is_whole:
            assert len(plans_of(session)) == 1
    fallen = {label for label, _ in report.fallbacks}
    placed = 0
    for step in report.steps:
        for label in step.nodes:
            if label in labels and label not in fallen and not label.startswith(("Loop", "NonZero")):
                assert step.device == assigned[labels[label]], label
                placed += 1
    assert placed > len(labels) / 4, "hardly a node of the model was looked at"


def _silent() -> vkml.SessionOptions:
    options = vkml.SessionOptions()
    options.log_severity_level = 4  # of nodes that a device has no kernel for
    return options


# -- memory --------------------------------------------------------------------------------------------------

LAYERS, WIDTH = 8, 64
WEIGHT_BYTES = WIDTH * WIDTH * 4
ROWS = 3


@functools.cache
def tower() -> bytes:
    """Layers whose weights, 16 KiB each, turn the order and the signs of their inputs: exact at any depth."""
    sketch, rng = Sketch("tower", 17), np.random.default_rng(9)
    value = sketch.input("x", (ROWS, WIDTH))
    for _ in range(LAYERS):
        weight = np.eye(WIDTH, dtype=np.float32)[rng.permutation(WIDTH)] * rng.choice([-1, 1], WIDTH)
        value = sketch.node("MatMul", value, sketch.constant(weight.astype(np.float32)))
        value = sketch.node("Add", value, sketch.constant(whole(rng, WIDTH, most=2)))
    return vkml.onnx.save_graph(sketch.finish(value))


PIECES: dict[int, tuple[tuple[int, ...], Mapping[int, int]]] = {
    2: ((3,), {}),
    3: ((3, 2), {}),
    4: ((3, 2), {LAYERS - 1: 0}),
    5: ((3, 2), {1: 1}),
    6: ((3, 2), {1: 1, LAYERS - 1: 0}),
}
"""Number of pieces → layers that each device has memory for, and layer → device that it is assigned to."""


@pytest.mark.parametrize("count", PIECES)
def test_memory_that_makes_pieces(gpus: list[str], count: int) -> None:
    held, pins = PIECES[count]
    labels = labels_of(tower())
    products = [output for label, output in labels.items() if label.startswith("MatMul")]
    slack = 8 * ROWS * WIDTH * 4  # biases, and values alive at the same time
    limits = {gpu: layers * WEIGHT_BYTES + slack for gpu, layers in zip(gpus, held, strict=False)}
    sums = [output for label, output in labels.items() if label.startswith("Add")]
    placement = {each[layer]: gpus[gpu] for layer, gpu in pins.items() for each in (products, sums)}
    x = whole(np.random.default_rng(count), ROWS, WIDTH, most=9)
    devices = [*gpus[: len(held)], "cpu"]
    options: Mapping[str, Any] = {"devices": devices, "placement": placement, "precision": "highest"}
    with vkml.InferenceSession(tower(), memory_limit=limits, **options) as session:
        for sign in (1, -1):
            [found] = session.run(None, {"x": sign * x})
            np.testing.assert_array_equal(found, reference(tower(), {"x": sign * x})[0])
        [plan] = plans_of(session)
        assert len(plan.programs) == count
        assert all(
            one.device != two.device for one, two in zip(plan.programs, plan.programs[1:], strict=False)
        )
        steps = session.report().steps
    taken = {
        gpu: sum(op == "MatMul" for s in steps if s.device == gpu for op in s.operators) for gpu in limits
    }
    assert taken == dict(zip(gpus, held, strict=False)), "more, or less, than there is memory for"


# -- threads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "together"), [("mlp", 2), ("nonzero", 1)])
def test_one_session_in_threads(gpus: list[str], name: str, together: int) -> None:
    """Every thread has inputs of its own, so that one's values in another's run are seen."""
    outputs = list(labels_of(source_of(name)).values())
    devices = [*gpus, "cpu"]
    assigned = {output: devices[at // together % 3] for at, output in enumerate(outputs)}
    model = DEVICE_MODELS[name]
    feeds = [model.feed(np.random.default_rng([thread, 3])) for thread in range(THREADS)]
    wanted = [reference(source_of(name), feed) for feed in feeds]
    options: Mapping[str, Any] = {"devices": devices, "placement": assigned, "precision": "highest"}
    with vkml.InferenceSession(source_of(name), _silent(), **options) as session:

        def body(thread: int) -> None:
            for run in range(RUNS):
                for found, exact in zip(session.run(None, feeds[thread]), wanted[thread], strict=True):
                    np.testing.assert_array_equal(found, exact, err_msg=f"thread {thread}, run {run}")

        session.run(None, feeds[0])
        in_threads(body, THREADS)
        used = {program.device for plan in plans_of(session) for program in plan.programs}
    assert used == set(devices)


# -- failures ------------------------------------------------------------------------------------------------


@functools.cache
def three_parts() -> bytes:
    """Products, a Gather by an input's indices, and products again."""
    sketch, rng = Sketch("parts", 17), np.random.default_rng(4)
    x, at = sketch.input("x", (4, 8)), sketch.input("at", (5,), vkml.ir.dtypes.INT64)
    first = sketch.node("MatMul", x, sketch.constant(whole(rng, 8, 8)))
    middle = sketch.node("Gather", first, at, axis=0)
    last = sketch.node("MatMul", sketch.node("Neg", middle), sketch.constant(whole(rng, 8, 3)))
    return vkml.onnx.save_graph(sketch.finish(last))


def placed(gpus: list[str], order: tuple[int, int, int]) -> tuple[dict[str, str], str]:
    """Assignments of the three parts, and the label of the middle one."""
    labels = labels_of(three_parts())
    devices = [[*gpus, "cpu"][at] for at in order]
    products = [output for label, output in labels.items() if label.startswith("MatMul")]
    [middle] = [label for label in labels if label.startswith("Gather")]
    return {products[0]: devices[0], labels[middle]: devices[1], "*": devices[2]}, middle


def held(gpus: list[str]) -> list[Any]:
    """What is in use on the devices."""
    gc.collect()
    kept = ("Device", "Pipeline", "PipelineLayout", "PipelineCache", "ShaderModule")
    objects = {kind: count for kind, count in live_objects().items() if kind not in kept}
    found = [open_device(find_device(gpu, True)) for gpu in gpus]
    return [objects, *((device.live_allocations, device.allocated_bytes) for device in found)]


ORDERS = [(0, 1, 2), (1, 0, 1), (2, 1, 0), (0, 2, 1), (0, 1, 0)]


def parts_feed(last_index: int) -> dict[str, Array]:
    x = whole(np.random.default_rng(abs(last_index)), 4, 8, most=5)
    return {"x": x, "at": np.array([3, 0, 2, 2, last_index], np.int64)}


def is_right(session: vkml.InferenceSession) -> bool:
    feed = parts_feed(1)
    return bool(np.array_equal(session.run(None, feed)[0], reference(three_parts(), feed)[0]))


@pytest.mark.parametrize("order", ORDERS)
def test_an_index_out_of_range_in_the_middle(gpus: list[str], order: tuple[int, int, int]) -> None:
    assigned, middle = placed(gpus, order)
    devices = [*gpus, "cpu"]
    options: Mapping[str, Any] = {"devices": devices, "placement": assigned, "precision": "highest"}
    with vkml.InferenceSession(three_parts(), **options) as session:
        assert is_right(session)
        before = held(gpus)
        for wrong in (4, -5, 2**40, 4):
            with pytest.raises(vkml.IndexOutOfRange) as caught:
                session.run(None, parts_feed(wrong))
            assert middle in str(caught.value) and devices[order[1]] in str(caught.value)
            assert is_right(session)
        del caught
        assert held(gpus) == before
    assert_usable(gpus)


class PartFailed(Exception):
    """What a program is made to raise."""


def make_fail(monkeypatch: pytest.MonkeyPatch, programs: Sequence[Any], failing: int, act: str) -> list[int]:
    """Has one of a plan's programs raise when it is begun, or when what it made is fetched.

    Args:
        monkeypatch: of the test.
        programs: of the plan.
        failing: number of the one.
        act: "start" or "finish"; what the CPU runs has one act for both.

    Returns:
        A list that receives the numbers of programs as they are begun.
    """
    begun: list[int] = []
    for at, program in enumerate(programs):
        begin = "run" if program.device == "cpu" else "start"
        monkeypatch.setattr(program, begin, _noting(getattr(program, begin), begun, at))
        if at == failing:
            name = begin if act == "start" else "run" if program.device == "cpu" else act
            monkeypatch.setattr(program, name, _failing(getattr(program, name), is_late=act == "finish"))
    return begun


def _noting(act: Any, begun: list[int], at: int) -> Any:
    def instead(*given: Any, **more: Any) -> Any:
        begun.append(at)
        return act(*given, **more)

    return instead


def _failing(act: Any, *, is_late: bool) -> Any:
    def instead(*given: Any, **more: Any) -> Any:
        if is_late:
            act(*given, **more)
        raise PartFailed("this part failed")

    return instead


@pytest.mark.parametrize("act", ["start", "finish"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_program_that_raises_in_the_middle(
    gpus: list[str], order: tuple[int, int, int], act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned, _ = placed(gpus, order)
    options: Mapping[str, Any] = {"devices": [*gpus, "cpu"], "placement": assigned, "precision": "highest"}
    with vkml.InferenceSession(three_parts(), **options) as session:
        assert is_right(session)
        [plan] = plans_of(session)
        assert len(plan.programs) == 3
        begun = make_fail(monkeypatch, plan.programs, 1, act)
        before = held(gpus)
        for _ in range(3):
            begun.clear()
            with pytest.raises(PartFailed, match="this part failed"):
                session.run(None, parts_feed(1))
            assert begun[0] == 0 and 2 not in begun, "what needs the part that failed was begun all the same"
        monkeypatch.undo()
        assert is_right(session)
        assert held(gpus) == before
    assert_usable(gpus)


@functools.cache
def two_branches() -> bytes:
    """Branches that do not need each other, and their sum."""
    sketch, rng = Sketch("branches", 17), np.random.default_rng(8)
    x = sketch.input("x", (4, 8))
    left, right = (
        sketch.node("MatMul", x, sketch.constant(whole(rng, 8, 8)), name=name) for name in ("left", "right")
    )
    return vkml.onnx.save_graph(sketch.finish(sketch.node("Add", left, right, name="sum")))


@pytest.mark.parametrize("act", ["start", "finish"])
@pytest.mark.parametrize(("left", "right"), [(0, 1), (1, 0), (0, 2), (2, 1)])
def test_a_branch_that_raises_beside_another(
    gpus: list[str], left: int, right: int, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other device is in the middle of is waited for, and later runs are right on both."""
    devices = [*gpus, "cpu"]
    places = {"left": devices[left], "right": devices[right], "*": "cpu"}
    options: Mapping[str, Any] = {"devices": devices, "placement": places, "precision": "highest"}
    feeds = [{"x": whole(np.random.default_rng(seed), 4, 8, most=5)} for seed in range(4)]
    wanted = [reference(two_branches(), feed)[0] for feed in feeds]
    with vkml.InferenceSession(two_branches(), **options) as session:
        np.testing.assert_array_equal(session.run(None, feeds[0])[0], wanted[0])
        [plan] = plans_of(session)
        failing = next(at for at, p in enumerate(plan.programs) if p.device == devices[right])
        before = held(gpus)
        for feed, exact in zip(feeds, wanted, strict=True):
            with monkeypatch.context() as context:
                begun = make_fail(context, plan.programs, failing, act)
                with pytest.raises(PartFailed, match="this part failed"):
                    session.run(None, feed)
                last = next(at for at, p in enumerate(plan.programs) if plan.outputs[0] in p.outputs)
                assert last == failing or last not in begun
            np.testing.assert_array_equal(session.run(None, feed)[0], exact)
        assert held(gpus) == before
    assert_usable(gpus)


def test_a_failure_meets_one_run_of_many(gpus: list[str]) -> None:
    """Threads whose indices are right are not told of another's that are wrong."""
    assigned, middle = placed(gpus, (0, 1, 0))
    feeds = [parts_feed(1), parts_feed(7)]
    wanted = reference(three_parts(), feeds[0])[0]
    options: Mapping[str, Any] = {"devices": gpus, "placement": assigned, "precision": "highest"}
    with vkml.InferenceSession(three_parts(), **options) as session:

        def body(thread: int) -> None:
            for _ in range(50):
                if thread % 2:
                    with pytest.raises(vkml.IndexOutOfRange, match=middle):
                        session.run(None, feeds[1])
                else:
                    np.testing.assert_array_equal(session.run(None, feeds[0])[0], wanted)

        in_threads(body)


def assert_usable(gpus: list[str]) -> None:
    """Each device alone, in a session of its own."""
    for device in (*gpus, "cpu"):
        with vkml.InferenceSession(three_parts(), devices=device, precision="highest") as session:
            assert is_right(session), device
