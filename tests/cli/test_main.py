"""The program as a process: exit codes, streams, interruption, and how fast it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vkml.onnx
from tests.patience import patience
from tests.robustness.processes import interrupted_command
from vkml import __version__
from vkml.engine.sketch import Sketch

VKML = [sys.executable, "-m", "vkml"]


def run(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*VKML, *map(str, words)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=patience(120),
        **options,  # type: ignore[call-overload]
    )


def test_help_lists_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name in ("devices", "run", "inspect", "bench", "warmup", "train", "doctor"):
        assert f"\n  {name} " in done.stdout


def test_version() -> None:
    assert run("--version").stdout == f"vkml {__version__}\n"


def test_unknown_command_is_a_usage_error() -> None:
    done = run("fly")
    assert done.returncode == 2
    assert "fly" in done.stderr and not done.stdout


@pytest.mark.parametrize("asks", ["help", "completion"])
def test_who_only_asks_waits_for_nothing_heavy(asks: str) -> None:
    code = (
        "import sys\n"
        "from vkml.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'rich.table', 'rich.console', 'cffi', '_cffi_backend', 'ctypes'}\n"
        "print('loaded', sorted(heavy & set(sys.modules)))\n"
    )
    line = {"_VKML_COMPLETE": "bash_complete", "COMP_WORDS": "vkml run m --fit p", "COMP_CWORD": "4"}
    environment = os.environ | (line if asks == "completion" else {})
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ("plain,pad" in done.stdout) == (asks == "completion")
    assert done.stdout.splitlines()[-1] == "loaded []"


def test_debug_shows_where_it_happened(tmp_path: Path) -> None:
    for words, environment in ((["--debug"], {}), ([], {"VKML_DEBUG": "1"})):
        done = run("inspect", tmp_path / "nothing.onnx", *words, env=os.environ | environment)
        assert done.returncode == 1
        assert "Traceback" in done.stderr


def test_reader_that_goes_away_is_no_error(scale_model: Path) -> None:
    with subprocess.Popen(
        [*VKML, "inspect", str(scale_model)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(patience(60)) == 141


def test_reader_that_goes_away_early_is_no_error(tmp_path: Path) -> None:
    """More than a pipe and the buffers hold."""
    sketch = Sketch("long")
    x = sketch.input("x", (1,))
    for _ in range(2000):
        x = sketch.node("Relu", x)
    vkml.onnx.save_graph(sketch.finish(x), tmp_path / "long.onnx")
    words = [*VKML, "inspect", str(tmp_path / "long.onnx"), "--plan", "-d", "cpu", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "{\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(patience(60)) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_said(scale_model: Path) -> None:
    for words in (["--version"], ["inspect", str(scale_model)], ["inspect", str(scale_model), "--json"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*VKML, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=patience(120)
            )
        assert done.returncode == 1
        assert "No space left" in done.stderr and "Traceback" not in done.stderr
        assert "internal error" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="streams are closed as POSIX shells do")
def test_without_streams(scale_model: Path, tmp_path: Path) -> None:
    def code_of(model: Path, *closed: int) -> int:
        words = [
            "sh",
            "-c",
            '"$@" ' + " ".join(f"{each}>&-" for each in closed),
            "sh",
            *VKML,
            "inspect",
            str(model),
        ]
        return subprocess.run(words, timeout=patience(120), check=False).returncode

    assert code_of(scale_model, 1) == 0
    assert code_of(tmp_path / "none.onnx", 1, 2) == 1


@pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX has them")
def test_interruption_is_quiet(scale_model: Path) -> None:
    code, out, error = interrupted_command("bench", str(scale_model), "-d", "cpu", "--seconds", "100000")
    assert (code, error) == (130, "")
    assert out == "" or "median" in out  # where runs had been timed


def test_output_to_a_file_is_not_cut_to_a_terminal_s_width(scale_model: Path, tmp_path: Path) -> None:
    with open(tmp_path / "out.txt", "w") as out:
        subprocess.run([*VKML, "devices", "--all"], stdout=out, check=True, env=os.environ | {"COLUMNS": ""})
    assert "…" not in (tmp_path / "out.txt").read_text()
