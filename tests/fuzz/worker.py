"""The child process: judges cases it is asked for, says what it is about to do, and stays within its memory.

Started as ``python -m tests.fuzz.worker READ WRITE``, the numbers of two pipes.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case

ADDRESS_SPACE = 3 << 30
"""Bytes of address space that cases may take beyond what the process has when all is loaded."""
MEMORY_FLOOR = {"cpu": 192 << 20}
"""Bytes of memory that a case may take, however small its tensors are; on a GPU 1 GiB, to compile for it."""
SLOW_SECONDS = 20.0
"""Processor time that the CPU device may take for a case; for GPUs kernels are compiled."""
MEMORY_FACTOR = 24
"""Times the bytes of all its tensors, which a case may take besides."""


def device_name(wanted: str) -> str:
    """vkml's name of a device given as that or as a word in its title: "lavapipe", "swiftshader"."""
    import vkml

    for device in vkml.devices():
        text = f"{device.name} {device.title} {device.driver}".lower().replace("llvmpipe", "lavapipe")
        if wanted == device.name or wanted.lower() in text.split() or wanted.lower() in text:
            return str(device.name)
    raise SystemExit(f"there is no device {wanted!r}")


def case_for(request: dict[str, Any]) -> Case:
    """The case a request names."""
    if request["source"] == "saved":
        return Case.load(Path(request["path"]))
    module = importlib.import_module(
        "tests.fuzz.mutate" if request["source"] == "mutated" else "tests.fuzz.generate"
    )
    make = module.mutated_case if request["source"] == "mutated" else module.random_case
    case: Case = make(request["seed"], request["index"], request.get("ops", ()))
    return case


class Meter:
    """What vkml's own stage takes: memory at its height, where the system tells, and processor time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Before a case."""
        self.grown, self.seconds = 0, 0.0
        self._before: tuple[int, float] | None = None

    def enter(self, name: str) -> None:
        """A stage begins, and another one ends."""
        if self._before is not None:
            self.grown = max(self.grown, _status("VmHWM") - self._before[0])
            self.seconds += time.process_time() - self._before[1]
            self._before = None
        if name == "vkml":
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
            self._before = _status("VmHWM"), time.process_time()


def _status(key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) << 10
    return 0


def tensor_bytes(case: Case) -> int:
    """Bytes of the case's model and feeds."""
    return len(case.model) + sum(array.nbytes for feed in case.feeds for array in feed.values())


def save_values(case: Case, path: Path) -> None:
    """Writes all values between a case's nodes, as other runtimes have them, for the minimiser."""
    from tests.fuzz import trusted
    from tests.fuzz.tensors import save_tensors

    proto = case.proto()
    entries = []
    for number, feed in enumerate(case.feeds):
        with contextlib.suppress(trusted.Refused):
            if proto is not None:
                for name, array in trusted.all_values(proto, feed).items():
                    entries.append((f"{number}/{name}", trusted.code_of(array), array))
    save_tensors(path, entries, {})


def limit_memory() -> None:
    """Ends the growth of a process that a case makes too large by an error, not by the machine's memory."""
    size = _status("VmSize")
    if size:
        resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE, resource.RLIM_INFINITY))


def die_with_parent() -> None:
    """Has the system end this process when its parent ends, whatever it is doing then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> None:
    die_with_parent()
    logging.getLogger("vkml").setLevel(logging.CRITICAL)
    requests, replies = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w", buffering=1)
    faulthandler.enable()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def say(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    for hook in os.environ.get("VKML_FUZZ_HOOKS", "").split(","):
        if hook:  # tests plant mistakes with these
            importlib.import_module(hook)
    from tests.fuzz import stages
    from tests.fuzz.driver import Finding
    from tests.fuzz.oracle import Verdict, judge

    meter = Meter()
    stages.report += [lambda name: say({"stage": name}), meter.enter]
    say({"ready": os.getpid()})
    names: dict[str, str] = {}
    is_limited = False
    for line in requests:
        request = json.loads(line)
        say({"stage": "generation"})
        device = names.setdefault(request["device"], device_name(request["device"]))
        case = case_for(request)
        if request.get("keep"):
            case.save(Path(request["keep"]))
        if request.get("values"):
            save_values(case, Path(request["values"]))
            say({"done": True, "findings": [], "counts": {}, "origin": case.origin})
            continue
        stages.skipped.clear()
        stages.skipped.update(request.get("without", []))
        meter.reset()
        try:
            verdict = judge(case, device)
        except Exception as error:  # what is wrong with the judge hides what else is wrong
            frames = traceback.extract_tb(error.__traceback__)[-4:]
            place = " < ".join(f"{Path(frame.filename).name}:{frame.name}" for frame in reversed(frames))
            verdict = Verdict([Finding("judge", type(error).__name__, f"{error} ({place})")])
        findings = [vars(finding) for finding in verdict.findings]
        values = verdict.counts.pop("bytes", 0)
        allowed = MEMORY_FLOOR.get(device, 1 << 30) + MEMORY_FACTOR * (tensor_bytes(case) + values)
        # The first case of a process loads what all others find there.
        if is_limited and meter.grown > allowed:
            message = f"{meter.grown >> 20} MiB for tensors of {(tensor_bytes(case) + values) >> 10} KiB"
            findings.append({"kind": "memory", "where": "", "message": message})
        if device == "cpu" and meter.seconds > SLOW_SECONDS:
            findings.append(
                {"kind": "slow", "where": "", "message": f"{meter.seconds:.0f} s of processor time"}
            )
        say({"done": True, "findings": findings, "counts": dict(verdict.counts), "origin": case.origin})
        if not is_limited:
            limit_memory()
            is_limited = True


if __name__ == "__main__":
    main()
