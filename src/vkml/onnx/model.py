"""An opened model file: its header, and its graph and tensors when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import TracebackType
from typing import Any

from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument, InvalidGraph, InvalidProtobuf
from vkml.ir.lazy import lazy
from vkml.ir.mapped_file import FileMapping
from vkml.onnx import messages
from vkml.onnx.external import ExternalFiles
from vkml.onnx.messages import (
    FunctionProto,
    GraphProto,
    ModelHeader,
    OperatorSetIdProto,
    StringStringEntryProto,
)
from vkml.onnx.tensor import Tensor
from vkml.onnx.wire import MessageType, read_message


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself, under the names that onnxruntime's ``ModelMetadata`` has."""

    producer_name: str = ""
    """The program that made it."""
    graph_name: str = ""
    """Of its main graph."""
    domain: str = ""
    """Whose it is, as a name of the Internet written backwards."""
    description: str = ""
    """Of the model."""
    graph_description: str = ""
    """Of its main graph."""
    version: int = 0
    """Of the model."""
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)
    """Whatever else it says, by key."""


class Model:
    """An ONNX model over a mapped file or bytes; made by `vkml.onnx.open`.

    Opening reads the header only. `graph` and `functions` decode on first use, tensors when their `array` is
    asked for. Arrays and decoded messages keep the mapping alive, also past `close`.
    """

    def __init__(self, view: memoryview, label: str, files: ExternalFiles) -> None:
        self.label = label
        """The file's path, or what stands for it in messages."""
        self.files = files
        self._view: memoryview | None = view
        self._header: ModelHeader = self._decode(messages.HEADER, 0, len(view))
        if not self._header.graph:
            raise InvalidProtobuf(
                f"{label}: there is no graph in it, so it is not an ONNX model (or is cut short)"
            )

    @property
    def ir_version(self) -> int:
        return self._header.ir_version

    @property
    def producer(self) -> str:
        """Name of the program that wrote the model."""
        return self._header.producer_name

    @property
    def producer_version(self) -> str:
        return self._header.producer_version

    @property
    def domain(self) -> str:
        return self._header.domain

    @property
    def model_version(self) -> int:
        return self._header.model_version

    @property
    def doc_string(self) -> str:
        return self._header.doc_string

    @lazy
    def metadata(self) -> dict[str, str]:
        """The model's own key-value pairs."""
        return pairs(self._header.metadata_props)

    @lazy
    def opsets(self) -> dict[str, int]:
        """Imported opset version by domain; the default domain is ""."""
        if not self._header.opset_import and self.ir_version < 3:
            # Before IR version 3 there was no import field, and one opset.
            return {"": 1}
        return read_opsets(self._header.opset_import, self.label)

    @lazy
    def graph(self) -> GraphProto:
        """The main graph, decoded on first use."""
        spans = self._header.graph
        if len(spans) == 1:
            graph = self._decode(messages.GRAPH, *spans[0])
        else:
            # The wire format says that a message given in pieces is their bytes in a row.
            joined = b"".join(bytes(self._bytes()[start:stop]) for start, stop in spans)
            graph = self._decode(messages.GRAPH, 0, len(joined), memoryview(joined))
        assert isinstance(graph, GraphProto)
        return graph

    @lazy
    def functions(self) -> tuple[FunctionProto, ...]:
        """Model-local functions, decoded on first use."""
        return tuple(self._decode(messages.FUNCTION, start, stop) for start, stop in self._header.functions)

    def tensors(self) -> dict[str, Tensor]:
        """The main graph's initializers by name.

        Raises:
            InvalidGraph: Two have the same name.
        """
        found: dict[str, Tensor] = {}
        for proto in self.graph.initializer:
            if proto.name in found:
                raise InvalidGraph(f"{self.label}: two initializers have the name {proto.name!r}")
            found[proto.name] = Tensor(proto, self.files, f"{self.label}: initializer {proto.name!r}")
        return found

    def describe(self) -> ModelMetadata:
        """What the model says of itself, in the shape that onnxruntime reports it."""
        return ModelMetadata(
            producer_name=self.producer,
            graph_name=self.graph.name,
            domain=self.domain,
            description=self.doc_string,
            graph_description=self.graph.doc_string,
            version=self.model_version,
            custom_metadata_map=dict(self.metadata),
        )

    def check(self) -> None:
        """`ModelChanged` where a file that was read is no longer what it was when it was opened."""
        for view in (self._bytes(), *self.files.views()):
            if isinstance(view.obj, FileMapping):
                view.obj.file.check()

    def close(self) -> None:
        """Lets go of the file; the mapping ends once no array or message refers to it."""
        self._view = None
        self.files.close()
        self.__dict__.pop("graph", None)
        self.__dict__.pop("functions", None)

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Model({self.label}, opsets {self.opsets})"

    def _bytes(self) -> memoryview:
        if self._view is None:
            raise InvalidArgument(f"{self.label} has been closed")
        return self._view

    def _decode(self, kind: MessageType, start: int, stop: int, view: memoryview | None = None) -> Any:
        try:
            return read_message(kind, self._bytes() if view is None else view, start, stop)
        except InvalidProtobuf as error:
            raise InvalidProtobuf(f"{self.label} is not a valid ONNX file: {error}") from None


def pairs(entries: tuple[StringStringEntryProto, ...]) -> dict[str, str]:
    """Key-value messages as a dict."""
    return {entry.key: entry.value for entry in entries}


def read_opsets(imports: tuple[OperatorSetIdProto, ...], where: str) -> dict[str, int]:
    """Opset version by domain, with "" for "ai.onnx"; `InvalidGraph` where one domain has two."""
    found: dict[str, int] = {}
    for entry in imports:
        domain = normal_domain(entry.domain)
        if entry.version < 1:
            raise InvalidGraph(
                f"{where}: opset {entry.version} of domain {domain or 'ai.onnx'!r} does not exist"
            )
        if found.setdefault(domain, entry.version) != entry.version:
            raise InvalidGraph(
                f"{where}: the domain {domain or 'ai.onnx'!r} is imported in two versions, "
                f"{found[domain]} and {entry.version}"
            )
    return found


def normal_domain(domain: str) -> str:
    """The default domain has two spellings; here it is ""."""
    return "" if domain == "ai.onnx" else domain
