"""`ImageFolder`: classes, orders, modes of pictures, files that are damaged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vkml
from vkml.data import DataLoader, ImageFolder
from vkml.data.transforms import Compose, RandomCrop, RandomHorizontalFlip, ToTensor

Array = np.ndarray[Any, Any]
COLOURS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 14
"""Of a picture of two rows of three pixels."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of pictures, each of one colour, and files that are none."""
    for name, grey in (("cat/b.png", 20), ("cat/a.PNG", 10), ("cat/deep/c.jpg", 30), ("bird/z.bmp", 40)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (grey, grey, grey)).save(path)
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / "list.csv").write_text("no class")
    return tmp_path


def names(data: ImageFolder) -> list[str]:
    return [Path(path).name for path, _ in data.samples]


def test_classes_and_items(folder: Path) -> None:
    data = ImageFolder(folder)
    assert data.classes == ["bird", "cat"] and data.class_to_idx == {"bird": 0, "cat": 1}
    assert names(data) == ["z.bmp", "a.PNG", "b.png", "c.jpg"] and data.targets == [0, 1, 1, 1]
    picture, target = data[2]
    assert picture.shape == (3, 3, 4) and picture.dtype == np.float32 and target == 1
    np.testing.assert_array_equal(picture, np.float32(20) / np.float32(255))
    assert data.item_name(0).endswith("z.bmp") and len(data) == 4
    assert names(ImageFolder(folder, extensions=[".png"], allow_empty=True)) == ["a.PNG", "b.png"]


def test_orders(folder: Path) -> None:
    orders = {seed: names(ImageFolder(folder, order="seeded", seed=seed)) for seed in range(4)}
    assert orders[1] == ["a.PNG", "z.bmp", "c.jpg", "b.png"] != orders[2]
    assert all(sorted(order) == sorted(orders[1]) for order in orders.values())
    with pytest.raises(ValueError, match="'sorted' or 'seeded'"):
        ImageFolder(folder, order="random")


def test_lists_of_files(folder: Path) -> None:
    data = ImageFolder(folder, files=["cat/b.png", "bird/z.bmp"])
    assert names(data) == ["b.png", "z.bmp"] and data.classes == ["bird", "cat"] and data.targets == [1, 0]
    given = ImageFolder(folder, files=[("cat/b.png", "x"), (folder / "bird" / "z.bmp", "a")])
    assert given.classes == ["a", "x"] and given.targets == [1, 0] and given[1][0][0, 0, 0] > 0
    (folder / "train.txt").write_text("cat/b.png\tanimal\n\nbird/z.bmp\n")
    assert ImageFolder(folder, files=folder / "train.txt").classes == ["animal", "bird"]
    (folder / "wrong.txt").write_text("cat/b.png\ta\tb\n")
    with pytest.raises(vkml.InvalidData, match=r"wrong\.txt, line 1: .* 3 parts"):
        ImageFolder(folder, files=folder / "wrong.txt")
    with pytest.raises(FileNotFoundError, match="no list of files"):
        ImageFolder(folder, files=folder / "none.txt")


def test_files_read_before(folder: Path) -> None:
    data = ImageFolder(folder, preread=True)
    wanted = [item[0] for item in (ImageFolder(folder)[at] for at in range(4))]
    for path in folder.rglob("*.*"):
        path.unlink()
    for at in range(4):
        np.testing.assert_array_equal(data[at][0], wanted[at])


def modes() -> dict[str, tuple[Any, Array]]:
    """Pictures of all modes, and what is in them: red, green, blue."""
    rgb = Image.fromarray(COLOURS)
    grey = COLOURS[:, :, 0]
    wide = grey.astype(np.uint16) * 257
    clear = np.dstack([COLOURS, np.full((2, 3), 255, np.uint8)])
    clear[0, 0, 3] = 0
    palette = rgb.quantize(6)
    turned = Image.fromarray(np.rot90(COLOURS).copy())
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    turned.info["exif"] = exif.tobytes()
    black = COLOURS.copy()
    black[0, 0] = 0
    greys = np.dstack([grey] * 3)
    return {
        "RGB": (rgb, COLOURS),
        "L": (Image.fromarray(grey), greys),
        "1": (Image.fromarray(grey > 100), np.dstack([(grey > 100) * np.uint8(255)] * 3)),
        "I;16": (Image.fromarray(wide), greys),
        "RGBA": (Image.fromarray(clear), black),
        "LA": (Image.fromarray(np.dstack([grey, clear[:, :, 3]]), "LA"), np.dstack([black[:, :, 0]] * 3)),
        "P": (palette, np.asarray(palette.convert("RGB"))),
        "turned": (turned, COLOURS),
    }


