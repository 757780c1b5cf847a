"""vkml's own compiler of kernels: what it makes of the language, and what it refuses."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.patience import patience
from vkml.kernels.slang import Unsupported
from vkml.kernels.slang import compile_kernel as compile_own
from vkml.kernels.slang import opcodes as op
from vkml.kernels.slang.body import Known, Value
from vkml.kernels.slang.tokens import tokens_of
from vkml.kernels.slang.types import INT
from vkml.vulkan.spirv import instructions, keep_arithmetic, words_of

if TYPE_CHECKING:
    from vkml.vulkan import Device

FRAME = """struct Push {{ int* x; int* y; int n; }};
[[vk::constant_id(0)]] const int SIZE = 1;
[[vk::push_constant]] ConstantBuffer<Push> push;
{0}
[shader("compute")] [numthreads(4, 1, 1)]
void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)
{{
    int i = int(thread);
{1}
}}
"""


BRANCH_CONDITIONAL = 250


def opcodes(code: bytes) -> list[int]:
    return [instruction.opcode for instruction in instructions(words_of(code))]


def of_text(statements: str, declarations: str = "") -> list[int]:
    """Opcodes of what the compiler makes of statements."""
    return opcodes(compile_own(FRAME.format(declarations, statements)))


# --- the language -------------------------------------------------------------------------------------------

LANGUAGE = {
    "loops": (
        "int odd(int n) { return n % 2 != 0 ? 1 : 0; }",
        """int sum = 0;
        for (int k = 0; k < push.n; ++k)
        {
            if (k == 2) continue;
            if (k > 7) break;
            sum += odd(k) * 10 + i;
        }
        while (true) { sum -= 3; if (sum < 20) break; }
        push.y[i] = sum;""",
        lambda i, x: looped(i),
    ),
    "unrolled": (
        "static const int TABLE[4] = { 5, -6, 7, 8 };",
        """int own[4];
        [ForceUnroll] for (int k = 0; k < 4; ++k)
        {
            own[k] = TABLE[(k + i) % 4];
            if (own[k] < 0) continue;
            [ForceUnroll] for (int j = 1; j < 4; j <<= 1) own[k] += push.x[j] << k;
        }
        push.y[i] = own[0] + own[i] * 100;""",
        lambda i, x: unrolled(i, x),
    ),
    "early returns and out parameters": (
        """int find(int at, out int rest, inout int count)
        {
            rest = -1;
            count += 2;
            if (at == 1) return 11;
            for (int k = 0; k < 8; ++k)
                if (push.x[k] > at) { rest = k; return 100 + push.x[k]; }
            return 12;
        }""",
        """int rest, count = 5;
        int found = find(i, rest, count);
        push.y[i] = found * 100 + rest * 10 + count;""",
        lambda i, x: returned(i, x),
    ),
    "structs, methods and shared memory": (
        """struct Pair
        {
            int low; int high[2];
            [mutating] void turn(int by) { if (SIZE_KNOWN == 0) return; low += by; high[by % 2] = low; }
            int at(int k) { return high[k] - low; }
        };
        static const int SIZE_KNOWN = 3;
        groupshared Pair pairs[4];
        Pair made(int a) { Pair p; p.low = a; p.high[0] = a * a; p.high[1] = 1; return p; }""",
        """pairs[i] = made(i + 2);
        GroupMemoryBarrierWithGroupSync();
        Pair other = pairs[3 - i];
        other.turn(i);
        push.y[i] = other.at(0) * 100 + other.at(i % 2) + other.low;""",
        lambda i, x: paired(i),
    ),
    "what is not computed": (
        "int never(int at) { return push.x[at / (at - at)]; }",
        """bool is_none = push.n < 0 && never(i) > 0;
        int y = is_none || i > 1 ? push.x[i] : i;
        push.y[i] = y + (push.n > 0 || never(i) > 0 ? 10 : 20);""",
        lambda i, x: (x[i] if i > 1 else i) + 10,
    ),
    "overloads, generics and types": (
        """T larger<T : __BuiltinIntegerType>(T a, T b) { return a < b ? b : a; }
        float larger(float a, float b) { return -1.0; }
        typealias Number = uint;""",
        """Number wide = 0x80000000u;
        uint2 pair = uint2(wide >> 31, uint(i));
        vector<int, 2> both = vector<int, 2>(int(pair.x), 7);
        both[i % 2] -= 3;
        int low = larger(i - 2, -1) + int(larger(uint(i), 2u)) * 10 + int(larger(1.0, 2.0)) * 100;
        push.y[i] = low + both.y * 1000 + int(wide > 1u) + (i - 5 >> 1) + int(float(i) * 1.75);""",
        lambda i, x: max(i - 2, -1) + max(i, 2) * 10 - 100 + (7 - 3 * (i % 2)) * 1000 + 1 + ((i - 5) >> 1)
        + int(i * 1.75),
    ),
    "specialization constants": (
        "static const int TWICE = SIZE * 2;",
        "push.y[i] = TWICE + (SIZE > 4 ? i : -i) + SIZE / 2 % 2;",
        lambda i, x: 10 + i,
    ),
}  # fmt: skip


def looped(i: int) -> int:
    total = sum(k % 2 * 10 + i for k in range(8) if k != 2)
    while True:
        total -= 3
        if total < 20:
            return total


def unrolled(i: int, x: Sequence[int]) -> int:
    table = [5, -6, 7, 8]
    own = [table[(k + i) % 4] for k in range(4)]
    own = [value if value < 0 else value + sum(x[j] << k for j in (1, 2)) for k, value in enumerate(own)]
    return own[0] + own[i] * 100


def returned(i: int, x: Sequence[int]) -> int:
    if i == 1:
        return 1100 - 10 + 7
    at = next((k for k in range(8) if x[k] > i), None)
    return 1200 - 10 + 7 if at is None else (100 + x[at]) * 100 + at * 10 + 7


def paired(i: int) -> int:
    low = 3 - i + 2
    high = [low * low, 1]
    low += i
    high[i % 2] = low
    return (high[0] - low) * 100 + high[i % 2] - low + low


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_language(vulkan_device_name: str, name: str) -> None:
    from vkml.vulkan import Device, find_device

    declarations, statements, expected = LANGUAGE[name]
    x = [-3, 4, 1, 9, 2, 0, 3, -8]
    with Device(find_device(vulkan_device_name)) as device:
        found = results(device, FRAME.format(declarations, statements), x, 4)
    assert found == [expected(i, x) for i in range(4)]


def results(device: Device, source: str, x: Sequence[int], count: int) -> list[int]:
    """What a kernel writes to y, given x."""
    from vkml.vulkan import MemoryKind

    given, made = (device.allocate(4 * size, MemoryKind.DEVICE) for size in (max(len(x), 1), count))
    device.upload(given, 0, np.array(x, np.int64).astype(np.uint32))
    # Mesa drops a conversion and the one back where it is allowed to.
    code = keep_arithmetic(compile_own(source))
    pipeline = device.pipeline(code, constants=[5], push_constant_bytes=24)
    recorder = device.recorder("language")
    recorder.dispatch(pipeline, struct.pack("<QQii", given.address, made.address, 9, 0), 1)
    recorder.barrier()
    submission = device.submission(recorder.finish())
    submission.submit()
    assert submission.wait(timeout_seconds=patience(60))
    return device.download(made, 0, 4 * count).view(np.int32).tolist()


UINT, NAN = np.uint32, float("nan")
EXPRESSIONS: list[tuple[str, tuple[int | float | np.uint32, ...], int | float]] = [
    ("{0} / {1}", (-7, 2), -3),
    ("{0} % {1}", (-7, 2), -1),
    ("{0} % {1}", (7, -2), 1),
    ("{0} % {1}", (-7, -2), -1),
    ("{0} % {1}", (-(2**31), 10), -8),
    ("{0} % 8", (-(2**31) + 3,), -5),
    ("(int2({0}, {1}) % int2({1}, 2)).x", (-7, 3), -1),
    ("{0} % {1}", (UINT(2**32 - 7), UINT(10)), 9),
    ("{0} % {1}", (-7.5, 2.0), -1.5),
    ("{0} << {1}", (3, 30), -(2**30)),
    ("{0} >> {1}", (-7, 1), -4),
    ("{0} >> {1}", (UINT(2**32 - 7), UINT(1)), 2**31 - 4),
    ("~{0} ^ ({1} & 6) | 8", (5, 3), ~5 ^ 2 | 8),
    ("-{0} - {1}", (-(2**31), 1), 2**31 - 1),
    ("2 * {0} + {0} * 2 + {0} / 2 + 2 / {0}", (3,), 13),
    ("0 + {0} - 0 | 0", (3,), 3),
    ("1 * {0} * 1 / 1 << 0 >> 0", (3,), 3),
    # The sign of an operand decides, and 32 bits without a sign are stronger than 32 with one.
    ("{0} < {1}", (-1, 1), 1),
    ("{0} < {1}", (UINT(2**32 - 1), UINT(1)), 0),
    ("{0} < {1}", (-1, UINT(1)), 0),
    ("{0} >= {1}", (UINT(2**31), UINT(1)), 1),
    ("{0} <= {1}", (-2, -2), 1),
    ("{0} > {1}", (-2, -2), 0),
    # NaN is unlike all, itself included, and no zero.
    *(
        ("{0} " + sign + " {1}", (1.0, 1.0), is_true)
        for sign, is_true in (("<", 0), ("<=", 1), (">", 0), (">=", 1))
    ),
    *(("{0} " + sign + " {1}", (NAN, NAN), int(sign == "!=")) for sign in ("<", "<=", ">", ">=", "==", "!=")),
    ("bool({0}) ? 3 : 4", (NAN,), 3),
    ("bool({0}) ? 3 : 4", (-0.0,), 4),
    # Between numbers and others, which are the nearest or those towards 0.
    ("uint({0})", (3e9,), 3000000000 - 2**32),
    ("int({0})", (-1.9,), -1),
    ("float({0})", (16777217,), 16777216.0),
    ("float({0})", (-(2**31),), -(2.0**31)),
    ("float({0})", (UINT(2**32 - 1),), 2.0**32),
    ("float({0} > 2)", (3,), 1.0),
    ("asint({0})", (-0.0,), -(2**31)),
    ("asint(asfloat({0}))", (UINT(0x7F800123),), 0x7F800123),
    ("min({0}, {1})", (UINT(2**31), UINT(1)), 1),
    ("max({0}, {1})", (UINT(2**31), UINT(1)), -(2**31)),
    ("min({0}, {1})", (-5, 3), -5),
    ("max({0}, {1})", (-5.5, -3.25), -3.25),
    ("clamp({0}, {1}, 7)", (-5, 2), 2),
    ("clamp({0}, {1}, 7u)", (UINT(2**31), UINT(1)), 7),
    ("abs({0})", (-5,), 5),
    ("abs({0})", (UINT(2**32 - 5),), -5),
    ("rint({0}) + 10.0 * rint({1})", (2.5, 3.5), 42.0),
    ("floor({0}) + 10.0 * ceil({1}) + 100.0 * trunc({1})", (-2.5, -1.5), -113.0),
    # Bytes of words; sums wrap.
    ("dot4add_i8packed({0}, {1}, {2})", (UINT(0x80FF7F02), UINT(0x80808003), 2**31 - 1), 262 - 2**31 - 1),
    ("dot4add_u8packed({0}, {1}, {2})", (UINT(0x80FF7F02), UINT(0x80808003), UINT(5)), 65291),
    ("dot4add_i8u8packed({0}, {1}, {2})", (UINT(0x80FF7F02), UINT(0x80808003), 5), -245),
    # Numbers as they are written.
    ("0.1", (), 0.1),
    ("16777217.0", (), 16777216.0),
    ("1e-3f + .5", (), float(np.float32(1e-3) + np.float32(0.5))),
    ("0x7fffffff", (), 2**31 - 1),
]
"""An expression, its operands, and what it is: known when the kernel is compiled, and found as it runs."""
HALVES = {
    0.1: float(np.float16(0.1)), -0.0: -0.0, 2049.0: 2048.0, -2051.0: -2052.0, 65519.0: 65504.0,
    65520.0: math.inf, -1e30: -math.inf, math.inf: math.inf, 2.0**-14: 2.0**-14, 2.0**-24: 2.0**-24,
    -2.5 * 2.0**-24: -(2.0**-23), 2.0**-25: 0.0, 1.001 * 2.0**-25: 2.0**-24, -1e-30: -0.0,
}  # fmt: skip
"""What numbers are as halves: ties go to the even one, also where places end at 2^-24."""
FAR, NEAR = "(uint64_t({0}) << 31)", "(uint64_t({1}) << 30)"
NARROW = [
    ("uint8_t({0}) + uint8_t({1})", (200, 100), 300),
    ("uint16_t({0}) - int16_t({1})", (1, 2), -1),
    ("uint16_t({0}) - {1} < 0", (1, 2), 1),
    ("int(int8_t({0}))", (200,), -56),
    ("uint(int8_t({0}))", (200,), -56),
    ("int(uint8_t({0}))", (-1,), 255),
    ("int(uint16_t({0}))", (-1.9 + 70001,), 70000 - 65536 - 1),
    ("-uint8_t({0})", (5,), -5),
    ("~uint8_t({0})", (5,), -6),
    ("int(int64_t({0}) * {1} >> 32)", (-(2**31), 6), -3),
    ("int(uint64_t({0}) * {1} >> 32)", (UINT(2**31), UINT(6)), 3),
    ("int(uint64_t({0}) >> 32)", (-1,), -1),
    ("int(uint64_t({0}) / uint64_t({1}))", (UINT(2**32 - 1), UINT(3)), (2**32 - 1) // 3),
    *(
        (f"int({text.format(FAR, NEAR)} >> 30)", operands, wanted)
        for text, operands, wanted in (
            ("({0} - {1})", (UINT(7), UINT(9)), 5),
            ("({0} - {1})", (UINT(4), UINT(9)), -1),
            ("({0} + {1})", (UINT(1), UINT(6)), 8),
            ("({0} > {1} ? {0} - {1} : uint64_t(0))", (UINT(7), UINT(9)), 5),
            ("({0} > {1} ? {0} - {1} : uint64_t(0))", (UINT(4), UINT(9)), 0),
            ("({0} - ({0} <= {1} ? {0} : {1}))", (UINT(7), UINT(9)), 5),
            ("({0} - ({0} <= {1} ? {0} : {1}))", (UINT(4), UINT(9)), 0),
            ("({0} + ({1} <= ~{0} ? {1} : ~{0}))", (UINT(1), UINT(6)), 8),
            ("({0} * {1} + (~{1} <= ~({0} * {1}) ? ~{1} : ~({0} * {1})))", (UINT(6), UINT(1)), -1),
        )
    ),
    ("int(int64_t({0}) * {1} % 1000)", (-(2**31), 7), -536),
    ("int(int64_t({0}) * {1} % int64_t({0}))", (-(2**31), 7), 0),
    ("int8_t({0}) % int16_t({1})", (249, 2), -1),
    *(
        (f"float({narrow})", (number,), rounded)
        for number, rounded in HALVES.items()
        for narrow in ("half({0})", "half2({0}, {0}).y", "-half({0} * -1.0)")
    ),
    ("float(abs(half({0})))", (-0.1,), float(np.float16(0.1))),
    ("float(half({0})) == float(half({0})) ? 1 : 2", (NAN,), 2),
    ("float(double(half({0})))", (-0.1,), float(np.float16(-0.1))),
    ("float(bit_cast<half>(uint16_t(uint(asuint16(half({0})))))) ", (0.1,), float(np.float16(0.1))),
    ("float(0.1h)", (), float(np.float16(0.1))),
    ("float(double({0}) - double(0.1))", (0.1,), 0.0),
    ("float(double(0.1) * 10.0 - 1.0)", (), float(np.float64(np.float32(0.1)) * 10 - 1)),
]
"""The same with other widths than 32 bits, which not every device has."""


@pytest.mark.parametrize("are_narrow", [False, True], ids=["words", "other widths"])
def test_expressions(vulkan_device_name: str, are_narrow: bool) -> None:
    """Integers and exact operations: known and at run time the same, and what C, and so Slang, says."""
    from vkml.vulkan import Device, find_device

    cases = NARROW if are_narrow else EXPRESSIONS
    given: list[int] = []
    lines = []
    for expression, operands, wanted in cases:
        known, read = [], []
        for operand in operands:
            word = f"push.x[{len(given)}]"
            if isinstance(operand, float):
                bits = int(np.float32(operand).view(np.uint32))
                known.append(f"asfloat({bits}u)")
                read.append(f"asfloat({word})")
                given.append(bits)
            else:
                is_unsigned = isinstance(operand, UINT)
                known.append(f"{operand}u" if is_unsigned else f"int({int(operand) & 0xFFFFFFFF}u)")
                read.append(f"uint({word})" if is_unsigned else word)
                given.append(int(operand))
        made = "asint" if isinstance(wanted, float) else "int"
        for texts in (known, read):
            lines.append(f"push.y[{len(lines)}] = {made}({expression.format(*texts)});")
    with Device(find_device(vulkan_device_name)) as device:
        able = device.info.capabilities
        if are_narrow and not (able.int8 and able.int16 and able.int64 and able.float16 and able.float64):
            return
        found = results(device, FRAME.format("", "\n".join(lines)), given, len(lines))
    wanted_bits = [
        int(np.float32(wanted).view(np.int32)) if isinstance(wanted, float) else wanted
        for _, _, wanted in cases
    ]
    wrong = {
        lines[index]: (found[index], wanted_bits[index // 2])
        for index in range(len(lines))
        if found[index] != wanted_bits[index // 2]
    }
    assert not wrong


def test_remainders_of_numbers_with_signs_are_what_division_leaves() -> None:
    """Vulkan leaves OpSRem and OpSMod of negative numbers undefined: NVIDIA's compiler makes 1 of -7 % 2."""
    signed, unsigned, of_floats = 138, 137, 140
    for type_ in ("int", "int2", "int8_t", "int64_t"):
        code = of_text(f"{type_} a = {type_}(push.x[0]), b = {type_}(push.x[1]), c = a % b;")
        assert not {signed, signed + 1, unsigned} & {*code}
    assert unsigned in of_text("uint a = uint(push.x[0]), b = a % uint(push.x[1]);")
    assert of_floats in of_text("float a = asfloat(push.x[0]), b = a % asfloat(push.x[1]);")


