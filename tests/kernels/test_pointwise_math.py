"""The Slang of all pointwise operators' scalar forms: it compiles, needs no idle capability, and is right."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import vkml.ops  # noqa: F401  (fills the registry)
from tests.patience import patience
from vkml.errors import InvalidGraph
from vkml.ir import DType, Known, Node, Operator, dtypes, static
from vkml.ir.lowering import CannotLower
from vkml.ir.operator import REGISTRY, normalise_attributes
from vkml.ir.scalar import Scalar, argument
from vkml.kernels.compiling import compile_kernel
from vkml.kernels.pointwise_math import math_used_by
from vkml.kernels.scalar_text import literal, write_statements
from vkml.kernels.writer import COMPUTE, STORAGE, KernelWriter, load_expression, store_expression, template
from vkml.ops.cast import Cast
from vkml.ops.elementwise import Clip
from vkml.ops.pointwise import Pointwise

Array = np.ndarray[Any, Any]

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "Gelu": [{"approximate": "none"}, {"approximate": "tanh"}],
    "Mod": [{"fmod": 0}, {"fmod": 1}],
    "BitShift": [{"direction": "LEFT"}, {"direction": "RIGHT"}],
    "IsInf": [
        {},
        {"detect_negative": 0},
        {"detect_positive": 0},
        {"detect_negative": 0, "detect_positive": 0},
    ],
    "Shrink": [{"lambd": 1.5, "bias": 2.0}],
    "LeakyRelu": [{"alpha": 0.3}],
    "Celu": [{"alpha": 1.5}],
    "ThresholdedRelu": [{"alpha": -0.5}],
}
# Where "float" meets "float16" the kernel is the same: both are computed with as float.
NUMBERS = [dtype for dtype in dtypes.NUMBERS if dtype.is_native]
TYPES = [dtype for dtype in (*NUMBERS, dtypes.BOOL) if dtype != dtypes.FLOAT16]


@dataclass(frozen=True)
class Case:
    """One form: a node, the types it is asked for, what it does to an element."""

    node: Node
    spec: Operator
    types: tuple[DType, ...]
    result: DType
    form: Scalar

    @property
    def label(self) -> str:
        return f"{self.node.op}{dict(self.node.attributes)} of {', '.join(map(str, self.types))}"


def case_of(op: str, types: Sequence[DType], attributes: dict[str, Any]) -> Case | None:
    """The case, or None where the operator does not take the types or has no form for them in Slang."""
    spec = REGISTRY["", op]
    node = Node(op, tuple(f"x{i}" for i in range(len(types))), ("y",), attributes, version=26)
    node = Node(op, node.inputs, node.outputs, normalise_attributes(node, spec), version=26)
    try:
        result = spec.infer(node, [Known(static(dtype, ())) for dtype in types])[0].dtype
    except InvalidGraph:
        return None
    form = spec.scalar(node, [argument(n, dtype) for n, dtype in enumerate(types)], types, result)
    if form is None:
        return None
    try:
        statements(form)
    except CannotLower:
        return None
    return Case(node, spec, tuple(types), result, form)


def statements(form: Scalar) -> tuple[list[str], str]:
    """The Slang of a form whose arguments are x0, x1, …, and the operand of its result."""
    lines, [result] = write_statements(KernelWriter(), [form], ["x0", "x1", "x2"], "")
    return lines, result


def cases(dtype: DType) -> Iterator[Case]:
    """Every form whose first number is of `dtype`."""
    for (domain, op), spec in REGISTRY.items():
        if domain or not spec.is_pointwise or not isinstance(spec, Pointwise | Clip):
            continue
        arity = 3 if op in ("Max", "Min", "Sum", "Mean", "Clip") else spec.inputs[0]
        for attributes in VARIANTS.get(op, [{}]):
            found = case_of(op, [dtype] * arity, attributes)
            if found:
                yield found
    optional = [
        case_of("Where", [dtypes.BOOL, dtype, dtype], {}),
        *(case_of("Cast", [dtype], {"to": target.code}) for target in (*TYPES, dtypes.FLOAT16)),
        *(case_of("Pow", [dtype, exponent], {}) for exponent in NUMBERS if dtype != exponent),
    ]
    yield from (case for case in optional if case)


def kernel(found: Sequence[Case]) -> str:
    """A kernel that computes each case into its own array."""
    fields, lines = [], []
    for number, case in enumerate(found):
        for index, dtype in enumerate(case.types):
            fields.append(f"{STORAGE[dtype]}* a{number}_{index};")
            lines.append(
                f"{COMPUTE[dtype]} x{index} = {load_expression(f'p.a{number}_{index}', 'i', dtype)};"
            )
        fields.append(f"{STORAGE[case.result]}* o{number};")
        written, result = statements(case.form)
        lines.append(f"{' '.join(written)} p.o{number}[i] = {store_expression(result, case.result)};")
        lines[-len(case.types) - 1 :] = ["{ " + " ".join(lines[-len(case.types) - 1 :]) + " }"]
    body = "\n".join(lines)
    return f"""struct Arguments {{ {" ".join(fields)} }};
