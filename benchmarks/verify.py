"""``python -m benchmarks.verify``: every model against onnxruntime on the CPU, at precision "highest"."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import vkml
from benchmarks.feeds import feed_of
from benchmarks.models import MODELS, model_file

TOLERANCE = 1e-3
"""Norm of the difference over the norm of the reference, for each output."""


def relative_error(path: str, device: str) -> tuple[float, int]:
    """The largest error of any output, and how many nodes fell back to the CPU."""
    import onnxruntime

    feed = feed_of(path)
    with vkml.InferenceSession(path, devices=device, precision="highest") as session:
        have = session.run(None, feed)
        fallbacks = len(session.report().fallbacks)
    want = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)
    worst = 0.0
    for mine, theirs in zip(have, want, strict=True):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return float("inf"), fallbacks
        reference = theirs.astype(np.float64)
        scale = float(np.linalg.norm(reference)) or 1.0
        error = float(np.linalg.norm(mine.astype(np.float64) - reference)) / scale
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst, fallbacks


def main() -> None:
    """Prints a line a model; exit code 1 if one is beyond the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description=main.__doc__)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="names, .onnx files or folders; default: all names"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, vulkan:0, …")
    options = parser.parse_args()
    paths: list[Path] = []
    for name in options.models or MODELS:
        folder = Path(name)
        paths += sorted(folder.glob("*.onnx")) if folder.is_dir() else [model_file(name)]
    wrong = 0
    for path in paths:
        error, fallbacks = relative_error(str(path), options.device)
        verdict = "ok" if error <= TOLERANCE else "WRONG"
        wrong += verdict != "ok"
        print(f"{path.stem:24s} {error:9.2e}  {verdict:5s} {fallbacks} nodes on the CPU", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
