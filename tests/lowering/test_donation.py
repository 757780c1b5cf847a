"""Which outputs may be written over an input."""

from __future__ import annotations

from vkml.ir import TensorType, dtypes
from vkml.kernels.spec import Dispatch, KernelSpec, KernelText
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.donation import donations
from vkml.lowering.plan import VulkanProgram

SHAPE = (4, 4)


def tensor(kind: BufferKind = BufferKind.ACTIVATION, shape: tuple[int, ...] = SHAPE) -> View:
    type_ = TensorType(dtypes.FLOAT32, shape)
    return contiguous(Buffer(kind, type_.bytes), type_)


def launch(reads: tuple[View, ...], *writes: View, is_elementwise: bool = True) -> Dispatch:
    kernel = KernelSpec("k", KernelText((), (), (), (), False), (), 0, is_elementwise=is_elementwise)
    return Dispatch(kernel, (1, 1, 1), (), reads, writes)


def found(inputs: dict[str, View], outputs: dict[str, View], *levels: list[Dispatch]) -> set[tuple[str, str]]:
    status = Buffer(BufferKind.STATUS, 16)
    return set(donations(VulkanProgram([*levels], [], inputs, outputs, {}, 0, status)))


x, y, z, inner = tensor(BufferKind.INPUT), tensor(BufferKind.OUTPUT), tensor(BufferKind.OUTPUT), tensor()


def test_an_elementwise_launch_may_write_over_what_it_reads() -> None:
    assert found({"x": x}, {"y": y}, [launch((x, x), y)]) == {("x", "y")}


def test_another_launch_may_not() -> None:
    assert not found({"x": x}, {"y": y}, [launch((x,), y, is_elementwise=False)])


def test_elements_in_other_places_forbid_it() -> None:
    transposed = View(x.buffer, x.dtype, SHAPE, (1, 4))
    assert not found({"x": x}, {"y": y}, [launch((transposed,), y)])
    assert not found({"x": x}, {"y": y}, [launch((x, transposed), y)])


def test_an_input_that_has_been_read_before_may_be_written_over() -> None:
    levels = [launch((x,), inner, is_elementwise=False)], [launch((inner,), y, is_elementwise=False)]
    assert found({"x": x}, {"y": y}, *levels) == {("x", "y")}


def test_an_input_that_is_read_later_or_beside_may_not() -> None:
    assert not found({"x": x}, {"y": y}, [launch((x,), y)], [launch((x,), inner)])
    assert not found({"x": x}, {"y": y}, [launch((x,), y), launch((x,), inner)])


def test_an_output_in_parts_may_not_be_written_where_another_part_reads() -> None:
    assert not found({"x": x}, {"y": y}, [launch((x,), y)], [launch((x,), y)])


def test_outputs_of_another_shape_and_those_nobody_writes() -> None:
    small = tensor(BufferKind.OUTPUT, (4,))
    assert not found({"x": x}, {"y": small}, [launch((x,), inner)], [launch((inner,), small)])
    assert not found({"x": x}, {"y": y}, [launch((x,), z)])


def test_each_pair_by_itself() -> None:
    other = tensor(BufferKind.INPUT)
    pairs = found(
        {"x": x, "other": other}, {"y": y, "z": z}, [launch((x, other), y)], [launch((other, y), z)]
    )
    assert pairs == {("x", "y"), ("x", "z"), ("other", "z")}
