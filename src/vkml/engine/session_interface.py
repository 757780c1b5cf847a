"""What sessions say of themselves, and what onnxruntime's have beside running models."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.providers import CPU_PROVIDER, VULKAN_PROVIDER
from vkml.errors import Fail, InvalidArgument, InvalidSetting

if TYPE_CHECKING:
    from vkml.engine.ep_devices import OrtEpDevice
    from vkml.engine.memory_infos import OrtMemoryInfo
    from vkml.engine.node_arg import NodeArg
    from vkml.engine.options import SessionOptions
    from vkml.engine.ort_value import OrtValue
    from vkml.engine.report import PlanReport
    from vkml.engine.trace import Trace, TracedRun
    from vkml.ir import Node, Value
    from vkml.onnx import ModelMetadata

Array = np.ndarray[Any, Any]
_RECORDS_ASSIGNMENT = "session.record_ep_graph_assignment_info"


@dataclass(frozen=True)
class OrtEpAssignedNode:
    """A node that a provider runs."""

    name: str
    """In the model; "" where it has none."""
    domain: str
    """Of its operator; "" for ONNX's own."""
    op_type: str
    """Its operator."""


@dataclass(frozen=True)
class OrtEpAssignedSubgraph:
    """What a provider runs: a node each."""

    ep_name: str
    """Of the provider."""
    nodes: tuple[OrtEpAssignedNode, ...]
    """What it runs."""

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Its nodes."""
        return list(self.nodes)


class SessionInterface:
    """Base of `InferenceSession`, which runs models."""

    _inputs: tuple[Value, ...]
    _outputs: tuple[Value, ...]
    _overridable: tuple[Value, ...]
    _options: SessionOptions
    _metadata: ModelMetadata
    _providers: list[str]
    _provider_options: dict[str, dict[str, str]]
    _trace: Trace | None
    _recorded: dict[str, Node] | None
    """Label of each node → the node, where somebody wants to know where they run."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Name of the preferred device."""

    @abstractmethod
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """Runs the model."""

    @abstractmethod
    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """Runs the model with values that may be on its device."""

    @abstractmethod
    def report(self, dimensions: Mapping[str, int] | None = None) -> PlanReport:
        """What the plan is."""

    # -- what the model is ----------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order."""
        return self._described(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return self._described(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that are inputs, too: a feed may have values for them."""
        return self._described(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """Producer, graph name, domain, description, version and custom metadata."""
        return self._metadata

    @staticmethod
    def _described(values: Sequence[Value]) -> list[NodeArg]:
        from vkml.engine.node_arg import node_arg

        return [node_arg(value) for value in values]

    # -- where it runs --------------------------------------------------------------------------------------

    def get_providers(self) -> list[str]:
        """The providers in use, the first preferred."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Provider in use → its options, as texts."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def get_session_options(self) -> SessionOptions:
        """The options that it was made with."""
        return self._options

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where `run` wants each input: on the host."""
        from vkml.engine.ep_devices import memory_info

        return [memory_info("cpu") for _ in self._inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where `run` leaves each output: on the host."""
        from vkml.engine.ep_devices import memory_info

        return [memory_info("cpu") for _ in self._outputs]

    def get_input_epdevices(self) -> list[OrtEpDevice | None]:
        """The device that reads each input; None where it is not listed."""
        from vkml.engine.ep_devices import ep_device

        device = ep_device(self.device)
        return [device for _ in self._inputs]

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Which provider runs which node of the model, those left when constants have been folded.

        Raises:
            Fail: the session's options do not have the entry that asks for it.
        """
        if self._recorded is None:
            raise Fail(
                f"Session configuration entry '{_RECORDS_ASSIGNMENT}' must be set to \"1\" before the "
                "session is made, to ask it which provider runs what"
            )
        found = []
        for step in self.report().steps:
            provider = CPU_PROVIDER if step.device == "cpu" else VULKAN_PROVIDER
            for node in [self._recorded[label] for label in step.nodes if label in self._recorded]:
                assigned = OrtEpAssignedNode(node.name, node.domain, node.op)
                found.append(OrtEpAssignedSubgraph(provider, (assigned,)))
        return found

    def _record(self, nodes: Iterable[Node]) -> None:
        """Remembers the nodes of the graph, where the options ask for it."""
        is_wanted = self._options.entries.get(_RECORDS_ASSIGNMENT) == "1"
        self._recorded = {node.label: node for node in nodes} if is_wanted else None

    def disable_fallback(self) -> None:
        """Accepted: a device that fails is not left for another in silence."""

    def enable_fallback(self) -> None:
        """Accepted: a device that fails is not left for another in silence."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Accepted: no option of a provider changes how a session runs that is made.

        Args:
            options: names and values.
        """

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """None: kernels are chosen by rule, not by trying."""
        return []

    def set_tuning_results(
        self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False
    ) -> None:
        """Accepted where errors are not asked for: there is nothing to tune.

        Args:
            results: of another session.
            error_on_invalid: whether results that are not used are an error.

        Raises:
            InvalidSetting: they are.
        """
        if error_on_invalid and results:
            raise InvalidSetting(
                f"Cannot find execution provider {results[0].get('ep')} to tune: kernels are chosen by rule"
            )

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Accepted: what a session has recorded goes with it.

        Args:
            graph_annotation_id: accepted.
        """

    # -- running --------------------------------------------------------------------------------------------

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Array], Any, str], Any],
        user_data: Any = None,
        run_options: Any = None,
    ) -> None:
        """Runs the model in another thread, and returns at once.

        Args:
            output_names: as for `run`.
            input_feed: as for `run`; not to be changed before the callback.
            callback: called from that thread with the results, `user_data` and an empty text, or with an
                empty list, `user_data` and what went wrong.
            user_data: for the callback.
            run_options: as for `run`.
        """
        if not callable(callback):
            raise InvalidArgument(
                f"the callback is called with results, user data and an error, not {callback!r}"
            )

        def act() -> None:
            try:
                results, failure = self.run(output_names, input_feed, run_options), ""
            except Exception as error:  # also of an array-like's own code: whoever waits is told
                results, failure = [], str(error) or type(error).__name__
            callback(results, user_data, failure)

        threading.Thread(target=act, name="vkml-run", daemon=False).start()

    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: list[OrtValue],
        fetch_devices: Sequence[Any],
    ) -> None:
        """Runs the model with values, and appends its outputs to a list.

        Args:
            run_options: as for `run`.
            feed_names: of inputs.
            feeds: a value for each.
            fetch_names: which outputs.
            fetches: gets the outputs.
            fetch_devices: of outputs: the CPU.
        """
        if len(feed_names) != len(feeds):
            raise InvalidArgument(f"there are {len(feed_names)} names of inputs and {len(feeds)} values")
        named = dict(zip(feed_names, feeds, strict=True))
        fetches.extend(self.run_with_ort_values(list(fetch_names), named, run_options))

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """A value to be written; see `OrtValue.ortvalue_from_shape_and_type`."""
        from vkml.engine.ort_value import OrtValue

        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    # -- profiling ------------------------------------------------------------------------------------------

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, by `time.monotonic_ns`; 0 where it did not."""
        return 0 if self._trace is None else self._trace.began_ns

    @property
    def traced_runs(self) -> Sequence[TracedRun]:
        """What `SessionOptions.enable_profiling` has noted: runs of plans and their steps, as they ended."""
        return () if self._trace is None else self._trace.runs

    def trace_events(self) -> list[dict[str, Any]]:
        """The same as events for Chrome's trace viewer and its like."""
        return [] if self._trace is None else self._trace.events()

    def end_profiling(self) -> str:
        """Writes the trace of all runs and their steps (Chrome's trace format); returns the file's path.

        Steps are launches on the CPU, and levels of launches that run at the same time on a GPU. Without
        `SessionOptions.enable_profiling` nothing is written and the path is empty.
        """
        return "" if self._trace is None else self._trace.write(self._options.profile_file_prefix)
