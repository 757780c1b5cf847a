"""Products with constant matrices of few bits in machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.native import block_product
from vkml.cpu.native.block_product import WORD_BITS, BlockFormat
from vkml.cpu.native.product import LINE_BYTES, rows_held
from vkml.cpu.native.tiles import lanes_of
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.packing import unpacked
from vkml.ir.size import typical
from vkml.kernels.views import View
from vkml.lowering.deferred import is_open
from vkml.lowering.native_layout import require_floats

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder

Array = np.ndarray[Any, Any]


def block_matmul(
    build: NativeBuilder,
    a: View,
    codes: View,
    scales: View,
    zeros: View | None,
    bits: int,
    block: int,
) -> list[View]:
    """[rows, k] times a matrix whose columns are rows of `codes`; operands as for `Lowering.block_matmul`."""
    require_floats(a, scales)
    given = [codes, scales, *([] if zeros is None else [zeros])]
    if not all(build.is_whole_constant(view) for view in given):
        raise CannotLower("products with computed weights of few bits have no machine code")
    if bits not in block_product.BITS or block * bits % WORD_BITS:
        raise CannotLower(f"weights of {bits} bits in blocks of {block} have no machine code")
    rows, inner = a.shape
    columns, blocks = scales.shape
    lanes = lanes_of(build.instructions)
    operands = [
        build.materialised(
            codes,
            f"codes{bits}:{inner}:{lanes}",
            lambda array: block_product.pack_codes(array, bits, inner, lanes),
            dtypes.INT32,
        ),
        build.materialised(
            scales, f"panels{lanes}", lambda array: block_product.pack_columns(array, lanes), scales.dtype
        ),
    ]
    zero = ""
    if zeros is not None:
        is_packed = zeros.dtype == dtypes.UINT8
        dtype = dtypes.INT8 if is_packed else dtypes.FLOAT32
        zero, middle = dtype.numpy_name, 1 << bits - 1

        def from_middle(array: Array) -> Array:
            if is_packed:
                array = unpacked(array, bits, blocks).astype(np.int16)
            return block_product.pack_columns((array - middle).astype(dtype.storage), lanes)

        operands.append(build.materialised(zeros, f"zeros{bits}:{blocks}:{lanes}", from_middle, dtype))
    a = _side_by_side(build, a)
    ending = build.ending(
        build.result(),
        lambda view: view.reshape((rows, columns)),
        lambda view: columns == 1 or view.strides[1] == 1,
        has_narrow=not is_open((a.shape, a.strides)),
    )
    launch = build.launch(
        block_product.block_product,
        form=BlockFormat(bits, block, scales.dtype.numpy_name, zero),
        rows=rows,
        inner=inner,
        columns=columns,
        a=(a.strides[0], a.strides[1]),
        epilogue=ending.epilogue,
        threads=build.threads,
    )
    return build.finish(launch, [a, *operands], ending)


def _side_by_side(build: NativeBuilder, a: View) -> View:
    """float32 rows that a kernel reads together without their driving one another from the cache."""
    rows, inner = a.shape
    together = min(typical(rows), block_product.most_rows(build.instructions))
    is_close = together == 1 or a.strides[1] == 1
    if a.dtype == dtypes.FLOAT32 and is_close and together <= rows_held(4 * typical(a.strides[0])):
        return a
    # An odd number of cache lines apart.
    line = LINE_BYTES // 4
    made = build.scratch(TensorType(dtypes.FLOAT32, (rows, (-(-inner // line) | 1) * line)))
    made = made.slice((0, 0), (1, 1), (rows, inner))
    build.copy(a, made)
    return made
