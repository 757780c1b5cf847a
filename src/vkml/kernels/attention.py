"""Launches of attention on matrix units: whether, in which variant, with which mask."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Size, typical
from vkml.kernels.attention_masks import adjusted_function, float_text
from vkml.kernels.attention_operands import emit_operands
from vkml.kernels.attention_text import (
    bool_text,
    forwards,
    is_aligned,
    write_sizes,
    write_strides,
)
from vkml.kernels.attention_variants import (
    OPERAND_ROWS,
    WIDEST_HEAD,
    Extent,
    Variant,
    defines,
    ordered,
)
from vkml.kernels.candidates import Candidate, described
from vkml.kernels.matrix_tiles import LEAST_FRAGMENT
from vkml.kernels.packed_weights import MATRIX_UNIT_NEEDS, Fragment
from vkml.kernels.pointwise import emit_vector_store
from vkml.kernels.views import View
from vkml.kernels.writer import template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

FEWEST_QUERIES = 16
"""Of fewer, products are bound by memory, and most of a fragment would stay empty."""


@dataclass(frozen=True)
class Causal:
    """Row r sees the keys up to r + `offset`."""

    offset: int
    fill: float = -math.inf
    """What the scores of other keys are: so little, or so much less."""
    adds: bool = False


@dataclass(frozen=True)
class Attention:
    """softmax(scale · q kᵀ, masked) v for every head; views are (batch, heads, rows, columns)."""

    q: View
    k: View
    v: View
    scale: float
    """Positive."""
    mask: View | None = None
    """Truth values of (batch, heads, queries, keys), broadcast by strides."""
    keeps: bool = True
    """Whether a true one keeps its score; else a false one does."""
    fill: float = -math.inf
    """What a score becomes that is not kept."""
    bias: View | None = None
    """Floats that are added then, likewise."""
    causal: Causal | None = None
    """Beside mask and bias only where it hides by -infinity."""
    softcap: float = 0.0
    """What tanh brings scaled scores below, before mask and bias; 0 for none."""
    is_empty_zero: bool = False
    """Whether a row that sees nothing becomes zeros, not NaN."""
    is_nan_zero: bool = False
    """Whether a row of probabilities that are NaN becomes zeros."""
    row_sums: View | None = None
    """Receives, for gradients, two floats r and s for each row, (batch, heads, rows, 2) and contiguous: its
    probabilities are exp(score - r) / s, all zeros where s is infinite, NaN where it is NaN."""

    @property
    def has_floats(self) -> bool:
        return self.q.dtype == dtypes.FLOAT32

    @property
    def has_mask(self) -> bool:
        """Whether scores become others in a way of their own."""
        return self.mask is not None or self.bias is not None or self.softcap != 0

    @property
    def group(self) -> int:
        """Heads of queries that share one of keys and values."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def extent(self) -> Extent:
        batch, heads, queries, head_size = (typical(size) for size in self.q.shape)
        is_masked = self.has_mask or self.causal is not None
        keys = typical(self.k.shape[2])
        return Extent(batch, heads, queries, keys, head_size, is_masked, self.has_floats, typical(self.group))


forced: Variant | None = None
"""For tests and tuning runs: the variant, wherever attention can be computed so at all."""


def device_refusal(target: Target) -> str:
    """Why no attention at all is for a device's matrix units, or an empty string."""
    fragment = target.fragment
    if target.strict_fp32 or fragment is None:
        return "strict fp32" if target.strict_fp32 else "the device has no matrix units"
    if forced is None and any(
        size < least for size, least in zip((fragment.m, fragment.n, fragment.k), LEAST_FRAGMENT, strict=True)
    ):
        return "the device's matrix units are small"
    if not set(MATRIX_UNIT_NEEDS) <= target.capabilities:
        return f"the device lacks {', '.join(sorted(set(MATRIX_UNIT_NEEDS) - target.capabilities))}"
    return ""


