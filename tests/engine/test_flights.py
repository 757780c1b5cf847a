"""Several runs of one session at a time, and pieces of one run that overlap."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.onnx
from tests.control_models import model
from tests.patience import patience
from vkml.engine import flight as flight_room
from vkml.engine.cpu_bound import CpuBound
from vkml.engine.device_array import DeviceArray
from vkml.engine.flight import RESIDENT_BYTES, Flight
from vkml.engine.plan import Plan
from vkml.engine.programs import VulkanBound
from vkml.engine.recorded import BINDINGS_KEPT
from vkml.engine.sketch import Sketch
from vkml.errors import Fail, OutOfMemory
from vkml.ir import TensorType
from vkml.ir.dtypes import FLOAT32

Array = np.ndarray[Any, Any]
WIDTH = 64


def tanh_of_product(rows: Any = "n", dtype: Any = np.float32) -> bytes:
    sketch = Sketch("product", 17)
    weight = sketch.constant(np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8)
    x = sketch.input("x", (rows, WIDTH))
    return vkml.onnx.save_graph(sketch.finish(sketch.node("Tanh", sketch.node("MatMul", x, weight))))


def options(threads: int = 1) -> vkml.SessionOptions:
    made = vkml.SessionOptions()
    made.intra_op_num_threads = threads
    return made


def numbers(seed: int, rows: int = 5) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)


def only_plan(session: vkml.InferenceSession) -> Plan:
    [plan] = session._runner.plans.kept.values()
    return plan


def block_first(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The first run stops in the middle of its programs: events that say so, and that let it go on."""
    reached, goes_on = threading.Event(), threading.Event()
    run_only = Flight.run_only

    def stopping(self: Flight, feeds: Any, bound: Any) -> Any:
        if not reached.is_set():
            reached.set()
            assert goes_on.wait(timeout=patience(60))
        return run_only(self, feeds, bound)

    monkeypatch.setattr(Flight, "run_only", stopping)
    return reached, goes_on


def in_thread(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(act()))
    thread.start()
    return thread, made


def through_plan(session: vkml.InferenceSession, x: Array) -> Array:
    """A run by the long way, which `block_first` stops."""
    [name] = [output.name for output in session.get_outputs()]
    [found] = session.run([name], {"x": x})
    return found


