"""Weights of few bits in the order of a matrix unit's fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.ir import Constant
from vkml.kernels.packed_weights import (
    COLUMN_PADDING,
    K_PADDING,
    UNIT_NEEDS,
    WIDEST_TILE,
    Fragment,
    PackedOnDevice,
    padded,
)
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.kernels.fragment_layout import Layout
    from vkml.lowering.target import Target

WORD_BITS = 32
MANTISSA = 23
"""Bits of a float32's fraction, as many as its exponent lies above the last one,"""
POWER = 0x4B000000
"""and the bits of 2 to that power."""
CHUNK = 256
"""Steps of k that a workgroup makes fragments of at a time;"""
MOST_CHUNKS = 8
"""several of them where"""
GROUPS = 1024
"""workgroups have one each."""


def why_no_codes(target: Target, bits: int, block: int) -> str:
    """Why a device's kernels take no codes in the order of fragments, or an empty string."""
    fragment = target.fragment
    layouts = None if fragment is None else target.fragment_layouts(fragment)
    if fragment is None or layouts is None or layouts.b is None:
        return "which lane has which elements is not known"
    if block % fragment.k:
        return "blocks that are no whole steps"
    of_group = COLUMN_PADDING * fragment.k * bits
    if of_group % (WORD_BITS * fragment.lanes) or fragment.n * fragment.k % (2 * fragment.lanes):
        return "codes of a lane that are no whole words"
    return ""


class PackedCodes(PackedOnDevice):
    """Numbers of few bits: of each step of a fragment's k, of each 16 columns, each lane's words."""

    def __init__(
        self, original: Constant, codes: View, inner: int, bits: int, fragment: Fragment, push_bytes: int
    ) -> None:
        """Args:
        original: packed bytes (columns, bytes), lowest bits first.
        codes: all of it.
        inner: numbers of a column.
        bits: of a number.
        fragment: whose order.
        push_bytes: of push constants that the device has.
        """
        columns = codes.shape[0]
        words = fragment_bytes(inner, columns, bits) // 4

        def dispatch(seen: View, target: View) -> Dispatch:
            writer = KernelWriter(push_bytes)
            step = codes.shape[1] // 4
            pointer = writer.read(seen, reinterpreted_as="uint")
            at = writer.offset(("n", "at"), (step, 1))
            lines = (
                f"static const int BITS = {bits};",
                *number_of("float", is_whole=True),
                f"uint load_word(int n, int at) {{ return {pointer}[{at}]; }}",
                "#define CODES",
            )
            writer.text("\n".join(lines))
            return write_fragments(writer, inner, columns, fragment, writer.write(target), "pack_codes")

        super().__init__(original, codes, words, "packed codes", dispatch)


def fragment_bytes(inner: int, columns: int, bits: int) -> int:
    """Of numbers in the order of fragments, and of room behind them that kernels may read."""
    rows, steps = padded(columns, COLUMN_PADDING), padded(inner, K_PADDING)
    return (rows * steps + K_PADDING * (rows + WIDEST_TILE)) * bits // 8


def write_fragments(
    writer: KernelWriter, inner: int, columns: int, fragment: Fragment, pointer: str, label: str
) -> Dispatch:
    """The launch that makes fragments of a matrix's numbers.

    Args:
        writer: of the kernel, which has what block_fragments.slang reads.
        inner: numbers of a column.
        columns: how many there are.
        fragment: whose order.
        pointer: to where they go.
        label: of the launch.
    """
    groups, steps = padded(columns, COLUMN_PADDING) // COLUMN_PADDING, padded(inner, K_PADDING)
    chunks = -(-steps // CHUNK)
    share = max(1, min(MOST_CHUNKS, groups * chunks // GROUPS)) * CHUNK
    for name, value in (("ROWS", columns), ("K", inner), ("K_PADDED", steps), ("SHARE", share)):
        writer.constant(value, name)
    numbers = (
        ("FRAGMENT_N", fragment.n),
        ("FRAGMENT_K", fragment.k),
        ("LANES", fragment.lanes),
        ("CHUNK", CHUNK),
    )
    writer.need(*UNIT_NEEDS[fragment.element])
    writer.text(
        "\n".join(
            [
                *(f"static const int {name} = {value};" for name, value in numbers),
                f"typealias Element = {fragment.slang_element};",
                f"#define PACKED {pointer}",
                template("block_fragments"),
            ]
        )
    )
    return writer.finish(label, (groups, -(-steps // share), 1), subgroup_size=fragment.lanes)


def number_of(accumulator: str, *, is_whole: bool) -> tuple[str, ...]:
    """Lines of ``number_of(word, i, zero)``: the i-th number of BITS bits of a word, less a zero point.

    Bits become floats where they lie in their word, by the exponent of the power of two whose last bits they
    then are: that and the zero point are taken from it, exactly. Conversions run at an eighth of the speed of
    other instructions, and shifts are as many as these.

    Args:
        accumulator: the type of numbers.
        is_whole: whether zero points are whole numbers of so many bits.
    """
    if accumulator == "float":
        taken = "(asfloat(exponent) + zero)" if is_whole else "asfloat(exponent) - zero"
        body: tuple[str, ...] = (
            f"static const int HELD = {MANTISSA} / BITS;",
            "int place = i % HELD * BITS;",
            "uint bits = word >> uint(i / HELD * HELD * BITS) & ((1u << BITS) - 1u) << uint(place);",
            f"uint exponent = {POWER:#x}u - (uint(place) << {MANTISSA}u);",
            f"return asfloat(bits | exponent) - {taken};",
        )
    else:
        body = (f"return {accumulator}(word >> uint(i * BITS) & ((1u << BITS) - 1u)) - zero;",)
    return (
        f"{accumulator} number_of(uint word, int i, {accumulator} zero)",
        "{",
        *(f"    {line}" for line in body),
        "}",
    )


def define_columns(layout: Layout) -> str:
    """``SLOTS``, ``slot_of(element)`` and ``column_of(lane, slot)`` of few_bit_weights.slang."""
    of_elements = [(bit, column) for bit, (_, column) in enumerate(layout.elements) if column]
    slot = [f"(element >> {bit} & 1) << {at}" for at, (bit, _) in enumerate(of_elements)]
    column = [f"(lane >> {bit} & 1) * {column}" for bit, (_, column) in enumerate(layout.lanes) if column]
    column += [f"(slot >> {at} & 1) * {column}" for at, (_, column) in enumerate(of_elements)]
    return "\n".join(
        [
            f"static const int SLOTS = {1 << len(of_elements)};",
            f"int slot_of(int element) {{ return {' | '.join(slot) or '0'}; }}",
            f"int column_of(int lane, int slot) {{ return {' + '.join(column) or '0'}; }}",
        ]
    )
