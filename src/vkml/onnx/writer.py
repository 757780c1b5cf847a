"""Writing a graph as an ONNX model: embedded or with external data, whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vkml.errors import Fail, InvalidArgument, InvalidGraph
from vkml.ir import dtypes
from vkml.ir.graph import Constant, Graph, Node, every_node
from vkml.onnx import messages
from vkml.onnx.attributes import write_attribute
from vkml.onnx.messages import (
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    StringStringEntryProto,
    TensorProto,
)
from vkml.onnx.value_types import write_value
from vkml.onnx.wire import Buffer, encode_message, encode_text

PROTOBUF_LIMIT = 2**31 - 1
"""Bytes of a protobuf message that other readers accept."""

_ALIGNMENT, _PAGE, _LARGE = 64, 4096, 1 << 16
"""External tensors begin at cache lines, large ones (from 64 KiB) at pages."""

_IR_VERSION_OF_OPSET = ((25, 13), (24, 12), (23, 11), (21, 10), (19, 9))
"""Opset of the default domain → the IR version published with it; 8 before these. The lowest that is valid is
written, since runtimes refuse files whose IR version they do not know yet."""
_IR_VERSION_OF_TYPE = {
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), 9),
    **dict.fromkeys(("uint4", "int4"), 10),
    "float4e2m1": 11,
    "float8e8m0": 12,
    **dict.fromkeys(("uint2", "int2"), 13),
}


def save_graph(
    graph: Graph,
    path: str | os.PathLike[str] | None = None,
    *,
    external_data: bool | str | None = None,
    external_threshold: int = 1024,
    producer: str = "vkml",
    producer_version: str = "",
    domain: str = "",
    model_version: int = 0,
    ir_version: int | None = None,
) -> bytes | None:
    """Writes a graph as an ONNX model.

    A file appears whole or not at all: it is written under another name and renamed, so a model that `graph`
    itself was mapped from can be overwritten.

    Args:
        graph: The graph. Its `opsets`, or where nodes state a version theirs, become the model's imports.
        path: Where to write; without it the bytes are returned.
        external_data: True puts constants into a file beside the model, named like it and ``.data``; a string
            names that file; False never does; None does where the model would pass 2 GiB otherwise.
        external_threshold: Constants of fewer bytes than this stay in the model.
        producer: The program that the model names as its writer.
        producer_version: That program's version.
        domain: The model's domain.
        model_version: The model's own version.
        ir_version: ONNX's IR version; by default the lowest that has everything the graph uses.

    Returns:
        The model's bytes if there is no `path`.

    Raises:
        InvalidArgument: An attribute or constant has no ONNX form, external data were asked for without a
            path, or the model passes 2 GiB and must not use external data.
        InvalidGraph: Nodes of one domain state different versions.
        Fail: The file cannot be written.
    """
    target = None if path is None else Path(path)
    location = _location(target, external_data)
    while True:
        tensors = _Tensors(location, external_threshold)
        opsets = _opsets(graph)
        proto = ModelProto(
            producer_name=producer,
            producer_version=producer_version,
            domain=domain,
            model_version=model_version,
            doc_string=graph.documentation,
            opset_import=tuple(OperatorSetIdProto(key, version) for key, version in sorted(opsets.items())),
            metadata_props=tuple(StringStringEntryProto(key, value) for key, value in graph.metadata.items()),
            graph=_write_graph(graph, tensors),
            ir_version=ir_version or _ir_version(opsets.get("", 0), tensors.types),
        )
        pieces, total = encode_message(messages.MODEL, proto)
        if total <= PROTOBUF_LIMIT:
            break
        if location or external_data is False or target is None:
            raise InvalidArgument(
                f"the model takes {total} bytes, readers accept at most {PROTOBUF_LIMIT} in one file; "
                + (
                    "lower external_threshold"
                    if location
                    else "give a path and leave external_data at None or True"
                )
            )
        location = f"{target.name}.data"
    if target is None:
        return b"".join(pieces)
    with contextlib.ExitStack() as stack:
        # Both are complete before the first is renamed.
        renames = []
        if location:
            renames.append(stack.enter_context(_written(target.with_name(location), tensors.external)))
        renames.append(stack.enter_context(_written(target, pieces)))
        for temporary, final in renames:
            os.replace(temporary, final)
    return None


class _Tensors:
    """Turns constants into messages, and collects what goes into the external file."""

    def __init__(self, location: str | None, threshold: int) -> None:
        self.external: list[Buffer] = []
        self.types: set[str] = set()
        self._location = location
        self._threshold = threshold
        self._offset = 0

    def attribute(self, name: str, constant: Constant) -> TensorProto:
        """A tensor in the model itself, where attributes keep theirs."""
        return self._tensor(name, constant, may_be_external=False)

    def initializer(self, name: str, constant: Constant) -> TensorProto:
        """A tensor in the external file if there is one and the tensor is large enough."""
        return self._tensor(name, constant, may_be_external=self._location is not None)

    def _tensor(self, name: str, constant: Constant, *, may_be_external: bool) -> TensorProto:
        dtype, array = constant.dtype, constant.array
        self.types.add(dtype.name)
        dims = tuple(int(size) for size in constant.shape)
        _check_storage(name, constant)
        if dtype == dtypes.STRING:
            texts = tuple(_text(item) for item in array.reshape(-1).tolist())
            return TensorProto(dims=dims, data_type=dtype.code, name=name, string_data=texts)
        data: Buffer = constant.data.data if array.size else b""
        if not may_be_external or len(data) < self._threshold:
            return TensorProto(dims=dims, data_type=dtype.code, name=name, raw_data=data)
        start = -(-self._offset // (step := _PAGE if len(data) >= _LARGE else _ALIGNMENT)) * step
        self.external.append(bytes(start - self._offset))
        self.external.append(data)
        self._offset = start + len(data)
        entries = {"location": self._location or "", "offset": str(start), "length": str(len(data))}
        return TensorProto(
            dims=dims,
            data_type=dtype.code,
            name=name,
            data_location=1,
            external_data=tuple(StringStringEntryProto(key, value) for key, value in entries.items()),
        )


def _write_graph(graph: Graph, tensors: _Tensors) -> GraphProto:
    return GraphProto(
        node=tuple(_write_node(node, tensors) for node in graph.nodes),
        # ONNX wants a name; graphs that were traced have none.
        name=graph.name or "graph",
        initializer=tuple(tensors.initializer(name, constant) for name, constant in graph.constants.items()),
        input=tuple(write_value(value.name, value.type) for value in graph.inputs),
        output=tuple(write_value(value.name, value.type) for value in graph.outputs),
        value_info=tuple(write_value(name, type_) for name, type_ in _inner_types(graph)),
    )


def _inner_types(graph: Graph) -> Iterator[tuple[str, Any]]:
    outer = {value.name for value in (*graph.inputs, *graph.outputs)} | set(graph.constants)
    return ((name, type_) for name, type_ in graph.types.items() if name not in outer)


def _write_node(node: Node, tensors: _Tensors) -> NodeProto:
    return NodeProto(
        input=tuple(node.inputs),
        output=tuple(node.outputs),
        name=node.name,
        op_type=node.op,
        domain=node.domain,
        attribute=tuple(
            write_attribute(
                name, value, lambda graph: _write_graph(graph, tensors), tensors.attribute, node.label
            )
            for name, value in node.attributes.items()
            if value is not None
        ),
    )


def _check_storage(name: str, constant: Constant) -> None:
    dtype, array = constant.dtype, constant.array
    is_stored_so = dtype == dtypes.STRING or array.dtype.newbyteorder("=") == dtype.storage
    if not is_stored_so or array.shape != constant.shape:
        raise InvalidArgument(
            f"constant {name!r} is {constant.type}, which is stored as {dtype.storage} of "
            f"{list(constant.shape)}; its array is {array.dtype} of {list(array.shape)}"
        )


def _text(value: Any) -> bytes:
    return encode_text(value) if isinstance(value, str) else bytes(value)


def _opsets(graph: Graph) -> dict[str, int]:
    """The model's imports: the versions that the nodes have, else those that the graph states."""
    used: dict[str, Node] = {}
    domains = set()
    for node in every_node(graph):
        domains.add(node.domain)
        other = used.setdefault(node.domain, node) if node.version else node
        if other.version != node.version:
            raise InvalidGraph(
                f"{node.label} is of opset {node.version} of the domain {node.domain or 'ai.onnx'!r}, "
                f"{other.label} of {other.version}; a model imports one version: convert one of the two"
            )
    opsets = {**graph.opsets, **{domain: node.version for domain, node in used.items()}}
    missing = sorted(domains - set(opsets))
    if missing:
        raise InvalidGraph(
            f"neither the graph nor its nodes state an opset of the domain {missing[0] or 'ai.onnx'!r}"
        )
    return opsets


