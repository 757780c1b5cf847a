"""Images of every kind become the numbers that they show: depth, palette, transparency, orientation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vkml.cli.images import AS_IS, Preparation, read_image
from vkml.cli.sources import source
from vkml.errors import InvalidArgument
from vkml.ir import dtypes

Array = np.ndarray[Any, Any]
GREY = np.array([[0, 51, 102], [153, 204, 255]], np.uint8)


def _read(
    path: Path,
    channels: int = 3,
    dtype: dtypes.DType = dtypes.FLOAT32,
    size: Any = ("h", "w"),
    preparation: Preparation = AS_IS,
) -> Array:
    return read_image(source(str(path)), ("n", channels, *size), dtype, "input 'x'", preparation)


def _saved(path: Path, picture: Image.Image, **options: Any) -> Path:
    picture.save(path, **options)
    return path


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_sixteen_bits_keep_their_scale(tmp_path: Path, channels: int) -> None:
    values = np.array([[0, 256, 4096], [32768, 60000, 65535]], np.uint16)
    path = _saved(tmp_path / "deep.png", Image.fromarray(values))
    found = _read(path, channels)
    assert found.shape == (channels, 2, 3)
    for plane in found[:3]:
        np.testing.assert_allclose(plane, values / 65535, rtol=1e-6)
    assert channels < 4 or (found[3] == 1).all()
    bytes_ = _read(path, channels, dtypes.UINT8)
    assert bytes_[0].tolist() == [[0, 1, 16], [128, 233, 255]]


def test_sixteen_bits_are_resized_in_their_depth(tmp_path: Path) -> None:
    path = _saved(tmp_path / "deep.png", Image.fromarray(np.full((6, 4), 1000, np.uint16)))
    np.testing.assert_allclose(_read(path, size=(3, 2)), np.full((3, 3, 2), 1000 / 65535), rtol=1e-6)


def test_a_clear_value_of_sixteen_bits_is_clear(tmp_path: Path) -> None:
    values = np.array([[7, 65535]], np.uint16)
    picture = Image.fromarray(values)
    path = _saved(tmp_path / "deep.png", picture, transparency=65535)
    assert Image.open(path).info["transparency"] == 65535
    np.testing.assert_allclose(_read(path, 1)[0], [[7 / 65535, 0]], rtol=1e-6)
    np.testing.assert_allclose(_read(path, 4)[3], [[1, 0]])


def _turned(picture: Array, orientation: int) -> Array:
    """The stored array which, shown with an EXIF orientation, looks like `picture`; EXIF 3.0, 4.6.5.1.1."""
    stored = {
        1: picture, 2: picture[:, ::-1], 3: picture[::-1, ::-1], 4: picture[::-1], 5: picture.T,
        6: np.rot90(picture), 7: picture.T[::-1, ::-1], 8: np.rot90(picture, -1),
    }  # fmt: skip
    return np.ascontiguousarray(stored[orientation])


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_cameras_is_applied(tmp_path: Path, orientation: int, depth: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    grey = GREY if depth == 8 else GREY.astype(np.uint16) * 257
    path = _saved(tmp_path / "photo.png", Image.fromarray(_turned(grey, orientation)), exif=exif)
    np.testing.assert_allclose(_read(path, 1)[0], GREY / 255, rtol=1e-6)


def test_orientation_of_a_jpeg_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the sensor's top is the picture's right side
    stored = np.zeros((32, 64), np.uint8)
    stored[:, 32:] = 255
    path = _saved(tmp_path / "photo.jpg", Image.fromarray(stored), exif=exif, quality=95)
    found = _read(path, 1)[0]
    assert found.shape == (64, 32)
    assert found[:24].max() < 0.1 and found[40:].min() > 0.9


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0junk and more junk"]
)
def test_unreadable_orientation_counts_as_none(tmp_path: Path, exif: bytes) -> None:
    path = _saved(tmp_path / "photo.jpg", Image.fromarray(np.full((8, 16), 255, np.uint8)), exif=exif)
    assert _read(path).shape == (3, 8, 16)


def test_one_bit(tmp_path: Path) -> None:
    path = _saved(tmp_path / "bits.png", Image.fromarray(GREY > 102))
    assert Image.open(path).mode == "1"
    assert _read(path, 1)[0].tolist() == [[0, 0, 0], [1, 1, 1]]


def test_palette_with_clear_entries(tmp_path: Path) -> None:
    picture = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    picture.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    path = _saved(tmp_path / "palette.png", picture, transparency=bytes([255, 0, 255]))
    assert _read(path).tolist() == [[[1, 0, 0]], [[0, 0, 0]], [[0, 0, 1]]]
    assert _read(path, 4)[3].tolist() == [[1, 0, 1]]


def test_grey_with_alpha(tmp_path: Path) -> None:
    picture = Image.merge("LA", (Image.fromarray(GREY), Image.fromarray(np.full((2, 3), 51, np.uint8))))
    path = _saved(tmp_path / "glass.png", picture)
    np.testing.assert_allclose(_read(path, 4)[0], GREY / 255, rtol=1e-6)
    np.testing.assert_allclose(_read(path, 4)[3], np.full((2, 3), 0.2), rtol=1e-6)
    np.testing.assert_allclose(_read(path, 1)[0], GREY / 255 * 0.2, atol=1 / 255)


def test_inks_become_colours(tmp_path: Path) -> None:
    inks = np.zeros((16, 16, 4), np.uint8)
    inks[..., 0] = 255  # cyan alone: no red
    path = _saved(tmp_path / "print.jpg", Image.fromarray(inks, "CMYK"), quality=95)
    assert Image.open(path).mode == "CMYK"
    found = _read(path).mean((1, 2))
    np.testing.assert_allclose(found, [0, 1, 1], atol=0.02)


def test_values_of_no_known_range_are_refused(tmp_path: Path) -> None:
    for name, picture in (
        ("float", Image.fromarray(np.ones((2, 2), np.float32))),
        ("wide", Image.fromarray(np.full((2, 2), 70000, np.int32))),
    ):
        picture.save(tmp_path / f"{name}.tiff")
        path = (tmp_path / f"{name}.tiff").rename(tmp_path / f"{name}.png")
        with pytest.raises(InvalidArgument, match=f"{name}.png cannot be read as an image: its values"):
            _read(path)


def test_tiff_and_webp_are_read(tmp_path: Path) -> None:
    for name, options in (("a.tif", {}), ("a.webp", {"lossless": True})):
        path = _saved(tmp_path / name, Image.fromarray(GREY).convert("RGB"), **options)
        np.testing.assert_allclose(_read(path)[1], GREY / 255, rtol=1e-6)
    deep = _saved(tmp_path / "deep.tiff", Image.fromarray(np.array([[0, 300], [40000, 65535]], np.uint16)))
    np.testing.assert_allclose(_read(deep, 1)[0], np.array([[0, 300], [40000, 65535]]) / 65535, rtol=1e-6)


@pytest.fixture
def stripes(tmp_path: Path) -> Path:
    """8 wide, 4 high: two columns of each of four shades."""
    shades = np.repeat(np.array([[10, 80, 160, 240]], np.uint8), 2, axis=1).repeat(4, axis=0)
    return _saved(tmp_path / "stripes.png", Image.fromarray(shades))


def test_the_middle_is_cut_out_where_proportions_are_kept(stripes: Path) -> None:
    found = _read(stripes, 1, dtypes.UINT8, (4, 4), Preparation("crop"))[0]
    assert found.tolist() == [[80, 80, 160, 160]] * 4
    tall = _read(stripes, 1, dtypes.UINT8, (4, 2), Preparation("crop"))[0]
    assert tall.tolist() == [[80, 160]] * 4


def test_a_picture_made_larger_first_shows_less_of_it(stripes: Path) -> None:
    """torchvision's Resize and CenterCrop."""
    found = _read(stripes, 1, dtypes.UINT8, (4, 4), Preparation("crop", edge=8))[0]
    resized = Image.open(stripes).resize((16, 8), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(found, np.asarray(resized)[2:6, 6:10], atol=1)
    whole = _read(stripes, 1, dtypes.UINT8, (4, 8), Preparation("crop", edge=8))[0]
    assert set(whole[0]) != set(np.asarray(Image.open(stripes))[0])


def test_black_is_put_round_what_is_kept_whole(stripes: Path) -> None:
    found = _read(stripes, 1, dtypes.UINT8, (8, 8), Preparation("pad"))[0]
    assert found[2:6].tolist() == np.asarray(Image.open(stripes)).tolist()
    assert not found[:2].any() and not found[6:].any()


def test_files_whose_names_do_not_say_it_are_told_by_their_first_bytes(tmp_path: Path) -> None:
    Image.fromarray(GREY).save(tmp_path / "photo.dat", "png")
    np.save(tmp_path / "array.bin.npy", GREY)
    (tmp_path / "array.bin.npy").rename(tmp_path / "array.bin")
    (tmp_path / "words.text").write_text("words")
    endings = {name: source(str(tmp_path / name)) for name in ("photo.dat", "array.bin", "words.text")}
    assert [each.ending for each in endings.values()] == [".jpg", ".npy", ".text"]
    assert endings["photo.dat"].is_picture and not endings["words.text"].is_picture
    np.testing.assert_allclose(_read(tmp_path / "photo.dat", 1)[0], GREY / 255, rtol=1e-6)


def test_blue_first_and_values_to_255(tmp_path: Path) -> None:
    path = _saved(tmp_path / "red.png", Image.new("RGBA", (1, 1), (255, 128, 0, 51)))
    preparation = Preparation(white=255.0, mean=(100.0, 20.0, 5.0), deviation=(2.0,), is_bgr=True)
    opaque = _saved(tmp_path / "opaque.png", Image.new("RGB", (1, 1), (255, 128, 0)))
    np.testing.assert_allclose(_read(opaque, 3, preparation=preparation).ravel(), [-50, 54, 125])
    assert _read(path, 4, dtypes.UINT8, preparation=preparation).ravel().tolist() == [0, 128, 255, 51]
