"""Gradients of pooling and of its inverses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal
from vkml import tracing
from vkml.errors import ShapeError
from vkml.tracing import evaluation

RANDOM = np.random.default_rng(34)

WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "halves": ((2, 3, 4, 6), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "overlapping": ((1, 2, 7, 8), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "dense": ((1, 2, 5, 4), {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1)}),
    "gaps": ((1, 2, 9, 8), {"kernel_shape": (2, 1), "strides": (4, 3)}),
    "dilated": (
        (1, 2, 9, 8),
        {"kernel_shape": (3, 2), "dilations": (2, 3), "strides": (2, 1), "pads": (2, 1, 0, 1)},
    ),
    "counted up": ((1, 2, 6, 5), {"kernel_shape": (3, 2), "strides": (2, 2), "ceil_mode": 1}),
    "same": ((1, 2, 5, 6), {"kernel_shape": (3, 2), "strides": (2, 2), "auto_pad": "SAME_LOWER"}),
    "one of four": ((1, 2, 2, 2), {"kernel_shape": (1, 1), "strides": (2, 2)}),
    "line": ((2, 2, 9), {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1)}),
    "tiles of a volume": ((1, 2, 2, 6, 2), {"kernel_shape": (1, 3, 2), "strides": (1, 3, 2)}),
    "volume": ((1, 2, 4, 3, 4), {"kernel_shape": (2, 2, 3), "strides": (2, 1, 1)}),
}  # fmt: skip


def apart(*shape: int) -> Any:
    """Elements none of which is near another one, so that differences change no maximum."""
    count = int(np.prod(shape))
    return (RANDOM.permutation(count).reshape(shape) - count / 2) / 16


@pytest.mark.parametrize("case", WINDOWS)
def test_max_pool(case: str, device_name: str) -> None:
    shape, attributes = WINDOWS[case]
    check("MaxPool", [apart(*shape)], attributes, differences=device_name == "cpu", device=device_name)


def test_gradients_of_large_windows_are_made_on_the_device(
    device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Any] = []
    monkeypatch.setattr(evaluation, "_settings", {})
    monkeypatch.setattr(evaluation, "_announce", plans.append)
    attributes = {"kernel_shape": (6, 6), "strides": (1, 2), "pads": (3, 2, 2, 3)}
    check("MaxPool", [apart(1, 2, 8, 9)], attributes, differences=False, device=device_name)
    assert plans and not [refusal for plan in plans for refusal in plan.fallbacks]
    x = RANDOM.integers(0, 4, (1, 2, 8, 9)).astype(np.float64)
    check("MaxPool", [x], attributes, differences=False, dtype=np.float16, device=device_name)


def test_max_pool_with_indices() -> None:
    shape, attributes = WINDOWS["overlapping"]
    check("MaxPool", [apart(*shape)], attributes, outputs=2)


@pytest.mark.parametrize("case", ["halves", "overlapping", "dense"])
def test_of_equal_elements_the_first_is_taken(case: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")

    shape, attributes = WINDOWS[case]
    pads = attributes.get("pads", (0, 0, 0, 0))
    begins, ends = pads[:2], pads[2:]

    def pooled(x: Any) -> Any:
        around = [entry for axis in (1, 0) for entry in (begins[axis], ends[axis])]
        x = torch.nn.functional.pad(x, around, value=-torch.inf)
        return torch.nn.functional.max_pool2d(x, attributes["kernel_shape"], attributes.get("strides", 1))

    x = RANDOM.integers(0, 3, shape).astype(np.float64)
    check("MaxPool", [x], attributes, torch=pooled, differences=False, device=device_name)


def test_windows_of_padding_alone_give_nothing(device_name: str) -> None:
    attributes = {"kernel_shape": (2, 2), "strides": (1, 2), "pads": (3, 0, 0, 2)}
    check("MaxPool", [apart(1, 2, 3, 4)], attributes, differences=False, device=device_name)
    image, gradient = apart(1, 2, 3, 4), normal(RANDOM, 1, 2, 5, 3)
    arguments = {**attributes, "dilations": (1, 1), "pads": (3, 0)}
    differences = device_name == "cpu"
    check(
        "MaxPoolGradient", [image, gradient], arguments, domain="vkml", wrt=[1], differences=differences,
        device=device_name,
    )  # fmt: skip


def test_the_maximum_in_sixteen_bits(device_name: str) -> None:
    shape, attributes = WINDOWS["overlapping"]
    check("MaxPool", [apart(*shape)], attributes, differences=False, dtype=np.float16, device=device_name)


@pytest.mark.parametrize(
    ("case", "includes"),
    [
        *((case, 0) for case in WINDOWS),
        *((case, 1) for case in ("overlapping", "counted up", "same", "line")),
    ],
)
def test_average_pool(case: str, includes: int, device_name: str) -> None:
    shape, attributes = WINDOWS[case]
    check(
        "AveragePool", [normal(RANDOM, *shape)], {**attributes, "count_include_pad": includes},
        differences=device_name == "cpu", device=device_name,
    )  # fmt: skip


@pytest.mark.parametrize("includes", [False, True])
def test_average_pool_as_torch_has_it(includes: bool, device_name: str) -> None:
    torch = pytest.importorskip("torch")

    attributes = {**WINDOWS["overlapping"][1], "ceil_mode": 1, "count_include_pad": int(includes)}
    check(
        "AveragePool", [normal(RANDOM, 1, 2, 8, 7)], attributes,
        torch=lambda x: torch.nn.functional.avg_pool2d(
            x, 3, 2, 1, ceil_mode=True, count_include_pad=includes
        ),
        differences=False, device=device_name,
    )  # fmt: skip


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("case", ["halves", "overlapping", "dilated"])
def test_norms_of_windows(case: str, p: int, device_name: str) -> None:
    shape, attributes = WINDOWS[case]
    x = np.sign(normal(RANDOM, *shape)) * RANDOM.uniform(0.2, 2, shape)
    check("LpPool", [x], {**attributes, "p": p}, differences=device_name == "cpu", device=device_name)


def test_the_norm_of_zeros_has_the_gradient_zero(device_name: str) -> None:
    x = normal(RANDOM, 1, 2, 4, 4)
    x[:, :, :2, :2] = 0
    for op, attributes in (("LpPool", WINDOWS["halves"][1]), ("GlobalLpPool", {})):
        image = x if op == "LpPool" else np.where(np.arange(2).reshape(2, 1, 1) == 0, 0, x)
        [found] = check(op, [image], attributes, differences=False, device=device_name)
        assert found is not None and not found[:, 0, :2, :2].any() and np.isfinite(found).all()


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 7), (1, 2, 2, 3, 2)])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(op: str, shape: tuple[int, ...], device_name: str) -> None:
    check(op, [apart(*shape)], differences=device_name == "cpu", device=device_name)


def test_of_equal_elements_of_a_plane_the_first_is_taken(device_name: str) -> None:
    torch = pytest.importorskip("torch")

    x = RANDOM.integers(0, 3, (2, 3, 4, 5)).astype(np.float64)
    check(
        "GlobalMaxPool", [x], torch=lambda x: torch.nn.functional.adaptive_max_pool2d(x, 1),
        differences=False, device=device_name,
    )  # fmt: skip


def test_windows_taken_apart(device_name: str) -> None:
    attributes = {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 0, 1)}
    image, block = np.array([5, 6], np.int64), np.array([2, 3], np.int64)
    columns = normal(RANDOM, 2, 3 * 6, 3 * 3)
    check("Col2Im", [columns, image, block], attributes, device=device_name)


@pytest.mark.parametrize("stated", [None, (1, 2, 7, 6)])
def test_max_unpool(stated: tuple[int, ...] | None, device_name: str) -> None:
    x = normal(RANDOM, 1, 2, 3, 2)
    starts = np.arange(2)[:, None, None] * 24 + np.arange(3)[:, None] * 8 + np.arange(2) * 2
    indices = (starts + RANDOM.integers(0, 2, starts.shape) + 4 * RANDOM.integers(0, 2, starts.shape))[None]
    inputs = [x, indices, *([] if stated is None else [np.array(stated, np.int64)])]
    attributes = {"kernel_shape": (2, 2), "strides": (2, 2)}
    check("MaxUnpool", inputs, attributes, device=device_name)


def test_a_gradient_that_is_not_of_these_windows_is_refused() -> None:
    image, gradient = tracing.value_of(np.zeros((2, 3, 4, 4))), tracing.value_of(np.zeros((2, 2, 4, 4)))
    attributes = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0)}
    with pytest.raises(ShapeError, match="is not one of windows of"):
        tracing.apply("MaxPoolGradient", image, gradient, domain="vkml", **attributes)
