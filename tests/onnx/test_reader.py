"""Opening models: what the header says, how long the file stays mapped, and files that are no models."""

from __future__ import annotations

import dataclasses
import gc
import io
import mmap
import os
import subprocess
import sys
import weakref
import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest

import vkml.onnx
from tests.onnx import models
from vkml.errors import InvalidArgument, InvalidGraph, InvalidProtobuf, NoModel, NoSuchFile
from vkml.onnx import messages, wire


@pytest.fixture
def path(tmp_path):
    onnx.save(models.plain(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_header(path):
    with vkml.onnx.open(path) as model:
        assert model.ir_version == 8
        assert (model.producer, model.producer_version) == ("tests", "1.5")
        assert (model.domain, model.model_version, model.doc_string) == ("org.example", 7, "a model")
        assert model.opsets == {"": 17}
        assert model.metadata == {"author": "nobody", "größe": "klein"}
        assert [node.op_type for node in model.graph.node] == ["Add", "Relu"]
        assert model.functions == ()
        assert list(model.tensors()) == ["w"]
        assert model.label in repr(model)


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, str, os.fspath])
def test_forms_of_source(path, form):
    source = form(path) if form in (str, os.fspath) else form(path.read_bytes())
    np.testing.assert_array_equal(
        vkml.onnx.open(source).tensors()["w"].array(), np.arange(6, dtype=np.float32).reshape(2, 3)
    )


