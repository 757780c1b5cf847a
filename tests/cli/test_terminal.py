"""What reaches a terminal: names as text, never control sequences, in any encoding."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import Command
from tests.patience import patience
from vkml.cli.terminal import PrintableStream, printable, printable_streams

HOSTILE = "x\x1b[31m\x1b]0;title\x07\r\x08\x7f\x9b2J\u202e\u2028\udcff\t"
"""Colours, a title, overwriting, C1 controls, reversed text, a line's end that is none, half a character."""
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def test_printable() -> None:
    assert printable("größe ×2 → µs 模型") == "größe ×2 → µs 模型"
    assert printable("a\nb\x1b\x9b\u202e") == "a\nb\\x1b\\x9b\\u202e"
    assert printable("a\nb\t", keep="") == "a\\nb\\t"
    assert not CONTROLS.search(printable(HOSTILE))


def test_streams_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    before = sys.stdout
    with printable_streams():
        assert isinstance(sys.stdout, PrintableStream)
        print("12 µs, 2×3 …", "模\x1b")
        sys.stdout.writelines(["→\n"])
    assert sys.stdout is before and before.errors == "strict"
    assert raw.getvalue() == rb"12 us, 2x3 ... \u6a21\x1b" + b"\n->\n"


@pytest.fixture
def hostile_model(tmp_path: Path) -> Path:
    """A model all of whose names are hostile; its second node has no Vulkan kernel, its third no operator."""
    name = HOSTILE.replace("\udcff", "")  # protobuf has no such text
    nodes = [
        helper.make_node("Relu", ["i" + name], ["m" + name], name="1" + name),
        helper.make_node("Cos", ["m" + name], ["o" + name], name="2" + name),
    ]
    value = [TensorProto.DOUBLE, ["d" + name, 3]]
    graph = helper.make_graph(
        nodes,
        "g" + name,
        [helper.make_tensor_value_info("i" + name, *value)],
        [helper.make_tensor_value_info("o" + name, *value)],
        doc_string="doc" + name,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made.producer_name = "p" + name
    entry = made.metadata_props.add()
    entry.key, entry.value = "k" + name, "v" + name
    onnx.save(made, tmp_path / "hostile.onnx")
    made.graph.node[1].op_type = "Unknown" + name
    onnx.save(made, tmp_path / "unknown.onnx")
    os.link(tmp_path / "hostile.onnx", os.fsencode(tmp_path) + b"/file\x1b[31m\xff.onnx")
    return tmp_path / "hostile.onnx"


COMMANDS = {
    "inspect": ["inspect", "hostile.onnx"],
    "plan": ["inspect", "hostile.onnx", "--plan"],
    "run": ["run", "hostile.onnx", "--random"],
    "top": ["run", "hostile.onnx", "--random", "--top", "1", "--labels", "labels.txt"],
    "write": ["run", "hostile.onnx", "--random", "-o", "out"],
    "no input": ["run", "hostile.onnx"],
    "input": ["run", "hostile.onnx", "-i", "other.npz"],
    "dimension": ["run", "hostile.onnx", "--random", "--dim", "d=3"],
    "bench": ["bench", "hostile.onnx", "--seconds", "0"],
    "warmup": ["warmup", "hostile.onnx"],
    "unknown operator": ["run", "unknown.onnx", "--random"],
    "traceback": ["--debug", "run", "unknown.onnx", "--random"],
    "file": ["inspect", "file\x1b[31m\udcff.onnx"],
    "no file": ["inspect", "no\x1b[31m\udcff.onnx"],
    "no folder": ["run", "hostile.onnx", "--random", "-o", "labels.txt/\x1b[31m"],
    "no command": ["fly\x1b[31m"],
    "no option": ["run", "hostile.onnx", "--random\x1b[31m"],
    "no number": ["run", "hostile.onnx", "--repeat", "\x1b[31m"],
    "no device": ["run", "hostile.onnx", "--random", "-d", "vulkan:\x1b[31m"],
    "no precision": ["run", "hostile.onnx", "--random", "--precision", "\x1b[31m"],
    "no case": ["doctor", "-k", "\x1b[31m"],
}
DONE = ("inspect", "file", "plan", "run", "top", "write", "bench", "warmup")
ON_GPU = ("plan", "run")
"""Shown with the names of nodes that fall back to the CPU."""
SILENT = ("bench", "warmup", "no number")
"""These show none of the hostile names."""


@pytest.mark.parametrize("name", COMMANDS)
def test_names_cannot_steer_the_terminal(
    command: Command,
    hostile_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    vulkan_device_names: tuple[str, ...],
    name: str,
) -> None:
    monkeypatch.chdir(hostile_model.parent)
    Path("labels.txt").write_bytes("cat\x1b[31m\ndog\x9b\n".encode())
    np.savez("other.npz", **{"a\x1b[31m": np.zeros(2)})
    device = vulkan_device_names[0] if vulkan_device_names and name in ON_GPU else "cpu"
    done = command(*COMMANDS[name], *(["-d", device] if name in DONE[2:] else []))
    assert done.code == 0 if name in DONE else done.code in (1, 2), done
    assert "internal error" not in done.err
    assert not CONTROLS.search(done.out + done.err)
    assert name in SILENT or "\\x1b[31m" in done.out + done.err


def test_warnings_cannot_steer_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with printable_streams():
        handler = logging.lastResort
        assert handler is not None
        handler.handle(logging.LogRecord("vkml", logging.WARNING, "", 0, "node '%s'", (HOSTILE,), None))
    assert capfd.readouterr().err.startswith("node 'x\\x1b[31m")


def _in_terminal_of(encoding: str, *words: object) -> subprocess.CompletedProcess[bytes]:
    environment = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    return subprocess.run(
        [sys.executable, "-m", "vkml", *map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=patience(120),
        check=False,
    )


IN_FEW_CHARACTERS = [
    ("ascii", ["run", "scale.onnx", "--random", "-d", "cpu", "--repeat", "3"]),
    ("ascii", ["inspect", "scale.onnx", "--plan", "-d", "cpu"]),
    ("ascii", ["run", "--help"]),
    ("latin-1", ["inspect", "hostile.onnx"]),
    ("", ["inspect", "hostile.onnx"]),
]
"""Encoding (none: that of the C locale) and command line."""


@pytest.mark.parametrize(("encoding", "words"), IN_FEW_CHARACTERS)
def test_terminals_of_few_characters(
    scale_model: Path, hostile_model: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, words: list[str]
) -> None:
    monkeypatch.chdir(hostile_model.parent)
    os.link(scale_model, "scale.onnx")
    done = _in_terminal_of(encoding, *words)
    assert done.returncode == 0, done.stderr
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", done.stdout + done.stderr)
    assert encoding == "latin-1" or (done.stdout + done.stderr).isascii()
    assert "--plan" not in words or b"1x1x4x4" in done.stdout