def test_what_was_narrowed_is_widened_by_its_bits() -> None:
    """NVIDIA's compiler leaves out a conversion to half and back, whatever lies between that keeps bits."""
    narrowings = (
        "float(half(x))",
        "float(half2(float2(x, x)).y)",
        "float(x > 1.0 ? half(x) : half(2.0))",
        "float(bit_cast<half>(uint16_t(uint(asuint16(half(x))))))",
        "double(half(x)) > double(1) ? 1.0 : 2.0",
    )
    convert, of_integer = 115, 112
    for narrowed in narrowings:
        code = of_text(f"float x = asfloat(push.x[i]); push.y[i] = asint({narrowed});")
        to_double = narrowed.startswith("double")
        assert (code.count(convert), code.count(of_integer)) == (1 + to_double, 1), narrowed
    branch = "half h = half(asfloat(push.x[0])); if (i > 1) h = half(2.0); push.y[i] = int(float(h));"
    assert of_integer in of_text(branch)
    # What memory has is widened by the instruction.
    stored = "half* halves = (half*)push.x;"
    loads = (
        "halves[i]",
        "loadAligned<4>((half2*)push.x).y",
        "loadAligned<8>((half4*)push.x)[i]",
        "bit_cast<half2>(push.x[i]).x",
        "bit_cast<half>(uint16_t(push.x[i] >> 16))",
        "(halves[i] * halves[i + 1])",
        "(i > 2 ? halves[i] : half(2.0))",
    )
    for loaded in loads:
        code = of_text(f"{stored} push.y[i] = asint(float({loaded}));")
        assert (code.count(convert), code.count(of_integer)) == (1, 0), loaded


