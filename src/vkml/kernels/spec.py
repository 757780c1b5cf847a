"""Kernels and their launches as descriptions: nothing here touches a device."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir.described import described
from vkml.ir.lazy import lazy
from vkml.ir.size import Size
from vkml.kernels.pointwise_math import math_used_by
from vkml.kernels.views import Buffer, View

if TYPE_CHECKING:
    from vkml.kernels.horizontal import LaunchTable


@dataclass(frozen=True)
class KernelText:
    """What a kernel's source is put together from, which is done when the kernel is compiled or looked up."""

    constants: tuple[str, ...]
    """Names of the specialization constants."""
    fields: tuple[tuple[str, str], ...]
    """Types and names of the push constants."""
    definitions: tuple[str, ...]
    """Macros."""
    parts: tuple[str, ...]
    """The rest, in order."""
    uses_math: bool
    """Whether functions of pointwise_math.slang are called by name."""

    def joined(self, fields: Sequence[tuple[str, str]] | None = None, first_constant: int = 0) -> str:
        """The complete source.

        Args:
            fields: in place of the push constants, others that have these among them.
            first_constant: the number of the first specialization constant.
        """
        constants = [
            f"[[vk::constant_id({first_constant + i})]] const int {name} = 1;"
            for i, name in enumerate(self.constants)
        ]
        return "\n".join(
            [
                *constants,
                "struct Push",
                "{",
                *[f"    {type_} {name};" for type_, name in (self.fields if fields is None else fields)],
                "};",
                "[[vk::push_constant]] ConstantBuffer<Push> push;",
                *self.definitions,
                *([math_used_by(*self.parts)] if self.uses_math else []),
                *self.parts,
                "",
            ]
        )


@dataclass(frozen=True)
class KernelSpec:
    """A kernel before compilation: Slang source, specialization constants, needs of the device."""

    label: str
    text: KernelText
    constants: tuple[int, ...]
    push_bytes: int
    needs: frozenset[str] = frozenset()
    """Names of `Capabilities` flags."""
    variant: str = ""
    """Which variant of its template this is, and why, for people."""
    reason: str = ""
    subgroup_size: int | None = None
    """Lanes that the kernel counts on; None: it works with any."""
    in_place: frozenset[int] = frozenset()
    """Which of a launch's reads may be written over by a result that lies as they do: of these an invocation
    reads the elements that it writes, and no others, before it writes them."""
    form: Hashable | None = None
    """Equal for elementwise kernels that do the same to each element: `kernels.horizontal` may join them."""

    @lazy
    def source(self) -> str:
        """Complete Slang source."""
        return self.text.joined()

    @lazy
    def name(self) -> Hashable:
        """Equal for kernels of which devices make the same pipeline."""
        source = hashlib.sha256(self.source.encode()).digest()
        return source, self.constants, self.push_bytes, self.subgroup_size


@described
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
    table: LaunchTable | None = None
    """Of a launch over several tensors, what it reads of them."""
    members: tuple[Dispatch, ...] = ()
    """The launches in whose place it stands."""
    phases: tuple[tuple[Dispatch, ...], ...] = ()
    """The levels in whose place it stands, alone in its own."""
