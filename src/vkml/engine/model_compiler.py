"""`ModelCompiler`: a model written as sessions prepare it, in the shape of onnxruntime's."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntFlag
from pathlib import Path
from typing import Any

from vkml.dataclasses import dataclass
from vkml.engine.options import GraphOptimizationLevel, SessionOptions
from vkml.engine.prepare import prepare
from vkml.errors import Fail, InvalidArgument, NotImplemented, WrongType
from vkml.onnx import load_graph, save_graph


class OrtCompileApiFlags(IntFlag):
    """What is an error."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


@dataclass(frozen=True)
class OrtExternalInitializerInfo:
    """Where the data of an initializer lie."""

    filepath: str
    """Of the file, relative to the model."""
    file_offset: int
    """Where they begin in it."""
    byte_size: int
    """How many bytes they are."""


class ModelCompiler:
    """Writes a model whose constants are folded, and whose nodes stay ONNX's: machine code is made, and kept
    in a cache, as sessions are made of it.

    Args:
        sess_options: what it says of sizes and initializers counts.
        input_model_path_or_bytes: the model.
        embed_compiled_data_into_model: accepted.
        external_initializers_file_path: name of a file beside the model that large initializers go to.
        external_initializers_size_threshold: from how many bytes on they do.
        flags: see `OrtCompileApiFlags`.
        graph_optimization_level: how far the graph is rewritten.
        get_initializer_location_func: refused.

    Raises:
        InvalidArgument: an argument is wrong.
        NotImplemented: a function is to say where each initializer goes.
    """

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(input_model_path_or_bytes, str | os.PathLike | bytes):
            raise WrongType(f"a model is a path or bytes, not {type(input_model_path_or_bytes).__name__}")
        if not input_model_path_or_bytes:
            raise InvalidArgument("the model's path, or its bytes, are empty")
        if get_initializer_location_func is not None:
            raise NotImplemented(
                "initializers go into the model or into one file, external_initializers_file_path; a "
                "function that says where each goes is not called"
            )
        self._options, self._source = sess_options, input_model_path_or_bytes
        self._external = os.fspath(external_initializers_file_path or "")
        self._threshold = int(external_initializers_size_threshold)
        self._flags = OrtCompileApiFlags(flags)
        self._optimises = int(graph_optimization_level) > 0

    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> None:
        """Writes the model.

        Args:
            output_model_path: where to; None for the model's own path with ``_ctx`` behind its name.
        """
        if output_model_path is None and isinstance(self._source, bytes):
            raise InvalidArgument("a model given as bytes has no path to write it beside; state one")
        if output_model_path is None:
            given = Path(os.fsdecode(self._source))
            output_model_path = given.with_name(f"{given.stem}_ctx.onnx")
        if OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS in self._flags and os.path.exists(
            output_model_path
        ):
            raise Fail(f"there is a file {os.fspath(output_model_path)!r} already")
        folder = Path(output_model_path).absolute().parent
        if self._external and Path(self._external).absolute().parent not in (folder, Path.cwd()):
            raise InvalidArgument(f"the file {self._external!r} of initializers belongs beside the model")
        save_graph(
            self._graph(),
            output_model_path,
            external_data=os.path.basename(self._external) or None,
            external_threshold=self._threshold,
        )

    def compile_to_bytes(self) -> bytes:
        """The model's bytes."""
        if self._external:
            raise InvalidArgument("initializers in another file need a model in a file: compile_to_file")
        made = save_graph(self._graph(), external_data=False)
        assert made is not None
        return made

    def compile_to_stream(self, write_function: Callable[[bytes], Any]) -> None:
        """Hands the model's bytes to a function.

        Args:
            write_function: called with them.
        """
        write_function(self.compile_to_bytes())

    def set_ep_context_data_write_func(self, write_func: Callable[..., None]) -> None:
        """Accepted: there are no compiled nodes whose data it could be given.

        Args:
            write_func: never called.
        """

    def clear_ep_context_data_write_func(self) -> None:
        """Accepted."""

    def set_ep_context_binary_information(self, output_directory: str, model_name: str) -> None:
        """Accepted: there are no compiled nodes whose files could lie there.

        Args:
            output_directory: where such files would go: what ends with a separator or has an extension.
            model_name: what they would be named after.

        Raises:
            InvalidArgument: one of them is empty, or the first is no such path.
        """
        if not output_directory or not model_name:
            raise InvalidArgument("the directory or the name of the model is empty")
        if not os.path.splitext(output_directory)[1] and not output_directory.endswith((os.sep, "/")):
            raise InvalidArgument(
                f"{output_directory!r} is not a directory: it does not end with a separator"
            )

    def _graph(self) -> Any:
        if OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED in self._flags:
            raise Fail("no node is compiled: vkml makes machine code as sessions are made, and caches it")
        loaded = load_graph(
            self._source,
            base_directory=self._options.data_folder,
            alterations=self._options.alterations(),
        )
        return prepare(loaded, optimise=self._optimises)
