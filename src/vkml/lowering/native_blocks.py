"""Products with constant matrices of few bits in machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.native import block_dots, block_product
from vkml.cpu.native.block_product import WORD_BITS, BlockFormat
from vkml.cpu.native.executable import InstructionSet, has_byte_dots
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
    rounds: bool,
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
    has_bytes = rounds and _multiplies_bytes(build, block)
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
    a = _quantized(build, a, bits, block) if has_bytes else _side_by_side(build, a)
    ending = build.ending(
        build.result(),
        lambda view: view.reshape((rows, columns)),
        lambda view: columns == 1 or view.strides[1] == 1,
        has_narrow=not is_open((a.shape, a.strides)),
    )
    form = BlockFormat(bits, block, scales.dtype.numpy_name, zero)
    if has_bytes:
        launch = build.launch(
            block_dots.block_dots,
            form=form,
            rows=rows,
            inner=inner,
            columns=columns,
            epilogue=ending.epilogue,
            threads=build.threads,
        )
        return build.finish(launch, [a, *operands], ending)
    launch = build.launch(
        block_product.block_product,
        form=form,
        rows=rows,
        inner=inner,
        columns=columns,
        a=(a.strides[0], a.strides[1]),
        epilogue=ending.epilogue,
        threads=build.threads,
    )
    return build.finish(launch, [a, *operands], ending)


def _multiplies_bytes(build: NativeBuilder, block: int) -> bool:
    """Whether there is machine code that quantises rows in such blocks, and precision allows it."""
    is_fitting = block % block_dots.STEP == 0 and block <= block_dots.LARGEST_BLOCK
    has_code = build.instructions is InstructionSet.AVX512 and has_byte_dots(build.instructions)
    return is_fitting and has_code and not build.is_strict


def _quantized(build: NativeBuilder, a: View, bits: int, block: int) -> View:
    """Rows as bytes, each block with a header."""
    rows, inner = a.shape
    if a.dtype != dtypes.FLOAT32 or a.strides[1] != 1:
        source = build.scratch(TensorType(dtypes.FLOAT32, (rows, inner)))
        build.copy(a, source)
        a = source
    made = build.scratch(TensorType(dtypes.INT8, (rows, block_dots.padded_row(inner, block))))
    launch = build.launch(
        block_dots.quantize_rows,
        bits=bits,
        block=block,
        rows=rows,
        inner=inner,
        row_step=a.strides[0],
        threads=build.threads,
    )
    build.enter(launch, [a], [made])
    return made


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
