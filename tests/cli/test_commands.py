"""``vkml devices``, ``inspect``, ``bench`` and ``doctor``, and what all commands do with broken models."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Command
from vkml.engine import doctor
from vkml.engine.sketch import Sketch
from vkml.errors import NoDevice
from vkml.ir import dtypes
from vkml.kernels import slang
from vkml.onnx import save_graph


def test_devices_end_with_the_cpu(command: Command, vulkan_device_names: tuple[str, ...]) -> None:
    listed = command("devices", "--all", "--json").json
    assert listed[-1]["name"] == "cpu"
    assert listed[-1]["memory_bytes"] > 1 << 28
    assert set(vulkan_device_names) <= {device["name"] for device in listed}
    for device in listed:
        assert device["title"] in command("devices", "--all").out


def test_vulkan_devices_state_what_they_are(command: Command, vulkan_device_name: str) -> None:
    listed = {device["name"]: device for device in command("devices", "--all", "--json").json}
    device = listed[vulkan_device_name]
    assert tuple(int(part) for part in device["api_version"].split(".")) >= (1, 3)
    assert device["memory_bytes"] > 1 << 28
    assert "timestamps" in device["capabilities"]


def test_inspect_counts_what_the_model_holds(command: Command, scale_model: Path) -> None:
    found = command("inspect", scale_model, "--json").json
    assert found["inputs"] == [{"name": "image", "type": "float", "shape": ["batch", 1, 4, 4]}]
    assert [value["name"] for value in found["outputs"]] == ["scores", "doubled/image"]
    assert found["operators"] == {"Identity": 2, "Flatten": 1, "MatMul": 1, "Mul": 1}
    assert found["parameters"] == 49
    assert found["parameter_bytes"] == 4 * 49
    assert "plan" not in found
    text = command("inspect", scale_model).out
    assert "batch×1×4×4" in text and "MatMul" in text


def test_inspect_plan_says_where_nodes_run(command: Command, scale_model: Path, device_name: str) -> None:
    found = command("inspect", scale_model, "--plan", "-d", device_name, "--dim", "batch=5", "--json").json
    steps = found["plan"]["steps"]
    assert found["plan"]["device"] == device_name
    assert not found["plan"]["fallbacks"]
    assert {step["device"] for step in steps} == {device_name}
    assert "MatMul" in {operator for step in steps for operator in step["operators"]}
    # A device's kernel may see the matrix as a batch of one.
    assert [5, 3] in [shape[-2:] for step in steps for shape in step["output_shapes"]]
    text = command("inspect", scale_model, "--plan", "-d", device_name).out
    assert f"Plan for {device_name}" in text


def test_inspect_plan_times_steps(command: Command, scale_model: Path, device_name: str) -> None:
    words = ("inspect", scale_model, "--time", "-d", device_name)
    steps = command(*words, "--plan", "--json").json["plan"]["steps"]
    [product] = [step for step in steps if "MatMul" in step["operators"]]
    assert 0 < product["seconds"] < 10
    done = command(*words)
    assert done.code == 2 and "--plan" in done.err


def test_inspect_plan_of_a_model_with_unknown_operators(command: Command, tmp_path: Path) -> None:
    sketch = Sketch("unknown")
    x = sketch.node("Relu", sketch.input("x", ("n", 4)), name="known")
    path = tmp_path / "unknown.onnx"
    save_graph(sketch.finish(sketch.node("Frobnicate", x, name="strange")), path)
    done = command("inspect", path, "--plan", "-d", "cpu")
    assert done.code == 1
    assert "1 operator, which 1 node needs" in done.out and "known" in done.out
    [row] = [at for at, line in enumerate(done.out.splitlines()) if "strange" in line]
    assert "vkml has no operator ai.onnx.Frobnicate" in done.out.splitlines()[row + 1]
    assert done.out.count("could run") == 2  # the node before it, and the output's Identity
    found = command("inspect", path, "--plan", "--json").json
    assert found["unsupported"] == {"ai.onnx.Frobnicate (opset 20)": ["Frobnicate node 'strange'"]}


def test_inspect_refuses_an_unknown_dimension_with_and_without_a_plan(
    command: Command, scale_model: Path
) -> None:
    for more in ([], ["--plan"]):
        done = command("inspect", scale_model, "--dim", "rows=2", *more)
        assert done.code == 2 and "rows" in done.err and "batch" in done.err


def test_inspect_plan_says_why_numpy_runs_a_node(command: Command, tmp_path: Path) -> None:
    sketch = Sketch("shown")
    path = tmp_path / "exponential.onnx"
    save_graph(sketch.finish(sketch.node("Exp", sketch.input("x", (4,), dtypes.FLOAT64))), path)
    step, *_ = command("inspect", path, "--plan", "-d", "cpu", "--json").json["plan"]["steps"]
    assert step["variant"] == "numpy" and "machine code" in step["reason"]
    assert "machine code" in command("inspect", path, "--plan", "-d", "cpu").out


def test_inspect_plan_says_what_it_assumed(command: Command, tmp_path: Path) -> None:
    sketch = Sketch("places")
    path = tmp_path / "places.onnx"
    save_graph(sketch.finish(sketch.node("Transpose", sketch.node("NonZero", sketch.input("x", (4,))))), path)
    plan = command("inspect", path, "--plan", "-d", "cpu", "--json").json["plan"]
    assert len(plan["assumed"]) == 1 and "[1, 1]" in plan["assumed"][0]
    assert "assumed: " in command("inspect", path, "--plan", "-d", "cpu").out


def test_bench_reports_ordered_percentiles(command: Command, scale_model: Path, sum_model: Path) -> None:
    found = command("bench", scale_model, sum_model, "-d", "cpu", "--repeat", 20, "--json").json
    assert [Path(each["model"]).name for each in found] == ["scale.onnx", "sum.onnx"]
    for each in found:
        assert each["device"] == "cpu"
        assert each["runs"] == 20
        assert 0 < each["least"] <= each["median"] <= each["p95"] <= each["p99"]
        assert each["first"] > 0 and each["load"] > 0
    assert "median" in command("bench", scale_model, "-d", "cpu", "--seconds", 0.01).out


def test_warmup_leaves_the_next_session_nothing_to_compile(
    command: Command,
    scale_model: Path,
    sum_model: Path,
    vulkan_device_name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path / "kernels"))
    words = ["warmup", scale_model, "-d", vulkan_device_name, "--dim", "batch=3"]
    [made] = command(*words, "--json").json
    assert made["device"] == vulkan_device_name and made["seconds"] > 0 and made["nodes_on_cpu"] == 0
    assert made["new"] == made["entries"] >= 2 and made["new_bytes"] > 1000
    assert made["has_other_sizes"] and made["cache"] == str(tmp_path / "kernels")

    def compile_kernel(source: str) -> bytes:
        raise AssertionError("a kernel is compiled")

    monkeypatch.setattr(slang, "compile_kernel", compile_kernel)
    for batch in (3, 7):
        command("bench", scale_model, "-d", vulkan_device_name, "--repeat", 1, "--dim", f"batch={batch}")
    done = command(*words)
    assert done.code == 0 and done.out.startswith(f"scale on {vulkan_device_name}: ready in ")
    assert f"all it needs was in {tmp_path / 'kernels'}" in done.out
    assert "scale: other sizes than these are prepared for, too" in done.out
    done = command("warmup", scale_model, sum_model, "-d", vulkan_device_name, "--dim", "batch=3")
    assert done.code == 2 and "no such dimension" in done.err  # of the second model


def test_warmup_says_what_is_new(
    command: Command, sum_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    done = command("warmup", sum_model, "-d", "cpu")
    assert done.code == 0
    assert re.search(rf"^sum on cpu: .*; (\d+ files? more|all it needs was) in {tmp_path}", done.out), (
        done.out
    )
    for key in ("VKML_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("none")))
    assert "nothing is kept" in command("warmup", sum_model, "-d", "cpu").out


def test_bench_interrupted_prints_what_it_has(
    command: Command, scale_model: Path, sum_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkml.cli import bench

    real = bench.timed_runs

    def interrupt_at(stop: int) -> None:
        calls = iter(range(1, stop + 1))

        def interrupted(*arguments: Any) -> Any:
            if next(calls) == stop:
                raise KeyboardInterrupt
            return real(*arguments)

        monkeypatch.setattr(bench, "timed_runs", interrupted)

    # A first run, warm-up, then timed ones: in those of the second model, in its first run, before any.
    for stop, runs in ((2 + 4 + 2 + 3, [4, 2]), (2 + 4 + 1, [4]), (1, [])):
        interrupt_at(stop)
        done = command("bench", scale_model, sum_model, "-d", "cpu", "--repeat", 4, "--json")
        assert done.code == 130 and not done.err
        assert [each["runs"] for each in done.json] == runs if runs else not done.out
    interrupt_at(5)
    assert "median" in command("bench", scale_model, "-d", "cpu", "--repeat", 4).out


def test_bench_says_how_far_it_is_where_somebody_watches(
    command: Command, scale_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkml.cli import bench

    assert command("bench", scale_model, "-d", "cpu", "--repeat", 5).err == ""
    monkeypatch.setattr(bench, "REDRAWN_SECONDS", 0.0)
    monkeypatch.setattr("vkml.cli.terminal.PrintableStream.isatty", lambda _: True, raising=False)
    done = command("bench", scale_model, "-d", "cpu", "--repeat", 5, "--json")
    assert "scale on cpu: 3 of 5 runs (Ctrl-C" in done.err and done.err.endswith(" \r")
    assert done.json[0]["runs"] == 5


PROPOSALS = {
    "vkml ins": ["plain,inspect"],
    "vkml run x.onnx --no-so": ["plain,--no-softmax"],
    "vkml bench m -d c": ["plain,cpu"],
    "vkml doctor --device=vul": ["plain,vulkan:0", "plain,vulkan:1"],
    "vkml profile m --precision me": ["plain,medium"],
    "vkml train d --precision b": ["plain,bfloat16"],
    "vkml run m --fit ": ["plain,stretch", "plain,crop", "plain,pad"],
    "vkml train t.csv --task r": ["plain,regression"],
    "vkml completion z": ["plain,zsh"],
    "vkml help insp": ["plain,inspect"],
    "vkml run mo": ["file,mo"],
    "vkml run m pho": ["file,pho"],
    "vkml run m -i pho": ["file,pho"],
    "vkml run m --labels na": ["file,na"],
    "vkml run m -o res": ["dir,res"],
    "vkml bench a.onnx b": ["file,b"],
}
"""Lines as they stand → what click's script for bash is answered."""