def test_sums_and_differences_of_64_bits_are_made_of_words() -> None:
    """NVIDIA's compiler makes some saturate, with wrong upper words where 64-bit numbers are divided, too."""
    integer, vector, add, subtract, multiply = 21, 23, 128, 130, 132
    for type_ in ("uint64_t", "vector<uint64_t, 2>"):
        text = f"{type_} a = {type_}(push.x[0]), b = a * a, c = a - b + a; b += c; b -= a;"
        lines = list(instructions(words_of(compile_own(FRAME.format("", text)))))
        bits = {line.operands[0]: line.operands[1] for line in lines if line.opcode == integer}
        bits |= {line.operands[0]: bits.get(line.operands[1]) for line in lines if line.opcode == vector}
        found = [line.opcode for line in lines if line.operands and bits.get(line.operands[0]) == 64]
        assert multiply in found and not {add, subtract} & {*found}


def test_rint_takes_the_even_one_of_two() -> None:
    """RoundEven: which of two numbers that are equally near Round gives is the device's affair."""
    source = FRAME.format("", "push.y[i] = int(rint(asfloat(push.x[i])));")
    [call] = [line for line in instructions(words_of(compile_own(source))) if line.opcode == 12]
    assert call.operands[3] == 2


def test_macros_and_conditions() -> None:
    source = """
    #define A 2 // two
    #define TWICE(x, y) (x * A + y)
    #if A > 1 && !(A == 3)
    first TWICE(b, TWICE(c, 1))
    #else
    wrong
    #endif
    #ifdef B
    wrong
    #elif A == 2
    second /* comment */ 0x1Fu 1.5e-3
    #else
    wrong
    #endif
    #undef A
    A"""
    words = " ".join(token.text for token in tokens_of(source) if token.text)
    assert words == "first ( b * 2 + ( c * 2 + 1 ) ) second 0x1Fu 1.5e-3 A"


