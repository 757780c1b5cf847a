"""The benchmark's clockwork with made-up peers: turns, differences, peers that fail."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from benchmarks.measure import Array, Feed, NotAvailable, Prepared, measure
from benchmarks.peers import PEERS, make_peers


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
    assert first.difference == 0 and second.difference == pytest.approx(0.01)
    assert first.median < second.median
    assert first.load >= 0 and second.first >= 0.003
    turns = [name for name, before in zip(log, [None, *log], strict=False) if name != before]
    assert len(turns) >= 6, "each has a burst of its own, again and again"
    assert all(peer.closed == [True] for peer in peers)


def test_what_is_not_a_number_differs() -> None:
    peers = [MadeUpPeer("a", []), MadeUpPeer("b", [], factor=float("nan"))]
    assert measure("", FEED, peers, 0.01)[1].difference == float("inf")


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
    assert works.runs and works.difference == 0


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
    assert found[1].difference is not None and found[1].difference < 1e-5
