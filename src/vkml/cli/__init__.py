"""The command line ``vkml``; `main` is its entry point and turns every outcome into an exit code.

0: done; 1: a model, file or device is at fault; 2: the command line is; 130: interrupted; 141: the reader of
the output went away.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from vkml.cli.completion import VARIABLE
from vkml.cli.terminal import printable_streams


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command line (by default the process's own) and exits with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--debug" in words:
        words.remove("--debug")
        os.environ["VKML_DEBUG"] = "1"
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    # A shell that asks for proposals reads them as they are.
    with contextlib.nullcontext() if VARIABLE in os.environ else printable_streams():
        code = _flushed(_code_of(words))
    sys.exit(code)


def _code_of(words: Sequence[str]) -> int:
    try:
        from vkml.cli.app import app

        app(list(words), prog_name="vkml")
    except KeyboardInterrupt:
        return 130
    except OSError as problem:
        return _lost(problem)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    return 0


def _flushed(code: int) -> int:
    """Flushes the standard output while a reader that went away can still be met quietly."""
    is_lost = code == 141
    try:
        sys.stdout.flush()
    except OSError as problem:
        code, is_lost = _lost(problem), True
    if is_lost:
        # The interpreter flushes once more at its exit; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _lost(problem: OSError) -> int:
    """The exit code of output that nobody takes: quiet where the reader went away."""
    if isinstance(problem, BrokenPipeError):
        return 141
    with contextlib.suppress(OSError):
        print(f"vkml: the output cannot be written: {problem.strerror or problem}", file=sys.stderr)
    return 1
