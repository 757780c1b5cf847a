"""What lowering an operator may ask of a back end, and what it may end in besides results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir.dtypes import DType
from vkml.ir.types import TensorType
from vkml.ir.windows import Windows

if TYPE_CHECKING:
    from vkml.ir.graph import Constant, Graph
    from vkml.ir.recurrence import Cell

Array = np.ndarray[Any, Any]
Self = TypeVar("Self", bound="Operand")
Table = tuple[Array, Array]
"""Of a resized axis: places [size, taps] in the input and their weights."""


class CannotLower(Exception):
    """A node has no form on this device; the text is the reason that the user will read."""


class Operand(Protocol):
    """A value as lowering sees it: a strided window on memory that is planned later."""

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def type(self) -> TensorType: ...

    @property
    def is_reversed(self) -> bool: ...

    def reshape(self: Self, shape: Sequence[int]) -> Self | None:
        """The same elements in another shape; None where strides cannot say it."""
        ...

    def transpose(self: Self, order: Sequence[int]) -> Self:
        """The same elements, the axes in another order."""
        ...

    def expand(self: Self, shape: Sequence[int]) -> Self:
        """Broadcast to a shape, which must be reachable by NumPy's rules."""
        ...

    def slice(self: Self, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> Self:
        """Part of the elements, so many along each axis."""
        ...

    def seen_as(self: Self, dtype: DType) -> Self:
        """The same bits as elements of another type that has as many."""
        ...


V = TypeVar("V", bound=Operand)
"""What a back end calls its views; to operators all are alike."""


@dataclass(frozen=True)
class Scoring(Generic[V]):
    """What attention's softmax makes of the products of queries and keys, of (batch, heads, rows, keys)."""

    scale: float
    mask: V | None
    """Truth values."""
    keeps: bool
    """Whether a true one keeps its score; else a false one does."""
    fill: float
    """What a score becomes that is not kept."""
    bias: V | None
    """Floats that are added then."""
    causal: tuple[int, float, bool] | None
    """The offset of the last key that the first row sees; what the scores of other keys are, or are added;
    and whether they are added."""
    softcap: float = 0.0
    """What tanh brings scaled scores below; 0 for none."""
    is_empty_zero: bool = False
    """Whether a row that sees nothing is zero, not NaN."""
    is_nan_zero: bool = False
    """Whether probabilities that are NaN count as zeros."""


class BodyWriter(Protocol):
    """Writes a pointwise body: each call applies an operator to named scalars and names the result."""

    def __call__(self, op: str, *operands: str, **attributes: object) -> str: ...

    def constant(self, value: float, like: str) -> str:
        """A number in the type of the operand `like`."""
        ...

    def cast(self, operand: str, dtype: DType) -> str:
        """The operand converted."""
        ...


class Lowering(Protocol[V]):
    """What an operator's ``lower`` may ask of a builder, whatever its back end.

    Templates launch kernels and return views of their results, of the type `result` unless they say
    otherwise. One that a back end lacks raises `CannotLower`, whose text names the back end.
    """

    # values

    def result(self, index: int = 0) -> TensorType:
        """Type of the node's output `index`."""
        ...

    def output(self, type_: TensorType, index: int = 0) -> V:
        """Where the node's output `index` goes."""
        ...

    def scratch(self, type_: TensorType) -> V:
        """Memory between two launches of the node."""
        ...

    def constant(self, constant: Constant, name: str) -> V:
        """A constant as an operand."""
        ...

    def contents(self, view: V) -> Array | None:
        """The array of the whole constant that a view is of; None for values that are not known.

        What lowering goes by has to be asked for here, for lowerings are kept for nodes like this one.
        """
        ...

    def is_whole_constant(self, view: V) -> bool:
        """Whether a view is all of a constant, in order."""
        ...

    def prepared(self, view: V, key: str, change: Callable[[Array], Array], dtype: DType | None = None) -> V:
        """A whole constant in another layout, made once; `key` names the change, which refers to no view."""
        ...

    def positions(self, count: int) -> V:
        """0, 1, 2, … as int32."""
        ...

    def reshape(self, view: V, shape: Sequence[int]) -> V:
        """The elements in another shape, copied where strides cannot say it."""
        ...

    def contiguous(self, view: V) -> V:
        """The view itself where it is row-major, otherwise a copy that is."""
        ...

    # the frame of launches

    def step(self, result: TensorType, order: Sequence[int] | None = None) -> AbstractContextManager[None]:
        """Inside, templates make an intermediate `result` in scratch memory, without the epilogue; its axes
        had better lie there in this order."""
        ...

    def before_epilogue(
        self,
        result: TensorType,
        *,
        scale: float = 1.0,
        addend: V | None = None,
        addend_scale: float = 1.0,
    ) -> None:
        """Makes the next template's results ``scale * result + addend_scale * addend``."""
        ...

    def copy(self, source: V, target: V) -> None:
        """Copies elements between views of the same shape and type."""
        ...

    def compute(
        self, write: Callable[..., str], leaves: Sequence[V], output: V, *, label: str = "pointwise"
    ) -> V:
        """Runs a pointwise body that `write` makes of a `BodyWriter` and the leaves' names; the output."""
        ...

    def fused(self, body: Graph, inputs: Sequence[V | None]) -> list[V]:
        """A group of nodes: a pointwise body as one kernel, an anchor with the rest as its epilogue."""
        ...

    def concat(self, parts: Sequence[V], axis: int) -> list[V]:
        """Parts laid end to end."""
        ...

    # templates

    def matmul(self, a: V, b: V) -> list[V]:
        """Batched product of (batch, m, k) and (batch, k, n)."""
        ...

    def byte_matmul(self, a: V, b: V) -> list[V]:
        """Batched product of uint8 (batch, m, k) and int8 (batch, k, n), in int32."""
        ...

    def block_matmul(
        self,
        a: V,
        codes: V,
        scales: V,
        zeros: V | None,
        bits: int,
        block: int,
        *,
        rounds: bool,
    ) -> list[V]:
        """Product of (rows, k) with numbers of few bits, which are dequantised on the way.

        Args:
            a: floats.
            codes: bytes (columns, blocks * block * bits / 8): unsigned numbers along k, the first in the
                lowest bits.
            scales: floats (columns, blocks).
            zeros: zero points, packed like the numbers, each column's in bytes of its own, or floats
                (columns, blocks); None for the middle of what the bits count to.
            bits: of a number.
            block: numbers along k with a scale.
            rounds: whether numbers of a row may be rounded to 8 bits, with a scale for each block.
        """
        ...

    def byte_conv(self, x: V, weight: V, windows: Windows, *, group: int, fill: int) -> list[V]:
        """Convolution of uint8 with int8, in int32, over three spatial axes, padded with `fill`."""
        ...

    def attention(self, q: V, k: V, v: V, how: Scoring[V], *, keeps_sums: bool = False) -> list[V]:
        """softmax(scale · q kᵀ, masked) v of (batch, heads, rows, columns).

        Args:
            q: queries.
            k: keys, of which several heads of queries may share one.
            v: values, likewise.
            how: scores are made of products.
            keeps_sums: whether the node's second output, what probabilities are made of again, is wanted.
        """
        ...

    def attention_gradients(
        self, q: V, k: V, v: V, how: Scoring[V], d_out: V, row_sums: V, deltas: V, count: int
    ) -> list[V]:
        """The gradients of the queries, the keys and the values of an attention, the first `count` of them.

        Args:
            q: queries.
            k: keys.
            v: values.
            how: scores are made of products.
            d_out: the gradient of the results.
            row_sums: what `attention` kept, (batch, heads, rows, 2).
            deltas: of each row, the results times their gradient, (batch, heads, rows, 1).
            count: 1 or 3.
        """
        ...

    def conv(self, x: V, weight: V, bias: V | None, windows: Windows, *, group: int) -> list[V]:
        """Convolution over windows of three spatial axes; operands of any strides."""
        ...

    def conv_weight_gradient(self, x: V, cotangent: V, windows: Windows) -> V | None:
        """(filters, channels, *kernel): sums of what each tap of windows over three spatial axes reads times
        the cotangent there. None where a convolution is to compute it."""
        ...

    def conv_transpose(
        self,
        x: V,
        weight: V,
        bias: V | None,
        *,
        strides: tuple[int, ...],
        pads: tuple[int, ...],
        dilations: tuple[int, ...],
        group: int,
    ) -> list[V]:
        """Transposed convolution over three spatial axes; `pads` at their beginnings."""
        ...

    def pool(self, x: V, how: str | float, windows: Windows, *, counts_padding: bool = False) -> list[V]:
        """Pools windows; `how` is "max", "average", "squares" (their sum) or the p of a norm."""
        ...

    def roi_align(
        self,
        x: V,
        regions: V,
        images: V,
        *,
        scale: float,
        ratio: int,
        is_max: bool,
        is_half_pixel: bool,
    ) -> list[V]:
        """Bilinear samples of regions (x and y of two corners) of images, joined bin by bin."""
        ...

    def max_pool_places(
        self, x: V, windows: Windows, values: V | None, places: V, *, is_column_major: bool
    ) -> None:
        """The first greatest element of each window, and its place in `x`, counted row by row."""
        ...

    def max_pool_gradient(self, x: V, cotangent: V, result: V, windows: Windows) -> bool:
        """The gradient of windows' greatest elements, the first of equals, from what the windows have.

        x and the result are (batch, channels, depth, height, width). False, and nothing is written, where
        other launches are to compute it.
        """
        ...

    def reduce(self, name: str, x: V, axes: Sequence[int]) -> list[V]:
        """A reduction, by the name of its operator without ``Reduce``."""
        ...

    def moments(self, x: V, axes: Sequence[int]) -> list[V]:
        """Mean and variance over axes, which stay with a size of 1, both of the type `result`."""
        ...

    def norm(self, x: V, axes: Sequence[int], p: float) -> list[V]:
        """The p-norm over axes."""
        ...

    def arg_reduce(self, x: V, axis: int, *, is_max: bool, takes_last: bool) -> list[V]:
        """Where along an axis the greatest or smallest element lies."""
        ...

    def top_k(self, x: V, axis: int, k: int, *, is_largest: bool, values: V | None, places: V | None) -> None:
        """The `k` first elements along an axis, sorted, and their places, where they are wanted."""
        ...

    def scan(self, x: V, axis: int, *, is_product: bool, is_exclusive: bool, is_reverse: bool) -> list[V]:
        """Running totals along an axis."""
        ...

    def softmax(self, x: V, axes: int, *, is_logarithm: bool) -> list[V]:
        """Softmax, or its logarithm, over the last axes."""
        ...

    def softmax_along(self, x: V, order: Sequence[int], *, is_logarithm: bool) -> list[V]:
        """Softmax along the axis that `order` puts last; the result is a transposed view."""
        ...

    def cross_entropy(self, x: V, labels: V, ignored: int | None) -> list[V]:
        """The negated log-softmax over the last axis at the labels, int32 or int64, of the leading axes.

        0 where a label is the `ignored` one; one outside of the axis is reported.
        """
        ...

    def standardise_along(self, x: V, order: Sequence[int], axes: int) -> list[V]:
        """Mean 0 and deviation 1 over the `axes` axes that `order` puts last; a transposed view."""
        ...

    def normalise(
        self, x: V, axes: int, epsilon: float, scale: V | None, bias: V | None, *, is_centred: bool
    ) -> list[V]:
        """Layer (or root-mean-square) normalisation over the last `axes` dimensions."""
        ...

    def pad(self, x: V, begins: Sequence[int], mode: str, fill: V | None) -> list[V]:
        """A tensor with something round it."""
        ...

    def gather(self, data: V, indices: V, axis: int) -> list[V]:
        """Slices along an axis."""
        ...

    def gather_elements(self, data: V, indices: V, axis: int) -> list[V]:
        """Single elements along an axis."""
        ...

    def gather_tuples(self, data: V, indices: V, batch_axes: int) -> list[V]:
        """Slices by tuples of indices."""
        ...

    def scatter_elements(self, x: V, indices: V, updates: V, axis: int, reduction: str) -> list[V]:
        """Single elements replaced, or joined with what is there."""
        ...

    def scatter_tuples(self, x: V, indices: V, updates: V, reduction: str) -> list[V]:
        """Slices by tuples of indices replaced, or joined with what is there."""
        ...

    def resize(self, x: V, tables: Sequence[Table | None]) -> list[V]:
        """Sums of a few neighbours along each axis, by tables; None where an axis stays as it is."""
        ...

    def recurrence(
        self,
        cells: Sequence[Cell],
        inputs: V,
        weights: V,
        *,
        vectors: Sequence[V],
        lengths: V | None,
        initial: Sequence[V | None],
        is_reversed: Sequence[bool],
        dtype: DType,
        is_batch_first: bool,
        wanted: Sequence[bool],
    ) -> list[V | None]:
        """A recurrent layer's results; see `vkml.lowering.recurrence.RecurrentLayer`."""
        ...


def given(inputs: Sequence[V | None], index: int) -> V:
    """The operand at an index, which every node of the operator has."""
    found = inputs[index]
    assert found is not None
    return found


def all_given(inputs: Sequence[V | None]) -> list[V]:
    """The operands, of an operator none of whose inputs may be absent."""
    return [given(inputs, index) for index in range(len(inputs))]


def known(build: Lowering[V], view: V) -> Array:
    """The array of a view of a constant, as which planning has seen it."""
    found = build.contents(view)
    assert found is not None
    return found