@pytest.mark.parametrize(
    "view", [lambda owner: owner, memoryview, lambda owner: memoryview(owner).toreadonly()]
)
def test_bytes_that_may_change_are_copied(path, view):
    owner = bytearray(path.read_bytes())
    model = vkml.onnx.open(view(owner))
    array = model.tensors()["w"].array()
    owner[:] = bytes(len(owner))
    owner.append(0)  # a view of it would not let it grow
    np.testing.assert_array_equal(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    assert model.graph.node[0].op_type == "Add"


def test_views_of_mappings_are_copied(path):
    """A read-only view says nothing of the mapping itself, nor a read-only mapping of its file."""
    data = path.read_bytes()
    with mmap.mmap(-1, len(data)) as owner:
        owner[:] = data
        array = vkml.onnx.open(memoryview(owner).toreadonly()).tensors()["w"].array()
        owner[:] = bytes(len(data))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as owner:
        mapped = vkml.onnx.open(memoryview(owner)).tensors()["w"].array()
        path.write_bytes(bytes(len(data)))
    for each in (array, mapped):
        np.testing.assert_array_equal(each, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_bytes_that_cannot_change_are_not_copied(path):
    data = path.read_bytes()
    for source in (data, memoryview(data)):
        assert vkml.onnx.open(source)._bytes().obj is data


def _zip_of(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "x")
    return file.getvalue()


FOREIGN = {
    "PyTorch": (_zip_of("archive/data.pkl"), "torch.onnx.export"),
    "Keras": (_zip_of("metadata.json"), "tf2onnx"),
    "NumPy's arrays": (_zip_of("weight.npy"), "give the .onnx file"),
    "zip archive": (_zip_of("model.onnx"), "unpack it"),
    "pickle": (b"\x80\x04}q\x00.", "torch.onnx.export"),
    "GGUF": (b"GGUF\x03\0\0\0", "weights without the model's graph"),
    "safetensors": ((2).to_bytes(8, "little") + b"{}", "weights without the model's graph"),
    "HDF5": (b"\x89HDF\r\n\x1a\n", "tf2onnx"),
    "TensorFlow Lite": (b"\x1c\0\0\0TFL3", "tf2onnx"),
    "NumPy": (b"\x93NUMPY\x01\0", "give the .onnx file"),
    "PNG": (b"\x89PNG\r\n\x1a\n", "give the .onnx file"),
    "JPEG": (b"\xff\xd8\xff\xe0", "give the .onnx file"),
    "TIFF": (b"II*\0\x08\0\0\0", "give the .onnx file"),
    "BMP": (b"BM\x8a\0\0\0\0\0\0\0\x8a\0\0\0", "give the .onnx file"),
    "HTML": (b"\n<!DOCTYPE html><html><body>", "download the file itself"),
    "gzip": (b"\x1f\x8b\x08\0", "unpack it"),
    "text file": (b'{"error": "not found"}', "binary form"),
    "a text": (b"Repository not found.\n", "binary form"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_are_no_models_are_named(tmp_path, name):
    data, advice = FOREIGN[name]
    (tmp_path / "model").write_bytes(data + bytes(64 if data[0] > 127 else 0))
    with pytest.raises(InvalidProtobuf, match=f"model is .*{name}.*, not an ONNX model; .*{advice}"):
        vkml.onnx.open(tmp_path / "model")


def test_metadata_is_what_onnxruntime_reports(path):
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_modelmeta()
    ours = vkml.onnx.open(path).describe()
    for field in dataclasses.fields(ours):
        assert getattr(ours, field.name) == getattr(theirs, field.name), field.name


def test_nothing_but_the_header_is_decoded_on_opening():
    made = models.plain()
    made.graph.node[0].op_type = "marker"
    data = made.SerializeToString().replace(b"marker", b"\xff" * 6)
    model = vkml.onnx.open(data)
    assert model.opsets == {"": 17}
    with pytest.raises(InvalidProtobuf, match="not UTF-8"):
        _ = model.graph


def test_arrays_outlive_the_model_and_the_mapping_ends_with_the_last(path):
    model = vkml.onnx.open(path)
    mapping = weakref.ref(model._bytes().obj)
    array = model.tensors()["w"].array()
    model.close()
    model.close()
    del model
    gc.collect()
    assert mapping() is not None
    assert array.sum() == 15
    del array
    gc.collect()
    assert mapping() is None


def test_closed_model(path):
    with vkml.onnx.open(path) as model:
        pass
    with pytest.raises(InvalidArgument, match="closed"):
        _ = model.graph


def test_graph_in_pieces_is_merged():
    made = models.plain()
    extra = onnx.ModelProto()
    extra.graph.node.add(op_type="Neg", input=["y"], output=["z"])
    model = vkml.onnx.open(made.SerializeToString() + extra.SerializeToString())
    assert [node.op_type for node in model.graph.node] == ["Add", "Relu", "Neg"]
    np.testing.assert_array_equal(model.tensors()["w"].array().ravel(), np.arange(6))


def test_duplicate_initializer():
    made = models.plain()
    made.graph.initializer.append(made.graph.initializer[0])
    with pytest.raises(InvalidGraph, match="two initializers have the name 'w'"):
        vkml.onnx.open(made.SerializeToString()).tensors()


def test_no_such_file(tmp_path):
    with pytest.raises(NoSuchFile, match=r"no model file '.*nothing\.onnx'"):
        vkml.onnx.open(tmp_path / "nothing.onnx")
    with pytest.raises(FileNotFoundError):
        vkml.onnx.load_graph("nothing/at/all.onnx")


def test_things_that_are_no_model(tmp_path):
    with pytest.raises(NoModel, match="directory"):
        vkml.onnx.open(tmp_path)
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(NoModel, match="is empty"):
        vkml.onnx.open(tmp_path / "empty.onnx")
    with pytest.raises(NoModel, match="is empty"):
        vkml.onnx.open(b"")
    with pytest.raises(NoModel, match="null"):
        vkml.onnx.open("a\0b")
    with pytest.raises(InvalidArgument, match="a path or bytes, not int"):
        vkml.onnx.open(3)
    with pytest.raises(InvalidProtobuf, match="git lfs pull"):
        vkml.onnx.open(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(InvalidProtobuf):
        vkml.onnx.open(b"<!DOCTYPE html><html></html>")
    with pytest.raises(InvalidProtobuf, match="no graph"):
        vkml.onnx.open(onnx.ModelProto(ir_version=8).SerializeToString())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes exist on POSIX systems only")
def test_named_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(NoModel, match="not a regular file"):
        vkml.onnx.open(tmp_path / "pipe.onnx")


def test_truncated_at_every_byte():
    made = models.plain()
    # The imports are what is written last then, so that no shorter file can be a model.
    del made.metadata_props[:]
    data = made.SerializeToString()
    vkml.onnx.load_graph(data)
    for length in range(1, len(data)):
        with pytest.raises((InvalidProtobuf, InvalidGraph)):
            vkml.onnx.load_graph(data[:length])


@pytest.mark.parametrize(
    ("opsets", "message"),
    [
        ([("", 17), ("ai.onnx", 18)], "two versions"),
        ([("", 0)], "does not exist"),
        ([("x", -4)], "does not exist"),
    ],
)
def test_bad_opsets(opsets, message):
    made = models.plain()
    del made.opset_import[:]
    for domain, version in opsets:
        made.opset_import.add(domain=domain, version=version)
    with pytest.raises(InvalidGraph, match=message):
        _ = vkml.onnx.open(made.SerializeToString()).opsets


def test_old_files_without_imports_have_opset_one():
    made = models.plain()
    made.ir_version = 2
    del made.opset_import[:]
    assert vkml.onnx.open(made.SerializeToString()).opsets == {"": 1}


def test_file_over_two_gib(tmp_path):
    # A sparse file: the tensor's bytes take no room on disk and are never read.
    size = (1 << 31) + 1024
    tensor = wire.encode_message(
        messages.TENSOR, messages.TensorProto(dims=(size,), data_type=2, name="big", raw_data=b"?")
    )[0]
    head = b"".join(tensor)[: -len(b"\x01?")] + wire.encode_varint(size)
    graph = b"\x2a" + wire.encode_varint(len(head) + size)
    made = models.plain()
    made.ClearField("graph")
    with open(tmp_path / "big.onnx", "wb") as stream:
        stream.write(b"\x3a" + wire.encode_varint(len(graph) + len(head) + size) + graph + head)
        stream.seek(size - 1, os.SEEK_CUR)
        stream.write(b"\x09" + made.SerializeToString())
    model = vkml.onnx.open(tmp_path / "big.onnx")
    array = model.tensors()["big"].array()
    assert array.shape == (size,)
    assert (array[0], array[-1]) == (0, 9)
    assert model.producer == "tests"


def test_import_needs_numpy_only():
    script = (
        "import sys, vkml.onnx; heavy = {'onnx', 'cffi', 'rich', 'click', 'scipy'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
