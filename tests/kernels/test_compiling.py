"""Kernels' source to SPIR-V: kept, compiled once, refused by name, and no affair of the CPU's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.patience import patience
from tests.robustness.processes import output_of, run_python
from vkml.errors import CompileError
from vkml.kernels import compiling, slang
from vkml.kernels.compiling import compile_kernel
from vkml.vulkan.spirv import instructions, words_of

SOURCE = """[shader("compute")] [numthreads({0}, 1, 1)] void main(uint3 thread : SV_DispatchThreadID) {{ }}"""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the compiler is given, from an empty cache on."""
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    log: list[str] = []
    real = slang.compile_kernel

    def compile_(source: str) -> bytes:
        log.append(source)
        return real(source)

    monkeypatch.setattr(slang, "compile_kernel", compile_)
    return log


def test_what_is_compiled_is_kept(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [compile_kernel(SOURCE.format(size)) for size in (1, 2, 1, 2)]
    assert len(compiled) == 2 and codes[:2] == codes[2:] and codes[0] != codes[1]
    # Not of another version of the compiler.
    monkeypatch.setattr(compiling, "_compiler_version", lambda: "another")
    assert compile_kernel(SOURCE.format(1)) == codes[0] and len(compiled) == 3


def test_what_workgroups_are_like_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sessions that find their kernels compiled need not load the compiler to plan."""
    monkeypatch.setenv("VKML_CACHE_DIR", str(tmp_path))
    source = "struct Two { int a; int b; };\ngroupshared Two two[3];\ngroupshared float2 room[4];\n"
    source += SOURCE.format(48)
    found = compiling.workgroup_of(source)
    assert found == (48, [(None, 24), ("float2[4]", 32)])
    assert compiling.workgroup_of(SOURCE.format(1).replace("{ }", "{ switch (1) { default: } }")) is None
    monkeypatch.setattr(slang, "workgroup_of", lambda source: pytest.fail("asked again"))
    assert compiling.workgroup_of(source) == found


def test_threads_that_need_the_same_source_compile_it_once(compiled: list[str]) -> None:
    together = threading.Barrier(4)

    def work(_: int) -> bytes:
        together.wait(patience(60))
        return compile_kernel(SOURCE.format(77))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(work, range(4)))) == 1
    assert len(compiled) == 1


def test_a_kernel_that_is_not_known_is_named(compiled: list[str]) -> None:
    source = SOURCE.format(1).replace("{ }", "{ switch (thread.x) { default: } }")
    wanted = r"does not know .*, which its kernel odd has\. This is a bug in vkml: please report it"
    for _ in range(2):  # a failure leaves nothing behind, and nothing is kept of it
        with pytest.raises(CompileError, match=wanted):
            compile_kernel(source, "odd")
    assert len(compiled) == 2


def test_a_function_that_doubles_do_not_have_is_refused(compiled: list[str]) -> None:
    source = """struct Push { double* x; };
    [[vk::push_constant]] ConstantBuffer<Push> push;
    [shader("compute")] [numthreads(1, 1, 1)] void main() { push.x[0] = log(push.x[1]); }"""
    with pytest.raises(CompileError, match="kernel norm takes Log of a 64-bit number"):
        compile_kernel(source, "norm")
    compile_kernel(source.replace("double", "float"), "norm")


def test_every_operation_is_one_of_its_own(compiled: list[str]) -> None:
    source = """struct Push { float* x; };
    [[vk::push_constant]] ConstantBuffer<Push> push;
    [shader("compute")] [numthreads(1, 1, 1)] void main() { push.x[0] = push.x[1] * push.x[2] + 1.0; }"""
    found = list(instructions(words_of(compile_kernel(source))))
    multiply, add, decorate, no_contraction = 133, 129, 71, 42
    decorated = {
        line.operands[0] for line in found if line.opcode == decorate and line.operands[1] == no_contraction
    }
    assert decorated == {line.operands[1] for line in found if line.opcode in (multiply, add)} != set()


INTERRUPTED = """
    import faulthandler, itertools
    from tests.kernels.test_compiling import SOURCE
    from tests.patience import patience
    from tests.robustness.interrupts import interrupted_everywhere
    from vkml.kernels.compiling import compile_kernel

    sizes = itertools.count(1)
    size = 0

    def compile():
        global size
        size = next(sizes)
        compile_kernel(SOURCE.format(size))

    def check():
        compile_kernel(SOURCE.format(size))

    faulthandler.dump_traceback_later(patience(200), exit=True)
    compile()
    assert interrupted_everywhere(compile, check, ["vkml/kernels/compiling.py"]) > 10
    print("done")
"""


def test_interrupted_compilations(tmp_path: Path) -> None:
    """Nobody waits afterwards for what nobody compiles any more."""
    done = run_python(INTERRUPTED, VKML_CACHE_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


ON_THE_CPU = """
    import sys, numpy as np, vkml
    from tests.robustness.models import product
    with vkml.InferenceSession(product(), devices="cpu") as session:
        session.run(None, {"x": np.ones((1, 4), np.float32)})
    print([name for name in sys.modules if name.startswith("vkml.kernels.slang")])
"""


def test_the_cpu_needs_no_compiler_of_kernels() -> None:
    assert output_of(ON_THE_CPU) == "[]\n"