@pytest.mark.parametrize("line", PROPOSALS)
def test_completion_proposes(command: Command, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    words = line.split(" ")
    monkeypatch.setenv("_VKML_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    done = command()
    assert (done.code, done.out.splitlines(), done.err) == (0, PROPOSALS[line], "")


def test_completion_in_a_shell(command: Command, tmp_path: Path) -> None:
    (tmp_path / "vkml").write_text(f'#!/bin/sh\nexec {sys.executable} -m vkml "$@"\n')
    (tmp_path / "vkml").chmod(0o755)
    lines = ["vkml ins", "vkml run x.onnx --no-so", "vkml bench m -d c"]
    asked = [
        f"COMP_WORDS=({line}); COMP_CWORD={line.count(' ')}; COMPREPLY=(); $ask vkml; echo ${{COMPREPLY[@]}}"
        for line in lines
    ]
    # What the script has bash call: the word behind -F.
    find = r"ask=$(complete -p vkml | sed 's/.*-F \([^ ]*\).*/\1/')"
    done = subprocess.run(
        ["bash", "-c", "\n".join([command("completion", "bash").out, find, *asked])],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["inspect", "--no-softmax", "cpu"] and not done.stderr


@pytest.mark.parametrize(
    ("shell", "current", "proposed"),
    [("zsh", "3", "plain\ncpu\n_\n"), ("fish", "c", "plain,cpu\n")],
    ids=["zsh", "fish"],
)
def test_completion_in_other_shells(
    command: Command, monkeypatch: pytest.MonkeyPatch, shell: str, current: str, proposed: str
) -> None:
    script = command("completion", shell).out
    assert f"_VKML_COMPLETE={shell}_complete" in script
    monkeypatch.setenv("_VKML_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "vkml bench -d c")
    monkeypatch.setenv("COMP_CWORD", current)
    assert command().out == proposed


def test_completion_of_an_unknown_shell(command: Command) -> None:
    done = command("completion", "tcsh")
    assert done.code == 2 and "'bash', 'zsh', 'fish'" in done.err


def test_help_is_a_word_too(command: Command) -> None:
    assert command("help").out == command("--help").out
    assert command("help", "run").out == command("run", "--help").out
    assert max(map(len, command("help").out.splitlines())) <= 80
    assert "...\n" not in command("help").out.partition("Commands")[2]


@pytest.mark.parametrize("name", ["devices", "bench", "inspect", "profile"])
def test_tables_fit_eighty_columns(
    command: Command, scale_model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("vkml.cli.output.PLAIN_WIDTH", 80)
    words: dict[str, list[object]] = {
        "devices": ["--all"],
        "bench": [scale_model, "-d", "cpu", "--repeat", 3],
        "inspect": [scale_model, "--plan"],
        "profile": [scale_model, "-d", "cpu", "--no-files", "--no-ceiling", "--repeat", 1],
    }
    done = command(name, *words[name])
    assert done.code == 0, done.err
    # But for paths, which are whole.
    assert max(len(line.rstrip()) for line in done.out.splitlines() if "scale.onnx" not in line) <= 80


def test_doctor_passes_on_every_device(command: Command, device_name: str) -> None:
    done = command("doctor", "-d", device_name, "--json")
    failed = [result for result in done.json["results"] if result["status"] == doctor.FAIL]
    assert not failed
    assert done.code == 0
    assert len(done.json["results"]) == len(doctor.CASES)
    assert {"vkml", "Vulkan loader", "cache folder"} <= set(done.json["facts"])


def test_doctor_fails_where_an_answer_is_wrong(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "reference", lambda graph, feed: [np.zeros((65, 66), np.float32)])
    done = command("doctor", "-d", "cpu", "-k", "matmul fp32 square")
    assert done.code == 1
    assert "FAIL" in done.out and "values are wrong" in done.out
    assert "1 of 1 case FAILS" in done.out


@pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
def test_colours_of_verdicts_are_left_out_where_they_are_not_wanted(
    command: Command, monkeypatch: pytest.MonkeyPatch, no_color: str, is_coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    done = command("doctor", "-d", "cpu", "-k", "softmax")
    assert done.code == 0 and "PASS" in done.out
    assert ("\x1b[32mPASS" in done.out, "\x1b[1;32mall" in done.out) == (is_coloured, is_coloured)


def test_doctor_says_once_what_all_cases_lack(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(case: doctor.Case, device: str) -> doctor.CaseResult:
        return doctor.CaseResult(device, case.name, case.family, doctor.FAIL, "there is no compiler", 0.0)

    monkeypatch.setattr(doctor, "run_case", fail)
    monkeypatch.setattr(doctor, "rejected", lambda: [("GeForce 8", "too old")] * 2)
    done = command("doctor", "-d", "cpu", "-k", "softmax")
    assert done.code == 1
    assert done.out.count("there is no compiler") == 1 and "as softmax" in done.out
    assert done.out.count("too old") == 1 and "GeForce 8 (×2)" in done.out


def test_doctor_says_once_why_there_is_no_loader(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NoDevice("there is no Vulkan loader on this machine")

    monkeypatch.setattr("vkml.vulkan.instance.get_instance", fail)
    monkeypatch.setattr("vkml.vulkan.discovery._discover", fail)
    done = command("doctor", "-d", "cpu", "-k", "softmax")
    assert done.code == 0
    assert done.out.count("there is no Vulkan loader") == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [(["-d", "vulkan:77"], "vulkan:77"), (["-k", "no such case"], "no such case")],
)
def test_doctor_refuses_unknown_names(command: Command, words: list[str], part: str) -> None:
    done = command("doctor", *words)
    assert done.code == 2
    assert part in done.err


@pytest.mark.parametrize("name", ["run", "inspect", "bench", "warmup"])
def test_models_may_come_on_the_standard_input(
    command: Command, scale_model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    more = {"run": ["--random"], "bench": ["--repeat", 3, "-d", "cpu", "-d", "auto"]}.get(name, [])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(scale_model.read_bytes())))
    done = command(name, "-", *more, "--json")
    assert done.code == 0 and done.json, done.err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"GGUF1234")))
    done = command(name, "-", *more)
    assert done.code == 1 and "standard-input.onnx is a GGUF file" in done.err


@pytest.mark.parametrize("words", [["-"], ["-i", "image=-"]])
@pytest.mark.parametrize("name", ["run", "profile"])
def test_the_standard_input_is_the_model_or_an_input(
    command: Command, scale_model: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str]
) -> None:
    if name == "profile":
        words = words[-1:]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(scale_model.read_bytes())))
    done = command(name, "-", *words, "-d", "cpu")
    assert done.code == 2 and "the model or an input" in done.err


@pytest.mark.parametrize("name", ["run", "inspect", "bench", "warmup"])
def test_missing_and_broken_models(command: Command, tmp_path: Path, scale_model: Path, name: str) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(scale_model.read_bytes()[:-40])
    for path in (tmp_path / "nothing.onnx", tmp_path, broken):
        done = command(name, path)
        assert done.code in (1, 2), done
        assert path.name in done.err
        assert "Traceback" not in done.err and "internal error" not in done.err
        assert len(done.err.splitlines()) <= 3


def test_missing_model_is_code_1(command: Command, tmp_path: Path) -> None:
    assert command("run", tmp_path / "nothing.onnx").code == 1
