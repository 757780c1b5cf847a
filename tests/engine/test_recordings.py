"""What sessions record has a barrier wherever one is needed, and none that is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkml
from tests.control_models import check, model
from tests.engine.test_trips import close_all, feeds, has, hide_conditions
from tests.recording_notes import Notes
from tests.recordings import Submitted, missing_barriers
from vkml import vulkan
from vkml.engine import devices as device_registry
from vkml.engine import fragment_check
from vkml.engine.sketch import Sketch
from vkml.kernels import matrix_units
from vkml.kernels.matrix_tiles import Choice, Tile
from vkml.onnx import save_graph
from vkml.vulkan import Device, MemoryKind
from vkml.vulkan.memory import Allocator

Array = np.ndarray[Any, Any]
KNOWN = {
    ("trips", "_record", "between"),  # three: before a trip, before copies, before results
    ("trips", "_record", "to_host"),
}
GATED = {("gated_trips", "_recorded", "to_host"), ("gated_trips", "_end", "to_host")}
COLLECTING = {("gated_trips", "_recorded", "between")}
CONDITIONAL = {
    ("gated_trips", "_record_launches", "to_condition"),
    ("gated_trips", "_record_launches", "from_condition"),
}
INDIRECT = {("gated_trips", "_record_launches", "of_counts")}
LEVELS = {("recorded", "_record_levels", "between")}
PLAN = {("recorded", "_record", "to_host")}
COPIED = {("recorded", "_record", "between")}
FETCHED = {("fetching", "start", "between"), ("fetching", "start", "to_host")}
STAGED = {("recorded", "record_inputs", "between")}
UPLOADS = {("transfer", "record", "between")}
Kinds = set[tuple[str, str, str]]
pytestmark = pytest.mark.usefixtures("launches_of_their_own")


def found_in(notes: Notes, *kinds: Kinds, count: int) -> None:
    """Fails unless barriers stand at so many places, of these kinds, and none of them is of no use."""
    assert missing_barriers(notes.history) == []
    assert notes.dispatches
    assert {(site.module, site.function, site.kind) for site in notes.sites} == set().union(*kinds)
    assert len(notes.sites) == count
    assert notes.idle == set()


def looping(more: str, *collected: str) -> bytes:
    """A loop over x, twice, of two levels a trip; `more` says whether there is another."""
    names = "".join(f", all_{name}" for name in collected)
    seen = "".join(f", float[k, 4] {name}" for name in collected)
    results = "".join(f", float[m, k, 4] all_{name}" for name in collected)
    made = "".join(f"{name} = Identity ({name.split('_')[0]}) " for name in collected)
    return model(
        f"""
        looping (int64 n, bool go, float[k, 4] x) => (float[k, 4] last, float[k, 4] turned{results})
        {{
            last, turned{names} = Loop (n, go, x, x) <body =
                body (int64 i, bool go_on, float[k, 4] before, float[k, 4] sign) =>
                    (bool more, float[k, 4] after, float[k, 4] minus{seen})
                {{
                    axes = Constant <value = int64[2] {{0, 1}}> ()
                    largest = ReduceMax (before, axes)
                    minus = Neg (sign)
                    after = Sub (before, largest)
                    other = Add (before, largest)
                    top = Constant <value = float[1, 1] {{1e30}}> ()
                    less = Less (largest, top)
                    none = Constant <value = int64[0] {{}}> ()
                    more = {more}
                    {made}
                }}>
        }}"""
    )


COLLECTED = "sign_it", "other_one", "other_too"
"""What lies where the next trip's first level writes, and what the last level makes, which is also copied."""
WAYS = pytest.mark.parametrize("collected", [(), COLLECTED], ids=["carrying", "collecting"])


@WAYS
def test_known_trips(
    vulkan_device_name: str, notes: Notes, monkeypatch: pytest.MonkeyPatch, collected: tuple[str, ...]
) -> None:
    """In several submissions."""
    monkeypatch.setattr("vkml.engine.trips.CHUNK", 6)
    check(looping("Identity (go_on)", *collected), feeds((1, 8)), vulkan_device_name)
    found_in(notes, KNOWN, LEVELS, count=5 if collected else 4)