struct Push {{ Arguments* p; uint count; uint zero; }};
[[vk::push_constant]] ConstantBuffer<Push> push;
{math_used_by(body)}
[shader("compute")] [numthreads(64, 1, 1)]
void main(uint3 id : SV_DispatchThreadID)
{{
    uint i = id.x;
    if (i >= push.count) return;
    Arguments p = *push.p;
{body}
}}
"""


def capabilities(code: bytes) -> set[int]:
    """The operands of OpCapability in SPIR-V."""
    words = np.frombuffer(code, "<u4")
    found, at = set(), 5
    while at < len(words):
        if words[at] & 0xFFFF == 17:
            found.add(int(words[at + 1]))
        at += int(words[at]) >> 16
    return found


FLOAT64, INT64 = 10, 11


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_form_compiles(dtype: DType) -> None:
    found = list(cases(dtype))
    assert len(found) > 5
    compile_kernel(kernel(found), f"all of {dtype}")


def test_types_that_are_not_used_need_no_capability() -> None:
    for dtype in (dtypes.FLOAT32, dtypes.INT32, dtypes.UINT32, dtypes.BOOL):
        narrow = [case for case in cases(dtype) if all(d.bits <= 32 for d in (*case.types, case.result))]
        found = capabilities(compile_kernel(kernel(narrow), f"narrow {dtype}"))
        # The kernel's pointers alone bring PhysicalStorageBufferAddresses, never these:
        assert FLOAT64 not in found and INT64 not in found, dtype


def test_every_function_of_the_file_is_some_forms() -> None:
    """So `test_every_form_compiles` compiles all of them."""
    there = set(re.findall(r"^(?:\w+ )+(\w+)(?:<[^>]*>)?\(", template("pointwise_math"), re.MULTILINE))
    used = "\n".join(kernel(list(cases(dtype))) for dtype in TYPES)
    assert len(there) > 50 and {name for name in there if not re.search(rf"\b{name}\(", used)} == set()


def test_only_what_is_called_is_included() -> None:
    assert math_used_by("a + b") == ""
    text = math_used_by("y = error_function(x);")
    assert "float error_function(" in text and "bool is_nan_32(" in text
    assert "power" not in text and "double" not in text
    assert math_used_by("sine(x)").count("static const uint TURNS[8]") == 1


def test_operators_without_a_form_are_known() -> None:
    """A ratchet: the pointwise operators that run on the CPU for lack of a form."""
    for dtype in (dtypes.FLOAT32, dtypes.INT32, dtypes.INT64, dtypes.UINT8):
        for (domain, op), spec in REGISTRY.items():
            if domain or not isinstance(spec, Pointwise) or dtype not in spec.allowed:
                continue
            arity = spec.inputs[0]
            assert case_of(op, [dtype] * arity, VARIANTS.get(op, [{}])[0]) is not None, (op, dtype)


def test_literals() -> None:
    assert literal(0.1, dtypes.FLOAT32) == f"float({float(np.float32(0.1))!r})"
    assert literal(-2.0, dtypes.FLOAT16) == "float(-2.0)"
    assert literal(float("inf"), dtypes.FLOAT32) == "asfloat(0x7f800000u)"
    assert literal(float("-inf"), dtypes.FLOAT32) == "asfloat(0xff800000u)"
    assert literal(0.5, dtypes.FLOAT64) == "asdouble(0x0u, 0x3fe00000u)"
    assert literal(-3, dtypes.INT8) == "int(0xfffffffdu)"
    assert literal(2**64 - 1, dtypes.UINT64) == "uint64_t(0xffffffffffffffffull)"
    assert literal(True, dtypes.BOOL) == "true"


# -- on a device --------------------------------------------------------------------------------------------


def run(device: Any, found: Sequence[Case], feeds: Sequence[Sequence[Array]]) -> list[Array]:
    """Runs one kernel of several cases on a Vulkan device."""
    from vkml.vulkan import MemoryKind

    count = feeds[0][0].size
    memories = []  # memory is freed with the last reference to it
    outputs = []
    for case, arrays in zip(found, feeds, strict=True):
        for array in arrays:
            data = array.view(np.uint8) if array.dtype == np.bool_ else array
            memories.append(device.allocate(max(data.nbytes, 4), MemoryKind.DEVICE))
            device.upload(memories[-1], 0, np.ascontiguousarray(data))
        memories.append(device.allocate(count * case.result.storage.itemsize, MemoryKind.DEVICE))
        outputs.append((memories[-1], case.result))
    table = device.allocate(8 * len(memories), MemoryKind.DEVICE)
    device.upload(table, 0, np.array([memory.address for memory in memories], np.uint64))
    pipeline = device.pipeline(compile_kernel(kernel(found), "checked"), constants=[], push_constant_bytes=16)
    recorder = device.recorder("checked")
    recorder.dispatch(pipeline, struct.pack("<QII", table.address, count, 0), -(-count // 64))
    recorder.barrier()
    submission = device.submission(recorder.finish())
    submission.submit()
    assert submission.wait(timeout_seconds=patience(100))
    return [
        device.download(memory, 0, count * dtype.storage.itemsize).view(dtype.storage).copy()
        for memory, dtype in outputs
    ]


def reference(case: Case, arrays: Sequence[Array]) -> Array:
    """The operator's own NumPy result; floats are computed in double."""
    node = case.node
    # Sums cancel in any precision; all else is a function that float rounds once.
    is_exact = node.op in ("Add", "Sub", "Sum", "Mean")
    wide = [a.astype(np.float64) if a.dtype == np.float32 and not is_exact else a for a in arrays]
    if isinstance(case.spec, Clip):
        wide[1:] = [bound[:1] for bound in wide[1:]]
    if isinstance(case.spec, Cast):
        return np.asarray(case.spec.evaluate(node, arrays)[0])
    return np.asarray(case.spec.evaluate(node, wide)[0])


