"""PyTorch is loaded before any device is used; see `tests/nn/conftest.py`."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    import torch  # noqa: F401
