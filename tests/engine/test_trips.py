"""Loops whose trips are submitted together, and those whose end the device finds, against NumPy's trips."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkml
from tests.control_models import check, model
from vkml import vulkan
from vkml.engine.gated_trips import GatedTrips
from vkml.engine.trips import Trips
from vkml.errors import IndexOutOfRange
from vkml.kernels.spec import Dispatch
from vkml.lowering import horizontal
from vkml.vulkan import CommandRecorder, Memory

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("notes")


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many trips were submitted together, one number a loop that ran so."""
    counts: list[int] = []
    run = Trips.run

    def noting(self: Trips, *arguments: Any) -> Any:
        counts.append(self._count)
        return run(self, *arguments)

    monkeypatch.setattr(Trips, "run", noting)
    return counts


@pytest.fixture(params=(True, False), ids=("conditional", "indirect"))
def gated(
    request: pytest.FixtureRequest, vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[int | None]]:
    """How many trips there might have been at most of loops that decided it themselves on the device.

    Once with what the device has, and once as if it had no conditional rendering.
    """
    limits: list[int | None] = []
    regions: list[int] = []
    run, conditional = GatedTrips.run, CommandRecorder.conditional
    if not request.param:
        hide_conditions(monkeypatch)

    def noting(self: GatedTrips, most: int | None, *arguments: Any) -> Any:
        limits.append(most)
        return run(self, most, *arguments)

    def noting_regions(self: CommandRecorder, memory: Memory, offset: int) -> Any:
        regions.append(offset)
        return conditional(self, memory, offset)

    monkeypatch.setattr(GatedTrips, "run", noting)
    monkeypatch.setattr(CommandRecorder, "conditional", noting_regions)
    yield limits
    if not request.param:
        close_all()
    is_conditional = request.param and has(vulkan_device_name, "conditional_rendering")
    assert bool(regions) == (is_conditional and bool(limits))


def hide_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are opened anew, and have no conditional rendering."""
    close_all()
    find = vulkan.find_device

    def finding(*arguments: Any) -> vulkan.DeviceInfo:
        info = find(*arguments)
        return replace(info, capabilities=replace(info.capabilities, conditional_rendering=False))

    monkeypatch.setattr(vulkan, "find_device", finding)


def close_all() -> None:
    """Closes the devices that sessions share, and what is left of the sessions."""
    gc.collect()
    vkml.close_devices()


def has(device_name: str, *capabilities: str) -> bool:
    """Whether a device has all of these."""
    [info] = [info for info in vkml.devices(True) if info.name == device_name]
    return all(getattr(info.capabilities, name) for name in capabilities)


def loop(types: str, body: str, results: str, inputs: str = "") -> bytes:
    """A loop of n trips over x (and more inputs of the graph), whose body is given."""
    more = f", {inputs}" if inputs else ""
    return model(
        f"""
        looping (int64 n, bool go, float[k, 4] x{more}) => ({results})
        {{
            {types} = Loop (n, go, x) <body = {body}>
        }}"""
    )


def feeds(counts: tuple[int, ...], rows: tuple[int, ...] = (8,), **more: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "n": np.array(count),
            "go": np.array(True),
            "x": rng.standard_normal((size, 4)).astype(np.float32),
            **more,
        }
        for count in counts
        for size in rows
    ]


COLLECTING = loop(
    "last, all",
    """body (int64 i, bool go_on, float[k, 4] before) => (bool same, float[k, 4] after, float[k, 4] seen)
       {
           same = Identity (go_on)
           half = Constant <value = float {0.5}> ()
           less = Mul (before, half)
           after = Cos (less)
           seen = Identity (after)
       }""",
    "float[k, 4] last, float[m, k, 4] all",
)


def test_carried_and_collected(vulkan_device_name: str, together: list[int]) -> None:
    check(COLLECTING, feeds((1, 5, 300)), vulkan_device_name)
    assert together == [1, 5, 300]


@pytest.mark.parametrize("stops", [False, True])
def test_launches_that_are_one_elsewhere_are_each_by_itself(
    vulkan_device_name: str, together: list[int], stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of tensors has the addresses of one run, and each trip has its own."""
    joined: list[int] = []
    join = horizontal.joined

    def noting(members: Sequence[Dispatch], *limits: int) -> Dispatch:
        joined.append(len(members))
        return join(members, *limits)

    monkeypatch.setattr(horizontal, "joined", noting)
    names = [f"y{at}" for at in range(5)]
    lines = [f"s{at} = Mul (before, {name})" for at, name in enumerate(names)]
    source = loop(
        "last, " + ", ".join(f"all{at}" for at in range(5)),
        f"""body (int64 i, bool go_on, float[k, 4] before)
            => (bool more, float[k, 4] after, {", ".join(f"float[k, 4] s{at}" for at in range(5))})
        {{
            most = Constant <value = int64 {{6}}> ()
            more = {"Less (i, most)" if stops else "Identity (go_on)"}
            after = Cos (before)
            {" ".join(lines)}
        }}""",
        "float[k, 4] last, " + ", ".join(f"float[m, k, 4] all{at}" for at in range(5)),
        ", ".join(f"float[k, 4] {name}" for name in names),
    )
    rng = np.random.default_rng(1)
    more = {name: rng.standard_normal((8, 4)).astype(np.float32) for name in names}
    check(source, feeds((3, 9), **more), vulkan_device_name)
    assert together == ([] if stops else [3, 9])
    assert joined == [5]


