"""Variants of the product's kernels and their Slang source."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.source_text import constants_text, defines_text, template
from vkml.kernels.packed_weights import Fragment

K_PADDING = 64
"""Packed operands hold zeros from K up to a multiple of this: what the longest step needs."""
ROW_PADDING = 16
"""Packed operands hold whole groups of so many rows of m or n."""
BAND = 8
"""Tiles of m whose workgroups run side by side."""
PAIRWISE_SLICES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Variant:
    """How one product kernel works; sizes of the matrices come later."""

    fragment: Fragment
    tile_m: int
    tile_n: int
    sub_m: int
    sub_n: int
    a: str = "rows"
    """"rows" (fp32, converted on the way), "windows" (fp32 images, likewise), "half_windows" (fp16 images),
    "blocks" (packed before)."""
    b: str = "fragments"
    """"fragments" (straight into registers) or "blocks" (through shared memory)."""
    slices: int = 1
    """Shares of K inside a workgroup."""
    step_k: int = 32
    stages: int = 2
    ahead: int = 2
    """Steps of a fragment's k that B's fragments are fetched ahead."""
    are_sizes_pushed: bool = False
    """Sizes as push constants, one pipeline for all shapes, instead of as specialization constants."""

    @property
    def subgroups(self) -> int:
        return self.tile_m // self.sub_m * (self.tile_n // self.sub_n)

    @property
    def threads(self) -> int:
        return self.subgroups * self.slices * self.fragment.lanes

    @property
    def is_converting(self) -> bool:
        return self.a in ("rows", "windows")

    @property
    def has_windows(self) -> bool:
        return self.a in ("windows", "half_windows")

    @property
    def shared_bytes(self) -> int:
        """As product.slang counts them."""
        word = 4 if self.is_converting else 8
        row = (self.step_k + 8) // word
        stage = self.tile_m + (self.tile_n if self.b == "blocks" else 0)
        operands = self.slices * self.stages * stage * row
        results = self.subgroups * self.fragment.m * ((self.sub_n + 4) * 2 // word)
        added = self.slices // 2 * self.tile_m * self.tile_n * 2 // word
        return max(operands, results, added) * word * 2 + 16

    @property
    def label(self) -> str:
        """Short and unique: ``64x256/64x64 rows-fragments k32 s2 a2``."""
        text = f"{self.tile_m}x{self.tile_n}/{self.sub_m}x{self.sub_n}"
        text += f"x{self.slices}" if self.slices > 1 else ""
        text += f" {self.a}-{self.b} k{self.step_k} s{self.stages}"
        text += f" a{self.ahead}" if self.b == "fragments" else ""
        return text + (" pushed" if self.are_sizes_pushed else "")

    def check(self) -> None:
        """Raises ValueError where the kernel's loops would not come out even."""
        f = self.fragment
        slice_threads = self.subgroups * f.lanes
        width = 4 if self.is_converting else 8
        group_b = max(1, 8 * f.lanes // (f.n * f.k)) * f.n
        conditions = {
            "tile_m is a multiple of sub_m": self.tile_m % self.sub_m == 0,
            "tile_n is a multiple of sub_n": self.tile_n % self.sub_n == 0,
            "sub_m is made of fragments": self.sub_m % f.m == 0,
            "sub_n is made of fragments": self.sub_n % group_b == 0,
            "step_k is 32 or 64": self.step_k in (32, 64) and self.step_k % f.k == 0,
            "ahead divides the steps": self.ahead >= 1 and self.step_k // f.k % self.ahead == 0,
            "slices are added pairwise": self.slices in PAIRWISE_SLICES,
            "a row of fragments leaves in whole turns": f.m * self.sub_n // 8 % f.lanes == 0,
            "A is fetched in whole turns": self.tile_m * self.step_k % (slice_threads * width) == 0,
            "B is fetched in whole turns": self.b == "fragments"
            or self.tile_n * self.step_k % (slice_threads * 8) == 0,
            "rows come in eights": self.tile_m % 8 == 0,
        }
        broken = [text for text, holds in conditions.items() if not holds]
        if broken:
            raise ValueError(f"{self.label}: {'; '.join(broken)} does not hold")


@dataclass(frozen=True)
class Window:
    """The geometry of a square convolution over channels-last images."""

    in_y: int
    in_x: int
    channels: int
    size: int
    stride: int
    pad: int

    @property
    def out_y(self) -> int:
        return (self.in_y + 2 * self.pad - self.size) // self.stride + 1

    @property
    def out_x(self) -> int:
        return (self.in_x + 2 * self.pad - self.size) // self.stride + 1


@dataclass(frozen=True)
class Finish:
    """What happens to the sums before they are stored, and where they go."""

    has_bias: bool = False
    activation: str = "x"
    """Slang text of a float4 in terms of the float4 x."""
    scaled: str = "unscaled"
    """By which power of two A is scaled: "unscaled", "by_tensor" (of its largest magnitude), "by_row"."""
    has_column_exponents: bool = False
    is_a_guarded: bool = False
    """The kernel reports magnitudes that fp16 cannot hold."""
    notes_largest: bool = False
    """The largest magnitude stored is noted for the next product's scale."""
    is_out_half: bool = False
    """The result leaves in fp16."""
    is_out_packed: bool = False
    """The result leaves as the next product's A, in fp16 blocks."""
    partials: str = ""
    """Of a product split along K: "" (is not), "pass" (a second kernel adds), "arrival" (the last group)."""


RELU = "max(x, float4(0))"
GELU = "x / (1 + exp(-1.5957691216 * (x + 0.044715 * x * x * x)))"

_PUSHED = "[[vk::push_constant]] ConstantBuffer<Push> push;"

PUSH = """struct Push
{
    %s* a;
    uint4* b;
    float* out;
    float* bias;
    int* row_exponents;
    int* column_exponents;
    uint* largest;
    uint* out_largest;
    uint* status;
    uint4* partials;
    uint* counters;
    int m, n, k, splits, batch, is_b_shared;
};
[[vk::push_constant]] ConstantBuffer<Push> push;"""
PUSH_BYTES = 11 * 8 + 6 * 4

PUSHED_CONSTANTS = ("IS_K_ALIGNED", "IS_K_WHOLE", "IS_N_ALIGNED", "IS_SPLIT")
"""What stays a constant where sizes are pushed: properties of them, so that few pipelines serve all."""
PRODUCT_CONSTANTS = ("M", "N", "K", "SPLITS", "BATCH", "B_IS_SHARED")
WINDOW_CONSTANTS = ("IN_Y", "IN_X", "CHANNELS", "WINDOW", "STRIDE", "PAD", "OUT_Y", "OUT_X")


def product_source(variant: Variant, finish: Finish) -> str:
    """The complete source of a product kernel."""
    variant.check()
    if finish.is_out_packed and variant.tile_n % K_PADDING:
        raise ValueError(
            f"{variant.label}: a packed result needs tiles of whole {K_PADDING} columns for its zeros"
        )
    f = variant.fragment
    defines: dict[str, int | str] = {
        "ROWS": 0,
        "WINDOWS": 1,
        "BLOCKS": 2,
        "HALF_WINDOWS": 3,
        "A_WINDOWS": int(variant.has_windows),
        "FRAGMENT_M": f.m,
        "FRAGMENT_N": f.n,
        "FRAGMENT_K": f.k,
        "LANES": f.lanes,
        "TILE_M": variant.tile_m,
        "TILE_N": variant.tile_n,
        "SUB_M": variant.sub_m,
        "SUB_N": variant.sub_n,
        "SLICES": variant.slices,
        "STEP_K": variant.step_k,
        "STAGES": variant.stages,
        "AHEAD": variant.ahead,
        "BAND": BAND,
        "A_SOURCE": variant.a.upper(),
        "A_CONVERTED": int(variant.is_converting),
        "B_SHARED": int(variant.b != "fragments"),
        "A_GUARDED": int(finish.is_a_guarded),
        "LAST_ARRIVER": int(finish.partials == "arrival"),
        "OUT_PACKED": int(finish.is_out_packed),
        "K_PADDING": K_PADDING,
    }
    return "\n".join(
        [
            defines_text(defines),
            _sizes(variant, variant.has_windows),
            _finish_defines(finish),
            PUSH % ("float" if variant.is_converting else "uint4"),
            _activation(finish),
            template(__package__, "scaling"),
            template(__package__, "common"),
            template(__package__, "product"),
        ]
    )


def add_source(finish: Finish, lanes: int) -> str:
    """The source of the kernel that adds partial sums."""
    return "\n".join(
        [
            defines_text({"THREADS": max(lanes, 128), "OUT_PACKED": 0}),
            constants_text(PRODUCT_CONSTANTS),
            defines_text(_ALIGNMENTS),
            _finish_defines(finish),
            PUSH % "uint4",
            _activation(finish),
            template(__package__, "scaling"),
            template(__package__, "common"),
            template(__package__, "add"),
        ]
    )


PACK_PUSH_BYTES = 4 * 8
PACK_CONSTANTS = ("ROWS", "K", "ROW_STRIDE", "K_STRIDE", "BATCH_STRIDE")


def pack_source(fragment: Fragment, packed_as: str, *, scaled: str = "unscaled") -> str:
    """The source of the kernel that converts and packs an operand.

    Args:
        fragment: of the product.
        packed_as: "blocks", or "fragments" of B.
        scaled: "unscaled"; "by_row", the exponents of whose scales it finds and stores; "by_tensor".
    """
    defines = {
        "BLOCKS": 2,
        "FRAGMENTS": 3,
        **_SCALES,
        "SCALED": scaled.upper(),
        "FRAGMENT_N": fragment.n,
        "FRAGMENT_K": fragment.k,
        "LANES": fragment.lanes,
        "PACKED_AS": packed_as.upper(),
        "K_PADDED": f"((K + {K_PADDING - 1}) / {K_PADDING} * {K_PADDING})",
        "ROW_BLOCKS": _blocks("ROWS"),
    }
    push = "struct Push { float* source; uint4* packed; int* exponents; uint* largest; };"
    return "\n".join(
        [
            defines_text(defines),
            constants_text(PACK_CONSTANTS),
            push,
            _PUSHED,
            template(__package__, "pack"),
        ]
    )


def exponents_source(fragment: Fragment) -> str:
    """The source of the kernel that finds the scale of each row."""
    push = "struct Push { float* source; int* exponents; };"
    return "\n".join(
        [
            defines_text({"LANES": fragment.lanes}),
            constants_text(("ROWS", "K")),
            push,
            _PUSHED,
            template(__package__, "exponents"),
        ]
    )


def copy_source() -> str:
    """The source of the kernel that measures the memory's speed."""
    push = "struct Push { uint4* source; uint4* target; int count; int unused; };"
    return "\n".join(
        [push, "[[vk::push_constant]] ConstantBuffer<Push> push;", template(__package__, "copy")]
    )


_UNIT_TYPES = {"float16": ("half", "float"), "bfloat16": ("BFloat16", "float"), "int8": ("int8_t", "int")}
"""Of operands and of sums."""


def unit_fragments(fragment: Fragment) -> tuple[int, int]:
    """How many of A and of B a subgroup of unit.slang multiplies with one another.

    Of 16 rows each, these are 64 × 64 results, whose sums are half the registers of a lane that has 255.
    """
    return 4, max(1, 64 // fragment.n)


def unit_source(fragment: Fragment) -> str:
    """The source of the kernel that measures the matrix unit alone."""
    element, sums = _UNIT_TYPES[fragment.element]
    defines: dict[str, int | str] = {
        "ELEMENT": element,
        "SUM": sums,
        "FRAGMENT_M": fragment.m,
        "FRAGMENT_N": fragment.n,
        "FRAGMENT_K": fragment.k,
        "LANES": fragment.lanes,
        "DOWN": unit_fragments(fragment)[0],
        "COLUMNS": unit_fragments(fragment)[1],
    }
    push = "struct Push { ELEMENT* source; SUM* target; int turns; int unused; };"
    return "\n".join(
        [
            defines_text(defines),
            push,
            _PUSHED,
            template(__package__, "unit"),
        ]
    )


def padded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def packed_halfs(rows: int, k: int) -> int:
    """Elements of a packed operand of one batch."""
    return padded(rows, ROW_PADDING) * padded(k, K_PADDING)


def slack_halfs(rows: int) -> int:
    """Elements that kernels may read beyond a packed operand: of the last tile, and steps fetched ahead."""
    return 64 * (padded(rows, ROW_PADDING) + 512)


def _sizes(variant: Variant, has_windows: bool) -> str:
    pad = K_PADDING - 1
    derived = {
        "K_PADDED": f"((K + {pad}) / {K_PADDING} * {K_PADDING})",
        "M_BLOCKS": _blocks("M"),
        "N_BLOCKS": _blocks("N"),
        "B_BATCH_WORDS": "(B_IS_SHARED != 0 ? 0 : K_PADDED * N_BLOCKS)",
    }
    if variant.are_sizes_pushed:
        names = ("m", "n", "k", "splits", "batch", "is_b_shared")
        pushed = {constant: f"(push.{name})" for constant, name in zip(PRODUCT_CONSTANTS, names, strict=True)}
        flags = {name: f"({name}_FLAG != 0)" for name in PUSHED_CONSTANTS}
        constants = tuple(f"{name}_FLAG" for name in PUSHED_CONSTANTS)
        return constants_text(constants) + "\n" + defines_text(pushed | flags | derived)
    every = PRODUCT_CONSTANTS + (WINDOW_CONSTANTS if has_windows else ())
    return constants_text(every) + "\n" + defines_text(_ALIGNMENTS | derived)


_SCALES: dict[str, int | str] = {"UNSCALED": 0, "BY_TENSOR": 1, "BY_ROW": 2}

_ALIGNMENTS = {
    "IS_K_ALIGNED": "(K % 4 == 0)",
    "IS_K_WHOLE": "(K % STEP_K == 0)",
    "IS_N_ALIGNED": "(N % 4 == 0)",
    "IS_SPLIT": "(SPLITS > 1)",
}


def _blocks(rows: str) -> str:
    """Groups of eight rows of a packed operand."""
    return f"(({rows} + {ROW_PADDING - 1}) / {ROW_PADDING} * {ROW_PADDING // 8})"


def _finish_defines(finish: Finish) -> str:
    return defines_text(
        {
            "BIAS": _bool(finish.has_bias),
            **_SCALES,
            "SCALED": finish.scaled.upper(),
            "COLUMN_EXPONENTS": _bool(finish.has_column_exponents),
            "OUT_HALF": _bool(finish.is_out_half),
            "OUT_LARGEST": _bool(finish.notes_largest),
            "PARTIALS": int(finish.partials == "pass"),
        }
    )


def _activation(finish: Finish) -> str:
    return f"float4 activation(float4 x) {{ return {finish.activation}; }}"


def _bool(value: bool) -> str:
    return "true" if value else "false"
