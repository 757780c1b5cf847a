"""What children do to a model file while a session of it lives; for `test_changed_files`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import vkml
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes

Array = np.ndarray[Any, Any]
WIDTH = 256


def save(
    path: Path, seed: int, *, external: bool = False, rows: int | str = "rows", table: bool = True
) -> None:
    """output = relu(x · w + b), a product of packed weights; output_1 = table[ids], read where it lies.

    Without a table it is relu(ids).
    Times are set back, so that what is written after opening has later ones whatever the clock's tick.
    """
    random = np.random.default_rng(seed)
    sketch = Sketch("rewritten")
    x, ids = sketch.input("x", (rows, WIDTH)), sketch.input("ids", (rows,), dtypes.INT64)
    w = sketch.constant(random.standard_normal((WIDTH, WIDTH)).astype(np.float32))
    b = sketch.constant(random.standard_normal(WIDTH).astype(np.float32))
    y = sketch.node("Relu", sketch.node("Add", sketch.node("MatMul", x, w), b))
    if table:
        z = sketch.node("Gather", sketch.constant(random.standard_normal((1024, 64)).astype(np.float32)), ids)
    else:
        z = sketch.node("Relu", ids)
    graph = sketch.finish(y, z)
    vkml.onnx.save_graph(graph, path, external_data=external or None)
    for file in (path, data_of(path)):
        if file.exists():
            os.utime(file, (1e9, 1e9))
    wait_for_tick(path.parent)


def data_of(path: Path) -> Path:
    """The file of external data."""
    return path.with_name(path.name + ".data")


def wait_for_tick(folder: Path) -> None:
    """Returns once the file system's clock has moved on."""
    scratch = folder / "scratch"
    scratch.write_bytes(b"")
    first = scratch.stat().st_ctime_ns
    while scratch.stat().st_ctime_ns == first:
        time.sleep(0.001)
        os.utime(scratch)


def feed(rows: int) -> dict[str, Array]:
    x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
    return {"x": x, "ids": np.arange(rows) * 7}


def expected(path: Path, rows: int) -> list[Array]:
    """What a session of the file as it is now says, on the CPU."""
    with vkml.InferenceSession(path, devices="cpu") as session:
        return session.run(None, feed(rows))


def same(found: list[Array], wanted: list[Array]) -> bool:
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-3) for a, b in zip(found, wanted, strict=True))


def overwrite(path: Path) -> None:
    """Other content of the same size, written into the same files."""
    for file in (path, data_of(path)):
        if file.exists():
            file.write_bytes(bytes(255 - byte for byte in file.read_bytes()))


def overwrite_and_set_times_back(path: Path) -> None:
    was = path.stat()
    overwrite(path)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def overwrite_data(path: Path) -> None:
    """Only the external data."""
    data_of(path).write_bytes(bytes(data_of(path).stat().st_size))


def truncate(path: Path) -> None:
    """What a program that saves does first."""
    largest = max(
        (file for file in (path, data_of(path)) if file.exists()), key=lambda file: file.stat().st_size
    )
    os.truncate(largest, 0)


def replace_by_renaming(path: Path) -> None:
    other = path.with_name("other.onnx")
    save(other, 1)
    os.replace(other, path)


def delete(path: Path) -> None:
    path.unlink()


def rename_and_change_mode(path: Path) -> None:
    path.chmod(0o600)
    path.rename(path.with_name("elsewhere.onnx"))


def live_through(
    change: str,
    folder: Path,
    device: str,
    *,
    external: bool = False,
    copy_model: bool = False,
    table: bool = True,
    rows: int | str = "rows",
    lengths: int = 1,
) -> dict[str, Any]:
    """What runs of a session say after a change: of a shape planned before it, and of a new one.

    From two `lengths` before it on there is a plan for all.

    Also whether the session mapped the file before the change.
    """
    path = folder / "model.onnx"
    save(path, 0, external=external, rows=rows, table=table)
    sizes = (32, 48, 64)[: 1 + lengths] if isinstance(rows, str) else (rows,)
    wanted = {size: expected(path, size) for size in sizes}
    options = vkml.SessionOptions(copy_model=copy_model)
    with vkml.InferenceSession(path, options, devices=device) as session:
        known, *new = sizes[0], *sizes[lengths:]
        for size in sizes[:lengths]:
            assert same(session.run(None, feed(size)), wanted[size])
        found: dict[str, Any] = {"mapped": is_mapped(path) or is_mapped(data_of(path))}
        globals()[change](path)
        for name, sizes in (("new", new), ("known", [known])):
            for size in sizes:
                found[name] = outcome(session, size, wanted[size])
    return found


def outcome(session: vkml.InferenceSession, rows: int, wanted: list[Array]) -> str:
    """``right``, ``wrong`` or the error's name."""
    try:
        return "right" if same(session.run(None, feed(rows)), wanted) else "wrong"
    except vkml.Error as error:
        return type(error).__name__


def is_mapped(path: Path) -> bool:
    """Whether the process maps the file, where the system tells."""
    maps = Path("/proc/self/maps")
    return maps.exists() and any(line.endswith(str(path)) for line in maps.read_text().splitlines())