SPECIAL = np.array(
    [0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-7, -1e-7, 1e-30, 20, -20, 88, -88, 89, 104, -104, 3e38,
     -3e38, np.inf, -np.inf, np.nan, 1e4, 1e6, 1e10, -1e20, 16777216, 8191.9, 8192.1],
    np.float32,
)  # fmt: skip


def float_inputs(op: str, count: int, arity: int) -> list[Array]:
    """Numbers of every size, and the special ones against each other."""
    rng = np.random.default_rng(len(op))
    size = count - SPECIAL.size**2
    half = size // 2
    arrays = []
    for index in range(arity):
        small = rng.standard_normal(half) * 3
        large = rng.standard_normal(size - half) * np.exp2(rng.integers(-20, 20, size - half))
        special = np.repeat(SPECIAL, SPECIAL.size) if index % 2 == 0 else np.tile(SPECIAL, SPECIAL.size)
        arrays.append(np.concatenate([special, small, large]).astype(np.float32))
    if op == "Clip":
        arrays[1][:], arrays[2][:] = -1.5, 2.25
    if op in ("Asin", "Acos", "Atanh"):
        arrays[0][SPECIAL.size**2 :] = np.tanh(arrays[0][SPECIAL.size**2 :])
    return arrays


# Relative error allowed where it is not 1e-6: a few of the last of 24 bits, and a division of 2.5.
RELATIVE = {"Pow": 4e-6, "Tan": 1e-5, "Selu": 2e-6, "Softplus": 2e-6, "Acosh": 2e-6, "Swish": 2e-6}
# Absolute error allowed: what the operator's formula cancels.
ABSOLUTE = {"Sin": 2e-7, "Cos": 2e-7, "Gelu": 2e-5, "Celu": 1e-6, "HardSwish": 1e-6, "HardSigmoid": 2e-7}
# A device may flush a factor to zero that is smaller than the product.
ABSOLUTE |= {"Swish": 1e-36, "Mish": 1e-36}
SMALLEST = 1.2e-38
"""Below this a device may flush numbers to zero."""


