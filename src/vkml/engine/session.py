"""Sessions: a model ready to run, in the shape of onnxruntime's `InferenceSession`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

# Few, for the device is to be opened soon: what reading, planning and running want is imported meanwhile.
from vkml.engine import devices as device_registry
from vkml.engine.closing import PlanClosed, close_at_exit, weakly
from vkml.engine.collector import collector_paused
from vkml.engine.ending import shows_warnings, with_options
from vkml.engine.session_interface import SessionInterface
from vkml.errors import Fail, InvalidArgument, ShapeError
from vkml.logs import logger

if TYPE_CHECKING:
    from types import TracebackType

    from vkml.engine.device_array import Place
    from vkml.engine.io_binding import IOBinding
    from vkml.engine.options import SessionOptions
    from vkml.engine.ort_value import OrtValue
    from vkml.engine.plan import Direct, Plan
    from vkml.engine.report import PlanReport
    from vkml.engine.trace import Trace
    from vkml.ir import Graph
    from vkml.onnx import ModelMetadata

_log = logger("vkml")
Array = np.ndarray[Any, Any]
_KEPT = (
    "_assigned", "_given_options", "_limits", "_model_path", "_reads_config", "_source", "_strict", "_trace",
    "_wanted_precision",
)  # fmt: skip
"""Attributes that a session shares with one of more inputs."""


class InferenceSession(SessionInterface):
    """A model, planned for a device and run as often as you like, from any thread.

    A model file is mapped, not read: replace it by renaming. One that is written into while sessions of it
    live makes new plans fail (`ModelChanged`); runs on a GPU and packed weights do not mind, but what the CPU
    reads in place (tables, weights of products of a few rows) changes, and a file that is shortened then ends
    the process. `SessionOptions.copy_model` copies the model into memory instead.

    Args:
        path_or_bytes: an ONNX file or its bytes.
        sess_options: see `SessionOptions`.
        providers: as onnxruntime's; ``"VulkanExecutionProvider"`` and ``"CPUExecutionProvider"`` are known,
            for other accelerators Vulkan is taken, with a warning.
        provider_options: a dict for each of them: Vulkan's has ``device_id`` and ``precision``.
        devices: ``"auto"``, ``"cpu"``, ``"vulkan:0"``, …; takes precedence over `providers`. Of several, as
            in ``["vulkan:0", "vulkan:1", "cpu"]``, the first has the model as far as its memory goes, then
            the next; ``"all"`` are those of `vkml.devices`.
        precision: ``"highest"`` (strict fp32), ``"high"`` (the default) or ``"medium"`` (as high): how
            exactly fp32 products are computed.
        strict: whether a node that the device cannot run is an error; otherwise the CPU runs it, and one
            warning says so.
        placement: patterns of nodes' names (or of their outputs'), as in ``"decoder.*"``, and the device that
            these nodes run on; the first that fits counts.
        memory_limit: device → bytes, or a text as ``"2GiB"``, that weights and values of a plan may take
            there.
        read_config_from_model: whether settings that the model's metadata state are taken (``ort_config``);
            None: where the environment variable ``ORT_LOAD_CONFIG_FROM_MODEL`` is 1.
        enable_fallback: accepted; see `disable_fallback`.
        disabled_optimizers: accepted: names of onnxruntime's passes.

    Raises:
        Error: a subclass that says what is wrong with the model, the arguments or the device.

    Example:
        >>> import vkml, numpy as np
        >>> session = vkml.InferenceSession("digits.onnx", devices="cpu")
        >>> [probabilities] = session.run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})
        >>> probabilities.shape
        (1, 10)
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        devices: str | Sequence[str] | None = None,
        precision: str | None = None,
        strict: bool = False,
        placement: Mapping[str, str] | None = None,
        memory_limit: Mapping[str, int | str] | None = None,
        read_config_from_model: bool | int | None = None,
        enable_fallback: bool | int = True,
        disabled_optimizers: Iterable[str] | None = None,
    ) -> None:
        if devices is not None or (sess_options is None and not providers):
            device_registry.open_ahead(devices, "auto")
        from vkml.engine.arguments import reads_config
        from vkml.engine.options import flag

        is_path = isinstance(path_or_bytes, str | os.PathLike)
        self._model_path = os.fspath(path_or_bytes) if is_path else None
        self._source = path_or_bytes
        self._given_options = sess_options
        self._strict = flag("strict", strict)
        self._wanted_precision = precision
        self._assigned, self._limits = placement, memory_limit
        self._reads_config = reads_config(read_config_from_model)
        self._trace: Trace | None = None
        self._create(providers, provider_options, devices)

    def _create(
        self,
        providers: Sequence[Any] | None,
        provider_options: Sequence[Mapping[str, Any]] | None,
        devices: str | Sequence[str] | None,
        fed: frozenset[str] = frozenset(),
    ) -> None:
        """Reads the model and plans what needs no inputs.

        Args:
            providers: as for the session.
            provider_options: likewise.
            devices: likewise.
            fed: initializers that are inputs of it.
        """
        from vkml.cpu.native.executable import instruction_set
        from vkml.engine import arguments
        from vkml.engine.model_errors import explained
        from vkml.engine.optimized_model import write_optimized
        from vkml.engine.placement import Placement, sites_of
        from vkml.engine.plan_cache import Setting
        from vkml.engine.prepare import prepare
        from vkml.engine.runner import Runner
        from vkml.ir import TensorType, dtypes
        from vkml.ir.file_constant import files_of, settled_graph
        from vkml.onnx import load_graph
        from vkml.onnx import open as open_model
        from vkml.onnx.load import overridable

        self._options = arguments.checked_options(self._given_options)
        self._variants: dict[frozenset[str], InferenceSession] = {}
        with open_model(self._source, base_directory=self._options.data_folder) as model, collector_paused():
            self._label = model.label
            with explained(self._label):
                self._metadata: ModelMetadata = model.describe()
                if self._reads_config:
                    self._options = arguments.configured(
                        self._options, self._metadata.custom_metadata_map, self._label
                    )
                requested = arguments.request(
                    providers, provider_options, devices, self._options, self._metadata
                )
                self._precision = arguments.checked_precision(self._wanted_precision, requested.settings)
                device_registry.open_ahead(requested.devices, requested.otherwise)
                choice = device_registry.resolve(requested.devices, requested.otherwise)
                self._choice = requested
                self._providers = choice.providers
                self._provider_options = arguments.stated_options(choice, self._precision)
                loaded = load_graph(model, alterations=self._options.alterations(fed))
                self._overridable = overridable(model)
                assigned, loaded = arguments.assignments(self._assigned, loaded, choice)
                self._warn_of_opset(loaded)
                arguments.require_loading(self._options)
                prepared = prepare(
                    loaded,
                    optimise=self._options.graph_optimization_level > 0,
                    multiplies_bytes=choice.multiplies_bytes,
                    multiplies_depthwise_bytes=choice.multiplies_depthwise_bytes,
                    keeps_few_bits=bool(choice.gpus) or instruction_set() is not None,
                    stores_bytes=all(
                        info.capabilities.int8 and info.capabilities.storage_8bit for info in choice.gpus
                    ),
                )
                if not fed:
                    write_optimized(prepared, self._options)
                self._record(prepared.nodes)
                graph = settled_graph(prepared, copies=self._options.copy_model)
                files = tuple(files_of(graph))
                model.check()
                arguments.require_loading(self._options)
        self._inputs = graph.inputs
        self._outputs = graph.outputs
        self._input_names = tuple(value.name for value in self._inputs)
        self._output_names = tuple(value.name for value in self._outputs)
        self._latest: tuple[tuple[tuple[int, ...], ...], tuple[Any, ...], Plan] | None = None
        self._direct: Direct | None = None
        self._others: list[Direct] = []
        self._warned: set[str] = set()
        """Nodes of which it has been said that they run on the CPU."""
        self._misstated: set[str] = set()
        """Outputs of which it has been said that their stated shapes are wrong."""
        if self._options.enable_profiling and self._trace is None:
            from vkml.engine.trace import Trace

            self._trace = Trace()
        tensors = [value.type for value in self._inputs if isinstance(value.type, TensorType)]
        self._dtypes = tuple(type_.dtype.storage for type_ in tensors)
        self._has_texts = any(type_.dtype == dtypes.STRING for type_ in tensors)
        limits = arguments.memory_limits(self._limits, choice)
        sites = sites_of(choice, self._precision, limits, self._options)
        if sites:
            close_at_exit(self)
        self._placement = Placement(
            sites, self._strict, self._precision, takes_cpu=choice.takes_cpu, assigned=assigned
        )
        announce, close = weakly(self._announce), weakly(self.close)
        setting = Setting(self._label, self._placement, self._options, files, announce, close)
        with collector_paused():
            self._runner = Runner(graph, setting, self._trace, weakly(self._forget))
            try:
                self._refuse_data_dependent_sizes()
                self._plan_statically()
                for site in sites:
                    _ = site.device  # what goes wrong when it opens, is said now
            except BaseException:
                self.close()
                raise

    def _refuse_data_dependent_sizes(self) -> None:
        """Says before the first run what a strict session would refuse in the middle of it."""
        if not self._placement.strict or not self._placement.sites:
            return
        found = [node for segment in self._runner.all_segments() for node in segment.sized_by_data]
        if found:
            from vkml.engine.planning import strict_error

            raise strict_error([(node.label, "the sizes of its results depend on data") for node in found])

    def _plan_statically(self) -> None:
        """Plans at once where the model's input shapes leave nothing open, so that errors come early."""
        from vkml.ir import TensorType

        plans = self._runner.plans
        first = plans.segments[0]
        types = [value.type for value in first.graph.inputs]
        if first.alone is None and not first.values:
            shapes = tuple(t.dims for t in types if isinstance(t, TensorType) and t.is_static)
            if len(shapes) == len(types):
                plans.plan(0, shapes, {})

    @property
    def device(self) -> str:
        """Name of the preferred device."""
        sites = self._placement.sites
        return sites[0].name if sites else "cpu"

    def set_providers(
        self,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Makes the session anew for other providers; bindings made before are of no use then.

        Args:
            providers: as for the session.
            provider_options: likewise.
        """
        from vkml.engine.arguments import request

        request(providers, provider_options, None, self._options, self._metadata)
        self.close()
        self._create(providers, provider_options, None)

    def _with_inputs(self, fed: frozenset[str]) -> InferenceSession:
        """This session with more inputs: initializers that a feed has values for. Each such set is planned
        once, with weights of its own; as many sets are kept as plans."""
        found = self._variants.get(fed)
        if found is None:
            found = InferenceSession.__new__(InferenceSession)
            found.__dict__.update({name: self.__dict__[name] for name in _KEPT})
            found._create(None, None, self._choice.devices or self._choice.otherwise, fed)
            while len(self._variants) >= self._options.plan_cache_size:
                # Not closed: another thread may run it.
                self._variants.pop(next(iter(self._variants), fed), None)
            self._variants[fed] = found
        return found

    def _variant_for(self, input_feed: Any) -> InferenceSession:
        """The session whose inputs a feed has: this one, where it has no values for initializers."""
        if not self._overridable or not isinstance(input_feed, Mapping):
            return self
        fed = frozenset(value.name for value in self._overridable if value.name in input_feed)
        return self._with_inputs(fed) if fed else self

    # -- running --------------------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Array]:
        """Runs the model.

        Args:
            output_names: which outputs, in which order; None or none for all.
            input_feed: input name → array of the input's type and shape. An element of int4, int2, uint4 or
                uint2 is an int8 or uint8; one of the small floats its code (uint8; bfloat16: uint16).
            run_options: a `RunOptions`, vkml's or onnxruntime's, or None.

        Returns:
            Fresh arrays, one an output, of the same types.

        Raises:
            InvalidArgument: a missing, extra, misshapen or mistyped input, or an unknown output name.
            IndexOutOfRange: an index among the inputs lies outside what it indexes.
            OutOfMemory: the device or the host has too little memory for inputs of these shapes.
            Fail: the session is closed.
        """
        if run_options is not None:
            from vkml.engine.arguments import check_run_options, with_adapters

            check_run_options(run_options)
            with with_options(run_options):
                return self._run_checked(output_names, with_adapters(run_options, input_feed))
        direct = self._direct
        if direct is not None and output_names is None:
            made = direct(input_feed)
            if made is not None:
                return made
            for other in self._others[1:]:  # for runs at the same time
                made = other(input_feed)
                if made is not None:
                    return made
        latest = self._latest
        if latest is not None and output_names is None:
            shapes, types, plan = latest
            try:
                feeds = [input_feed[name] for name in self._input_names]
                fits = len(input_feed) == len(feeds)
                for array, shape, dtype in zip(feeds, shapes, types, strict=True):
                    if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                        fits = False
                        break
            except Exception:  # a feed's own code may raise anything; the long way says what
                fits = False
            if fits:
                try:
                    return self._runner.run_plan(plan, feeds, plan.outputs)
                except PlanClosed:
                    pass
        return self._run_checked(output_names, input_feed)

    def _run_checked(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Array]:
        from vkml.engine.feed import check_feed

        wanted = self._wanted(output_names)
        session = self._variant_for(input_feed)
        return session._run_values(check_feed(session._inputs, input_feed), wanted, None)

    def _wanted(self, output_names: Sequence[str] | None) -> tuple[str, ...]:
        """The names of the outputs that are asked for, all where none are."""
        self._runner.plans.require_open()
        if output_names is None:
            output_names = ()
        if isinstance(output_names, str) or not isinstance(output_names, Iterable):
            raise InvalidArgument(
                f"the output names are a list of names or None for all, not {output_names!r}; the outputs "
                f"are {list(self._output_names)}"
            )
        wanted = tuple(output_names) or self._output_names
        known = set(self._output_names)
        for name in wanted:
            if not isinstance(name, str) or name not in known:
                raise InvalidArgument(
                    f"Invalid output name: {name}: the model has no output '{name}'; its outputs are "
                    f"{list(self._output_names)}"
                )
        return wanted

    def _run_values(
        self,
        feeds: Sequence[Any],
        wanted: tuple[str, ...],
        places: Mapping[str, Place] | None,
        binding: IOBinding | None = None,
    ) -> list[Any]:
        """Runs it with checked inputs.

        Args:
            feeds: in the order of the inputs.
            wanted: names of outputs.
            places: of outputs that are to be on devices; None for none, and inputs on the host.
            binding: is told how to run the same again, where that is possible.
        """
        from vkml.engine.device_array import DeviceArray, place_array

        try:
            plan = None if self._has_texts else self._runner.only_plan(feeds)
            if plan is not None:
                if places is None:
                    self._remember(tuple(array.shape for array in feeds), plan)
                    return self._runner.run_plan(plan, feeds, wanted)
                made = self._runner.run_plan(plan, feeds, wanted, places=places)
                is_bound = all(isinstance(places.get(name), DeviceArray) for name in wanted)
                if binding is not None and is_bound and self._trace is None and binding.holds(feeds):
                    binding.repeat = plan.prepared(feeds, wanted, dict(zip(wanted, made, strict=True)))
                return made
            made = self._runner.run(feeds, wanted)
        except PlanClosed:
            raise Fail(f"this session of {self._label} was closed during a run") from None
        return [
            value if places is None or name not in places else place_array(value, places[name], name)
            for name, value in zip(wanted, made, strict=True)
        ]

    # -- values that stay on devices ------------------------------------------------------------------------

    def io_binding(self) -> IOBinding:
        """A binding of inputs and outputs for `run_with_iobinding`, with nothing bound yet."""
        from vkml.engine.io_binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Runs the model with what is bound; results are the binding's.

        Args:
            iobinding: of this session, with all inputs bound and at least one output.
            run_options: as for `run`.

        Raises:
            InvalidArgument: something is not bound, or not of the type and shape that it should have.
        """
        if run_options is not None:
            from vkml.engine.arguments import check_run_options

            check_run_options(run_options)
            with with_options(run_options):
                return self.run_with_iobinding(iobinding)
        if getattr(iobinding, "session", None) is not self:
            raise InvalidArgument(
                f"a binding of this session is needed, from io_binding(), not {iobinding!r}"
            )
        if iobinding.repeat is not None and iobinding.repeat() is not None:
            return
        iobinding.repeat = None
        from vkml.engine.feed import check_feed

        if not iobinding.outputs:
            raise InvalidArgument(f"no output is bound; the outputs are {list(self._output_names)}")
        wanted = self._wanted(tuple(iobinding.outputs))
        session = self._variant_for(iobinding.inputs)
        feeds = check_feed(session._inputs, iobinding.inputs)
        binding = iobinding if session is self else None
        iobinding.take(session._run_values(feeds, wanted, iobinding.places(), binding))

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """Runs the model with values that may be on its device.

        Args:
            output_names: which outputs, in which order; None or none for all.
            input_dict_ort_values: input name → value.
            run_options: as for `run`.

        Returns:
            Fresh values on the CPU; `IOBinding` leaves them on the device.
        """
        if run_options is not None:
            from vkml.engine.arguments import check_run_options

            check_run_options(run_options)
            with with_options(run_options):
                return self.run_with_ort_values(output_names, input_dict_ort_values)
        from vkml.engine.feed import check_feed
        from vkml.engine.ort_value import OrtValue

        wanted = self._wanted(output_names)
        if not isinstance(input_dict_ort_values, Mapping):
            raise InvalidArgument(f"a feed maps input names to OrtValues, not {input_dict_ort_values!r}")
        values = {}
        for name, value in input_dict_ort_values.items():
            if not isinstance(value, OrtValue):
                raise InvalidArgument(f"input '{name}' is to be a vkml.OrtValue, not {value!r}")
            values[name] = value.value
        session = self._variant_for(values)
        made = session._run_values(check_feed(session._inputs, values), wanted, {})
        return [OrtValue(value) for value in made]

    def _remember(self, shapes: tuple[tuple[int, ...], ...], plan: Plan) -> None:
        """Has the next run try this plan first."""
        plans = self._runner.plans
        with plans.lock:
            if plans.holds(plan) and (self._latest is None or self._latest[2] is not plan):
                self._others = [] if self._trace is not None else plan.directs
                direct = self._others[0] if self._others else None
                self._latest, self._direct = (shapes, self._dtypes, plan), direct

    def _forget(self) -> None:
        self._latest, self._direct, self._others = None, None, []

    def _announce(self, plan: Plan) -> None:
        self._warn(plan)
        self._warn_of_shapes(plan)

    def _warn_of_opset(self, graph: Graph) -> None:
        from vkml.ops.upgrading import NEWEST

        newest = max((node.version for node in graph.nodes if not node.domain), default=0)
        if newest > NEWEST and self._options.shows_warnings:
            _log.warning(
                "%s is written in opset %d, vkml knows opsets up to %d: an operator that has changed since "
                "is computed as it was then; compare the results, or export the model for an older opset",
                self._label,
                newest,
                NEWEST,
            )

    def _warn_of_shapes(self, plan: Plan) -> None:
        """Says once of each output that its stated shape, a stale one of an exporter, is not what it has."""
        if plan not in self._runner.plans.alive:  # but in those of a body, which names values as it likes
            return
        from vkml.ir import TensorType

        made = {value.name: value.tensor for value in plan.graph.outputs}
        for output in self._outputs:
            found, stated = made.get(output.name), output.type
            if found is None or output.name in self._misstated or not isinstance(stated, TensorType):
                continue
            if stated.admits_shape_of(found):
                continue
            if shows_warnings(self._options.shows_warnings):
                self._misstated.add(output.name)
                _log.warning(
                    "%s: the output '%s' is stated to be %s and computes to %s, which is returned",
                    self._label,
                    output.name,
                    output.type,
                    found,
                )

    def _warn(self, plan: Plan) -> None:
        if not shows_warnings(self._options.shows_warnings):
            return
        with self._runner.plans.lock:
            fresh = [(label, reason) for label, reason in plan.fallbacks if label not in self._warned]
            self._warned.update(label for label, _ in fresh)
        if not fresh:
            return
        first = "; ".join(f"{label}: {reason}" for label, reason in fresh[:3])
        more = f" (and {len(fresh) - 3} more)" if len(fresh) > 3 else ""
        run = "runs" if len(fresh) == 1 else "run"
        from vkml.ir.wording import counted

        nodes = counted(len(fresh), "node")
        _log.warning("%s %s on the CPU instead of %s: %s%s", nodes, run, self.device, first, more)

    def report(self, dimensions: Mapping[str, int] | None = None) -> PlanReport:
        """What the plan is for the given sizes of symbolic dimensions (1 where not given).

        Sizes and values that data decides are taken for ones, and the report says so.

        Args:
            dimensions: symbolic dimension → size.

        Raises:
            ShapeError: the model does not suit these sizes.
        """
        from vkml.engine.plan_report import report
        from vkml.ir import TensorType

        given = dict(dimensions or {})
        tensors = {value.name: value.type for value in self._inputs if isinstance(value.type, TensorType)}
        known = {dim for type_ in tensors.values() for dim in type_.shape or () if isinstance(dim, str)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise InvalidArgument(
                f"the model has no dimension {unknown[0]!r}; its dimensions are {sorted(known)}"
            )
        fixed = {
            name: TensorType(
                type_.dtype,
                tuple(dim if isinstance(dim, int) else given.get(dim or "", 1) for dim in type_.shape or ()),
            )
            for name, type_ in tensors.items()
        }
        shapes = {name: type_.dims for name, type_ in fixed.items()}
        types = [fixed.get(value.name, value.type) for value in self._inputs]
        try:
            planned, assumed = self._runner.planned(types)
        except ShapeError as error:
            ones = sorted(known - set(given))
            if not ones:
                raise
            raise ShapeError(f"{error}; taken for 1, unless stated: {', '.join(ones)}") from None
        weights = {site.name: site.weights for site in self._placement.sites}
        return report(planned, weights, shapes, assumed)

    # -- end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees everything the session holds on its devices; it cannot run afterwards.

        Waits for other threads that run or plan. In the middle of a run or of planning of this thread's own
        (in a signal handler, in a progress callback) that one is freed at its end.
        """
        for variant in self._variants.values():
            variant.close()
        if self._runner.close():
            for site in self._placement.sites:
                site.weights.close()

    def __repr__(self) -> str:
        return f"<InferenceSession of {self._label} on {self.device}>"

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending() or not hasattr(self, "_runner"):
            return  # its device is closed, and modules have lost their names; or it was not even made
        try:
            self.close()
        except Exception:
            _log.debug("closing a session at its end failed", exc_info=True)
