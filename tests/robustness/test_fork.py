"""Processes that fork: children compute beside their parent, whatever its threads were doing just then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.robustness.processes import output_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

PREFORKED = """
    import numpy as np, vkml
    from tests.robustness.forks import in_children
    from tests.robustness.models import model, node, value

    SHAPE, DOUBLE = (4, 100, 100), 11
    wide = model(
        [
            node("Mul", ["x", "x"], ["a"]),
            node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
            node("Cast", ["b"], ["b64"], to=DOUBLE),
            node("CumSum", ["b64", "axis"], ["c64"]),  # by NumPy
            node("Cast", ["c64"], ["c"], to=1),
            node("Add", ["c", "x"], ["y"]),
            node("Cast", ["y"], ["d"], to=DOUBLE),
            node("Mul", ["d", "d"], ["z"]),
        ],
        [value("x", SHAPE)],
        [value("y", SHAPE), value("b", SHAPE), value("z", SHAPE, DOUBLE)],
        {"axis": np.array(1)},
    )

    def check(seed):
        x = np.random.default_rng(seed).integers(-9, 9, SHAPE).astype(np.float32)
        y, b, z = session.run(None, {"x": x})
        assert np.array_equal(b, (x * x).transpose(0, 2, 1)), "b"
        assert np.array_equal(y, np.cumsum(b, 1) + x), "y"
        assert np.array_equal(z, y.astype(np.float64) ** 2), "z"
        return y, b, z

    def serve(number):
        for request in range(60):
            check(1000 * number + request)

    session = vkml.InferenceSession(wide, devices="cpu")
    freed, kept = check(1), check(0)
    del freed  # the children find memory to use again
    copies = [array.copy() for array in kept]
    in_children(4, serve)
    for array, copy in zip(kept, copies):
        assert np.array_equal(array, copy), "a child wrote into a result of its parent's"
    serve(9)
    print("done")
"""


@pytest.mark.parametrize("native", ["", "0"])
def test_children_of_a_server_compute_side_by_side(native: str) -> None:
    """Workers forked from a parent that has run the model, each with requests of its own."""
    assert output_of(PREFORKED, VKML_NATIVE=native) == "done\n"


BUSY = """
    import threading, numpy as np, vkml
    from tests.robustness.forks import in_children
    from tests.robustness.models import model, node, value

    SIZE = 160
    names = ["x", *(f"h{{index}}" for index in range(5)), "y"]
    chain = model(
        [node("MatMul", [a, "w"], [b]) for a, b in zip(names, names[1:])],
        [value("x", ("n", SIZE))],
        [value("y", ("n", SIZE))],
        {{"w": 2 * np.eye(SIZE, dtype=np.float32)}},
    )

    def open_session():
        return vkml.InferenceSession(chain, vkml.SessionOptions(intra_op_num_threads=3), devices="cpu")

    def check(session, rows, seed=0):
        x = np.random.default_rng(seed).standard_normal((rows, SIZE)).astype(np.float32)
        assert np.array_equal(session.run(None, {{"x": x}})[0], 64 * x)

    def runs(number):
        check(session, SIZE, number)

    def plans(number):
        check(session, 1 + next(rows) % 400)

    def loads(number):
        with open_session() as other:
            check(other, SIZE, number)

    def repeat(number):
        while True:
            {work}(number)
            started[number].set()

    def has_workers():
        return any(thread.name.startswith("vkml-cpu") for thread in threading.enumerate())

    def child(number):
        for rows in (SIZE, 7, SIZE):
            check(session, rows)
        assert has_workers() or not had_workers
        session.close()
        with open_session() as other:
            check(other, SIZE)

    import itertools
    rows = itertools.count()
    session = open_session()
    started = [threading.Event() for _ in range(3)]
    for number in range(len(started)):
        threading.Thread(target=repeat, args=(number,), daemon=True).start()
    for event in started:
        event.wait()
    had_workers = has_workers()
    for _ in range(10):
        in_children(1, child)
    print("done")
"""


@pytest.mark.parametrize("native", ["", "0"])
@pytest.mark.parametrize("work", ["runs", "plans", "loads"])
def test_children_of_a_busy_process(work: str, native: str) -> None:
    """A child has neither the workers of its parent nor the threads that hold locks and have begun runs."""
    assert output_of(BUSY.format(work=work), VKML_NATIVE=native) == "done\n"


HELD = """
    import gc, os, sys, threading, numpy as np, vkml
    from tests.robustness.forks import in_children
    from tests.robustness.models import model, node, value
    from vkml.cpu.blas import borrowed_threads
    from vkml.kernels.compiling import compile_kernel

    SOURCE = '[shader("compute")] [numthreads({0}, 1, 1)] void main(uint3 i : SV_DispatchThreadID) {{ }}'
    mixed = model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Cast", ["a"], ["a64"], to=11),
            node("CumSum", ["a64", "axis"], ["b64"]),  # by NumPy
            node("Cast", ["b64"], ["b"], to=1),
            node("Mul", ["b", "b"], ["y"]),
        ],
        [value("x", ("n", 160))],
        [value("y", ("n", 160))],
        {"w": np.eye(160, dtype=np.float32), "axis": np.array(1)},  # so large that it stays in the file
    )
    path = os.environ["MODEL"]
    with open(path, "wb") as file:
        file.write(mixed)

    def check(session, rows):
        x = np.random.default_rng(rows).integers(-3, 4, (rows, 160)).astype(np.float32)
        assert np.array_equal(session.run(None, {"x": x})[0], np.cumsum(x, 1) ** 2)
        session.report({"n": rows})

    def use(number):
        check(session, 5)
        check(session, 600 + number)
        with vkml.InferenceSession(path, devices="cpu") as other:
            check(other, 700)
            check(other, 5)
        with borrowed_threads():
            pass
        assert compile_kernel(SOURCE.format(2 + number))
        if number:
            session.close()

    def locks():
        kinds = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
        # The devices' own are another matter: a child opens none of its parent's.
        modules = [
            module
            for name, module in sys.modules.items()
            if name.split(".")[0] == "vkml" and not name.startswith("vkml.vulkan")
        ]
        objects = [thing for thing in gc.get_objects() if str(type(thing).__module__).startswith("vkml.")]
        for owner in (*modules, *objects):
            for name, found in list(getattr(owner, "__dict__", {}).items()):
                if isinstance(found, kinds):
                    yield f"{type(owner).__qualname__}.{name}", found

    def hold():
        held.update(name for name, lock in free if lock.acquire(blocking=False))
        ready.set()
        threading.Event().wait()

    session = vkml.InferenceSession(path, devices="cpu")
    use(0)
    free, held, ready = list(locks()), set(), threading.Event()
    threading.Thread(target=hold, daemon=True).start()
    ready.wait()
    wanted = {"PlanCache.lock", "Plan._growing", "Flight.lock", "MappedFile._lock", "module._changed"}
    try:
        assert wanted < held, held
        in_children(2, lambda number: use(1 + number))
        print("done", flush=True)
    except BaseException as error:
        print(error, flush=True)
    finally:
        os._exit(0)  # what runs at an exit would wait for these locks
"""


def test_children_while_another_thread_holds_every_lock(tmp_path: Path) -> None:
    model = tmp_path / "mixed.onnx"
    assert output_of(HELD, VKML_CACHE_DIR=str(tmp_path), MODEL=str(model)) == "done\n"
