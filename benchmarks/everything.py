"""``python -m benchmarks.everything``: all that is to be measured on a GPU, part by part, into one folder.

Each part is a process with a time limit, and its output a file; where one fails or takes too long, that is
said, and the next one begins. What matters most comes first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Part:
    """One command.

    Attributes:
        words: behind the interpreter; ``{device}`` and ``{json}`` stand for those.
        seconds: after which it is ended.
    """

    words: str
    seconds: int


PARTS = {
    "doctor": Part("-m vkml doctor", 60),
    "tests": Part(
        "-m pytest -q -n 8 --dist worksteal --maxfail 20 -p no:cacheprovider"
        " tests/kernels tests/engine tests/lowering",
        480,
    ),
    "zoo": Part(
        "-m benchmarks --suite zoo --against ort-cuda,ort-cuda-graph,ort-cuda-strict --device {device}"
        " --seconds 0.4 --no-memory --json {json}",
        300,
    ),
    "micro": Part("-m benchmarks.micro --device {device} --json {json}", 240),
    "architectures": Part(
        "-m benchmarks.architectures --libraries --against ort-cuda --device {device} --json {json}", 420
    ),
    "cold": Part("-m benchmarks.cold mnist_like resnet50_b1 --device {device} --times 2 --json {json}", 60),
    "training": Part(
        "-m benchmarks.training --device {device} --precision high --json {json}"
        " --peers vkml-jit vkml-eager torch-eager torch-graph",
        180,
    ),
    "quantized": Part("-m benchmarks.quantized --device {device}", 180),
    "matrix_units": Part(
        "-m benchmarks.matrix_units --device {device} --peers --accuracy --json {json}", 180
    ),
    "memory": Part(
        "-m benchmarks --suite zoo --peers vkml --device {device} --seconds 0.1 --json {json}", 120
    ),
}
"""By name, in the order in which they run."""


def run(name: str, part: Part, device: str, folder: Path) -> str:
    """Runs a part; how it ended, for people."""
    words = part.words.format(device=device, json=folder / f"{name}.json").split()
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    with (folder / f"{name}.txt").open("w") as output:
        print("python", *words, file=output, flush=True)
        try:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=part.seconds,
            )  # fmt: skip
            ended = "done" if done.returncode == 0 else f"exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = "ended by its limit"
    return f"{ended}, {time.monotonic() - started:.0f} s"


def main(words: list[str] | None = None) -> int:
    """Runs the parts that are named, or all; 1 where one of them did not end well."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.everything", description=__doc__)
    parser.add_argument("part", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; by default all")
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--out", type=Path, default=Path("measured"), metavar="DIR", help="where files go")
    parser.add_argument("--limit", type=float, help="seconds after which no part is begun any more")
    arguments = parser.parse_args(words)
    unknown = sorted({*arguments.part} - {*PARTS})
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    started, failed = time.monotonic(), False
    for name, part in PARTS.items():
        if arguments.part and name not in arguments.part:
            continue
        if arguments.limit is not None and time.monotonic() - started > arguments.limit:
            ended = "not begun: --limit"
        else:
            ended = run(name, part, arguments.device, arguments.out.resolve())
        failed |= not ended.startswith("done")
        print(f"{name:14} {ended}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