def test_floats_on_a_device(vulkan_device_name: str) -> None:
    from vkml.vulkan import Device, find_device

    count = 4096
    found = [
        case for case in cases(dtypes.FLOAT32) if all(d.bits in (8, 32) for d in (*case.types, case.result))
    ]
    found = [c for c in found if {*c.types, c.result} <= {dtypes.FLOAT32, dtypes.INT32, dtypes.UINT32}]
    found = [c for c in found if c.node.op not in ("Cast", "Pow") or c.types == (dtypes.FLOAT32,) * 2]
    feeds = [float_inputs(case.node.op, count, len(case.types)) for case in found]
    with Device(find_device(vulkan_device_name)) as device:
        results = run(device, found, feeds)
    problems = []
    for case, arrays, result in zip(found, feeds, results, strict=True):
        expected = reference(case, arrays)
        if expected.dtype == np.bool_:
            np.testing.assert_array_equal(result, expected, err_msg=case.label)
            continue
        with np.errstate(all="ignore"):
            limit = np.abs(expected) * RELATIVE.get(case.node.op, 1e-6) + ABSOLUTE.get(case.node.op, 0)
            error = np.abs(result.astype(np.float64) - expected)
            # Beyond float's range a double is finite; next to it either is right.
            overflow = np.abs(expected) > 3.4028e38
            same = (result == expected) | (np.isnan(result) & np.isnan(expected))
            same |= overflow & ((np.sign(expected) * np.inf == result) | (np.abs(result) > 3.4e38))
            same |= (np.abs(expected) < SMALLEST) & (np.abs(result) < 2 * SMALLEST)
            wrong = ~(same | (error <= limit))
        if wrong.any():
            at = np.flatnonzero(wrong)[:4]
            shown = [([float(a[i]) for a in arrays], float(result[i]), float(expected[i])) for i in at]
            problems.append(f"{case.label}: {int(wrong.sum())} wrong, (inputs, found, expected): {shown}")
    assert not problems, "\n".join(problems)


