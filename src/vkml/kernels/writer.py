"""Puts a kernel's Slang source together: push and specialization constants, generated functions, template."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

from vkml.errors import NotImplemented
from vkml.ir import DType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Size
from vkml.ir.size_terms import Terms
from vkml.kernels.spec import Dispatch, KernelSpec, KernelText
from vkml.kernels.views import Buffer, View

STORAGE = {
    dtypes.FLOAT32: "float",
    dtypes.FLOAT16: "half",
    dtypes.FLOAT64: "double",
    dtypes.INT8: "int8_t",
    dtypes.INT16: "int16_t",
    dtypes.INT32: "int",
    dtypes.INT64: "int64_t",
    dtypes.UINT8: "uint8_t",
    dtypes.UINT16: "uint16_t",
    dtypes.UINT32: "uint",
    dtypes.UINT64: "uint64_t",
    dtypes.BOOL: "uint8_t",
    dtypes.BFLOAT16: "uint16_t",
    **dict.fromkeys((*dtypes.FLOAT8S, dtypes.FLOAT8E8M0, dtypes.FLOAT4E2M1), "uint8_t"),
    **dict.fromkeys((dtypes.INT4, dtypes.UINT4, dtypes.INT2, dtypes.UINT2), "uint8_t"),
}
"""Slang type of an element in memory."""

COMPUTE = {
    dtypes.FLOAT32: "float",
    dtypes.FLOAT16: "float",
    dtypes.FLOAT64: "double",
    dtypes.INT8: "int",
    dtypes.INT16: "int",
    dtypes.INT32: "int",
    dtypes.INT64: "int64_t",
    dtypes.UINT8: "uint",
    dtypes.UINT16: "uint",
    dtypes.UINT32: "uint",
    dtypes.UINT64: "uint64_t",
    dtypes.BOOL: "bool",
    dtypes.BFLOAT16: "float",
    **dict.fromkeys((*dtypes.FLOAT8S, dtypes.FLOAT8E8M0, dtypes.FLOAT4E2M1), "float"),
    **dict.fromkeys((dtypes.INT4, dtypes.INT2), "int"),
    **dict.fromkeys((dtypes.UINT4, dtypes.UINT2), "uint"),
}
"""Slang type in which an element is computed with: fp16 is computed in fp32 and rounded when stored."""

CODED = frozenset(dtype for dtype in STORAGE if not dtype.is_native)
"""Types that Slang lacks: functions of number_formats.slang turn their codes into numbers and back."""

NEEDS = {
    dtypes.FLOAT16: ("float16", "storage_16bit"),
    dtypes.FLOAT64: ("float64",),
    dtypes.INT8: ("int8", "storage_8bit"),
    dtypes.UINT8: ("int8", "storage_8bit"),
    dtypes.BOOL: ("int8", "storage_8bit"),
    dtypes.INT16: ("int16", "storage_16bit"),
    dtypes.UINT16: ("int16", "storage_16bit"),
    dtypes.INT64: ("int64",),
    dtypes.UINT64: ("int64",),
    dtypes.BFLOAT16: ("int16", "storage_16bit"),
    **{dtype: ("int8", "storage_8bit") for dtype in CODED - {dtypes.BFLOAT16}},
}
"""Capabilities a device must have to load and store an element type."""


def storage_type(dtype: DType) -> str:
    """Slang's type for a stored element; `CannotLower` for types no kernel handles."""
    try:
        return STORAGE[dtype]
    except KeyError:
        raise CannotLower(f"no Vulkan kernel handles {dtype.name}") from None


def compute_type(dtype: DType) -> str:
    storage_type(dtype)
    return COMPUTE[dtype]


def load_expression(pointer: str, index: str, dtype: DType) -> str:
    """One element read from memory, in its compute type."""
    return loaded(f"{pointer}[{index}]", dtype)


def loaded(element: str, dtype: DType) -> str:
    """An element as memory has it, in its compute type."""
    if dtype == dtypes.BOOL:
        return f"({element} != 0)"
    if dtype in CODED:
        return f"from_{dtype.name}({element})"
    return element if STORAGE[dtype] == COMPUTE[dtype] else f"{COMPUTE[dtype]}({element})"


def is_packed_constant(view: View) -> bool:
    """Whether elements of a view share bytes: those of constants do, values of a run have one each."""
    return view.dtype.is_packed and view.buffer.is_constant


def load_packed(pointer: str, index: str, dtype: DType) -> str:
    """One element of a packed constant, by its number behind the pointer to its bytes."""
    byte = f"{pointer}[({index}) / {8 // dtype.bits}]"
    return loaded(f"element_of_packed({byte}, {index}, {dtype.bits})", dtype)


