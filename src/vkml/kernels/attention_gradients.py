"""Launches of attention's gradients on matrix units: whether, in which variants, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.kernels import attention
from vkml.kernels.attention import Attention
from vkml.kernels.attention_masks import adjusted_function, float_text
from vkml.kernels.attention_operands import HalfOperands, emit_operands
from vkml.kernels.attention_text import (
    bool_text,
    forwards,
    write_sizes,
    write_strides,
)
from vkml.kernels.attention_variants import OPERAND_ROWS, Variant, choose_gradients, defines, head_of
from vkml.kernels.packed_weights import MATRIX_UNIT_NEEDS
from vkml.kernels.pointwise import emit_vector_store
from vkml.kernels.views import View
from vkml.kernels.writer import template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

MOST_ELEMENTS = 2**31
"""Of an operand in fp16: kernels count them in 32 bits."""

forced: tuple[Variant, Variant] | None = None
"""For tests and tuning runs: the variants of queries, and of keys and values."""


@dataclass(frozen=True)
class AttentionGradients:
    """What an attention's gradients are made of besides its own operands."""

    given: Attention
    d_out: View
    """The gradient of its results, of their shape."""
    row_sums: View
    """What `Attention.row_sums` received."""
    deltas: View
    """The products of each row of the results and of its gradient, (batch, heads, rows, 1) in fp32."""


@dataclass(frozen=True)
class _Launch:
    """One of the two kernels."""

    owner: str
    """Of what its subgroups own rows of, "queries" or "keys"."""
    variant: Variant
    results: Sequence[View]
    """Of the owner's rows: dq, or dk and dv."""


