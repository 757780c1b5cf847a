"""Convolutions: as an implicit matrix product, and directly where each group has one input channel."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import TensorType
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import typical
from vkml.ir.windows import Windows
from vkml.kernels import (
    channel_means,
    conv_units,
    direct_conv,
    gemm,
    halo_tiles,
    halo_units,
    matrix_units,
    separable,
)
from vkml.kernels.candidates import Candidate, described
from vkml.kernels.depthwise import depthwise
from vkml.kernels.gemm import (
    LAUNCH,
    TILE_K,
    AnyTile,
    Operand,
    Product,
    aligned,
    emit_reader,
    estimate_ordinary,
    fills_vectors,
    launch,
    matrix_operand,
    tiled_candidates,
)
from vkml.kernels.links import Link
from vkml.kernels.matrix_tiles import Choice
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

TAPS_FIRST, ALONG_COLUMNS, ALONG_WINDOWS = (0.62, 1.0), (0.5, 0.25), (0.6, 0.8)
"""What reading windows leaves of the speed of ordinary arithmetic and of units.

With taps first; else where lanes run along columns, or along windows. TFLOP/s on an H200: 21 to 24 and 35 to
38; the first layer of ResNet-18, and its gradient by weights, 18 and 10; other gradients 13 to 24, 15 to 33.
"""
SHORT, EMPTY_SHORT = 1.25, 1.5
"""How much longer tiles take of little work than is estimated (16 layers, H200), and where steps or filters
are so few that most of a tile is empty, where it is 1.8 to 3 times;"""
FEW_STEPS, FEW_FILTERS = 64, 16
SHORT_TIME = 12.0
"""and what is little: so many microseconds."""
NARROW = 256
LEAST_PIXELS = 1024
"""From so many on computed weights are copied, taps first: an estimate."""


def conv(
    build: VulkanBuilder,
    x: View,
    weight: View,
    bias: View | None,
    result: TensorType,
    windows: Windows,
    group: int,
) -> list[View]:
    """A convolution over three spatial dimensions (missing ones have size 1).

    Args:
        build: where the launches go.
        x: (batch, channels, depth, height, width), any strides.
        weight: (out channels, channels / group, kernel depth, height, width), any strides.
        bias: (out channels,) or None.
        result: type of the output as the node states it, (batch, out channels, *spatial).
        windows: over depth, height and width.
        group: number of groups.
    """
    middle = build.stand_ins.take_link(x)
    if middle is not None:
        last = Link(x, weight, bias, windows, group)
        return separable.launch(build, build.stand_ins.take_link(middle.x), middle, last, result)
    batch, channels = x.shape[:2]
    out_channels = weight.shape[0]
    kernel, pixels = windows.kernel, math.prod(windows.output)
    space = (batch, out_channels, pixels)
    geometry = constants_of(windows)
    if weight.buffer.is_constant or (group == channels and weight.shape[1] == 1):
        weight = build.contiguous(weight)
    if group == channels and weight.shape[1] == 1:
        _add_bias(build, bias, space, result)
        return depthwise(build, x, weight, result, windows, geometry)
    per_group = out_channels // group
    steps = weight.shape[1] * math.prod(kernel)
    product = convolution(x, windows, group, per_group, steps, result)

    direct, is_little = _direct(build, Link(x, weight, bias, windows, group), result)

    def on_units(choice: Choice) -> Candidate:
        def emit() -> list[View]:
            _add_bias(build, bias, space, result)
            return conv_units.launch(build, product, x, weight, windows, geometry, choice)

        return Candidate(choice.label(), choice.time, emit, choice.tile.label())

    def on_halos(choice: halo_tiles.Choice) -> Candidate:
        def emit() -> list[View]:
            _add_bias(build, bias, space, result)
            return halo_units.launch(build, product, x, weight, windows, geometry, group, choice)

        return Candidate(choice.label(), choice.time, emit, choice.tile.label())

    def in_tiles(why: str) -> Iterator[Candidate]:
        tiled, b, is_tap_major = _gathered(build, replace(product, why_strict=why), x, weight, windows, group)

        def emit(chosen: tuple[AnyTile, int]) -> list[View]:
            a = _filters(build, weight, group, is_tap_major)
            _add_bias(build, bias, space, result)
            return launch(build, tiled, a, b, chosen)

        return tiled_candidates(build.target, tiled, emit)

    def candidates() -> Iterator[Candidate]:
        why_no_halo = halo_units.refusal(build, product, x, weight, windows, group)
        halos = [] if why_no_halo else halo_units.choices(build.target, product, weight, windows, group)
        why = conv_units.refusal(build, product, x, weight, group)
        rule = None if why else conv_units.rule_of(build.target, product)
        ordinary = _gathered(build, product, x, weight, windows, group)[0] if halos else product
        first = halo_units.best(build.target, ordinary, weight, group, halos)
        alone = None if direct is None else direct(why or "slower")
        takes_direct = alone is not None and is_little
        if alone is not None and takes_direct:
            yield alone
        if first is not None and (rule is None or halo_units.forced is not None or first.time < rule.time):
            yield on_halos(first)
        elif rule is not None:
            yield on_units(rule)
        else:
            yield from in_tiles(why)
        yield from map(on_halos, halos)
        if not conv_units.refusal(build, product, x, weight, group, is_rule=False):
            yield from map(on_units, conv_units.choices(build.target, product))
        if first is not None or rule is not None:
            yield from in_tiles("slower")
        if alone is not None and not takes_direct:
            yield alone

    def question() -> str:
        window = (windows.kernel, windows.strides, windows.pads_begin, windows.dilations)
        return f"conv {described(x)} by {described(weight)}, {group} groups, windows {window}, to {space}"

    return build.select(question, candidates)


def pooled(
    build: VulkanBuilder, link: Link, result: TensorType, pool: Windows, how: str, *, counts_padding: bool
) -> list[View]:
    """A convolution and what pools its results, in one launch; `CannotLower` where two are better."""
    why = direct_conv.refusal(link, pool)
    if how not in ("max", "average") or (counts_padding and (any(pool.pads_begin) or any(pool.pads_end))):
        why = "pooling of another kind"
    if why:
        raise CannotLower(f"a convolution that would be pooled at once: {why}")
    sizes = direct_conv.sizes_of(link, pool)
    shape = direct_conv.choose(build.target, sizes)
    if shape is None or not _is_little(build, link, sizes, shape, LAUNCH + 0.3):
        raise CannotLower("a convolution that is faster apart from what pools it")
    return direct_conv.launch(build, link, pool, how, result, shape)


def reduced(
    build: VulkanBuilder, link: Link, result: TensorType, name: str, axes: Sequence[int]
) -> list[View]:
    """A convolution whose results are reduced, in one launch; `CannotLower` where two are better."""
    if name != "Mean" or tuple(axes) != tuple(range(2, result.rank)) or result.dims[2:] != (1,) * len(axes):
        raise CannotLower("a convolution that would be reduced at once: no means over all pixels")
    return channel_means.launch(build, link, result)


def _direct(
    build: VulkanBuilder, link: Link, result: TensorType
) -> tuple[Callable[[str], Candidate] | None, bool]:
    """A convolution without tiles, given why it is not on units, where there is that; and whether it is so
    little that this is best."""
    alone = direct_conv.each_alone(link.windows.output)
    sizes = direct_conv.sizes_of(link, alone)
    shape = None if direct_conv.refusal(link, alone) else direct_conv.choose(build.target, sizes)
    if shape is None:
        return None, False
    time = direct_conv.estimate(build.target, sizes, shape)

    def candidate(why: str) -> Candidate:
        emit = functools.partial(direct_conv.launch, build, link, alone, "", result, shape, why)
        return Candidate(f"direct, {shape.label()}", time, emit)

    return candidate, _is_little(build, link, sizes, shape, 0.0)


def _is_little(
    build: VulkanBuilder,
    link: Link,
    sizes: direct_conv.Sizes,
    shape: direct_conv.Shape,
    behind: float,
) -> bool:
    """Whether a direct launch is expected to be faster than tiles and `behind` microseconds more."""
    if direct_conv.forced is not None:
        return True
    if any(template.forced is not None for template in (gemm, matrix_units, halo_units)):
        return False
    time = direct_conv.estimate(build.target, sizes, shape)
    steps = sizes.channels * link.windows.taps
    product = convolution(link.x, link.windows, 1, link.filters, steps, link.x.type)
    tiled, _, _ = _gathered(build, product, link.x, link.weight, link.windows, 1)
    apart = estimate_ordinary(build.target, tiled)
    if not conv_units.why_no_weights(build, link.weight):
        units = conv_units.rule_of(build.target, product)
        apart = apart if units is None else min(apart, units.time)
        weight, windows = link.weight, link.windows
        if not halo_units.refusal(build, product, link.x, weight, windows, 1):
            halos = halo_units.choices(build.target, product, weight, windows, 1)
            apart = min([apart, *(choice.time for choice in halos)])
    longer = EMPTY_SHORT if steps < FEW_STEPS or link.filters < FEW_FILTERS else SHORT
    return time < (longer if apart < SHORT_TIME else 1.0) * apart + behind


def _gathered(
    build: VulkanBuilder, product: Product, x: View, weight: View, windows: Windows, group: int
) -> tuple[Product, Operand, bool]:
    """How a convolution is a tiled product: what reading windows leaves of its speed, the operand that reads
    them, and whether k counts taps first."""
    if windows.is_pointwise:
        return product, image_operand(x, group, windows, False), False
    # A copy of computed weights pays where they are few beside what they are multiplied with.
    is_tap_major = weight.shape[1] % TILE_K == 0 and (
        weight.buffer.constant is not None or typical(product.n) >= LEAST_PIXELS
    )
    b = image_operand(x, group, windows, is_tap_major)
    # Few columns lie as badly as those that lanes run along.
    is_along_columns = b.along_inner or typical(product.n) < NARROW
    otherwise = ALONG_COLUMNS if is_along_columns else ALONG_WINDOWS
    gathered, units = TAPS_FIRST if is_tap_major else otherwise
    return replace(product, gathered=gathered, gathered_units=units), b, is_tap_major


def _filters(build: VulkanBuilder, weight: View, group: int, is_tap_major: bool) -> Operand:
    """Operand A of a convolution: the filters, in the order of k."""
    out_channels, channels = weight.shape[:2]
    kernel = weight.shape[2:]
    per_group, steps = out_channels // group, channels * math.prod(kernel)
    if is_tap_major and weight.buffer.constant is not None:
        weight = build.prepared(weight, "taps_first", _taps_first)
    elif is_tap_major:
        turned = build.scratch(TensorType(weight.dtype, (out_channels, *kernel, channels)))
        build.copy(weight.transpose((0, 2, 3, 4, 1)), turned)
        weight = turned
    else:
        weight = build.contiguous(weight)
    rows = View(
        weight.buffer,
        weight.dtype,
        (group, per_group, steps),
        (per_group * steps, steps, 1),
        weight.offset,
    )
    return matrix_operand(rows, "a", 1, steps)


def convolution(
    x: View, windows: Windows, group: int, filters: int, steps: int, result: TensorType
) -> Product:
    """A convolution as a product: rows are a group's filters, columns the pixels of all images.

    Args:
        x: the images.
        windows: over them.
        group: number of groups.
        filters: of each.
        steps: along k.
        result: type of the output.
    """
    batch, pixels = x.shape[0], math.prod(windows.output)
    return Product(
        group,
        filters,
        batch * pixels,
        steps,
        arithmetic_type(x.dtype),
        result,
        (batch, group * filters, pixels),
        "n / PIXELS, batch * M + m, n % PIXELS",
        "conv",
        (("PIXELS", pixels),),
    )


def constants_of(windows: Windows) -> dict[str, int]:
    """What the source of operands calls the sizes of windows."""
    return {
        **_named("S", windows.strides),
        **_named("PAD", windows.pads_begin),
        **_named("D", windows.dilations),
        **_named("X", windows.spatial),
        **_named("K", windows.kernel),
        **_named("O", windows.output),
    }


def _taps_first(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(out, in, *window) → (out, *window, in), kept under the first shape."""
    moved = np.moveaxis(weight, 1, -1)
    return np.ascontiguousarray(moved).reshape(weight.shape)


