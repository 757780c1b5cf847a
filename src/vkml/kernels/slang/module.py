"""A SPIR-V module in the making: types, constants and global variables, each once, and functions."""

from __future__ import annotations

import array
import struct
from collections.abc import Hashable, Sequence

from vkml.kernels.slang import opcodes as op
from vkml.kernels.slang import types
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.types import Array, Fragment, Pointer, Record, Scalar, Type, Vector
from vkml.vulkan.spirv import MAGIC

_VERSION = 0x00010500
_CAPABILITIES = {
    types.HALF: op.FLOAT16, types.DOUBLE: op.FLOAT64, types.INT8: op.INT8, types.UINT8: op.INT8,
    types.INT16: op.INT16, types.UINT16: op.INT16, types.INT64: op.INT64, types.UINT64: op.INT64,
}  # fmt: skip
_STORAGE = "SPV_KHR_physical_storage_buffer"
_MATRICES = "SPV_KHR_cooperative_matrix"
_BFLOAT16 = "SPV_KHR_bfloat16"
_DOT_PRODUCTS = "SPV_KHR_integer_dot_product"
_MEMORY_MODEL = "SPV_KHR_vulkan_memory_model"


def words_of_text(text: str) -> list[int]:
    """A literal string."""
    content = text.encode() + b"\0"
    content += bytes(-len(content) % 4)
    return list(struct.unpack(f"<{len(content) // 4}I", content))


