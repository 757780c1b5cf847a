"""Images of other sizes: interpolation, pixels out of channels and back, sampling by grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.ir.dtypes import FLOAT32, INT64
from vkml.ir.size import Size, scaled
from vkml.nn.functional.adaptive import _adaptive_avg_pool
from vkml.nn.functional.arguments import require_floats
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tracing import apply, constant

_AXES = {"linear": (1,), "bilinear": (2,), "trilinear": (3,), "bicubic": (2,)}
"""Modes that are for so many spatial axes only."""


def interpolate(
    input: Tensor, size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Images resampled to another size.

    Args:
        input: [batch, channels, *spatial] with one to three spatial axes.
        size: of the result; either this or `scale_factor`.
        scale_factor: by what sizes are multiplied, rounded down.
        mode: "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic" or "area".
        align_corners: whether the outermost pixels' centres, rather than their edges, lie on each other.
        recompute_scale_factor: whether the scale is the quotient of the sizes rather than what was given.
        antialias: whether what is made smaller is smoothed ("bilinear" and "bicubic").

    Raises:
        ValueError: arguments do not go together.
        NotImplementedError: the mode is not one for so many axes.
    """
    rank = input.ndim - 2
    modes = ("nearest", "nearest-exact", "area", *_AXES)
    if rank not in (1, 2, 3) or mode not in modes or rank not in _AXES.get(mode, (rank,)):
        raise NotImplementedError(
            f"mode {mode!r} is one of {', '.join(modes)}, for an input of so many spatial axes: not for "
            "the shape "
            f"{list(input.shape)}"
        )
    require_floats(input, "interpolate")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | "
            "bicubic | trilinear"
        )
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(
            "Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input"
        )
    if (size is None) == (scale_factor is None):
        raise ValueError("only one of size or scale_factor should be defined, and one of them must be")
    own = input.shape[2:]
    scales: list[float] | None = None
    if scale_factor is None:
        if recompute_scale_factor:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        wanted = _each(size, rank, "size", int)
    else:
        scales = _each(scale_factor, rank, "scale_factor", float)
        wanted = [scaled(size, scale) for size, scale in zip(own, scales, strict=True)]
        if recompute_scale_factor or align_corners:
            scales = None  # corners on corners, whatever the scale
    if min(wanted) < 1 or min(own) < 1:
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got {list(own)} and {list(wanted)}"
        )
    if mode == "area":
        return _adaptive_avg_pool(input, wanted, rank)
    return Tensor(
        apply("Resize", *_targets(input, own, wanted, scales), **_method(mode, align_corners, antialias))
    )


def _each(given: Any, rank: int, what: str, kind: Any) -> list[Any]:
    if not isinstance(given, Sequence):
        return [kind(given)] * rank
    if len(given) != rank:
        raise ValueError(f"{what} must match the input's {rank} spatial axes, it is {list(given)}")
    return [kind(one) for one in given]


def _targets(
    x: Tensor, own: Sequence[int], wanted: Sequence[int], scales: Sequence[float] | None
) -> list[Any]:
    """Resize's inputs: scales where there are any from which it makes these sizes."""
    if scales is not None:
        is_open = any(isinstance(size, Size) for size in own)
        if is_open or [_floored(*pair) for pair in zip(own, scales, strict=True)] == list(wanted):
            return [x.value, None, constant([1.0, 1.0, *scales], FLOAT32)]
    return [x.value, None, None, constant([*x.shape[:2], *wanted], INT64)]


def _floored(size: int, scale: float) -> int:
    """The size that Resize, which computes in float32, makes by a scale."""
    return math.floor(np.float32(size) * np.float32(scale))


