"""Python processes of their own: for what an environment or an exit does, which this one cannot try."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code at the tests' own settings but for some environment variables."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def output_of(code: str, **environment: str) -> str:
    """The standard output of code that ends well and is quiet."""
    done = run_python(code, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