def test_no_trip_at_all(vulkan_device_name: str, together: list[int]) -> None:
    given = [*feeds((0,)), *({**feed, "go": np.array(False)} for feed in feeds((5,)))]
    expected = [[feed["x"], np.zeros((0, 8, 4), np.float32)] for feed in given]
    check(COLLECTING, given, vulkan_device_name, expected=expected)
    assert together == []


def test_open_sizes(vulkan_device_name: str, together: list[int]) -> None:
    check(COLLECTING, feeds((3, 7), rows=(8, 9, 30, 8, 100)), vulkan_device_name)
    assert together == [3] * 5 + [7] * 5


def test_values_that_change_places_and_what_was_before(vulkan_device_name: str, together: list[int]) -> None:
    """Fibonacci's numbers: a trip writes over nothing that it, or a later one, still reads."""
    source = model(
        """
        fibonacci (int64 n, bool go, float[8, 4] x, float[8, 4] y) =>
            (float[8, 4] first, float[8, 4] second, float[m, 8, 4] all, float[m, 8, 4] sums)
        {
            first, second, all, sums = Loop (n, go, x, y) <body =
                body (int64 i, bool go_on, float[8, 4] a, float[8, 4] b) =>
                    (bool same, float[8, 4] next_a, float[8, 4] sum, float[8, 4] old_a, float[8, 4] also)
                {
                    same = Identity (go_on)
                    next_a = Identity (b)
                    sum = Add (a, b)
                    old_a = Identity (a)
                    also = Identity (sum)
                }>
        }"""
    )
    ones = np.ones((8, 4), np.float32)
    given = [{"n": np.array(n), "go": np.array(True), "x": ones, "y": 2 * ones} for n in (1, 2, 3, 20)]
    check(source, given, vulkan_device_name)
    assert together == [1, 2, 3, 20]


def test_the_number_of_the_trip_and_what_is_captured(vulkan_device_name: str, together: list[int]) -> None:
    source = loop(
        "last, doubled, given",
        """body (int64 i, bool go_on, float[k, 4] before) =>
               (bool same, float[k, 4] after, float[k, 4] twice, float[4] unchanged)
           {
               same = Identity (go_on)
               number = Cast <to = 1> (i)
               moved = Add (before, number)
               after = Mul (moved, scale)
               twice = Add (after, after)
               unchanged = Identity (scale)
           }""",
        "float[k, 4] last, float[m, k, 4] doubled, float[m, 4] given",
        "float[4] scale",
    )
    scale = np.array([0.5, 1, -0.25, 2**-0.5], np.float32)
    session = check(source, feeds((2, 40), scale=scale), vulkan_device_name)
    assert together == ([2, 40] if has(vulkan_device_name, "int64") else [])  # else the number is the CPU's
    feed = feeds((40,), scale=scale)[0]
    before = session.run(None, feed)
    changed = session.run(None, {**feed, "scale": -scale})  # by the same recording
    again = session.run(None, feed)
    assert not np.array_equal(before[0], changed[0])
    for first, last in zip(before, again, strict=True):
        np.testing.assert_array_equal(first, last)


def test_a_carried_constant(vulkan_device_name: str, together: list[int]) -> None:
    source = loop(
        "last, all",
        """body (int64 i, bool go_on, float[k, 4] before) => (bool yes, float[8, 4] fixed, float[k, 4] seen)
           {
               yes = Constant <value = bool {1}> ()
               shape = Constant <value = int64[2] {8, 4}> ()
               fixed = ConstantOfShape <value = float[1] {3.0}> (shape)
               seen = Sin (before)
           }""",
        "float[8, 4] last, float[m, k, 4] all",
    )
    check(source, feeds((1, 2, 9)), vulkan_device_name)
    assert together == [1, 2, 9]


