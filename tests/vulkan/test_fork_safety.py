"""What a forked child does with its parent's open files of a driver."""

import os
from pathlib import Path

import pytest

from vkml.vulkan.fork_safety import leave_files

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc/self/fd on this system")


def test_files_that_are_left_keep_their_numbers_and_show_nothing(tmp_path: Path) -> None:
    (tmp_path / "driver0").write_text("the parent's")
    (tmp_path / "other").write_text("ours")
    before = len(os.listdir("/proc/self/fd"))
    with (tmp_path / "driver0").open() as driver, (tmp_path / "other").open() as other:
        leave_files(str(tmp_path / "driver"))
        assert os.readlink(f"/proc/self/fd/{driver.fileno()}") == os.devnull
        assert (driver.read(), other.read()) == ("", "ours")
    assert len(os.listdir("/proc/self/fd")) == before
