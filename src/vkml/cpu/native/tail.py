"""The end of a kernel: an epilogue applied to vectors in registers, results stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkml.cpu.native import transfer
from vkml.cpu.native.assembler import Mem
from vkml.cpu.native.element import ITEM_BYTES
from vkml.cpu.native.expression import Epilogue, emit, registers_needed
from vkml.cpu.native.vectors import VectorCode


def is_plain(epilogue: Epilogue) -> bool:
    """Whether all operands are float32 and walk the last axis by 0 or 1, results by 1."""
    return all(access.dtype == "float32" for access in (*epilogue.leaves, *epilogue.results)) and all(
        access.strides[-1] in (0, 1) for access in epilogue.leaves
    )


def fits_in(code: VectorCode, epilogue: Epilogue, free: int) -> bool:
    """Whether the epilogue of one vector needs no more than that many registers besides the vector's own."""
    needed = registers_needed(epilogue.expression, 1, has_avx512=code.has_avx512)
    return needed + spare_registers(epilogue) <= free


def spare_registers(epilogue: Epilogue) -> int:
    """Registers that results of fewer than 4 bytes an element need."""
    return transfer.SPARE if any(access.itemsize < 4 for access in epilogue.results) else 0


def finish_vector(
    code: VectorCode,
    epilogue: Epilogue,
    value: int,
    free: Sequence[int],
    place: Callable[[int], Mem],
    mask: int | None,
    lanes: int | None = None,
) -> None:
    """Applies the epilogue to a register and stores the results.

    Args:
        code: receives the code.
        epilogue: whose operand 0 is the register.
        value: may be overwritten.
        free: registers that may be used.
        place: operand number (leaves from 0, then results) → where its vector (or single float) lies; may
            emit code that loads an address.
        mask: lanes that exist, as for `VectorCode.load`; None: all.
        lanes: how many they are, where an operand or result has elements of fewer than 4 bytes.
    """

    def load(operand: int, target: int) -> None:
        access = epilogue.leaves[operand - 1]
        source = place(operand - 1)
        if access.strides[-1] == 0:
            transfer.broadcast_element(code, target, source, access.dtype)
        else:
            load_lanes(code, target, source, access.dtype, mask, lanes)

    kept = len(free) - spare_registers(epilogue)
    spare = free[kept:]
    made = emit(code, epilogue.expression, bound={0: value}, load=load, free=free[:kept])
    for number, (register, access) in enumerate(zip(made, epilogue.results, strict=True)):
        target = place(len(epilogue.leaves) + number)
        store_lanes(code, target, register, access.dtype, spare, mask, lanes)


def load_lanes(
    code: VectorCode, target: int, source: Mem, dtype: str, mask: int | None, lanes: int | None
) -> None:
    """A vector of neighbours, or the first `lanes` of them where there is a mask."""
    if mask is not None and not code.has_avx512 and ITEM_BYTES[dtype] < 4:
        assert lanes is not None, "how many elements there are"
        transfer.load_few(code, target, source, dtype, lanes)
    else:
        transfer.load_elements(code, target, source, dtype, mask)


def store_lanes(
    code: VectorCode,
    target: Mem,
    register: int,
    dtype: str,
    spare: Sequence[int],
    mask: int | None,
    lanes: int | None,
) -> None:
    """Stores a vector of neighbours, or the first `lanes` of them where there is a mask."""
    if mask is not None and not code.has_avx512 and ITEM_BYTES[dtype] < 4:
        assert lanes is not None, "how many elements there are"
        transfer.store_few(code, target, register, dtype, spare, lanes)
    else:
        transfer.store_elements(code, target, register, dtype, spare, mask)
