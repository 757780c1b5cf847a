"""Weights as matrix units want them: what a kernel makes of constants once, of values in every run."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import EngineError
from vkml.ir import Constant, TensorType, dtypes
from vkml.ir.file_constant import release_pages
from vkml.ir.graph import CACHED, ScaledConstant
from vkml.ir.size import is_multiple
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, collapse, contiguous
from vkml.kernels.writer import KernelWriter, load_expression, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]

K_PADDING = 64
"""Packed weights hold zeros from K up to a multiple of this: what the longest step needs."""
_CHUNK = 256
"""Of k, which fragments.slang packs at a time;"""
_SHORT_CHUNK = 128
"""where neighbours are read across k, or there are two pieces, which takes more shared memory."""
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
HOLE = 2.0**-10
"""What is smaller than this times the largest of its column is as good as nothing: a hole."""
MOST_HOLES = 1 / 8
"""The share of a column's weights that may be holes where nothing looks whether results are right.

What rows' scales cut off of small elements cannot be seen beside the products of the large ones, unless a
column has next to nothing for these: that is left to chance for some holes, not for columns made of them
(selections, bands of filters, pruned weights). Of a normal distribution 1 in 400 is a hole.
"""
_LOOKED_AT = 256
"""Weights of a column that are looked at, in so many runs of neighbours:"""
_RUNS = 8
LARGEST_POWER = 14
"""fp16 ends below 2^16."""
PIECES_GUESS = 10
"""The power of two that what is read first is brought to, if elements are two pieces.

What follows may be 16 times as large. Each power less doubles how many elements pieces hold fewer bits of,
for which results near zero are computed again: a step of ResNet-18 took 19.6, 17.0 and 16.2 ms (H200) with 5,
9 and 12.
"""
PACKED_HALVES = 3.5e6
"""Bytes of halves that are read and packed in a microsecond in a run,"""
PACKED_FLOATS = 3.4e6
"""and of floats, which are read twice."""
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


class PackedOnDevice(Constant):
    """A constant that the device makes of another one, by a launch, as it is uploaded: 32-bit words."""

    def __init__(
        self,
        original: Constant,
        seen: View,
        words: int,
        name: str,
        make: Callable[[View, View], Dispatch],
    ) -> None:
        """Args:
        original: what it is made of.
        seen: of the original, as the launch sees it.
        words: how many there will be.
        name: of what is made.
        make: the launch, by what it reads and what it writes.
        """
        put = object.__setattr__  # the base class is frozen
        put(self, "dtype", dtypes.UINT32)
        put(self, "shape", (words,))
        # A copy of the description: tables that have this one by its original keep no original alive.
        put(self, "original", copy.copy(original))
        put(self, "source", Buffer(BufferKind.CONSTANT, original.type.bytes, "original weights"))
        target = Buffer(BufferKind.ACTIVATION, 4 * words, name)
        put(self, "target", target)
        view = contiguous(target, TensorType(dtypes.UINT32, (words,)))
        put(self, "dispatch", make(replace(seen, buffer=self.source), view))

    original: Constant
    source: Buffer
    """Where the original lies while it is packed."""
    target: Buffer
    """Where the words go."""
    dispatch: Dispatch

    @property
    def array(self) -> np.ndarray[Any, Any]:
        raise EngineError("packed weights are made on the device: they have no array on the host")


class PackedWeights(PackedOnDevice):
    """Weights in the order of the matrix unit's fragments: float32's in fp16, each column scaled by a power
    of two; float16's and bfloat16's as they are.

    Its 32-bit words are, of float32, an exponent for each column, then how many small elements each has (of
    values of a run, and of constants in so many pieces as if they were); then the fragments, then room that
    kernels may read.
    """

    def __init__(
        self, original: Constant, weights: View, fragment: Fragment, push_bytes: int, pieces: int = 0
    ) -> None:
        """Args:
        original: float32, or what the fragment is of.
        weights: (k, n) of it, or (blocks, taps, channels, n), whose k counts all that is before n.
        fragment: whose order.
        push_bytes: of push constants that the device has.
        pieces: see `emit_packing`.
        """

        def dispatch(seen: View, target: View) -> Dispatch:
            return _packing(seen, target, fragment, push_bytes, pieces=pieces)

        super().__init__(original, weights, _words(weights, pieces), "packed weights", dispatch)


def _words(weights: View, pieces: int = 0) -> int:
    batch, k, n = _sizes(weights)
    columns = padded(n, COLUMN_PADDING)
    fragments = columns * batch * padded(k, K_PADDING) // 2 + K_PADDING * (columns + WIDEST_TILE) // 2
    return max(1, pieces) * fragments + (2 * batch * columns if _is_scaled(weights, pieces) else 0)


def _is_scaled(weights: View, pieces: int = 0) -> bool:
    """Whether columns of weights have exponents: fp16 has too few of them for float32's elements."""
    return weights.dtype == dtypes.FLOAT32 or pieces > 0