def test_what_is_known_is_computed() -> None:
    """Branches, loops and indices of known numbers leave no instructions."""
    code = of_text(
        """int total = 0;
        [ForceUnroll] for (int k = 0; k < 3; ++k) { if (k == 1) total += TABLE[k]; }
        if (!IS_ON) push.y[1] = 7;
        push.y[0] = total + room[0];""",
        """static const int TABLE[3] = { 1, 2, 3 }; static const bool IS_ON = 3 * 4 == 12;
        groupshared int room[TABLE[2] * 4];""",
    )
    branch_conditional, loop_merge, compare, store = 250, 246, 170, 62
    assert not {branch_conditional, loop_merge, compare} & {*code}
    assert code.count(store) == 3  # two of the variable, one of the result


# --- arithmetic ---------------------------------------------------------------------------------------------


ARITHMETIC = """
    float x = asfloat(push.x[0]), c = asfloat(push.x[1]);
    float found[8];
    found[0] = (x + c) - c;
    found[1] = x / x;
    found[2] = (x * 3.0) / 3.0;
    found[3] = -(-x);
    found[4] = 0.0 / x;
    found[5] = fma(x, c, x * 0.0);
    found[6] = x - x;
    found[7] = x + 0.0;
    push.y[i] = asint(found[i]);"""


