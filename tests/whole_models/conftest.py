"""PyTorch is loaded before any device is used."""

from __future__ import annotations

import contextlib

# lavapipe crashes when PyTorch is loaded into a process in which it has compiled, and then compiles more:
# tests that ask for torch when they run would load it in between.
with contextlib.suppress(ImportError):
    import torch  # noqa: F401