def _add_bias(
    build: VulkanBuilder, bias: View | None, space: tuple[int, int, int], result: TensorType
) -> None:
    if bias is not None:
        addend = View(bias.buffer, bias.dtype, space, (0, bias.strides[0], 0), bias.offset)
        build.before_epilogue(result, addend=addend)


def _named(prefix: str, triple: tuple[int, ...]) -> dict[str, int]:
    return {f"{prefix}{axis}": value for axis, value in zip("DHW", triple, strict=True)}


def image_operand(
    x: View, group: int, windows: Windows, is_tap_major: bool, lanes: int = 1, fill: int = 0
) -> Operand:
    """Operand B of a convolution.

    Args:
        x: the images.
        group: number of groups.
        windows: over the images.
        is_tap_major: whether k counts places in a window first, see `_window_operand`.
        lanes: channels that are one step of k: four of bytes are gathered into a word.
        fill: what pads images of bytes, in each byte of a word.
    """
    operand = _pixel_operand(x, group, math.prod(windows.output), lanes) if windows.is_pointwise else None
    return operand or _window_operand(x, group, constants_of(windows), is_tap_major, lanes, fill)


def _pixel_operand(x: View, group: int, pixels: int, lanes: int) -> Operand | None:
    """Operand B of a 1×1 convolution: the image itself, read in vectors where that is aligned."""
    flat = x.reshape((*x.shape[:2], pixels))
    if flat is None:
        return None
    image, plane, step = flat.strides
    fits = fills_vectors if lanes > 1 else aligned
    most = 4 if step == 1 and fits(x, pixels, (image, plane)) else 1

    def declare(writer: KernelWriter, width: int) -> str:
        element = emit_reader(writer, x, "b", width, "c", plane, x.shape[1] // group, lanes)
        per_group = writer.constant(x.shape[1] // group)
        start = writer.offset(("image", f"(batch * {per_group})"), (image // width, plane // width))
        along = writer.offset(("pixel",), (step,)) if width == 1 else f"uint(pixel) / {width}"
        channel = writer.offset(("c",), (plane // width * lanes,))
        return "\n".join(
            [
                "struct PrepareB { int start; bool inside; };",
                "PrepareB prepare_b(int batch, int n)",
                "{",
                "    int image = n / PIXELS; int pixel = n % PIXELS;",
                f"    PrepareB p; p.start = int({start} + {along}); p.inside = n < N; return p;",
                "}",
                "void enter_b(inout PrepareB p, int k) {}",
                f"vector<Accumulator, {width}> load_b(PrepareB p, int c, int end_k)",
                "{",
                f"    if (!p.inside || c >= end_k) return vector<Accumulator, {width}>(Accumulator(0));",
                f"    int at = p.start + {channel};",
                f"    return {element};",
                "}",
            ]
        )

    return Operand(declare, True, most)


def _window_operand(
    x: View, group: int, geometry: dict[str, int], is_tap_major: bool, lanes: int, fill: int
) -> Operand:
    """Operand B: column n is an output pixel of an image, row k a channel and a place in the window.

    With `is_tap_major`, k counts places first and channels inside them, and no tile of k crosses from one
    place to the next: bounds and address are then worked out once a tile, which makes a 3×3 window nearly as
    cheap to read as a matrix. Otherwise k counts channels first, as the weights lie in the file.
    """

    def declare(writer: KernelWriter, width: int) -> str:
        for name, value in geometry.items():
            writer.constant(value, name)
        per_group = x.shape[1] // group
        channels = writer.constant(per_group)
        steps = channels if lanes == 1 else writer.constant(-(-per_group // lanes))
        channel = writer.offset(("c",), (x.strides[1] * lanes,))
        start = writer.offset(("image", f"(batch * {channels})"), x.strides[:2])
        place = writer.offset(("d", "h", "w"), x.strides[2:])
        element = emit_reader(writer, x, "b", 1, "c", x.strides[1], per_group, lanes)
        zero = f"vector<Accumulator, 1>(Accumulator({fill}))"
        prepare = [
            "struct PrepareB { int start; int d; int h; int w; bool inside; int base; int first; };",
            "PrepareB prepare_b(int batch, int n)",
            "{",
            "    int image = n / PIXELS; int pixel = n % PIXELS;",
            "    PrepareB p;",
            f"    p.start = {start};",
            "    p.w = pixel % OW * SW - PADW;",
            "    p.h = pixel / OW % OH * SH - PADH;",
            "    p.d = pixel / OW / OH * SD - PADD;",
            "    p.inside = n < N;",
            "    p.base = 0; p.first = 0;",
            "    return p;",
            "}",
        ]
        bounds = "uint(w) < uint(XW) && uint(h) < uint(XH) && uint(d) < uint(XD)"
        if is_tap_major:
            rest = [
                "void enter_b(inout PrepareB p, int k)",
                "{",
                f"    int tap = k / {steps};",
                "    int w = p.w + tap % KW * DW;",
                "    int h = p.h + tap / KW % KH * DH;",
                "    int d = p.d + tap / KW / KH * DD;",
                f"    int c = k - tap * {steps};",
                f"    p.base = {bounds} ? int(p.start + {place}) : -1;",
                "    p.first = k - c;",
                "}",
                "vector<Accumulator, 1> load_b(PrepareB p, int k, int end_k)",
                "{",
                f"    if (!p.inside || k >= end_k || p.base < 0) return {zero};",
                "    int c = k - p.first;",
                f"    int at = p.base + {channel};",
                f"    return {element};",
                "}",
            ]
        else:
            rest = [
                "void enter_b(inout PrepareB p, int k) {}",
                "vector<Accumulator, 1> load_b(PrepareB p, int k, int end_k)",
                "{",
                "    int w = p.w + k % KW * DW;",
                "    int h = p.h + k / KW % KH * DH;",
                "    int d = p.d + k / KW / KH % KD * DD;",
                "    int c = k / KW / KH / KD;",
                f"    bool inside = p.inside && k < end_k && {bounds};",
                f"    if (!inside) return {zero};",
                f"    int at = p.start + {channel} + {place};",
                f"    return {element};",
                "}",
            ]
        return "\n".join([*prepare, *rest])

    # Lanes follow memory: along columns, or along windows that are wider, as in gradients by weights.
    return Operand(declare, geometry["OW"] >= geometry["KW"])