@pytest.mark.parametrize(
    ("statements", "branches"),
    [
        ("int a[2] = { push.n, 7 }; push.y[i] = i > 3 ? a[0] : a[1];", 0),
        ("uint4 a[2]; a[1] = uint4(i); push.y[i] = int(i > 3 && a[1].x == 5 ? a[1][2] : a[1].w);", 0),
        ("int a[2] = { push.n, 7 }; push.y[i] = i > 3 ? a[i] : 2;", 1),  # an index that may lie outside
        ("push.y[i] = i > 3 ? push.x[0] : 2;", 1),
        ("push.y[i] = i > 3 ? room[0] : 2;", 1),
        ("[ForceUnroll] for (int k = 0; k < 2; ++k) push.y[i] += i > k ? push.x[k] : 2;", 2),
    ],
)
def test_what_is_in_registers_is_selected(statements: str, branches: int) -> None:
    """Elsewhere it is branched round: memory that is not wanted may not be read."""
    found = of_text(statements, "groupshared int room[4];")
    assert found.count(BRANCH_CONDITIONAL) == branches


def test_arithmetic_is_compiled_as_it_is_written() -> None:
    add, subtract, multiply, divide, negate, function = 129, 131, 133, 136, 127, 12
    operations = add, subtract, multiply, divide, negate, function
    wanted = [
        add,
        subtract,
        divide,
        multiply,
        divide,
        negate,
        negate,
        divide,
        multiply,
        function,
        subtract,
        add,
    ]
    assert [opcode for opcode in of_text(ARITHMETIC) if opcode in operations] == wanted


