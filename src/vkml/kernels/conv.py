"""Convolutions: as an implicit matrix product, and directly where each group has one input channel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType, dtypes
from vkml.kernels.gemm import Operand, Product, launch, matrix_operand
from vkml.kernels.pointwise import emit_store
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, compute_type, load_expression, template

if TYPE_CHECKING:
    from vkml.lowering.builder import Builder

Triple = tuple[int, int, int]


def conv(
    build: Builder,
    x: View,
    weight: View,
    bias: View | None,
    result: TensorType,
    *,
    strides: Triple,
    pads: Triple,
    dilations: Triple,
    group: int,
) -> list[View]:
    """A convolution over three spatial dimensions (missing ones have size 1).

    Args:
        build: where the launches go.
        x: (batch, channels, depth, height, width), any strides.
        weight: (out channels, channels / group, kernel depth, height, width), row-major.
        bias: (out channels,) or None.
        result: type of the output as the node states it, (batch, out channels, *spatial).
        strides: steps of the window.
        pads: leading padding; trailing padding follows from the result's shape.
        dilations: steps inside the window.
        group: number of groups.
    """
    batch, channels = x.shape[:2]
    out_channels = weight.shape[0]
    spatial = (1,) * (5 - len(result.dims)) + result.dims[2:]
    kernel = weight.shape[2:]
    geometry = {
        **_named("S", strides),
        **_named("PAD", pads),
        **_named("D", dilations),
        **_named("X", x.shape[2:]),
        **_named("K", kernel),
        **_named("O", spatial),
    }
    if group == channels and weight.shape[1] == 1:
        return _depthwise(build, x, weight, bias, result, spatial, geometry)
    pixels = math.prod(spatial)
    per_group = out_channels // group
    steps = weight.shape[1] * math.prod(kernel)
    space = (batch, out_channels, pixels)
    product = Product(
        group,
        per_group,
        batch * pixels,
        steps,
        dtypes.FLOAT32 if x.dtype == dtypes.FLOAT16 else x.dtype,
        result,
        space,
        "n / PIXELS, batch * M + m, n % PIXELS",
        "conv",
        (("PIXELS", pixels),),
    )
    weights = View(
        weight.buffer,
        weight.dtype,
        (group, per_group, steps),
        (per_group * steps, steps, 1),
        weight.offset,
    )
    a = matrix_operand(weights, "a", 1, steps)
    is_pointwise = kernel == (1, 1, 1) and strides == (1, 1, 1) and not any(pads)
    b = _image_operand(x, group, geometry, pixels, is_pointwise)
    _add_bias(build, bias, space, result)
    return launch(build, product, a, b)


def _add_bias(build: Builder, bias: View | None, space: tuple[int, int, int], result: TensorType) -> None:
    if bias is not None:
        addend = View(bias.buffer, bias.dtype, space, (0, bias.strides[0], 0), bias.offset)
        build.before_epilogue(result, addend=addend)


def _named(prefix: str, triple: tuple[int, ...]) -> dict[str, int]:
    return {f"{prefix}{axis}": value for axis, value in zip("DHW", triple, strict=True)}


def _image_operand(x: View, group: int, geometry: dict[str, int], pixels: int, is_pointwise: bool) -> Operand:
    """Operand B: column n is an output pixel of an image, row k a channel and a place in the window."""

    def declare(writer: KernelWriter) -> str:
        pointer = writer.read(x)
        per_group = writer.constant(x.shape[1] // group)
        channel = writer.offset(("c",), (x.strides[1],))
        start = writer.offset(("image", f"(batch * {per_group})"), x.strides[:2])
        place = writer.offset(("d", "h", "w"), x.strides[2:])
        element = load_expression(pointer, "at", x.dtype)
        if is_pointwise:
            flat = x.reshape((*x.shape[:2], pixels))
            if flat is not None:
                step = writer.offset(("pixel",), flat.strides[2:])
                return "\n".join(
                    [
                        "struct PrepareB { int start; bool inside; };",
                        "PrepareB prepare_b(int batch, int n)",
                        "{",
                        "    int image = n / PIXELS; int pixel = n % PIXELS;",
                        f"    PrepareB p; p.start = {start} + {step}; p.inside = n < N; return p;",
                        "}",
                        "Accumulator load_b(PrepareB p, int c, int end_k)",
                        "{",
                        "    if (!p.inside || c >= end_k) return Accumulator(0);",
                        f"    int at = p.start + {channel};",
                        f"    return {element};",
                        "}",
                    ]
                )
        for name, value in geometry.items():
            writer.constant(value, name)
        return "\n".join(
            [
                "struct PrepareB { int start; int d; int h; int w; bool inside; };",
                "PrepareB prepare_b(int batch, int n)",
                "{",
                "    int image = n / PIXELS; int pixel = n % PIXELS;",
                "    PrepareB p;",
                f"    p.start = {start};",
                "    p.w = pixel % OW * SW - PADW;",
                "    p.h = pixel / OW % OH * SH - PADH;",
                "    p.d = pixel / OW / OH * SD - PADD;",
                "    p.inside = n < N;",
                "    return p;",
                "}",
                "Accumulator load_b(PrepareB p, int k, int end_k)",
                "{",
                "    int w = p.w + k % KW * DW;",
                "    int h = p.h + k / KW % KH * DH;",
                "    int d = p.d + k / KW / KH % KD * DD;",
                "    int c = k / KW / KH / KD;",
                "    bool inside = p.inside && k < end_k && uint(w) < uint(XW) && uint(h) < uint(XH) && uint(d) < uint(XD);",
                "    if (!inside) return Accumulator(0);",
                f"    int at = p.start + {channel} + {place};",
                f"    return {element};",
                "}",
            ]
        )

    return Operand(declare, True)


def _depthwise(
    build: Builder,
    x: View,
    weight: View,
    bias: View | None,
    result: TensorType,
    spatial: tuple[int, ...],
    geometry: dict[str, int],
) -> list[View]:
    """One thread an output element; the window's reads hit the cache."""
    batch, channels = x.shape[:2]
    out_channels = weight.shape[0]
    pixels = math.prod(spatial)
    space = (batch, out_channels, pixels)

    _add_bias(build, bias, space, result)
    epilogue, outputs = build.take_epilogue(result)
    writer = build.writer()
    accumulator = dtypes.FLOAT32 if x.dtype == dtypes.FLOAT16 else x.dtype
    writer.text(f"typealias Accumulator = {compute_type(accumulator)};")
    for name, value in geometry.items():
        writer.constant(value, name)
    total = math.prod(space)
    writer.constant(total, "TOTAL")
    writer.constant(pixels, "PIXELS")
    writer.constant(out_channels, "CHANNELS")
    multiplier = writer.constant(out_channels // channels)
    image = writer.read(x)
    taps = writer.read(weight)
    start = writer.offset(("image", f"(channel / {multiplier})"), x.strides[:2])
    place = writer.offset(("d", "h", "w"), x.strides[2:])
    element = load_expression(image, f"start + {place}", x.dtype)
    tap = load_expression(taps, "at + (kd * KH + kh) * KW + kw", weight.dtype)
    writer.text(f"Accumulator load_image(int start, int d, int h, int w) {{ return {element}; }}")
    writer.text(f"Accumulator load_tap(int at, int kd, int kh, int kw) {{ return {tap}; }}")
    writer.text(f"int image_start(int image, int channel) {{ return {start}; }}")
    emit_store(writer, space, outputs, epilogue, compute_type(accumulator))
    writer.text(template("depthwise"))
    groups = -(-total // 128)
    rows = -(-groups // build.target.max_groups)
    across = -(-groups // rows)
    writer.constant(across, "ACROSS")
    build.emit(writer.finish("depthwise", (across, rows, 1), variant="direct", reason="one channel a group"))
    return outputs
