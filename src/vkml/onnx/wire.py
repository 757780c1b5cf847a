"""The protocol-buffers wire format: bounded reading over a memoryview, and encoding, by message tables."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, NamedTuple

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument, InvalidProtobuf

Buffer = bytes | bytearray | memoryview

MAX_DEPTH: Final = 100
"""Messages within messages, protobuf's own default: about 32 graphs inside one another."""

# How the bytes of a field are to be understood. Plain integers: the reader's loop compares them per field.
STRING: Final = 0
BYTES: Final = 1
MESSAGE: Final = 2
SPAN: Final = 3  # a message left for later: its (start, stop) within the view
INT64: Final = 4
UINT64: Final = 5
INT32: Final = 6
FLOAT: Final = 7
DOUBLE: Final = 8
# Numbers left as the packed bytes they are, for NumPy to take over.
DATA_VARINT: Final = 9
DATA_FIXED32: Final = 10
DATA_FIXED64: Final = 11

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE_OF_KIND: Final[Mapping[int, int]] = {
    STRING: _LENGTH,
    BYTES: _LENGTH,
    MESSAGE: _LENGTH,
    SPAN: _LENGTH,
    INT64: _VARINT,
    UINT64: _VARINT,
    INT32: _VARINT,
    FLOAT: _FIXED32,
    DOUBLE: _FIXED64,
    DATA_VARINT: _VARINT,
    DATA_FIXED32: _FIXED32,
    DATA_FIXED64: _FIXED64,
}
_WIRE_NAMES = {
    0: "varint",
    1: "64-bit",
    2: "length-delimited",
    3: "start of group",
    4: "end of group",
    5: "32-bit",
    6: "6",
    7: "7",
}
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")


class Field(NamedTuple):
    """One field of a message table."""

    number: int
    name: str
    kind: int
    is_repeated: bool
    message: MessageType | None
    default: Any


@dataclass(eq=False)
class MessageType:
    """The table of a message: how to build it, and its fields by tag (number and wire type together)."""

    name: str
    build: Callable[..., Any]
    fields: list[Field] = field(default_factory=list)
    by_tag: dict[int, Field] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def add(self, entry: Field) -> None:
        """Enters a field under its tag; repeated numbers under their packed tag too."""
        wire = _WIRE_OF_KIND[entry.kind]
        self.fields.append(entry)
        self.names[entry.number] = entry.name
        self.by_tag[entry.number << 3 | wire] = entry
        if entry.is_repeated and wire != _LENGTH:
            self.by_tag[entry.number << 3 | _LENGTH] = entry


