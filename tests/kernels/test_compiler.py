"""The Slang compiler behind its cache: few sessions, which are large, closed after loading."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import _cffi_backend
import pytest

import vkml
from tests.patience import patience
from tests.robustness.processes import output_of, run_python
from vkml.engine.sketch import Sketch
from vkml.errors import CompileError
from vkml.kernels import compiler
from vkml.onnx import save_graph
from vkml.vulkan.spirv import instructions, words_of

SOURCE = """[shader("compute")] [numthreads({0}, 1, 1)] void main(uint3 thread : SV_DispatchThreadID) {{ }}"""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """What happens to sessions, from none and an empty cache on."""
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    compiler.close_compiler()
    log: list[str] = []

    class Session(compiler._Session):
        def __init__(self, library: compiler.Library) -> None:
            super().__init__(library)
            log.append("made")

        def compile(self, source: str, label: str) -> bytes:
            log.append(label)
            return super().compile(source, label)

        def close(self) -> None:
            super().close()
            log.append("closed")

    monkeypatch.setattr(compiler, "_Session", Session)
    yield log
    compiler.close_compiler()


def test_threads_share_a_session(made: list[str]) -> None:
    def work(size: int) -> bytes:
        return compiler.compile_slang(SOURCE.format(size))

    with ThreadPoolExecutor(4) as pool:
        codes = set(pool.map(work, range(1, 9)))
    assert len(codes) == 8 and all(code[:4] == b"\x03\x02\x23\x07" for code in codes)
    assert made == ["made"] + ["kernel"] * 8


def test_no_more_sessions_than_asked_for(made: list[str]) -> None:
    def work(size: int) -> bytes:
        return compiler.compile_slang(SOURCE.format(size), sessions=2)

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(work, range(20, 32)))) == 12
    assert made.count("made") in (1, 2)


def test_threads_that_need_the_same_source_compile_it_once(made: list[str]) -> None:
    together = threading.Barrier(4)

    def work(_: int) -> bytes:
        together.wait(patience(60))
        return compiler.compile_slang(SOURCE.format(77))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(work, range(4)))) == 1
    assert made == ["made", "kernel"]


def test_closing_gives_the_memory_back(made: list[str]) -> None:
    compiler.compile_slang(SOURCE.format(1))
    before = anonymous_bytes()
    compiler.close_compiler()
    compiler.close_compiler()
    assert made == ["made", "kernel", "closed"]
    if before:
        assert before - anonymous_bytes() > 100 << 20
    compiler.compile_slang(SOURCE.format(2))
    assert made == ["made", "kernel", "closed", "made", "kernel"]


def anonymous_bytes() -> int:
    """Resident memory that is no file's; 0 where the system does not say."""
    status = Path("/proc/self/status")
    found = re.search(r"RssAnon:\s+(\d+)", status.read_text()) if status.exists() else None
    return int(found.group(1)) << 10 if found else 0


ARITHMETIC = """struct Push { float* x; float* y; };
[[vk::push_constant]] ConstantBuffer<Push> push;
[shader("compute")] [numthreads(1, 1, 1)] void main()
{
    float x = push.x[0], c = push.x[1];
    push.y[0] = (x + c) - c;
    push.y[1] = x / x;
    push.y[2] = (x * 3.0) / 3.0;
    push.y[3] = -(-x);
    push.y[4] = 0.0 / x;
    push.y[5] = fma(x, c, x * 0.0);
}"""


def test_arithmetic_is_compiled_as_it_is_written(made: list[str]) -> None:
    found = list(instructions(words_of(compiler.compile_slang(ARITHMETIC))))
    add, subtract, multiply, divide, negate, function = 129, 131, 133, 136, 127, 12
    wanted = [add, subtract, divide, multiply, divide, negate, negate, divide, multiply, function]
    operations = [line for line in found if line.opcode in wanted]
    assert [line.opcode for line in operations] == wanted
    decorated = {line.operands[0] for line in found if line.opcode == 71 and line.operands[1] == 42}
    assert decorated == {line.operands[1] for line in operations}
    # The statement that kept the optimiser off has gone: a device need not be able to keep it.
    assert all(line.operands[0] != 4464 for line in found if line.opcode == 17)
    assert all(line.operands[1] != 4459 for line in found if line.opcode == 16)