def store_expression(value: str, dtype: DType) -> str:
    """A compute-type value converted for storing."""
    if dtype == dtypes.BOOL:
        return f"uint8_t({value} ? 1 : 0)"
    if dtype in CODED:
        return f"to_{dtype.name}({value})"
    return value if STORAGE[dtype] == COMPUTE[dtype] else f"{STORAGE[dtype]}({value})"


def multiply_add(accumulator: DType) -> str:
    """The function ``multiply_add(a, b, c)``: a b + c as one operation, which drivers may not make of two."""
    type_ = compute_type(accumulator)
    body = "fma(a, b, c)" if accumulator in (dtypes.FLOAT32, dtypes.FLOAT64) else "a * b + c"
    return f"{type_} multiply_add({type_} a, {type_} b, {type_} c) {{ return {body}; }}"


WORD = 4
"""Bytes of a word, which `multiply_add_bytes` takes at a time."""


def multiply_add_bytes(is_signed_a: bool, is_signed_b: bool) -> str:
    """``multiply_add(a, b, c)`` of words of four bytes, and a sum of int32."""
    left, right = ("a", "b") if is_signed_a >= is_signed_b else ("b", "a")
    if is_signed_a != is_signed_b:
        sum_ = f"dot4add_i8u8packed({left}, {right}, c)"
    else:
        sum_ = f"dot4add_{'i' if is_signed_a else 'u'}8packed({left}, {right}, c)"
    return f"int multiply_add(int a, int b, int c) {{ return int({sum_}); }}"


@functools.cache
def template(name: str) -> str:
    """The text of ``kernels/NAME.slang``."""
    return Path(__file__).with_name(f"{name}.slang").read_text(encoding="utf-8")


