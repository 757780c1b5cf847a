"""The wire format: what is read is bounded by what holds it, and what is written is read back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkml.errors import InvalidArgument, InvalidProtobuf
from vkml.onnx import messages, wire
from vkml.onnx.messages import AttributeProto, NodeProto, TypeProto


def read(name: str, data: bytes):
    return wire.read_message(messages.TABLES[name], memoryview(data), 0, len(data))


def write(message) -> bytes:
    pieces, total = wire.encode_message(messages.TABLES[type(message).__name__], message)
    data = b"".join(pieces)
    assert len(data) == total
    return data


@given(st.integers(-(2**63), 2**64 - 1))
def test_varint_round_trip(number):
    data = wire.encode_varint(number)
    assert wire.read_varint(memoryview(data), 0, len(data)) == (number % 2**64, len(data))


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_packed_varints_agree_with_single_ones(numbers):
    data = b"".join(map(wire.encode_varint, numbers))
    assert wire.decode_varints(data).tolist() == numbers


def test_integer_too_large_to_write():
    with pytest.raises(InvalidArgument, match="64 bits"):
        wire.encode_varint(2**64)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9])
def test_cut_off_varint(data):
    with pytest.raises(InvalidProtobuf, match="truncated"):
        wire.read_varint(memoryview(data), 0, len(data))


def test_varint_of_eleven_bytes():
    data = b"\x80" * 10 + b"\x01"
    with pytest.raises(InvalidProtobuf, match="ten bytes"):
        wire.read_varint(memoryview(data), 0, len(data))
    with pytest.raises(InvalidProtobuf, match="ten bytes"):
        wire.decode_varints(data)
    with pytest.raises(InvalidProtobuf, match="cut off"):
        wire.decode_varints(b"\x01\x80")


def test_a_number_stays_within_its_message_and_not_only_within_the_file():
    # A node of one byte whose tag's length would have to come from the bytes after the node.
    data = b"\x0a\x01\x0a" + b"\x01\x41"
    with pytest.raises(InvalidProtobuf, match="past byte 3"):
        read("GraphProto", data)


def test_a_length_stays_within_its_message():
    data = b"\x0a\x03\x0a\x05a" + b"bcdef"
    with pytest.raises(InvalidProtobuf, match=r"NodeProto\.input at byte 4 states 5 bytes, 1 are left"):
        read("GraphProto", data)
    with pytest.raises(InvalidProtobuf, match="bytes"):
        read("GraphProto", b"\x0a" + wire.encode_varint(2**63))


@pytest.mark.parametrize(
    "tag", [b"\x0b", b"\x0c", b"\x0e", b"\x0f", b"\xfb\x01", b"\xfc\x01", b"\x00\x01", b"\x02"]
)
def test_groups_and_impossible_tags_are_rejected(tag):
    with pytest.raises(InvalidProtobuf):
        read("NodeProto", tag + bytes(8))


def test_known_field_of_the_wrong_wire_type():
    with pytest.raises(InvalidProtobuf, match=r"NodeProto\.input .* varint"):
        read("NodeProto", b"\x08\x01")


def test_unknown_fields_are_skipped():
    unknown = b"\xf8\x07\x05" + b"\xfa\x07\x02ab" + b"\xfd\x07abcd" + b"\xf9\x07abcdefgh"
    assert read("NodeProto", unknown + b"\x22\x03Add" + unknown) == NodeProto(op_type="Add")
    ends = {0, 3, 8, 14, 24}
    assert len(unknown) in ends
    for cut in set(range(len(unknown))) - ends:
        with pytest.raises(InvalidProtobuf):
            read("NodeProto", unknown[:cut])


def test_invalid_utf8():
    with pytest.raises(InvalidProtobuf, match=r"NodeProto\.name at byte 2 is not UTF-8"):
        read("NodeProto", b"\x1a\x02\xc3\x28")


def test_nesting_is_limited():
    def nested(levels: int) -> bytes:
        data = b""
        for _ in range(levels):
            data = b"\x0a" + wire.encode_varint(len(data)) + data
            data = b"\x22" + wire.encode_varint(len(data)) + data
        return data

    assert isinstance(read("TypeProto", nested(wire.MAX_DEPTH // 2)), TypeProto)
    with pytest.raises(InvalidProtobuf, match="other messages"):
        read("TypeProto", nested(wire.MAX_DEPTH // 2 + 1))


def test_packed_and_single_elements_mean_the_same():
    ints = [0, 1, -1, 2**63 - 1, -(2**63)]
    singles = b"".join(b"\x40" + wire.encode_varint(i) for i in ints)
    body = b"".join(map(wire.encode_varint, ints))
    packed = b"\x42" + wire.encode_varint(len(body)) + body
    assert read("AttributeProto", singles).ints == tuple(ints)
    assert read("AttributeProto", packed).ints == tuple(ints)
    assert read("AttributeProto", packed + singles).ints == tuple(ints) * 2
    floats = np.array([1.5, -2.0], "<f4")
    packed = b"\x3a\x08" + floats.tobytes()
    singles = b"".join(b"\x3d" + item.tobytes() for item in floats)
    assert read("AttributeProto", packed + singles).floats == (1.5, -2.0, 1.5, -2.0)
    with pytest.raises(InvalidProtobuf, match="no whole count"):
        read("AttributeProto", b"\x3a\x03abc")


def test_data_fields_join_their_pieces():
    first, second = b"\x22\x08" + bytes(range(8)), b"\x25" + bytes(range(8, 12))
    assert bytes(read("TensorProto", first).float_data) == bytes(range(8))
    assert bytes(read("TensorProto", first + second + second).float_data) == bytes(
        [*range(12), *range(8, 12)]
    )


def test_a_message_given_twice_is_merged():
    first = write(AttributeProto(name="a", g=messages.GraphProto(name="n", node=(NodeProto(op_type="Add"),))))
    second = write(AttributeProto(g=messages.GraphProto(node=(NodeProto(op_type="Mul"),))))
    third = write(AttributeProto(g=messages.GraphProto(node=(NodeProto(op_type="Div"),))))
    merged = read("AttributeProto", first + second + third)
    assert merged.name == "a"
    assert merged.g.name == "n"
    assert [node.op_type for node in merged.g.node] == ["Add", "Mul", "Div"]


def test_absent_and_zero_are_told_apart_where_it_matters():
    assert AttributeProto(name="a", i=0) == read("AttributeProto", write(AttributeProto(name="a", i=0)))
    assert read("AttributeProto", write(AttributeProto(name="a"))).i is None
    assert write(AttributeProto()) == b""


def test_float_too_large_to_write():
    with pytest.raises(InvalidArgument, match="too large"):
        write(AttributeProto(name="a", f=1e300))


def element(number, value) -> bytes:
    """A field of an attribute: a float, an integer or bytes by what it is."""
    if isinstance(value, float):
        return wire.encode_varint(number << 3 | 5) + np.float32(value).tobytes()
    if isinstance(value, bytes):
        return wire.encode_varint(number << 3 | 2) + wire.encode_varint(len(value)) + value
    return wire.encode_varint(number << 3) + wire.encode_varint(value)


INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)
VALUES = (
    st.tuples(st.just(8), INTEGERS)
    | st.tuples(st.just(7), st.floats(width=32, allow_nan=False))
    | st.tuples(st.just(9), st.binary(max_size=3) | st.binary(min_size=126, max_size=130))
)


@given(st.lists(st.tuples(VALUES, st.integers(1, 400)), max_size=6), st.integers(0, 12))
def test_runs_of_elements_are_read_as_single_ones_are(runs, cut_off):
    """Elements of attributes, many of them alike, in any order; the end may be missing."""
    data = b"".join(element(number, value) * times for (number, value), times in runs)
    data = data[: len(data) - cut_off]

    def outcome():
        try:
            made = read("AttributeProto", data)
            return made.floats, made.ints, [bytes(each) for each in made.strings]
        except InvalidProtobuf as error:
            return str(error)

    found = outcome()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wire, "_RUN_AFTER", 1 << 30)
        assert outcome() == found


@pytest.mark.parametrize("number", [7, 8, 9])
def test_long_runs_end_where_they_end(number):
    """Runs of other numbers in between, and numbers of ten bytes and more."""
    value = {7: 1.5, 8: -1, 9: b"abc"}[number]
    data = element(number, value) * 70000 + element(20, 2) + element(number, value) * 3
    made = read("AttributeProto", data)
    held = {7: made.floats, 8: made.ints, 9: made.strings}[number]
    assert len(held) == 70003 and {bytes(each) if number == 9 else each for each in held} == {value}
    assert made.type == 2
    with pytest.raises(InvalidProtobuf):
        read("AttributeProto", data[: 70000 * len(element(number, value)) - 1])
    if number == 8:
        with pytest.raises(InvalidProtobuf, match="ten bytes"):
            read("AttributeProto", data + b"\x40" + b"\xff" * 10 + b"\x01")


@pytest.mark.parametrize("value", [7, 1.5, b"abc"])
def test_elements_of_long_runs_are_not_read_one_by_one(value, monkeypatch):
    number = {int: 8, float: 7, bytes: 9}[type(value)]
    data = element(number, value) * 100_000
    read_run, ends = wire._read_run, []
    monkeypatch.setattr(wire, "_read_run", lambda *given: ends.append(read_run(*given)) or ends[-1])
    read("AttributeProto", data)
    assert ends == [len(data)]