def test_divisions_are_rounded_as_ieee_says(vulkan_device_name: str) -> None:
    """To the last bit, where all three numbers are above 2^-78."""
    from vkml.vulkan import Device, find_device

    count, rng = 1 << 16, np.random.default_rng(7)
    x, y = (rng.standard_normal((2, count)) * np.exp2(rng.integers(-40, 40, (2, count)))).astype(np.float32)
    whole = rng.integers(-2000, 2000, (2, count // 2)).astype(np.float32)
    x[::2], y[::2] = whole[0], np.where(whole[1] == 0, 3, whole[1])
    y[:4096] = np.float32(5) / np.float32(255)  # what quantises: half of the levels are ties
    x[:4096] = np.arange(4096).astype(np.float32) / 2 * y[0]
    if find_device(vulkan_device_name, True).is_software:
        # As near to a tie as there is: what divides exactly stays as it is; GPUs may miss the last place.
        x[4100:4200:2], y[4100:4200:2] = 2.0 ** np.arange(-25, 25), np.nextafter(np.float32(1), np.float32(0))
        x[4101], y[4101] = 9544155, 13116211
    x[4096:4100], y[4096:4100] = [0.0, -0.0, np.inf, -1.0], [-3.0, 3.0, 2.0, 3e20]
    [case] = [case_of("Div", [dtypes.FLOAT32, dtypes.FLOAT32], {})]
    assert case is not None
    with Device(find_device(vulkan_device_name)) as device:
        [found] = run(device, [case], [[x, y]])
    quotients = x / y
    is_exact = np.min(np.abs([x, y, quotients]), axis=0) > 2.0**-78
    is_exact |= (quotients == 0) | np.isinf(quotients)
    assert np.count_nonzero(is_exact) > 0.99 * count
    np.testing.assert_array_equal(found[is_exact].view(np.uint32), quotients[is_exact].view(np.uint32))
    np.testing.assert_allclose(found[~is_exact], quotients[~is_exact], rtol=3 * 2.0**-23)


def whole_inputs(case: Case, count: int) -> list[Array]:
    """Small numbers, numbers of all sizes and the extremes; exponents and divisors of 0 and -1 among them."""
    rng = np.random.default_rng(len(case.node.op))
    arrays = []
    for index, dtype in enumerate(case.types):
        if dtype == dtypes.BOOL:
            arrays.append(rng.integers(0, 2, count).astype(np.bool_))
            continue
        if dtype.is_float:
            arrays.append((rng.standard_normal(count) * 50).astype(dtype.storage))
            continue
        info = np.iinfo(dtype.storage)
        edges = np.array([info.min, info.max, 0, 1, info.max - 1, info.min + 1], dtype.storage)
        near = rng.integers(-9 if info.min else 0, 10, count // 2).astype(dtype.storage)
        far = rng.integers(info.min, info.max, count - count // 2 - 36, dtype=dtype.storage, endpoint=True)
        edged = np.repeat(edges, 6) if index % 2 == 0 else np.tile(edges, 6)
        values = np.concatenate([edged, near, far])
        if case.node.op == "Pow" and index:
            values = np.abs(values % 13).astype(dtype.storage)
        arrays.append(values)
    if case.node.op == "Clip":
        arrays[1][:], arrays[2][:] = 3, 7
    return arrays


@pytest.mark.parametrize("dtype", [d for d in TYPES if d.bits <= 64 and not d.is_float], ids=str)
def test_integers_on_a_device(vulkan_device_name: str, dtype: DType) -> None:
    from vkml.vulkan import Device, find_device

    with Device(find_device(vulkan_device_name)) as device:
        able = device.info.capabilities
        can = {
            64: able.int64,
            32: True,
            16: able.int16 and able.storage_16bit,
            8: able.int8 and able.storage_8bit,
        }
        found = [
            case
            for case in cases(dtype)
            if all(
                can[d.bits] and (not d.is_float or d == dtypes.FLOAT32) for d in (*case.types, case.result)
            )
        ]
        if not found:
            return
        feeds = [whole_inputs(case, 512) for case in found]
        results = run(device, found, feeds)
    for case, arrays, result in zip(found, feeds, results, strict=True):
        expected = reference(case, arrays)
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(result, expected, rtol=1e-6, err_msg=case.label)
        else:
            np.testing.assert_array_equal(result, expected, err_msg=f"{case.label}: {case.form}")


def test_conversions_of_floats_on_a_device(vulkan_device_name: str) -> None:
    from vkml.vulkan import Device, find_device

    values = (np.random.default_rng(1).standard_normal(256) * 40).astype(np.float32)
    values[:4] = [0.0, -0.0, 1.9, -1.9]
    with Device(find_device(vulkan_device_name)) as device:
        able = device.info.capabilities
        targets = [dtypes.INT32, dtypes.UINT32]
        targets += [dtypes.INT64, dtypes.UINT64] if able.int64 else []
        targets += [dtypes.FLOAT64] if able.float64 else []
        targets += [dtypes.INT8, dtypes.UINT8, dtypes.BOOL] if able.int8 and able.storage_8bit else []
        targets += [dtypes.FLOAT16] if able.float16 and able.storage_16bit else []
        made = [case_of("Cast", [dtypes.FLOAT32], {"to": target.code}) for target in targets]
        found = [case for case in made if case]
        results = run(device, found, [[values]] * len(found))
    for case, result in zip(found, results, strict=True):
        np.testing.assert_array_equal(result, reference(case, [values]), err_msg=case.label)


def test_doubles_on_a_device(vulkan_device_name: str) -> None:
    from vkml.vulkan import Device, find_device

    with Device(find_device(vulkan_device_name)) as device:
        able = device.info.capabilities
        if not able.float64:
            return
        every = {*NUMBERS} if able.int64 and able.int8 and able.int16 else {dtypes.FLOAT64}
        found = [
            case for case in cases(dtypes.FLOAT64) if {*case.types, case.result} <= every - {dtypes.FLOAT16}
        ]
        feeds = [whole_inputs(case, 512) for case in found]
        for case, arrays in zip(found, feeds, strict=True):
            for array in arrays[: 1 if case.node.op in ("Cast", "Clip") else None]:
                if array.dtype == np.float64 and case.node.op != "Cast":
                    array[:6] = [0, -0.0, np.inf, -np.inf, np.nan, 1e300]
        results = run(device, found, feeds)
    for case, arrays, result in zip(found, feeds, results, strict=True):
        # What float32 cancels, of float64's bits.
        least = ABSOLUTE.get(case.node.op, 0) * 2.0 ** (24 - 53)
        np.testing.assert_allclose(result, reference(case, arrays), 1e-14, least, err_msg=case.label)
