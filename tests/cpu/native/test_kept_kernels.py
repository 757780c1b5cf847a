"""Kernels on disk: read instead of written, for equal arguments and the same sources alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.onnx
from vkml.cpu.native import kept_kernels
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.cpu.native.expression import Expression, Step
from vkml.cpu.native.kept_kernels import kept_kernel, place_on_disk, save_new_kernels
from vkml.cpu.native.kernel import Kernel
from vkml.engine.sketch import Sketch
from vkml.lowering.kept import forget_lowerings
from vkml.vulkan import cache


@dataclass(frozen=True)
class Shape:
    """As kernels have them."""

    instructions: InstructionSet
    rows: int | float
    taps: tuple[int, ...] = ()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_new() -> Iterator[None]:
    """What other tests have written is not added to this one's entries."""
    kept_kernels._new.forget()
    yield
    kept_kernels._new.forget()


def write(shape: Shape, *, label: str = "größer") -> Kernel:
    """Stands for a function that writes code."""
    return Kernel(label, f"{shape.rows} {shape.taps}".encode(), 192)


def process() -> tuple[Callable[..., Kernel], list[Shape]]:
    """`write` as a process that has just begun has it, and what it writes for; the one before ends."""
    save_new_kernels()
    written: list[Shape] = []

    def writer(shape: Shape, *, label: str = "größer") -> Kernel:
        written.append(shape)
        return write(shape, label=label)

    writer.__module__, writer.__qualname__ = write.__module__, write.__qualname__
    return kept_kernel(4)(writer), written


def test_a_kernel_is_written_once_for_all_processes() -> None:
    shape = Shape(InstructionSet.AVX2, 3, (1, 2))
    first, written = process()
    made = first(shape)
    assert first(shape) is made and written == [shape]
    second, written_anew = process()
    assert second(shape) == made == write(shape) and written_anew == []
    assert second(shape, label="other").label == "other" and written_anew == [shape]


def test_kernels_for_other_arguments_are_others() -> None:
    avx2, avx512 = InstructionSet.AVX2, InstructionSet.AVX512
    shapes = [
        Shape(avx2, 1),
        Shape(avx512, 1),
        Shape(avx2, 1.0),
        Shape(avx2, True),
        Shape(avx2, 0.0),
        Shape(avx2, -0.0),
        Shape(avx2, 1, (12, 3)),
        Shape(avx2, 1, (1, 23)),
        Shape(avx2, 1, (1,)),
    ]
    steps = [Step("constant", (), number) for number in (0.0, -0.0, 1.0)]
    expressions = [Expression(0, (step,), (0,)) for step in steps]
    given: list[object] = [*shapes, *expressions, "1", 1, b"1", None, (1,), ((1,),), ("1",), (), ((), ())]
    names = [place_on_disk(write, (each,), {}) for each in given]
    assert None not in names and len({*names}) == len(given)
    assert place_on_disk(write, (1,), {}) != place_on_disk(process, (1,), {})  # type: ignore[arg-type]
    assert place_on_disk(write, (), {"rows": 1}) != place_on_disk(write, (), {"taps": 1})


def test_what_cannot_be_spelt_out_is_not_looked_for() -> None:
    assert place_on_disk(write, (Shape(InstructionSet.AVX2, np.int64(3)),), {}) is None
    assert place_on_disk(write, ([1],), {}) is None
    kept, written = process()
    kept(Shape(InstructionSet.AVX2, np.int64(3)))
    save_new_kernels()
    assert len(written) == 1 and cache.usage() == (0, 0)


def test_code_of_other_sources_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(InstructionSet.AVX2, 3)
    process()[0](shape)
    monkeypatch.setattr(kept_kernels, "_sources", lambda: "changed")
    kept, written = process()
    kept(shape)
    assert written == [shape]


def test_the_digest_sees_every_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_kernels, "__file__", str(tmp_path / "kept_kernels.py"))
    found = []
    for content in ("", "a = 1", "a = 2"):
        (tmp_path / "product.py").write_text(content)
        found.append(kept_kernels._sources.__wrapped__())
    (tmp_path / "product.py").rename(tmp_path / "products.py")
    found.append(kept_kernels._sources.__wrapped__())
    assert len({*found}) == 4


def test_a_damaged_entry_is_written_anew(own_cache: Path) -> None:
    shape = Shape(InstructionSet.AVX2, 3)
    made = process()[0](shape)
    save_new_kernels()
    [entry] = [path for path in own_cache.rglob("*") if path.is_file()]
    content = bytearray(entry.read_bytes())
    content[-1] ^= 1
    entry.write_bytes(content)
    kept, written = process()
    assert kept(shape) == made and written == [shape]
    assert process()[0](shape) == made


