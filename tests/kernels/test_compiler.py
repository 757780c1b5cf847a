"""The Slang compiler behind its cache: sessions, which are large, outlive the threads that compile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vkml.errors import CompileError
from vkml.kernels import compiler

SOURCE = """[shader("compute")] [numthreads({0}, 1, 1)]
void main(uint3 thread : SV_DispatchThreadID) {{ }}"""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What happens to sessions, from none and an empty cache on."""
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "_idle", [])
    log: list[str] = []

    class Session(compiler._Session):
        def __init__(self, library: compiler._Library) -> None:
            super().__init__(library)
            log.append("made")

        def close(self) -> None:
            super().close()
            log.append("closed")

    monkeypatch.setattr(compiler, "_Session", Session)
    return log


def test_threads_one_after_another_share_a_session(made: list[str]) -> None:
    for size in range(1, 6):
        with ThreadPoolExecutor(1) as pool:
            assert (
                pool.submit(compiler.compile_slang, SOURCE.format(size)).result()[:4] == b"\x03\x02\x23\x07"
            )
    assert made == ["made"]


def test_threads_at_once_have_one_each_and_few_are_kept(made: list[str]) -> None:
    count = compiler._KEPT_SESSIONS + 1
    together = threading.Barrier(count)

    def work(size: int) -> bytes:
        with compiler._session() as session:
            together.wait(60)
            code = session.compile(SOURCE.format(size), "kernel")
            together.wait(60)
        return code

    with ThreadPoolExecutor(count) as pool:
        assert len(set(pool.map(work, range(1, count + 1)))) == count
    assert made == ["made"] * count + ["closed"]
    assert len(compiler._idle) == compiler._KEPT_SESSIONS


def test_a_failed_compile_gives_its_session_back(made: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="kernel wrong did not compile"):
            compiler.compile_slang("nonsense", "wrong")
    assert made == ["made"]
    assert len(compiler._idle) == 1
