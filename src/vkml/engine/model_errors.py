"""Errors of planning and running that say which model they are about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vkml.errors import ModelError


@contextlib.contextmanager
def explained(label: str) -> Iterator[None]:
    """Names the model in errors that do not, and makes NumPy's MemoryError one of vkml's."""
    try:
        yield
    except ModelError as error:
        if label not in str(error):
            error.args = (f"{label}: {error}",)
        raise
    except MemoryError as error:
        from vkml.engine.cpu_bound import out_of_memory

        raise out_of_memory(error, label) from error
