"""Errors of operators, made to name the node."""

from __future__ import annotations

from vkml.dataclasses import dataclass
from vkml.errors import Error, InvalidGraph
from vkml.ir import Node


@dataclass(slots=True)
class explained:
    """Adds the node's label to vkml's errors that lack it; Python's own become `InvalidGraph`: `problem`."""

    node: Node
    problem: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, MemoryError) or not isinstance(error, Exception):
            return
        if not isinstance(error, Error):
            raise InvalidGraph(f"{self.node.label}: {self.problem}: {error}") from error
        if self.node.label not in str(error):
            error.args = (f"{self.node.label}: {error}",)
