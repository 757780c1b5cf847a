"""The package as a whole: how it imports, what it depends on, what it exports."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import vkml

ROOT = Path(__file__).parent.parent
FORBIDDEN = {"onnx", "scipy", "torch", "onnxruntime"}
ALLOWED = {"numpy", "ml_dtypes", "cffi", "rich", "typer", "slangpy"}


def test_import_is_light() -> None:
    heavy = {"numpy", "ml_dtypes", "cffi", "rich", "typer", "slangpy", "PIL"}
    code = f"import sys, vkml; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_resolves() -> None:
    for name in vkml.__all__:
        assert getattr(vkml, name) is not None


def test_runtime_dependencies_are_the_agreed_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {dependency.split(">")[0].split(";")[0].strip() for dependency in project["dependencies"]}
    assert names == ALLOWED
    assert project["version"] == vkml.__version__


def test_no_source_imports_what_it_must_not() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                package = words[1].split(".")[0]
                assert package not in FORBIDDEN, f"{path}: {line}"
