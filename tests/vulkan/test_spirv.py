"""What is read from SPIR-V modules and written into them: modules of a few instructions, and devices."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.vulkan.helpers import Adder, every_device, floats
from tests.vulkan.kernels import ADD
from vkml.errors import CompileError
from vkml.vulkan import Device, DeviceInfo
from vkml.vulkan.spirv import (
    MAGIC,
    instructions,
    keep_arithmetic,
    preserve_special_values,
    require_functions_of_doubles,
    words_of,
)

Words = tuple[int, ...]

SHADER: Words = (17, 1)
MEMORY_MODEL: Words = (14, 0, 1)
MAIN: Words = (15, 5, 1, *struct.unpack("<2I", b"main\0\0\0\0"))
LOCAL_SIZE: Words = (16, 1, 17, 64, 1, 1)
NAME: Words = (5, 2, *struct.unpack("<I", b"abc\0"))
BLOCK: Words = (71, 9, 2)
FLOAT: Words = (22, 3, 32)
DOUBLE: Words = (22, 4, 64)
VECTOR_OF_DOUBLES: Words = (23, 5, 4, 3)


def text(opcode: int, *rest: int, value: bytes) -> Words:
    padded = value + b"\0" * (4 - len(value) % 4)
    return (opcode, *rest, *struct.unpack(f"<{len(padded) // 4}I", padded))


FUNCTIONS = text(11, 6, value=b"GLSL.std.450")
OTHER_FUNCTIONS = text(11, 6, value=b"OpenCL.std")
STORAGE = text(10, value=b"SPV_KHR_physical_storage_buffer")


def module(*lines: Words) -> bytes:
    """A module of instructions given as opcode and operands; not a valid one."""
    words = [MAGIC, 0x10500, 0, 100, 0]
    for opcode, *operands in lines:
        words += [(1 + len(operands)) << 16 | opcode, *operands]
    return struct.pack(f"<{len(words)}I", *words)


def lines(code: bytes) -> list[Words]:
    return [(line.opcode, *line.operands) for line in instructions(words_of(code))]


def no_contraction(result: int) -> Words:
    return (71, result, 42)


def test_instructions_are_read_in_order() -> None:
    given = [SHADER, FUNCTIONS, MAIN, LOCAL_SIZE, (253,)]
    assert lines(module(*given)) == given
    assert lines(module()) == []


@pytest.mark.parametrize("word", [0, 5 << 16 | 17], ids=["no length", "too long"])
def test_a_broken_module_is_an_error(word: int) -> None:
    with pytest.raises(CompileError, match="broken at word 7"):
        keep_arithmetic(module(SHADER) + struct.pack("<2I", word, 1))


def test_every_operation_that_rounds_is_decorated() -> None:
    add, negate, multiply, dot = (129, 3, 20, 1, 2), (127, 3, 21, 1), (133, 3, 22, 1, 2), (148, 3, 23, 1, 2)
    fused, root, whole = (12, 3, 24, 6, 50, 1, 2, 3), (12, 3, 25, 6, 31, 1), (128, 7, 26, 1, 2)
    converted = [(opcode, 3, result, 1) for result, opcode in enumerate((109, 110, 111, 112, 115), 27)]
    head, body = [SHADER, FUNCTIONS, MEMORY_MODEL, MAIN, LOCAL_SIZE, NAME, BLOCK], [FLOAT, DOUBLE]
    code = [add, whole, negate, fused, root, multiply, dot, *converted]
    marks = [no_contraction(result) for result in (20, 21, 24, 22, 23, *range(27, 32))]
    assert lines(keep_arithmetic(module(*head, *body, *code))) == [*head, *marks, *body, *code]
    # Without any name or decoration, they stand behind the execution modes.
    assert lines(keep_arithmetic(module(*head[:5], *body, add))) == [*head[:5], marks[0], *body, add]


def test_what_is_decorated_already_stays() -> None:
    given = module(SHADER, MAIN, no_contraction(20), FLOAT, (129, 3, 20, 1, 2), (131, 3, 21, 1, 2))
    once = keep_arithmetic(given)
    assert lines(once).count(no_contraction(20)) == lines(once).count(no_contraction(21)) == 1
    assert keep_arithmetic(once) == once


def test_special_values_are_preserved_in_every_entry_point() -> None:
    other = (15, 5, 8, *MAIN[3:])
    head, rest = [STORAGE, MEMORY_MODEL, MAIN, other, LOCAL_SIZE], [NAME, BLOCK, FLOAT]
    found = lines(preserve_special_values(module(SHADER, *head, *rest), (64, 32)))
    modes = [(16, entry, 4461, width) for entry in (1, 8) for width in (32, 64)]
    assert found == [SHADER, (17, 4466), *head, *modes, *rest]


def test_a_device_that_preserves_nothing_gets_the_module_as_it_is() -> None:
    assert preserve_special_values(ADD, ()) == ADD


@pytest.mark.parametrize("kind", [4, 5], ids=["double", "vector"])
def test_functions_that_doubles_do_not_have_are_refused(kind: int) -> None:
    types = [SHADER, FUNCTIONS, FLOAT, DOUBLE, VECTOR_OF_DOUBLES]
    logarithm = (12, kind, 20, 6, 28, 1)
    with pytest.raises(CompileError, match="kernel norm takes Log of a 64-bit number"):
        require_functions_of_doubles(module(*types, logarithm), "norm")
    # The square root of a double there is, and the logarithm of a float.
    require_functions_of_doubles(module(*types, (12, kind, 20, 6, 31, 1), (12, 3, 21, 6, 28, 1)), "norm")
    require_functions_of_doubles(module(SHADER, OTHER_FUNCTIONS, *types[2:], logarithm), "norm")


@every_device
def test_devices_take_what_was_made(info: DeviceInfo) -> None:
    """The device's own statement is put in by `Device.pipeline`; the validation layer looks at it."""
    code = keep_arithmetic(ADD)
    assert len(code) == len(ADD) + 12
    a, b = floats(100, 1), floats(100, 2)
    a[:4], b[:4] = [np.inf, -0.0, np.nan, 1], [-np.inf, -0.0, 1, np.nan]
    with Device(info) as device:
        found = Adder(device, 100, code=code).run(a, b)
    with np.errstate(invalid="ignore"):
        expected = a + b
    np.testing.assert_array_equal(found, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(expected)[is_number])