class Module:
    """Collects instructions; each type and constant is there once.

    Args:
        shares_memory: whether invocations of a workgroup read from device memory what others have written.
        is_coherent: whether invocations of other workgroups read it so, by accesses that say so.
    """

    def __init__(self, *, shares_memory: bool = False, is_coherent: bool = False) -> None:
        self.shares_memory = shares_memory
        self.shares_workgroup_memory = shares_memory or is_coherent
        """Whether accesses of a workgroup's memory say that others of it see them: that has to be said in
        Vulkan's memory model, although drivers take kernels of matrices that do not."""
        self._bound = 1
        self._capabilities = {op.DEVICE_ADDRESSES, op.SHADER}
        self._extensions = {_STORAGE}
        self._decorations: list[int] = []
        self._globals: list[int] = []
        self._functions: list[int] = []
        self._known: dict[Hashable, int] = {}
        self._integers: dict[tuple[Type, int | float | bool], int] = {}
        """Constants by their numbers, too, which are asked for most."""
        self._interface: list[int] = []
        self.shader_functions = self.new()

    def new(self) -> int:
        """A number that nothing has."""
        found = self._bound
        self._bound += 1
        return found

    def capability(self, number: int) -> None:
        self._capabilities.add(number)

    def dot_products(self) -> None:
        """Allows products of bytes that are packed in words."""
        self._capabilities |= {op.DOT_PRODUCT, op.DOT_PRODUCT_OF_PACKED}
        self._extensions.add(_DOT_PRODUCTS)

    def decorate(self, target: int, *words: int) -> None:
        self._decorations += ((2 + len(words)) << 16 | op.DECORATE, target, *words)

    # --- types

    def type(self, type_: Type) -> int:
        """The number of a type."""
        found = self._known.get(type_)
        if found is None:
            found = self._known[type_] = self._made(type_)
        return found

    def _made(self, type_: Type) -> int:
        if isinstance(type_, Scalar):
            capability = _CAPABILITIES.get(type_)
            if capability is not None:
                self._capabilities.add(capability)
            if type_ is types.BFLOAT16:
                self._capabilities.add(op.BFLOAT16)
                self._extensions.add(_BFLOAT16)
                return self._declare(op.TYPE_FLOAT, type_.bits, op.ENCODED_AS_BFLOAT16)
            if type_.kind == "b":
                return self._declare(op.TYPE_BOOL)
            if type_.kind == "f":
                return self._declare(op.TYPE_FLOAT, type_.bits)
            return self._declare(op.TYPE_INT, type_.bits, int(type_.kind == "i"))
        if isinstance(type_, Vector):
            return self._declare(op.TYPE_VECTOR, self.type(type_.element), type_.count)
        if isinstance(type_, Array):
            count = self.constant(types.UINT, type_.count)
            return self._declare(op.TYPE_ARRAY, self.type(type_.element), count)
        if isinstance(type_, Record):
            return self._declare(op.TYPE_STRUCT, *map(self.type, type_.fields.values()))
        if isinstance(type_, Pointer):
            return self.pointer(op.DEVICE_MEMORY, type_.element)
        if isinstance(type_, Fragment):
            return self._fragment(type_)
        assert isinstance(type_, types.Void), type_
        return self._declare(op.TYPE_VOID)

    def _fragment(self, type_: Fragment) -> int:
        self._capabilities.add(op.COOPERATIVE_MATRIX)
        self._extensions.add(_MATRICES)
        if type_.element is types.BFLOAT16:
            self._capabilities.add(op.BFLOAT16_MATRIX)
        sizes = (op.SCOPE_SUBGROUP, type_.rows, type_.columns, type_.use)
        numbers = [self.constant(types.UINT, size) for size in sizes]
        return self._declare(op.TYPE_COOPERATIVE_MATRIX, self.type(type_.element), *numbers)

    def pointer(self, storage: int, type_: Type) -> int:
        """The type of pointers to a storage class."""
        key = storage, type_
        found = self._known.get(key)
        if found is None:
            number = self.type(type_)
            if isinstance(type_, Record) and storage in (op.DEVICE_MEMORY, op.PUSH_CONSTANT):
                number = self.laid_out(type_)
            found = self._known[key] = self._declare(op.TYPE_POINTER, storage, number)
            if storage == op.DEVICE_MEMORY:
                self.decorate(found, op.ARRAY_STRIDE, types.size_of(type_))
        return found

    def function_type(self, result: Type, parameters: Sequence[int]) -> int:
        """The type of functions whose parameters' types have these numbers."""
        key = ("function", result, tuple(parameters))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._declare(op.TYPE_FUNCTION, self.type(result), *parameters)
        return found

    def _declare(self, opcode: int, *operands: int) -> int:
        made = self.new()
        self._globals += ((2 + len(operands)) << 16 | opcode, made, *operands)
        return made

    # --- constants

    def constant(self, type_: Type, value: int | float | bool) -> int:
        """The number of a scalar constant, or of a vector of as many equal ones."""
        if isinstance(type_, Vector):
            return self.composite(type_, [self.constant(type_.element, value)] * type_.count)
        if not isinstance(type_, Scalar):
            raise Unsupported(f"a constant of the type {type_}")
        is_integer = type(value) is int and type_.kind in "iu"
        if is_integer:
            found = self._integers.get((type_, value))
            if found is not None:
                return found
        words = tuple(_bits(type_, value))
        key = ("constant", type_, words)
        found = self._known.get(key)
        if found is None:
            if type_.kind == "b":
                opcode = op.CONSTANT_TRUE if value else op.CONSTANT_FALSE
                found = self._typed(opcode, type_)
            else:
                found = self._typed(op.CONSTANT, type_, *words)
            self._known[key] = found
        if is_integer:
            self._integers[type_, value] = found
        return found

    def composite(self, type_: Type, parts: Sequence[int]) -> int:
        """A constant of constants."""
        key = ("composite", type_, tuple(parts))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._typed(op.CONSTANT_COMPOSITE, type_, *parts)
        return found

    def specialization(self, type_: Scalar, number: int, value: int) -> int:
        """A specialization constant."""
        made = self._typed(op.SPEC_CONSTANT, type_, *_bits(type_, value))
        self.decorate(made, op.SPEC_ID, number)
        return made

    def undefined(self, type_: Type) -> int:
        key = ("undefined", type_)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._typed(op.UNDEF, type_)
        return found

    def _typed(self, opcode: int, type_: Type, *operands: int) -> int:
        number = self.type(type_)
        made = self.new()
        self._globals += ((3 + len(operands)) << 16 | opcode, number, made, *operands)
        return made

    # --- variables

    def variable(self, storage: int, type_: Type) -> int:
        """A global variable."""
        pointer = self.pointer(storage, type_)
        made = self.new()
        self._globals += (4 << 16 | op.VARIABLE, pointer, made, storage)
        self._interface.append(made)
        return made

    def shared_variable(self, type_: Type, number: int) -> int:
        """A variable that a workgroup shares: the same one for the same type and number."""
        key = ("shared", type_, number)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.variable(op.WORKGROUP, type_)
        return found

    def built_in(self, number: int, type_: Type) -> int:
        """The variable of a built-in input."""
        key = ("built-in", number)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.variable(op.INPUT, type_)
            self.decorate(found, op.BUILT_IN, number)
        return found

    def push_block(self, record: Record) -> int:
        """The variable of the push constants, its members at their places."""
        self.decorate(self.laid_out(record), op.BLOCK)
        return self.variable(op.PUSH_CONSTANT, record)

    def laid_out(self, record: Record) -> int:
        """The number of a struct's type in memory: the one that says where its members lie."""
        key = ("memory", record)
        found = self._known.get(key)
        if found is None:
            members = map(self.type, record.fields.values())
            found = self._known[key] = self._declare(op.TYPE_STRUCT, *members)
            for index, offset in enumerate(types.offsets(record)[0]):
                self._decorations += (5 << 16 | op.MEMBER_DECORATE, found, index, op.OFFSET, offset)
        return found

    # --- the whole

    def function(self, words: Sequence[int]) -> None:
        """Adds a finished function."""
        self._functions += words

    def finish(self, entry: int, workgroup: tuple[int, int, int]) -> bytes:
        """The module's bytes.

        Args:
            entry: the number of the function that is the entry point ``main``.
            workgroup: its size.
        """
        # Matrices are there in Vulkan's memory model only. By GLSL's nobody sees what others write to memory
        # that is not declared coherent, which what a pointer shows cannot be.
        is_vulkan = self.shares_workgroup_memory or op.COOPERATIVE_MATRIX in self._capabilities
        if is_vulkan:
            self._capabilities |= {op.MEMORY_MODEL_VULKAN, op.MEMORY_MODEL_DEVICE_SCOPE}
            self._extensions.add(_MEMORY_MODEL)
        words = [MAGIC, _VERSION, 0, self._bound, 0]
        for capability in sorted(self._capabilities):
            words += (2 << 16 | op.CAPABILITY, capability)
        for extension in sorted(self._extensions):
            text = words_of_text(extension)
            words += ((1 + len(text)) << 16 | op.EXTENSION, *text)
        text = words_of_text("GLSL.std.450")
        words += ((2 + len(text)) << 16 | op.EXT_INST_IMPORT, self.shader_functions, *text)
        words += (3 << 16 | op.MEMORY_MODEL, 5348, op.VULKANS_MODEL if is_vulkan else op.GLSLS_MODEL)
        text = words_of_text("main")
        words += (
            (3 + len(text) + len(self._interface)) << 16 | op.ENTRY_POINT, 5, entry, *text, *self._interface
        )  # fmt: skip
        words += (6 << 16 | op.EXECUTION_MODE, entry, 17, *workgroup)
        words += self._decorations
        words += self._globals
        words += self._functions
        return array.array("I", words).tobytes()


def _bits(type_: Scalar, value: int | float | bool) -> list[int]:
    """A literal's words."""
    if type_.kind == "f":
        form = {16: "<e", 32: "<f", 64: "<d"}[type_.bits]
        try:
            content = struct.pack(form, value)
        except OverflowError:
            content = struct.pack(form, float("inf") if value > 0 else float("-inf"))
        content += bytes(-len(content) % 4)
        return list(struct.unpack(f"<{len(content) // 4}I", content))
    if type_.bits == 64:
        return [int(value) & 0xFFFFFFFF, int(value) >> 32 & 0xFFFFFFFF]
    # Narrow ones are extended to a word, by their sign.
    return [int(value) & 0xFFFFFFFF]
