"""Measured selection: what is picked by which times, kept where, and gone by when."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from tests.kernels.test_matrix_units import GPU
from tests.kernels.test_tiles import lavapipe
from vkml.engine import ahead, devices, tuning, tuning_file
from vkml.engine.sketch import Sketch
from vkml.engine.trial_timing import Bench, TrialProgram, operands_of
from vkml.engine.tuning_file import Measured, Setup, read_file, setup_of, write_file
from vkml.engine.tuning_setting import tunings_of
from vkml.errors import CompileError, InvalidArgument, NoSuchFile, OutOfMemory
from vkml.ir import TensorType, dtypes
from vkml.kernels.candidates import MOST_CANDIDATES, Candidate, Picks, picked, worth_measuring
from vkml.kernels.views import Buffer, BufferKind, contiguous
from vkml.lowering.builder import prepared_forms
from vkml.lowering.trials import Trial, Trials
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.onnx import save_graph
from vkml.vulkan import find_device

__all__ = ["lavapipe"]

Floats = np.ndarray[Any, np.dtype[np.float32]]
random = np.random.default_rng(0)
FIRST, SECOND = (random.standard_normal((256, 256)).astype(np.float32) / 16 for _ in range(2))
X = random.standard_normal((1, 256)).astype(np.float32)
RESULT = np.maximum(X @ FIRST, 0) @ SECOND


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing has been measured before, and there is time for all of it, however busy the machine is."""
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "clock", lambda: 0.0)


def products(*weights: Floats) -> bytes:
    """Products of one row, for which there are several numbers of lanes on all devices."""
    sketch = Sketch("products")
    value = sketch.input("x", (1, weights[0].shape[0]))
    for matrix in weights[:-1]:
        value = sketch.node("Relu", sketch.node("MatMul", value, sketch.constant(matrix)))
    made = save_graph(sketch.finish(sketch.node("MatMul", value, sketch.constant(weights[-1]))))
    assert made is not None
    return made


@pytest.fixture(scope="module")
def model() -> bytes:
    """Two products that are one question."""
    return products(FIRST, SECOND)


def session_of(model: bytes, device: str, **settings: Any) -> vkml.InferenceSession:
    options = vkml.SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    return vkml.InferenceSession(model, options, devices=device)


def variants(session: vkml.InferenceSession) -> list[str]:
    return [step.variant for step in session.report().steps]


def found_in(session: vkml.InferenceSession) -> tuning_file.Found:
    [made] = tunings_of(session)
    return made.asked_and_found()


class Clock:
    """A timing source that likes a candidate; it runs none."""

    def __init__(self, likes: Callable[[str], bool], gain: float = 0.5) -> None:
        self.likes, self.gain = likes, gain
        self.calls: list[str] = []

    def __call__(self, program: TrialProgram) -> float:
        self.calls.append(program.label)
        return 1e-3 * (1 - self.gain) if self.likes(program.label) else 1e-3


def poison(monkeypatch: pytest.MonkeyPatch, likes: Callable[[str], bool], gain: float = 0.5) -> Clock:
    clock = Clock(likes, gain)
    monkeypatch.setattr(tuning, "timed", clock)
    return clock


@pytest.fixture
def trials(
    vulkan_device_name: str, model: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[Trial]:
    """The candidates of the model's products, the rule's first. The cache is empty afterwards."""
    seen: dict[str, Trial] = {}
    prepare = Bench.prepare

    def prepare_noted(bench: Bench, trials: Sequence[Trial]) -> None:
        seen.update({trial.label: trial for trial in trials})
        prepare(bench, trials)

    poison(monkeypatch, lambda label: False)
    with monkeypatch.context() as patch:
        patch.setattr(Bench, "prepare", prepare_noted)
        with session_of(model, vulkan_device_name, tune="full") as session:
            [found] = found_in(session).values()
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path / "cache of the test"))
    assert found.pick == next(iter(found.microseconds)) and len(found.microseconds) > 1
    return [seen[label] for label in found.microseconds]


@pytest.fixture
def labels(trials: list[Trial]) -> list[str]:
    """Of the candidates."""
    return [trial.label for trial in trials]


@pytest.fixture
def last_kernels(trials: list[Trial]) -> set[Hashable]:
    """Names of the kernels that the last candidate has and no other."""
    others = {launch.kernel.name for trial in trials[:-1] for launch in trial.launches}
    found = {launch.kernel.name for launch in trials[-1].launches} - others
    assert found
    return found


