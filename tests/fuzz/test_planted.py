"""The fuzzer finds planted mistakes of every kind and makes the case that shows one small."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz import children
from tests.fuzz.campaign import Campaign, Found
from tests.fuzz.case import Case
from tests.fuzz.planted import VICTIM

OPS = ("Relu", "Add", "Concat", "Transpose", VICTIM)
"""What cases are made of: what is planted concerns one of them."""
MOST_CASES = 40


def found_in_campaign(
    mistake: str, folder: Path, minimises: bool = True, ops: tuple[str, ...] = OPS
) -> Found:
    """The first finding of a campaign on a vkml with a mistake in it."""
    environment = {"VKML_FUZZ_HOOKS": "tests.fuzz.planted", "VKML_FUZZ_PLANT": mistake}
    said: list[str] = []
    campaign = Campaign(
        "cpu", 5, folder, environment=environment, say=said.append, minimises=minimises, ops=ops
    )
    with campaign:
        for index in range(MOST_CASES):
            campaign.run(1, first=3 * index)  # random cases only
            if campaign.report.found:
                break
    assert campaign.report.found, f"{MOST_CASES} cases show nothing of the mistake"
    assert any(VICTIM in text for text in said)
    return next(iter(campaign.report.found.values()))


def ops_of(found: Found) -> list[str]:
    proto = Case.load(found.path).proto()
    assert proto is not None
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize("mistake", ["wrong", "operator", "exception", "refused", "aliasing"])
def test_a_mistake_is_found_and_made_one_node(mistake: str, tmp_path: Path) -> None:
    found = found_in_campaign(mistake, tmp_path)
    assert found.finding.kind == mistake
    assert ops_of(found) == [VICTIM]
    assert str(found.path) in found.command and found.path.with_suffix(".onnx").exists()


def test_a_warning_counts_as_an_exception(tmp_path: Path) -> None:
    found = found_in_campaign("warning", tmp_path, minimises=False)
    assert (found.finding.kind, found.finding.where) == ("exception", "RuntimeWarning")


def test_what_the_judge_cannot_judge_is_a_finding(tmp_path: Path) -> None:
    found = found_in_campaign("judge", tmp_path, minimises=False)
    assert (found.finding.kind, found.finding.where) == ("judge", "LookupError")


def test_a_crash_is_found_and_made_one_node(tmp_path: Path) -> None:
    found = found_in_campaign("crash", tmp_path, ops=("Relu", VICTIM))  # each candidate ends a process
    assert found.finding.kind == "crash" and "SIGABRT" in found.finding.message
    assert "planted.py" in found.finding.message
    assert ops_of(found) == [VICTIM]


def test_memory_out_of_proportion_is_found(tmp_path: Path) -> None:
    found = found_in_campaign("memory", tmp_path, minimises=False)
    assert found.finding.kind == "memory"
    assert VICTIM in ops_of(found)


@pytest.mark.parametrize(("mistake", "words"), [("hang", "nothing happens"), ("spin", "still computing")])
def test_hangs_are_found(mistake: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "IDLE_SECONDS", 8.0)
    monkeypatch.setattr(children, "CPU_SECONDS", 5.0)
    found = found_in_campaign(mistake, tmp_path, minimises=False)
    assert found.finding.kind == "hang" and words in found.finding.message
    assert "planted.py" in found.finding.message
    assert VICTIM in ops_of(found)


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    """Also one that spins, as after a campaign that someone kills."""
    code = f"""
import os, pathlib, threading, time
from tests.fuzz.children import Child
child = Child({{"VKML_FUZZ_HOOKS": "tests.fuzz.planted", "VKML_FUZZ_PLANT": "spin"}})
request = {{"source": "random", "seed": 5, "ops": ["{VICTIM}"], "device": "cpu", "index": 0}}
child._start()
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child._process.pid))
child._write.write((__import__("json").dumps(request) + "\\n").encode())
child._write.flush()
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], cwd=children.REPOSITORY, timeout=100, check=False)
    process = Path("/proc") / (tmp_path / "pid").read_text()
    deadline = time.monotonic() + 60
    while process.exists() and "State:\tZ" not in (process / "status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_without_a_mistake_nothing_is_found(tmp_path: Path) -> None:
    with Campaign("cpu", 5, tmp_path, ops=OPS) as campaign:
        for index in range(15):
            report = campaign.run(1, first=3 * index)  # random cases only
    assert not report.found, [str(found.finding) for found in report.found.values()]
    assert report.counts["compared"] > 50 and report.counts["operators compared"] > 50
