"""Classifies pictures of handwritten digits: the shortest whole program around a vkml session.

usage: python examples/digits/classify.py [--device NAME] PICTURE...
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vkml

MODEL = Path(__file__).parent / "digits.onnx"
TIMED_RUNS = 50


def read_picture(path: Path) -> np.ndarray[Any, Any]:
    """A picture as the model wants it: one channel of 8×8, white on black, in 0..1."""
    with Image.open(path) as opened:
        picture = opened.convert("L").resize((8, 8), Image.Resampling.BILINEAR)
    return np.asarray(picture, np.float32)[None] / np.float32(255)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="+", type=Path, metavar="PICTURE")
    parser.add_argument("--device", default="auto", help="auto (the best there is), cpu, vulkan:0, ...")
    options = parser.parse_args()
    try:
        images = np.stack([read_picture(path) for path in options.pictures])
        with vkml.InferenceSession(MODEL, devices=options.device) as session:
            titles = {device.name: device.title for device in vkml.devices(allow_software=True)}
            title = titles.get(session.device, session.device)
            print(f"{MODEL.name} is loaded on {session.device}: {title}", file=sys.stderr)
            print("the first run makes its plan, and kernels that are new here", file=sys.stderr)
            (given,) = session.run(None, {"image": images})
            seconds = []
            for _ in range(TIMED_RUNS):
                started = time.perf_counter()
                session.run(None, {"image": images})
                seconds.append(time.perf_counter() - started)
            where = session.device
    except (vkml.Error, OSError) as problem:
        print(f"classify: {problem}", file=sys.stderr)
        return 1
    width = max(len(path.name) for path in options.pictures)
    for path, row in zip(options.pictures, given, strict=True):
        best, second = np.argsort(-row)[:2]
        next_best = f"next: {second}, {100 * row[second]:.2f} %"
        print(f"{path.name:{width}}  is a {best}  {100 * row[best]:6.2f} %   ({next_best})")
    count = f"{len(images)} picture" + "s" * (len(images) > 1)
    latency = 1e6 * statistics.median(seconds)
    print(f"{count} at once in {latency:.0f} µs (median of {TIMED_RUNS}) on {where}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
