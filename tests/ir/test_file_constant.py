"""Constants in mapped files: the same elements whenever they are asked for, and nothing held in between."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkml.errors import ModelChanged
from vkml.ir import Constant, Graph, Node, dtypes
from vkml.ir.file_constant import (
    OWNED_BYTES,
    FileConstant,
    files_of,
    owned,
    release_pages,
    settled,
    settled_graph,
)
from vkml.ir.graph import MadeConstant, PackedConstant
from vkml.ir.mapped_file import FileMapping, MappedFile, mapping_of

Array = np.ndarray[Any, Any]
NUMBERS = np.arange(OWNED_BYTES, dtype=np.float32).reshape(256, -1)


@pytest.fixture
def file(tmp_path: Path) -> MappedFile:
    """Three bytes, then the numbers."""
    path = tmp_path / "numbers"
    path.write_bytes(b"abc" + NUMBERS.tobytes())
    os.utime(path, (1e9, 1e9))
    return MappedFile(os.open(path, os.O_RDONLY), str(path))


def _array(file: MappedFile) -> Array:
    return np.frombuffer(file.view(), np.float32, offset=3).reshape(NUMBERS.shape)


def _constant(array: Array) -> Constant:
    return Constant(dtypes.FLOAT32, array.shape, array)


def _is_mapped(file: MappedFile) -> bool:
    gc.collect()
    return any(isinstance(each, FileMapping) and each.file is file for each in gc.get_objects())


VIEWS: dict[str, Callable[[Array], Array]] = {
    "whole": lambda array: array,
    "transposed": lambda array: array.T,
    "reversed": lambda array: array[::-1, 3:],
    "every other": lambda array: array[1:, ::2],
    "broadcast": lambda array: np.broadcast_to(array[:, None], (256, 3, 256)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_a_file_are_found_there_again(file: MappedFile, name: str) -> None:
    view = VIEWS[name]
    constant = settled(_constant(view(_array(file))))
    assert isinstance(constant, FileConstant) and files_of(_graph(constant)) == (file,)
    assert not _is_mapped(file)
    found = constant.array
    assert mapping_of(found) is not None and not found.flags.writeable
    np.testing.assert_array_equal(found, view(NUMBERS))
    assert constant.array.ctypes.data == found.ctypes.data
    assert settled(constant) is constant and _is_mapped(file)
    del found
    assert not _is_mapped(file)


def test_packed_ones_stay_packed_in_the_file(file: MappedFile) -> None:
    raw = np.frombuffer(file.view(), np.uint8, offset=3)
    packed = Constant(dtypes.UINT8, raw.shape, raw)
    given = PackedConstant(dtypes.UINT4, (256, 2 * raw.size // 256), packed)
    del raw, packed
    constant, copied = settled(given), settled(given, copies=True)
    del given
    assert files_of(_graph(constant)) == (file,) and files_of(_graph(copied)) == ()
    assert not _is_mapped(file)
    assert settled(constant) is constant and settled(copied) is copied  # what is one object stays one
    assert constant.data.tobytes() == copied.data.tobytes() == NUMBERS.tobytes()
    low, high = constant.array.reshape(-1, 2).astype(np.uint8).T
    np.testing.assert_array_equal(low | high << 4, np.frombuffer(NUMBERS.tobytes(), np.uint8))
    assert not _is_mapped(file)


def test_small_ones_and_copies_are_their_own(file: MappedFile) -> None:
    for constant in (
        settled(_constant(_array(file)[:3])),
        settled(_constant(_array(file)), copies=True),
        settled(_constant(owned(_array(file)))),
    ):
        assert type(constant) is Constant and mapping_of(constant.array) is None
        assert not constant.array.flags.writeable
        np.testing.assert_array_equal(constant.array, NUMBERS[: constant.shape[0]])
    in_memory = _constant(NUMBERS)
    assert settled(in_memory) is in_memory and owned(NUMBERS) is NUMBERS


def _graph(*constants: Constant, **attributes: Any) -> Graph:
    node = Node("Some", ("c0",), ("y",), attributes)
    return Graph((), (), (node,), {f"c{at}": constant for at, constant in enumerate(constants)})


def test_graphs_keep_what_is_one_object_one(file: MappedFile) -> None:
    constant = _constant(_array(file))
    inner = _graph(constant)
    graph = settled_graph(_graph(constant, constant, value=constant, bodies=(inner, inner), number=3))
    assert graph.constants["c0"] is graph.constants["c1"]
    assert isinstance(graph.constants["c0"], FileConstant)
    attributes = graph.nodes[0].attributes
    assert attributes["number"] == 3
    assert type(attributes["value"]) is Constant and mapping_of(attributes["value"].array) is None
    # Bodies run with plans, too: their weights stay in the file.
    assert attributes["bodies"][1].constants["c0"] is graph.constants["c0"]
    assert files_of(replace(graph, constants={})) == files_of(graph) == (file,)


def test_a_file_that_was_written_into_is_not_mapped_again(file: MappedFile) -> None:
    constant = settled(_constant(_array(file)))
    file.check()
    Path(file.path).write_bytes(bytes(3 + NUMBERS.nbytes))
    with pytest.raises(ModelChanged, match=r"numbers' has changed .*: it was written to\. .*copy_model"):
        _ = constant.array
    Path(file.path).write_bytes(b"abc")
    with pytest.raises(ModelChanged, match="it had 262147 bytes and has 3"):
        file.check()


def test_a_deleted_file_is_there_as_long_as_it_is_needed(file: MappedFile) -> None:
    constant = settled(_constant(_array(file)))
    Path(file.path).unlink()
    np.testing.assert_array_equal(constant.array, NUMBERS)


def test_descriptors_end_with_the_last_constant(file: MappedFile, tmp_path: Path) -> None:
    other = MappedFile(os.open(file.path, os.O_RDONLY), file.path)
    descriptor = other._descriptor
    constant = settled(_constant(_array(other)))
    del other
    gc.collect()
    os.fstat(descriptor)
    del constant
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(descriptor)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="says how much of a mapping is resident")
def test_pages_of_what_was_read_are_given_back(tmp_path: Path) -> None:
    """Those of a file alone; and what is read later is the same."""
    elements = np.arange(2 << 20, dtype=np.float32)
    path = tmp_path / "large"
    path.write_bytes(elements.tobytes())
    file = MappedFile(os.open(path, os.O_RDONLY), str(path))
    mapping = file.view()  # held, for what nobody looks at is mapped no more
    stored = settled(_constant(np.frombuffer(file.view(), np.float32)))

    def resident() -> int:
        entry = Path("/proc/self/smaps").read_text().partition(f"{path}\n")[2]
        return int(re.search(r"^Rss:\s+(\d+)", entry, re.MULTILINE)[1]) << 10  # type: ignore[index]

    made = MadeConstant(dtypes.FLOAT32, stored.shape, stored, lambda array: array * 2)
    for constant, factor in ((stored, 1), (made, 2)):
        np.testing.assert_array_equal(constant.array, elements * factor)
        assert resident() >= elements.nbytes
        release_pages(constant)
        assert resident() <= 1 << 16
        np.testing.assert_array_equal(constant.array, elements * factor)
    release_pages(_constant(elements.copy()))  # of no file
    assert len(mapping) == elements.nbytes
