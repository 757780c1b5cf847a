"""A model's file that is written to while a session lives: typed errors and right results, no crash.

Children, because the operating system ends a process that reads what a truncated file no longer has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.robustness.processes import run_python

CHANGES = ("overwrite", "overwrite_and_set_times_back", "truncate")
HARMLESS = ("replace_by_renaming", "delete", "rename_and_change_mode")

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows lets nobody write into a mapped file"
)


def live_through(folder: Path, device: str, changes: Sequence[str], **options: Any) -> dict[str, Any]:
    """What sessions say after each change, one after another in one child; see `rewriting.live_through`."""
    done = run_python(
        f"""
        import json, logging
        from pathlib import Path
        from tests.robustness import rewriting
        logging.disable(logging.CRITICAL)
        for change in {list(changes)!r}:
            print(change, flush=True)
            folder = Path({str(folder)!r}, change)
            folder.mkdir()
            print(json.dumps(rewriting.live_through(change, folder, {device!r}, **{options!r})), flush=True)
        """
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    return {change: json.loads(found) for change, found in zip(lines[::2], lines[1::2], strict=True)}


def every(found: Mapping[str, Any], what: str) -> set[Any]:
    return {each[what] for each in found.values()}


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_new_plans_say_so_and_known_ones_go_on(external: bool, tmp_path: Path, device_name: str) -> None:
    # On the CPU a table is read where it lies; that is stated, not promised to go well.
    is_cpu = device_name == "cpu"
    changes = (*CHANGES, *(["overwrite_data"] if external else []))
    found = live_through(tmp_path, device_name, changes, external=external, table=not is_cpu)
    assert set(found) == set(changes)
    assert every(found, "new") == {"ModelChanged"}
    assert every(found, "known") == {"right"}
    assert is_cpu or every(found, "mapped") == {False}


def test_a_plan_for_all_lengths_says_so(tmp_path: Path, device_name: str) -> None:
    """On the CPU it reads constants in the file; a GPU has them all."""
    found = live_through(tmp_path, device_name, CHANGES, lengths=2)
    said = {"ModelChanged" if device_name == "cpu" else "right"}
    assert every(found, "new") == every(found, "known") == said


def test_other_names_change_nothing(tmp_path: Path, device_name: str) -> None:
    found = live_through(tmp_path, device_name, HARMLESS)
    assert set(found) == set(HARMLESS)
    assert every(found, "new") == every(found, "known") == {"right"}


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_a_copy_does_not_mind(external: bool, tmp_path: Path, device_name: str) -> None:
    changes = ("overwrite", "truncate")
    found = live_through(tmp_path, device_name, changes, external=external, copy_model=True)
    assert found == {change: {"mapped": False, "new": "right", "known": "right"} for change in changes}


def test_sessions_of_fixed_shapes_on_a_gpu_need_the_file_no_more(
    tmp_path: Path, vulkan_device_name: str
) -> None:
    found = live_through(tmp_path, vulkan_device_name, ["truncate"], rows=32)
    assert found == {"truncate": {"mapped": False, "known": "right"}}


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    done = run_python(
        f"""
        from pathlib import Path
        import vkml, vkml.engine.prepare as engine
        from tests.robustness import rewriting
        path = Path({str(tmp_path)!r}) / "model.onnx"
        prepare = engine.prepare
        def slowly(*arguments, **options):
            rewriting.overwrite(path)
            return prepare(*arguments, **options)
        engine.prepare = slowly
        for copies in (False, True):
            rewriting.save(path, 0)
            try:
                vkml.InferenceSession(path, vkml.SessionOptions(copy_model=copies), devices="cpu")
            except vkml.ModelChanged as error:
                print(error)
        """
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("has changed since the model was opened: it was written to" in line for line in lines)


@pytest.mark.parametrize("copies", [False, True])
def test_weights_that_a_normalisation_is_folded_into_are_read_anew(
    copies: bool, tmp_path: Path, device_name: str
) -> None:
    """They are made of what the file has; behind a change a new plan says so, or has all it needs."""
    done = run_python(
        f"""
        from pathlib import Path
        import numpy as np, vkml
        from benchmarks.models import Network
        from vkml.ir import dtypes
        from vkml.onnx import save_graph

        path = Path({str(tmp_path)!r}) / "model.onnx"
        net = Network("folded")
        y = net.convolution(net.input("x", ("n", 64, 6, 6)), (64, 64), 3, is_normalised=True)
        net.output(y, "y", ("n", 64, 6, 6), dtypes.FLOAT32)
        save_graph(net.finish(), path)
        x = np.random.default_rng(1).standard_normal((3, 64, 6, 6), np.float32)
        options = vkml.SessionOptions(copy_model={copies})
        [wanted] = vkml.InferenceSession(path, devices="cpu").run(None, {{"x": x}})
        session = vkml.InferenceSession(path, options, devices={device_name!r})
        session.run(None, {{"x": x[:1]}})
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
        for rows in (1, 3):
            try:
                [found] = session.run(None, {{"x": x[:rows]}})
                np.testing.assert_allclose(found, wanted[:rows], rtol=1e-3, atol=1e-4)
                print("right")
            except vkml.ModelChanged:
                print("changed")
        """
    )
    assert done.returncode == 0, done.stderr
    known, new = done.stdout.split()
    assert known == "right" and new in ({"right"} if copies else {"right", "changed"})
