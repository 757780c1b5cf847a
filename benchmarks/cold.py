"""``python -m benchmarks.cold``: where the time of a first session goes, and the memory; then of a second.

Each session is a process of its own. The first finds no cache of vkml's or of the driver's, the second what
the first has left. Bytecode of Python is there both times, as pip leaves it.
"""

from __future__ import annotations

import argparse
import builtins
import compileall
import contextlib
import ctypes
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CACHES = ("VKML_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR")
"""Where vkml, NVIDIA's driver and Mesa's drivers keep compiled kernels."""
ROOT = Path(__file__).resolve().parents[1]
DEFAULT_MODELS = ("mnist_like", "resnet50_b1")
STAGES = ("import", "load", "fold", "device", "plan", "lower", "wait", "kernels", "upload", "record", "run")
"""Of the thread that makes the session, each without those inside it. A module is imported where it is first
wanted, also within other stages. "wait" is for kernels that other threads compile."""
_WRAPPED = {
    "device": ("vkml.engine.devices", "open_device"),
    "fold": ("vkml.engine.prepare", "prepare"),
    "plan": ("vkml.engine.planning", "make_plan"),
    "lower": ("vkml.lowering.vulkan", "lower"),
    "wait": ("vkml.engine.ahead", "Ahead.wait_for"),
    "kernels": ("vkml.engine.compilation", "compile_kernels"),
    "upload": ("vkml.engine.weights", "WeightStore.add"),
    "record": ("vkml.engine.recorded", "RecordedProgram.bind"),
}


@dataclass
class Cold:
    """What one process has seen. Seconds and bytes."""

    total: float = 0.0
    """From the first line of Python on, which is not the interpreter's own start, to the first result."""
    stages: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    """Of them, the processor's time of the thread: less, where it waits for others or for the interpreter."""
    peaks: dict[str, int] = field(default_factory=dict)
    """The most resident memory until the end of the stage, files that are mapped included."""
    sources: int = 0
    """Kernels that vkml compiled, but in other processes,"""
    compiling: float = 0.0
    """and the processor time it took, of all threads."""
    pipelines: int = 0
    drivers: float = 0.0
    """What the driver took to compile pipelines, all of them added up;"""
    longest: float = 0.0
    """the longest of them."""
    listing: float = 0.0
    """What the driver took to list devices,"""
    opening: float = 0.0
    """and to open one, in whichever thread."""
    processor: float = 0.0
    """Processor time of the whole process."""
    resting: int = 0
    """Memory that is no file's behind the first run,"""
    trimmed: int = 0
    """and what is left of it once the C library has given back what it keeps for later; 0: it cannot."""
    anonymous: int = 0
    """The most memory that is no file's, seen by another process every 2 ms."""


class _Stopwatch:
    """Seconds of stages within stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.busy: dict[str, float] = defaultdict(float)
        self.peaks: dict[str, int] = {}
        self._open: list[str] = []
        self._since = self._busy_since = 0.0
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if threading.get_ident() != self._thread:
            yield
            return
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()
            self.peaks[name] = _status("VmHWM")

    def _turn(self) -> None:
        now, busy = time.perf_counter(), time.thread_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
            self.busy[self._open[-1]] += busy - self._busy_since
        self._since, self._busy_since = now, busy


def _status(*keys: str, pid: int | str = "self") -> int:
    """Bytes of entries of a process's status, added up; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.partition(":")[0] in keys)
    return 0


class _AtImport:
    """A finder of modules that wraps functions and methods of theirs as soon as they are imported."""

    def __init__(self) -> None:
        self._wanted: dict[str, list[tuple[str, Callable[[Any], Any]]]] = defaultdict(list)

    def wrap(self, module: str, path: str, make: Callable[[Any], Any]) -> None:
        """Has `make` make another function or method of one."""
        if module in sys.modules:
            _replace(sys.modules[module], path, make)
        else:
            self._wanted[module].append((path, make))

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """What other finders find, whose loader then wraps."""
        entries = self._wanted.pop(name, None)
        if entries is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                loader: Any = spec.loader
                loader.exec_module = functools.partial(_execute, loader.exec_module, entries)
                return spec
        return None


def _execute(
    execute: Callable[[Any], None], entries: list[tuple[str, Callable[[Any], Any]]], module: Any
) -> None:
    execute(module)
    for path, make in entries:
        _replace(module, path, make)


