"""The reference of the site describes every public name; docstrings come to it as they were meant."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import struct
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vkml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def load(name: str, folder: Path = DOCS) -> ModuleType:
    """A module that the site is made with."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = load("reference")
drawing = load("draw_speed", ROOT / "tools")


def public_modules(module: ModuleType) -> list[ModuleType]:
    """A module and those that it offers by name, these' among them."""
    # What lies below `vkml.capi` are onnxruntime's own paths to names that are described elsewhere.
    offered = set(vkml._PACKAGES) - {"capi"} if module is vkml else getattr(module, "__all__", ())
    parts = [getattr(module, name) for name in offered]
    below = [
        each for each in parts if isinstance(each, ModuleType) and each.__name__.startswith(module.__name__)
    ]
    return [module, *(found for each in below for found in public_modules(each))]


def described() -> set[str]:
    names: list[str] = []
    for page in sorted((DOCS / "api").glob("*.md")):
        for module, sources in reference.requests(page.read_text(encoding="utf-8")):
            names += (f"{module}.{each}" for each in reference.public_names(module, sources))
    assert len(names) == len(set(names)), "a name is described twice"
    return set(names)


def test_every_public_name_is_described() -> None:
    modules = [each.__name__ for each in public_modules(vkml)]
    assert {"vkml.nn.functional", "vkml.optim.lr_scheduler", "vkml.data.transforms"} <= set(modules)
    wanted = {f"{module}.{name}" for module in modules for name in reference.public_names(module)}
    assert len(wanted) > 1000
    missing = sorted(wanted - described())
    assert not missing, f"a page of docs/api has to ask for {missing}"


def test_functions_are_called_as_programs_call_them() -> None:
    """In messages, and where docstrings name them; a name may stand for what has another one, too."""
    wrong = [
        f"{module.__name__}.{name} is called {called!r}"
        for module in public_modules(vkml)
        for name in reference.public_names(module.__name__)
        if not isinstance(value := getattr(module, name), type)
        and not hasattr(module, called := value.__name__)
    ]
    assert not wrong


def test_names_of_a_module_are_its_own() -> None:
    assert "Resize" in reference.public_names("vkml.data.transforms")
    assert "Callable" not in reference.public_names("vkml.data.transforms")
    assert reference.public_names("vkml", ["vkml.saving"]) == ["load", "save"]


def test_directives_of_a_comment() -> None:
    text = reference.expanded("# Files\n\n<!-- reference: vkml from vkml.saving -->\n")
    assert text.startswith("# Files\n\n```{eval-rst}\n.. currentmodule:: vkml\n\n.. autofunction:: load\n")
    assert ".. autoexception:: OutOfMemory" in reference.directives("vkml", ["vkml.errors"])
    # A class that has a shorter name is described under that.
    assert "`GradScaler` is `vkml.GradScaler`." in reference.directives("vkml.amp")
    assert vkml.amp.GradScaler is vkml.GradScaler


def test_members_of_enumerations_are_described() -> None:
    lines = reference.directives("vkml", ["vkml.engine.options"]).splitlines()
    at = lines.index(".. autoclass:: GraphOptimizationLevel")
    assert lines[at + 1 : at + 4] == ["   :members:", "   :undoc-members:", "   :member-order: bysource"]
    at = lines.index(".. autoclass:: RunOptions")
    assert lines[at + 1 : at + 3] == ["   :members:", ""]


def test_what_programs_do_not_make_has_no_signature() -> None:
    assert reference.is_made_elsewhere(vkml.Tensor)
    assert reference.is_made_elsewhere(vkml.training.Trainer)
    assert reference.is_made_elsewhere(vkml.ExecutionMode)
    assert not reference.is_made_elsewhere(vkml.InferenceSession)
    assert not reference.is_made_elsewhere(vkml.nn.Linear)