def _ir_version(opset: int, types: Iterable[str]) -> int:
    by_opset = next((version for least, version in _IR_VERSION_OF_OPSET if opset >= least), 8)
    return max([by_opset, *(_IR_VERSION_OF_TYPE.get(name, 0) for name in types)])


def _location(target: Path | None, external_data: bool | str | None) -> str | None:
    if external_data is None or external_data is False:
        return None
    if target is None:
        raise InvalidArgument("external data lie in a file beside the model: give save_graph a path")
    location = f"{target.name}.data" if external_data is True else external_data
    if location in ("", ".", "..", target.name) or any(mark in location for mark in "/\\:\0"):
        raise InvalidArgument(
            f"external_data {location!r} is not the name of a file beside the model {target.name!r}"
        )
    return location


@contextlib.contextmanager
def _written(final: Path, pieces: Iterable[Buffer]) -> Iterator[tuple[Path, Path]]:
    """Writes pieces to a new file beside `final`; the file is removed again unless it is renamed."""
    temporary = final.with_name(f".{final.name}.{os.urandom(8).hex()}.tmp")
    try:
        try:
            with open(temporary, "xb") as stream:
                for piece in pieces:
                    stream.write(piece)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise Fail(f"{str(final)!r} cannot be written: {error.strerror}") from error
        yield temporary, final
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
