"""The model as a session has prepared it, written as a file: `SessionOptions.optimized_model_filepath`."""

from __future__ import annotations

from vkml.engine.options import SessionOptions
from vkml.errors import InvalidArgument
from vkml.ir import Graph
from vkml.onnx import save_graph

_FILE = "session.optimized_model_external_initializers_file_name"
_LEAST = "session.optimized_model_external_initializers_min_size_in_bytes"


def write_optimized(graph: Graph, options: SessionOptions) -> None:
    """Writes a prepared graph where the options say so.

    Entries of the options name a file for initializers, and say from how many bytes on they go there.

    Raises:
        Fail: the file cannot be written.
        InvalidArgument: an entry is no number, or names no file beside the model.
    """
    if not options.optimized_model_filepath:
        return
    least = options.entries.get(_LEAST, "1024")
    if not least.isdecimal():
        raise InvalidArgument(f"the entry {_LEAST!r} is a number of bytes, not {least!r}")
    save_graph(
        graph,
        options.optimized_model_filepath,
        external_data=options.entries.get(_FILE) or None,
        external_threshold=int(least),
    )
