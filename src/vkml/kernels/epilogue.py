"""What a template does to its result before it stores it."""

from __future__ import annotations

from collections.abc import Mapping

from vkml.dataclasses import dataclass
from vkml.ir import Graph
from vkml.kernels.views import View


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Pointwise nodes applied to a template's result before it is stored.

    `body` takes the template's result as its input named `result`, every other input from `leaves`.
    """

    body: Graph
    result: str
    leaves: Mapping[str, View]
