"""What builders may be asked for, as refusals: a back end overrides the templates that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vkml.ir import DType
from vkml.ir.lowering import CannotLower, Scoring, Table
from vkml.ir.recurrence import Cell
from vkml.ir.windows import Windows
from vkml.kernels.views import View
from vkml.lowering.recurrence import RecurrentLayer


class Templates:
    """Refuses everything, naming the back end."""

    makes: ClassVar[str]
    """What it makes of nodes, for the reasons that users read."""

    def _lacks(self, what: str) -> CannotLower:
        return CannotLower(f"{what} has no {self.makes}")

    def positions(self, count: int) -> View:
        """0, 1, 2, … as int32."""
        raise self._lacks("a range of positions")

    def matmul(self, a: View, b: View) -> list[View]:
        """Batched product of (batch, m, k) and (batch, k, n)."""
        raise self._lacks("a product")

    def byte_matmul(self, a: View, b: View) -> list[View]:
        """Batched product of uint8 (batch, m, k) and int8 (batch, k, n), in int32."""
        raise self._lacks("a product of bytes")

    def block_matmul(
        self, a: View, codes: View, scales: View, zeros: View | None, bits: int, block: int, *, rounds: bool
    ) -> list[View]:
        """Product of (rows, k) with numbers of few bits."""
        raise self._lacks("a product with weights of few bits")

    def byte_conv(self, x: View, weight: View, windows: Windows, *, group: int, fill: int) -> list[View]:
        """Convolution of uint8 with int8, in int32, over windows of three spatial axes."""
        raise self._lacks("a convolution of bytes")

    def attention(
        self, q: View, k: View, v: View, how: Scoring[View], *, keeps_sums: bool = False
    ) -> list[View]:
        """softmax(scale · q kᵀ, masked) v of (batch, heads, rows, columns)."""
        raise self._lacks("attention in one step")

    def attention_gradients(
        self, q: View, k: View, v: View, how: Scoring[View], d_out: View, row_sums: View, deltas: View,
        count: int,
    ) -> list[View]:  # fmt: skip
        """Gradients of attention's queries, keys and values."""
        raise self._lacks("gradients of attention in one step")

    def conv(self, x: View, weight: View, bias: View | None, windows: Windows, *, group: int) -> list[View]:
        """Convolution over windows of three spatial axes."""
        raise self._lacks("a convolution")

    def conv_weight_gradient(self, x: View, cotangent: View, windows: Windows) -> View | None:
        """Sums of what each tap reads times the cotangent there; None: there is no template of its own."""
        return None

    def conv_transpose(
        self,
        x: View,
        weight: View,
        bias: View | None,
        *,
        strides: tuple[int, ...],
        pads: tuple[int, ...],
        dilations: tuple[int, ...],
        group: int,
    ) -> list[View]:
        """A transposed convolution."""
        raise self._lacks("a transposed convolution")

    def pool(
        self, x: View, how: str | float, windows: Windows, *, counts_padding: bool = False
    ) -> list[View]:
        """Pools windows; `how` is "max", "average", "squares" (their sum) or the p of a norm."""
        raise self._lacks("pooling")

    def roi_align(
        self,
        x: View,
        regions: View,
        images: View,
        *,
        scale: float,
        ratio: int,
        is_max: bool,
        is_half_pixel: bool,
    ) -> list[View]:
        """Bilinear samples of regions (x and y of two corners) of images, joined bin by bin."""
        raise self._lacks("sampling of regions")

    def max_pool_places(
        self, x: View, windows: Windows, values: View | None, places: View, *, is_column_major: bool
    ) -> None:
        """The first greatest element of each window, and its place in `x`, counted row by row."""
        raise self._lacks("pooling with places")

    def max_pool_gradient(self, x: View, cotangent: View, result: View, windows: Windows) -> bool:
        """Gradients of windows' greatest elements; False: there is no template of its own."""
        return False

    def reduce(self, name: str, x: View, axes: Sequence[int]) -> list[View]:
        """A reduction, by the name of its operator without ``Reduce``."""
        raise self._lacks("a reduction")

    def moments(self, x: View, axes: Sequence[int]) -> list[View]:
        """Mean and variance over axes, which stay with a size of 1."""
        raise self._lacks("a mean with its variance")

    def norm(self, x: View, axes: Sequence[int], p: float) -> list[View]:
        """The p-norm over axes."""
        raise self._lacks("a norm over axes")

    def arg_reduce(self, x: View, axis: int, *, is_max: bool, takes_last: bool) -> list[View]:
        """Where along an axis the extreme lies."""
        raise self._lacks("an index of an extreme")

    def top_k(
        self, x: View, axis: int, k: int, *, is_largest: bool, values: View | None, places: View | None
    ) -> None:
        """The `k` first elements along an axis, sorted, and their places."""
        raise self._lacks("sorting")

    def scan(
        self, x: View, axis: int, *, is_product: bool, is_exclusive: bool, is_reverse: bool
    ) -> list[View]:
        """Running totals along an axis."""
        raise self._lacks("a running total")

    def softmax(self, x: View, axes: int, *, is_logarithm: bool) -> list[View]:
        """Softmax, or its logarithm, over the last axes."""
        raise self._lacks("softmax")

    def softmax_along(self, x: View, order: Sequence[int], *, is_logarithm: bool) -> list[View]:
        """Softmax along the axis that `order` puts last; the result is a transposed view."""
        raise self._lacks("softmax along an inner axis")

    def cross_entropy(self, x: View, labels: View, ignored: int | None) -> list[View]:
        """The negated log-softmax over the last axis at the labels; 0 where a label does not count."""
        raise self._lacks("a cross entropy")

    def standardise_along(self, x: View, order: Sequence[int], axes: int) -> list[View]:
        """Mean 0 and deviation 1 over the `axes` axes that `order` puts last; a transposed view."""
        raise self._lacks("normalisation along inner axes")

    def normalise(
        self, x: View, axes: int, epsilon: float, scale: View | None, bias: View | None, *, is_centred: bool
    ) -> list[View]:
        """Layer (or root-mean-square) normalisation over the last `axes` dimensions."""
        raise self._lacks("normalisation of rows")

    def pad(self, x: View, begins: Sequence[int], mode: str, fill: View | None) -> list[View]:
        """A tensor with something round it."""
        raise self._lacks("padding")

    def gather(self, data: View, indices: View, axis: int) -> list[View]:
        """Slices along an axis."""
        raise self._lacks("gathering of slices")

    def gather_elements(self, data: View, indices: View, axis: int) -> list[View]:
        """Single elements along an axis."""
        raise self._lacks("gathering of elements")

    def gather_tuples(self, data: View, indices: View, batch_axes: int) -> list[View]:
        """Slices by tuples of indices."""
        raise self._lacks("gathering by tuples")

    def scatter_elements(
        self, x: View, indices: View, updates: View, axis: int, reduction: str
    ) -> list[View]:
        """Single elements replaced, or added to."""
        raise self._lacks("scattering of elements")

    def scatter_tuples(self, x: View, indices: View, updates: View, reduction: str) -> list[View]:
        """Slices replaced, or added to, by tuples of indices."""
        raise self._lacks("scattering by tuples")

    def resize(self, x: View, tables: Sequence[Table | None]) -> list[View]:
        """Sums of a few neighbours along each axis, by tables of places and weights."""
        raise self._lacks("resizing")

    def recurrence(
        self,
        cells: Sequence[Cell],
        inputs: View,
        weights: View,
        *,
        vectors: Sequence[View],
        lengths: View | None,
        initial: Sequence[View | None],
        is_reversed: Sequence[bool],
        dtype: DType,
        is_batch_first: bool,
        wanted: Sequence[bool],
    ) -> list[View | None]:
        """A recurrent layer's results."""
        layer = RecurrentLayer(
            cells, inputs, weights, vectors, lengths, initial, is_reversed, dtype, is_batch_first, wanted
        )
        return self.recurrent_layer(layer)

    def recurrent_layer(self, layer: RecurrentLayer) -> list[View | None]:
        """A recurrent layer's results."""
        raise self._lacks("a recurrent layer")
