"""Nothing is left behind: by closed sessions, dropped ones, failed ones, or a process that just ends."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np
import pytest

import vkml
from tests.robustness.models import convolution, gather, model, node, product, shape_arithmetic, unary, value
from tests.robustness.processes import output_of, run_python
from vkml.engine.devices import open_device
from vkml.vulkan import find_device, live_objects, pipelines

X = np.ones((2, 4), np.float32)


def held(name: str) -> tuple[dict[str, int], int, int]:
    """What sessions hold; pipelines and the device itself stay for the next session."""
    gc.collect()
    device = open_device(find_device(name, True))
    kept = ("Device", "Pipeline", "PipelineLayout", "PipelineCache", "ShaderModule")
    objects = {kind: count for kind, count in live_objects().items() if kind not in kept}
    return objects, device.live_allocations, device.allocated_bytes


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def use(name: str, close: bool = True) -> None:
    session = vkml.InferenceSession(product(), devices=name)
    for rows in (1, 2, 3):
        session.run(None, {"x": np.ones((rows, 4), np.float32)})
    if close:
        session.close()


def test_closed_sessions(vulkan_device_name: str) -> None:
    use(vulkan_device_name)
    before = held(vulkan_device_name)
    for _ in range(50):
        use(vulkan_device_name)
    assert held(vulkan_device_name) == before


def test_dropped_sessions(vulkan_device_name: str) -> None:
    use(vulkan_device_name)
    before = held(vulkan_device_name)
    for _ in range(10):
        use(vulkan_device_name, close=False)
    assert held(vulkan_device_name) == before


def test_resident_memory(device_name: str) -> None:
    def round_of_sessions() -> None:
        for _ in range(40):
            with vkml.InferenceSession(convolution(), devices=device_name) as session:
                session.run(None, {"x": np.ones((1, 2, 6, 6), np.float32)})
        gc.collect()

    round_of_sessions()
    before = resident_bytes()
    round_of_sessions()
    # 40 sessions that each kept as little as their 100 KB of plan would show.
    assert resident_bytes() - before < 4 << 20


def test_many_shapes(vulkan_device_name: str) -> None:
    """Constants that come with a plan (here shapes and tables) go with it."""
    options = vkml.SessionOptions(plan_cache_size=2)
    shifted = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Cast", ["s"], ["f"], to=1),
            node("ReduceProd", ["f"], ["p"], keepdims=0),
            node("Range", ["zero", "p", "one"], ["r"]),
            node("Reshape", ["r", "s"], ["t"]),
            node("Add", ["x", "t"], ["y"]),
        ],
        [value("x", ("n",))],
        [value("y", ("n",))],
        {"zero": np.float32(0), "one": np.float32(1)},
    )
    with vkml.InferenceSession(shifted, options, devices=vulkan_device_name) as session:
        counts = set()
        for size in range(1, 30):
            (y,) = session.run(None, {"x": np.ones(size, np.float32)})
            np.testing.assert_array_equal(y, 1 + np.arange(size))
            if size > 3:
                counts.add(held(vulkan_device_name)[1])
        assert len(counts) == 1, counts


def test_pipelines_of_many_shapes(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of closed plans stay for plans to come, up to a number, and go with the device."""
    monkeypatch.setattr(pipelines, "UNUSED_PIPELINES", 5)
    gc.collect()
    vkml.close_devices()
    counts = []
    for size in range(1, 13):
        with vkml.InferenceSession(unary("Softmax", (2, size)), devices=vulkan_device_name) as session:
            session.run(None, {"x": np.ones((2, size), np.float32)})
            counts.append(live_objects()["Pipeline"])
    of_one_plan = counts[0]
    assert max(counts) <= 5 + of_one_plan and counts[-1] > 5, counts
    assert live_objects()["Pipeline"] == 5
    vkml.close_devices()
    assert live_objects() == {}


MANY_SHAPES = """
    import numpy as np, vkml
    from tests.robustness.models import model, node, value
    from tests.robustness.test_leaks import resident_bytes
    nodes = [node("Relu", ["x"], ["a"]), node("Softmax", ["a"], ["b"]),
             node("ReduceSum", ["b"], ["c"], keepdims=1), node("Add", ["b", "c"], ["y"])]
    shape = ("n", "k")
    with vkml.InferenceSession(
        model(nodes, [value("x", shape)], [value("y", shape)]), devices="{name}"
    ) as session:
        for size in range(1, 161):
            session.run(None, {{"x": np.ones((3, size), np.float32)}})
            if size == 60:
                before = resident_bytes()
        print((resident_bytes() - before) >> 10)
"""


