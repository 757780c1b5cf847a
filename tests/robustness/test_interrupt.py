"""Ctrl-C and other signals: a long run ends quietly; a session goes on with all that it had, or closes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.robustness.models import product
from tests.robustness.processes import interrupted_command, output_of, run_python


@pytest.mark.parametrize("command", ["run", "bench"])
def test_command_line(device_name: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / "product.onnx"
    path.write_bytes(product())
    words = {"run": ["run", "--random", "--repeat", "100000000"], "bench": ["bench", "--seconds", "100000"]}
    code, _, error = interrupted_command(*words[command], str(path), "--device", device_name)
    assert code == 130, error
    assert "Traceback" not in error and "internal error" not in error


def ends_well(code: str, **environment: str) -> None:
    """Runs code in a process that may say which interrupts met a finalizer, where Python drops them."""
    done = run_python(code, **environment)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


COMMON = """
    import faulthandler, gc, itertools, random, signal, threading, time
    import numpy as np, vkml
    from tests.patience import patience
    from tests.robustness.interrupts import interrupted, interrupted_everywhere
    from tests.robustness.models import model, node, value
    from vkml.cpu import blas
    from vkml.vulkan import live_objects

    faulthandler.dump_traceback_later(patience(200), exit=True)
    SIZE, LAYERS = {size}, {layers}
    names = ["x", *(f"h{{index}}" for index in range(1, LAYERS)), "y"]
    chain = model(
        [node("MatMul", [a, "w"], [b]) for a, b in zip(names, names[1:])],
        [value("x", ("n", SIZE))],
        [value("y", ("n", SIZE))],
        {{"w": 2 * np.eye(SIZE, dtype=np.float32)}},
    )
    options = vkml.SessionOptions(intra_op_num_threads=2, plan_cache_size=3)
    sizes = itertools.cycle(range(10, 20))  # more than plans are kept

    def opened():
        return vkml.InferenceSession(chain, options, devices="{name}", precision="highest")

    def run(rows=SIZE):
        x = np.random.default_rng(rows).standard_normal((rows, SIZE)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {{"x": x}})[0], 2**LAYERS * x)

    def close():
        session.close()
        try:
            run()
        except vkml.Fail as refusal:
            assert "is closed" in str(refusal)
            print("done")

    session = opened()
    run()
"""

ANY_TIME = """
    for rows in (SIZE, 3):
        interrupted(lambda: run(rows), 30, 0.003)
        run(rows)
    interrupted(lambda: run(next(sizes)), 40, 0.01)
    for rows in range(10, 20):
        run(rows)
        assert len(session._runner.plans.kept) <= 3
    close()
"""


def test_interrupts_at_any_time(device_name: str) -> None:
    ends_well((COMMON + ANY_TIME).format(name=device_name, size=64, layers=6))


EVERYWHERE = """
    def plan():
        session = opened()
        for _ in range(2):  # for known sizes, and for all
            session.run(None, {{"x": np.ones((next(sizes), SIZE), np.float32)}})
        session.close()

    def check():
        run(next(sizes))
        run(3)
        plans = session._runner.plans
        assert len(plans.kept) <= 3
        assert set(plans.alive) == set(plans.kept.values()), "a plan is not closed"
        assert gc.isenabled()

    names = ["forks", "process_settings", "cpu/blas", "cpu/pool", "cpu/native/replay", "lowering/native"]
    names += ["lowering/native_step", "engine/planning"]
    names += ["kernels/compiling", "engine/session", "engine/plan_cache", "engine/runner", "engine/plan"]
    names += ["engine/programs", "engine/turns", "engine/weights", "engine/compilation", "engine/cpu_bound"]
    files = [f"vkml/{{name}}.py" for name in (*names, "engine/feed", "engine/collector")]
    assert interrupted_everywhere(lambda: run(3), lambda: run(3), files) > 6
    assert interrupted_everywhere(lambda: run(next(sizes)), check, files) > 50
    assert interrupted_everywhere(plan, check, files) > 100
    close()
