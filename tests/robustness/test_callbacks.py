"""A caller's code that vkml calls may use vkml: array-likes and mappings as feeds, progress, logging."""

from __future__ import annotations

import pytest

import vkml
from tests.robustness.models import unary
from tests.robustness.processes import output_of

FEEDS = """
    import collections.abc, numpy as np, vkml
    from tests.robustness.models import product, weights

    class Computed:
        '''An array-like that runs the same session, for the same shape, when it is read.'''
        shape, dtype = (2, 4), np.dtype(np.float32)

        def __array__(self, dtype=None, copy=None):
            return session.run(None, {{"x": X}})[0][:, [0, 1, 2, 0]]

    class Lazy(collections.abc.Mapping):
        '''A feed that runs the same session when an input is taken from it.'''
        def __getitem__(self, name):
            return Computed().__array__()

        def __iter__(self):
            return iter(["x"])

        def __len__(self):
            return 1

    X = np.arange(8, dtype=np.float32).reshape(2, 4)
    options = vkml.SessionOptions(enable_profiling={profiling})
    session = vkml.InferenceSession(product(), options, devices="{name}", precision="highest")
    expected = (X @ weights())[:, [0, 1, 2, 0]] @ weights()
    for _ in range(3):
        for feed in ({{"x": Computed()}}, Lazy(), {{"x": Computed().__array__()}}):
            assert np.array_equal(session.run(None, feed)[0], expected)
    print("done")
"""


@pytest.mark.parametrize("profiling", [False, True])
def test_feeds_that_compute_with_the_session(device_name: str, profiling: bool) -> None:
    assert output_of(FEEDS.format(name=device_name, profiling=profiling)) == "done\n"


STAGES = """
    import threading, numpy as np, vkml
    from tests.robustness.models import model, node, value
    from vkml.vulkan import live_objects

    both = model(
        [node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["b"]), node("ReduceSum", ["b"], ["y"])],
        [value("x", ("n", 4))],
        [value("y", None)],
        {{"w": np.eye(4, dtype=np.float32)}},
    )
"""

PROGRESS = """
    stages, refusals, is_asking = set(), set(), False

    def use():
        session.run(None, {{"x": np.ones((2, 4), np.float32)}})  # planned already
        session.report({{"n": 2}})

    def progress(stage, done, total):
        global is_asking
        stages.add(stage)
        if session is None or is_asking:
            return
        is_asking = True
        use()
        other = threading.Thread(target=use)
        other.start()
        other.join()
        for rows in (3, 4):  # what is being planned, and what never was
            try:
                session.report({{"n": rows}})
            except vkml.Fail as refusal:
                refusals.add((stage, rows, "very thread" in str(refusal)))
        is_asking = False

    session = None
    options = vkml.SessionOptions(progress=progress)
    session = vkml.InferenceSession(both, options, devices="{name}")
    is_asking = True
    use()
    is_asking = False
    for rows in (3, 4, 5):
        [y] = session.run(None, {{"x": np.ones((rows, 4), np.float32)}})
        assert abs(y.item() - rows) < 1e-5
    session.close()
    print(sorted(stages), sorted(refusals))
"""


def test_a_progress_callback_that_uses_the_session(vulkan_device_name: str) -> None:
    """It may do what is planned, also in other threads, and is told that the rest waits for itself."""
    found = output_of((STAGES + PROGRESS).format(name=vulkan_device_name))
    assert found.startswith("['compile', 'upload'] [(")
    assert "('compile', 3, True)" in found and "False" not in found


CLOSING = """
    def progress(stage, done, total):
        if stage == armed:
            session.close()

    held = []
    for armed in (None, "compile", "upload", "compile"):
        session = vkml.InferenceSession(both, vkml.SessionOptions(progress=progress), devices="{name}")
        try:
            session.run(None, {{"x": np.ones((3, 4), np.float32)}})
            assert armed is None
            session.close()
        except vkml.Fail as refusal:
            assert "is closed" in str(refusal)
        held.append([live_objects().get(kind, 0) for kind in ("Buffer", "DeviceMemory", "CommandPool")])
    assert all(each == held[0] for each in held), held
    print("done")
"""


def test_a_progress_callback_that_closes_the_session(vulkan_device_name: str) -> None:
    assert output_of((STAGES + CLOSING).format(name=vulkan_device_name)) == "done\n"


LOGGING = """
    import logging, numpy as np, vkml
    from vkml.engine.sketch import Sketch
    from vkml.ir import dtypes
    from vkml.onnx import save_graph

    sketch = Sketch("wide")
    wide = sketch.node("Cast", sketch.input("x", ("n",)), to=dtypes.FLOAT64.code)
    root = sketch.node("Cast", sketch.node("Cos", wide), to=dtypes.FLOAT32.code)
    model = save_graph(sketch.finish(root))

    class Handler(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())
            run(3)
            run(4)

    def run(size):
        assert np.allclose(session.run(None, {{"x": np.ones(size, np.float32)}})[0], np.cos(1))

    said = []
    logging.getLogger("vkml").addHandler(Handler())
    session = vkml.InferenceSession(model, devices="{name}")
    run(3)
    session.close()
    print(len(said), "on the CPU" in said[0])
"""


def test_a_logging_handler_that_uses_the_session(vulkan_device_name: str) -> None:
    """The warning that nodes run on the CPU comes in the middle of a first run."""
    assert output_of(LOGGING.format(name=vulkan_device_name)) == "1 True\n"


def test_progress_of_few_kernels(vulkan_device_name: str) -> None:
    """Also where one thread compiles them all."""
    told: list[tuple[str, int, int]] = []
    options = vkml.SessionOptions(progress=lambda *stage: told.append(stage))
    vkml.InferenceSession(unary("Softmax", (3, 7)), options, devices=vulkan_device_name).close()
    assert told == [("compile", 1, 1)]
