"""Weights as matrix units want them: what a kernel makes of constants once, of values in every run."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import EngineError
from vkml.ir import Constant, TensorType, dtypes
from vkml.ir.file_constant import release_pages
from vkml.ir.size import is_multiple
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, collapse, contiguous
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

K_PADDING = 64
"""Packed weights hold zeros from K up to a multiple of this: what the longest step needs."""
_CHUNK = 256
"""Of k, which fragments.slang packs at a time."""
_MAXIMA_RANGE = 1024
"""The least of k of which a workgroup finds the largest magnitudes of a run's values;"""
_MAXIMA_RANGES = 128
"""the most of such ranges: every workgroup that packs looks at what all of them have found."""
_PACKING_GROUPS = 1024
"""Workgroups that pack, where more of them had a chunk each: they take several, so that each looks once."""
COLUMN_PADDING = 16
"""Packed weights hold whole groups of so many columns."""
WIDEST_TILE = 512
LARGEST_RANGE = 2.0**24
"""By how much the largest magnitudes of the weights' rows may differ.

An element of the other operand that lies 2^28 below its row's largest loses bits. It matters where the larger
ones meet weights that are smaller by as much, which is kept from happening so.
"""
LARGEST_POWER = 14
"""fp16 ends below 2^16."""
SPARE_POWERS = 10
"""A row's largest magnitude may lie so many powers of two below 1 where the weights' rows are alike.

What fp16 then cuts off an element is at most 2^-25 / 2^-10 of the row's largest, 2^-15: TF32 cuts off 2^-11.
"""


@dataclass(frozen=True)
class Fragment:
    """The product of one instruction of a matrix unit (m × n × k), and the subgroup that computes it."""

    m: int
    n: int
    k: int
    lanes: int
    element: str = "float16"
    """The type of both operands; sums are float32."""

    @property
    def slang_element(self) -> str:
        """What Slang calls it."""
        return {"float16": "half", "bfloat16": "BFloat16"}[self.element]


class PackedWeights(Constant):
    """Weights in the order of the matrix unit's fragments: float32's in fp16, each column scaled by a power
    of two; float16's and bfloat16's as they are.

    Its 32-bit words are, of float32, an exponent for each column, then how many small elements each has (of
    values of a run); then the fragments, then room that kernels may read.
    """

    def __init__(self, original: Constant, weights: View, fragment: Fragment, push_bytes: int) -> None:
        """Args:
        original: float32, or what the fragment is of.
        weights: (k, n) of it, or (blocks, taps, channels, n), whose k counts all that is before n.
        fragment: whose order.
        push_bytes: of push constants that the device has.
        """
        words = _words(weights)
        put = object.__setattr__  # the base class is frozen
        put(self, "dtype", dtypes.UINT32)
        put(self, "shape", (words,))
        # A copy of the description: tables that have this one by its original keep no original alive.
        put(self, "original", copy.copy(original))
        put(self, "source", Buffer(BufferKind.CONSTANT, original.type.bytes, "original weights"))
        target = Buffer(BufferKind.ACTIVATION, 4 * words, "packed weights")
        put(self, "target", target)
        view = contiguous(target, TensorType(dtypes.UINT32, (words,)))
        put(self, "dispatch", _packing(replace(weights, buffer=self.source), view, fragment, push_bytes))

    original: Constant
    source: Buffer
    """Where the original lies while it is packed."""
    target: Buffer
    """Where the words go."""
    dispatch: Dispatch

    @property
    def array(self) -> np.ndarray[Any, Any]:
        raise EngineError("packed weights are made on the device: they have no array on the host")


def _words(weights: View) -> int:
    k, n = math.prod(weights.shape[:-1]), weights.shape[-1]
    columns = padded(n, COLUMN_PADDING)
    fragments = columns * padded(k, K_PADDING) // 2 + K_PADDING * (columns + WIDEST_TILE) // 2
    return fragments + (2 * columns if _is_scaled(weights) else 0)


def _is_scaled(weights: View) -> bool:
    """Whether columns of weights have exponents: fp16 has too few of them for float32's elements."""
    return weights.dtype == dtypes.FLOAT32


