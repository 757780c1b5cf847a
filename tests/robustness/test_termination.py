"""Processes that are told to end, or end, with runs in flight: none hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.patience import patience
from tests.robustness.processes import ROOT, output_of, run_python

STARTED = """
    import signal, sys, threading
    import numpy as np, vkml
    from tests.control_models import model
    from tests.robustness.models import product
    from tests.robustness.test_control_flow import ENDLESS

    {handler}
    plain = vkml.InferenceSession(product(), devices="{name}")
    loop = vkml.InferenceSession(model(ENDLESS), devices="{name}")
    rows, x = np.ones((500, 4), np.float32), np.ones(40, np.float32)

    def runs():
        while True:
            plain.run(None, {{"x": rows}})

    def endless():
        loop.run(None, {{"x": x, "go": np.array(True)}})

    plain.run(None, {{"x": rows}})
    loop.run(None, {{"x": x, "go": np.array(False)}})
    for act in (runs, runs, endless):
        threading.Thread(target=act, daemon=True).start()
    threading.Timer(0.2, lambda: print("going", flush=True)).start()
    {act}()
"""
HANDLERS = {
    "none": ("", -signal.SIGTERM),
    "exit": ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", 7),
}


@pytest.mark.skipif(os.name != "posix", reason="signals are sent to processes")
@pytest.mark.parametrize("act", ["runs", "endless"])
@pytest.mark.parametrize("handler", HANDLERS)
def test_told_to_end(device_name: str, handler: str, act: str) -> None:
    """The main thread is in a run, or in a loop without end; other threads are, too."""
    code, expected = HANDLERS[handler]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STARTED).format(name=device_name, handler=code, act=act)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=patience(120))
    finally:
        process.kill()
        process.wait()
    assert process.returncode == expected, error


ASYNCHRONOUS = """
    import os
    import numpy as np, vkml
    from tests.robustness.models import product

    def callback(results, data, error):
        # At once: what threads print comes in pieces.
        os.write(1, f"{{data}} {{error or results[0].tolist()}}\\n".encode())

    session = vkml.InferenceSession(product(), devices="{name}")
    for number in range(3):
        session.run_async(None, {{"x": np.ones((1, 4), np.float32)}}, callback, number)
    {more}
"""


@pytest.mark.parametrize("more", ["", "del session", "raise SystemExit"])
def test_the_interpreter_ends_behind_runs_in_other_threads(device_name: str, more: str) -> None:
    """Whoever waits for them is told what came of each."""
    lines = output_of(ASYNCHRONOUS.format(name=device_name, more=more)).splitlines()
    assert sorted(lines) == [f"{number} [[-2.0, 2.0, 6.0]]" for number in range(3)]


COMPUTING = """
    import threading, time
    import numpy as np, vkml

    threading.excepthook = lambda arguments: None  # what is refused at the end is told so
    x = np.ones((256, 256), np.float32)
    weights = vkml.tensor(x, device="{name}")
    going = threading.Semaphore(0)

    @vkml.jit(device="{name}")
    def captured(x):
        return (x @ weights).relu().sum()

    def eager(x):
        return ((vkml.tensor(x, device="{name}") @ weights).relu().sum() * float(np.random.rand()))

    def work():
        for number in range(10**9):
            {act}(x).item()
            if number == 20:
                going.release()

    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(3):
        going.acquire()
    print("done", flush=True)
"""


@pytest.mark.parametrize("act", ["captured", "eager"])
def test_the_program_ends_while_threads_compute_with_tensors(vulkan_device_name: str, act: str) -> None:
    """Plans end before their devices, and no device is opened any more."""
    for _ in range(3):
        done = run_python(COMPUTING.format(name=vulkan_device_name, act=act))
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


CLOSED = """
    import threading, numpy as np, vkml
    from tests.robustness.models import product
    done = threading.Semaphore(0)
    told = []

    def callback(results, data, error):
        told.append(error or results[0].tolist())
        done.release()

    session = vkml.InferenceSession(product(), devices="{name}")
    for _ in range(20):
        session.run_async(None, {{"x": np.ones((1, 4), np.float32)}}, callback)
    session.close()
    for _ in range(20):
        assert done.acquire(timeout=60)
    assert all(each == [[-2.0, 2.0, 6.0]] or "closed" in each for each in told), told
"""


def test_a_session_closed_beside_runs_in_other_threads(device_name: str) -> None:
    output_of(CLOSED.format(name=device_name))