def test_resident_memory_of_many_shapes(vulkan_device_name: str) -> None:
    """What drivers keep for pipelines does not grow with the shapes that have been seen."""
    # One arena, for glibc takes fresh ones at random; the validation layer remembers what it has seen.
    environment = {"MALLOC_ARENA_MAX": "1", "VKML_VALIDATE": ""}
    grown = int(output_of(MANY_SHAPES.format(name=vulkan_device_name), **environment))
    assert grown < 28 << 10, f"{grown} KiB for 100 shapes"


@pytest.mark.parametrize("fails_at", ["record", "submission", "third allocation", "upload"])
def test_failed_plans(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch, fails_at: str) -> None:
    use(vulkan_device_name)
    device = open_device(find_device(vulkan_device_name, True))
    with vkml.InferenceSession(product(), devices=vulkan_device_name) as session:
        before = held(vulkan_device_name)
        allocate, calls = device.allocate, []

        def refuse(*arguments: object, **options: object) -> object:
            raise vkml.OutOfMemory("vulkan: no more")

        def refuse_third(*arguments: object, **options: object) -> object:
            calls.append(arguments)
            return refuse() if len(calls) == 3 else allocate(*arguments, **options)  # type: ignore[arg-type]

        if fails_at == "third allocation":
            monkeypatch.setattr(device, "allocate", refuse_third)
        else:
            name = {"record": "recorder"}.get(fails_at, fails_at)
            monkeypatch.setattr(device, name, refuse)
        with pytest.raises(vkml.OutOfMemory, match="no more"):
            session.run(None, {"x": X})
        monkeypatch.undo()
        assert held(vulkan_device_name) == before
        assert session.run(None, {"x": X})[0].shape == (2, 3)


def test_failed_sessions(vulkan_device_name: str) -> None:
    use(vulkan_device_name)
    before = held(vulkan_device_name)
    for _ in range(5):
        with pytest.raises(vkml.Error):
            vkml.InferenceSession(product()[:-30], devices=vulkan_device_name)
        with vkml.InferenceSession(gather(), devices=vulkan_device_name) as session:
            with pytest.raises(vkml.IndexOutOfRange):
                session.run(None, {"x": X, "i": [9]})
            with pytest.raises(vkml.InvalidArgument):
                session.run(None, {"x": X})
        with vkml.InferenceSession(shape_arithmetic(), devices=vulkan_device_name) as session:
            session.run(None, {"x": np.ones((2, 2, 3), np.float32)})
    assert held(vulkan_device_name) == before


EXIT = """
    import threading, numpy as np, vkml
    from tests.robustness.models import product
    session = vkml.InferenceSession(product(), devices="{name}")
    print(session.run(None, {{"x": np.ones((1, 4), np.float32)}})[0].tolist())
    {more}
"""


@pytest.mark.parametrize(
    "more",
    ["", "keep = [session]; keep.append(keep)", "vkml.close_devices()", "session.close(); del vkml"],
    ids=["open", "in a cycle", "devices closed", "closed"],
)
def test_end_of_the_interpreter(device_name: str, more: str) -> None:
    assert output_of(EXIT.format(name=device_name, more=more)) == "[[-2.0, 2.0, 6.0]]\n"


def test_end_of_the_interpreter_with_names_in_modules(vulkan_device_name: str) -> None:
    """What a module of vkml keeps of the program keeps the program's names, until modules lose theirs."""
    done = run_python(f"""
        from benchmarks import training
        from vkml.kernels import gemm
        gemm.of_the_program = lambda: None
        step = training.vkml_step("mlp_b64", {vulkan_device_name!r}, True)
        batches = training.CASES["mlp_b64"].batches()
        for batch in batches[:3]:
            step(*batch)
    """)
    assert done.returncode == 0, done.stderr
    assert "ignored" not in done.stderr, done.stderr


def test_end_of_the_interpreter_during_runs(device_name: str) -> None:
    code = """
    def run():
        while True:
            session.run(None, {{"x": np.ones((500, 4), np.float32)}})
    for _ in range(3):
        threading.Thread(target=run, daemon=True).start()
    import time; time.sleep(0.3)
    """
    done = run_python((EXIT.replace("    {more}\n", "") + code).format(name=device_name))
    assert done.returncode == 0, done.stderr
