"""What a model does not use is not imported: which family has which operator is a table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vkml
import vkml.ops
from vkml.ops.families import OPERATORS

_CHECK = """
import importlib, os, pkgutil, sys
import vkml.ops
from vkml.ir.operator import REGISTRY
from vkml.ops.families import OPERATORS

assert not REGISTRY._entered, "importing the package imports no family"
failed = 0
for family in OPERATORS:
    child = os.fork()
    if not child:
        importlib.import_module(f"vkml.ops.{family}")
        here = {key for key, home in REGISTRY._homes.items() if home == f"vkml.ops.{family}"}
        missing = sorted(here - REGISTRY._entered.keys())
        if missing:
            print(family, "does not enter", missing)
        os._exit(bool(missing))
    failed += os.waitpid(child, 0)[1] != 0
for module in pkgutil.iter_modules(vkml.ops.__path__):
    importlib.import_module(f"vkml.ops.{module.name}")
unstated = sorted(REGISTRY._entered.keys() - REGISTRY._homes.keys())
if unstated:
    print("not in the table:", unstated)
sys.exit(bool(failed or unstated))
"""
_PLAIN = """
import sys
import numpy as np
import vkml
session = vkml.InferenceSession(sys.argv[1], devices=sys.argv[2])
session.run(None, {each.name: np.zeros(each.shape, np.float32) for each in session.get_inputs()})
print(" ".join(sys.modules))
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(vkml.__path__[0]).parent)
    program = f"import sys; sys.path.insert(0, {source!r})\n{arguments[0]}"
    return subprocess.run([sys.executable, "-c", program, *arguments[1:]], capture_output=True, text=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_the_table_states_who_enters_each_operator() -> None:
    done = _run(_CHECK)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_plain_model_imports_what_it_needs(device_name: str, tmp_path: Path) -> None:
    from benchmarks.models import mnist_like
    from vkml.onnx import save_graph

    (tmp_path / "model.onnx").write_bytes(save_graph(mnist_like()))
    done = _run(_PLAIN, str(tmp_path / "model.onnx"), device_name)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    imported = {name.removeprefix("vkml.ops.") for name in modules} & OPERATORS.keys()
    assert "conv" in imported and "elementwise" in imported
    unlike = {"experts", "labels", "linear_algebra", "recurrent", "string_extensions", "training"}
    assert not imported & unlike
    assert len(imported) < len(OPERATORS) // 3, sorted(imported)
    assert "ml_dtypes" not in modules
    kernels = {f"vkml.kernels.{name}" for name in ("attention", "byte_product", "recurrent", "rows", "scan")}
    assert not modules & kernels


def test_functions_keep_their_names_where_modules_have_them_too() -> None:
    import vkml.ops.matmul
    import vkml.ops.softmax

    assert callable(vkml.ops.matmul) and callable(vkml.ops.softmax)
