"""Variants of the attention kernel and the rule that picks one."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.dataclasses import dataclass
from vkml.kernels.fragment_layout import FragmentLayouts, Layout
from vkml.kernels.packed_weights import Fragment

PLACES = ("registers", "shared", "scratch")
OPERAND_ROWS = 64
"""Rows of keys and values that are brought from fp32 to fp16 with one power of two."""
WIDEST_HEAD = 256


@dataclass(frozen=True)
class Variant:
    """How one attention kernel works; sizes come later, but the head size's upper bound."""

    fragment: Fragment
    head: int
    """Columns that are computed; a smaller head size is filled up with zeros."""
    sub_rows: int = 32
    """Rows of queries of a subgroup."""
    step: int = 64
    subgroups: int = 8
    held_in: str = "registers"
    """Where the first product's queries wait: "registers", "shared" or "scratch" (device memory)."""
    rows_in: str = "registers"
    """Where a row's maximum and sum are found: "registers" (the layout is known) or "shared"."""
    stages: int = 1
    """Tiles of keys and of values in shared memory: with two, steps overlap and need one barrier."""
    slack: int = 8
    """Powers of two by which scores may pass the maximum before results are rescaled."""
    is_rolled: bool = False
    """Drivers are asked not to unroll the loop over keys."""

    @property
    def tile_rows(self) -> int:
        return self.sub_rows * self.subgroups

    @property
    def threads(self) -> int:
        return self.subgroups * self.fragment.lanes

    def kept_words(self, *, has_floats: bool) -> int:
        """16-byte words of shared memory for the exponents of rows in fp32."""
        return -(-self.tile_rows // 4) if has_floats else 0

    def shared_bytes(self, *, has_floats: bool) -> int:
        """As the kernel counts them."""
        row = self.head // 8 + 1
        rows = self.subgroups * self.fragment.m
        working = 2 * self.stages * self.step * row
        working += rows * (self.step + 4) // 4 if self.rows_in == "shared" else 0
        working += self.tile_rows * row if self.held_in == "shared" else 0
        entry = 0 if self.held_in == "shared" else rows * ((64 if self.head % 64 == 0 else 32) // 8 + 1)
        room = max(working, rows * (min(self.head, 32) + 4) // 4, entry)
        return 16 * (room + self.kept_words(has_floats=has_floats))

    @property
    def label(self) -> str:
        """Short and unique: ``8x32/64 h128 16x8x16 q:registers r:registers``."""
        f = self.fragment
        text = f"{self.subgroups}x{self.sub_rows}/{self.step} h{self.head} {f.m}x{f.n}x{f.k}"
        text += f" q:{self.held_in} r:{self.rows_in}" + (" s2" if self.stages == 2 else "")
        return (
            text + (f" slack{self.slack}" if self.slack != 8 else "") + (" rolled" if self.is_rolled else "")
        )

    def broken_conditions(self) -> list[str]:
        """Why the kernel's loops would not come out even; nothing where they do."""
        f = self.fragment
        lanes_a_row = max(1, f.lanes // f.m)
        conditions = {
            "sub_rows is made of fragments": self.sub_rows % f.m == 0,
            "step is made of fragments": self.step % f.n == 0 and self.step % f.k == 0,
            "head is made of fragments": self.head % f.n == 0 and self.head % f.k == 0,
            "head is up to 32 or a multiple": self.head <= 32 or self.head % 32 == 0,
            "rows have words of eight": self.head % 8 == 0 and self.step % 8 == 0,
            "held_in is known": self.held_in in PLACES,
            "one stage or two": self.stages == 1 or (self.stages == 2 and self.rows_in == "registers"),
            "rows_in is known": self.rows_in in ("registers", "shared"),
            "lanes share a row evenly": self.rows_in == "registers"
            or (self.step % (8 * lanes_a_row) == 0 and max(f.lanes, f.m) % min(f.lanes, f.m) == 0),
            "lanes hold whole words": self.held_in != "scratch" or f.m * f.k // f.lanes % 8 == 0,
        }
        return [text for text, holds in conditions.items() if not holds]

    def check(self) -> None:
        """Raises ValueError where the kernel's loops would not come out even."""
        broken = self.broken_conditions()
        if broken:
            raise ValueError(f"{self.label}: {'; '.join(broken)} does not hold")


@dataclass(frozen=True)
class Shape:
    """A variant without its fragment and head."""

    subgroups: int
    rows: int
    """Of a subgroup."""
    step: int
    held_in: str = "registers"
    stages: int = 1
    is_wide: bool = False
    """The fragment has 16 columns of sums instead of 8, where the device has both."""
    has_room_to_mask: bool = True
    """Registers do not run out where the last tile of keys is masked."""


# For heads of up to so many columns, the fastest of what was tried on an H200 first.
SHAPES: dict[int, tuple[Shape, ...]] = {
    64: (
        Shape(4, 32, 32, stages=2),
        Shape(4, 32, 48),
        Shape(8, 32, 64, is_wide=True),
        Shape(4, 16, 32, stages=2),
        Shape(4, 16, 64),
        Shape(2, 16, 64),
        Shape(2, 16, 32, stages=2),
    ),
    128: (
        Shape(8, 32, 64, "scratch", is_wide=True, has_room_to_mask=False),
        Shape(8, 16, 64),
        Shape(8, 32, 48, "scratch"),
        Shape(4, 32, 32, "scratch"),
        Shape(4, 16, 32),
        Shape(4, 16, 64),
        Shape(2, 16, 64),
    ),
    256: (
        Shape(8, 16, 32, "scratch"),
        Shape(8, 16, 16, "scratch", 2),
        Shape(4, 16, 16, "scratch"),
        Shape(4, 16, 32, "scratch"),
        Shape(8, 16, 32),
    ),
}
GRADIENT_SHAPES: dict[int, dict[str, tuple[Shape, ...]]] = {
    64: {
        "queries": (Shape(4, 32, 32), Shape(4, 16, 32), Shape(2, 16, 32)),
        "keys": (Shape(4, 32, 32, "scratch"), Shape(4, 16, 32), Shape(2, 16, 32)),
    },
    128: {
        "queries": (Shape(8, 16, 32), Shape(4, 16, 32), Shape(2, 16, 32)),
        "keys": (Shape(8, 16, 32), Shape(4, 16, 32), Shape(2, 16, 32)),
    },
    256: {
        "queries": (Shape(4, 16, 16, "scratch"), Shape(2, 16, 16, "scratch")),
        "keys": (Shape(4, 16, 16, "scratch"), Shape(2, 16, 16, "scratch")),
    },
}
"""For gradients, by whose rows subgroups own: of 64 and of 128 columns the first of them
reached 190 to 237 TFLOP/s on an H200."""
UNKNOWN_LAYOUT = (Shape(8, 16, 32), Shape(4, 16, 32), Shape(2, 16, 32), Shape(2, 16, 16))
"""Where scores go through shared memory."""


@dataclass(frozen=True)
class Extent:
    """What the rule looks at."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    is_masked: bool = False
    """Scores are masked everywhere, not in the last tile of keys alone."""
    has_floats: bool = False
    group: int = 1
    """Heads of queries that share one of keys and values."""

    @property
    def kv_heads(self) -> int:
        return self.heads // self.group


def head_of(head_size: int) -> int:
    """Columns that kernels compute for a head size."""
    return max(32, -(-head_size // 32) * 32)


def shapes_of(head_size: int) -> tuple[Shape, ...]:
    """The rows of the table for heads of a size.

    Raises:
        ValueError: there are none.
    """
    head = head_of(head_size)
    found = [shapes for bound, shapes in SHAPES.items() if head <= bound]
    if not found:
        raise ValueError(f"heads of {head_size}, more than {WIDEST_HEAD} columns, have no kernel")
    return found[0]


def variant_of(shape: Shape, fragments: Sequence[Fragment], head: int, rows_in: str = "registers") -> Variant:
    """The variant of a shape with the device's best fragment of the kind it asks for."""
    alike = [each for each in fragments if each.k == fragments[0].k]
    fragment = next((each for each in alike if (each.n == 16) == shape.is_wide), alike[0])
    return Variant(
        fragment, head, shape.rows, shape.step, shape.subgroups, shape.held_in, rows_in, shape.stages
    )


def choose(
    extent: Extent,
    fragments: Sequence[Fragment],
    processors: int,
    shared_bytes: int = 48 << 10,
    invocations: int = 1024,
    *,
    is_layout_known: bool = True,
) -> Variant | None:
    """The variant that is expected to be the fastest: the first that occupies the whole device.

    Arguments are those of `ordered`.

    Returns:
        None where the device has room for none.
    """
    found = ordered(extent, fragments, processors, shared_bytes, invocations, is_layout_known=is_layout_known)
    return found[0] if found else None


def ordered(
    extent: Extent,
    fragments: Sequence[Fragment],
    processors: int,
    shared_bytes: int = 48 << 10,
    invocations: int = 1024,
    *,
    is_layout_known: bool = True,
) -> list[Variant]:
    """All variants that the device has room for, the one that is expected to be the fastest first.

    Args:
        extent: sizes.
        fragments: of the device, the best first.
        processors: of the device.
        shared_bytes: of shared memory that a workgroup may take.
        invocations: that a workgroup may have.
        is_layout_known: whether lanes may keep what they hold of scores.
    """
    head = head_of(extent.head_size)
    is_masked = extent.is_masked or extent.keys % 64 != 0
    shapes = shapes_of(extent.head_size) if is_layout_known else UNKNOWN_LAYOUT
    found = []
    for shape in shapes:
        variant = variant_of(shape, fragments, head, "registers" if is_layout_known else "shared")
        if (
            (shape.has_room_to_mask or not is_masked)
            and not (extent.has_floats and OPERAND_ROWS % shape.step)
            and not variant.broken_conditions()
            and variant.shared_bytes(has_floats=extent.has_floats) <= shared_bytes
            and variant.threads <= invocations
        ):
            found.append(variant)

    def workgroups(variant: Variant) -> int:
        return -(-extent.queries // variant.tile_rows) * extent.heads * extent.batch

    if not found:
        return []
    full = (each for each in found if workgroups(each) >= processors)
    rule = next(full, max(found, key=workgroups))
    return [rule, *(each for each in found if each is not rule)]


def gradient_shared_bytes(variant: Variant, owner: str) -> int:
    """Shared memory that a kernel of gradients takes, as it counts it."""
    working = 4 * variant.step * (variant.head // 8 + 1) + (2 * variant.step if owner == "keys" else 0)
    rows = variant.subgroups * variant.fragment.m
    ends = rows * max((min(variant.head, 32) + 4) // 4, (64 if variant.head % 64 == 0 else 32) // 8 + 1)
    return 16 * max(working, ends)


def choose_gradients(
    extent: Extent,
    fragment: Fragment,
    owner: str,
    processors: int,
    shared_bytes: int = 48 << 10,
    invocations: int = 1024,
) -> Variant | None:
    """The variant for gradients that is expected to be the fastest: the first that occupies the whole device.

    Args:
        extent: sizes.
        fragment: of the device.
        owner: of the rows that subgroups have, "queries" or "keys".
        processors: of the device.
        shared_bytes: of shared memory that a workgroup may take.
        invocations: that a workgroup may have.

    Returns:
        None where the device has room for none.
    """
    head = head_of(extent.head_size)
    shapes = next(found for bound, found in GRADIENT_SHAPES.items() if head <= bound)
    variants = [variant_of(shape, [fragment], head) for shape in shapes[owner]]
    fitting = [
        each
        for each in variants
        if not each.broken_conditions()
        and gradient_shared_bytes(each, owner) <= shared_bytes
        and each.threads <= invocations
    ]

    def workgroups(variant: Variant) -> int:
        rows, heads = (extent.queries, extent.heads) if owner == "queries" else (extent.keys, extent.kv_heads)
        return -(-rows // variant.tile_rows) * heads * extent.batch

    full = (each for each in fitting if workgroups(each) >= processors)
    return next(full, max(fitting, key=workgroups, default=None))


def defines(
    variant: Variant, layouts: FragmentLayouts | None, *, has_floats: bool = False
) -> dict[str, int | str]:
    """What every attention kernel of a variant defines."""
    f = variant.fragment
    values: dict[str, int | str] = {
        "REGISTERS": 0,
        "SHARED": 1,
        "SCRATCH": 2,
        "FRAGMENT_M": f.m,
        "FRAGMENT_N": f.n,
        "FRAGMENT_K": f.k,
        "LANES": f.lanes,
        "HEAD": variant.head,
        "SUB_ROWS": variant.sub_rows,
        "STEP": variant.step,
        "SUBGROUPS": variant.subgroups,
        "HELD_IN": variant.held_in.upper(),
        "LOOP": "[loop]" if variant.is_rolled else "",
        "KEPT_WORDS": variant.kept_words(has_floats=has_floats),
        "ARE_TILES_WHOLE": "true" if has_floats else "false",
    }
    return values | layout_defines(variant, layouts) if variant.rows_in == "registers" else values


def layout_defines(variant: Variant, layouts: FragmentLayouts | None) -> dict[str, int | str]:
    """The layout of fragments as formulas of the numbers of lanes and elements.

    Raises:
        ValueError: it is not known, or not such that probabilities could stay in their lanes.
    """
    moves = layouts.moves(variant.fragment.n) if layouts is not None else None
    if layouts is None or moves is None:
        raise ValueError(
            f"{variant.label}: probabilities cannot stay in their lanes with this device's fragments; "
            "rows_in='shared' asks nothing of them"
        )
    sums: Layout = layouts.sums
    slots = [bit for bit, (row, _) in enumerate(sums.elements) if row]
    return {
        "LANE_ROW(l)": _formula("l", [row for row, _ in sums.lanes]),
        "LANE_COLUMN(l)": _formula("l", [column for _, column in sums.lanes]),
        "ELEMENT_ROW(e)": _formula("e", [row for row, _ in sums.elements]),
        "ELEMENT_COLUMN(e)": _formula("e", [column for _, column in sums.elements]),
        "LANE_MASKS": sums.lane_masks,
        "SLOTS": sums.slots,
        "SLOT(e)": _formula(
            "e", [1 << slots.index(bit) if bit in slots else 0 for bit in range(len(sums.elements))]
        ),
        "SLOT_ROW(s)": _formula("s", [sums.elements[bit][0] for bit in slots]),
        "OPERAND_FRAGMENT(e)": _formula("e", [fragment for fragment, _ in moves]),
        "OPERAND_ELEMENT(e)": _formula("e", [element for _, element in moves]),
    }


def _formula(name: str, values: list[int]) -> str:
    """A number as the sum of what the bits of another one stand for."""
    terms = [f"((({name}) >> {bit}) & 1) * {value}" for bit, value in enumerate(values) if value]
    return f"({' + '.join(terms) or '0'})"
