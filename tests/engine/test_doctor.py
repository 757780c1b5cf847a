"""The facts that the doctor collects of an installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from vkml.engine import doctor
from vkml.vulkan import cache


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    (tmp_path / "photo.jpg").write_bytes(bytes(5000))
    cache.write("spirv/ab/x", bytes(3 << 20))
    assert dict(doctor.facts())["cache folder"] == f"{tmp_path} (1 entry, 3.0 MiB)"
    cache.write("spirv/ab/y", b"")
    assert dict(doctor.facts())["cache folder"] == f"{tmp_path} (2 entries, 3.0 MiB)"
    monkeypatch.setattr(cache, "folder", lambda: None)
    assert dict(doctor.facts())["cache folder"].startswith("none: there is no home folder")
