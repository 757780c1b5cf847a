"""A child process that judges cases, watched: its crashes, hangs and appetite become findings."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.driver import Finding

REPOSITORY = Path(__file__).parents[2]
CPU_SECONDS = 90.0
"""Processor time that a case may take; unlike a clock's, it is the same beside busy neighbours."""
IDLE_SECONDS = 60.0
"""Time without any progress of that, after which a child hangs."""
RESIDENT_BYTES = 4 << 30
OWN_STAGES = ("vkml", "evaluation")
"""Stages in which vkml runs, and not someone else."""


@dataclass
class Reply:
    """What came back for a case."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    origin: str = ""
    lost_in: str = ""
    """The stage, none of vkml's, in which the process ended."""


class Child:
    """Judges one case after another; replaced by a new process when it ends before its time."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0

    def ask(self, request: dict[str, Any]) -> Reply:
        """The verdict on a case; without the word of a runtime that crashes on it."""
        without: list[str] = []
        while True:
            reply = self._ask({**request, "without": without})
            if not reply.lost_in or reply.lost_in in without or len(without) > 2:
                return reply
            without.append(reply.lost_in)

    def _ask(self, request: dict[str, Any]) -> Reply:
        self._start()
        assert self._process is not None
        self._stage = "generation"
        try:
            self._write.write((json.dumps(request) + "\n").encode())
            self._write.flush()
        except BrokenPipeError:
            return self._ended()
        spent = self._cpu()
        progress = start = time.monotonic()
        latest = spent
        while True:
            message = self._message(0.5)
            if message is None and self._process.poll() is not None and not self._buffer:
                return self._ended()
            if message is not None and "stage" in message:
                self._stage = message["stage"]
            elif message is not None:
                found = [Finding(**entry) for entry in message["findings"]]
                return Reply(found, Counter(message["counts"]), message["origin"])
            now, used = time.monotonic(), self._cpu()
            if used > latest + 0.05:
                latest, progress = used, now
            if used - spent > CPU_SECONDS:
                return self._killed("hang", f"still computing after {used - spent:.0f} s of processor time")
            if now - progress > IDLE_SECONDS:
                return self._killed("hang", f"nothing happens any more, {now - start:.0f} s after its start")
            resident = self._resident()
            if resident > RESIDENT_BYTES:
                return self._killed("memory", f"{resident >> 20} MiB of resident memory")

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._write.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._release()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._release()
        to_read, write = os.pipe()
        read, to_write = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", str(to_read), str(to_write)],
            cwd=REPOSITORY,
            env=self._environment,
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
        )
        os.close(to_read)
        os.close(to_write)
        self._write, self._read = os.fdopen(write, "wb"), read
        self._buffer = b""
        self._stage = "start"
        self.started += 1
        deadline = time.monotonic() + 300
        while True:
            message = self._message(1)
            if message is not None:
                break
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the fuzzer's child does not start: {self._said()}")

    def _message(self, seconds: float) -> dict[str, Any] | None:
        if b"\n" not in self._buffer:
            if not select.select([self._read], [], [], seconds)[0]:
                return None
            self._buffer += os.read(self._read, 1 << 20)
        line, found, rest = self._buffer.partition(b"\n")
        if not found:
            return None
        self._buffer = rest
        message: dict[str, Any] = json.loads(line)
        return message

    def _ended(self) -> Reply:
        assert self._process is not None
        status = self._process.wait()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return self._lost("crash", f"{how}; {self._said()}")

    def _killed(self, kind: str, message: str) -> Reply:
        assert self._process is not None
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGABRT)  # faulthandler then says where it was
            self._process.wait(10)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(10)
        return self._lost(kind, f"{message}; {self._said()}")

    def _lost(self, kind: str, message: str) -> Reply:
        stage = self._stage
        self._release()
        if stage not in OWN_STAGES:
            return Reply(counts=Counter({f"lost in {stage}": 1}), lost_in=stage)
        return Reply([Finding(kind, "", message)], Counter({"lost": 1}))

    def _said(self) -> str:
        """The end of what the process wrote: the interpreter's last words name the place."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        places = [line.strip() for line in lines if line.strip().startswith("File ")][:6]
        return " < ".join(line.removeprefix("File ").split("/vkml/")[-1] for line in places) or " ".join(
            lines[-3:]
        )

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            self._write.close()
        with contextlib.suppress(OSError):
            os.close(self._read)
        self._errors.close()
        self._process = None

    def _cpu(self) -> float:
        fields = self._stat().rsplit(")", 1)[-1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0

    def _resident(self) -> int:
        fields = self._stat().rsplit(")", 1)[-1].split()
        return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 21 else 0

    def _stat(self) -> str:
        assert self._process is not None
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self._process.pid}/stat").read_text()
        return ""