def _replace(owner: Any, path: str, make: Callable[[Any], Any]) -> None:
    """Wraps a function or method, also where other modules have its name."""
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    old = getattr(owner, name)
    made = make(old)
    new = functools.wraps(old)(made) if callable(made) else made
    setattr(owner, name, new)
    for other in list(sys.modules.values()):
        if callable(old) and other is not None and vars(other).get(name) is old:
            setattr(other, name, new)


def measure(path: str, device: str, precision: str, threads: int | None, processes: int | None) -> Cold:
    """In a fresh process: a session of a model and its first run.

    Args:
        path: of the model.
        device: for the session.
        precision: likewise.
        threads: that compile pipelines; None: as many as vkml takes.
        processes: that compile kernels beside this one; likewise.
    """
    watch, found = _Stopwatch(), Cold()
    lock = threading.Lock()
    wrapped = _AtImport()
    sys.meta_path.insert(0, wrapped)
    began = time.perf_counter()
    import_name = builtins.__import__
    outermost = threading.local()

    def timed_import(*arguments: Any, **more: Any) -> Any:
        if getattr(outermost, "is_within", False):
            return import_name(*arguments, **more)
        outermost.is_within = True
        try:
            with watch.stage("import"):
                return import_name(*arguments, **more)
        finally:
            outermost.is_within = False

    builtins.__import__ = timed_import

    for module, name, value in (
        ("vkml.engine.compilation", "MOST_THREADS", threads),
        ("vkml.kernels.compiling", "MOST_PROCESSES", processes),
    ):
        if value is not None:
            wrapped.wrap(module, name, functools.partial(lambda value, old: value, value))

    for stage, (module, name) in _WRAPPED.items():

        def staged(old: Any, stage: str = stage) -> Any:
            def call(*arguments: Any, **more: Any) -> Any:
                with watch.stage(stage):
                    return old(*arguments, **more)

            return call

        wrapped.wrap(module, name, staged)

    def counted(old: Any) -> Any:
        def compile_kernel(*arguments: Any) -> Any:
            before = time.thread_time()
            try:
                return old(*arguments)
            finally:
                with lock:
                    found.sources += 1
                    found.compiling += time.thread_time() - before

        return compile_kernel

    def timed(old: Any) -> Any:
        def _compile(*arguments: Any) -> Any:
            before = time.perf_counter()
            try:
                return old(*arguments)
            finally:
                taken = time.perf_counter() - before
                with lock:
                    found.pipelines += 1
                    found.drivers += taken
                    found.longest = max(found.longest, taken)

        return _compile

    def driving(what: str) -> Callable[[Any], Any]:
        def make(old: Any) -> Any:
            def call(*arguments: Any, **more: Any) -> Any:
                before = time.perf_counter()
                try:
                    return old(*arguments, **more)
                finally:
                    setattr(found, what, getattr(found, what) + time.perf_counter() - before)

            return call

        return make

    wrapped.wrap("vkml.kernels.slang", "compile_kernel", counted)
    wrapped.wrap("vkml.vulkan.pipelines", "Pipelines._compile", timed)
    wrapped.wrap("vkml.vulkan.discovery", "_enumerate", driving("listing"))
    wrapped.wrap("vkml.vulkan.device", "Device.__init__", driving("opening"))
    import numpy as np

    import vkml

    with watch.stage("load"):
        opened = vkml.InferenceSession(path, devices=device, precision=precision)
    with watch.stage("run"):
        feed = {
            value.name: np.zeros([size if isinstance(size, int) else 1 for size in value.shape], np.float32)
            for value in opened.get_inputs()
        }
        opened.run(None, feed)
    found.total = time.perf_counter() - began
    found.processor = time.process_time()
    found.stages, found.busy, found.peaks = dict(watch.seconds), dict(watch.busy), watch.peaks
    found.resting = _status("RssAnon", "RssShmem")
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
        found.trimmed = _status("RssAnon", "RssShmem")
    return found