def test_a_run_does_not_wait_for_another(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with vkml.InferenceSession(tanh_of_product(), options(), devices=device_name) as session:
        wanted = [through_plan(session, numbers(seed)) for seed in range(3)]
        monkeypatch.setattr(only_plan(session), "_most_flights", 2)  # whatever the processors
        reached, goes_on = block_first(monkeypatch)
        thread, first = in_thread(lambda: through_plan(session, numbers(0)))
        assert reached.wait(timeout=patience(60))
        for seed in (1, 2):
            np.testing.assert_array_equal(through_plan(session, numbers(seed)), wanted[seed])
        assert not first
        assert len(only_plan(session)._flights) == 2
        goes_on.set()
        thread.join()
        np.testing.assert_array_equal(first[0], wanted[0])


def test_a_shorter_way_is_made_when_no_run_is_under_way(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make one may record, into commands and memory that a run has."""
    x = numbers(0)
    with vkml.InferenceSession(tanh_of_product(len(x)), options(), devices=vulkan_device_name) as session:
        wanted = through_plan(session, x)
        plan = only_plan(session)
        outputs = [output.name for output in session.get_outputs()]
        reached, goes_on = block_first(monkeypatch)
        running, made = in_thread(lambda: through_plan(session, x))
        assert reached.wait(timeout=patience(60))
        makers = [
            in_thread(lambda: plan.prepared([x], outputs, {})),
            in_thread(lambda: plan.array_call([x])),
        ]
        for thread, _ in makers:
            thread.join(timeout=0.2)
            assert thread.is_alive()
        goes_on.set()
        running.join()
        np.testing.assert_array_equal(made[0], wanted)
        for thread, found in makers:
            thread.join()
            [call] = found
            np.testing.assert_array_equal(call([x])[0], wanted)
    assert plan.prepared([x], outputs, {}) is None and plan.array_call([x]) is None, "it is closed"


def test_no_shorter_way_is_made_in_the_midst_of_a_run(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal handler: it would wait for the run that it interrupts."""
    x = numbers(0)
    with vkml.InferenceSession(tanh_of_product(len(x)), options(), devices=vulkan_device_name) as session:
        through_plan(session, x)
        plan = only_plan(session)
        outputs = [output.name for output in session.get_outputs()]
        run_only, found = Flight.run_only, []

        def interrupted(self: Flight, feeds: Any, bound: Any) -> Any:
            found.extend([plan.prepared([x], outputs, {}), plan.array_call([x])])
            with pytest.raises(Fail, match="runs in this very thread"):
                plan.bind([x.shape])
            return run_only(self, feeds, bound)

        monkeypatch.setattr(Flight, "run_only", interrupted)
        through_plan(session, x)
        assert found == [None, None]


def test_a_run_goes_on_beside_many_places_of_bound_values(vulkan_device_name: str) -> None:
    """More than commands are kept for: those of the values in the session's own memory are."""
    session = vkml.InferenceSession(tanh_of_product(5), options(), devices=vulkan_device_name)
    wanted = [session.run(None, {"x": numbers(seed)})[0] for seed in range(3)]
    kept = []
    for seed in range(BINDINGS_KEPT + 2):
        value = vkml.OrtValue.ortvalue_from_numpy(numbers(seed), "vulkan", int(vulkan_device_name[-1]))
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("output", "vulkan", int(vulkan_device_name[-1]))
        session.run_with_iobinding(binding)
        kept.append((value, binding))
        for again in range(3):
            [found] = session.run(None, {"x": numbers(again)})
            np.testing.assert_array_equal(found, wanted[again])
    session.close()


def test_a_report_is_not_made_in_the_midst_of_another(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler runs the session while a report binds it."""
    x, bind, refused = numbers(0), VulkanBound.bind, []
    with vkml.InferenceSession(tanh_of_product(len(x)), options(), devices=vulkan_device_name) as session:
        wanted = through_plan(session, x)

        def interrupted(self: VulkanBound, *arguments: Any) -> Any:
            monkeypatch.setattr(VulkanBound, "bind", bind)
            with pytest.raises(Fail, match="runs in this very thread") as refusal:
                through_plan(session, x)
            refused.append(refusal)
            return bind(self, *arguments)

        monkeypatch.setattr(VulkanBound, "bind", interrupted)
        only_plan(session).bind([x.shape])
        assert refused
        np.testing.assert_array_equal(through_plan(session, x), wanted)


def test_without_memory_for_another_it_waits(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with vkml.InferenceSession(tanh_of_product(), options(), devices=device_name) as session:
        wanted = [through_plan(session, numbers(seed)) for seed in range(2)]
        plan = only_plan(session)
        monkeypatch.setattr(plan, "_most_flights", 4)

        def refused(self: Flight) -> Flight:
            raise OutOfMemory("none left")

        monkeypatch.setattr(Flight, "another", refused)
        reached, goes_on = block_first(monkeypatch)
        first, made = in_thread(lambda: through_plan(session, numbers(0)))
        assert reached.wait(timeout=patience(60))
        second, also = in_thread(lambda: through_plan(session, numbers(1)))
        second.join(timeout=0.2)
        assert second.is_alive() and not also
        goes_on.set()
        first.join()
        second.join()
        np.testing.assert_array_equal(made[0], wanted[0])
        np.testing.assert_array_equal(also[0], wanted[1])
        assert len(plan._flights) == 1


@pytest.mark.parametrize("threads", [1, 0])
def test_many_threads_get_their_own_results(device_name: str, threads: int) -> None:
    """Eight threads, inputs of two shapes; each result is that of its input, bit for bit."""
    with vkml.InferenceSession(tanh_of_product(), options(threads), devices=device_name) as session:
        feeds = [{"x": numbers(seed, rows)} for seed, rows in enumerate((5, 5, 9, 5, 9, 9, 5, 9))]
        wanted = [session.run(None, feed)[0] for feed in feeds]
        wanted = [session.run(None, feed)[0] for feed in feeds]  # by the plans that are there now
        is_started = threading.Barrier(len(feeds))

        def act(at: int) -> int:
            is_started.wait()
            return sum(np.array_equal(session.run(None, feeds[at])[0], wanted[at]) for _ in range(100))

        with ThreadPoolExecutor(len(feeds)) as pool:
            assert list(pool.map(act, range(len(feeds)))) == [100] * len(feeds)
        for plan in session._runner.plans.kept.values():
            assert len(plan._flights) <= max(program.most_at_once for program in plan.programs)


def test_a_session_that_is_closed_waits_for_all_runs(device_name: str, monkeypatch: Any) -> None:
    session = vkml.InferenceSession(tanh_of_product(), options(), devices=device_name)
    wanted = through_plan(session, numbers(0))
    plan = only_plan(session)
    monkeypatch.setattr(plan, "_most_flights", 2)
    reached, goes_on = block_first(monkeypatch)
    run, made = in_thread(lambda: through_plan(session, numbers(0)))
    assert reached.wait(timeout=patience(60))
    through_plan(session, numbers(1))
    closing, _ = in_thread(session.close)
    closing.join(timeout=0.2)
    assert closing.is_alive()
    goes_on.set()
    run.join()
    closing.join()
    np.testing.assert_array_equal(made[0], wanted)
    with pytest.raises(Fail):
        session.run(None, {"x": numbers(0)})
    assert not any(flight.programs for flight in plan._flights)


def test_a_run_inside_of_a_run_is_refused(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with vkml.InferenceSession(tanh_of_product(), options(), devices=device_name) as session:
        wanted = through_plan(session, numbers(0))
        run_only = Flight.run_only
        said: list[str] = []

        def nested(self: Flight, feeds: Any, bound: Any) -> Any:
            with pytest.raises(Fail) as caught:
                through_plan(session, numbers(1))
            said.append(str(caught.value))
            return run_only(self, feeds, bound)

        monkeypatch.setattr(only_plan(session), "_most_flights", 4)
        monkeypatch.setattr(Flight, "run_only", nested)
        np.testing.assert_array_equal(through_plan(session, numbers(0)), wanted)
        assert len(said) == 1 and "in this very thread" in said[0]


def branches(width: int = 4) -> tuple[bytes, dict[str, str]]:
    """tanh(x) and |relu(x)| from the CPU, added up on the GPU with the relu(x) it made; and placement."""
    sketch = Sketch("branches", 17)
    x = sketch.input("x", (width, width))
    relu = sketch.node("Relu", x, name="relu")
    tanh = sketch.node("Tanh", x, name="tanh")
    back = sketch.node("Abs", relu, name="abs")
    total = sketch.node("Add", sketch.node("Add", tanh, back, name="add"), relu, name="sum")
    return vkml.onnx.save_graph(sketch.finish(total)), {"tanh": "cpu", "abs": "cpu"}


def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to programs, in its order."""
    events: list[str] = []

    def noting(kind: type, name: str, said: str) -> None:
        method = getattr(kind, name)

        def act(self: Any, *arguments: Any, **more: Any) -> Any:
            events.append(said)
            return method(self, *arguments, **more)

        monkeypatch.setattr(kind, name, act)

    noting(VulkanBound, "start", "start")
    noting(VulkanBound, "finish", "finish")
    noting(CpuBound, "run", "cpu")
    return events


def test_the_cpu_works_while_a_gpu_does(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, placement = branches()
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    with vkml.InferenceSession(data, devices=[vulkan_device_name, "cpu"], placement=placement) as session:
        session.run(None, {"x": x})
        events = traced(monkeypatch)
        [found] = session.run(None, {"x": x})
    np.testing.assert_allclose(found, np.tanh(x) + 2 * np.maximum(x, 0), rtol=1e-6, atol=1e-7)
    assert events == ["start", "cpu", "finish", "cpu", "start", "finish"]


@pytest.mark.parametrize("width", [4, 256])
def test_what_a_gpu_reads_again_stays_there(
    vulkan_device_name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, placement = branches(width)
    x = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)
    given: list[Any] = []
    start = VulkanBound.start

    def noting(self: VulkanBound, feeds: Any, *more: Any) -> Any:
        given.append([type(value) for value in feeds])
        return start(self, feeds, *more)

    monkeypatch.setattr(VulkanBound, "start", noting)
    with vkml.InferenceSession(data, devices=[vulkan_device_name, "cpu"], placement=placement) as session:
        for scale in (1, 2):
            [found] = session.run(None, {"x": x * scale})
            wanted = np.tanh(x * scale) + 2 * np.maximum(x * scale, 0)
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    assert (DeviceArray in given[1]) == (x.nbytes >= RESIDENT_BYTES) == (width == 256)
    assert given[:2] == given[2:]


def test_a_value_stays_on_its_device_after_one_was_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of results that the caller has got is his; the next run has other memory for them there."""
    monkeypatch.setattr(flight_room, "DeviceArray", lambda on, dtype, shape: SimpleNamespace(shape=shape))
    flight = Flight([], {"large": TensorType(FLOAT32, (4,)), "small": TensorType(FLOAT32, (3,))})
    program: Any = SimpleNamespace(on=None)
    first = flight._hold(program, "large", {}, 16)
    assert first is not None and flight._hold(program, "large", {}, 16) is first
    flight._held.pop("large")  # as a run does with what is wanted
    second = flight._hold(program, "large", {}, 16)
    assert second is not None and second is not first
    assert flight._hold(program, "small", {}, 16) is flight._hold(program, "small", {}, 16) is None


def test_what_stays_on_a_gpu_is_fetched_before_the_next_run_may_write_there(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that a later piece reads on the device, and that is an output, too."""
    sketch = Sketch("both", 17)
    x = sketch.input("x", (256, 256))
    relu = sketch.node("Relu", x, name="relu")
    total = sketch.node("Add", sketch.node("Abs", relu, name="abs"), relu, name="sum")
    data = vkml.onnx.save_graph(sketch.finish(total, relu))
    array = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    taken: list[bool] = []
    devices = [vulkan_device_name, "cpu"]
    with vkml.InferenceSession(data, devices=devices, placement={"abs": "cpu"}) as session:
        session.run(None, {"x": array})
        [flight] = only_plan(session)._flights
        numpy = DeviceArray.numpy

        def noting(self: DeviceArray) -> Array:
            taken.append(flight.is_taken)
            return numpy(self)

        monkeypatch.setattr(DeviceArray, "numpy", noting)
        found = session.run(None, {"x": array})
    np.testing.assert_array_equal(found[1], np.maximum(array, 0))
    np.testing.assert_array_equal(found[0], 2 * np.maximum(array, 0))
    assert taken and all(taken)


def test_a_failure_leaves_what_is_submitted_behind(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU's piece fails while the GPU is at work; that is waited for, and the next run is right."""
    data, placement = branches()
    x = np.ones((4, 4), np.float32)
    with vkml.InferenceSession(data, devices=[vulkan_device_name, "cpu"], placement=placement) as session:
        [wanted] = session.run(None, {"x": x})
        settled: list[bool] = []
        settle = VulkanBound.settle
        run = CpuBound.run

        def fails(self: CpuBound, *arguments: Any) -> Any:
            raise Fail("injected")

        def noting(self: VulkanBound) -> None:
            if self._begun is not None:
                settle(self)
                settled.append(True)

        monkeypatch.setattr(VulkanBound, "settle", noting)
        monkeypatch.setattr(CpuBound, "run", fails)
        with pytest.raises(Fail, match="injected"):
            session.run(None, {"x": x})
        assert settled == [True]
        monkeypatch.setattr(CpuBound, "run", run)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)


def rows_that_are_positive(rows: int = 300) -> bytes:
    """relu(x), and the rows of it whose first element is positive, doubled: of as many rows as there are."""
    sketch = Sketch("rows", 17)
    x = sketch.input("x", (rows, WIDTH))
    relu = sketch.node("Relu", x)
    first = sketch.node("Gather", relu, sketch.constant(np.array(0)), axis=1)
    at = sketch.node("Squeeze", sketch.node("NonZero", first), sketch.constant(np.array([0])))
    chosen = sketch.node("Gather", relu, at, axis=0)
    return vkml.onnx.save_graph(sketch.finish(sketch.node("Add", chosen, chosen)))


@pytest.mark.parametrize("rows", [10, 300])
def test_values_stay_on_a_device_from_segment_to_segment(
    vulkan_device_name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[type]] = []
    for kind in ("start", "run"):
        method = getattr(VulkanBound, kind)

        def noting(self: VulkanBound, feeds: Any, *more: Any, method: Any = method) -> Any:
            given.append([type(value) for value in feeds])
            return method(self, feeds, *more)

        monkeypatch.setattr(VulkanBound, kind, noting)
    with vkml.InferenceSession(rows_that_are_positive(rows), devices=vulkan_device_name) as session:
        for seed in range(4):
            x = numbers(seed, rows)
            given.clear()
            [found] = session.run(None, {"x": x})
            np.testing.assert_array_equal(found, 2 * np.maximum(x, 0)[x[:, 0] > 0])
    is_large = rows * WIDTH * 4 >= RESIDENT_BYTES
    assert any(DeviceArray in types for types in given) == is_large == (rows == 300)


COUNTING = """
    counting (int64 n, float[5] x) => (float[5] total)
    {
        yes = Constant <value = bool {1}> ()
        total = Loop (n, yes, x) <body =
            body (int64 i, bool goes_on, float[5] before) => (bool same, float[5] after)
            {
                same = Identity (goes_on)
                one = Constant <value = float {1}> ()
                after = Add (before, one)
            }>
    }"""


def test_a_run_is_ended_in_its_middle(device_name: str) -> None:
    """A loop without an end to speak of, told to end by another thread; the session runs on."""
    run_options = vkml.RunOptions()
    with vkml.InferenceSession(model(COUNTING), devices=device_name) as session:
        x = np.zeros(5, np.float32)
        [found] = session.run(None, {"n": np.array(700), "x": x})
        np.testing.assert_array_equal(found, x + 700)
        failures: list[Exception] = []

        def act() -> None:
            try:
                session.run(None, {"n": np.array(1 << 62), "x": x}, run_options)
            except Fail as error:
                failures.append(error)

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        thread.join(timeout=0.3)
        assert thread.is_alive()
        run_options.terminate = True
        thread.join(timeout=patience(120))
        assert len(failures) == 1 and "RunOptions.terminate" in str(failures[0])
        [found] = session.run(None, {"n": np.array(700), "x": x})
        np.testing.assert_array_equal(found, x + 700)