def required(of: dict[str, Any], extras: Sequence[str]) -> set[str]:
    """The packages that an installation with some extras brings, those that these need among them."""
    waiting = [*of["dependencies"], *(one for extra in extras for one in of["optional-dependencies"][extra])]
    found: set[str] = set()
    while waiting:
        needed = Requirement(waiting.pop())
        name = canonicalize_name(needed.name)
        if name in found or (needed.marker is not None and not needed.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        with contextlib.suppress(PackageNotFoundError):  # one that tests do without, as Sphinx
            waiting += distribution(name).requires or []
    return found


def test_an_installation_for_the_site_brings_what_the_site_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = required(project, ["docs"])
    assert {"numpy", "onnx", "sphinx"} <= brought and "pytest" not in brought
    absent = [
        module
        for module, packages in packages_distributions().items()
        if not {canonicalize_name(package) for package in packages} & (brought | {"vkml"})
    ]
    assert "pytest" in absent
    program = """
import sys
absent = set(sys.stdin.read().split())

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())
sys.path[:0] = ["docs", "."]
import operator_table, reference
reference.expanded("<!-- reference: vkml.training -->")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input="\n".join(absent), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_docstrings_know_no_markup_but_names_and_examples() -> None:
    given = [
        "The norm |x| of [batch, *spatial]; see `x_` and ``*``, not x_.",
        "",
        "* an item * two",
        "Example:",
        "    >>> 2 * 3",
        "    6",
        "",
        "As in::",
        "    a * b",
        "and a * b of `Size`s.",
    ]
    assert reference.unmarked(given) == [
        "The norm \\|x\\| of [batch, \\*spatial]; see `x_` and ``*``, not x\\_.",
        "",
        "* an item \\* two",
        *given[3:9],
        "and a \\* b of `Size`\\ s.",
    ]


def test_what_is_said_not_to_be_there_is_not() -> None:
    page = (DOCS / "pytorch.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^\* Of `torch\.nn`: .*$", page, re.MULTILINE)
    names = re.findall(r"`(\w+)`", line)
    assert len(names) > 3
    assert not [name for name in names if hasattr(vkml.nn, name) or hasattr(vkml.optim, name)]


def test_the_picture_of_models_is_that_of_the_figures() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    zoo = json.loads((DOCS / "data" / "zoo.json").read_text(encoding="utf-8"))
    figures = drawing.speed_figures(zoo, page)
    assert drawing.carried_by(drawing.SPEED) == figures, "python tools/draw_speed.py draws it anew"
    drawn = [{row[0] for row in figures[where]} for where in ("gpu", "cpu")]
    assert drawn[0] & drawn[1] >= {"resnet50_b1", "bert_base_b1_s128"}
    for model, _, *ratios in figures["gpu"]:
        cells = " | ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
        assert re.search(rf"^\| {model} \|.*\| {cells} \|", page, re.MULTILINE), model


def test_the_roofline_is_that_of_the_figures() -> None:
    measured = DOCS / "data" / "kernels.json"
    assert measured.exists() == drawing.ROOFLINE.exists(), "python tools/draw_speed.py draws it"
    if measured.exists():
        figures = drawing.roofline_figures(json.loads(measured.read_text(encoding="utf-8")))
        assert drawing.carried_by(drawing.ROOFLINE) == figures, "python tools/draw_speed.py draws it anew"


def test_a_picture_carries_its_figures_and_needs_its_table(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    body = b'Comment\0{"a": [1.5]}'
    picture.write_bytes(bytes(8) + struct.pack(">I4s", len(body), b"tEXt") + body + bytes(4))
    assert drawing.carried_by(picture) == {"a": [1.5]}
    picture.write_bytes(bytes(8))
    with pytest.raises(ValueError, match=r"picture\.png carries no figures"):
        drawing.carried_by(picture)
    table = "| model | vkml | ratio |\n|---|---|---|\n| a | 2.50 | **1.5** |\n"
    assert drawing.cpu_rows(f"\n## Two CPU cores\n\nWords.\n\n{table}\n| b | c |\n") == [["a", 2.5, 1.5]]
    for page in ("", f"\n## Two CPU cores\n\n{table}".replace("ratio", "difference")):
        with pytest.raises(ValueError, match="no table with 'vkml' and 'ratio'"):
            drawing.cpu_rows(page)


def test_a_roofline_shows_what_was_measured(tmp_path: Path) -> None:
    def case(label: str, operations: float, seconds: float = 2.0, problem: str = "") -> dict[str, Any]:
        common = {"family": "matmul" if operations else "softmax", "label": label, "problem": problem}
        return {**common, "operations": operations, "bytes": 100, "seconds": seconds, "share": 0.9}

    kernels = {
        "date": "2026-01-01",
        "ceilings": {"float16": 1e3, "bytes": 10.0},
        "kernels": [
            case("fp32, high, 64³, no constant", 6400.0),
            case("rows", 0),
            case("columns", 0, 0.0, "no time was left"),
        ],
    }
    found = drawing.roofline_figures(kernels)
    assert found["operations"] == [["matmul, fp32, high", "fp32, high, 64³, no constant", 64.0, 3200.0]]
    assert found["bytes"] == [["softmax", "rows", 0.9]]
    pytest.importorskip("matplotlib")
    picture = tmp_path / "roofline.png"
    drawing.draw_roofline(found, picture)
    assert drawing.carried_by(picture) == found
    dates = {"date": "2026-01-01", "cpu_date": "2026-01-02"}
    speed = {**dates, "gpu": [["a", 1e-5, 1.5, 0.5]], "cpu": [["a", 2.5, 1.5]]}
    drawing.draw_speed(speed, picture)
    assert drawing.carried_by(picture) == speed