# --- matrices -----------------------------------------------------------------------------------------------

MATRICES = """using namespace linalg;
typealias Left = CoopMat<half, MemoryScope.Subgroup, 16, 16, CoopMatMatrixUse.MatrixA>;
typealias Sums = CoopMat<float, MemoryScope.Subgroup, 16, 16, CoopMatMatrixUse.MatrixAccumulator>;
groupshared uint2 room[64];
"""
ALIGNED, MAKE_AVAILABLE, MAKE_VISIBLE, NON_PRIVATE = 0x2, 0x8, 0x10, 0x20


def matrix_accesses(statements: str) -> list[tuple[int, int, tuple[int, ...]]]:
    """Of loads and stores of matrices: the pointer's storage class, bits of its elements, memory operands."""
    lines = list(instructions(words_of(compile_own(FRAME.format(MATRICES, statements)))))
    pointer_to, number_type, chain, pointer_chain, vector = 32, (21, 22), 65, 67, 23
    bits = {line.operands[0]: line.operands[1] for line in lines if line.opcode in number_type}
    for line in lines:
        if line.opcode == vector:
            bits[line.operands[0]] = bits[line.operands[1]] * line.operands[2]
    kinds = {line.operands[0]: tuple(line.operands[1:3]) for line in lines if line.opcode == pointer_to}
    types = {line.operands[1]: line.operands[0] for line in lines if line.opcode in (chain, pointer_chain)}
    numbers = {line.operands[1]: line.operands[2] for line in lines if line.opcode == 43}
    found = []
    for line in lines:
        if line.opcode in (4457, 4458):
            pointer = line.operands[2 if line.opcode == 4457 else 0]
            storage, element = kinds[types[pointer]]
            memory = tuple(line.operands[5 if line.opcode == 4457 else 4 :])
            found.append((storage, bits[element], (*memory[:2], *(numbers[each] for each in memory[2:]))))
    return found


