"""Padding, resampling, blocks and channels against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import compare, normal
from vkml import nn
from vkml.nn import functional

PADS: list[tuple[tuple[int, ...], list[int], dict[str, Any]]] = [
    ((2, 3, 4), [1, 2], {}), ((2, 3, 4), [1, 2, 0, 1, 2, 0], {"value": 1.5}), ((2, 3, 6), [-1, -2], {}),
    ((2, 3, 6), [3, -2, -1, 0], {"value": -1.0}), ((2, 3, 5), [4, 2], {"mode": "reflect"}),
    ((3, 5), [1, 2], {"mode": "replicate"}), ((2, 3, 4, 5), [4, 3, 2, 1], {"mode": "reflect"}),
    ((3, 4, 5), [1, 0, 7, 2], {"mode": "replicate"}), ((2, 3, 4, 5), [5, 3, 0, 4], {"mode": "circular"}),
    ((1, 2, 3, 4, 2), [1, 1, 2, 0, 1, 2], {"mode": "replicate"}),
    ((1, 2, 3, 4, 2), [1, 1, 2, 0, 1, 2], {"mode": "circular"}),
    ((1, 2, 3, 4, 2), [1, 1, 2, 0, 1, 2], {"mode": "reflect"}), ((2, 3), [0, 0], {}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "pad", "named"), PADS)
def test_pad(shape: tuple[int, ...], pad: list[int], named: dict[str, Any], device_name: str) -> None:
    torch = pytest.importorskip("torch")
    x = normal(np.random.default_rng(1), *shape)
    compare(
        lambda x: functional.pad(x, pad, **named),
        lambda x: torch.nn.functional.pad(x, pad, **named),
        [x],
        device_name,
    )


def test_padding_layers(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    for rank, shape in ((1, (2, 3, 4)), (2, (2, 3, 4, 5)), (3, (1, 2, 3, 4, 3))):
        x = normal(np.random.default_rng(rank), *shape)
        for name in ("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad"):
            given: Any = (2,) if rank < 3 else ((1, 2, 0, 1, 2, 1),)
            if name == "ConstantPad":
                given = (*given, 2.5)
            ours, theirs = (getattr(f, f"{name}{rank}d")(*given) for f in (nn, torch.nn))
            assert repr(ours) == repr(theirs)
            compare(ours, theirs, [x], device_name)


RESIZES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 5), {"size": 9}), ((1, 2, 5), {"scale_factor": 1.7}),
    ((1, 2, 5), {"size": 3, "mode": "nearest-exact"}),
    ((1, 2, 7), {"size": 11, "mode": "linear"}),
    ((1, 2, 7), {"size": 4, "mode": "linear", "align_corners": True}),
    ((1, 2, 5, 4), {"scale_factor": (2.0, 0.5)}), ((1, 2, 5, 4), {"size": (3, 9), "mode": "bilinear"}),
    ((1, 2, 5, 4), {"scale_factor": 2.5, "mode": "bilinear", "align_corners": True}),
    ((1, 2, 5, 4), {"scale_factor": 2.3, "mode": "bilinear", "recompute_scale_factor": True}),
    ((1, 2, 5, 4), {"scale_factor": 2.3, "mode": "bilinear"}),
    ((1, 2, 9, 8), {"size": (4, 3), "mode": "bilinear", "antialias": True}),
    ((1, 2, 5, 4), {"size": (7, 6), "mode": "bicubic"}),
    ((1, 2, 5, 4), {"size": (3, 6), "mode": "bicubic", "align_corners": True}),
    ((1, 2, 9, 8), {"size": (4, 3), "mode": "bicubic", "antialias": True}),
    ((1, 2, 5, 4), {"size": (3, 3), "mode": "area"}), ((1, 1, 3, 4, 3), {"scale_factor": 2.0}),
    ((1, 1, 3, 4, 3), {"size": (5, 3, 2), "mode": "trilinear"}),
    ((1, 1, 3, 4, 3), {"size": (5, 3, 2), "mode": "nearest-exact"}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "named"), RESIZES)
def test_interpolate(shape: tuple[int, ...], named: dict[str, Any], device_name: str) -> None:
    torch = pytest.importorskip("torch")
    x = normal(np.random.default_rng(1), *shape)
    compare(
        lambda x: functional.interpolate(x, **named),
        lambda x: torch.nn.functional.interpolate(x.float(), **named).double(),
        [x],
        device_name,
        rtol=1e-3,
    )


def test_nearest_places() -> None:
    """Which pixel is the nearest, for many sizes and scales, ties among them."""
    torch = pytest.importorskip("torch")
    for size in range(1, 13):
        x = np.arange(size, dtype=np.float32).reshape(1, 1, -1)
        for mode in ("nearest", "nearest-exact"):
            for wanted in range(1, 30):
                found = functional.interpolate(vkml.tensor(x), wanted, mode=mode).numpy()
                other = torch.nn.functional.interpolate(torch.tensor(x), wanted, mode=mode).numpy()
                np.testing.assert_array_equal(found, other, err_msg=f"{size} to {wanted} by {mode}")
    for scale in np.arange(0.35, 4, 0.05):
        for size in (3, 7, 20, 100):
            x = np.zeros((1, 1, size), np.float32)
            other = torch.nn.functional.interpolate(torch.tensor(x), scale_factor=float(scale))
            found = functional.interpolate(vkml.tensor(x), scale_factor=float(scale))
            assert tuple(found.shape) == tuple(other.shape), (scale, size)


def test_grids(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(2)
    theta, x = normal(random, 2, 2, 3), normal(random, 2, 3, 5, 4)
    for corners in (False, True):
        for mode, padding in (("bilinear", "zeros"), ("nearest", "border"), ("bilinear", "reflection")):

            def both(
                f: Any, theta: Any, x: Any, corners: bool = corners, named: Any = (mode, padding)
            ) -> Any:
                grid = f.affine_grid(theta, (2, 3, 4, 3), align_corners=corners)
                return f.grid_sample(x, grid, *named, align_corners=corners)

            compare(
                lambda *given, both=both: both(functional, *given),
                lambda *given, both=both: both(torch.nn.functional, *given),
                [theta, x],
                device_name,
                rtol=1e-3,
            )


SHUFFLES: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = [
    ("pixel_shuffle", (2, 12, 3, 2), (2,)), ("pixel_shuffle", (9, 3, 2), (3,)),
    ("pixel_unshuffle", (2, 3, 4, 6), (2,)), ("pixel_unshuffle", (1, 2, 1, 6, 3), (3,)),
    ("unfold", (2, 3, 6, 5), (2,)), ("unfold", (3, 6, 5), ((3, 2), (1, 2), 1, (2, 1))),
    ("fold", (2, 12, 12), ((4, 5), 2)), ("fold", (12, 9), ((5, 4), (3, 2), 1, (0, 1), (1, 2))),
    ("fold", (2, 18, 9), ((5, 6), 3, 1, 1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "given"), SHUFFLES)
def test_blocks_and_channels(name: str, shape: tuple[int, ...], given: Any, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    x = normal(np.random.default_rng(1), *shape)
    ours, theirs = (getattr(f, name) for f in (functional, torch.nn.functional))
    compare(lambda x: ours(x, *given), lambda x: theirs(x, *given), [x], device_name)


LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear", "align_corners": True}, (1, 2, 3, 4)),
    ("Upsample", ((6, 5),), {}, (1, 2, 3, 4)), ("UpsamplingNearest2d", (), {"scale_factor": 2}, (1, 2, 3, 4)),
    ("UpsamplingBilinear2d", (5,), {}, (1, 2, 3, 4)), ("PixelShuffle", (2,), {}, (1, 4, 3, 2)),
    ("PixelUnshuffle", (2,), {}, (1, 2, 4, 2)), ("ChannelShuffle", (3,), {}, (1, 6, 2, 2)),
    ("Unfold", (2,), {"stride": 2}, (1, 2, 4, 4)), ("Fold", ((4, 5), 2), {}, (1, 8, 12)),
    ("Flatten", (), {}, (2, 3, 4)), ("Flatten", (0, 1), {}, (2, 3, 4)),
    ("Unflatten", (1, (2, -1)), {}, (2, 6, 3)),
    ("Identity", (3,), {"four": 5}, (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "named", "shape"), LAYERS)
def test_layers(name: str, given: Any, named: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = (getattr(f, name)(*given, **named) for f in (nn, torch.nn))
    assert repr(ours) == repr(theirs)
    compare(ours, theirs, [normal(np.random.default_rng(2), *shape)], "cpu")


def test_by_hand(device_name: str) -> None:
    x = vkml.arange(4, device=device_name, dtype=vkml.float32).reshape(1, 1, 2, 2)
    assert functional.pad(x, [1, 0, 0, 0], "replicate").tolist() == [[[[0, 0, 1], [2, 2, 3]]]]
    assert functional.interpolate(x, scale_factor=2).tolist()[0][0][1] == [0, 0, 1, 1]
    assert functional.pixel_shuffle(
        vkml.arange(4, device=device_name, dtype=vkml.float32).reshape(4, 1, 1), 2
    )[0].tolist() == [[0, 1], [2, 3]]
    columns = functional.unfold(x, 2)
    assert columns.tolist() == [[[0], [1], [2], [3]]]
    assert functional.fold(columns, 2, 2).tolist() == x.tolist()


def test_what_does_not_fit() -> None:
    x = vkml.ones(1, 3, 4, 4)
    for named, kind in (
        ({"pad": [4, 0], "mode": "reflect"}, RuntimeError),
        ({"pad": [5, 0], "mode": "circular"}, RuntimeError),
        ({"pad": [1]}, RuntimeError), ({"pad": [1] * 10}, RuntimeError), ({"pad": [-3, -2]}, RuntimeError),
        ({"pad": [1, 1], "mode": "reflect"}, NotImplementedError),
        ({"pad": [1] * 4, "mode": "wrap"}, NotImplementedError),
        ({"pad": [1] * 4, "mode": "reflect", "value": 1.0}, ValueError),
    ):  # fmt: skip
        with pytest.raises(kind):
            functional.pad(x, **named)  # type: ignore[arg-type]
    for named, kind in (
        ({}, ValueError), ({"size": 3, "scale_factor": 2}, ValueError),
        ({"size": 3, "mode": "linear"}, NotImplementedError),
        ({"size": 3, "align_corners": True}, ValueError), ({"size": (3, 4, 5)}, ValueError),
        ({"size": 3, "antialias": True}, ValueError), ({"size": 0}, RuntimeError),
    ):  # fmt: skip
        with pytest.raises(kind):
            functional.interpolate(x, **named)  # type: ignore[arg-type]
    for act in (
        lambda: functional.pixel_shuffle(x, 2), lambda: functional.pixel_unshuffle(x, 3),
        lambda: functional.channel_shuffle(x, 2), lambda: functional.unfold(x, 5),
        lambda: functional.fold(vkml.ones(1, 8, 5), 4, 2), lambda: nn.Unflatten(1, (2, 2))(x),
    ):  # fmt: skip
        with pytest.raises(RuntimeError):
            act()
