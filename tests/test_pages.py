"""The programs in the pages of the documentation run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["arrays.md", "export.md"])
def test_programs_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they stand, as one program."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(programs) >= 2
    scope: dict[str, Any] = {"__name__": page}
    for number, program in enumerate(programs):
        exec(compile(program, f"{page}, program {number}", "exec"), scope)