def cold(
    path: str,
    device: str,
    precision: str,
    source: Path,
    caches: Path,
    bytecode: Path,
    threads: int | None = None,
    processes: int | None = None,
) -> Cold:
    """Runs `measure` in a fresh process.

    Args:
        path: of the model.
        device: for the session.
        precision: likewise.
        source: of vkml: the folder that has the package.
        caches: a folder for caches of kernels.
        bytecode: a folder for Python's.
        threads: see `measure`.
        processes: likewise.
    """
    environment = {
        **os.environ,
        **dict.fromkeys(CACHES, str(caches)),
        "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]),
        "PYTHONPYCACHEPREFIX": str(bytecode),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, "--child", path, "--device", device, "--precision", precision]
    for name, value in (("threads", threads), ("processes", processes)):
        command += [] if value is None else [f"--{name}", str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _status("RssAnon", "RssShmem", pid=process.pid))
            time.sleep(0.002)
        assert process.stdout is not None
        words = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{Path(path).stem} on {device} failed, see above")
    return Cold(**{**json.loads(words), "anonymous": peak})


def _show(name: str, what: str, entries: list[Cold]) -> None:
    def median(of: Callable[[Cold], float]) -> float:
        return statistics.median(of(entry) for entry in entries)

    def milliseconds(of: Callable[[Cold], dict[str, float]], stage: str) -> str:
        return f"{median(lambda entry: of(entry).get(stage, 0.0)) * 1e3:.0f}"

    stages, busy = (
        "  ".join(f"{stage} {milliseconds(of, stage)}" for stage in STAGES)
        for of in (lambda entry: entry.stages, lambda entry: entry.busy)
    )
    peaks = "  ".join(
        f"{stage} {median(lambda entry, stage=stage: entry.peaks.get(stage, 0)) / 2**20:.0f}"  # type: ignore[misc]
        for stage in STAGES
    )
    print(
        f"{name}, {what}: {median(lambda e: e.total):.2f} s "
        f"({median(lambda e: e.processor):.2f} s of processors), "
        f"{median(lambda e: e.peaks.get('run', 0)) / 2**20:.0f} MiB, "
        f"{median(lambda e: e.anonymous) / 2**20:.0f} of them no file's; at rest "
        f"{median(lambda e: e.resting) / 2**20:.0f}, trimmed {median(lambda e: e.trimmed) / 2**20:.0f}"
    )
    print(f"    ms: {stages}\n    of them busy: {busy}")
    print(f"    peak MiB by the end of: {peaks}")
    print(
        f"    {median(lambda e: e.sources):.0f} sources compiled here in "
        f"{median(lambda e: e.compiling):.2f} s of processors; "
        f"{median(lambda e: e.pipelines):.0f} pipelines, the driver's seconds added up "
        f"{median(lambda e: e.drivers):.2f}, the longest {median(lambda e: e.longest):.2f}; "
        f"devices listed in {median(lambda e: e.listing):.2f}, opened in {median(lambda e: e.opening):.2f}",
        flush=True,
    )


def main() -> None:
    """Prints a few lines a model and checkout."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=__doc__)
    parser.add_argument("models", nargs="*", default=DEFAULT_MODELS, metavar="MODEL")
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--precision", default="high")
    parser.add_argument("--times", type=int, default=3, help="pairs of sessions of each model")
    parser.add_argument(
        "--source",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder that vkml is imported from; several take turns",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="that compile pipelines")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="that compile kernels beside the session's"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="what each process has seen")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        found = measure(options.child, options.device, options.precision, options.threads, options.processes)
        print(json.dumps(asdict(found)), flush=True)
        os._exit(0)  # what closing takes is nobody's start
    from benchmarks.models import model_file

    sources = [path.resolve() for path in options.source] or [ROOT / "src"]
    everything: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="vkml-cold-") as made:
        folder = Path(made)
        sys.pycache_prefix = str(folder / "bytecode")
        for source in sources:
            compileall.compile_dir(str(source), quiet=1)
            # Of other packages, too, all that a session imports.
            small = str(model_file("chain_add_1"))
            cold(small, options.device, options.precision, source, folder / "other", folder / "bytecode")
        for model in options.models:
            path = str(model_file(model))
            results: dict[tuple[Path, str], list[Cold]] = defaultdict(list)
            for turn in range(options.times):
                for source in sources:
                    caches = Path(tempfile.mkdtemp(dir=folder))
                    for what in ("first", "second"):
                        seen = cold(
                            path,
                            options.device,
                            options.precision,
                            source,
                            caches,
                            folder / "bytecode",
                            options.threads,
                            options.processes,
                        )
                        results[source, what].append(seen)
                        everything.append(
                            {"model": model, "source": str(source), "session": what, "turn": turn}
                            | asdict(seen)
                        )
            for (source, what), entries in results.items():
                name = f"{model} [{source}]" if len(sources) > 1 else model
                _show(name, f"{what} session", entries)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