def test_matrices_lie_in_shared_and_in_device_memory() -> None:
    found = matrix_accesses(
        """Left a = Left.Load<CoopMatMatrixLayout.RowMajor>(room, 4, 4);
        Left b = Left.Load<CoopMatMatrixLayout.ColumnMajor>((half*)push.x, 8 * push.n, 16);
        (a + b).Store<CoopMatMatrixLayout.RowMajor>(room, 4 * i, 4);"""
    )
    shared, device, plain = 4, 5349, (ALIGNED, 16)
    assert found == [(shared, 64, plain), (device, 16, plain), (shared, 64, plain)]


def test_matrices_that_other_workgroups_read_are_made_available_to_them() -> None:
    found = matrix_accesses(
        """float* parts = (float*)push.y;
        Sums sums = Sums(1.0);
        sums.StoreCoherent<CoopMatMatrixLayout.RowMajor>(parts, 256 * i, 16, MemoryScope.Device);
        AllMemoryBarrierWithGroupSync();
        sums = Sums.LoadCoherent<CoopMatMatrixLayout.RowMajor>(parts, 256 * push.n, 16, MemoryScope.Device);
        sums.Store<CoopMatMatrixLayout.RowMajor>(parts, 256 * i, 16);"""
    )
    scope_device, ways = 1, [MAKE_AVAILABLE, MAKE_VISIBLE]
    coherent = [(5349, 32, (ALIGNED | way | NON_PRIVATE, 16, scope_device)) for way in ways]
    assert found == [*coherent, (5349, 32, (ALIGNED, 16))]


@pytest.mark.parametrize(
    ("name", "waiting", "memory", "semantics"),
    [
        ("GroupMemoryBarrierWithGroupSync", 2, 2, 0x108),
        ("AllMemoryBarrierWithGroupSync", 2, 1, 0x148),
        ("AllMemoryBarrierWithWaveSync", 3, 3, 0x148),
    ],
)
def test_barriers(name: str, waiting: int, memory: int, semantics: int) -> None:
    """Who waits, whom writes reach, and which memory is meant (acquire and release; shared; device)."""
    lines = list(instructions(words_of(compile_own(FRAME.format("", f"{name}();")))))
    numbers = {line.operands[1]: line.operands[2] for line in lines if line.opcode == 43}
    [barrier] = [line for line in lines if line.opcode == 224]
    assert [numbers[each] for each in barrier.operands] == [waiting, memory, semantics]


COHERENT = """
    storeCoherent<4, MemoryScope.Device>(push.y + i, 3);
    PhaseBarrier();
    uint* counter = (uint*)push.x;
    if (i == 0)
        room[0].x = __atomic_add(counter[SIZE], 1u, MemoryOrder.AcquireRelease);
    GroupMemoryBarrierWithGroupSync();
    push.y[i] = loadCoherent<4, MemoryScope.Device>(push.y + i) + int(room[0].x);
"""


