"""Kernels and their launches as descriptions: nothing here touches a device."""

from __future__ import annotations

from dataclasses import dataclass

from vkml.ir.size import Size
from vkml.kernels.views import Buffer, View


@dataclass(frozen=True)
class KernelSpec:
    """A kernel before compilation: complete Slang source, specialization constants, needs of the device."""

    label: str
    source: str
    constants: tuple[int, ...]
    push_bytes: int
    needs: frozenset[str] = frozenset()
    """Names of `Capabilities` flags."""
    variant: str = ""
    """Which variant of its template this is, and why, for people."""
    reason: str = ""
    subgroup_size: int | None = None
    """Lanes that the kernel counts on; None: it works with any."""


@dataclass(frozen=True, eq=False)
class Dispatch:
    """One launch of a kernel."""

    kernel: KernelSpec
    groups: tuple[int, int, int]
    arguments: tuple[View | Buffer | int | Size, ...]
    """In the push-constant block's order: a View or Buffer is an address (8 bytes), an int a 32-bit word."""
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    nodes: tuple[str, ...] = ()
    """Labels of the nodes it computes."""
    operators: tuple[str, ...] = ()