def refusal(target: Target, given: Attention) -> str:
    """Why an attention is not for matrix units, or an empty string."""
    why = device_refusal(target)
    if why:
        return why
    q, v = given.q, given.v
    if q.dtype not in (dtypes.FLOAT32, dtypes.FLOAT16):
        return "neither float32 nor float16"
    head_size = q.shape[3]
    if isinstance(head_size, Size) or isinstance(v.shape[3], Size) or v.shape[3] != head_size:
        return "heads whose keys and values differ in size"
    if head_size > WIDEST_HEAD or head_size < 1:
        return f"heads of {head_size} columns"
    if not given.has_floats and head_size % 8:
        return f"float16 heads of {head_size} columns"
    if given.causal is not None and given.causal.fill != -math.inf:
        if given.has_mask:
            return "a causal mask of finite numbers beside others"
        if not given.has_floats:
            return "a causal mask of finite numbers"
    if not (given.softcap >= 0 and math.isfinite(given.softcap)):
        return f"scores below {given.softcap}"
    if not (given.scale > 0 and math.isfinite(given.scale)):
        return f"a scale of {given.scale}"
    if given.k.shape[2] == 0:
        return "no keys"
    if forced is None and typical(q.shape[2]) < FEWEST_QUERIES:
        return f"{typical(q.shape[2])} rows only"
    if any(typical(size) > target.max_groups for size in q.shape[:2]):
        return "more heads than a launch takes"
    return "" if _variants(target, given) else "no variant fits the device"


def launch(build: VulkanBuilder, given: Attention, result: TensorType) -> list[View]:
    """Emits an attention; returns the views of its results, the first of a type whose axes may be fewer.

    Raises:
        CannotLower: it is not for this device's matrix units.
    """
    why = refusal(build.target, given)
    if why:
        raise CannotLower(f"no attention on matrix units: {why}")

    def candidates() -> Iterator[Candidate]:
        rule, *others = _variants(build.target, given)
        for variant in (rule, *(each for each in others if _has_layout(build.target, each))):
            yield Candidate(variant.label, None, functools.partial(emit, build, given, variant, result))

    def question() -> str:
        operands = [given.q, given.k, given.v, given.mask, given.bias]
        views = ", ".join("none" if view is None else described(view) for view in operands)
        kept = "row sums" if given.row_sums is not None else "results"
        return f"attention of {views}, {given.causal}, softcap {given.softcap}, {kept}"

    return build.select(question, candidates)