def _method(mode: str, align_corners: bool | None, antialias: bool) -> dict[str, Any]:
    """Resize's attributes."""
    if mode == "nearest":
        return {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if mode == "nearest-exact":
        return {
            "mode": "nearest",
            "coordinate_transformation_mode": "half_pixel",
            "nearest_mode": "round_prefer_ceil",
        }
    found: dict[str, Any] = {
        "mode": "cubic" if mode == "bicubic" else "linear",
        "coordinate_transformation_mode": "align_corners" if align_corners else "half_pixel",
        "antialias": int(antialias),
        "exclude_outside": int(antialias),
    }
    if mode == "bicubic":
        # Keys' parameter, which PyTorch changes where it smooths.
        found["cubic_coeff_a"] = -0.5 if antialias else -0.75
    return found


def upsample(
    input: Tensor, size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """`interpolate` by its former name; arguments as for `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """[..., channels r², height, width] as [..., channels, height r, width r] (Shi et al., 2016).

    Args:
        input: [..., channels r², height, width].
        upscale_factor: r.

    Raises:
        RuntimeError: shapes do not fit.
    """
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise RuntimeError(
            f"pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
            f"upscale_factor, but input.size(-3) of the shape {list(input.shape)} is not divisible by {r * r}"
        )
    *before, channels, height, width = input.shape
    image = op.reshape(input, math.prod(before), channels, height, width)
    made = Tensor(apply("DepthToSpace", image.value, blocksize=r, mode="CRD"))
    return op.reshape(made, *before, channels // (r * r), height * r, width * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """[..., channels, height r, width r] as [..., channels r², height, width]: what `pixel_shuffle` undoes.

    Args:
        input: [..., channels, height r, width r].
        downscale_factor: r.

    Raises:
        RuntimeError: shapes do not fit.
    """
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-1] % r or input.shape[-2] % r:
        raise RuntimeError(
            f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but the shape "
            f"{list(input.shape)} is not divisible by {r}"
        )
    *before, channels, height, width = input.shape
    parts = op.reshape(input, math.prod(before), channels, height // r, r, width // r, r)
    return op.reshape(op.permute(parts, 0, 1, 3, 5, 2, 4), *before, channels * r * r, height // r, width // r)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels of groups in turn (Zhang et al., 2018): [batch, channels, ...] of any number of axes.

    Args:
        input: [batch, channels, ...].
        groups: how many; they divide the channels.

    Raises:
        RuntimeError: shapes do not fit.
    """
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups, in an input of more than 2 axes. Got the shape "
            f"{list(input.shape)} and {groups} groups."
        )
    batch, channels, *rest = input.shape
    parts = op.reshape(input, batch, groups, channels // groups, *rest)
    return op.reshape(op.transpose(parts, 1, 2), batch, channels, *rest)


def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """An image's values at places between its pixels.

    Args:
        input: [batch, channels, *spatial] with two or three spatial axes.
        grid: [batch, *places, axes]: from -1 to 1 along each, the last spatial axis first.
        mode: "bilinear", "nearest" or "bicubic".
        padding_mode: what lies outside: "zeros", "border" or "reflection".
        align_corners: whether ±1 are the outermost pixels' centres rather than their edges.

    Raises:
        ValueError: a mode does not exist.
        RuntimeError: shapes or types do not fit.
    """
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(
            f"grid_sample: expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: {mode!r}"
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            "grid_sample: expected padding_mode to be 'zeros', 'border', or 'reflection', but got: "
            f"{padding_mode!r}"
        )
    rank = input.ndim - 2
    if (
        rank not in (2, 3)
        or grid.ndim != input.ndim
        or grid.shape[-1] != rank
        or grid.shape[0] != input.shape[0]
    ):
        raise RuntimeError(
            f"grid_sample: a grid of shape {list(grid.shape)} does not fit an input of shape "
            f"{list(input.shape)}"
        )
    if mode == "bicubic" and rank == 3:
        raise RuntimeError("grid_sample: bicubic interpolation only supports 4D input")
    if grid.dtype != input.dtype:
        raise RuntimeError(
            f"grid_sample: input and grid have one type, not {input.dtype.numpy_name} and "
            f"{grid.dtype.numpy_name}"
        )
    how = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}[mode]
    made = apply(
        "GridSample", input.value, grid.value, mode=how, padding_mode=padding_mode,
        align_corners=int(bool(align_corners)),
    )  # fmt: skip
    return Tensor(made)


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid of an affine map, for `grid_sample`.

    Args:
        theta: [batch, 2, 3] or [batch, 3, 4].
        size: of the images to be made: [batch, channels, *spatial].
        align_corners: as for `grid_sample`.

    Raises:
        ValueError: `theta` is not of floats, or has another shape.
    """
    rank = len(size) - 2
    if rank not in (2, 3) or tuple(theta.shape) != (size[0], rank, rank + 1) or not theta.dtype.is_float:
        raise ValueError(
            f"Expected a batch of affine matrices of floats of shape [{size[0]}, {rank}, {rank + 1}] for "
            "size "
            f"{list(size)}. Got {theta.dtype.numpy_name} of shape {list(theta.shape)}."
        )
    made = apply(
        "AffineGrid", theta.value, constant(list(size), INT64), align_corners=int(bool(align_corners))
    )
    return Tensor(made)
