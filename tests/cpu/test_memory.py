"""Free memory as a machine and the control groups of a process state it, in file systems made up here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from vkml.cpu.memory import MemoryBudget, free_memory

MIB = 1 << 20
UNLIMITED_V1 = 9223372036854771712
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory"


def machine(root: Path, membership: str, mounts: str, available: int = 1000 * MIB) -> None:
    proc = root / "proc"
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:  {available // 1024} kB\n")
    (proc / "self/cgroup").write_text(membership + "\n" * bool(membership))
    (proc / "self/mountinfo").write_text(mounts + "\n")


def group(root: Path, path: str, files: Mapping[str, object]) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def v2(limit: int | str, used: int, cached: int = 0) -> dict[str, object]:
    stat = f"anon 5\nfile 7\ninactive_anon 3\ninactive_file {cached}"
    return {"memory.max": limit, "memory.current": used, "memory.stat": stat}


def v1(limit: int, used: int, cached: int = 0, hierarchy: int = 1) -> dict[str, object]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": used,
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {cached}",
        "memory.use_hierarchy": hierarchy,
    }


def test_a_machine_without_groups(tmp_path: Path) -> None:
    machine(tmp_path, "", "22 27 0:21 / /proc rw - proc proc rw")
    assert free_memory(tmp_path) == 1000 * MIB


def test_a_system_that_states_nothing(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None


def test_the_own_group_below_the_root(tmp_path: Path) -> None:
    machine(tmp_path, "0::/user.slice/job.scope", V2_MOUNT)
    group(tmp_path, "sys/fs/cgroup/user.slice/job.scope", v2(300 * MIB, 100 * MIB, 20 * MIB))
    group(tmp_path, "sys/fs/cgroup/user.slice", v2("max", 500 * MIB))
    assert free_memory(tmp_path) == 220 * MIB


@pytest.mark.parametrize("tightest", ["a", "a/b", "a/b/c"])
def test_the_tightest_of_all_groups_above(tmp_path: Path, tightest: str) -> None:
    machine(tmp_path, "0::/a/b/c", V2_MOUNT)
    for path in ("a", "a/b", "a/b/c"):
        left = 50 * MIB if path == tightest else 400 * MIB
        group(tmp_path, f"sys/fs/cgroup/{path}", v2(left + MIB, MIB))
    assert free_memory(tmp_path) == 50 * MIB


def test_unlimited_groups_leave_it_to_the_machine(tmp_path: Path) -> None:
    machine(tmp_path, "0::/a\n4:memory:/b", f"{V2_MOUNT}\n{V1_MOUNT}")
    group(tmp_path, "sys/fs/cgroup/a", v2("max", 1))
    group(tmp_path, "sys/fs/cgroup/memory/b", v1(UNLIMITED_V1, 5))
    assert free_memory(tmp_path) == 1000 * MIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    machine(tmp_path, "0::/a", V2_MOUNT)
    group(tmp_path, "sys/fs/cgroup/a", v2(10 * MIB, 11 * MIB))
    assert free_memory(tmp_path) == 0


def test_version_one(tmp_path: Path) -> None:
    machine(tmp_path, "5:cpu,cpuacct:/elsewhere\n4:memory:/jobs/7", V1_MOUNT)
    group(tmp_path, "sys/fs/cgroup/memory/jobs/7", v1(300 * MIB, 100 * MIB, 30 * MIB))
    group(tmp_path, "sys/fs/cgroup/memory/jobs", v1(UNLIMITED_V1, 100 * MIB))
    group(tmp_path, "sys/fs/cgroup/memory", v1(UNLIMITED_V1, 100 * MIB))
    assert free_memory(tmp_path) == 230 * MIB


@pytest.mark.parametrize(("hierarchy", "expected"), [(1, 40), (0, 200)])
def test_version_one_parents_limit_only_with_hierarchy(tmp_path: Path, hierarchy: int, expected: int) -> None:
    machine(tmp_path, "4:memory:/jobs/7", V1_MOUNT)
    group(tmp_path, "sys/fs/cgroup/memory/jobs/7", v1(300 * MIB, 100 * MIB))
    group(tmp_path, "sys/fs/cgroup/memory/jobs", v1(140 * MIB, 100 * MIB, hierarchy=hierarchy))
    assert free_memory(tmp_path) == expected * MIB


def test_both_versions_at_once(tmp_path: Path) -> None:
    unified = V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    machine(tmp_path, "4:memory:/job\n1:name=systemd:/job\n0::/job", f"{unified}\n{V1_MOUNT}")
    group(tmp_path, "sys/fs/cgroup/unified/job", {"cgroup.procs": 1})
    group(tmp_path, "sys/fs/cgroup/memory/job", v1(64 * MIB, MIB))
    assert free_memory(tmp_path) == 63 * MIB


def test_a_container_that_sees_its_own_group_mounted(tmp_path: Path) -> None:
    """Without a namespace of its own: the path is the host's, and the mount begins at it."""
    mount = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"
    machine(tmp_path, "4:memory:/docker/abc/inner", mount)
    group(tmp_path, "sys/fs/cgroup/memory/inner", v1(UNLIMITED_V1, MIB))
    group(tmp_path, "sys/fs/cgroup/memory", v1(80 * MIB, MIB))
    assert free_memory(tmp_path) == 79 * MIB


@pytest.mark.parametrize("path", ["/", "/../elsewhere", "/not/below"])
def test_a_container_with_paths_of_its_own(tmp_path: Path, path: str) -> None:
    mount = "31 23 0:28 /kubepods/pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw"
    machine(tmp_path, f"0::{path}", mount)
    group(tmp_path, "sys/fs/cgroup", v2(90 * MIB, MIB))
    assert free_memory(tmp_path) == 89 * MIB


def test_a_process_that_is_moved_and_a_mount_point_with_spaces(tmp_path: Path) -> None:
    mount = V2_MOUNT.replace("/sys/fs/cgroup", r"/my\040groups")
    group(tmp_path, "my groups/a", v2(30 * MIB, MIB))
    group(tmp_path, "my groups/b", v2(20 * MIB, MIB))
    machine(tmp_path, "0::/a", mount)
    assert free_memory(tmp_path) == 29 * MIB
    machine(tmp_path, "0::/b", mount)
    assert free_memory(tmp_path) == 19 * MIB


def test_a_budget_is_a_share_of_what_is_free() -> None:
    budget = MemoryBudget(100 * MIB, 0.5)
    assert budget.admits(50 * MIB) and not budget.admits(50 * MIB + 1)
    assert str(budget) == "100.0 MiB are free (limit: 50 % of that)"
    assert MemoryBudget().admits(1 << 62)
