"""Transforms of pictures, arrays and tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vkml
from vkml.data import streams
from vkml.data.transforms import (
    CenterCrop,
    Compose,
    ConvertDtype,
    Lambda,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    ToTensor,
)

Array = np.ndarray[Any, Any]
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 8, 3), np.uint8)
"""Height, width, channels."""
FORMS: dict[str, tuple[Callable[[Array], Any], Callable[[Any], Array]]] = {
    "picture": (Image.fromarray, np.asarray),
    "array": (lambda pixels: pixels.transpose(2, 0, 1), lambda x: x.transpose(1, 2, 0)),
    "tensor": (
        lambda pixels: vkml.tensor(np.ascontiguousarray(pixels.transpose(2, 0, 1))),
        lambda x: x.numpy().transpose(1, 2, 0),
    ),
}
"""What a picture comes as, and how its pixels are read again."""


@pytest.fixture(params=list(FORMS))
def apply(request: pytest.FixtureRequest) -> Callable[[Any], Array]:
    """Applies a transform to the pixels in one of the forms; the result must be of the same kind."""
    there, back = FORMS[request.param]

    def applied(transform: Any, pixels: Array = PIXELS) -> Array:
        given = there(pixels)
        made = transform(given)
        kinds: Any = Image.Image if request.param == "picture" else type(given)
        assert isinstance(made, kinds)
        return back(made)

    return applied  # type: ignore[return-value]


def test_to_tensors() -> None:
    found = ToTensor()(Image.fromarray(PIXELS))
    assert found.shape == (3, 5, 8) and found.dtype == vkml.float32
    np.testing.assert_array_equal(found.numpy(), PIXELS.transpose(2, 0, 1) / np.float32(255))
    grey = ToTensor()(Image.fromarray(PIXELS[:, :, 0]))
    assert grey.shape == (1, 5, 8)
    assert ToTensor()(Image.fromarray(PIXELS[:, :, 0] > 99)).max().item() == 1
    floats = ToTensor()(np.ones((2, 3), np.float64))
    assert floats.dtype == vkml.float64 and floats.shape == (1, 2, 3)
    assert ToTensor()(floats) is floats
    with pytest.raises(ValueError, match="2/3 dimensional"):
        ToTensor()(np.zeros(3))


def test_the_middle(apply: Any) -> None:
    np.testing.assert_array_equal(apply(CenterCrop(3)), PIXELS[1:4, 2:5])
    np.testing.assert_array_equal(apply(CenterCrop((5, 4))), PIXELS[:, 2:6])
    wide = apply(CenterCrop((7, 8)))
    np.testing.assert_array_equal(wide[1:6], PIXELS)
    assert not wide[0].any() and not wide[6].any()


def test_a_part(apply: Any) -> None:
    found: Counter[tuple[int, int]] = Counter()
    for seed in range(200):
        with streams.item(seed):
            part = apply(RandomCrop((4, 6)))
        places = [
            (top, left)
            for top in range(2)
            for left in range(3)
            if np.array_equal(part, PIXELS[top : top + 4, left : left + 6])
        ]
        assert len(places) == 1
        found.update(places)
    assert len(found) == 6 and min(found.values()) > 15
    with pytest.raises(ValueError, match=r"crop size \(6, 6\) is larger than input image size \(5, 8\)"):
        apply(RandomCrop(6))
    assert apply(RandomCrop(6, pad_if_needed=True)).shape == (6, 6, 3)
    padded = apply(RandomCrop((9, 14), padding=(3, 2)))
    np.testing.assert_array_equal(padded[2:7, 3:11], PIXELS)
    assert not padded[:2].any() and not padded[:, 11:].any()


@pytest.mark.parametrize(("kind", "axis"), [(RandomHorizontalFlip, 1), (RandomVerticalFlip, 0)])
def test_flips(apply: Any, kind: Any, axis: int) -> None:
    np.testing.assert_array_equal(apply(kind(1)), np.flip(PIXELS, axis))
    np.testing.assert_array_equal(apply(kind(0)), PIXELS)
    flipped = 0
    for seed in range(200):
        with streams.item(seed):
            flipped += not np.array_equal(apply(kind(0.3)), PIXELS)
    assert 40 < flipped < 80


def test_turns(apply: Any) -> None:
    square = PIXELS[:, :5]
    np.testing.assert_array_equal(apply(RandomRotation((90, 90)), square), np.rot90(square))
    np.testing.assert_array_equal(apply(RandomRotation(0), square), square)
    with streams.item(3):
        angle = -30 + 60 * streams.Stream(3).random()
        turned = apply(RandomRotation(30), square)
    np.testing.assert_array_equal(turned, np.asarray(Image.fromarray(square).rotate(angle)))


def test_other_sizes(apply: Any) -> None:
    wanted = np.asarray(Image.fromarray(PIXELS).resize((6, 3), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(apply(Resize((3, 6))), wanted)
    assert apply(Resize(3)).shape == (3, 4, 3)
    assert apply(Resize(10), PIXELS.transpose(1, 0, 2)).shape == (16, 10, 3)
    nearest = np.asarray(Image.fromarray(PIXELS).resize((16, 10), Image.Resampling.NEAREST))
    np.testing.assert_array_equal(apply(Resize((10, 16), "nearest")), nearest)
    np.testing.assert_array_equal(nearest, PIXELS.repeat(2, 0).repeat(2, 1))


def test_other_sizes_of_floats() -> None:
    plane = np.arange(12, dtype=np.float64).reshape(3, 4) / 7
    found = Resize((6, 8))(plane)
    assert found.dtype == np.float64 and found.shape == (6, 8)
    wanted = np.asarray(Image.fromarray(plane.astype(np.float32)).resize((8, 6), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(TypeError, match="not of int64"):
        Resize(2)(np.zeros((4, 4), np.int64))


def test_normalized() -> None:
    x = np.random.default_rng(1).random((3, 2, 2), np.float32)
    found = Normalize([0.1, 0.2, 0.3], [1, 2, 4])(vkml.tensor(x))
    wanted = (x - np.float32([[[0.1]], [[0.2]], [[0.3]]])) / np.float32([[[1]], [[2]], [[4]]])
    np.testing.assert_array_equal(found.numpy(), wanted)
    np.testing.assert_array_equal(Normalize(0.5, 2)(x), (x - np.float32(0.5)) / 2)
    with pytest.raises(ValueError, match="division by zero"):
        Normalize(0, [1, 0, 1])
    for wrong in (np.zeros((3, 2, 2), np.uint8), vkml.zeros(3, 2, 2, dtype=vkml.int32)):
        with pytest.raises(TypeError, match="should be a float tensor"):
            Normalize(0, 1)(wrong)
    with pytest.raises(TypeError, match="made a tensor before"):
        Normalize(0, 1)(Image.fromarray(PIXELS))


@pytest.mark.parametrize(
    ("given", "dtype", "wanted"),
    [
        (np.array([0, 51, 255], np.uint8), "float32", [0, 0.2, 1]),
        (np.array([0, 0.5, 1], np.float32), "uint8", [0, 127, 255]),
        (np.array([0, 0.25, 1], np.float32), "float64", [0, 0.25, 1]),
        (np.array([0, 1, 255], np.uint8), "int16", [0, 128, 32640]),
        (np.array([0, 128, 32767], np.int16), "uint8", [0, 1, 255]),
        (np.array([1, 2], np.int32), "int32", [1, 2]),
    ],
)
def test_other_types(given: Array, dtype: str, wanted: list[float]) -> None:
    for form in (given, vkml.tensor(given)):
        found = ConvertDtype(getattr(vkml, dtype))(form)
        assert str(np.asarray(found).dtype) == dtype
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)


def test_numbers_that_floats_do_not_hold() -> None:
    with pytest.raises(RuntimeError, match="cannot be performed safely"):
        ConvertDtype(vkml.int64)(np.ones(2, np.float32))


def test_one_after_the_other() -> None:
    whole = Compose([Resize(8), CenterCrop(6), ToTensor(), Normalize(0.5, 0.5), Lambda(lambda x: x * 2)])
    found = whole(Image.fromarray(PIXELS))
    assert isinstance(found, vkml.Tensor) and found.shape == (3, 6, 6)
    assert -2 <= found.min().item() < 0 < found.max().item() <= 2


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: Resize((1, 2, 3)), ValueError, "a height and a width"),
        (lambda: Resize(0), ValueError, "at least 1"),
        (lambda: Resize(2, "best"), ValueError, "not 'best'"),
        (lambda: CenterCrop((2, -1)), ValueError, "at least 1"),
        (lambda: RandomCrop(2, padding=(1, 2, 3)), ValueError, "one number, two or four"),
        (lambda: RandomHorizontalFlip(1.5), ValueError, "a probability"),
        (lambda: RandomRotation(-1), ValueError, "at least 0"),
        (lambda: Lambda(3), TypeError, "should be callable"),  # type: ignore[arg-type]
    ],
)
def test_impossible_ones(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()