def refusal(target: Target, asked: AttentionGradients) -> str:
    """Why gradients are not for matrix units, or an empty string."""
    given = asked.given
    why = attention.refusal(target, given)
    if why:
        return why
    q, k = given.q, given.k
    if given.is_nan_zero:
        return "gradients where zeros take the place of NaN"
    if given.causal is not None and given.causal.fill != float("-inf"):
        return "gradients of a causal mask of finite numbers"
    if asked.d_out.dtype != q.dtype or asked.row_sums.dtype != dtypes.FLOAT32:
        return "gradients of another type"
    for view in (q, k):
        tiles = -(-view.shape[2] // OPERAND_ROWS)
        elements = 2 * view.shape[0] * view.shape[1] * tiles * OPERAND_ROWS * head_of(view.shape[3])
        if isinstance(elements, int) and elements >= MOST_ELEMENTS:
            return "more elements than a kernel counts"
    return "" if _variants(target, given) is not None else "no variant of the gradients fits the device"


def launch(
    build: VulkanBuilder, asked: AttentionGradients, outputs: Callable[[], Sequence[View]]
) -> list[View]:
    """Emits the gradients; returns views of those of queries, and of keys and values where they are wanted.

    Args:
        build: the builder.
        asked: what they are made of.
        outputs: makes room for them, once it is known that there are kernels.

    Raises:
        CannotLower: they are not for this device's matrix units.
    """
    why = refusal(build.target, asked)
    if why:
        raise CannotLower(f"no gradients of attention on matrix units: {why}")
    variants = _variants(build.target, asked.given)
    assert variants is not None
    made = list(outputs())
    emit(build, asked, variants, made)
    return made


def emit(
    build: VulkanBuilder,
    asked: AttentionGradients,
    variants: tuple[Variant, Variant],
    outputs: Sequence[View],
) -> None:
    """Emits the gradients by variants of queries and of keys, the latter where there are three outputs."""
    given = asked.given
    q, k, v, d_out = (forwards(build, view) for view in (given.q, given.k, given.v, asked.d_out))
    mask, bias = (None if view is None else forwards(build, view) for view in (given.mask, given.bias))
    asked = replace(
        asked,
        given=replace(given, q=q, k=k, v=v, mask=mask, bias=bias),
        d_out=d_out,
        row_sums=build.contiguous(asked.row_sums),
        deltas=build.contiguous(asked.deltas),
    )
    head = variants[0].head
    of_rows = emit_operands(build, q, d_out, head, checked=asked.deltas)
    of_keys = emit_operands(build, k, v, head)
    _emit(build, asked, _Launch("queries", variants[0], outputs[:1]), of_rows, of_keys)
    if len(outputs) > 1:
        _emit(build, asked, _Launch("keys", variants[1], outputs[1:]), of_rows, of_keys)


def _emit(
    build: VulkanBuilder,
    asked: AttentionGradients,
    what: _Launch,
    of_rows: HalfOperands,
    of_keys: HalfOperands,
) -> None:
    given, variant = asked.given, what.variant
    own = given.q if what.owner == "queries" else given.k
    batch, heads, rows, _ = own.shape
    tiles = -(-rows // variant.tile_rows)
    writer = build.writer()
    pointers = {
        "ROWS_POINTER": writer.read(of_rows.first),
        "ROWS_STATISTICS": writer.read(of_rows.statistics, width=2),
        "KEYS_POINTER": writer.read(of_keys.first),
        "KEYS_STATISTICS": writer.read(of_keys.statistics, width=2),
        "ROW_SUMS_POINTER": writer.read(asked.row_sums, width=2),
        "DELTAS_POINTER": writer.read(asked.deltas),
    }
    for name, operand in (("ROWS", of_rows), ("KEYS", of_keys)):
        writer.constant(operand.second.offset - operand.first.offset, f"{name}_APART")
    pointers["SCRATCH_POINTER"] = f"((uint4*){pointers['ROWS_POINTER']})"
    if variant.held_in == "scratch":
        words = batch * heads * tiles * (variant.tile_rows * variant.head)
        scratch = build.scratch(TensorType(dtypes.UINT32, (words,)))
        pointers["SCRATCH_POINTER"] = f"((uint4*){writer.write(scratch, width=4)})"
    write_sizes(writer, given)
    for name, view in (("Q", given.q), ("K", given.k), ("V", given.v), ("O", asked.d_out)):
        pointers[f"{name}_POINTER"] = writer.read(view)
        write_strides(writer, name, view)
        writer.constant(view.strides[3], f"{name}_COLUMN")
    values = _values(given, variant, build.target, what.owner)
    writer.text("\n".join(f"#define {name} {value}" for name, value in (values | pointers).items()))
    for name, view in zip(("first", "second"), what.results, strict=False):
        emit_vector_store(writer, own.shape, [view], None, name=f"store4_{name}")
    if given.has_mask:
        writer.text(adjusted_function(writer, given, is_causal=False, has_slope=True))
    writer.math()
    writer.need(*MATRIX_UNIT_NEEDS)
    for name in ("attention_common", "attention_scales", "attention_gradients"):
        writer.text(template(name))
    build.emit(
        writer.finish(
            f"attention_gradients_of_{what.owner}",
            (heads, tiles, batch) if given.causal is not None else (tiles, heads, batch),
            variant=f"matrix units, {variant.label}",
            reason=f"{batch} × {heads} heads of {own.shape[3]}, {given.q.shape[2]} queries, "
            f"{given.k.shape[2]} keys: probabilities are made again from their rows' sums",
            subgroup_size=variant.fragment.lanes,
        )
    )


def _variants(target: Target, given: Attention) -> tuple[Variant, Variant] | None:
    if forced is not None:
        return forced
    assert target.fragment is not None
    layouts = target.fragment_layouts(target.fragment)
    if layouts is None or layouts.moves(target.fragment.n) is None:
        return None
    limits = target.processors, target.shared_bytes, target.max_invocations
    of_queries, of_keys = (
        choose_gradients(given.extent, target.fragment, owner, *limits) for owner in ("queries", "keys")
    )
    return None if of_queries is None or of_keys is None else (of_queries, of_keys)


def _values(given: Attention, variant: Variant, target: Target, owner: str) -> dict[str, int | str]:
    layouts = target.fragment_layouts(variant.fragment)
    return defines(variant, layouts, has_floats=True) | {
        "KEPT_WORDS": 0,
        "QUERIES": 0,
        "KEYS": 1,
        "OWNER": owner.upper(),
        "WORKING": f"(4 * TILE + {2 * variant.step if owner == 'keys' else 0})",
        "HAS_MASK": int(given.has_mask),
        "CAUSAL": bool_text(given.causal is not None),
        "SCALE": float_text(given.scale),
        # The logarithm of what bounds |dO Vᵀ - delta|, so that times a probability it stays below 2^15.
        "CHANGE_EXPONENT": 30 + (variant.head - 1).bit_length(),
        "OPERAND_ROWS": OPERAND_ROWS,
    }