def picks(session: vkml.InferenceSession) -> list[str]:
    return [each.pick for each in found_in(session).values()]


# -- picks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_a_tuned_session_computes_the_same(vulkan_device_name: str, model: bytes, effort: str) -> None:
    """By the device's own clock."""
    settings = {"guard_bytes": 256, "run_time_limit": math.inf}
    with session_of(model, vulkan_device_name, tune=effort, **settings) as session:
        [made] = session.run(None, {"x": X})
        np.testing.assert_allclose(made, RESULT, atol=1e-4)
        found = found_in(session)
    assert len(found) == 1
    for each in found.values():
        assert each.effort == effort and each.pick in each.microseconds
        assert len(each.microseconds) > 1 and min(each.microseconds.values()) > 0


@pytest.mark.parametrize("number", [0, 1])
def test_the_candidate_that_the_clock_likes_is_picked(
    vulkan_device_name: str, model: bytes, labels: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with session_of(model, vulkan_device_name) as session:
        by_rules = variants(session)
    poison(monkeypatch, labels[number].__eq__)
    with session_of(model, vulkan_device_name, tune="quick") as session:
        assert picks(session) == [labels[number]]
        assert (variants(session) == by_rules) == (number == 0)
        np.testing.assert_allclose(session.run(None, {"x": X})[0], RESULT, atol=1e-4)


def test_rules_are_overruled_for_a_gain_alone(
    vulkan_device_name: str, model: bytes, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for gain, picked_number in ((tuning.LEAST_GAIN / 2, 0), (2 * tuning.LEAST_GAIN, 1)):
        poison(monkeypatch, labels[1].__eq__, gain)
        monkeypatch.setattr(tuning_file, "cached", lambda info: {})
        monkeypatch.setattr(tuning, "cached", lambda info: {})
        with session_of(model, vulkan_device_name, tune="full") as session:
            assert picks(session) == [labels[picked_number]]


def test_every_candidate_of_tiles_and_windows_is_right(
    lavapipe: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the tiles and K ranges of a device of many processors, each liked in turn."""
    real = devices.target_of
    monkeypatch.setattr(devices, "target_of", lambda *given: replace(real(*given), processors=8))
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((20, 200), (200, 40)))
    image = random.standard_normal((1, 32, 9, 9)).astype(np.float32)
    weight = random.standard_normal((24, 32, 3, 3)).astype(np.float32) / 16
    sketch = Sketch("both")
    sketch.output(sketch.node("MatMul", sketch.input("a", a.shape), sketch.constant(b)), "product")
    pads = {"pads": (1, 1, 1, 1)}
    windows = sketch.node("Conv", sketch.input("image", image.shape), sketch.constant(weight), **pads)
    sketch.output(sketch.node("Relu", windows), "pixels")
    model = save_graph(sketch.finish())
    assert model is not None
    feed = {"a": a, "image": image}
    expected = vkml.InferenceSession(model, devices="cpu").run(None, feed)
    # A GPU's units round operands to TF32's ten bits, at "high".
    nearby = 2e-4 if find_device(lavapipe, True).is_software else 2e-2
    clock = poison(monkeypatch, lambda label: False)
    session_of(model, lavapipe, tune="full").close()
    labels = list(dict.fromkeys(clock.calls))
    assert len(labels) >= 4
    # A GPU's own processors count, and units leave little to share out.
    assert not find_device(lavapipe, True).is_software or any("K ranges" in label for label in labels)
    for number, liked in enumerate(labels):
        monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path / str(number)))
        poison(monkeypatch, liked.__eq__)
        with session_of(model, lavapipe, tune="full") as session:
            assert liked in variants(session)
            for made, wanted in zip(session.run(None, feed), expected, strict=True):
                np.testing.assert_allclose(made, wanted, atol=nearby)


# -- what stays ----------------------------------------------------------------------------------------------


def test_what_was_found_stays(
    vulkan_device_name: str, model: bytes, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, other = labels[:2]
    poison(monkeypatch, other.__eq__)
    with session_of(model, vulkan_device_name, tune="quick") as session:
        first, bits = variants(session), session.run(None, {"x": X})[0]
    clock = poison(monkeypatch, rule.__eq__)
    with session_of(model, vulkan_device_name, tune="quick") as session:
        assert picks(session) == [other] and variants(session) == first and clock.calls == []
        assert np.array_equal(session.run(None, {"x": X})[0], bits)
    with session_of(model, vulkan_device_name, tune="full") as session:  # more effort may change it
        assert picks(session) == [rule] and variants(session) != first and clock.calls
    clock = poison(monkeypatch, other.__eq__)
    for effort in ("quick", "full"):
        with session_of(model, vulkan_device_name, tune=effort) as session:
            assert picks(session) == [rule] and clock.calls == []


def test_rules_alone_decide_where_nobody_asks(
    vulkan_device_name: str, model: bytes, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another session has found changes no bit of a session without `tune`."""
    with session_of(model, vulkan_device_name) as session:
        by_rules = variants(session)
    poison(monkeypatch, labels[1].__eq__)
    with session_of(model, vulkan_device_name, tune="quick") as session:
        assert variants(session) != by_rules
    with session_of(model, vulkan_device_name) as session:
        assert variants(session) == by_rules and tunings_of(session) == []


def test_other_processes_findings_win(
    vulkan_device_name: str, model: bytes, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were written while this one was measuring."""
    info = find_device(vulkan_device_name, True)
    poison(monkeypatch, labels[1].__eq__)
    with session_of(model, vulkan_device_name, tune="quick") as session:
        theirs = found_in(session)
    ours = {question: Measured("another", "quick") for question in theirs}
    assert tuning_file.keep(info, ours) == theirs
    better = {question: Measured("another", "full") for question in theirs}
    assert tuning_file.keep(info, better) == better
    assert tuning_file.cached(info) == better


# -- limits --------------------------------------------------------------------------------------------------


def test_the_time_limit_holds(
    vulkan_device_name: str,
    model: bytes,
    labels: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def look() -> float:
        """A clock on which a second passes whenever somebody looks."""
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(tuning, "clock", look)
    clock = poison(monkeypatch, labels[1].__eq__)
    with session_of(model, vulkan_device_name, tune="quick") as session:
        [found] = found_in(session).values()
    assert clock.calls == [] and found == Measured(labels[0], "rule")
    monkeypatch.setattr(tuning, "clock", lambda: 0.0)
    with session_of(model, vulkan_device_name, tune="quick") as session:  # that, too, stays
        assert picks(session) == labels[:1] and clock.calls == []
    with session_of(model, vulkan_device_name, tune="full") as session:
        assert picks(session) == [labels[1]] and clock.calls


def test_time_that_is_over_in_the_middle_leaves_the_rest_to_rules(
    vulkan_device_name: str, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = products(FIRST, np.ascontiguousarray(SECOND[:, :96]))  # two questions
    now = [0.0]
    # For the first one, a run of each candidate to warm up, one to measure and one more.
    step = tuning.EFFORTS["quick"].seconds / (3 * len(labels)) + 1e-6
    monkeypatch.setattr(tuning, "clock", lambda: now[0])

    def timed(program: TrialProgram) -> float:
        now[0] += step
        return 1e-3

    monkeypatch.setattr(tuning, "timed", timed)
    with session_of(model, vulkan_device_name, tune="quick") as session:
        assert [each.effort for each in found_in(session).values()] == ["quick", "rule"]
    assert now[0] <= tuning.EFFORTS["quick"].seconds + step


@pytest.fixture
def slow_driver(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float, float], list[float]]:
    """Has a driver that compiles one kernel at a time take so long, by the clock and in fact, in seconds;
    returns when it began with each."""
    vkml.close_devices()  # with the pipelines that it keeps
    now, begun = [0.0], list[float]()
    monkeypatch.setattr(tuning, "clock", lambda: now[0])
    monkeypatch.setattr(tuning, "usable_cores", lambda: 2)
    make, measured = ahead.make_pipeline, tuning.Tuning._measured

    def set_up(by_the_clock: float, in_fact: float) -> list[float]:
        def make_pipeline(*arguments: Any) -> Any:
            begun.append(now[0])
            time.sleep(in_fact)
            now[0] += by_the_clock
            return make(*arguments)

        def until_measured(*arguments: Any) -> Any:
            try:
                return measured(*arguments)
            finally:
                monkeypatch.setattr(ahead, "make_pipeline", make)

        monkeypatch.setattr(ahead, "make_pipeline", make_pipeline)
        monkeypatch.setattr(tuning.Tuning, "_measured", until_measured)
        return begun

    return set_up


def test_compiling_ends_when_the_time_is_over(
    vulkan_device_name: str, model: bytes, slow_driver: Callable[[float, float], list[float]]
) -> None:
    begun = slow_driver(1.5, 0)
    with session_of(model, vulkan_device_name, tune="quick") as session:
        assert {each.effort for each in found_in(session).values()} == {"rule"}
        np.testing.assert_allclose(session.run(None, {"x": X})[0], RESULT, atol=1e-4)
    assert begun == [0.0, 1.5]


def test_what_would_not_end_in_time_does_not_go_to_the_driver(
    vulkan_device_name: str, model: bytes, slow_driver: Callable[[float, float], list[float]]
) -> None:
    """By what the driver has taken for others."""
    begun = slow_driver(1.9, 0.3)
    with session_of(model, vulkan_device_name, tune="quick") as session:
        assert {each.effort for each in found_in(session).values()} == {"rule"}
    assert begun == [0.0], "0.1 s are left, and the modules are alike"


def test_a_candidate_that_the_driver_refuses_is_left_out(
    vulkan_device_name: str,
    model: bytes,
    labels: list[str],
    last_kernels: set[Hashable],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vkml.close_devices()
    make, refused = ahead.make_pipeline, list[Any]()

    def make_pipeline(device: Any, kernel: Any, module: Any, taken: Any) -> Any:
        if kernel.name in last_kernels:
            refused.append(kernel)
            raise CompileError("not this one")
        return make(device, kernel, module, taken)

    monkeypatch.setattr(ahead, "make_pipeline", make_pipeline)
    poison(monkeypatch, labels[-1].__eq__)
    with session_of(model, vulkan_device_name, tune="full") as session:
        [found] = found_in(session).values()
        np.testing.assert_allclose(session.run(None, {"x": X})[0], RESULT, atol=1e-4)
    assert refused and found.pick == labels[0]
    assert list(found.microseconds) == (labels[:-1] if len(labels) > 2 else [])


def test_hopeless_candidates_are_measured_no_further(
    vulkan_device_name: str, model: bytes, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = poison(monkeypatch, labels[1].__eq__, gain=0.9)
    session_of(model, vulkan_device_name, tune="full").close()
    # Once to warm up and once in turns.
    assert all(clock.calls.count(label) == 2 for label in labels)


def test_at_the_roofline_nothing_is_sought(
    vulkan_device_name: str, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "least_seconds", lambda self, trials: 1.0)
    clock = poison(monkeypatch, lambda label: False)
    session_of(model, vulkan_device_name, tune="full").close()
    assert all(clock.calls.count(label) == 2 for label in clock.calls)
    clock.calls.clear()
    monkeypatch.setattr(Bench, "least_seconds", lambda self, trials: 0.0)
    monkeypatch.setattr(tuning, "cached", lambda info: {})
    session_of(model, vulkan_device_name, tune="full").close()
    samples = tuning.EFFORTS["full"].samples
    assert all(clock.calls.count(label) == 1 + samples for label in clock.calls)


@pytest.mark.parametrize("is_at_roofline", [True, False])
def test_what_the_rule_has_at_the_roofline_is_compared_with_nothing(
    vulkan_device_name: str,
    model: bytes,
    labels: list[str],
    last_kernels: set[Hashable],
    monkeypatch: pytest.MonkeyPatch,
    is_at_roofline: bool,
) -> None:
    """On a GPU, whose caches are emptied, by which its bandwidth is known."""
    vkml.close_devices()
    compiled: list[str] = []
    make, begin = ahead.make_pipeline, Bench.__init__

    def make_pipeline(device: Any, kernel: Any, *rest: Any) -> Any:
        compiled.append(kernel.name)
        return make(device, kernel, *rest)

    def begin_cold(bench: Bench, *arguments: Any, **more: Any) -> None:
        begin(bench, *arguments, **{**more, "is_cold": True})

    monkeypatch.setattr(ahead, "make_pipeline", make_pipeline)
    monkeypatch.setattr(Bench, "__init__", begin_cold)
    monkeypatch.setattr(Bench, "least_seconds", lambda self, trials: 1e-3 if is_at_roofline else 0.0)
    clock = poison(monkeypatch, labels[-1].__eq__)
    with session_of(model, vulkan_device_name, tune="full") as session:
        [found] = found_in(session).values()
        np.testing.assert_allclose(session.run(None, {"x": X})[0], RESULT, atol=1e-4)
    is_compiled = not last_kernels.isdisjoint(compiled)
    if is_at_roofline:
        assert set(clock.calls) == {labels[0]} and found.pick == labels[0] and found.effort == "full"
        assert not is_compiled
    else:
        assert set(clock.calls) == set(labels) and found.pick == labels[-1] and is_compiled


@pytest.mark.parametrize("where", ["__init__", "prepare"])
def test_too_little_memory_leaves_it_to_rules(
    vulkan_device_name: str, model: bytes, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise OutOfMemory("none left")

    monkeypatch.setattr(Bench, where, refuse)
    with session_of(model, vulkan_device_name, tune="full", run_time_limit=math.inf) as session:
        assert [each.effort for each in found_in(session).values()] == ["rule"]
        np.testing.assert_allclose(session.run(None, {"x": X})[0], RESULT, atol=1e-4)


def test_layouts_of_weights_for_candidates_go(
    vulkan_device_name: str, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan has what it makes itself, and no more."""
    with (
        session_of(model, vulkan_device_name) as plain,
        session_of(model, vulkan_device_name, tune="full") as session,
    ):
        for one, other in zip(constants_of(plain), constants_of(session), strict=True):
            assert set(prepared_forms(one)) == set(prepared_forms(other))


def constants_of(session: vkml.InferenceSession) -> list[Any]:
    [plan] = session._runner.plans.alive
    return list(plan.graph.constants.values())


# -- files ---------------------------------------------------------------------------------------------------


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    found = {
        Setup("A", "a", "1", "k"): {
            "q": Measured("p", "full", {"p": 1.5, "r": 2.25}),
            "r": Measured("x", "rule"),
        },
        Setup("B", "b", "2", "k"): {},
    }
    write_file(tmp_path / "tuning.json", found)
    read = read_file(tmp_path / "tuning.json")
    assert read == found
    # The rule's choice is the first.
    assert list(read[Setup("A", "a", "1", "k")]["q"].microseconds) == ["p", "r"]


def test_a_session_goes_by_a_file(
    vulkan_device_name: str,
    model: bytes,
    labels: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    info, path = find_device(vulkan_device_name, True), tmp_path / "tuning.json"
    poison(monkeypatch, labels[1].__eq__)
    with session_of(model, vulkan_device_name, tune="full") as session:
        measured, found = variants(session), found_in(session)
    write_file(path, {setup_of(info): found})
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path / "another"))
    clock = poison(monkeypatch, labels[0].__eq__)
    for settings in ({}, {"tune": "quick"}, {"tune": "full"}):
        with session_of(model, vulkan_device_name, tuning_file=path, **settings) as session:
            assert variants(session) == measured and clock.calls == []
            np.testing.assert_allclose(session.run(None, {"x": X})[0], RESULT, atol=1e-4)
    with session_of(model, vulkan_device_name) as session:
        assert variants(session) != measured


@pytest.mark.parametrize("field", ["vendor", "device", "driver", "kernels"])
def test_a_file_for_another_setup_is_ignored_and_said(
    vulkan_device_name: str,
    model: bytes,
    labels: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    field: str,
) -> None:
    path = tmp_path / "tuning.json"
    setup = setup_of(find_device(vulkan_device_name, True))
    with session_of(model, vulkan_device_name, tune="quick") as session:
        [question] = found_in(session)
    found = {question: Measured(labels[1], "full")}
    with session_of(model, vulkan_device_name) as session:
        by_rules = variants(session)
    for written, is_ignored in ((replace(setup, **{field: "another"}), True), (setup, False)):
        write_file(path, {written: found})
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "vkml"),
            session_of(model, vulkan_device_name, tuning_file=path) as session,
        ):
            assert (variants(session) == by_rules) == is_ignored
        assert ("ignored" in caplog.text) == is_ignored
        assert not is_ignored or (str(path) in caplog.text and "another" in caplog.text)


def test_a_pick_that_there_is_no_more_is_the_rules(
    vulkan_device_name: str, model: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "tuning.json"
    with session_of(model, vulkan_device_name, tune="quick") as session:
        questions = found_in(session)
    setup = setup_of(find_device(vulkan_device_name, True))
    write_file(path, {setup: {question: Measured("of another time", "full") for question in questions}})
    with session_of(model, vulkan_device_name) as session:
        by_rules = variants(session)
    with session_of(model, vulkan_device_name, tuning_file=path) as session:
        assert variants(session) == by_rules


GOOD: dict[str, Any] = {
    "format": tuning_file.FORMAT,
    "setups": [
        {
            "vendor": "v",
            "device": "d",
            "driver": "1",
            "kernels": "k",
            "picks": {"q": {"pick": "p", "by": "full", "microseconds": {"p": 1.0}}},
        }
    ],
}


def changed(path: str, value: object) -> str:
    content = json.loads(json.dumps(GOOD))
    place: Any = content
    *steps, last = path.split("/")
    for step in steps:
        place = place[int(step) if step.isdigit() else step]
    place[last] = value
    return json.dumps(content)


def test_two_that_write_a_file_write_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writes a file of its own, of which the last takes the place."""
    path, replace_file = tmp_path / "tuning.json", tuning_file.os.replace
    texts: list[str] = []

    def interrupted(source: str, target: Path) -> None:
        monkeypatch.setattr(tuning_file.os, "replace", replace_file)
        write_file(path, {Setup("v", "d", "second", "k"): {}})
        texts.append(path.read_text())
        replace_file(source, target)

    monkeypatch.setattr(tuning_file.os, "replace", interrupted)
    write_file(path, {Setup("v", "d", "first", "k"): {}})
    assert "second" in texts[0] and [setup.driver for setup in read_file(path)] == ["first"]
    with pytest.raises(InvalidArgument, match="cannot be written"):
        write_file(tmp_path, {})
    assert [each.name for each in tmp_path.iterdir()] == ["tuning.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        json.dumps(GOOD)[:-9],
        changed("format", "vkml tuning 0"),
        changed("setups", {}),
        changed("setups/0/driver", 3),
        changed("setups/0/picks", []),
        changed("setups/0/picks/q", "p"),
        changed("setups/0/picks/q/pick", None),
        changed("setups/0/picks/q/by", "someone"),
        changed("setups/0/picks/q/microseconds", {"p": "fast"}),
        changed("setups/0/picks/q/microseconds", {"p": True}),
        changed("setups/0/picks/q/microseconds", {"p": math.nan}),
        changed("setups/0/picks/q/microseconds", {"p": 10**400}),
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_refused(vulkan_device_name: str, model: bytes, tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"tuning\.json.* is no tuning file, or damaged.*vkml tune"):
        session_of(model, vulkan_device_name, tuning_file=path)
    path.write_text(json.dumps(GOOD))
    assert len(read_file(path)) == 1


def test_a_file_that_cannot_be_read_is_named(vulkan_device_name: str, model: bytes, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=r"missing\.json"):
        session_of(model, vulkan_device_name, tuning_file=tmp_path / "missing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "bytes.json"):
        with pytest.raises(InvalidArgument, match="cannot be read"):
            session_of(model, vulkan_device_name, tuning_file=path)


def test_settings_are_checked() -> None:
    options = vkml.SessionOptions()
    assert options.tune == "off" and options.tuning_file == ""
    for value in ("fast", True, None):
        with pytest.raises(InvalidArgument, match="'off', 'quick', 'full'"):
            options.tune = value  # type: ignore[assignment]


# -- candidates ----------------------------------------------------------------------------------------------


def candidate(label: str, expected: float | None, family: str = "") -> Candidate:
    return Candidate(label, expected, list, family)


def test_what_is_worth_measuring() -> None:
    """The rule's choice, what has no estimate, what may take twice the least time; six at the most."""
    given = [
        candidate("rule", 3.0, "a"),
        candidate("slow", 6.5, "b"),
        candidate("unknown", None),
        candidate("alike", 3.5, "a"),
        candidate("too alike", 3.6, "a"),
        candidate("rule", 3.0, "a"),
        candidate("other", 5.0, "b"),
    ]
    assert [each.label for each in worth_measuring(given)] == ["rule", "unknown", "alike", "other"]
    assert len(worth_measuring([candidate(str(number), 1.0) for number in range(20)])) == MOST_CANDIDATES


def test_picked_falls_back_to_the_rule() -> None:
    given = [candidate("rule", 1.0), candidate("other", 2.0)]
    assert picked(given, None).label == picked(given, "gone").label == "rule"
    assert picked(given, "other").label == "other"


def test_picks_of_equal_content_share_lowerings() -> None:
    one, same, other = Picks({"q": "a"}), Picks({"q": "a"}), Picks({"q": "b"})
    assert one == same and hash(one) == hash(same) and one != other
    target = replace(GPU, picks=one)
    assert target == replace(GPU, picks=same) and target != replace(GPU, picks=other) and target != GPU


def trials_of(target: Any, m: int, k: int, n: int) -> Trials:
    """The candidates for a product of a run's matrices."""
    trials = Trials()
    build = VulkanBuilder(target, trials)
    kinds = [TensorType(dtypes.FLOAT32, dims) for dims in ((1, m, k), (1, k, n), (1, m, n))]
    a, b = (contiguous(Buffer(BufferKind.INPUT, kind.bytes, "x"), kind) for kind in kinds[:2])
    with build.step(kinds[2]):
        build.matmul(a, b)
        build.matmul(a, b)
    return trials


@pytest.mark.parametrize("is_strict", [True, False])
def test_candidates_have_the_precision_that_is_wanted(is_strict: bool) -> None:
    target = replace(GPU, strict_fp32=is_strict)
    trials = trials_of(target, 1024, 1024, 1024)
    [(question, found)] = trials.found.items()
    assert trials.counts[question] == 2 and question.startswith(target.policy)
    labels = [trial.label for trial in found]
    assert len(labels) == len(set(labels)) > 2
    assert any("1 piece " in label for label in labels) != is_strict
    assert any("2 pieces " in label for label in labels) == is_strict


def test_products_bear_shares_of_passes_over_what_they_all_read() -> None:
    """Three products of one matrix and one of another: (3 · 1/3 + 1) / 4 of a pass each."""
    trials = Trials()
    build = VulkanBuilder(GPU, trials)
    kinds = [TensorType(dtypes.FLOAT32, dims) for dims in ((1, 512, 512), (1, 512, 512), (1, 512, 512))]
    a, other, b = (contiguous(Buffer(BufferKind.INPUT, kind.bytes, "x"), kind) for kind in kinds)
    with build.step(kinds[2]):
        for left in (a, a, other, a):
            build.matmul(left, b)
    [(question, found)] = trials.found.items()
    assert trials.share(question) == pytest.approx(0.5)
    assert any(trial.passes for trial in found)
    for trial in found:
        assert {id(each) for each in (*trial.passes, *trial.own)} == set(map(id, trial.launches))
        # What is done for the other operand is not shared with those who read this one.
        assert all(view.buffer is a.buffer for each in trial.passes for view in each.reads)
        assert trial.own


def test_candidates_bring_the_passes_that_they_need() -> None:
    """Each stands for itself: what an earlier one has packed is not there for the next."""
    [found] = trials_of(GPU, 1024, 1024, 1024).found.values()
    for trial in found:
        assert trial.launches
        outside = operands_of(trial.launches)
        assert {buffer.kind for buffer in outside} == {BufferKind.INPUT}


def test_candidates_that_launch_the_same_are_one() -> None:
    """8 ranges of 7 tiles of k are 7."""
    [found] = trials_of(replace(GPU, strict_fp32=True), 64, 7 * 32, 64).found.values()
    forms = [[(launch.kernel.name, launch.groups) for launch in trial.launches] for trial in found]
    assert all(form not in forms[:number] for number, form in enumerate(forms))


def test_a_trial_leaves_no_trace() -> None:
    trials = Trials()
    build = VulkanBuilder(GPU, trials)
    plain = VulkanBuilder(GPU)
    kinds = [TensorType(dtypes.FLOAT32, dims) for dims in ((1, 512, 512), (1, 512, 512), (1, 512, 512))]
    a, b = (contiguous(Buffer(BufferKind.INPUT, kind.bytes, "x"), kind) for kind in kinds[:2])
    for each in (build, plain):
        with each.step(kinds[2]):
            each.matmul(a, b)
    assert [launch.kernel.name for launch in build.launches] == [each.kernel.name for each in plain.launches]
    assert len(build.buffers) == len(plain.buffers)


def test_kernels_have_a_digest() -> None:
    assert len(tuning_file.kernels_digest()) == 16
