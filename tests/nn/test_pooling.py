"""Pooling against PyTorch's, at random shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import compare, normal
from vkml import nn
from vkml.nn import functional


def _drawn(random: np.random.Generator, rank: int, dilated: bool) -> tuple[Any, dict[str, Any]]:
    kernel = [int(random.integers(1, 5)) for _ in range(rank)]
    named: dict[str, Any] = {"kernel_size": kernel, "ceil_mode": bool(random.random() < 0.5)}
    if random.random() < 0.7:
        named["stride"] = [int(random.integers(1, 4)) for _ in range(rank)]
    if random.random() < 0.7:
        named["padding"] = [int(random.integers(0, k // 2 + 1)) for k in kernel]
    if dilated:
        named["dilation"] = [int(random.integers(1, 3)) for _ in range(rank)]
    batch = () if random.random() < 0.2 else (2,)
    return normal(random, *batch, 3, *(int(random.integers(7, 10)) for _ in range(rank))), named


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("indices", [False, True])
def test_max(rank: int, indices: bool, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng([rank, indices])
    for _ in range(4):
        x, named = _drawn(random, rank, True)
        ours, theirs = (getattr(f, f"max_pool{rank}d") for f in (functional, torch.nn.functional))
        compare(
            partial(ours, **named, return_indices=indices),
            partial(theirs, **named, return_indices=indices),
            [x],
            device_name,
        )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_average(rank: int, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng([rank, 5])
    for _ in range(5):
        x, named = _drawn(random, rank, False)
        named["count_include_pad"] = bool(random.random() < 0.5)
        if rank > 1 and random.random() < 0.5:
            named["divisor_override"] = int(random.integers(1, 9))
        ours, theirs = (getattr(f, f"avg_pool{rank}d") for f in (functional, torch.nn.functional))
        compare(partial(ours, **named), partial(theirs, **named), [x], device_name)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_norms(rank: int, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng([rank, 6])
    for p in (1, 2, 3.0):
        x, named = _drawn(random, rank, False)
        named.pop("padding", None)
        if rank == 1:  # there PyTorch takes no list
            named["kernel_size"] = named["kernel_size"][0]
        ours, theirs = (getattr(f, f"lp_pool{rank}d") for f in (functional, torch.nn.functional))
        named["norm_type"] = p
        compare(partial(ours, **named), partial(theirs, **named), [np.abs(x) + 0.1], device_name)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["avg", "max", "max with indices"])
def test_adaptive(rank: int, kind: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng([rank, len(kind)])
    targets: list[Any] = [1, [6, 3, 2][:rank], [5, 4, 9][:rank], [None, 7, 3][:rank]]
    named = {"return_indices": True} if "indices" in kind else {}
    for target in targets:
        if rank == 1 and not isinstance(target, int):
            target = target[0] or 4
        x = normal(random, 2, 2, *[6, 9, 4][:rank])
        ours, theirs = (
            getattr(f, f"adaptive_{kind[:3]}_pool{rank}d") for f in (functional, torch.nn.functional)
        )
        found, wanted = (partial(f, output_size=target, **named) for f in (ours, theirs))
        compare(found, wanted, [x], device_name)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_unpooling(rank: int, device_name: str) -> None:
    torch = pytest.importorskip("torch")
    x = normal(np.random.default_rng(rank), 2, 3, *[8, 7, 5][:rank])

    def both(f: Any, x: Any, name: str) -> Any:
        found, places = getattr(f, f"max_pool{rank}d")(x, 3, 2, 1, return_indices=True)
        return getattr(f, f"max_unpool{rank}d")(found, places, 3, 2, 1, output_size=list(x.shape))

    # Windows overlap: an element that is the greatest of two comes back once.
    compare(
        lambda x: both(functional, x, "ours"),
        lambda x: both(torch.nn.functional, x, "theirs"),
        [x],
        device_name,
    )


LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], int]] = [
    ("MaxPool1d", (2,), {}, 1), ("MaxPool2d", (3, 2), {"padding": 1, "ceil_mode": True}, 2),
    ("MaxPool2d", ((2, 3),), {"return_indices": True}, 2), ("MaxPool3d", (2,), {"dilation": 2}, 3),
    ("AvgPool1d", (3,), {"padding": 1, "count_include_pad": False}, 1), ("AvgPool2d", (2,), {}, 2),
    ("AvgPool3d", (2,), {"divisor_override": 5}, 3), ("LPPool1d", (2, 3), {}, 1),
    ("LPPool2d", (2, 2), {"stride": 1}, 2), ("LPPool3d", (2, 2), {}, 3), ("AdaptiveAvgPool1d", (3,), {}, 1),
    ("AdaptiveAvgPool2d", ((None, 2),), {}, 2), ("AdaptiveAvgPool3d", (1,), {}, 3),
    ("AdaptiveMaxPool1d", (3,), {}, 1), ("AdaptiveMaxPool2d", (2, True), {}, 2),
    ("AdaptiveMaxPool3d", ((2, 3, 1),), {}, 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "named", "rank"), LAYERS)
def test_layers(name: str, given: Any, named: dict[str, Any], rank: int) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = getattr(nn, name)(*given, **named), getattr(torch.nn, name)(*given, **named)
    assert repr(ours) == repr(theirs)
    compare(ours, theirs, [normal(np.random.default_rng(2), 2, 2, *[6, 7, 5][:rank])], "cpu")


def test_unpooling_layers() -> None:
    torch = pytest.importorskip("torch")
    for rank in (1, 2, 3):
        ours = nn.Sequential(getattr(nn, f"MaxUnpool{rank}d")(2, 2))[0]
        theirs = getattr(torch.nn, f"MaxUnpool{rank}d")(2, 2)
        assert repr(ours) == repr(theirs)
        x = normal(np.random.default_rng(2), 2, 2, *[6] * rank)
        found, places = getattr(functional, f"max_pool{rank}d")(vkml.tensor(x), 2, return_indices=True)
        wanted = theirs(torch.tensor(found.numpy()), torch.tensor(places.numpy()))
        np.testing.assert_array_equal(ours(found, places).numpy(), wanted.numpy())


def test_by_hand(device_name: str) -> None:
    x = vkml.arange(16, device=device_name, dtype=vkml.float32).reshape(1, 1, 4, 4)
    found, places = functional.max_pool2d(x, 2, return_indices=True)
    assert found.tolist() == [[[[5, 7], [13, 15]]]] and places.tolist() == [[[[5, 7], [13, 15]]]]
    assert functional.avg_pool2d(x, 3, stride=1, padding=1)[0, 0, 0, 0].item() == pytest.approx(10 / 9)
    assert functional.adaptive_avg_pool2d(x, (1, 3)).tolist()[0][0] == [[6.5, 7.5, 8.5]]
    back = functional.max_unpool2d(found, places, 2)
    assert back.tolist()[0][0] == [[0, 0, 0, 0], [0, 5, 0, 7], [0, 0, 0, 0], [0, 13, 0, 15]]


def test_what_does_not_fit() -> None:
    x = vkml.ones(1, 2, 4, 4)
    with pytest.raises(RuntimeError, match="at most half"):
        functional.max_pool2d(x, 2, padding=2)
    with pytest.raises(RuntimeError, match="larger than"):
        functional.avg_pool2d(x, 5)
    with pytest.raises(RuntimeError, match="greater than zero"):
        functional.max_pool2d(x, 0)
    with pytest.raises(RuntimeError, match="4 with a batch"):
        functional.max_pool2d(x[0, 0], 2)
    with pytest.raises(RuntimeError, match="not zero"):
        functional.avg_pool2d(x, 2, divisor_override=0)
    with pytest.raises(RuntimeError, match="2 numbers"):
        functional.adaptive_avg_pool2d(x, (1, 2, 3))
    with pytest.raises(ValueError, match="output_size"):
        functional.max_unpool2d(x, vkml.zeros(1, 2, 4, 4, dtype=vkml.int64), 2, output_size=[12, 12])
