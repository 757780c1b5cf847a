"""Which outputs may be written over an input."""

from __future__ import annotations

from vkml.ir import TensorType, dtypes
from vkml.kernels.spec import Dispatch, KernelSpec, KernelText
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.lowering.donation import donations, written_last
from vkml.lowering.plan import VulkanProgram
from vkml.lowering.schedule import schedule

SHAPE = (4, 4)


def tensor(kind: BufferKind = BufferKind.ACTIVATION, shape: tuple[int, ...] = SHAPE) -> View:
    type_ = TensorType(dtypes.FLOAT32, shape)
    return contiguous(Buffer(kind, type_.bytes), type_)


def launch(reads: tuple[View, ...], *writes: View, in_place: tuple[int, ...] | None = None) -> Dispatch:
    """A launch, elementwise unless it is said which of its reads are."""
    places = frozenset(range(len(reads)) if in_place is None else in_place)
    kernel = KernelSpec("k", KernelText((), (), (), (), False), (), 0, in_place=places)
    return Dispatch(kernel, (1, 1, 1), (), reads, writes)


def found(inputs: dict[str, View], outputs: dict[str, View], *levels: list[Dispatch]) -> set[tuple[str, str]]:
    status = Buffer(BufferKind.STATUS, 16)
    return set(donations(VulkanProgram([*levels], [], inputs, outputs, {}, 0, status)))


x, y, z, inner = tensor(BufferKind.INPUT), tensor(BufferKind.OUTPUT), tensor(BufferKind.OUTPUT), tensor()


def test_an_elementwise_launch_may_write_over_what_it_reads() -> None:
    assert found({"x": x}, {"y": y}, [launch((x, x), y)]) == {("x", "y")}


def test_another_launch_may_not() -> None:
    assert not found({"x": x}, {"y": y}, [launch((x,), y, in_place=())])


def test_what_an_epilogue_reads_may_be_written_over_and_what_the_product_reads_may_not() -> None:
    assert found({"x": x}, {"y": y}, [launch((inner, x), y, in_place=(1,))]) == {("x", "y")}
    assert not found({"x": x}, {"y": y}, [launch((x, inner), y, in_place=(1,))])
    assert not found({"x": x}, {"y": y}, [launch((x, x), y, in_place=(1,))])


def test_elements_in_other_places_forbid_it() -> None:
    transposed = View(x.buffer, x.dtype, SHAPE, (1, 4))
    assert not found({"x": x}, {"y": y}, [launch((transposed,), y)])
    assert not found({"x": x}, {"y": y}, [launch((x, transposed), y)])


def test_an_input_that_has_been_read_before_may_be_written_over() -> None:
    levels = [launch((x,), inner, in_place=())], [launch((inner,), y, in_place=())]
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


def updated(*launches: Dispatch) -> set[tuple[str, str]]:
    """What may be written over x where it is asked for that y lies there."""
    levels = schedule(written_last(launches, {y.buffer}), {y.buffer: x.buffer})
    assert sorted(map(id, launches)) == sorted(id(launch) for level in levels for launch in level)
    return found({"x": x}, {"y": y}, *levels)


def test_an_update_waits_for_all_that_reads_what_it_is_written_over() -> None:
    """As the gradient by a layer's input, which reads its weights, and the update of these beside it."""
    update, reader = launch((inner, x), y, in_place=(1,)), launch((inner, x), z, in_place=())
    assert updated(update, reader) == {("x", "y")} == updated(reader, update)
    assert not found({"x": x}, {"y": y}, *schedule([update, reader]))


def test_an_update_that_others_read_comes_before_them() -> None:
    """Nothing is lost where a reader of x needs y: both stay in memory of their own."""
    update, reader = launch((inner, x), y, in_place=(1,)), launch((y, x), z, in_place=())
    assert not updated(update, reader)


def test_a_buffer_that_is_filled_in_parts_is_filled_in_its_order() -> None:
    """What comes behind a late launch in the same memory is late, too."""
    first, second, other = tensor(), tensor(), tensor()
    launches = [
        launch((inner, x), y, in_place=(1,)), launch((y,), first), launch((second,), first),
        launch((first,), other), launch((second,), second),
    ]  # fmt: skip
    ordered = written_last(launches, {y.buffer})
    assert [launches.index(each) for each in ordered] == [0, 1, 2, 3, 4]
    assert [launches.index(each) for each in written_last(launches[::-1], {y.buffer})] == [4, 3, 2, 1, 0]