def emit_packing(build: VulkanBuilder, values: View, fragment: Fragment) -> View:
    """Emits the launches that pack values of a run as `PackedWeights` are; returns the words."""
    packed = build.scratch(TensorType(dtypes.UINT32, (_words(values),)))
    k, n = math.prod(values.shape[:-1]), values.shape[-1]
    ranges = -(-k // _maxima_range(k))
    found = build.scratch(TensorType(dtypes.UINT32, (ranges, padded(n, COLUMN_PADDING), 2)))
    for stage in (1, 2):
        build.emit(_packing(values, packed, fragment, build.target.push_bytes, stage, found))
    return packed


def _maxima_range(k: int) -> int:
    return padded(max(_MAXIMA_RANGE, -(-k // _MAXIMA_RANGES)), _CHUNK)


def boolean(value: bool) -> str:
    """As Slang writes it."""
    return "true" if value else "false"


def padded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def exponents_of(packed: View, columns: int) -> View:
    """The part of packed weights that holds the columns' exponents."""
    return replace(packed, shape=(padded(columns, COLUMN_PADDING),))


def small_of(packed: View, columns: int) -> View:
    """The part of a run's packed values that holds how many elements of a column fp16 holds fewer bits of."""
    count = padded(columns, COLUMN_PADDING)
    return replace(packed, shape=(count,), offset=packed.offset + count)


def fragments_of(packed: View, columns: int) -> View:
    """The part of packed weights of float32 that holds the fragments, and what lies behind them."""
    start = 2 * padded(columns, COLUMN_PADDING)
    return replace(packed, shape=(packed.shape[0] - start,), offset=packed.offset + start)


def _packing(
    weights: View,
    packed: View,
    fragment: Fragment,
    push_bytes: int,
    stage: int = 0,
    found: View | None = None,
) -> Dispatch:
    """The launch that packs weights (k, n) or (blocks, taps, channels, n); stages: see fragments.slang."""
    k, n = math.prod(weights.shape[:-1]), weights.shape[-1]
    axes = list(zip(weights.shape[:-1], weights.strides[:-1], strict=True))
    if stage == 1:  # the largest of all k are the same in any order: that of memory is the fastest
        axes.sort(key=lambda axis: -axis[1])
    sizes, (strides,) = collapse([size for size, _ in axes], [[stride for _, stride in axes]])
    axes_of_k = len(sizes)
    sizes, strides = (1,) * (3 - len(sizes)) + sizes, (0,) * (3 - len(strides)) + strides
    row_stride, k_stride = weights.strides[-1], strides[-1]
    whole = (weights.offset, row_stride, sizes[-1], *strides[:-1])
    writer = KernelWriter(push_bytes)
    numbers = {
        "FRAGMENT_N": fragment.n,
        "FRAGMENT_K": fragment.k,
        "LANES": fragment.lanes,
        "CHUNK": _CHUNK,
    }
    # One kernel packs all constants, once; what each run packs has some more.
    is_of_run = stage > 0
    is_scaled = _is_scaled(weights)
    is_vector = is_scaled and k_stride == 1 and all(is_multiple(number, 4) for number in whole)
    names = {
        "IS_SCALED": int(is_scaled),
        "FEW_BITS": 0,
        "STAGE": stage,
        "K_AXES": axes_of_k if is_of_run else 3,
        "IS_WHOLE_VECTORS": boolean(is_of_run and is_vector),
        "IS_ALONG_K": boolean(k_stride < row_stride) if is_of_run else "(push.k_stride < push.row_stride)",
    }
    source = "float" if is_scaled else "uint16_t"
    pointers = {"SOURCE": writer.read(weights, reinterpreted_as=source)}
    fragments = fragments_of(packed, n) if is_scaled else packed
    if stage > 0:
        pointers["SMALL"] = writer.write(small_of(packed, n), reinterpreted_as="int")
    if stage == 1:
        assert found is not None
        pointers["FOUND"] = writer.write(found, width=2)
    else:
        if is_scaled:
            pointers["EXPONENTS"] = writer.write(exponents_of(packed, n), reinterpreted_as="int")
        pointers["PACKED"] = writer.write(fragments, width=4)
    if stage == 2:
        assert found is not None
        pointers["FOUND"] = writer.read(found, width=2)
    blocks, chunks = -(-n // COLUMN_PADDING), -(-padded(k, K_PADDING) // _CHUNK)
    some = max(1, min(8, blocks * chunks // _PACKING_GROUPS)) * _CHUNK
    share = {0: chunks * _CHUNK if is_scaled else some, 1: _maxima_range(k), 2: some}[stage]
    # Pushed, so that one pipeline packs all weights.
    writer.word("rows", n)
    writer.word("steps", k)
    writer.word("k_padded", padded(k, K_PADDING))
    writer.word("share", share)
    writer.word("ranges", found.shape[0] if found is not None else 0)
    writer.word("row_stride", row_stride)
    writer.word("k_stride", k_stride)
    writer.word("channels", sizes[-1])
    writer.word("taps", sizes[-2])
    writer.word("block_stride", strides[-3])
    writer.word("tap_stride", strides[-2])
    writer.need(*UNIT_NEEDS[fragment.element], *(() if is_scaled else ("int16",)))
    writer.text(
        "\n".join(
            [
                *(f"static const int {name} = {value};" for name, value in numbers.items()),
                *(f"#define {name} {value}" for name, value in (names | pointers).items()),
                f"typealias Source = {source if is_scaled else 'uint'};",
                f"typealias Element = {fragment.slang_element};",
            ]
        )
    )
    writer.text((template("scales") if is_scaled else "") + template("fragments"))
    groups = (blocks, -(-(k if stage == 1 else padded(k, K_PADDING)) // share), 1)
    label = "column_magnitudes" if stage == 1 else "pack_weights"
    return writer.finish(label, groups, subgroup_size=fragment.lanes)


def emit_few_bits(
    build: VulkanBuilder, numbers: str, writer: KernelWriter, k: int, n: int, fragment: Fragment
) -> View:
    """Emits the launch that makes fragments of numbers of few bits, scaled as they are read.

    Args:
        build: where the launch goes.
        numbers: the text of ``float4 load_numbers(int row, int k)``: four of a column (row there), scaled.
        writer: that has declared what the text reads.
        k: steps,
        n: and columns of the matrix.
        fragment: whose order.

    Returns:
        The fragments, and room behind them that kernels may read.
    """
    columns, steps = padded(n, COLUMN_PADDING), padded(k, K_PADDING)
    words = columns * steps // 2 + K_PADDING * (columns + WIDEST_TILE) // 2
    fragments = build.scratch(TensorType(dtypes.UINT32, (words,)))
    blocks, chunks = columns // COLUMN_PADDING, -(-steps // _CHUNK)
    share = max(1, min(8, blocks * chunks // _PACKING_GROUPS)) * _CHUNK
    names: dict[str, int | str] = {
        "IS_SCALED": 1,
        "FEW_BITS": 1,
        "STAGE": 0,
        "IS_ALONG_K": "true",
        "PACKED": writer.write(fragments, width=4),
    }
    for name, value in (("rows", n), ("steps", k), ("k_padded", steps), ("share", share)):
        writer.word(name, value)
    writer.need(*UNIT_NEEDS[fragment.element])
    writer.text(
        "\n".join(
            [
                f"static const int FRAGMENT_N = {fragment.n};",
                f"static const int FRAGMENT_K = {fragment.k};",
                f"static const int LANES = {fragment.lanes};",
                f"static const int CHUNK = {_CHUNK};",
                *(f"#define {name} {value}" for name, value in names.items()),
                "typealias Source = float;",
                f"typealias Element = {fragment.slang_element};",
                numbers,
            ]
        )
    )
    writer.text(template("scales") + template("fragments"))
    groups = blocks, -(-steps // share), 1
    build.emit(writer.finish("unpack_fragments", groups, subgroup_size=fragment.lanes))
    return fragments


def count_elements(result: View, fragment: Fragment, push_bytes: int) -> Dispatch:
    """The launch that writes how many elements of a fragment of weights each lane holds."""
    writer = KernelWriter(push_bytes)
    pointer = writer.write(result)
    shape = f"{fragment.k}, {fragment.n}, CoopMatMatrixUse.MatrixB"
    writer.need(*UNIT_NEEDS[fragment.element])
    writer.text(
        "\n".join(
            [
                "using namespace linalg;",
                f'[shader("compute")] [numthreads({fragment.lanes}, 1, 1)]',
                "void main(uint thread : SV_GroupIndex)",
                "{",
                f"    CoopMat<{fragment.slang_element}, MemoryScope.Subgroup, {shape}> weights;",
                f"    if (thread == 0) {pointer}[0] = int(weights.GetLength());",
                "}",
            ]
        )
    )
    return writer.finish("count_elements", (1, 1, 1), subgroup_size=fragment.lanes)


MATRIX_UNIT_NEEDS = ("has_cooperative_matrix", "float16", "storage_16bit", "vulkan_memory_model")
UNIT_NEEDS = {
    "float16": MATRIX_UNIT_NEEDS,
    "bfloat16": (*MATRIX_UNIT_NEEDS, "bfloat16_cooperative_matrix"),
}
"""What a device must have to multiply fragments of a type."""

_ranges: weakref.WeakKeyDictionary[Constant, dict[Hashable, float]] = weakref.WeakKeyDictionary()


def range_of(constant: Constant, weights: View) -> float:
    """By how much the largest magnitudes of the rows of a constant's weights (…, n) differ; infinite for rows
    of zeros alone and where a weight is no number."""
    key = weights.shape, weights.strides, weights.offset
    known = _ranges.setdefault(constant, {})
    if key not in known:
        elements = constant.array.reshape(-1)[weights.offset :]
        strides = tuple(4 * stride for stride in weights.strides)
        matrix = np.lib.stride_tricks.as_strided(elements, weights.shape, strides, writeable=False)
        largest = np.maximum(matrix.max(axis=-1), -matrix.min(axis=-1))
        low, high = float(largest.min()), float(largest.max())
        known[key] = high / low if np.isfinite(high) and low > 0 else math.inf
        release_pages(constant)
    return known[key]


def least_power(weights: View) -> int | None:
    """The least power of two that rows may have as their largest magnitude where they meet weights (…, n).

    None where the weights are no constant, not all finite, or their rows' largest magnitudes too different.
    """
    constant = weights.buffer.constant
    found = math.inf if constant is None else range_of(constant, weights)
    return math.ceil(math.log2(found)) - SPARE_POWERS if found <= LARGEST_RANGE else None


def define_guess(writer: KernelWriter, least: int) -> None:
    """What scale_guesses.slang wants to know; `least` is the least power of two, see `least_power`."""
    writer.constant(least, "LEAST")
    writer.constant((least + LARGEST_POWER) // 2, "GUESS")