def emit_packing(build: VulkanBuilder, values: View, fragment: Fragment, pieces: int = 0) -> View:
    """Emits the launches that pack values of a run as `PackedWeights` are; returns the words.

    Args:
        build: where the launches go.
        values: (k, n), (batch, k, n), or (blocks, taps, channels, n), whose k counts all that is before n.
        fragment: whose order.
        pieces: of fp16 that an element becomes, 1 or 2; 0: one of a float, and halves stay as they are.
    """
    batch, k, n = _sizes(values)
    packed = build.scratch(TensorType(dtypes.UINT32, (_words(values, pieces),)))
    if not _is_scaled(values, pieces):
        build.emit(_packing(values, packed, fragment, build.target.push_bytes, is_of_run=True))
        return packed
    ranges = -(-k // _maxima_range(k))
    found = build.scratch(TensorType(dtypes.UINT32, (batch, ranges, padded(n, COLUMN_PADDING))))
    for stage in (1, 2):
        build.emit(
            _packing(
                values,
                packed,
                fragment,
                build.target.push_bytes,
                is_of_run=True,
                stage=stage,
                found=found,
                pieces=pieces,
            )
        )
    return packed


def packing(elements: int, launch: float, pieces: int = 0) -> float:
    """Microseconds that `emit_packing` is expected to take for elements, where a launch takes `launch`."""
    if pieces == 0:
        return launch + 4 * elements / PACKED_HALVES
    return 2 * launch + (8 + 2 * pieces) * elements / PACKED_FLOATS


def _sizes(weights: View) -> tuple[int, int, int]:
    """Batch, k and n."""
    batch = weights.shape[0] if len(weights.shape) == 3 else 1
    return batch, math.prod(weights.shape[:-1]) // batch, weights.shape[-1]


def batch_words(batch: int, values: View, pieces: int = 1) -> int | None:
    """Words of 16 bytes from one matrix of packed (batch, k, n) to the next; None: there is one product."""
    if batch == 1:
        return None
    _, k, n = values.shape
    if values.strides[0] == 0 or values.shape[0] == 1:
        return 0
    return pieces * padded(k, K_PADDING) * padded(n, COLUMN_PADDING) // 8


def _maxima_range(k: int) -> int:
    return padded(max(_MAXIMA_RANGE, -(-k // _MAXIMA_RANGES)), _CHUNK)


def boolean(value: bool) -> str:
    """As Slang writes it."""
    return "true" if value else "false"


def padded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def exponents_of(packed: View, columns: int, batch: int = 1) -> View:
    """The part of packed weights that holds the columns' exponents."""
    return replace(packed, shape=(batch * padded(columns, COLUMN_PADDING),))


def small_of(packed: View, columns: int, batch: int = 1) -> View:
    """The part of a run's packed values that holds how many elements of a column fp16 holds fewer bits of."""
    count = batch * padded(columns, COLUMN_PADDING)
    return replace(packed, shape=(count,), offset=packed.offset + count)


def fragments_of(packed: View, columns: int, batch: int = 1) -> View:
    """The part of packed weights of float32 that holds the fragments, and what lies behind them."""
    start = 2 * batch * padded(columns, COLUMN_PADDING)
    return replace(packed, shape=(packed.shape[0] - start,), offset=packed.offset + start)


def _packing(
    weights: View,
    packed: View,
    fragment: Fragment,
    push_bytes: int,
    *,
    is_of_run: bool = False,
    stage: int = 0,
    found: View | None = None,
    pieces: int = 0,
) -> Dispatch:
    """The launch that packs weights as `emit_packing` is given them; stages: see fragments.slang."""
    batch, k, n = _sizes(weights)
    batch_stride = weights.strides[0] if len(weights.shape) == 3 else 0
    first = 1 if len(weights.shape) == 3 else 0
    axes = list(zip(weights.shape[first:-1], weights.strides[first:-1], strict=True))
    if stage == 1:  # the largest of all k are the same in any order: that of memory is the fastest
        axes.sort(key=lambda axis: -axis[1])
    sizes, (strides,) = collapse([size for size, _ in axes], [[stride for _, stride in axes]])
    axes_of_k = len(sizes)
    sizes, strides = (1,) * (3 - len(sizes)) + sizes, (0,) * (3 - len(strides)) + strides
    row_stride, k_stride = weights.strides[-1], strides[-1]
    is_scaled = _is_scaled(weights, pieces)
    # One kernel packs all constants, once; what each run packs has some more.
    vectors = _vectors(weights, (n, row_stride), (sizes, strides), axes_of_k) if is_of_run else 0
    if is_scaled and weights.dtype != dtypes.FLOAT32:
        vectors = 0
    chunk = _SHORT_CHUNK if vectors == 2 or pieces == 2 else _CHUNK
    writer = KernelWriter(push_bytes)
    numbers = {"FRAGMENT_N": fragment.n, "FRAGMENT_K": fragment.k, "LANES": fragment.lanes, "CHUNK": chunk}
    counts = is_scaled and (is_of_run or pieces > 0)
    source = "float" if is_scaled else "uint16_t"
    load = {}
    if vectors:
        pointer = writer.read(weights, width=4, reinterpreted_as="uint")
    elif is_scaled:
        pointer = writer.read(weights)
        load["LOAD(at)"] = load_expression(pointer, "(at)", weights.dtype)
    else:
        pointer = writer.read(weights, reinterpreted_as=source)
        load["LOAD(at)"] = f"{pointer}[at]"
    names = {
        "IS_SCALED": int(is_scaled),
        "STAGE": stage,
        "PIECES": max(1, pieces),
        "COUNTS": int(counts),
        "K_AXES": axes_of_k if is_of_run else 3,
        "VECTORS": vectors,
        "IS_ALONG_K": boolean(k_stride < row_stride) if is_of_run else "(push.k_stride < push.row_stride)",
        **load,
    }
    pointers = {"SOURCE": pointer}
    fragments = fragments_of(packed, n, batch) if is_scaled else packed
    if counts:
        pointers["SMALL"] = writer.write(small_of(packed, n, batch), reinterpreted_as="int")
    if stage == 1:
        assert found is not None
        pointers["FOUND"] = writer.write(found)
    else:
        if is_scaled:
            pointers["EXPONENTS"] = writer.write(exponents_of(packed, n, batch), reinterpreted_as="int")
        pointers["PACKED"] = writer.write(fragments, width=4)
    if stage == 2:
        assert found is not None
        pointers["FOUND"] = writer.read(found)
    blocks, chunks = -(-n // COLUMN_PADDING), -(-padded(k, K_PADDING) // chunk)
    some = max(1, min(8, batch * blocks * chunks // _PACKING_GROUPS)) * chunk
    share = chunks * chunk if is_scaled else some
    share = {0: share, 1: _maxima_range(k), 2: some}[stage]
    # Pushed, so that one pipeline packs all weights.
    writer.word("rows", n)
    writer.word("steps", k)
    writer.word("k_padded", padded(k, K_PADDING))
    writer.word("share", share)
    writer.word("ranges", found.shape[1] if found is not None else 0)
    writer.word("batch_stride", batch_stride)
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
    files = [*(["scales"] if is_scaled else []), *(["split_common"] if counts or pieces == 2 else [])]
    writer.text("".join(map(template, (*files, "fragments"))))
    groups = (blocks, -(-(k if stage == 1 else padded(k, K_PADDING)) // share), batch)
    label = "column_magnitudes" if stage == 1 else "pack_weights"
    return writer.finish(label, groups, subgroup_size=fragment.lanes)


def _vectors(
    weights: View, columns: tuple[int, int], k: tuple[tuple[int, ...], tuple[int, ...]], axes_of_k: int
) -> int:
    """How a kernel reads 16 bytes of neighbours: 1 along k, 2 across it, 0 not at all.

    Args:
        weights: whose offset and strides count,
        columns: how many there are, and how far apart they lie;
        k: the sizes and strides of what it counts,
        axes_of_k: and how many of these there are.
    """
    n, row_stride = columns
    sizes, strides = k
    width = 16 // weights.itemsize
    outer = weights.strides[0] if len(weights.shape) == 3 else 0

    def is_whole(*numbers: int) -> bool:
        return all(is_multiple(number, width) for number in (weights.offset, outer, *numbers))

    # Halves that are read along axes of windows are not.
    if strides[-1] == 1 and is_whole(row_stride, sizes[-1], *strides[:-1]):
        return 1
    return 2 if row_stride == 1 and axes_of_k == 1 and is_whole(n, strides[-1]) else 0


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
        if isinstance(constant, ScaledConstant) and _are_rows_of_all(constant, weights):
            largest = constant.largest
        else:
            elements = constant.array.reshape(-1)[weights.offset :]
            strides = tuple(4 * stride for stride in weights.strides)
            matrix = np.lib.stride_tricks.as_strided(elements, weights.shape, strides, writeable=False)
            largest = np.maximum(matrix.max(axis=-1), -matrix.min(axis=-1))
        low, high = float(largest.min()), float(largest.max())
        known[key] = high / low if np.isfinite(high) and low > 0 else math.inf
        release_pages(constant)
    return known[key]


def _are_rows_of_all(constant: Constant, weights: View) -> bool:
    """Whether a constant's weights (…, n) are all of it, in any order, with its first axis as the last."""
    n, count = constant.shape[0], constant.type.elements
    return (
        (weights.shape[-1], weights.strides[-1], weights.offset) == (n, count // n, 0)
        and weights.elements == count
        and weights.byte_range[1] == constant.type.bytes
    )


_holes: weakref.WeakKeyDictionary[Constant, dict[Hashable, bool]] = weakref.WeakKeyDictionary()


def has_holes(weights: View) -> bool:
    """Whether more than `MOST_HOLES` of some column of a constant's weights (…, n) are holes.

    Of long columns some runs are looked at, the same for all; all of columns that have nothing there.
    """
    constant = weights.buffer.constant
    assert constant is not None
    key = weights.shape, weights.strides, weights.offset
    known = _holes.setdefault(constant, {})
    if key not in known:
        known[key] = _are_holes(*_columns(constant, weights))
        release_pages(constant)
    return known[key]


def _columns(constant: Constant, weights: View) -> tuple[Array, bool]:
    """Weights (…, n) as (k, n), and whether columns lie in one piece."""
    n = weights.shape[-1]
    if _are_rows_of_all(constant, weights):
        # Factors of whole columns change nothing.
        source = constant.source if isinstance(constant, ScaledConstant) else constant
        return source.array.reshape(n, -1).T, True
    elements = constant.array.reshape(-1)[weights.offset :]
    strides = tuple(4 * stride for stride in weights.strides)
    matrix = np.lib.stride_tricks.as_strided(elements, weights.shape, strides, writeable=False)
    return matrix.reshape(-1, n), False


def _are_holes(matrix: Array, are_lines: bool) -> bool:
    """Whether one of the columns (k, n) has too many holes; zeros alone, which make zeros, have none."""
    k, n = matrix.shape
    seen = _looked_at(matrix)
    step = max(1, CACHED // _LOOKED_AT) if are_lines else n
    largest = np.empty(n, np.float32)
    for first in range(0, n, step):
        some = seen[..., first : first + step]
        if are_lines:
            lines = some.transpose(2, 1, 0)
            largest[first : first + step], has_some = _look(lines.reshape(len(lines), -1), 1)
        else:
            largest, has_some = _look(some.reshape(-1, n), 0)
        if has_some:
            return True
    if k <= _LOOKED_AT:
        return False
    # Those with next to nothing where they were looked at may have all of their weight elsewhere.
    [rest] = np.nonzero(largest < HOLE * largest.max(initial=0)) if largest.any() else (np.arange(n),)
    step = max(1, CACHED // k)
    return any(_look(matrix[:, rest[first : first + step]], 0)[1] for first in range(0, len(rest), step))


def _looked_at(matrix: Array) -> Array:
    """What is looked at of columns (k, n), as (neighbours, runs, n)."""
    k, n = matrix.shape
    if k <= _LOOKED_AT:
        return matrix.reshape(k, 1, n)
    along, across = matrix.strides
    length = _LOOKED_AT // _RUNS
    apart = (k - length) // (_RUNS - 1) * along
    shape, strides = (length, _RUNS, n), (along, apart, across)
    return np.lib.stride_tricks.as_strided(matrix, shape, strides, writeable=False)


def _look(columns: Array, axis: int) -> tuple[Array, bool]:
    """The largest magnitude of each of some columns along an axis, and whether one has too many holes."""
    sizes = np.abs(columns)
    with np.errstate(invalid="ignore"):
        largest = sizes.max(axis=axis, initial=0)
        least = np.expand_dims(largest * np.float32(HOLE), axis)
        count = np.count_nonzero(sizes < least, axis=axis)
    return largest, bool((count > MOST_HOLES * sizes.shape[axis]).any())


def least_power(weights: View) -> int | None:
    """The least power of two that rows may have as their largest magnitude where they meet weights (…, n).

    None where the weights are no constant, not all finite, or their rows' largest magnitudes too different.
    """
    constant = weights.buffer.constant
    found = math.inf if constant is None else range_of(constant, weights)
    return math.ceil(math.log2(found)) - SPARE_POWERS if found <= LARGEST_RANGE else None


def define_guess(writer: KernelWriter, least: int, pieces: int = 1) -> None:
    """What scale_guesses.slang wants to know; `least` is the least power of two, see `least_power`."""
    writer.constant(least, "LEAST")
    writer.constant(PIECES_GUESS if pieces == 2 else (least + LARGEST_POWER) // 2, "GUESS")
