"""Sessions used from several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from tests.patience import patience
from tests.robustness.models import product, shape_arithmetic, weights
from tests.robustness.processes import output_of

THREADS = 8
RUNS = 50


def in_threads(body: Callable[[int], None], count: int = THREADS) -> None:
    """Runs `body(0)` … `body(count - 1)` at once; raises the first exception of any."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(index: int) -> None:
        try:
            start.wait()
            body(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(60))
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def check(session: vkml.InferenceSession, rows: int, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-9, 9, (rows, 4)).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, x @ weights())


def opened(name: str, **options: Any) -> vkml.InferenceSession:
    return vkml.InferenceSession(product(), vkml.SessionOptions(**options), devices=name, precision="highest")


def test_one_session_one_shape(device_name: str) -> None:
    with opened(device_name) as session:
        in_threads(lambda index: [check(session, 3, 100 * index + run) for run in range(RUNS)] and None)


@pytest.mark.parametrize("size", [1, 2])
def test_more_shapes_than_plans_are_kept(device_name: str, size: int) -> None:
    with opened(device_name, plan_cache_size=size) as session:

        def body(index: int) -> None:
            for run in range(RUNS // 2):
                check(session, 1 + (index + run // 3) % 5, 100 * index + run)
                assert len(session._runner.plans.kept) <= size
                # Each thread runs one and may be closing another.
                assert len(session._runner.plans.alive) <= size + 2 * THREADS

        in_threads(body)
        assert set(session._runner.plans.alive) == set(session._runner.plans.kept.values())


def test_many_sessions(device_name: str) -> None:
    sessions = [opened(device_name) for _ in range(3)]
    in_threads(
        lambda index: (
            [check(sessions[index % 3], 1 + index % 4, 100 * index + run) for run in range(RUNS)] and None
        )
    )
    for session in sessions:
        session.close()


def test_sessions_made_and_closed_meanwhile(device_name: str) -> None:
    def body(index: int) -> None:
        for run in range(6):
            with opened(device_name) as session:
                check(session, 1 + run % 3, index)

    in_threads(body)


def test_other_outputs_share_nothing(device_name: str) -> None:
    with vkml.InferenceSession(shape_arithmetic(), devices=device_name) as session:

        def body(index: int) -> None:
            for run in range(RUNS // 2):
                rows = 1 + (index + run) % 3
                x = np.random.default_rng(run).standard_normal((rows, 2, 3)).astype(np.float32)
                (y,) = session.run(None, {"x": x})
                power = np.exp(x.reshape(rows, 6).astype(np.float64))
                np.testing.assert_allclose(y, power / power.sum(1, keepdims=True), rtol=1e-5)

        in_threads(body)


def test_closed_during_runs(device_name: str) -> None:
    session = opened(device_name)
    ran = threading.Event()
    refused: list[str] = []

    def body(index: int) -> None:
        if index == 0:
            ran.wait(patience(30))
            session.close()
            return
        try:
            while True:
                check(session, 1 + index % 2, index)
                ran.set()
        except vkml.Fail as error:
            refused.append(str(error))

    in_threads(body)
    assert len(refused) == THREADS - 1 and all("closed" in text for text in refused)


def test_errors_stay_with_their_thread(device_name: str) -> None:
    with opened(device_name) as session:

        def body(index: int) -> None:
            for run in range(RUNS // 2):
                if index % 2:
                    with pytest.raises(vkml.InvalidArgument):
                        session.run(None, {"x": np.ones((2, 3), np.float32)})
                else:
                    check(session, 2, run)

        in_threads(body)


AFTER_MAIN = """
    import threading, time
    import numpy as np
    import vkml
    from tests.robustness.models import model, node, value
    {more}

    def executors_are_shut():
        try:
            from concurrent.futures import ThreadPoolExecutor
            ThreadPoolExecutor(1).submit(int)
        except RuntimeError:
            return True
        return False

    def serve():
        threading.main_thread().join()
        while not executors_are_shut():
            time.sleep(0.001)
        kernels = model(
            [
                node("Softmax", ["x"], ["s"], axis=0),
                node("MatMul", ["s", "w"], ["m"]),
                node("MaxPool", ["x"], ["p"], kernel_shape=[2]),
                node("Transpose", ["x"], ["t"], perm=[2, 1, 0]),
            ],
            [value("x", (1, 4, 5))],
            [value(name, None) for name in "smpt"],
            {{"w": np.ones((5, 2), np.float32)}},
        )
        with vkml.InferenceSession(kernels, devices="{device}") as session:
            found = session.run(None, {{"x": np.ones((1, 4, 5), np.float32)}})
        print([array.shape for array in found], [float(array.max()) for array in found], flush=True)

    threading.Thread(target=serve).start()
"""


@pytest.mark.parametrize("more", ["", "import concurrent.futures.thread"])
def test_threads_that_outlive_the_main_one(device_name: str, more: str) -> None:
    """As those of servers do: Python's executors take no work then, not even their import works."""
    made = output_of(AFTER_MAIN.format(device=device_name, more=more))
    assert made == "[(1, 4, 5), (1, 4, 2), (1, 4, 4), (5, 4, 1)] [1.0, 5.0, 1.0, 1.0]\n"
