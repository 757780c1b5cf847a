"""Python processes of their own: for what an environment or an exit does, which this one cannot try."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.patience import patience

ROOT = Path(__file__).parents[2]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code at the tests' own settings but for some environment variables."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience(240),
        check=False,
    )


def output_of(code: str, **environment: str) -> str:
    """The standard output of code that ends well and is quiet."""
    done = run_python(code, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


BEGUN = """
    import os, signal, sys

    # What a shell starts in the background, a whole test run among it, has interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import vkml

    run, pipe = vkml.InferenceSession.run, int(sys.argv.pop(1))

    def first_run(*arguments):
        vkml.InferenceSession.run = run
        results = run(*arguments)
        os.write(pipe, b"!")
        return results

    vkml.InferenceSession.run = first_run
    from vkml.cli import main
    main(sys.argv[1:])
"""
"""The command line, which says through a pipe that a session has run once."""


def interrupted_command(*words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command of vkml's that is interrupted while it runs a model."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BEGUN), str(writer), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[writer],
        cwd=ROOT,
    )
    try:
        os.close(writer)
        os.read(reader, 1)  # or it has ended, which closes the pipe
        os.close(reader)
        process.send_signal(signal.SIGINT)
        try:
            out, error = process.communicate(timeout=patience(60))
        except subprocess.TimeoutExpired:
            # Python drops an interrupt that meets a finalizer; a person presses the keys again.
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=patience(60))
    finally:
        process.kill()
    return process.returncode, out, error
