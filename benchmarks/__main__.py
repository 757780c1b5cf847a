"""``python -m benchmarks``: chosen models on vkml and on the peers that are installed, in turns."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.feeds import feed_of
from benchmarks.measure import measure
from benchmarks.memory import UsedMemory, used_memory
from benchmarks.models import DEFAULT_MODELS, MODELS, model_file
from benchmarks.peers import PEERS, make_peers
from benchmarks.report import as_json, show_model, write_json

SUITES = {"zoo": tuple(MODELS), "default": DEFAULT_MODELS}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="names (see --list) or .onnx files; or: all"
    )
    parser.add_argument("--suite", choices=list(SUITES), help="the models of a set, instead of names")
    parser.add_argument(
        "--against",
        type=lambda text: text.split(","),
        metavar="PEERS",
        help="vkml and these, separated by commas; 'ncnn' or 'torch' stands for all that begin so",
    )
    parser.add_argument(
        "--peers", nargs="+", metavar="PEER", help="by default all, and what is missing is said"
    )
    parser.add_argument(
        "--reference",
        default="vkml-highest",
        metavar="PEER",
        help="whose outputs errors are counted from; the first peer, where it is none of them",
    )
    parser.add_argument("--device", default="auto", help="where vkml runs: auto, cpu, vulkan:0, ...")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each peer on each model")
    parser.add_argument(
        "--no-memory", action="store_true", help="do not measure peak memory (a process each)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--list", action="store_true", help="list models and peers")
    options = parser.parse_args()
    if options.suite and options.models:
        parser.error("--suite and names of models: either")
    if options.against and options.peers:
        parser.error("--against and --peers: either")
    return options


def rivals(names: Sequence[str]) -> list[str]:
    """vkml, and the peers of these names, or whose names begin so, where there is none of the very name.

    Raises:
        SystemExit: no peer is called so.
    """
    found = ["vkml", "vkml-highest"]
    for name in names:
        alike = [name] if name in PEERS else [peer for peer in PEERS if peer.startswith(f"{name}-")]
        if not alike:
            raise SystemExit(f"no peer is called {name!r}: there are {', '.join(PEERS)}")
        found += alike
    return list(dict.fromkeys(found))


def main() -> None:
    options = _options()
    if options.list:
        print("models:", *MODELS, sep="\n  ")
        print("peers:", *PEERS, sep="\n  ")
        return
    names = list(MODELS) if options.models == ["all"] else options.models or list(DEFAULT_MODELS)
    if options.suite:
        names = list(SUITES[options.suite])
    chosen = rivals(options.against) if options.against else options.peers or list(PEERS)
    peers = make_peers(chosen, options.device)
    results: list[dict[str, Any]] = []
    for name in names:
        path = os.fspath(model_file(name))
        found = measure(path, feed_of(path), peers, options.seconds, options.reference)
        memory: dict[str, UsedMemory] = {}
        for each in found:
            used = (
                None if options.no_memory or not each.runs else used_memory(each.peer, path, options.device)
            )
            if used is not None:
                memory[each.peer] = used
        show_model(Path(path).stem, found, memory)
        results.append(as_json(Path(path).stem, found, memory))
        if options.json:
            write_json(options.json, results)


if __name__ == "__main__":
    main()