def test_collected_rows_that_are_no_multiple_of_16_bytes(
    vulkan_device_name: str, together: list[int]
) -> None:
    source = loop(
        "last, all",
        """body (int64 i, bool go_on, float[k, 4] before) => (bool same, float[k, 4] after, float[3] sums)
           {
               same = Identity (go_on)
               after = Sin (before)
               axes = Constant <value = int64[2] {0, 1}> ()
               whole = ReduceSum <keepdims = 0> (after, axes)
               three = Constant <value = int64[1] {3}> ()
               sums = Expand (whole, three)
           }""",
        "float[k, 4] last, float[m, 3] all",
    )
    check(source, feeds((1, 7)), vulkan_device_name)
    assert together == [1, 7]


def doubling(more: str, after: str, inputs: str = "int64 n, bool go", outer: str = "n, go") -> bytes:
    """A loop whose trips double x, or let it grow, as long as its largest element is below 50."""
    return model(
        f"""
        looping ({inputs}, float[k, 4] x) => (float[q2, 4] last, float[q3, 4] first)
        {{
            last, first = Loop ({outer}, x, x) <body =
                body (int64 i, bool go_on, float[q, 4] before, float[p, 4] old) =>
                    (bool more, float[r, 4] after, float[s, 4] previous)
                {{
                    top = Constant <value = float {{50.0}}> ()
                    axes = Constant <value = int64[2] {{0, 1}}> ()
                    absolute = Abs (before)
                    largest = ReduceMax <keepdims = 0> (absolute, axes)
                    more = {more}
                    less = Identity (before)
                    after = {after}
                    previous = Identity (before)
                }}>
        }}"""
    )


def test_the_device_says_whether_there_is_another_trip(
    vulkan_device_name: str, gated: list[int | None], together: list[int]
) -> None:
    """Carried values change places, one of them is what the other was before."""
    source = doubling("Less (largest, top)", "Add (before, less)")
    check(source, feeds((1, 3, 100), rows=(8, 9, 8)), vulkan_device_name)
    stores_conditions = has(vulkan_device_name, "storage_8bit")
    assert gated == ([1] * 3 + [3] * 3 + [100] * 3 if stores_conditions else [])
    assert together == []


@pytest.mark.parametrize("trips", [3, 4])
def test_a_trip_behind_the_end_does_not_run(
    vulkan_device_name: str, gated: list[int | None], trips: int
) -> None:
    """Trip i reads row i of a table of three: a fourth trip is submitted with them, and it is an error."""
    source = loop(
        "last",
        """body (int64 i, bool go_on, float[k, 4] before) => (bool more, float[k, 4] after)
           {
               row = Gather <axis = 0> (table, i)
               after = Add (before, row)
               one = Constant <value = int64 {1}> ()
               next = Add (i, one)
               more = Less (next, top)
           }""",
        "float[k, 4] last",
        "float[3, 4] table, int64 top",
    )
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    [feed] = feeds((100,), table=table, top=np.array(trips))
    with vkml.InferenceSession(source, devices=vulkan_device_name) as session:
        for _ in range(2):
            if trips == 3:
                np.testing.assert_allclose(session.run(None, feed)[0], feed["x"] + table.sum(0), rtol=1e-6)
            else:
                with pytest.raises(IndexOutOfRange, match="lies outside"):
                    session.run(None, feed)
    assert gated == ([100] * 2 if has(vulkan_device_name, "int64", "storage_8bit") else [])


def test_a_loop_without_a_limit(vulkan_device_name: str, gated: list[int | None]) -> None:
    source = doubling("Less (largest, top)", "Add (before, less)", "bool go", ", go")
    given = [{key: feed[key] for key in ("go", "x")} for feed in feeds((1, 1))]
    check(source, given, vulkan_device_name)
    assert gated == ([None, None] if has(vulkan_device_name, "storage_8bit") else [])


def test_the_number_of_a_trip_that_decides(vulkan_device_name: str, gated: list[int | None]) -> None:
    source = loop(
        "last",
        """body (int64 i, bool go_on, float[k, 4] before) => (bool more, float[k, 4] after)
           {
               number = Cast <to = 1> (i)
               after = Add (before, number)
               five = Constant <value = float {5.0}> ()
               more = Less (number, five)
           }""",
        "float[k, 4] last",
    )
    check(source, feeds((3, 100)), vulkan_device_name)
    assert gated == ([3, 100] if has(vulkan_device_name, "int64", "storage_8bit") else [])


