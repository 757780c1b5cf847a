"""The package as a whole: how it imports, what it depends on, what it exports."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import vkml

ROOT = Path(__file__).parent.parent
FORBIDDEN = {"onnx", "scipy", "torch", "onnxruntime"}
ALLOWED = {"numpy", "ml_dtypes", "cffi", "rich", "click"}


def test_import_is_light() -> None:
    heavy = {"numpy", "ml_dtypes", "cffi", "rich", "click", "PIL"}
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


def test_the_installation_is_small() -> None:
    """What `pip install vkml` brings, NumPy included, as the files of this environment say."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pending = list(project["dependencies"])
    sizes: dict[str, int] = {}
    while pending:
        line = pending.pop()
        name = re.split(r"[^A-Za-z0-9_.-]", line)[0].lower().replace("_", "-")
        if name in sizes or "extra ==" in line:
            continue
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # another platform's
            continue
        files = [Path(str(entry.locate())) for entry in found.files or []]
        sizes[name] = sum(file.stat().st_size for file in files if file.is_file())
        pending += found.requires or []
    sources = [file for file in (ROOT / "src").rglob("*") if file.is_file()]
    sizes["vkml"] = sum(file.stat().st_size for file in sources if "__pycache__" not in file.parts)
    assert {"numpy", "rich", "pygments"} <= sizes.keys()
    total = sum(sizes.values()) / (1 << 20)
    assert 40 < total < 100, sizes  # and Python's bytecode


def test_no_source_imports_what_it_must_not() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                package = words[1].split(".")[0]
                assert package not in FORBIDDEN, f"{path}: {line}"
