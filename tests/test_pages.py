"""The programs in the pages of the documentation run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("page", "section"),
    [
        ("docs/arrays.md", ""),
        ("docs/export.md", ""),
        ("docs/devices.md", ""),
        ("docs/images.md", ""),
        ("docs/onnxruntime.md", ""),
        ("docs/pytorch.md", ""),
        ("docs/speed.md", ""),
        ("docs/start.md", ""),
        ("README.md", "### Training\n"),
    ],
)
def test_programs_of_a_page(page: str, section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they stand, as one program; those of a section, where one is named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # programs of users, in the repository's folder
    text = (ROOT / page).read_text(encoding="utf-8")
    if section:
        text = text.partition(section)[2].partition("\n### ")[0]
    programs = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(programs) >= 2
    scope: dict[str, Any] = {"__name__": page}
    for number, program in enumerate(programs):
        exec(compile(program, f"{page}, program {number}", "exec"), scope)