def test_what_workgroups_write_for_each_other_is_ordered() -> None:
    """Accesses are of the device's scope, a barrier makes them one thread's, an atomic operation orders them.

    What is not said to be coherent stays private, but for memory of the workgroup.
    """
    lines = list(instructions(words_of(compile_own(FRAME.format("groupshared uint2 room[8];", COHERENT)))))
    numbers = {line.operands[1]: line.operands[2] for line in lines if line.opcode == 43}
    device, workgroup, scope_device = 5349, 4, 1
    storages = {line.operands[0]: line.operands[1] for line in lines if line.opcode == op.TYPE_POINTER}
    pointers = {line.operands[1]: storages.get(line.operands[0]) for line in lines if len(line.operands) > 1}
    stores = [line.operands for line in lines if line.opcode == op.STORE]
    found = [(pointers[each[0]], tuple(each[2:])) for each in stores]
    loads = [line.operands for line in lines if line.opcode == op.LOAD]
    found += [(pointers[each[2]], tuple(each[3:])) for each in loads]
    seen = [
        (storage, (how[0], *how[1:2], *(numbers[each] for each in how[2:])))
        for storage, how in found
        if storage in (device, workgroup)
    ]
    assert sorted(seen) == sorted(
        [
            (device, (ALIGNED | MAKE_AVAILABLE | NON_PRIVATE, 4, scope_device)),
            (device, (ALIGNED | MAKE_VISIBLE | NON_PRIVATE, 4, scope_device)),
            (device, (ALIGNED, 4)),
            (workgroup, (NON_PRIVATE,)),
            (workgroup, (NON_PRIVATE,)),
        ]
    )
    [atomic] = [line.operands for line in lines if line.opcode == op.ATOMIC_I_ADD]
    assert [numbers[each] for each in atomic[3:5]] == [scope_device, 0x48]
    barriers = [[numbers[each] for each in line.operands] for line in lines if line.opcode == 224]
    assert barriers == [[2, 2, 0x6148], [2, 2, 0x6108]]
    capabilities = {line.operands[0] for line in lines if line.opcode == op.CAPABILITY}
    assert {op.MEMORY_MODEL_VULKAN, op.MEMORY_MODEL_DEVICE_SCOPE} <= capabilities
    [model] = [tuple(line.operands) for line in lines if line.opcode == op.MEMORY_MODEL]
    assert model == (5348, op.VULKANS_MODEL)


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ("switch (i) { default: break; }", "'switch'|expected"),
        ("push.y[i] = tanh(1.0);", "the function tanh"),
        ("push.y[i] = nobody;", "the name nobody"),
        ("push.y[i] = larger(1, 2);", "the function larger"),
        ("int a[2]; push.y[i] = a[2];", "the element 2 of 2"),
        ("int none[SIZE / 2]; push.y[i] = 1;", "a size that is not known"),
        ("int none[3 / 4]; push.y[i] = 1;", "an array of 0 elements"),
        ("[ForceUnroll] for (int k = 0; k < push.n; ++k) push.y[k] = 1;", "whose end is not known"),
        ("push.x[0] = ", "expected"),
        (
            "Sums.LoadCoherent<CoopMatMatrixLayout.RowMajor>(room, 0, 4, MemoryScope.Workgroup);",
            "another scope",
        ),
        ("storeCoherent<4, MemoryScope.Workgroup>(push.y, 1);", "another scope"),
        ("push.y[i] = __atomic_add(push.x[0], 1, MemoryOrder.Relaxed);", "another order"),
        (
            "Sums.Load<CoopMatMatrixLayout.RowMajor>(i, 0, 4);",
            "neither in a shared array nor behind a pointer",
        ),
    ],
)
def test_what_is_not_known_is_named(statements: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        compile_own(FRAME.format(MATRICES, statements))


def test_what_is_known_of_places_is_what_was_written_last() -> None:
    """A place within another and the other one know of each other, however deep both lie."""
    paths = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    draw = random.Random(4)
    for _ in range(300):
        known, expected = Known(), dict[tuple[int, ...], Value]()
        for _ in range(6):
            path, value = draw.choice(paths), Value(INT)
            if draw.random() < 0.4:
                known.add(path, value)
            else:
                known.replace(path, value)
                expected = {
                    other: held
                    for other, held in expected.items()
                    if other[: len(path)] != path[: len(other)]
                }
            expected[path] = value
            assert known.values == expected