"""


def test_an_interrupt_at_every_place(device_name: str) -> None:
    """Of running a model again, with another shape, and of opening, planning and closing a session."""
    ends_well((COMMON + EVERYWHERE).format(name=device_name, size=4, layers=1))


AHEAD = """
    import threading, time
    from tests.engine.test_ahead import Driver, kernel
    from tests.patience import patience
    from tests.robustness.interrupts import interrupted_everywhere
    from vkml.engine import ahead

    def compile():
        driver = Driver()
        drivers.append(driver)
        with ahead.compiled_ahead(lambda: driver, most=2) as compiler:
            for number in range(3):
                compiler.want(kernel(number))
            compiler.want_all([kernel(3)])

    def check():
        end = time.monotonic() + patience(30)
        while time.monotonic() < end and any("vkml-ahead" in each.name for each in threading.enumerate()):
            time.sleep(0.001)
        assert not [each.name for each in threading.enumerate() if "vkml-ahead" in each.name]
        assert all(driver.users == 0 for driver in drivers), "kernels are not given back"

    drivers = []
    compile()
    check()
    assert interrupted_everywhere(compile, check, ["engine/ahead.py"]) > 50
    left = ahead.Ahead(Driver, most=2)  # as if an interrupt had come right before what closes it
    left.want(kernel(4))
    print("done")
"""


def test_threads_that_compile_ahead_end(tmp_path: Path) -> None:
    """Wherever an interrupt comes, and with the program at the latest."""
    ends_well(AHEAD, VKML_CACHE_DIR=str(tmp_path))


PLACES = 40
"""Of each case, drawn by a fixed seed from 800 to 1700: a place takes a fifth of a second on lavapipe."""
OF_VULKAN = ("vulkan/pipelines", "vulkan/commands", "vulkan/memory", "vulkan/submission", "vulkan/context")
OF_RUNS = ("engine/flight", "engine/recorded", "engine/programs", "engine/fetching", "engine/compilation")
OF_LOOPS = ("engine/trips", "engine/gated_trips", "engine/control")


@pytest.mark.parametrize(
    ("kind", "names"), [("plain", OF_VULKAN), ("plain", OF_RUNS), ("counted", OF_LOOPS), ("gated", OF_LOOPS)]
)
def test_an_interrupt_leaves_nothing_on_a_device(
    vulkan_device_name: str, kind: str, names: tuple[str, ...]
) -> None:
    """Whatever an interrupted session made goes with it, and nobody waits for what is not made any more."""
    files = [f"vkml/{name}.py" for name in names]
    done = run_python(
        f"""
        from tests.robustness.device_interrupts import interrupt_sessions
        assert interrupt_sessions({vulkan_device_name!r}, {kind!r}, {files!r}, {PLACES}) > {PLACES // 2}
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr


WORKERS = """
    def clocks():
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("vkml-cpu")]
        return [time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in threads]

    interrupted(run, 1000, 0.001)
    begun = clocks()
    assert begun
    while not all(now > before + 0.005 for now, before in zip(clocks(), begun, strict=True)):
        run()
    close()
"""


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clocks of threads on this system")
def test_no_worker_is_lost() -> None:
    """After a thousand interrupts every worker still takes its part."""
    ends_well((COMMON + WORKERS).format(name="cpu", size=160, layers=6))


BLAS = """
    def check():
        assert blas.thread_count() == before

    before = blas.thread_count()
    assert interrupted_everywhere(run, check, ["vkml/cpu/blas.py", "vkml/process_settings.py"]) > 10
    close()
"""


def test_blas_has_its_threads_back() -> None:
    if not blas_is_controllable():
        pytest.skip("NumPy's BLAS is not OpenBLAS")
    ends_well((COMMON + BLAS).format(name="cpu", size=160, layers=6), VKML_NATIVE="0")


def blas_is_controllable() -> bool:
    from vkml.cpu.blas import is_controllable

    return is_controllable()


HANDLERS = """
    def soon(handler):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + random.random() * 0.002)

    refused = 0

    def run_again(*_):
        global refused
        try:
            run()
        except vkml.Fail as refusal:
            assert "very thread" in str(refusal)
            refused += 1

    while refused < 10:
        soon(run_again)
        run()
    signal.setitimer(signal.ITIMER_REAL, 0)
    session.close()

    held = []
    for _ in range(20):
        session = opened()
        run()
        soon(lambda *_: session.close())
        try:
            while True:
                run()
        except vkml.Fail as refusal:
            assert "closed" in str(refusal)
        held.append([live_objects().get(kind, 0) for kind in ("Buffer", "DeviceMemory", "Semaphore")])
    assert all(each == held[0] for each in held), held
    close()
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals on this system")
def test_signal_handlers_that_use_the_session(device_name: str) -> None:
    """In the middle of a run, to run it is refused and to close it works; neither waits for itself."""
    assert output_of((COMMON + HANDLERS).format(name=device_name, size=64, layers=6)) == "done\n"
