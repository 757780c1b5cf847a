"""Back ends stand side by side behind one protocol: none imports another, what one lacks it refuses."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import vkml.ops  # noqa: F401  (fills the registry)
from vkml.cpu.native.executable import InstructionSet
from vkml.ir.lowering import CannotLower, Lowering
from vkml.ir.operator import REGISTRY, Operator
from vkml.lowering.builder import Builder
from vkml.lowering.native_builder import NativeBuilder
from vkml.lowering.native_layout import Layouts
from vkml.lowering.templates import Templates


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("vkml.lowering.native", ("vkml.lowering.vulkan", "vkml.kernels.gemm", "vkml.kernels.writer")),
        ("vkml.lowering.cpu", ("vkml.lowering.vulkan", "vkml.kernels.gemm", "vkml.kernels.writer")),
        ("vkml.lowering.vulkan", ("vkml.lowering.native", "vkml.cpu.native.assembler")),
    ],
)
def test_no_back_end_imports_another(module: str, others: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[name for name in sys.modules if name.startswith({others!r})])"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == []


def test_the_operators_ask_a_typed_protocol() -> None:
    """No `lower` takes or gives what could be anything, nor does what it may ask for."""
    operators = {type(operator) for operator in REGISTRY.values()}
    stated = [kind.lower for kind in operators if "lower" in vars(kind)]
    assert len(stated) > 40
    for lower in stated:
        assert lower.__annotations__ == Operator.lower.__annotations__, lower.__qualname__
    asked = [each for name, each in vars(Lowering).items() if inspect.isfunction(each) and name[0] != "_"]
    loose = re.compile(r"\bAny\b")
    for function in (Operator.lower, *asked):
        texts = {name: str(text) for name, text in function.__annotations__.items()}
        assert not [name for name, text in texts.items() if loose.search(text)], function.__qualname__
    for function in asked:
        named = set(inspect.signature(function).parameters) - {"self"}
        assert named <= set(function.__annotations__) and "return" in function.__annotations__, function


def test_templates_are_those_of_the_protocol() -> None:
    """Whatever operators may ask for, a back end that forgets it refuses."""
    stated = {name for name, each in vars(Templates).items() if inspect.isfunction(each) and name[0] != "_"}
    asked = {name for name, each in vars(Lowering).items() if inspect.isfunction(each) and name[0] != "_"}
    shared = {name for name, each in vars(Builder).items() if inspect.isfunction(each)} - stated
    assert stated - {"recurrent_layer"} == asked - shared


def test_refusals_name_the_back_end() -> None:
    build = NativeBuilder(InstructionSet.AVX2, 1, Layouts())
    lacking = [
        name
        for name, each in vars(Templates).items()
        if inspect.isfunction(each) and name[0] != "_" and getattr(NativeBuilder, name) is each
    ]
    assert "norm" in lacking and "matmul" not in lacking
    for name in lacking:
        method = getattr(build, name)
        if name == "recurrence":
            continue  # hands on to `recurrent_layer`
        arguments = {parameter: None for parameter in inspect.signature(method).parameters}
        if name == "max_pool_gradient":  # the operator then asks for what it may be made of
            assert method(**arguments) is False
            continue
        with pytest.raises(CannotLower, match="has no machine code"):
            method(**arguments)