def emit(build: VulkanBuilder, given: Attention, variant: Variant, result: TensorType) -> list[View]:
    """Emits an attention by a variant; otherwise as `launch`."""
    # Views that run backwards are known only now: they must not be refused any more.
    q, k, v = (forwards(build, view) for view in (given.q, given.k, given.v))
    mask, bias = (None if view is None else forwards(build, view) for view in (given.mask, given.bias))
    given = replace(given, q=q, k=k, v=v, mask=mask, bias=bias)
    if given.has_floats:
        halves = emit_operands(build, given.k, given.v, variant.head)
        k, v, statistics = halves.first, halves.second, halves.statistics
        q = given.q if given.q.strides[3] == 1 else build.contiguous(given.q)
    else:
        statistics = None
        q, k, v = (
            view if is_aligned(view, 8) else _copied(build, view) for view in (given.q, given.k, given.v)
        )
    # Heads side by side: what follows mostly puts them there, and then has nothing to do.
    epilogue, outputs = build.take_epilogue(result, (0, 2, 1, 3) if len(result.dims) == 4 else None)
    writer = build.writer()
    tiles = -(-q.shape[2] // variant.tile_rows)
    pointers = {"Q_POINTER": writer.read(q), "K_POINTER": writer.read(k), "V_POINTER": writer.read(v)}
    pointers["SCRATCH_POINTER"] = f"((uint4*){pointers['Q_POINTER']})"
    if variant.held_in == "scratch":
        words = q.shape[0] * q.shape[1] * tiles * (variant.tile_rows * variant.head // 2)
        scratch = build.scratch(TensorType(dtypes.UINT32, (words,)))
        pointers["SCRATCH_POINTER"] = f"((uint4*){writer.write(scratch, width=4)})"
    if given.row_sums is not None:
        pointers["ROW_SUMS_POINTER"] = writer.write(given.row_sums, width=2)
    write_sizes(writer, given)
    for name, view in (("Q", q), ("K", k), ("V", v)):
        write_strides(writer, name, view)
    values = _values(given, variant, build.target)
    if statistics is not None:
        pointers["STATISTICS_POINTER"] = writer.read(statistics, width=2)
        for name, view in (("STRICT_K", given.k), ("STRICT_V", given.v)):
            pointers[f"{name}_POINTER"] = writer.read(view)
            write_strides(writer, name, view)
            writer.constant(view.strides[3], f"{name}_COLUMN")
        values["IS_Q_ALIGNED"] = bool_text(is_aligned(q, 4))
    writer.text("\n".join(f"#define {name} {value}" for name, value in (values | pointers).items()))
    of_floats = ["attention_scales", "attention_floats"] if given.has_floats else []
    texts = ["attention_common", *of_floats, "attention"]
    emit_vector_store(writer, (*q.shape[:3], given.v.shape[3]), outputs, epilogue)
    if given.has_mask:
        writer.text(adjusted_function(writer, given, is_causal=False))
    writer.math()
    writer.need(*MATRIX_UNIT_NEEDS)
    for name in texts:
        writer.text(template(name))
    batch, heads = q.shape[:2]
    build.emit(
        writer.finish(
            "attention",
            (heads, tiles, batch) if given.causal is not None else (tiles, heads, batch),
            variant=f"matrix units, {variant.label}",
            reason=f"{batch} × {heads} heads of {q.shape[3]}, {q.shape[2]} queries, {k.shape[2]} keys: "
            "fp16 products, fp32 sums, probabilities stay in registers",
            subgroup_size=variant.fragment.lanes,
        )
    )
    return outputs


def _copied(build: VulkanBuilder, view: View) -> View:
    """Also what is contiguous, but begins somewhere between words."""
    made = build.scratch(view.type)
    build.copy(view, made)
    return made


def _variants(target: Target, given: Attention) -> list[Variant]:
    """Those that the device has room for, the rule's choice first."""
    if forced is not None:
        return [forced]
    assert target.fragment is not None
    fragments = [target.fragment, *([target.wide_fragment] if target.wide_fragment is not None else [])]
    # One layout that is known stands for both: they differ in columns of sums.
    layouts = target.fragment_layouts(target.fragment)
    is_known = layouts is not None and layouts.moves(target.fragment.n) is not None

    def those_with(fragments: Sequence[Fragment]) -> list[Variant]:
        return ordered(
            given.extent,
            fragments,
            target.processors,
            target.shared_bytes,
            min(512, target.max_invocations),
            is_layout_known=is_known,
        )

    found = those_with(fragments)
    return found if not found or _has_layout(target, found[0]) else those_with(fragments[:1])


def _has_layout(target: Target, variant: Variant) -> bool:
    """Whether lanes know what they hold of a variant's scores, as far as they have to."""
    if variant.rows_in != "registers" or variant.fragment == target.fragment:
        return True
    wide = target.fragment_layouts(variant.fragment)
    return wide is not None and wide.moves(variant.fragment.n) is not None


def _values(given: Attention, variant: Variant, target: Target) -> dict[str, int | str]:
    layouts = target.fragment_layouts(variant.fragment) if variant.rows_in == "registers" else None
    causal = given.causal
    return defines(variant, layouts, has_floats=given.has_floats) | {
        "ROWS_IN": variant.rows_in.upper(),
        "STAGES": variant.stages,
        "SLACK": f"{variant.slack}.0",
        "SCORE_ROW": "((STEP + 4) / 4)",
        "SCORES": "(SUBGROUPS * FRAGMENT_M * SCORE_ROW)" if variant.rows_in == "shared" else 0,
        "TILES": "(2 * STAGES * TILE)",
        "WORKING": "(TILES + SCORES + (HELD_IN == SHARED ? TILE_ROWS * ROW : 0))",
        "TRAINING": int(given.row_sums is not None),
        "FLOATS": int(given.has_floats),
        "HAS_MASK": int(given.has_mask),
        "CAUSAL": bool_text(causal is not None),
        "CAUSAL_ADDS": bool_text(causal is not None and causal.adds),
        "CAUSAL_FILL": float_text(causal.fill if causal is not None else -math.inf),
        "SCALE": float_text(given.scale),
        "EMPTY": float_text(0.0 if given.is_empty_zero or given.is_nan_zero else math.nan),
        "NAN_ZERO": int(given.is_nan_zero),
        "OPERAND_ROWS": OPERAND_ROWS,
    }