def read_varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """The unsigned 64-bit number at `position`, and the position after it."""
    result = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise InvalidProtobuf(
                f"a number runs past byte {end}, where what holds it ends (a truncated file?)"
            )
        byte = view[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFF_FFFF_FFFF_FFFF, position
    raise InvalidProtobuf(f"the number that ends at byte {position} is longer than ten bytes")


def read_message(kind: MessageType, view: memoryview, position: int, end: int, depth: int = 0) -> Any:
    """Decodes the message in ``view[position:end]`` and everything in it.

    Args:
        kind: The message's table.
        view: The whole file, so that errors can state positions in it.
        position: First byte.
        end: Byte after the last one; nothing past it is read.
        depth: How many messages this one lies in.

    Raises:
        InvalidProtobuf: The bytes are not such a message; says which field, at which byte.
    """
    if depth > MAX_DEPTH:
        raise InvalidProtobuf(f"{kind.name} at byte {position} lies in more than {MAX_DEPTH} other messages")
    values: dict[str, Any] = {}
    single_messages: dict[str, bytes | tuple[int, int]] = {}
    by_tag = kind.by_tag
    while position < end:
        tag = view[position]
        if tag < 0x80:
            position += 1
        else:
            tag, position = read_varint(view, position, end)
        entry = by_tag.get(tag)
        if entry is None:
            position = _skip(kind, view, tag, position, end)
            continue
        _, name, form, is_repeated, nested, _ = entry
        value: Any
        if tag & 7 == _LENGTH:
            length = view[position] if position < end else 0x80
            if length < 0x80:
                position += 1
            else:
                length, position = read_varint(view, position, end)
            stop = position + length
            if stop > end:
                raise InvalidProtobuf(
                    f"{kind.name}.{name} at byte {position} states {length} bytes, {end - position} are left"
                )
            if form == STRING:
                try:
                    value = str(view[position:stop], "utf-8")
                except UnicodeDecodeError as error:
                    raise InvalidProtobuf(
                        f"{kind.name}.{name} at byte {position} is not UTF-8: {error}"
                    ) from None
            elif form == MESSAGE:
                assert nested is not None
                if is_repeated:
                    value = read_message(nested, view, position, stop, depth + 1)
                elif name not in single_messages:
                    single_messages[name] = (position, stop)
                    value = read_message(nested, view, position, stop, depth + 1)
                else:
                    # The format says that a message given twice is merged: what its bytes in a row mean.
                    earlier = single_messages[name]
                    if isinstance(earlier, tuple):
                        earlier = bytes(view[slice(*earlier)])
                    joined = earlier + bytes(view[position:stop])
                    single_messages[name] = joined
                    value = read_message(nested, memoryview(joined), 0, len(joined), depth + 1)
            elif form == BYTES:
                value = view[position:stop]
            elif form == SPAN:
                value = (position, stop)
            elif form >= DATA_VARINT:
                _append_data(values, name, view[position:stop])
                position = stop
                continue
            else:
                values.setdefault(name, []).extend(_unpack(kind, name, form, view[position:stop]))
                position = stop
                continue
            position = stop
        else:
            start = position
            if tag & 7 == _VARINT:
                value = view[position] if position < end else 0x80
                if value < 0x80:
                    position += 1
                else:
                    value, position = read_varint(view, position, end)
                    if form == INT64:
                        value = value - (1 << 64) if value >> 63 else value
                    elif form == INT32:
                        value = ((value & 0xFFFF_FFFF) ^ 0x8000_0000) - 0x8000_0000
            else:
                position += 4 if tag & 7 == _FIXED32 else 8
                if position > end:
                    raise InvalidProtobuf(f"{kind.name}.{name} at byte {start} runs past byte {end}")
                if form == FLOAT:
                    value = _FLOAT.unpack_from(view, start)[0]
                elif form == DOUBLE:
                    value = _DOUBLE.unpack_from(view, start)[0]
            if form >= DATA_VARINT:
                _append_data(values, name, view[start:position])
                continue
        if is_repeated:
            held = values.get(name)
            if held is None:
                values[name] = [value]
            else:
                held.append(value)
                # Attributes of tree ensembles have a million elements, each of them a field.
                if form in (INT64, FLOAT, BYTES) and tag < 0x80 and len(held) % _RUN_AFTER == 0:
                    position = _read_run(form, tag, view, position, end, held)
        else:
            values[name] = value
    for name, value in values.items():
        if value.__class__ is list:
            values[name] = tuple(value)
    return kind.build(**values)


_RUN_AFTER: Final = 64
"""Elements of a field, one by one, before the reader looks for many more."""
_LEAST_RUN, _LARGEST_RUN = 1 << 10, 1 << 20
"""Bytes that are looked at at a time."""

Octets = np.ndarray[Any, np.dtype[np.uint8]]


def _read_run(form: int, tag: int, view: memoryview, position: int, end: int, held: list[Any]) -> int:
    """Appends elements that follow each other, all with the same tag, and returns the position behind.

    What it does not know how to read it leaves: the end of a run, elements that are cut off.
    """
    if form == BYTES:
        return _read_pieces(tag, view, position, end, held)
    read = _read_varints if form == INT64 else _read_floats
    size = _LEAST_RUN
    while True:
        octets = np.frombuffer(view[position : min(end, position + size)], np.uint8)
        done = read(tag, octets, held)
        position += done
        if octets.size - done > _LEAST_RUN // 2 or octets.size < size:
            return position
        size = min(2 * size, _LARGEST_RUN)


def _read_varints(tag: int, octets: Octets, held: list[Any]) -> int:
    """Reads elements, each a tag and a number; returns their bytes."""
    last = np.flatnonzero(octets < 0x80)  # tags, and the last bytes of numbers, in turns
    last = last[: last.size & ~1]
    tags, ends = last[::2], last[1::2]
    starts = np.zeros_like(tags)
    starts[1:] = ends[:-1] + 1
    count = _leading((tags == starts) & (octets[tags] == tag) & (ends - tags <= 10))
    if not count:
        return 0
    stop = int(ends[count - 1]) + 1
    is_number = np.ones(stop, np.bool_)
    is_number[tags[:count]] = False
    held.extend(decode_varints(octets[:stop][is_number].data).view(np.int64).tolist())
    return stop


def _read_floats(tag: int, octets: Octets, held: list[Any]) -> int:
    """Reads elements, each a tag and four bytes; returns their bytes."""
    rows = octets[: octets.size // 5 * 5].reshape(-1, 5)
    count = _leading(rows[:, 0] == tag)
    held.extend(np.ascontiguousarray(rows[:count, 1:]).view("<f4").reshape(-1).tolist())
    return 5 * count


def _leading(holds: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    """How many elements are true before the first that is not."""
    return holds.size if holds.all() else int(holds.argmin())


def _read_pieces(tag: int, view: memoryview, position: int, end: int, held: list[Any]) -> int:
    """Reads elements, each a tag, a length below 128 and so many bytes; returns the position behind."""
    while position + 1 < end and view[position] == tag and view[position + 1] < 0x80:
        stop = position + 2 + view[position + 1]
        if stop > end:
            break
        held.append(view[position + 2 : stop])
        position = stop
    return position


def _skip(kind: MessageType, view: memoryview, tag: int, position: int, end: int) -> int:
    """The position after an unknown field; a known field of the wrong wire type is an error."""
    number, wire = tag >> 3, tag & 7
    if not 0 < number < 1 << 29:
        raise InvalidProtobuf(
            f"{kind.name}: field number {number} before byte {position} is outside 1 to 2^29 - 1"
        )
    if number in kind.names:
        raise InvalidProtobuf(
            f"{kind.name}.{kind.names[number]} before byte {position} has the wire type {_WIRE_NAMES[wire]}, "
            f"which that field never has"
        )
    if wire == _VARINT:
        _, position = read_varint(view, position, end)
    elif wire == _LENGTH:
        length, position = read_varint(view, position, end)
        position += length
    elif wire == _FIXED32:
        position += 4
    elif wire == _FIXED64:
        position += 8
    else:
        raise InvalidProtobuf(
            f"{kind.name}: field {number} before byte {position} has the wire type {_WIRE_NAMES[wire]}, "
            "which ONNX files never contain"
        )
    if position > end:
        raise InvalidProtobuf(
            f"{kind.name}: field {number} runs to byte {position}, the message ends at {end}"
        )
    return position


def _append_data(values: dict[str, Any], name: str, piece: memoryview) -> None:
    # One packed piece, the usual case, stays a view; several pieces and single elements are joined, since the
    # packed form is nothing but the elements' bytes.
    held = values.get(name)
    if held is None:
        values[name] = piece
    elif isinstance(held, bytearray):
        held += piece
    else:
        values[name] = bytearray(held) + piece


def _unpack(kind: MessageType, name: str, form: int, data: memoryview) -> list[Any]:
    try:
        if form == FLOAT:
            return [value for (value,) in _FLOAT.iter_unpack(data)]
        if form == DOUBLE:
            return [value for (value,) in _DOUBLE.iter_unpack(data)]
    except struct.error:
        raise InvalidProtobuf(
            f"{kind.name}.{name}: {len(data)} packed bytes are no whole count of numbers"
        ) from None
    numbers = decode_varints(data)
    if form == UINT64:
        return list(numbers.tolist())
    if form == INT32:
        return list(numbers.astype(np.int32).tolist())
    return list(numbers.view(np.int64).tolist())


def decode_varints(data: Buffer) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """All numbers of a packed field, as their 64 bits.

    Raises:
        InvalidProtobuf: The last number is cut off, or one is longer than ten bytes.
    """
    octets = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(octets < 0x80)
    if octets.size and (last.size == 0 or last[-1] != octets.size - 1):
        raise InvalidProtobuf("the last number of a packed field is cut off")
    first = np.zeros_like(last)
    first[1:] = last[:-1] + 1
    lengths = last - first + 1
    longest = int(lengths.max(initial=0))
    if longest > 10:
        raise InvalidProtobuf("a number of a packed field is longer than ten bytes")
    numbers = (octets[first] & 0x7F).astype(np.uint64)
    for place in range(1, longest):
        chosen = np.flatnonzero(lengths > place)
        part = (octets[first[chosen] + place] & 0x7F).astype(np.uint64)
        numbers[chosen] |= part << np.uint64(7 * place)
    return numbers


def encode_varint(value: int) -> bytes:
    """The bytes of an integer; negative ones as their 64-bit two's complement, as protobuf does."""
    if value < 0:
        value += 1 << 64
    if not 0 <= value < 1 << 64:
        raise InvalidArgument(f"the integer {value} does not fit 64 bits")
    if value < 0x80:
        return bytes((value,))
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def encode_text(text: str) -> bytes:
    """UTF-8; `InvalidArgument` where `text` holds half of a surrogate pair, which no UTF-8 can say."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the text {text[:80]!r} cannot be written as UTF-8: {error.reason}") from None


def encode_message(kind: MessageType, message: Any) -> tuple[list[Buffer], int]:
    """The message's encoding as pieces, and their total length in bytes.

    Large byte fields are passed through, not copied: a model is written without a second copy of it.
    """
    pieces: list[Buffer] = []
    total = 0
    for entry in kind.fields:
        value = getattr(message, entry.name)
        if value is None or (value is entry.default) or (not entry.is_repeated and value == entry.default):
            continue
        for element in value if entry.is_repeated and entry.kind < DATA_VARINT else (value,):
            total += _encode_field(entry, element, pieces)
    return pieces, total


def _encode_field(entry: Field, value: Any, pieces: list[Buffer]) -> int:
    wire = _LENGTH if entry.kind >= DATA_VARINT else _WIRE_OF_KIND[entry.kind]
    tag = encode_varint(entry.number << 3 | wire)
    if wire == _VARINT:
        pieces.append(tag + encode_varint(value))
        return len(pieces[-1])
    if wire != _LENGTH:
        try:
            pieces.append(tag + (_FLOAT if entry.kind == FLOAT else _DOUBLE).pack(value))
        except OverflowError:
            raise InvalidArgument(
                f"the value {value} is too large for the 32-bit float field {entry.name}"
            ) from None
        return len(pieces[-1])
    body: Sequence[Buffer]
    if entry.kind == MESSAGE:
        assert entry.message is not None
        body, length = encode_message(entry.message, value)
    else:
        piece: Buffer = encode_text(value) if isinstance(value, str) else value
        body, length = (piece,), len(piece)
    head = tag + encode_varint(length)
    if length < 4096 and len(body) > 1:
        pieces.append(head + b"".join(body))
    else:
        pieces.append(head)
        pieces.extend(body)
    return len(head) + length
