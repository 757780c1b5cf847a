"""Convolutions and transposed ones against PyTorch's, at random shapes and as modules."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import compare, compare_layers, normal
from vkml import nn
from vkml.nn import functional


def _drawn(random: np.random.Generator, rank: int, transposed: bool) -> tuple[list[Any], dict[str, Any]]:
    """Inputs and settings that fit each other."""
    groups = int(random.choice([1, 1, 2, 3]))
    channels, filters = (groups * int(random.integers(1, 4)) for _ in range(2))
    kernel = [int(random.integers(1, 4)) for _ in range(rank)]
    stride = [int(random.integers(1, 4)) for _ in range(rank)]
    dilation = [int(random.integers(1, 3)) for _ in range(rank)]
    named: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    spatial = [int(random.integers(5, 8)) for _ in range(rank)]
    if transposed:
        spatial = [int(random.integers(2, 5)) for _ in range(rank)]
        named["padding"] = [int(random.integers(0, k)) for k in kernel]
        pairs = zip(stride, dilation, strict=True)
        named["output_padding"] = [int(random.integers(0, max(s, d))) for s, d in pairs]
        weight = (channels, filters // groups, *kernel)
    else:
        how = random.choice(["numbers", "same", "valid"])
        named["padding"] = how if how != "numbers" else [int(random.integers(0, 3)) for _ in range(rank)]
        if how == "same":
            named["stride"] = 1
        weight = (filters, channels // groups, *kernel)
    batch = () if random.random() < 0.2 else (2,)
    arrays = [normal(random, *batch, channels, *spatial), normal(random, *weight)]
    if random.random() < 0.7:
        arrays.append(normal(random, filters))
    return arrays, named


@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_functions(name: str, rank: int, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng([rank, len(name)])
    for _ in range(8 if rank < 3 else 4):
        arrays, named = _drawn(random, rank, name == "conv_transpose")
        ours, theirs = (getattr(f, f"{name}{rank}d") for f in (functional, torch.nn.functional))
        try:
            theirs(*map(torch.tensor, arrays), **named)
        except RuntimeError:  # too small an output, of both
            with pytest.raises(RuntimeError):
                ours(*map(vkml.tensor, arrays), **named)
            continue
        compare(partial(ours, **named), partial(theirs, **named), arrays, device_name)


LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("Conv1d", (4, 6, 3), {"padding": 1, "groups": 2}, (2, 4, 7)),
    ("Conv1d", (4, 6, 3), {"padding": 2, "padding_mode": "circular", "stride": 2}, (4, 7)),
    ("Conv2d", (3, 4, 3), {}, (2, 3, 6, 5)),
    ("Conv2d", (3, 4, (3, 2)), {"padding": "same", "padding_mode": "reflect", "dilation": 2}, (2, 3, 6, 5)),
    ("Conv2d", (4, 4, 3), {"padding": (1, 2), "padding_mode": "replicate", "bias": False}, (2, 4, 6, 5)),
    ("Conv2d", (4, 8, 3), {"padding": "same", "groups": 4}, (2, 4, 6, 5)),
    ("Conv3d", (2, 3, 2), {"padding": 1, "padding_mode": "replicate", "stride": (1, 2, 1)}, (2, 2, 3, 4, 3)),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "output_padding": 1, "groups": 2}, (2, 4, 5)),
    ("ConvTranspose2d", (3, 4, (3, 2)), {"stride": 2, "padding": 1, "dilation": (1, 2)}, (2, 3, 4, 5)),
    ("ConvTranspose3d", (2, 3, 2), {"stride": 2, "bias": False}, (2, 2, 2, 3, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "named", "shape"), LAYERS)
def test_layers(
    name: str, given: tuple[Any, ...], named: dict[str, Any], shape: tuple[int, ...], device_name: str
) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = getattr(nn, name)(*given, **named), getattr(torch.nn, name)(*given, **named)
    compare_layers(ours, theirs, [normal(np.random.default_rng(1), *shape)], device_name)


def test_output_size(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = nn.ConvTranspose2d(2, 3, 3, stride=3), torch.nn.ConvTranspose2d(2, 3, 3, stride=3)
    x = normal(np.random.default_rng(2), 2, 2, 4, 5)
    compare_layers(ours, theirs, [x], device_name, named={"output_size": [13, 17]})
    with pytest.raises(ValueError, match="from 12 to 14"):
        ours(vkml.tensor(x, device=device_name), output_size=[15, 17])


def test_sums_by_hand(device_name: str) -> None:
    """Ones over ones count what a window holds; the transposed one counts back."""
    x, w = vkml.ones(1, 2, 4, 4, device=device_name), vkml.ones(1, 2, 3, 3, device=device_name)
    assert functional.conv2d(x, w, padding=1).tolist()[0][0][0] == [8, 12, 12, 8]
    assert functional.conv2d(x, w, stride=3, padding=1).tolist() == [[[[8, 8], [8, 8]]]]
    back = functional.conv_transpose2d(vkml.ones(1, 1, 2, 2, device=device_name), w[:, :1])
    assert back.tolist()[0][0] == [[1, 2, 2, 1], [2, 4, 4, 2], [2, 4, 4, 2], [1, 2, 2, 1]]
    assert functional.conv2d(x, w, dilation=2, padding="same").shape == (1, 1, 4, 4)


def test_how_weights_begin() -> None:
    vkml.manual_seed(0)
    layer = nn.Conv2d(16, 32, 3, groups=4)
    bound = 1 / np.sqrt(4 * 9)
    for parameter in layer.parameters():
        found = parameter.detach().numpy()
        assert np.abs(found).max() <= bound and np.abs(found).max() > 0.9 * bound
        assert abs(found.mean()) < 0.2 * bound
    back = nn.ConvTranspose2d(32, 16, 3)
    assert np.abs(back.weight.detach().numpy()).max() <= 1 / np.sqrt(16 * 9)


@pytest.mark.parametrize(
    ("x", "weight", "named", "text"),
    [
        ((1, 3, 8, 8), (4, 2, 3, 3), {}, "takes 2 channels"),
        ((1, 3, 2, 8), (4, 3, 3, 3), {}, "larger than the input"),
        ((3, 8), (4, 3, 3, 3), {}, "4 with a batch"),
        ((1, 4, 8, 8), (3, 2, 3, 3), {"groups": 2}, "do not divide into 2"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"padding": "same", "stride": 2}, "strided"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"stride": 0}, "must be positive"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"padding": (1, 2, 3)}, "2 of them"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"padding": "full"}, "'valid', 'same'"),
    ],
)
def test_what_does_not_fit(x: Any, weight: Any, named: dict[str, Any], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        functional.conv2d(vkml.ones(*x), vkml.ones(*weight), **named)


def test_errors_of_layers() -> None:
    with pytest.raises(ValueError, match="in_channels"):
        nn.Conv2d(3, 4, 1, groups=2)
    with pytest.raises(ValueError, match="padding_mode"):
        nn.Conv2d(3, 4, 1, padding_mode="wrap")
    with pytest.raises(ValueError, match="zeros"):
        nn.ConvTranspose2d(3, 4, 1, padding_mode="reflect")
    with pytest.raises(RuntimeError, match="the same"):
        nn.Conv2d(3, 4, 1)(vkml.ones(1, 3, 2, 2, dtype=vkml.float64))
    with pytest.raises(RuntimeError, match="output_padding"):
        nn.ConvTranspose1d(3, 4, 3, output_padding=1)(vkml.ones(1, 3, 2))
