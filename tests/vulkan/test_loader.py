"""Finding the Vulkan loader, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vulkan.helpers import run_python

READ_ONLY = """
import ctypes, sys, tempfile

def refuse(*_):
    raise FileNotFoundError(2, "No usable temporary directory found")

started = []
tempfile.gettempdir = refuse
sys.addaudithook(lambda event, _: started.append(event) if event == "subprocess.Popen" else None)
if {is_missing}:
    load = ctypes.CDLL.__init__

    def without_vulkan(self, name, *rest, **options):
        if "vulkan" in str(name):
            raise OSError(f"{{name}}: cannot open shared object file")
        load(self, name, *rest, **options)

    ctypes.CDLL.__init__ = without_vulkan

import numpy as np
import vkml
from tests.robustness.models import product

with vkml.InferenceSession(product(), devices="auto") as session:
    print(session.run(None, {{"x": np.ones((1, 4), np.float32)}})[0].tolist())
if {is_missing}:
    assert vkml.devices()[0].name == "cpu"
print(started)
"""


@pytest.mark.parametrize("is_missing", [False, True], ids=["loader", "no loader"])
def test_no_folder_for_temporary_files(tmp_path: Path, is_missing: bool) -> None:
    """As in a container whose file systems are read-only; and nothing runs compilers to find a library."""
    environment = {"VKML_CACHE_DIR": "/dev/null/nowhere", "VKML_VULKAN_LIBRARY": ""}
    done = run_python(READ_ONLY.format(is_missing=is_missing), tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[-2.0, 2.0, 6.0]]\n[]\n"
