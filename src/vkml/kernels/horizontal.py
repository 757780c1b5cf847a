"""Horizontal fusion: elementwise launches over different tensors as one launch, which walks a table of them.

The table is a block of memory: for each workgroup the number of its member, for each member what would be
its push and specialization constants. Its addresses are known when a program is bound to memory, and change
with that.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.kernels.items import COUNT, ELEMENT, WORKGROUP
from vkml.kernels.spec import Dispatch, KernelText
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.kernels.writer import KernelWriter

MOST_VARIANTS = 4
"""Texts of one form in one kernel: by how many elements a thread takes, and by dimensions."""
_VARIANT_BIT = 28
_WORD = 0xFFFFFFFF
_FIRST = "first"
"""The field of an entry that says in which of the launch's workgroups its member begins."""


@dataclass(frozen=True, eq=False)
class LaunchTable:
    """What a launch over several tensors reads of them, but for addresses."""

    buffer: Buffer
    map: bytes
    """For each workgroup the variant and the number of its member among those of the variant."""
    members: tuple[tuple[Dispatch, int], ...]
    """In the order of the entries, and the first workgroup of each."""

    def filled(self, addresses: Mapping[Buffer, int]) -> bytes:
        """The table's bytes with buffers at these addresses."""
        parts = [self.map]
        for member, first in self.members:
            format_ = _format(member.kernel.text)
            words = []
            for argument in member.arguments:
                if isinstance(argument, View):
                    words.append(addresses[argument.buffer] + argument.byte_offset)
                else:
                    assert isinstance(argument, int), "a member has neither a status word nor open sizes"
                    words.append(argument & _WORD)
            words += [*[constant & _WORD for constant in member.kernel.constants], first]
            parts.append(struct.pack(format_, *words))
        return b"".join(parts)


def _format(text: KernelText) -> str:
    """Of an entry: addresses, then words; a multiple of 8 bytes."""
    addresses = sum(type_.endswith("*") for type_, _ in text.fields)
    words = len(text.fields) - addresses + len(text.constants) + 1
    return f"<{addresses}Q{words}I{4 * (words % 2)}x"


def joined(members: Sequence[Dispatch], push_limit: int, max_groups: int) -> Dispatch:
    """One launch in the place of several that are independent of one another.

    Args:
        members: of equal `KernelSpec.form`, of at most `MOST_VARIANTS` texts.
        push_limit: bytes of push constants the device offers.
        max_groups: workgroups a grid dimension may have.

    Raises:
        CannotLower: the device has too few push constants.
    """
    texts = list(dict.fromkeys(member.kernel.text for member in members))
    assert len(texts) <= MOST_VARIANTS
    by_variant = [[m for m in members if m.kernel.text == text] for text in texts]
    numbers: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = []
    entries: list[tuple[Dispatch, int]] = []
    starts: list[int] = []
    """Where the entries of each variant begin, behind the map."""
    first = end = 0
    for variant, (text, group) in enumerate(zip(texts, by_variant, strict=True)):
        starts.append(end)
        for number, member in enumerate(group):
            count = -(-member.kernel.constants[text.constants.index(COUNT)] // WORKGROUP)
            numbers.append(np.full(count, variant << _VARIANT_BIT | number, np.uint32))
            entries.append((member, first))
            first += count
        end += len(group) * struct.calcsize(_format(text))
    if first % 2:
        numbers.append(np.zeros(1, np.uint32))  # entries are aligned to 8 bytes
    map_ = np.concatenate(numbers)
    buffer = Buffer(BufferKind.TABLE, map_.nbytes + end, "table of tensors")
    table = LaunchTable(buffer, map_.tobytes(), tuple(entries))

    writer = KernelWriter(push_limit)
    at_map = writer.buffer(_within(buffer, 0), "uint", "map")
    at_entries = [
        writer.buffer(_within(buffer, map_.nbytes + start), f"Entry{variant}", f"entries{variant}")
        for variant, start in enumerate(starts)
    ]
    groups = writer.word("groups", first)
    across, rows = writer.grid(first, max_groups)
    for variant, text in enumerate(texts):
        _write_variant(writer, variant, text)
    lines = [
        f'[shader("compute")] [numthreads({WORKGROUP}, 1, 1)]',
        "void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)",
        "{",
        "    int number = int(group.x + group.y * ACROSS);",
        f"    if (number >= {groups}) return;",
        f"    uint found = {at_map}[number];",
        f"    uint at = found & {(1 << _VARIANT_BIT) - 1:#x}u, variant = found >> {_VARIANT_BIT};",
    ]
    for variant, pointer in enumerate(at_entries):
        lines += [
            f"    if (variant == {variant})",
            "    {",
            f"        Entry{variant} entry = {pointer}[at];",
            f"        element{variant}(entry, (number - entry.{_FIRST}) * {WORKGROUP} + int(thread));",
            "    }",
        ]
    writer.text("\n".join([*lines, "}"]))
    if any(text.uses_math for text in texts):
        writer.math()
    writer.need(*[need for member in members for need in member.kernel.needs])
    made = writer.finish(
        members[0].kernel.label,
        (across, rows, 1),
        variant=f"{len(members)} tensors; {members[0].kernel.variant}",
        reason="one launch for elementwise work of one form",
    )
    return Dispatch(
        made.kernel,
        made.groups,
        made.arguments,
        tuple(view for member in members for view in member.reads),
        tuple(view for member in members for view in member.writes),
        tuple(dict.fromkeys(label for member in members for label in member.nodes)),
        members[0].operators,
        table,
        tuple(members),
    )


def _within(buffer: Buffer, offset: int) -> View:
    return View(buffer, dtypes.UINT32, (), (), offset // 4)


def _write_variant(writer: KernelWriter, variant: int, text: KernelText) -> None:
    """An entry, and the function of one element: `push` in it is the entry, constants are its fields."""
    constants = [*text.constants]
    fields = [*text.fields, *[("int", name) for name in (*constants, _FIRST)]]
    if struct.calcsize(_format(text)) != sum(8 if type_.endswith("*") else 4 for type_, _ in fields):
        fields.append(("int", "padding"))
    *others, element = text.parts[:-1]
    assert not others and not text.definitions and element.startswith(ELEMENT), "not of `pointwise`"
    head = ELEMENT.replace("element(", f"element{variant}(Entry{variant} push, ")
    writer.text(
        "\n".join(
            [
                f"struct Entry{variant}",
                "{",
                *[f"    {type_} {name};" for type_, name in fields],
                "};",
                *[f"#define {name} push.{name}" for name in constants],
                head + element[len(ELEMENT) :],
                *[f"#undef {name}" for name in constants],
            ]
        )
    )
