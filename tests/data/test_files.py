"""Arrays in files that are mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from vkml.data import BinaryDataset, DataLoader, NumpyDataset

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)


def mapped(array: Array) -> bool:
    """Whether an array lies in a mapped file."""
    found: Any = array
    while found is not None and not isinstance(found, np.memmap):
        found = getattr(found, "base", None)
    return found is not None


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64, ">i2", np.bool_])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(dtype: Any, order: Any, tmp_path: Path) -> None:
    array = RANDOM.integers(0, 2, (7, 3, 2)).astype(dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    data = NumpyDataset(tmp_path / "a.npy")
    assert len(data) == 7 and mapped(data.arrays[0])
    np.testing.assert_array_equal(data[-2], array[-2])
    batches = list(DataLoader(data, 3, sampler=[5, 0, 6, 1], num_workers=2))
    np.testing.assert_array_equal(np.concatenate([batch.numpy() for batch in batches]), array[[5, 0, 6, 1]])


def test_several_files(tmp_path: Path) -> None:
    x, y = RANDOM.random((4, 2)), np.arange(4)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    data = NumpyDataset([tmp_path / "x.npy", tmp_path / "y.npy"])
    assert data[2][1] == 2 and data[2][0].tolist() == x[2].tolist()
    np.save(tmp_path / "y.npy", y[:3])
    with pytest.raises(vkml.InvalidData, match="do not belong together"):
        NumpyDataset([tmp_path / "x.npy", tmp_path / "y.npy"])


@pytest.mark.parametrize("is_compressed", [False, True])
def test_npz(is_compressed: bool, tmp_path: Path) -> None:
    x, y = np.asfortranarray(RANDOM.random((5, 4))), np.arange(5, dtype=np.int16)
    save = np.savez_compressed if is_compressed else np.savez
    save(tmp_path / "a.npz", x=x, y=y, empty=np.zeros((5, 0)))
    data = NumpyDataset(tmp_path / "a.npz", ["y", "x", "empty"])
    number, row, nothing = data[3]
    assert number == 3 and row.tolist() == x[3].tolist() and nothing.shape == (0,)
    assert mapped(data.arrays[0]) is not is_compressed
    assert len(NumpyDataset(tmp_path / "a.npz").arrays) == 3
    with pytest.raises(vkml.InvalidData, match="has no array 'z'"):
        NumpyDataset(tmp_path / "a.npz", ["z"])


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_damaged_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(FileNotFoundError, match="there is no file"):
        NumpyDataset(path)
    (np.save if name.endswith("y") else np.savez)(path, np.arange(1000))  # type: ignore[operator]
    whole = path.read_bytes()
    for contents in (b"", whole[:60], whole[:-100], b"x" * 300):
        path.write_bytes(contents)
        with pytest.raises(vkml.InvalidData, match=name):
            NumpyDataset(path)
    (np.save if name.endswith("y") else np.savez)(path, np.array([{}], object))  # type: ignore[operator]
    with pytest.raises(vkml.InvalidData, match=name):
        NumpyDataset(path)


def test_binary(tmp_path: Path) -> None:
    array = RANDOM.integers(0, 1000, (6, 2, 3)).astype(">i2")
    path = tmp_path / "a.bin"
    path.write_bytes(b"head!" + array.tobytes())
    data = BinaryDataset(path, ">i2", (2, 3), offset=5)
    assert len(data) == 6 and mapped(data.arrays[0])
    np.testing.assert_array_equal(data[4], array[4])
    [batch] = DataLoader(data, 3, sampler=[3, 4, 0])
    assert batch.dtype == vkml.int16
    np.testing.assert_array_equal(batch.numpy(), array[[3, 4, 0]])
    assert len(BinaryDataset(path, ">i2", (2, 3), 5, count=2)) == 2
    assert len(BinaryDataset(path, np.uint8, (), 77)) == 0
    assert data.item_name(3) == f"{path}, record 3"


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"shape": (5,)}, vkml.InvalidData, "no whole number of records of 10 bytes"),
        ({"offset": 80}, vkml.InvalidData, "72 bytes"),
        ({"shape": (6,), "count": 7}, vkml.InvalidData, "7 records of 12 bytes are wanted, 6 are there"),
        ({"shape": (0,)}, vkml.InvalidData, "record of 0"),
        ({"dtype": object}, vkml.InvalidData, "objects"),
        ({"offset": -1}, ValueError, "offset -1"),
    ],
)
def test_impossible_records(arguments: Any, error: type[Exception], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(72))
    with pytest.raises(error, match=said):
        BinaryDataset(path, **{"dtype": np.int16, **arguments})
    with pytest.raises(FileNotFoundError):
        BinaryDataset(tmp_path / "none", np.int16)
