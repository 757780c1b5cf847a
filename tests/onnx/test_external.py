"""External data: read in place from the model's folder, and from nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import vkml.onnx
from tests.onnx import models
from vkml.errors import InvalidArgument, InvalidGraph, NoSuchFile

EXPECTED = np.arange(6, dtype=np.float32).reshape(2, 3)


def write(folder, location="weights.bin", **entries) -> str:
    """A model with external data and their file; `entries` replace the stated offset and length."""
    made, data = models.external(location)
    for entry in made.graph.initializer[0].external_data:
        entry.value = entries.get(entry.key, entry.value)
    path = folder / "model.onnx"
    onnx.save(made, path)
    (folder / "weights.bin").write_bytes(data)
    return str(path)


def weight(path, **options):
    return vkml.onnx.open(path, **options).tensors()["w"].array()


def test_view_of_the_file(tmp_path):
    opened = vkml.onnx.open(write(tmp_path))
    tensor = opened.tensors()["w"]
    array = tensor.array()
    assert tensor.is_external
    np.testing.assert_array_equal(array, EXPECTED)
    assert not array.flags.writeable
    assert np.shares_memory(array, tensor.array())
    # Two readings of a mapped file agree on the address; a copy would not.
    assert array.ctypes.data == tensor.array().ctypes.data
    graph = vkml.onnx.load_graph(opened)
    assert graph.constants["w"].array.ctypes.data == array.ctypes.data
    opened.close()
    del opened, tensor
    np.testing.assert_array_equal(array, EXPECTED)


def test_in_a_folder_below(tmp_path):
    path = write(tmp_path, "parts/./weights.bin")
    (tmp_path / "parts").mkdir()
    (tmp_path / "weights.bin").rename(tmp_path / "parts" / "weights.bin")
    np.testing.assert_array_equal(weight(path), EXPECTED)


def test_length_may_be_absent(tmp_path):
    np.testing.assert_array_equal(weight(write(tmp_path, length="")), EXPECTED)


def test_as_bytes(tmp_path):
    data = Path(write(tmp_path)).read_bytes()
    with pytest.raises(InvalidArgument, match=r"'w'.*base_directory"):
        vkml.onnx.load_graph(data)
    np.testing.assert_array_equal(weight(data, base_directory=tmp_path), EXPECTED)
    with pytest.raises(InvalidArgument, match="is not a folder"):
        vkml.onnx.open(data, base_directory=tmp_path / "nowhere")


def test_files_of_the_onnx_package(tmp_path):
    made = models.plain()
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    np.testing.assert_array_equal(weight(tmp_path / "m.onnx"), EXPECTED)


@pytest.mark.parametrize(
    "location",
    [
        "../weights.bin",
        "a/../../weights.bin",
        "..\\weights.bin",
        "/etc/hostname",
        "\\weights.bin",
        "C:\\w",
        "c:w",
        "a\0b",
    ],
)
def test_locations_that_leave_the_folder(tmp_path, location):
    folder = tmp_path / "inner"
    folder.mkdir()
    path = write(folder, location)
    (tmp_path / "weights.bin").write_bytes((folder / "weights.bin").read_bytes())
    with pytest.raises(InvalidGraph, match=r"'w': external data at .* refused"):
        weight(path)


def test_no_location(tmp_path):
    with pytest.raises(InvalidGraph, match="no location"):
        weight(write(tmp_path, ""))


def test_missing_file(tmp_path):
    with pytest.raises(NoSuchFile, match=r"'w': its data file 'other.bin' is not in"):
        weight(write(tmp_path, "other.bin"))
    with pytest.raises(NoSuchFile):
        weight(write(tmp_path, "weights.bin/other.bin"))


def test_links(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    path = write(folder, "link.bin")
    (folder / "link.bin").symlink_to("weights.bin")
    np.testing.assert_array_equal(weight(path), EXPECTED)
    (folder / "link.bin").unlink()
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(InvalidGraph, match="link leads out"):
        weight(path)
    (folder / "link.bin").unlink()
    (folder / "link.bin").symlink_to("link.bin")
    with pytest.raises(InvalidGraph, match="refused"):
        weight(path)
    write(folder, "way/weights.bin")
    (folder / "way").symlink_to(tmp_path)
    with pytest.raises(InvalidGraph, match="link leads out"):
        weight(path)


def test_download_cache_in_which_every_file_is_a_link(tmp_path):
    blobs, names = tmp_path / "blobs", tmp_path / "names"
    blobs.mkdir()
    names.mkdir()
    write(blobs)
    for given, stored in (("model.onnx", "model.onnx"), ("weights.bin", "weights.bin")):
        (blobs / stored).rename(blobs / f"hash-of-{stored}")
        (names / given).symlink_to(blobs / f"hash-of-{stored}")
    np.testing.assert_array_equal(weight(names / "model.onnx"), EXPECTED)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes exist on POSIX systems only")
def test_things_that_are_no_files(tmp_path):
    path = write(tmp_path, "pipe")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidGraph, match="not a regular file"):
        weight(path)
    path = write(tmp_path, "folder")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidGraph, match="not a regular file"):
        weight(path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "-4"}, "no byte count"),
        ({"offset": "0x4"}, "no byte count"),
        ({"offset": "٣"}, "no byte count"),
        ({"offset": "9" * 5000}, "no byte count"),
        ({"offset": "18446744073709551612"}, "cut short"),
        ({"offset": "10"}, "bytes 10 to 34 of 'weights.bin', which has 33"),
        ({"length": "23"}, "length of 23"),
        ({"length": "9223372036854775807"}, "length of"),
    ],
)
def test_bad_ranges(tmp_path, entries, message):
    with pytest.raises(InvalidGraph, match=message):
        weight(write(tmp_path, **entries))


def test_empty_file_and_huge_shape(tmp_path):
    path = write(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(InvalidGraph, match="has 0"):
        weight(path)
    made, _ = models.external()
    made.graph.initializer[0].dims[:] = [2**40, 3]
    made.graph.initializer[0].external_data[2].value = ""
    onnx.save(made, path)
    with pytest.raises(InvalidGraph, match="cut short"):
        weight(path)


def test_external_attribute_tensors(tmp_path):
    made, data = models.external()
    constant = onnx.helper.make_node("Constant", [], ["w"])
    constant.attribute.add(name="value", type=4).t.CopyFrom(made.graph.initializer[0])
    del made.graph.initializer[:]
    made.graph.node.insert(0, constant)
    onnx.save(made, tmp_path / "model.onnx")
    (tmp_path / "weights.bin").write_bytes(data)
    graph = vkml.onnx.load_graph(tmp_path / "model.onnx")
    np.testing.assert_array_equal(graph.nodes[0].attributes["value"].array, EXPECTED)


def test_external_strings_are_refused(tmp_path):
    made, data = models.external()
    made.graph.initializer[0].data_type = TensorProto.STRING
    onnx.save(made, tmp_path / "model.onnx")
    (tmp_path / "weights.bin").write_bytes(data)
    with pytest.raises(InvalidGraph, match="strings"):
        weight(tmp_path / "model.onnx")
    assert numpy_helper.to_array(models.plain().graph.initializer[0]).shape == (2, 3)
