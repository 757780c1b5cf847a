"""SPIR-V modules as streams of instructions, and what they say about floating-point arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vkml.dataclasses import dataclass
from vkml.errors import CompileError

MAGIC = 0x07230203
_HEADER_WORDS = 5

# Opcodes, decorations and the like, from the specification's tables.
_EXT_INST_IMPORT = 11
_EXT_INST = 12
_ENTRY_POINT = 15
_EXECUTION_MODE = 16
_CAPABILITY = 17
_TYPE_FLOAT = 22
_TYPE_VECTOR = 23
_DECORATE = 71
_BEFORE_DECORATIONS = frozenset({3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 16, 17, 330, 331})
"""Source texts, names, extensions, imports, memory model, entry points, execution modes, capabilities."""
_DECORATIONS = frozenset({71, 72, 73, 74, 75, 332, 5632, 5633})
_HEAD = _BEFORE_DECORATIONS | _DECORATIONS
_FUNCTION = 54
_NO_CONTRACTION = 42
_SIGNED_ZERO_INF_NAN_PRESERVE = 4466, 4461
"""Its capability and its execution mode."""
_SHADER_FUNCTIONS = b"GLSL.std.450"

_ROUNDING = frozenset({109, 110, 111, 112, 115, 127, 129, 131, 133, 136, 140, 141, *range(142, 149)})
"""ConvertFToU, ConvertFToS, ConvertSToF, ConvertUToF, FConvert, FNegate, FAdd, FSub, FMul, FDiv, FRem, FMod,
products of vectors and matrices, Dot."""
_FMA = 50
_NARROW_FUNCTIONS = {
    11: "Radians", 12: "Degrees", 13: "Sin", 14: "Cos", 15: "Tan", 16: "Asin", 17: "Acos", 18: "Atan",
    19: "Sinh", 20: "Cosh", 21: "Tanh", 22: "Asinh", 23: "Acosh", 24: "Atanh", 25: "Atan2", 26: "Pow",
    27: "Exp", 28: "Log", 29: "Exp2", 30: "Log2",
}  # fmt: skip
"""Instructions of GLSL.std.450 that are defined for 16 and 32 bits only."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: where its first word lies in the module, and its words behind that one."""

    at: int
    opcode: int
    operands: Sequence[int]

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.at + 1 + len(self.operands)


def words_of(module: bytes) -> memoryview:
    """The 32-bit words of a module in this machine's order."""
    return memoryview(module).cast("I")


def instructions(words: memoryview) -> Iterator[Instruction]:
    """The instructions of a module in order."""
    for at, opcode, end in _places(words):
        yield Instruction(at, opcode, words[at + 1 : end])


def _places(words: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Of each instruction where it begins, its opcode, and where the next one begins."""
    at, count = _HEADER_WORDS, len(words)
    while at < count:
        first = words[at]
        end = at + (first >> 16)
        if end == at or end > count:
            raise CompileError(f"a SPIR-V module of {count} words is broken at word {at}")
        yield at, first & 0xFFFF, end
        at = end


def keep_arithmetic(module: bytes) -> bytes:
    """The module with every floating-point operation stated to be one of its own.

    Drivers may then neither contract a product and a sum nor reorder sums (NoContraction); nor, as Mesa does
    otherwise, reorder sums of products that are one operation already (Fma), nor leave out a conversion and
    the one back, of floats or of integers.
    """
    words = words_of(module)
    decorated: set[int] = set()
    results: list[int] = []
    functions: int | None = None
    insertion = 0
    numbers = words.tolist()
    for at, opcode, end in _places(numbers):
        if opcode in _ROUNDING or (
            opcode == _EXT_INST and numbers[at + 3] == functions and numbers[at + 4] == _FMA
        ):
            results.append(numbers[at + 2])
        elif opcode == _EXT_INST_IMPORT and _text(numbers[at + 2 : end]) == _SHADER_FUNCTIONS:
            functions = numbers[at + 1]
        elif opcode == _DECORATE and numbers[at + 2] == _NO_CONTRACTION:
            decorated.add(numbers[at + 1])
        if opcode in _HEAD:
            insertion = end
    added = [
        word
        for result in results
        if result not in decorated
        for word in (3 << 16 | _DECORATE, result, _NO_CONTRACTION)
    ]
    return _edited(words, {insertion: added})


def preserve_special_values(module: bytes, widths: Iterable[int]) -> bytes:
    """The module with NaN, infinities and the sign of zero stated to matter, in all its entry points.

    Args:
        module: without such a statement.
        widths: bits of the floating-point types for which the device can keep that.
    """
    words = words_of(module)
    last_capability = last_mode = _HEADER_WORDS
    entry_points = []
    for instruction in instructions(words):
        if instruction.opcode not in _BEFORE_DECORATIONS:
            break
        if instruction.opcode == _CAPABILITY:
            last_capability = instruction.end
        elif instruction.opcode == _ENTRY_POINT:
            entry_points.append(instruction.operands[1])
        if instruction.opcode in (_ENTRY_POINT, _EXECUTION_MODE):
            last_mode = instruction.end
    capability, mode = _SIGNED_ZERO_INF_NAN_PRESERVE
    modes = [
        word
        for entry_point in entry_points
        for width in sorted(widths)
        for word in (4 << 16 | _EXECUTION_MODE, entry_point, mode, width)
    ]
    if not modes:
        return module
    return _edited(words, {last_capability: [2 << 16 | _CAPABILITY, capability], last_mode: modes})


def require_functions_of_doubles(module: bytes, label: str) -> None:
    """Sees to it that no function is applied to 64-bit numbers that SPIR-V has for shorter ones only.

    Drivers take such a module and compute nonsense.

    Raises:
        CompileError: there is one.
    """
    doubles: set[int] = set()
    functions: int | None = None
    for instruction in instructions(words_of(module)):
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == _FUNCTION and not doubles:
            return  # types stand before functions
        if (opcode == _TYPE_FLOAT and operands[1] == 64) or (
            opcode == _TYPE_VECTOR and operands[1] in doubles
        ):
            doubles.add(operands[0])
        elif opcode == _EXT_INST_IMPORT and _text(operands[1:]) == _SHADER_FUNCTIONS:
            functions = operands[0]
        elif opcode == _EXT_INST and operands[0] in doubles and operands[2] == functions:
            name = _NARROW_FUNCTIONS.get(operands[3])
            if name is not None:
                raise CompileError(
                    f"kernel {label} takes {name} of a 64-bit number, which SPIR-V does not have"
                )


def _text(words: Sequence[int]) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words).partition(b"\0")[0]


def _edited(words: memoryview, added: dict[int, list[int]]) -> bytes:
    """The module with words put in at places."""
    parts: list[bytes] = []
    copied = 0
    for place in sorted(added):
        parts.append(words[copied:place].tobytes())
        parts += [word.to_bytes(4, "little") for word in added[place]]
        copied = place
    parts.append(words[copied:].tobytes())
    return b"".join(parts)
