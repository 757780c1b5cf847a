"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import shutil
from pathlib import Path

import pytest

import vkml

ROOT = Path(vkml.__file__).parent
DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"
"""The model that examples name."""
MODULES = [
    ".".join(("vkml", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def test_there_are_examples() -> None:
    assert len(MODULES) > 8


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(DIGITS, tmp_path)
    monkeypatch.chdir(tmp_path)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert tried and not failed