@pytest.fixture(params=(True, False), ids=("conditional", "indirect"))
def switched(request: pytest.FixtureRequest, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What orders switches: with what the device has, and as if it had no conditional rendering."""
    if request.param and not has(vulkan_device_name, "conditional_rendering"):
        pytest.skip("no conditional rendering on this device")
    if not request.param:
        hide_conditions(monkeypatch)
    yield CONDITIONAL if request.param else INDIRECT
    if not request.param:
        close_all()


@WAYS
def test_trips_whose_end_the_device_finds(
    vulkan_device_name: str, switched: Kinds, notes: Notes, collected: tuple[str, ...]
) -> None:
    check(looping("Reshape (less, none)", *collected), feeds((1, 8, 100)), vulkan_device_name)
    if not has(vulkan_device_name, "storage_8bit"):  # nowhere to store what trips decide
        assert not any(site.module == "gated_trips" for site in notes.sites)
        return
    copies = COLLECTING if collected else set()
    found_in(notes, GATED, copies, switched, LEVELS, count=6 if collected else 5)


def test_trips_of_open_sizes(vulkan_device_name: str, notes: Notes) -> None:
    source = looping("Identity (go_on)", *COLLECTED)
    check(source, feeds((3, 7), rows=(8, 9, 30)), vulkan_device_name)
    found_in(notes, KNOWN, LEVELS, count=5)


def chain(weights: Array, rows: int | str) -> bytes:
    """Softmax of x · weights, which is two levels at least, and the largest of each row."""
    sketch = Sketch("chain", 17)
    x = sketch.input("x", (rows, weights.shape[0]))
    product = sketch.node("MatMul", x, sketch.constant(weights))
    return save_graph(
        sketch.finish(sketch.node("Softmax", product), sketch.node("ReduceMax", product, axes=[1]))
    )


def numbers(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def run(device: str, weights: Array, *counts: int, atol: float = 1e-5, **options: Any) -> None:
    with vkml.InferenceSession(chain(weights, "n"), devices=device, **options) as session:
        for rows in counts:
            x = numbers(rows, weights.shape[0])
            made, largest = session.run(None, {"x": x})
            product = x @ weights
            # Only ordering is looked for here: where fp16 products are used, they have three digits.
            np.testing.assert_allclose(made, softmax(product), rtol=1e-4, atol=atol)
            np.testing.assert_allclose(largest, product.max(1, keepdims=True), rtol=1e-2)


def test_results_that_are_copied(vulkan_device_name: str, notes: Notes) -> None:
    run(vulkan_device_name, numbers(8, 1100), 3, 3)
    found_in(notes, LEVELS, COPIED, PLAN, count=3)


def test_open_sizes(vulkan_device_name: str, notes: Notes) -> None:
    run(vulkan_device_name, numbers(8, 1100), 3, 4, 5, 40, 6)
    found_in(notes, LEVELS, COPIED, PLAN, count=3)


def test_large_results_that_are_fetched(vulkan_device_name: str, notes: Notes) -> None:
    info = vulkan.find_device(vulkan_device_name, True)
    if not device_registry.open_device(info).imports_host:
        pytest.skip("the device imports no memory of the host")
    run(vulkan_device_name, numbers(8, 1100), 300, 300, 290)
    found_in(notes, LEVELS, PLAN, FETCHED, count=4)


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices are opened anew, and the host reaches none of their memory."""
    close_all()
    make = Allocator.__init__

    def making(self: Allocator, context: Any, memory_limit: float, force_staging: bool) -> None:
        make(self, context, memory_limit, True)

    monkeypatch.setattr(Allocator, "__init__", making)
    yield
    close_all()


def test_staged_inputs_and_weights(vulkan_device_name: str, staging: None, notes: Notes) -> None:
    run(vulkan_device_name, numbers(8, 1100), 3, 3)
    assert missing_barriers(notes.history) == []
    kinds = {(site.module, site.function, site.kind) for site in notes.sites}
    assert kinds == set().union(LEVELS, COPIED, PLAN, STAGED, UPLOADS)
    assert {site.module for site in notes.idle} <= {"transfer"}  # see `test_transfers`


def test_transfers(vulkan_device_name: str, notes: Notes) -> None:
    """Behind a submission that writes what is downloaded, and before one that reads what was copied."""
    with Device(vulkan.find_device(vulkan_device_name, True), force_staging=True) as device:
        one, other = (device.allocate(4096, MemoryKind.DEVICE) for _ in range(2))
        recorder = device.recorder("fill")
        recorder.fill(one, 0, 4096, 7)
        filled = device.submission(recorder.finish())
        filled.run()
        assert (device.download(one).view(np.int32) == 7).all()
        device.copy(one, 0, other, 0, 2048)
        recorder = device.recorder("copy")
        recorder.copy(other, 0, one, 2048, 1024)
        copied = device.submission(recorder.finish())
        copied.run()
    assert {site.module for site in notes.sites} == {"transfer"}
    assert missing_barriers(notes.history) == []
    assert len(notes.sites) == 3
    assert notes.idle == set()


def test_weights_that_are_packed(
    vulkan_device_name: str, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = vulkan.find_device(vulkan_device_name, True)
    if device_registry.target_of(info).fragment is None:
        pytest.skip("no fp16 matrix units on this device")
    # Whatever ran before, the device is asked how it holds fragments, which the host reads.
    monkeypatch.setattr(fragment_check, "_known", {})
    monkeypatch.setattr(fragment_check, "_kept", lambda *entry: None)
    monkeypatch.setattr(matrix_units, "forced", Choice(Tile(16, 16, 2, 1, 32, 1, 1.0, 1.0), 1, False))
    run(vulkan_device_name, numbers(64, 32), 20, atol=1e-2, precision="high")
    assert missing_barriers(notes.history) == []
    sites = {site for site in notes.sites if site.module == "single_run"}
    assert {site.kind for site in sites} == {"between", "to_host"}
    if len({event.queue for event in notes.history if isinstance(event, Submitted)}) == 1:
        assert sites & notes.idle == set()  # from queue to queue the host's wait is what there is
