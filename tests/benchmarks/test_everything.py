"""All measurements into one folder: parts by themselves, with limits, whatever became of others."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import everything
from benchmarks.everything import Part


def test_parts_run_by_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "part.py"
    script.write_text(
        "import json, sys, time, vkml\n"
        "print(sys.argv[1], vkml.__name__)\n"
        "{'write': lambda: open(sys.argv[2], 'w').write(json.dumps(sys.argv[3])),\n"
        " 'fail': lambda: sys.exit(3), 'hang': lambda: time.sleep(600)}[sys.argv[1]]()\n"
    )
    parts = {
        "fails": Part(f"{script} fail", 100),
        "hangs": Part(f"{script} hang", 3),
        "writes": Part(f"{script} write {{json}} {{device}}", 100),
    }
    monkeypatch.setattr(everything, "PARTS", parts)
    out = tmp_path / "out"
    assert everything.main(["--out", str(out), "--device", "cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(None, 1)[0] for line in lines] == list(parts)
    assert "exit status 3" in lines[0] and "ended by its limit" in lines[1] and "done" in lines[2]
    assert json.loads((out / "writes.json").read_text()) == "cpu"
    for name, word in (("fails", "fail"), ("hangs", "hang"), ("writes", "write")):
        assert f"{word} vkml" in (out / f"{name}.txt").read_text()
    assert everything.main(["writes", "--out", str(out)]) == 0
    assert everything.main(["--limit", "-1", "--out", str(out)]) == 1
    assert capsys.readouterr().out.count("not begun") == 3
    with pytest.raises(SystemExit):
        everything.main(["reads"])
    assert "no such part: reads" in capsys.readouterr().err


def test_what_parts_run_is_there() -> None:
    for part in everything.PARTS.values():
        words = part.words.format(device="cpu", json="made.json").split()
        assert words[0] == "-m" and importlib.util.find_spec(words[1]) is not None
        for word in words[2:]:
            assert not word.startswith("tests/") or (everything.ROOT / word).is_dir(), word
        options = [word for word in words[2:] if word.startswith("--")]
        if words[1] in ("pytest", "vkml"):
            continue
        asked = subprocess.run(
            [sys.executable, "-m", words[1], "--help"], cwd=everything.ROOT, capture_output=True, text=True
        )
        for option in options:
            assert re.search(rf"{option}\b", asked.stdout), (words[1], option)