@pytest.mark.parametrize("name", ["RGB", "L", "1", "I;16", "RGBA", "LA", "P", "turned"])
def test_pictures_of_all_modes(name: str, tmp_path: Path) -> None:
    picture, wanted = modes()[name]
    (tmp_path / "a").mkdir()
    picture.save(tmp_path / "a" / "x.png", exif=picture.info.get("exif", b""))
    found, _ = ImageFolder(tmp_path, dtype=np.uint8)[0]
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found.transpose(1, 2, 0), wanted)


def test_sizes_and_scales(folder: Path) -> None:
    data = ImageFolder(folder, size=(5, 7), normalize=([0.1, 0.2, 0.3], 0.5))
    picture, _ = data[1]
    assert picture.shape == (3, 5, 7)
    grey = np.float32(10) / np.float32(255)
    for channel, mean in enumerate((0.1, 0.2, 0.3)):
        np.testing.assert_allclose(picture[channel], (grey - mean) / 0.5, rtol=1e-6)
    assert ImageFolder(folder, size=6)[0][0].shape == (3, 6, 6)
    assert ImageFolder(folder, dtype=np.float16)[0][0].dtype == np.float16
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 8, 3), np.uint8))
    image.save(folder / "bird" / "z.bmp")
    resized = ImageFolder(folder, size=4, dtype=np.uint8)[0][0]
    wanted = np.asarray(image.resize((4, 4), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resized.transpose(1, 2, 0), wanted)


def test_what_the_program_does_to_them(folder: Path) -> None:
    data = ImageFolder(folder, transform=ToTensor(), target_transform=lambda number: 10 * number)
    picture, target = data[3]
    assert isinstance(picture, vkml.Tensor) and picture.shape == (3, 3, 4) and target == 10
    [batch] = DataLoader(data, 4)
    assert batch[0].shape == (4, 3, 3, 4) and batch[1].tolist() == [0, 10, 10, 10]
    halves = ImageFolder(folder, transform=lambda picture: picture.resize((2, 1)), normalize=(0, 2))
    assert halves[0][0].shape == (3, 1, 2) and halves[0][0].max() <= 0.1


def test_random_changes_do_not_depend_on_workers(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        Image.fromarray(np.random.default_rng(1).integers(0, 255, (9, 9, 3), np.uint8)).save(path)
    change = Compose([RandomCrop(3), RandomHorizontalFlip()])

    def epochs(workers: int) -> list[Array]:
        data = ImageFolder(folder, change, extensions=(".png",), allow_empty=True)
        generator = vkml.Generator().manual_seed(1)
        loader = DataLoader(data, 1, True, num_workers=workers, generator=generator)
        return [picture.numpy() for _ in range(4) for picture, _ in loader]

    first, second = epochs(0), epochs(3)
    assert len(first) == 8
    np.testing.assert_array_equal(first, second)
    assert len({picture.tobytes() for picture in first}) > 4


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_files(folder: Path, workers: int) -> None:
    (folder / "cat" / "b.png").write_bytes((folder / "cat" / "a.PNG").read_bytes()[:40])
    (folder / "bird" / "z.bmp").write_bytes(b"")
    data = ImageFolder(folder)
    with pytest.raises(vkml.InvalidData, match=r"z\.bmp cannot be read as a picture"):
        list(DataLoader(data, 2, num_workers=workers))
    loader = DataLoader(data, 2, num_workers=workers, errors="skip")
    assert [batch[1].tolist() for batch in loader] == [[1], [1]]
    assert [Path(one.name).name for one in loader.skipped] == ["z.bmp", "b.png"]
    assert all("cannot be read as a picture" in one.error for one in loader.skipped)
    (folder / "cat" / "a.PNG").unlink()
    with pytest.raises(vkml.InvalidData, match=r"a\.PNG cannot be read: No such file"):
        data[1]
    with pytest.raises(vkml.InvalidData, match=r"a\.PNG"):
        ImageFolder(folder, files=["cat/a.PNG"], preread=True)


def test_folders_without_pictures(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ImageFolder(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="Couldn't find any class folder"):
        ImageFolder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError, match="Found no valid file for the classes a"):
        ImageFolder(tmp_path)
    assert len(ImageFolder(tmp_path, allow_empty=True)) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"normalize": (0, 0)}, "deviations are not 0"),
        ({"normalize": ([1, 2], 1)}, "one a channel"),
        ({"normalize": (0, 1), "dtype": np.uint8}, "uint8 has no values below 0"),
        ({"dtype": np.int32}, "floats or uint8, not int32"),
    ],
)
def test_impossible_options(folder: Path, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ImageFolder(folder, **options)


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'vkml\[image\]'"):
        ImageFolder(folder)
