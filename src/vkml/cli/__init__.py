"""The command line ``vkml``; `main` is its entry point and turns every outcome into an exit code.

0: done; 1: a model, file or device is at fault; 2: the command line is; 130: interrupted; 141: the reader of
the output went away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command line (by default the process's own) and exits with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--debug" in words:
        words.remove("--debug")
        os.environ["VKML_DEBUG"] = "1"
    try:
        from vkml.cli.app import app

        app(words, prog_name="vkml")
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 141
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    else:
        code = 0
    sys.exit(_flushed(code))


def _flushed(code: int) -> int:
    """Flushes the standard output while a reader that went away can still be met quietly."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    if code == 141:
        # The interpreter flushes once more at its exit; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
