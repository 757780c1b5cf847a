"""``python -m benchmarks.quantized``: models of bytes and 4-bit weights, beside onnxruntime on the CPU."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.quantized.few_bits import decoder_layer
from tests.quantized.models import inverted_residual, quantized, residual, transformer
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration

Run = Callable[[], Any]
MODELS: dict[str, Callable[[], bytes]] = {
    "residual": lambda: quantized(residual(224, 64, 4)),
    "residual, unsigned, by channel": lambda: quantized(residual(224, 64, 4), **_unsigned()),
    "inverted residual": lambda: quantized(inverted_residual(224, 16, 6)),
    "inverted residual, unsigned, by channel": lambda: quantized(
        inverted_residual(224, 16, 6), **_unsigned()
    ),
    "transformer": lambda: quantized(transformer(128, 512, 8, 4)),
    "transformer, dynamic": lambda: quantized(transformer(128, 512, 8, 4), dynamic=True),
    # accuracy_level 4 lets activations be quantised, too.
    **{
        f"decoder layer of 4 bits, {rows} rows{how}": partial(
            decoder_layer, rows, 2048, 16, 5632, accuracy_level=level
        )
        for rows in (1, 128)
        for level, how in ((0, ""), (4, ", accuracy_level 4"))
    },
}
REPEATED = 30


def _unsigned() -> dict[str, Any]:
    from onnxruntime.quantization import QuantType

    return {"activation_type": QuantType.QUInt8, "per_channel": True}


def best_in_turns(runs: list[Run], repeated: int = REPEATED) -> list[float]:
    """The shortest run of each in seconds, taken in turns, so that what else the machine does meets all."""
    best = [float("inf")] * len(runs)
    for turn in range(repeated):
        for at, run in enumerate(runs):
            start = time.perf_counter()
            run()
            if turn:
                best[at] = min(best[at], time.perf_counter() - start)
    return best


def main() -> None:
    import onnxruntime

    import vkml

    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantized", description=__doc__)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--threads", type=int, default=2, help="of onnxruntime; vkml takes the machine's")
    parser.add_argument("--device", default="cpu", help="of vkml")
    chosen = parser.parse_args()
    shown = table("model", "vkml", "onnxruntime", "ratio", "greatest difference")
    for name in chosen.models:
        data = MODELS[name]()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = chosen.threads
        there = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        here = vkml.InferenceSession(data, devices=chosen.device)
        shape = [int(size or 1) for size in here.get_inputs()[0].shape]
        feed = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        runs: list[Run] = [partial(session.run, None, feed) for session in (here, there)]
        mine, theirs = (run()[0] for run in runs)
        own, other = best_in_turns(runs)
        difference = float(np.abs(mine - theirs).max() / np.abs(theirs).max())
        shown.add_row(name, duration(own), duration(other), f"{other / own:.2f}", f"{difference:.2%}")
    show_table(console(), shown)


if __name__ == "__main__":
    main()
