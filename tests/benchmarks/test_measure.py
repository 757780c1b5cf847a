"""The benchmark's clockwork with made-up peers: turns, differences, peers that fail."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from benchmarks.measure import Array, Errors, Feed, NotAvailable, Prepared, errors_of, measure
from benchmarks.peers import PEERS, make_peers
from tests.robustness.processes import output_of


@dataclass
class MadeUpPeer:
    """Takes a known time and gives a known answer."""

    name: str
    log: list[str]
    factor: float = 1.0
    seconds: float = 0.001
    problem: Exception | None = None
    closed: list[bool] = field(default_factory=list)

    def prepare(self, path: str) -> Prepared:
        if self.problem:
            raise self.problem

        def run(feed: Feed) -> list[Array]:
            self.log.append(self.name)
            time.sleep(self.seconds)
            return [np.asarray(feed["x"]) * self.factor]

        return Prepared(run, lambda: self.closed.append(True), "nowhere")


FEED = {"x": np.array([1.0, -2.0])}


def test_peers_take_turns_and_are_compared() -> None:
    log: list[str] = []
    peers = [MadeUpPeer("a", log), MadeUpPeer("b", log, factor=1.01, seconds=0.003)]
    first, second = measure("", FEED, peers, 0.2)
    assert first.errors == Errors(0, 0)
    assert second.errors == Errors(pytest.approx(0.01), pytest.approx(0.01))
    assert first.median < second.median
    assert first.load >= 0 and second.first >= 0.003
    turns = [name for name, before in zip(log, [None, *log], strict=False) if name != before]
    assert len(turns) >= 6, "each has a burst of its own, again and again"
    assert all(peer.closed == [True] for peer in peers)


def test_what_is_not_a_number_differs() -> None:
    peers = [MadeUpPeer("a", []), MadeUpPeer("b", [], factor=float("nan"))]
    assert measure("", FEED, peers, 0.01)[1].errors == Errors(math.inf, math.inf)


def test_errors_are_the_largest_and_the_mean_of_the_worst_output() -> None:
    want = [np.array([4.0, -2.0, 0.0, 2.0]), np.array([1.0, 1.0])]
    have = [np.array([4.0, -2.2, 0.0, 2.0]), np.array([1.0, 1.0])]
    assert errors_of(have, want) == Errors(pytest.approx(0.05), pytest.approx(0.025))
    assert errors_of([have[0], np.array([1.5, 1.0])], want) == Errors(pytest.approx(0.5), pytest.approx(0.25))
    assert errors_of([np.zeros(3), have[1]], want) == Errors(math.inf, math.inf)
    zeros, empty = np.zeros(2), np.zeros(0)
    assert errors_of([zeros, empty], [zeros, empty]) == Errors(0, 0)


def test_errors_are_counted_from_the_peer_that_is_the_reference() -> None:
    def errors(reference: str) -> list[float]:
        peers = [MadeUpPeer("a", [], factor=1.02), MadeUpPeer("b", [])]
        found = measure("", FEED, peers, 0.01, reference)
        return [each.errors.largest for each in found if each.errors is not None]

    assert errors("b") == [pytest.approx(0.02), 0]
    assert errors("") == errors("nobody") == [0, pytest.approx(0.02 / 1.02)]


def test_failures_become_reasons() -> None:
    log: list[str] = []
    peers = [
        MadeUpPeer("missing", log, problem=NotAvailable("not installed")),
        MadeUpPeer("broken", log, problem=ValueError("no such kernel\nand a long story")),
        MadeUpPeer("works", log),
    ]
    missing, broken, works = measure("", FEED, peers, 0.01)
    assert (missing.reason, missing.runs) == ("not installed", [])
    assert broken.reason == "ValueError: no such kernel"
    assert works.runs and works.errors == Errors(0, 0)


def test_unknown_peers_are_named() -> None:
    with pytest.raises(SystemExit, match=r"no peer 'abacus'.*ort-cpu"):
        make_peers(["abacus"], "auto")
    assert [peer.name for peer in make_peers(list(PEERS), "cpu")] == list(PEERS)


def test_peers_agree_on_a_model(tmp_path: Path) -> None:
    import vkml.onnx
    from benchmarks.feeds import feed_of
    from benchmarks.models import plain_convolutions

    path = str(tmp_path / "net.onnx")
    vkml.onnx.save_graph(plain_convolutions("net", (4, 6)), path)
    found = measure(path, feed_of(path), make_peers(["ort-cpu", "vkml-cpu"], "cpu"), 0.01)
    assert [each.reason for each in found] == ["", ""]
    assert found[1].errors is not None and found[1].errors.mean > 0
    assert found[1].errors.largest < 1e-5


COUNTED = """
    import mmap
    from pathlib import Path
    import numpy as np
    from benchmarks.memory import _own_bytes

    folder = Path("{folder}")
    path = folder / "file"
    path.write_bytes(bytes(40 << 20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        before = _own_bytes(folder)
        assert mapped[:: mmap.PAGESIZE].count(1) == 0  # every page has been read
        without, whole = _own_bytes(folder), _own_bytes(folder / "other")
        assert whole - without >= 40 << 20
        held = np.ones(20 << 20, np.uint8)
        assert before < without + (10 << 20) and _own_bytes(folder) - without >= held.nbytes // 2
"""


def test_memory_of_a_process_counts_no_pages_of_the_models_files(tmp_path: Path) -> None:
    """In one of its own: that of many tests holds gigabytes, of which the system may take some back."""
    assert output_of(COUNTED.format(folder=tmp_path)) == ""