def test_an_entry_holds_so_much_and_the_oldest_kernels_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [Shape(InstructionSet.AVX2, number) for number in range(20)]
    place = "native/x/00"
    monkeypatch.setattr(kept_kernels, "place_on_disk", lambda w, a, n: (place, bytes([a[0].rows] * 32)))
    length = len(kept_kernels._packed(write(shapes[10]))) + kept_kernels._RECORD.size
    monkeypatch.setattr(kept_kernels, "_ENTRY_BYTES", 5 * length)
    for shape in shapes:
        process()[0](shape)
    save_new_kernels()
    held = kept_kernels._kernels(place)
    assert [key[0] for key in held] == [15, 16, 17, 18, 19]
    kept, written = process()
    assert kept(shapes[17]) == write(shapes[17]) and written == []
    monkeypatch.setattr(kept_kernels, "_ENTRY_BYTES", length - 1)  # too small for any
    assert process()[0](shapes[11]) == write(shapes[11])
    save_new_kernels()
    assert not kept_kernels._kernels(place)


def test_a_process_stores_only_so_much_and_only_where_it_looked(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, other = Shape(InstructionSet.AVX2, 3), Shape(InstructionSet.AVX2, 4)
    kept, _ = process()
    kept(shape)
    monkeypatch.setenv("VKML_CACHE_DIR", str(own_cache / "elsewhere"))
    save_new_kernels()
    assert cache.usage() == (0, 0)
    kept, _ = process()
    monkeypatch.setattr(kept_kernels, "_NEW_BYTES", len(kept_kernels._packed(write(shape))))
    kept(shape)
    kept(other)
    assert process()[0](shape) == write(shape)
    again, written = process()
    again(shape)
    again(other)
    assert written == [other]


def test_kernels_are_stored_as_the_process_ends_but_for_those_of_its_parent(own_cache: Path) -> None:
    source = (
        "import os\n"
        "from vkml.cpu.native.executable import InstructionSet\n"
        "from vkml.cpu.native.gather import _kernel\n"
        "_kernel(InstructionSet.AVX2, 3, 64, False, False, 0)\n"
        "child = os.fork()\n"
        "if child: os.waitpid(child, 0); _kernel(InstructionSet.AVX2, 4, 64, False, False, 0)\n"
        "else: print(len(__import__('vkml.cpu.native.kept_kernels').cpu.native.kept_kernels._new._kernels))\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    files = [path for path in own_cache.rglob("*") if path.is_file()]
    assert len(files) == 2


def test_without_a_cache_kernels_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "folder", lambda: None)
    kept, written = process()
    assert kept(Shape(InstructionSet.AVX2, 3)).scratch_bytes == 192 and len(written) == 1


def test_the_arguments_of_real_kernels_are_spelt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all kernels of a few models: none is written anew in the next process."""
    if instruction_set() is None:
        pytest.skip("no machine code here")
    names: list[tuple[str, bytes] | None] = []
    real = kept_kernels.place_on_disk

    def named(*given: Any) -> tuple[str, bytes] | None:
        names.append(real(*given))
        return names[-1]

    monkeypatch.setattr(kept_kernels, "place_on_disk", named)
    for model in (_image_model(), _row_model()):
        for _ in range(2):
            written, before = cache.usage()[0], len(names)
            _forget_kernels()
            with vkml.InferenceSession(model, devices="cpu"):
                pass
            save_new_kernels()
            found = names[before:]
            assert found and None not in found
        assert cache.usage()[0] == written > 0


def _forget_kernels() -> None:
    forget_lowerings()
    for name, module in list(sys.modules.items()):
        if name.startswith("vkml.cpu.native."):
            for each in vars(module).values():
                if hasattr(each, "cache_clear") and each is not instruction_set:
                    each.cache_clear()


def _image_model() -> bytes:
    sketch = Sketch("images")
    x = sketch.input("x", (1, 3, 12, 12))
    y = sketch.node("Conv", x, sketch.constant(np.ones((8, 3, 5, 5), np.float32)), kernel_shape=(5, 5))
    y = sketch.node("Conv", y, sketch.constant(np.ones((8, 1, 3, 3), np.float32)), group=8)
    y = sketch.node("MaxPool", sketch.node("Sigmoid", y), kernel_shape=(2, 2))
    return _saved(sketch, y)


def _row_model() -> bytes:
    sketch = Sketch("rows")
    x = sketch.input("x", (6, 40))
    y = sketch.node("MatMul", x, sketch.constant(np.ones((40, 40), np.float32)))
    y = sketch.node("Softmax", sketch.node("Transpose", y, perm=(1, 0)), axis=-1)
    y = sketch.node("Gather", y, sketch.constant(np.array([2, 1])), axis=0)
    y = sketch.node("Transpose", sketch.node("ReduceMean", y, sketch.constant(np.array([1]))), perm=(1, 0))
    return _saved(sketch, sketch.node("Mul", y, y))


def _saved(sketch: Sketch, *outputs: str) -> bytes:
    model = vkml.onnx.save_graph(sketch.finish(*outputs))
    assert model is not None
    return model
