"""Variants of the attention kernel and their Slang source."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.attention_units.layout import FragmentLayouts, Layout
from benchmarks.attention_units.problems import Problem
from benchmarks.fragments import Fragment
from benchmarks.source_text import constants_text, defines_text, template

PLACES = ("registers", "shared", "scratch")

PUSH = """struct Push
{
    Element* q;
    half* k;
    half* v;
    Element* o;
    uint4* scratch;
    float* logs;
    uint* largest;
    float scale;
    int unused;
};
[[vk::push_constant]] ConstantBuffer<Push> push;"""
PUSH_BYTES = 7 * 8 + 8

BACKWARD_PUSH = """struct Push
{
    half* q;
    half* k;
    half* v;
    half* d_out;
    float* logs;
    float* deltas;
    half* first;
    half* second;
    uint4* scratch;
    float scale2;
    float scale;
};
[[vk::push_constant]] ConstantBuffer<Push> push;"""
BACKWARD_PUSH_BYTES = 9 * 8 + 8

DELTA_PUSH = """struct Push { half* o; half* d_out; float* deltas; };
[[vk::push_constant]] ConstantBuffer<Push> push;"""
DELTA_PUSH_BYTES = 3 * 8

HALVE_PUSH = """struct Push { float* floats; uint4* halfs; uint* largest; uint words; uint unused; };
[[vk::push_constant]] ConstantBuffer<Push> push;"""
HALVE_PUSH_BYTES = 3 * 8 + 8
HALVE_ELEMENTS = 256 * 8
"""That a workgroup of halve.slang converts."""

OWNERS = ("queries", "keys")

CONSTANTS = (
    "QUERY_ROWS",
    "KEY_ROWS",
    "HEAD_SIZE",
    "HEADS",
    "GROUP",
    "CAUSAL_OFFSET",
    *(f"{operand}_{stride}" for operand in "QKVO" for stride in ("BATCH", "HEAD", "ROW")),
)


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
    has_floats: bool = False
    """Queries and results are fp32; keys and values were brought to fp16 before."""
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

    @property
    def shared_bytes(self) -> int:
        """As attention.slang counts them."""
        row = self.head // 8 + 1
        rows = self.subgroups * self.fragment.m
        working = 2 * self.stages * self.step * row
        working += rows * (self.step + 4) // 4 if self.rows_in == "shared" else 0
        working += self.tile_rows * row if self.held_in == "shared" else 0
        entry = 0 if self.held_in == "shared" else rows * ((64 if self.head % 64 == 0 else 32) // 8 + 1)
        return 16 * max(working, rows * (min(self.head, 32) + 4) // 4, entry)

    def scratch_bytes(self, problem: Problem) -> int:
        if self.held_in != "scratch":
            return 0
        tiles = -(-problem.queries // self.tile_rows)
        return 2 * problem.batch * problem.heads * tiles * self.tile_rows * self.head

    @property
    def label(self) -> str:
        """Short and unique: ``8x32 rows, 64 keys, queries registers, rows registers``."""
        f = self.fragment
        text = f"{self.subgroups}x{self.sub_rows}/{self.step} h{self.head} {f.m}x{f.n}x{f.k}"
        text += " fp32" if self.has_floats else ""
        text += f" q:{self.held_in} r:{self.rows_in}" + (" s2" if self.stages == 2 else "")
        return (
            text + (f" slack{self.slack}" if self.slack != 8 else "") + (" rolled" if self.is_rolled else "")
        )

    def check(self) -> None:
        """Raises ValueError where the kernel's loops would not come out even."""
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
        broken = [text for text, holds in conditions.items() if not holds]
        if broken:
            raise ValueError(f"{self.label}: {'; '.join(broken)} does not hold")


def constants_of(problem: Problem) -> tuple[int, ...]:
    """In the order of CONSTANTS."""
    of_queries = problem.strides(problem.queries, problem.heads)
    of_keys = problem.strides(problem.keys, problem.kv_heads)
    sizes = (problem.queries, problem.keys, problem.head_size, problem.heads, problem.group)
    return (*sizes, problem.causal_offset, *of_queries, *of_keys, *of_keys, *of_queries)


def attention_source(
    variant: Variant, layouts: FragmentLayouts | None, *, is_causal: bool, is_training: bool = False
) -> str:
    """The complete source of an attention kernel."""
    variant.check()
    values = _common_defines(variant, is_causal) | {
        "ROWS_IN": variant.rows_in.upper(),
        "STAGES": variant.stages,
        "SLACK": f"{variant.slack}.0",
        "TRAINING": "true" if is_training else "false",
        "SCORE_ROW": "((STEP + 4) / 4)",
        "SCORES": "(SUBGROUPS * FRAGMENT_M * SCORE_ROW)" if variant.rows_in == "shared" else 0,
        "TILES": "(2 * STAGES * TILE)",
        "WORKING": "(TILES + SCORES + (HELD_IN == SHARED ? TILE_ROWS * ROW : 0))",
    }
    if variant.rows_in == "registers":
        values |= layout_defines(variant, layouts)
    return _source(values, PUSH, "halved", "common", "attention")


def backward_source(variant: Variant, layouts: FragmentLayouts | None, owner: str, *, is_causal: bool) -> str:
    """The complete source of a kernel of gradients: of the queries, or of keys and values."""
    variant.check()
    if variant.held_in == "shared":
        raise ValueError(f"{variant.label}: gradients keep nothing in shared memory but tiles")
    if variant.has_floats:
        raise ValueError(f"{variant.label}: gradients are computed of fp16 tensors only")
    values = _common_defines(variant, is_causal) | {
        "QUERIES": 0,
        "KEYS": 1,
        "OWNER": owner.upper(),
        "WORKING": f"(4 * TILE + {2 * variant.step if owner == 'keys' else 0})",
    }
    return _source(values | layout_defines(variant, layouts), BACKWARD_PUSH, "halved", "common", "backward")


def delta_source(variant: Variant) -> str:
    """The complete source of the kernel that multiplies results and gradients."""
    sharers = min(variant.fragment.lanes, 1 << max(variant.head // 8 - 1, 0).bit_length())
    return _source({"LANES": variant.fragment.lanes, "SHARERS": sharers}, DELTA_PUSH, "delta")


def halve_source() -> str:
    """The complete source of the kernel that brings a tensor to fp16."""
    return _source({}, HALVE_PUSH, "halved", "halve")


def _common_defines(variant: Variant, is_causal: bool) -> dict[str, int | str]:
    f = variant.fragment
    return {
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
        "CAUSAL": "true" if is_causal else "false",
        "FLOATS": int(variant.has_floats),
        "Element": "float" if variant.has_floats else "half",
    }


def _source(values: dict[str, int | str], push: str, *templates: str) -> str:
    texts = [template("benchmarks.matrix_units", "scaling")]
    texts += [template(__package__, name) for name in templates]
    return "\n".join([defines_text(values), constants_text(CONSTANTS), push, *texts])


def layout_defines(variant: Variant, layouts: FragmentLayouts | None) -> dict[str, int | str]:
    """The layout of fragments as formulas of the numbers of lanes and elements."""
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