def grid(count: int, most: int) -> tuple[int, int]:
    """Workgroups along x and y, at most so many along each, that are `count` or a few more together."""
    if count <= most:
        return max(count, 1), 1
    rows = -(-count // most)
    return -(-count // rows), rows


class KernelWriter:
    """Collects a kernel's arguments and text; `finish` makes the launch of it."""

    def __init__(self, push_limit: int = 128) -> None:
        self._push_limit = push_limit
        self._pointers: list[tuple[str, str]] = []
        self._words: list[tuple[str, str]] = []
        self._addresses: list[View | Buffer] = []
        self._word_values: list[int | Size] = []
        self._pointer_names: dict[tuple[int, int, str], str] = {}
        self._constant_names: list[str] = []
        self._constant_values: list[int] = []
        self._open_names: dict[Terms, str] = {}
        self._definitions: list[str] = []
        self._text: list[str] = []
        self._uses_math = False
        self._needs: set[str] = set()
        self._reads: list[View] = []
        self._writes: list[View] = []
        self._in_place: set[int] = set()

    def read(
        self, view: View, *, width: int = 1, reinterpreted_as: str | None = None, in_place: bool = False
    ) -> str:
        """A pointer to the view's first element; returns its name in the source.

        Args:
            view: what is read.
            width: above 1, the pointer is one to vectors of as many elements (casting pointers in the kernel
                instead makes SwiftShader abort).
            reinterpreted_as: another element type to read the memory as.
            in_place: whether an invocation reads the elements that it writes alone: `KernelSpec.in_place`.
        """
        if in_place:
            self._in_place.add(len(self._reads))
        if is_packed_constant(view):
            raise CannotLower(f"packed {view.dtype.name} is read by pointwise kernels alone")
        self._reads.append(view)
        if reinterpreted_as is None:
            self._require(view.dtype)
        return self._pointer(view, reinterpreted_as or storage_type(view.dtype), width, "input")

    def read_words(self, view: View, elements: int) -> str:
        """A pointer to words of so many elements, the first of which holds the view's first one.

        Not a place before a pointer to that: NVIDIA's driver faults on negative offsets.

        Args:
            view: what is read, of a type of whole bytes.
            elements: of a word, a power of two.
        """
        self._reads.append(view)
        first = replace(view, offset=view.offset - view.offset % elements)
        return self._pointer(first, "uint", elements * view.itemsize // 4, "input")

    def read_packed(self, view: View) -> str:
        """A pointer to the bytes of a packed constant, seen from the first, for `load_packed`."""
        self._reads.append(view)
        self._require(view.dtype)
        return self._pointer(view, storage_type(view.dtype), 1, "input")

    def _require(self, dtype: DType) -> None:
        """What elements of a type take to be loaded and stored."""
        self._needs.update(NEEDS.get(dtype, ()))
        self._uses_math = self._uses_math or dtype in CODED

    def write(self, view: View, *, width: int = 1, reinterpreted_as: str | None = None) -> str:
        """A pointer to the view's first element, for writing; otherwise as `read`."""
        self._writes.append(view)
        if reinterpreted_as is None:
            self._require(view.dtype)
        return self._pointer(view, reinterpreted_as or storage_type(view.dtype), width, "output")

    def buffer(self, buffer: Buffer | View, pointer_type: str, name: str) -> str:
        """A pointer that takes no part in hazard tracking (the status word, tables of tensors)."""
        self._pointers.append((pointer_type, name))
        self._addresses.append(buffer)
        return f"push.{name}"

    def _pointer(self, view: View, element: str, width: int, stem: str) -> str:
        if view.is_reversed:  # a guard: operators copy such views, pointwise kernels take them forwards
            raise CannotLower(f"strides {view.strides} run backwards, where NVIDIA's driver faults")
        type_ = f"vector<{element}, {width}>" if width > 1 else element
        key = (view.buffer.serial, view.byte_offset, type_)
        name = self._pointer_names.get(key)
        if name is None:
            name = f"{stem}{len(self._pointers)}"
            self._pointer_names[key] = name
            self._pointers.append((type_, name))
            self._addresses.append(view)
        return f"push.{name}"

    def need(self, *capabilities: str) -> None:
        self._needs.update(capabilities)

    def word(self, name: str, value: int | Size) -> str:
        """A 32-bit push constant."""
        self._words.append(("int", name))
        self._word_values.append(value)
        return f"push.{name}"

    def zero(self, dtype: DType, *, is_negative: bool = False) -> str:
        """A floating-point zero, of the dtype's compute type, that compilers do not see.

        Of one that they see, Mesa's conclude that 0 / x is 0, also for NaN, and that x / 0 is anything.
        """
        if all(name != "zero" for _, name in self._words):
            self.word("zero", 0)
        sign = "uint(push.zero) | 0x80000000u" if is_negative else "uint(push.zero)"
        return f"asdouble(uint(push.zero), {sign})" if compute_type(dtype) == "double" else f"asfloat({sign})"

    def constant(self, value: int, name: str | None = None) -> str:
        """A specialization constant; unnamed 0 and 1 are written out, so strides of 0 and 1 cost nothing.

        A size that is open becomes a push constant, which a launch is given its value in.
        """
        if isinstance(value, Size):
            return self._open(value, name)
        if name is None:
            if value in (0, 1):
                return str(value)
            name = f"K{len(self._constant_names)}"
        self._constant_names.append(name)
        self._constant_values.append(value)
        return name

    def grid(self, count: int, most: int) -> tuple[int, int]:
        """As the function `grid`; how many lie along x becomes the constant ``ACROSS``.

        A template numbers its workgroups ``group.x + group.y * ACROSS`` and leaves out those past the last.
        """
        across, rows = grid(count, most)
        self.constant(across, "ACROSS")
        return across, rows

    def _open(self, size: Size, name: str | None) -> str:
        known = self._open_names.get(size.terms)
        if known is None:
            known = self._open_names[size.terms] = self.word(f"size{len(self._open_names)}", size)
        if name is None:
            return known
        self._definitions.append(f"#define {name} {known}")
        return name

    def offset(self, coordinates: tuple[str, ...], strides: tuple[int, ...]) -> str:
        """The Slang expression of an element's offset."""
        terms = []
        for coordinate, stride in zip(coordinates, strides, strict=True):
            if stride == 1:
                terms.append(coordinate)
            elif stride != 0:
                terms.append(f"{coordinate} * {self.constant(stride)}")
        return " + ".join(terms) or "0"

    def math(self) -> None:
        """Makes the functions of pointwise_math.slang available; only those the text names are compiled."""
        self._uses_math = True

    def text(self, text: str) -> None:
        """Adds module-scope source."""
        self._text.append(text)

    def finish(
        self,
        label: str,
        groups: tuple[int, int, int],
        *,
        variant: str = "",
        reason: str = "",
        subgroup_size: int | None = None,
        form: Hashable | None = None,
    ) -> Dispatch:
        """The finished launch.

        Raises:
            CannotLower: more arguments than the device's push constants hold.
        """
        push_bytes = 8 * len(self._pointers) + 4 * len(self._words)
        if push_bytes > self._push_limit:
            raise CannotLower(
                f"{label} needs {push_bytes} bytes of push constants, the device has {self._push_limit}"
            )
        if any(count > 65535 * 65535 or count < 1 for count in groups if not isinstance(count, Size)):
            raise NotImplemented(f"{label}: {groups} workgroups cannot be launched")
        text = KernelText(
            tuple(self._constant_names),
            (*[(f"{type_}*", name) for type_, name in self._pointers], *self._words),
            tuple(self._definitions),
            tuple(self._text),
            self._uses_math,
        )
        kernel = KernelSpec(
            label,
            text,
            tuple(self._constant_values),
            push_bytes,
            frozenset(self._needs),
            variant,
            reason,
            subgroup_size,
            frozenset(self._in_place),
            form,
        )
        return Dispatch(
            kernel,
            groups,
            (*self._addresses, *self._word_values),
            tuple(self._reads),
            tuple(self._writes),
        )
