"""Every block of docs/training.md runs, one after the other, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tutorial_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / "training.md").read_text(encoding="utf-8")
    blocks = [(text.count("\n", 0, found.start()) + 2, found[1]) for found in BLOCK.finditer(text)]
    assert len(blocks) > 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for line, block in blocks:
        # Lines as they are in the file, for errors.
        exec(compile("\n" * (line - 1) + block, str(DOCS / "training.md"), "exec"), names)
    shown = capsys.readouterr().out
    assert "tensor([[2., 4.]" in shown and "digits that it has not seen" in shown
    assert {"wine.png", "wine.csv", "digits.onnx", "digits.safetensors", "checkpoints", "logs"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert names["after"]["loss"] < names["before"]["loss"]