def test_a_function_that_doubles_do_not_have_is_refused(made: list[str]) -> None:
    source = ARITHMETIC.replace("float", "double").replace("-(-x)", "log(x)")
    with pytest.raises(CompileError, match="kernel norm takes Log of a 64-bit number"):
        compiler.compile_slang(source, "norm")


def test_a_session_survives_a_failed_compile(made: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="kernel wrong did not compile"):
            compiler.compile_slang("nonsense", "wrong")
    assert made == ["made", "wrong", "wrong"]


def test_planning_leaves_no_compiler_open(
    vulkan_device_name: str, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKML_KERNEL_COMPILER", "slang")
    sketch = Sketch("one")
    graph = sketch.finish(sketch.node("Sin", sketch.input("x", (3,))))
    with vkml.InferenceSession(save_graph(graph), devices=vulkan_device_name):
        assert made[0] == "made" and made[-1] == "closed"


INTERRUPTED = """
    import faulthandler, itertools
    from tests.kernels.test_compiler import SOURCE
    from tests.patience import patience
    from tests.robustness.interrupts import interrupted_everywhere
    from vkml.kernels import compiler

    sizes = itertools.count(1)
    size = 0

    def compile():
        global size
        size = next(sizes)
        compiler.compile_slang(SOURCE.format(size))

    def check():
        compiler.compile_slang(SOURCE.format(size))
        assert len(compiler._sessions) == len(compiler._idle) <= 1

    faulthandler.dump_traceback_later(patience(200), exit=True)
    compile()
    assert interrupted_everywhere(compile, check, ["vkml/kernels/compiler.py"]) > 20
    print("done")
"""


def test_interrupted_compilations(tmp_path: Path) -> None:
    """Nobody waits afterwards for what nobody compiles any more, and no session is lost."""
    done = run_python(INTERRUPTED, VKML_CACHE_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


# --- which library ------------------------------------------------------------------------------------------

FIND = """
    import ctypes.util, importlib.util, sys, tempfile
    started = []
    sys.addaudithook(lambda event, _: started.append(event) if event == "subprocess.Popen" else None)
    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "slangpy" else find_spec(name, *rest)
    # An older version asked for it, and got S-Lang's libslang.so.2 where that is installed.
    ctypes.util.find_library = lambda name: "libslang.so" if name == "slang" else None
    from vkml.errors import CompileError
    from vkml.kernels import compiler
    found = compiler.find_library()
    print(found and found.name)
    try:
        compiler.compile_slang('''{source}''')
        print("compiled")
    except CompileError as error:
        print(str(error).replace(chr(10), " "))
    assert not started, started
"""


def find(tmp_path: Path, *folders: Path) -> list[str]:
    """Which library is found without the package slangpy, and what comes of compiling, in a new process."""
    search = os.pathsep.join(map(str, (tmp_path, *folders)))
    environment = {"VKML_CACHE_DIR": str(tmp_path / "cache"), "LD_LIBRARY_PATH": search}
    return output_of(FIND.format(source=SOURCE.format(8)), VKML_SLANG_LIBRARY="", **environment).splitlines()


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux looks where LD_LIBRARY_PATH says")


@linux
@pytest.mark.parametrize("name", ["libslang.so", "libslang-compiler.so"])
def test_a_library_that_is_merely_called_slang_is_not_taken(tmp_path: Path, name: str) -> None:
    """S-Lang, which most Linux systems have, is called libslang too."""
    shutil.copy(_cffi_backend.__file__, tmp_path / name)
    found, error = find(tmp_path)
    assert found == "None"
    for word in ("there is no Slang compiler", name, "spCreateSession", "pip install 'vkml[compiler]'"):
        assert word in error


@linux
def test_the_search_goes_on_after_another_library_of_the_name(tmp_path: Path) -> None:
    shutil.copy(_cffi_backend.__file__, tmp_path / "libslang-compiler.so")
    real = compiler.find_library()
    assert real is not None
    (tmp_path / "libslang.so").symlink_to(real)
    assert find(tmp_path, real.parent) == ["libslang.so", "compiled"]


@linux
def test_a_named_library_is_the_only_one_tried(tmp_path: Path) -> None:
    named = str(tmp_path / "libslang.so")
    shutil.copy(_cffi_backend.__file__, named)
    code = """
    from vkml.engine import doctor
    from vkml.kernels import compiler
    print(compiler.find_library(), dict(doctor.facts())["Slang compiler"])
    """
    text = output_of(code, VKML_SLANG_LIBRARY=named)
    assert text.startswith("None none") and f"{named} is no Slang compiler" in text
