"""The message tables against the onnx package's own description of them."""

from __future__ import annotations

import onnx
import pytest
from onnx import onnx_ml_pb2

from tests.onnx import models
from vkml.onnx import messages, wire

LEFT_OUT = {
    ("ModelProto", "configuration"),
    ("NodeProto", "device_configurations"),
}
"""How a model was spread over devices when it was written: of no use here."""

KINDS = {
    1: {wire.DOUBLE, wire.DATA_FIXED64},
    2: {wire.FLOAT, wire.DATA_FIXED32},
    3: {wire.INT64, wire.DATA_VARINT},
    4: {wire.UINT64, wire.DATA_VARINT},
    5: {wire.INT32, wire.DATA_VARINT},
    9: {wire.STRING},
    11: {wire.MESSAGE},
    12: {wire.BYTES},
    14: {wire.INT32},
}
"""Protobuf's field types → ours."""


def descriptors():
    pending = list(onnx_ml_pb2.DESCRIPTOR.message_types_by_name.values())
    while pending:
        descriptor = pending.pop()
        pending.extend(descriptor.nested_types)
        if descriptor.name in messages.TABLES:
            yield descriptor


def test_every_table_has_a_message():
    assert {descriptor.name for descriptor in descriptors()} == set(messages.TABLES)


@pytest.mark.parametrize("descriptor", list(descriptors()), ids=lambda descriptor: descriptor.name)
def test_fields(descriptor):
    ours = {entry.name: entry for entry in messages.TABLES[descriptor.name].fields}
    for field in descriptor.fields:
        if (descriptor.name, field.name) in LEFT_OUT:
            continue
        entry = ours.pop(field.name)
        assert entry.number == field.number
        assert entry.kind in KINDS[field.type], field.name
        assert entry.is_repeated == field.is_repeated, field.name
        assert (entry.message.name if entry.message else None) == (
            field.message_type.name if field.message_type else None
        )
    assert not ours


@pytest.mark.parametrize("kind", models.KINDS)
def test_decoding_and_encoding_changes_nothing(kind):
    made = models.KINDS[kind]()
    data = made.SerializeToString()
    decoded = wire.read_message(messages.MODEL, memoryview(data), 0, len(data))
    pieces, _ = wire.encode_message(messages.MODEL, decoded)
    assert without_empty_strings(onnx.load_model_from_string(b"".join(pieces))) == without_empty_strings(made)


def without_empty_strings(message):
    """Clears strings that are there and empty: the difference to absent ones is not kept."""
    for field, content in message.ListFields():
        if field.message_type is not None:
            for item in content if field.is_repeated else (content,):
                without_empty_strings(item)
        elif content == "" and not field.is_repeated:
            message.ClearField(field.name)
    return message
