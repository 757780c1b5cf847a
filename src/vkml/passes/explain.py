"""Errors of operators, made to name the node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vkml.errors import Error, InvalidGraph
from vkml.ir import Node


@contextmanager
def explained(node: Node, problem: str) -> Iterator[None]:
    """Adds the node's label to vkml's errors that lack it; Python's own become `InvalidGraph`: `problem`."""
    try:
        yield
    except MemoryError:
        raise
    except Error as error:
        if node.label not in str(error):
            error.args = (f"{node.label}: {error}",)
        raise
    except Exception as error:
        raise InvalidGraph(f"{node.label}: {problem}: {error}") from error
