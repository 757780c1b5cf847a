"""``vkml profile``: times that add up, files for viewers, and what is counted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import vkml
from tests.cli.conftest import Command
from tests.control_models import model
from vkml.cli.drawing import Drawing, Label, fitting
from vkml.cli.timeline import timeline
from vkml.engine import profile
from vkml.engine.profile import Ceiling, profiled_steps
from vkml.engine.report import StepReport
from vkml.engine.trace import TracedRun
from vkml.errors import OutOfMemory

LOOP = """
g (int64 m, float[4] x) => (float[4] last) {
  go = Constant <value = bool {1}> ()
  last = Loop (m, go, x) <body = body (int64 i, bool c, float[4] s) => (bool d, float[4] u) {
    d = Identity(c)
    u = Exp(s)
  }>
}
"""


def test_every_step_has_its_time_rate_and_share(
    command: Command, scale_model: Path, tmp_path: Path, device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = (tmp_path / "trace.json", tmp_path / "run.svg")
    words = ("profile", scale_model, "-d", device_name, "--dim", "batch=3", "--repeat", 2)
    done = command(*words, "--trace", files[0], "--picture", files[1])
    assert done.code == 0, done.err
    assert f"on {device_name}: a run takes" in done.out and "ceiling of" in done.out
    assert "MatMul" in files[1].read_text(encoding="utf-8")
    ElementTree.parse(files[1])
    events = json.loads(files[0].read_text(encoding="utf-8"))
    assert any(event["args"].get("operators") == "MatMul" for event in events)
    assert command(*words, "--no-ceiling", "--no-files").code == 0 and len(list(tmp_path.iterdir())) == 2
    found = command(*words, "--no-ceiling", "--json").json
    assert found["files"] == ["scale-trace.json", "scale-timeline.svg"]
    assert (tmp_path / "scale-trace.json").exists() and (tmp_path / "scale-timeline.svg").exists()
    assert sum(step["share"] for step in found["steps"]) == pytest.approx(1)
    [product] = [step for step in found["steps"] if "MatMul" in step["operators"]]
    assert product["flops"] == 2 * 3 * 16 * 3 and product["output"] == ["3×3"]
    assert found["steps"] == sorted(found["steps"], key=lambda step: -step["seconds"])


def test_pictures_of_runs_may_be_png(command: Command, scale_model: Path, tmp_path: Path) -> None:
    words = ("profile", scale_model, "-d", "cpu", "--no-ceiling", "--no-files", "--repeat", 1, "--picture")
    assert command(*words, tmp_path / "run.png").code == 0
    with Image.open(tmp_path / "run.png") as picture:
        assert picture.width == 1200 and len(picture.getcolors(1 << 20) or []) > 5
    done = command(*words, tmp_path / "run.gif")
    assert done.code == 2 and ".svg or .png" in done.err


def test_trips_of_a_loop_are_one_step() -> None:
    options = vkml.SessionOptions(enable_profiling=True)
    with vkml.InferenceSession(model(LOOP), options, devices="cpu") as session:
        session.run(None, {"m": np.array(3), "x": np.zeros(4, np.float32)})
        runs = list(session.traced_runs)
    steps = {step.operators: step for step in profiled_steps([runs])}
    exp = steps[("Exp",)]
    single = [step.seconds or 0.0 for run in runs for step in run.steps if "Exp" in step.operators]
    assert len(single) == 3 and exp.seconds == pytest.approx(sum(single))
    assert exp.bytes == 3 * 32
    loop = steps[("Loop",)]
    whole = next(run.seconds for run in runs if run.name.startswith("Loop"))
    assert loop.seconds is not None and 0 <= loop.seconds < whole


def _step(name: str, seconds: float, device: str = "vulkan:0", flops: int = 0, bytes: int = 0) -> StepReport:
    return StepReport(device, "kernel", (name,), ("MatMul",), (), seconds=seconds, flops=flops, bytes=bytes)


def test_launches_of_a_node_are_one_step_whose_work_counts_once_on_the_cpu() -> None:
    gpu = [_step("a", 1.0, flops=10, bytes=4), _step("b", 5.0), _step("a", 2.0, bytes=2)]
    cpu = [_step("a", 1.0, "cpu", flops=10, bytes=4), _step("a", 2.0, "cpu", flops=10, bytes=4)]
    runs = [[TracedRun("run", 0.0, 9.0, tuple(steps), 1)] for steps in (gpu, cpu)]
    b, a = profiled_steps(runs[:1])
    assert (b.seconds, a.seconds, a.flops, a.bytes) == (5, 3, 10, 6)
    [a] = profiled_steps(runs[1:])
    assert (a.seconds, a.flops, a.bytes) == (3, 10, 4)


def test_medians_are_over_runs() -> None:
    runs = [[TracedRun("run", 0.0, 9.0, (_step("a", seconds),), 1)] for seconds in (1.0, 9.0, 2.0)]
    assert [step.seconds for step in profiled_steps(runs)] == [2.0]


def test_shares_of_a_ceiling() -> None:
    ceiling = Ceiling(flops=100.0, bytes=10.0)
    computing, moving = _step("a", 4.0, flops=200, bytes=10), _step("b", 4.0, flops=0, bytes=10)
    assert ceiling.share(computing) == 0.5 and ceiling.is_bound_by_operations(computing)
    assert ceiling.share(moving) == 0.25 and not ceiling.is_bound_by_operations(moving)
    assert ceiling.share(_step("c", 1.0)) is None


def test_ceilings_grow_until_they_take_long_enough_or_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def fastest(sketch: object, x: np.ndarray[Any, Any], device: str, precision: str, op: str) -> float:
        asked.append((op, x.size))
        if op == "Add" and len(asked) > 4:
            raise OutOfMemory("no more")
        return 1e-3 * len(asked)

    monkeypatch.setattr(profile, "_fastest", fastest)
    found = profile.measured_ceiling("vulkan:0")
    sizes = [512**2 // 4, 512**2, 1024**2]
    assert asked == [*(("MatMul", size) for size in sizes), ("Add", 1 << 22), ("Add", 1 << 24)]
    assert found == Ceiling(2.0 * 1024**3 / 3e-3, 12.0 * (1 << 22) / 4e-3)


def test_drawings_escape_what_names_hold() -> None:
    drawing = Drawing(10, 10, [Label(0, 9, 'a<b>&\x1b[31m"')])
    root = ElementTree.fromstring(drawing.svg())
    assert root[-1].text == 'a<b>&\\x1b[31m"'
    assert fitting("abcdefgh", 1000, 10) == "abcdefgh" and fitting("abcdefgh", 10, 10) == ""


def test_boxes_of_a_timeline_are_as_wide_as_steps_are_long() -> None:
    drawn = ElementTree.fromstring(timeline("run", [_step("a", 1.0), _step("b", 3.0, "cpu")]).svg())
    boxes = [each for each in drawn.iter() if len(each) and each[0].tag.endswith("title")]
    [a, b] = [float(box.get("width", "")) for box in boxes]
    assert b == pytest.approx(3 * a, rel=1e-3)
    assert boxes[0].get("y") != boxes[1].get("y")
