"""What interrupts leave on a Vulkan device, at every place of some files. For processes of their own."""

from __future__ import annotations

import faulthandler
import gc
import itertools
from collections.abc import Collection

import numpy as np

import vkml
from tests.control_models import model
from tests.patience import patience
from tests.robustness.interrupts import interrupted_everywhere
from vkml.engine.devices import open_device
from vkml.vulkan import find_device, live_objects, pipelines

_KINDS = ("Buffer", "DeviceMemory", "CommandPool", "Semaphore", "QueryPool", "ShaderModule", "Pipeline")
MODELS = {
    "plain": """g (float[n,32] x, int64 m, bool go) => (float[n,32] y) {
        a = Softmax(x) b = Add(a, x) y = Sub(b, a) }""",
    "counted": """g (float[n,32] x, int64 m, bool go) => (float[n,32] y, float[k,n,32] z) {
        y, z = Loop (m, go, x) <body = body (int64 i, bool c, float[n,32] s) =>
            (bool d, float[n,32] t, float[n,32] u) {
                d = Identity(c) e = Relu(s) t = Add(e, x) u = Identity(t) }> }""",
    "gated": """g (float[n,32] x, int64 m, bool go) => (float[n,32] y) {
        y = Loop (m, go, x) <body = body (int64 i, bool c, float[n,32] s) => (bool d, float[n,32] t) {
            t = Add(s, x) h = ReduceMax<keepdims=0>(t)
            l = Constant<value = float {3.5}>() d = Less(h, l) }> }""",
}
"""Of sizes that stay open. Loops run three trips, each with x added, `gated` ones because they say so."""


def interrupt_sessions(device_name: str, kind: str, files: Collection[str], most: int) -> int:
    """Opens, runs and closes sessions, each interrupted once, and asserts that nothing of them is left.

    Args:
        device_name: a Vulkan device.
        kind: of `MODELS`.
        files: as for `interrupted_everywhere`.
        most: places to try.

    Returns:
        how many were tried.
    """
    faulthandler.dump_traceback_later(patience(200), exit=True)  # somebody waits for ever
    pipelines.UNUSED_PIPELINES = 0  # all sessions have their own compiled
    open_device(find_device(device_name))
    source, sizes = model(MODELS[kind]), itertools.cycle(range(20, 30))

    def work() -> None:
        options = vkml.SessionOptions(plan_cache_size=3)
        session = vkml.InferenceSession(source, options, devices=device_name, precision="highest")
        for rows in (next(sizes), 1500, 1500):  # large results have a way of their own
            feed = {"x": np.ones((rows, 32), np.float32), "m": np.array(3), "go": np.array(True)}
            found = session.run(None, feed)[0]
            np.testing.assert_allclose(found, 1 if kind == "plain" else 4, rtol=1e-6)
        session.close()

    def held() -> dict[str, int]:
        gc.collect()
        return {each: live_objects().get(each, 0) for each in _KINDS}

    for _ in range(3):
        work()
    before = held()
    assert before["Pipeline"] == before["CommandPool"] == 0

    def check() -> None:
        found = held()
        assert found == before, (found, before)
        work()

    return interrupted_everywhere(work, check, files, most)
