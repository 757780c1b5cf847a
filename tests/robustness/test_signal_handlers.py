"""Signal handlers that compute, in the midst of whatever the program's thread does: none waits for itself."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import vkml
from tests.robustness.processes import run_python

CODE = """
    import faulthandler, itertools, signal
    import numpy as np, numpy.testing, vkml
    from benchmarks.models import mnist_like
    from tests.patience import patience
    from vkml import nn, optim
    from vkml.onnx import save_graph
    from vkml.vulkan import Device

    faulthandler.dump_traceback_later(patience(200), exit=True)
    if {is_staged}:  # as where the host does not reach the device's memory
        make = Device.__init__
        Device.__init__ = lambda device, info, *given, **more: make(
            device, info, *given, **{{**more, "force_staging": True}}
        )
    name, handled, nested = {name!r}, itertools.count(), 0
    layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(name)
    optimizer = optim.Adam(layers.parameters())
    x = vkml.tensor(np.random.default_rng(0).standard_normal((64, 32), np.float32), device=name)
    labels = vkml.tensor(np.zeros(64, np.int64), device=name)
    model, feed = save_graph(mnist_like()), {{"input": np.ones((1, 1, 28, 28), np.float32)}}

    @vkml.jit
    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(layers(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    session = vkml.InferenceSession(model, devices=name)
    [wanted] = session.run(None, feed)
    step(), step()  # captured: a step in the midst of another one's operations would change what that reads

    def run():
        np.testing.assert_array_equal(session.run(None, feed)[0], wanted)

    def open_and_run():
        with vkml.InferenceSession(model, devices=name) as another:
            np.testing.assert_array_equal(another.run(None, feed)[0], wanted)

    def compute():
        made = vkml.tensor(np.arange(3, dtype=np.float32), device=name) * 2 + 1
        assert made.tolist() == [1, 3, 5]

    def save():
        assert all(np.isfinite(value.numpy()).all() for value in layers.state_dict().values())

    def handle(*_):
        global nested
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            [save, compute, run, lambda: step().item(), open_and_run][next(handled) % 5]()
        except vkml.Fail as refusal:  # of what this very thread is in the midst of
            assert "in this very thread" in str(refusal), refusal
            nested += 1
        signal.setitimer(signal.ITIMER_REAL, 0.002)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    count = 0
    while count < {count}:
        for act in (step, run, compute, open_and_run, save):
            act()
        count = next(handled)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert nested < count // 2, nested
    print("done")
"""


has_timers = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timers of signals")


def ends_well(name: str, *, is_staged: bool) -> None:
    done = run_python(CODE.format(name=name, is_staged=is_staged, count=400), VKML_VALIDATE="0")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


@has_timers
def test_they_compute(device_name: str) -> None:
    """They may use sessions, tensors and captured functions, but those that their thread is running."""
    ends_well(device_name, is_staged=False)


@has_timers
def test_they_copy(vulkan_device_name: str) -> None:
    """Through staging memory, in the midst of such copies."""
    ends_well(vulkan_device_name, is_staged=True)


NOT_AGAIN = {
    "cpu/pool.py": "the end of a loop, released by whoever does its last part",
    "data/fetching.py": "a batch that is ready",
    "engine/host_imports.py": "nobody waits for it",
    "ops/random_state.py": "nothing is called while it is held",
}
"""Files with locks that their own thread cannot take again, and why no signal handler waits for them."""


def test_locks_may_be_taken_again() -> None:
    """Else a handler that comes while its thread holds one waits for ever."""
    folder = Path(vkml.__file__).parent
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"\bthreading\.Lock\b|\bimport Lock\b", path.read_text(encoding="utf-8"))
    }
    assert found == {*NOT_AGAIN}