def test_what_is_collected_until_the_device_says_so(vulkan_device_name: str, gated: list[int | None]) -> None:
    """Ends in the middle of a submission, at its end, behind several, with and without the limit's help."""
    source = loop(
        "last, all, sums",
        """body (int64 i, bool go_on, float[k, 4] before) =>
               (bool more, float[k, 4] after, float[k, 4] seen, float[1, 1] sum)
           {
               number = Cast <to = 1> (i)
               half = Constant <value = float {0.5}> ()
               less = Mul (before, half)
               after = Cos (less)
               seen = Add (after, number)
               axes = Constant <value = int64[2] {0, 1}> ()
               sum = ReduceSum (before, axes)
               one = Constant <value = float {1.0}> ()
               next = Add (number, one)
               more = Less (next, stop)
           }""",
        "float[k, 4] last, float[m, k, 4] all, float[m, 1, 1] sums",
        "float stop",
    )
    given = [
        feed
        for stop in (1, 2, 5, 64, 3, 300, 85)
        for feed in feeds((100, 1000), stop=np.array(stop, np.float32))
    ]
    check(source, given, vulkan_device_name)
    assert gated == ([100, 1000] * 7 if has(vulkan_device_name, "int64", "storage_8bit") else [])


def test_more_trips_than_are_recorded(
    vulkan_device_name: str, gated: list[int | None], together: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkml.engine.programs.MOST_DISPATCHES", 10)
    check(COLLECTING, feeds((1, 3, 77, 200)), vulkan_device_name)
    assert (together, gated) == ([1, 3], [77, 200])


def test_what_grows_goes_trip_by_trip(
    vulkan_device_name: str, gated: list[int | None], together: list[int]
) -> None:
    check(doubling("Identity (go_on)", "Concat <axis = 0> (before, less)"), feeds((3, 6)), vulkan_device_name)
    assert (together, gated) == ([], [])


def test_an_index_that_is_outside_is_said(vulkan_device_name: str, together: list[int]) -> None:
    source = loop(
        "last",
        """body (int64 i, bool go_on, float[k, 4] before) => (bool same, float[k, 4] after)
           {
               same = Identity (go_on)
               chosen = Gather <axis = 0> (before, at)
               after = Sin (chosen)
           }""",
        "float[k, 4] last",
        "int64[8] at",
    )
    right, wrong = np.arange(8)[::-1].copy(), np.array([0, 1, 2, 3, 4, 5, 6, 9])
    with vkml.InferenceSession(source, devices=vulkan_device_name) as session:
        [feed] = feeds((20,), at=right)
        wanted = session.run(None, feed)
        with pytest.raises(IndexOutOfRange, match="lies outside"):
            session.run(None, {**feed, "at": wrong})
        np.testing.assert_array_equal(session.run(None, feed)[0], wanted[0])
    assert together == [20] * 3


@pytest.mark.parametrize("more", ["Identity (go_on)", "Less (largest, top)"])
def test_the_number_of_a_trip_that_is_carried(
    vulkan_device_name: str, gated: list[int | None], together: list[int], more: str
) -> None:
    """On a device that finds the end the number changes where it lies: such loops go trip by trip."""
    source = model(
        f"""
        looping (int64 n, bool go, float[k, 4] x, int64 before) =>
            (float[k, 4] last, int64 number, float[m] all)
        {{
            last, number, all = Loop (n, go, x, before) <body =
                body (int64 i, bool go_on, float[k, 4] value, int64 old) =>
                    (bool more, float[k, 4] after, int64 same, float seen)
                {{
                    axes = Constant <value = int64[2] {{0, 1}}> ()
                    largest = ReduceMax <keepdims = 0> (value, axes)
                    top = Constant <value = float {{1e30}}> ()
                    more = {more}
                    after = Sub (value, largest)
                    same = Identity (i)
                    seen = Cast <to = 1> (old)
                }}>
        }}"""
    )
    check(source, feeds((1, 2, 7, 100), before=np.array(-5)), vulkan_device_name)
    is_known = more.startswith("Identity") and has(vulkan_device_name, "int64")
    assert (together, gated) == ([1, 2, 7, 100] if is_known else [], [])
