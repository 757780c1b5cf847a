"""A case: a model, what it is fed, and how; saved as a pair of files that anyone can look into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from tests.fuzz.tensors import STRING, Array, load_tensors, save_tensors

PRESENTATIONS = (
    *("plain", "fortran", "misaligned", "read-only", "reversed", "big-endian", "subclass", "array-like"),
    *("list", "scalar", "changed afterwards", "same object", "some outputs"),
)
"""How a run is handed its arrays; see `tests.fuzz.driver`."""
POISON = "poison"
"""A run of NaN instead of numbers, whose result nobody looks at: what it leaves in memory must not matter."""


@dataclass(frozen=True)
class Run:
    """One run of a session."""

    feed: int
    presentation: str = "plain"


@dataclass(frozen=True)
class Case:
    """A model with feeds and the runs of one session over these feeds."""

    model: bytes
    feeds: tuple[Mapping[str, Array], ...]
    runs: tuple[Run, ...]
    optimise: bool = True
    precision: str = "highest"
    threads: int = 0
    is_mutated: bool = False
    """Whether the model may be an illegal one."""
    origin: str = ""

    def proto(self) -> onnx.ModelProto | None:
        """The model as onnx reads it; None where its bytes are none."""
        try:
            proto = onnx.load_model_from_string(self.model)
        except Exception:  # protobuf's own errors differ from version to version
            return None
        return proto if all(isinstance(name, str) for name in _names(proto.graph)) else None

    def save(self, path: Path) -> None:
        """Writes `path`.onnx and `path`.npz."""
        Path(f"{path}.onnx").write_bytes(self.model)
        entries = [
            (f"{number}/{name}", _code(array), array)
            for number, feed in enumerate(self.feeds)
            for name, array in feed.items()
        ]
        notes = {
            "feeds": len(self.feeds),
            "runs": [asdict(run) for run in self.runs],
            "optimise": self.optimise,
            "precision": self.precision,
            "threads": self.threads,
            "is_mutated": self.is_mutated,
            "origin": self.origin,
        }
        save_tensors(Path(f"{path}.npz"), entries, notes)

    @staticmethod
    def load(path: Path) -> Case:
        """Reads what `save` wrote; `path` with or without an ending."""
        base = str(path).removesuffix(".onnx").removesuffix(".npz")
        entries, notes = load_tensors(Path(f"{base}.npz"))
        feeds: list[dict[str, Array]] = [{} for _ in range(notes["feeds"])]
        for label, _, array in entries:
            number, name = label.split("/", 1)
            feeds[int(number)][name] = array
        return Case(
            Path(f"{base}.onnx").read_bytes(),
            tuple(feeds),
            tuple(Run(**run) for run in notes["runs"]),
            notes["optimise"],
            notes["precision"],
            notes["threads"],
            notes["is_mutated"],
            notes["origin"],
        )


def _names(graph: onnx.GraphProto) -> Iterator[object]:
    """All names in a graph; those that are no UTF-8 come as bytes."""
    for entry in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield entry.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _code(array: Array) -> int:
    return STRING if array.dtype.kind in "OUS" else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
