"""Sessions: a model ready to run, in the shape of onnxruntime's `InferenceSession`."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine import devices as device_registry
from vkml.engine.collector import collector_paused
from vkml.engine.cpu_bound import out_of_memory
from vkml.engine.feed import check_feed
from vkml.engine.options import SessionOptions, flag
from vkml.engine.plan import (
    Placement,
    Plan,
    PlanClosed,
    Timing,
    make_plan,
    strict_error,
)
from vkml.engine.plan_report import report
from vkml.engine.prepare import prepare
from vkml.engine.report import PlanReport
from vkml.engine.turns import Turn
from vkml.engine.weights import WeightStore
from vkml.errors import Fail, InvalidArgument, ModelError
from vkml.forks import renew_in_child
from vkml.ir import DType, Graph, TensorType, Value, dtypes, static
from vkml.ir.file_constant import files_of, settled_graph
from vkml.ir.lowering import CannotLower
from vkml.ir.mapped_file import MappedFile
from vkml.ir.size import Sizes, TooOpen
from vkml.onnx import ModelMetadata, load_graph
from vkml.onnx import open as open_model
from vkml.ops.upgrading import NEWEST
from vkml.passes.segments import segments

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger("vkml")
Array = np.ndarray[Any, Any]
_STRUCTURES_KEPT = 1024
LARGEST_ASSUMED = 1 << 24
"""Bytes of an input that a report makes up, where sizes hang on its values."""
PRECISIONS = ("highest", "high", "medium")


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model."""

    name: str
    shape: list[int | str | None]
    type: str
    """As onnxruntime writes it: ``tensor(float)``."""


class InferenceSession:
    """A model, planned for a device and run as often as you like, from any thread.

    A model file is mapped, not read: replace it by renaming. One that is written into while sessions of it
    live makes new plans fail (`ModelChanged`); runs on a GPU and packed weights do not mind, but what the CPU
    reads in place (tables, weights of products of a few rows) changes, and a file that is shortened then ends
    the process. `SessionOptions.copy_model` copies the model into memory instead.

    Args:
        path_or_bytes: an ONNX file or its bytes.
        sess_options: see `SessionOptions`.
        providers: as onnxruntime's; ``"VulkanExecutionProvider"`` and ``"CPUExecutionProvider"`` are known.
        devices: ``"auto"``, ``"cpu"``, ``"vulkan:0"``, …; takes precedence over `providers`.
        precision: ``"highest"`` (strict fp32), ``"high"`` or ``"medium"``: how exactly fp32 products are
            computed.
        strict: whether a node that the device cannot run is an error; otherwise the CPU runs it, and one
            warning says so.

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
        *,
        devices: str | Sequence[str] | None = None,
        precision: str = "high",
        strict: bool = False,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise InvalidArgument(f"precision {precision!r} is not known: use one of {', '.join(PRECISIONS)}")
        strict = flag("strict", strict)
        self._options = _checked_options(sess_options)
        self._precision = precision
        device_registry.check_provider_options(providers, provider_options)
        info, self._providers = device_registry.resolve(devices, providers)
        with open_model(path_or_bytes) as model, collector_paused():
            self._label = model.label
            with _explained(self._label):
                self._metadata: ModelMetadata = model.describe()
                loaded = load_graph(model)
                self._warn_of_opset(loaded)
                prepared = prepare(loaded, optimise=self._options.graph_optimization_level > 0)
                graph = settled_graph(prepared, copies=self._options.copy_model)
                self._files = files_of(graph)
                model.check()
        self._inputs = graph.inputs
        self._outputs = graph.outputs
        self._input_names = tuple(value.name for value in self._inputs)
        self._output_names = tuple(value.name for value in self._outputs)
        self._segments = segments(graph)
        self._deciding = tuple(
            tuple(
                (at, value.name)
                for at, value in enumerate(segment.graph.inputs)
                if value.name in segment.values
            )
            for segment in self._segments
        )
        """Of each segment, the inputs whose values decide shapes: where they stand, and their names."""
        self._made: dict[str, DType] = {}
        """Element types of what segments make for later ones, once they have been planned."""
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._structures: set[Hashable] = set()
        """Structures that there has been a plan for."""
        self._fixed: set[Hashable] = set()
        """Structures for which there are no plans with open sizes."""
        self._serial = 0
        self._alive: weakref.WeakSet[Plan] = weakref.WeakSet()
        """Plans of the cache, and those that have left it while threads run them."""
        self._planning: weakref.WeakValueDictionary[Any, Turn] = weakref.WeakValueDictionary()
        """A turn for each signature that some thread plans or waits for."""
        # Held to look at the cache and to change it, never to plan, close or call anything of the caller's.
        # Re-entrant: a signal handler may close the session just then.
        self._plans_lock = threading.RLock()
        renew_in_child(self._renew)
        self._latest: tuple[tuple[tuple[int, ...], ...], tuple[Any, ...], Plan] | None = None
        self._direct: Callable[[Mapping[str, Any]], list[Array] | None] | None = None
        self._warned: set[str] = set()
        """Nodes of which it has been said that they run on the CPU."""
        self._misstated: set[str] = set()
        """Outputs of which it has been said that their stated shapes are wrong."""
        self._events: list[dict[str, Any]] = []
        self._dtypes = tuple(value.type.dtype.storage for value in self._inputs)
        self._has_texts = any(value.type.dtype == dtypes.STRING for value in self._inputs)
        self._placement = self._place(info, strict)
        self._closed = False
        try:
            self._refuse_data_dependent_sizes()
            self._plan_statically()
        except BaseException:
            self.close()
            raise

    def _place(self, info: Any, strict: bool) -> Placement:
        if info is None:
            return Placement(None, None, None, strict, self._precision)
        device = device_registry.open_device(info)
        target = device_registry.target_of(info)
        _close_at_exit(self)
        weights = WeightStore(device, self._options.progress, self._options.memory_limit)
        return Placement(device, target, weights, strict, self._precision)

    def _refuse_data_dependent_sizes(self) -> None:
        """Says before the first run what a strict session would refuse in the middle of it."""
        if not self._placement.strict or self._placement.device is None:
            return
        found = [node for segment in self._segments for node in segment.sized_by_data]
        if found:
            raise strict_error([(node.label, "the sizes of its results depend on data") for node in found])

    def _plan_statically(self) -> None:
        """Plans at once where the model's input shapes leave nothing open, so that errors come early."""
        inputs = self._segments[0].graph.inputs
        if self._segments[0].values or not all(value.type.is_static for value in inputs):
            return
        self._plan(0, tuple(value.type.dims for value in inputs), {})

    # -- what the model is ----------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order."""
        return [_node_arg(value) for value in self._inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return [_node_arg(value) for value in self._outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that a feed may override: none, they are constants here."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Producer, graph name, domain, description, version and custom metadata."""
        return self._metadata

    def get_providers(self) -> list[str]:
        """The providers in use, the first preferred."""
        return list(self._providers)

    def get_session_options(self) -> SessionOptions:
        return self._options

    @property
    def device(self) -> str:
        """Name of the preferred device."""
        device = self._placement.device
        return device.info.name if device is not None else "cpu"

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
            run_options: onnxruntime's, or None; accepted for compatibility, nothing in it is followed.

        Returns:
            Fresh arrays, one an output, of the same types.

        Raises:
            InvalidArgument: a missing, extra, misshapen or mistyped input, or an unknown output name.
            IndexOutOfRange: an index among the inputs lies outside what it indexes.
            OutOfMemory: the device or the host has too little memory for inputs of these shapes.
            Fail: the session is closed.
        """
        if run_options is not None:
            _check_run_options(run_options)
        direct = self._direct
        if direct is not None and output_names is None:
            made = direct(input_feed)
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
                    return self._run_plan(plan, feeds, plan.outputs)
                except PlanClosed:
                    pass
        return self._run_checked(output_names, input_feed)

    def _run_checked(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Array]:
        self._require_open()
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
                    f"the model has no output '{name}'; its outputs are {list(self._output_names)}"
                )
        feeds = check_feed(self._inputs, input_feed)
        try:
            if len(self._segments) > 1:
                return self._run_segments(feeds, wanted)
            plan = self._plan_for(0, feeds)
            if not self._segments[0].values and not self._has_texts:
                self._remember(tuple(array.shape for array in feeds), plan)
            return self._run_plan(plan, feeds, wanted)
        except PlanClosed:
            raise Fail(f"this session of {self._label} was closed during a run") from None

    def _remember(self, shapes: tuple[tuple[int, ...], ...], plan: Plan) -> None:
        """Has the next run try this plan first."""
        with self._plans_lock:
            is_cached = self._plans.get(plan.signature) is plan
            if is_cached and (self._latest is None or self._latest[2] is not plan):
                direct = None if self._options.enable_profiling else plan.direct()
                self._latest, self._direct = (shapes, self._dtypes, plan), direct

    def _run_segments(self, feeds: Sequence[Array], wanted: Sequence[str]) -> list[Array]:
        """Runs one segment after the other; what one makes for others passes through the host."""
        values = dict(zip(self._input_names, feeds, strict=True))
        for index, segment in enumerate(self._segments):
            given = [values[value.name] for value in segment.graph.inputs]
            plan = self._plan_for(index, given)
            made = self._run_plan(plan, given, plan.outputs, f"segment {index}")
            values.update(zip(plan.outputs, made, strict=True))
        first = {name: at for at, name in reversed(list(enumerate(wanted)))}
        return [values[name] if first[name] == at else values[name].copy() for at, name in enumerate(wanted)]

    def _run_plan(
        self, plan: Plan, feeds: Sequence[Array], wanted: tuple[str, ...], name: str = "run"
    ) -> list[Array]:
        if not self._options.enable_profiling:
            try:
                return plan.run(feeds, wanted)
            except MemoryError as error:
                raise out_of_memory(error, self._label) from error
        start = time.perf_counter()
        steps: list[Timing] = []
        try:
            return plan.run(feeds, wanted, steps)
        finally:
            self._trace(name, "Session", start, time.perf_counter() - start)
            for step in steps:
                self._trace(step.nodes, "Node", start, step.seconds, device=step.device)
                start += step.seconds

    def _trace(self, name: str, category: str, start: float, seconds: float, **args: str) -> None:
        event = {"name": name, "cat": category, "ph": "X", "ts": start * 1e6, "dur": seconds * 1e6}
        self._events.append({**event, "pid": os.getpid(), "tid": threading.get_native_id(), "args": args})

    def _plan_for(self, index: int, feeds: Sequence[Array]) -> Plan:
        """The plan of segment `index` for these inputs; see `_plan`."""
        # Copies, which the plan keeps: the caller may change the arrays at any time.
        values = {name: feeds[at].copy() for at, name in self._deciding[index]}
        return self._plan(index, tuple([array.shape for array in feeds]), values)

    def _plan(self, index: int, shapes: tuple[tuple[int, ...], ...], values: Mapping[str, Array]) -> Plan:
        """A segment's plan for a signature, from the cache or new; not closed as long as the caller holds it.

        Each signature is planned by one thread; others that want the same wait for it. Segments before this
        one have been planned at least once.
        """
        # Numbers: no shape is decided by strings, whose bytes are addresses.
        contents = tuple(array.tobytes() for array in values.values())
        key = (index, shapes, contents)
        structure = self._structure(index, shapes, contents)
        plan = self._find(key) or self._find_open(structure, shapes)
        if plan is not None:
            return plan
        with self._plans_lock:
            turn = self._planning.setdefault(key, Turn())
        try:
            with turn.taken(
                f"{self._label} is being planned for these shapes in this very thread: what planning calls "
                "(a progress callback, a signal handler) may use only what is planned already"
            ):
                plan = (
                    self._find(key)
                    or self._find_open(structure, shapes)
                    or self._make_plan(index, shapes, values, key, structure)
                )
        finally:
            if self._closed:
                self.close()  # what a close in the middle of planning had to leave
        self._warn(plan)
        self._warn_of_shapes(plan)
        return plan

    def _find(self, key: Hashable) -> Plan | None:
        with self._plans_lock:
            self._require_open()
            try:
                self._plans.move_to_end(key)
                return self._plans[key]
            except KeyError:
                return None

    def _structure(
        self, index: int, shapes: tuple[tuple[int, ...], ...], contents: tuple[bytes, ...]
    ) -> Hashable:
        """What signatures have in common that one plan may serve: all but open sizes from 2 on.

        None where no size is open.
        """
        inputs = self._segments[index].graph.inputs
        kept = tuple(
            tuple(
                None if size >= 2 and not isinstance(dim, int) else size
                for size, dim in zip(shape, value.type.shape or (None,) * len(shape), strict=False)
            )
            for shape, value in zip(shapes, inputs, strict=True)
        )
        return (index, kept, contents) if any(None in sizes for sizes in kept) else None

    def _find_open(self, structure: Hashable, shapes: tuple[tuple[int, ...], ...]) -> Plan | None:
        """A plan with open sizes that holds for these shapes."""
        if structure is None:
            return None
        with self._plans_lock:
            found = [plan for plan in self._plans.values() if plan.signature[:1] == (structure,)]
        for plan in reversed(found):
            if plan.values_of(shapes) is not None:
                return self._find(plan.signature)
        return None

    def _make_plan(
        self,
        index: int,
        shapes: tuple[tuple[int, ...], ...],
        values: Mapping[str, Array],
        key: Hashable,
        structure: Hashable,
    ) -> Plan:
        """A new plan: for these shapes alone where they are the first of a structure, else an open one."""
        # On the CPU alone, machine code for known sizes is all that a plan is.
        if structure is None or structure in self._fixed or self._placement.device is None:
            return self._plan_shapes(index, shapes, values, key)
        with self._plans_lock:
            is_first = structure not in self._structures
            if len(self._structures) >= _STRUCTURES_KEPT:
                self._structures.clear()
            self._structures.add(structure)
        if is_first:
            return self._plan_shapes(index, shapes, values, key)
        try:
            return self._plan_open(index, shapes, values, structure)
        except (CannotLower, ModelError, TooOpen):
            # The plan for these shapes alone says what is wrong, where it is the shapes.
            plan = self._plan_shapes(index, shapes, values, key)
            self._fixed.add(structure)
            return plan

    def _plan_open(
        self,
        index: int,
        shapes: tuple[tuple[int, ...], ...],
        values: Mapping[str, Array],
        structure: Hashable,
    ) -> Plan:
        sizes = Sizes()
        inputs = self._segments[index].graph.inputs
        opened: tuple[tuple[Any, ...], ...] = tuple(
            tuple(
                size
                if size < 2 or isinstance(dim, int) or value.name in values
                else sizes.symbol(dim or f"{value.name}.{axis}", size)
                for axis, (size, dim) in enumerate(
                    zip(shape, value.type.shape or (None,) * len(shape), strict=False)
                )
            )
            for shape, value in zip(shapes, inputs, strict=True)
        )
        self._serial += 1
        return self._plan_shapes(index, opened, values, (structure, self._serial), sizes)

    def _plan_shapes(
        self,
        index: int,
        shapes: Sequence[tuple[int, ...]],
        values: Mapping[str, Array],
        signature: Hashable,
        sizes: Sizes | None = None,
    ) -> Plan:
        segment = self._segments[index]
        inputs = tuple(
            Value(value.name, TensorType(self._made.get(value.name, value.type.dtype), shape))
            for value, shape in zip(segment.graph.inputs, shapes, strict=True)
        )
        named = {value.name: value.type.dims for value in inputs}
        graph = replace(segment.graph, inputs=inputs)
        with _explained(self._label), _mapped(self._files), collector_paused():
            plan = make_plan(
                graph, named, values, self._placement, self._options, signature, segment.arithmetic, sizes
            )
        dropped: list[Plan] = []  # each closes when the last run that uses it lets go of it, or here
        with self._plans_lock:
            self._require_open()
            self._latest, self._direct = None, None  # may be one of those that go
            while len(self._plans) >= max(1, self._options.plan_cache_size) * len(self._segments):
                dropped.append(self._plans.popitem(last=False)[1])
            self._made.update((value.name, value.type.dtype) for value in plan.graph.outputs)
            self._alive.add(plan)
            self._plans[signature] = plan
        return plan

    def _require_open(self) -> None:
        if self._closed:
            raise Fail(f"this session of {self._label} is closed; make a new one")

    def _warn_of_opset(self, graph: Graph) -> None:
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
        made = {value.name: value.type for value in plan.graph.outputs}
        for output in self._outputs:
            found = made.get(output.name)
            if found is None or output.name in self._misstated or output.type.admits_shape_of(found):
                continue
            self._misstated.add(output.name)
            if self._options.shows_warnings:
                _log.warning(
                    "%s: the output '%s' is stated to be %s and computes to %s, which is returned",
                    self._label,
                    output.name,
                    output.type,
                    found,
                )

    def _warn(self, plan: Plan) -> None:
        with self._plans_lock:
            fresh = [(label, reason) for label, reason in plan.fallbacks if label not in self._warned]
            self._warned.update(label for label, _ in fresh)
        if not fresh or not self._options.shows_warnings:
            return
        first = "; ".join(f"{label}: {reason}" for label, reason in fresh[:3])
        more = f" (and {len(fresh) - 3} more)" if len(fresh) > 3 else ""
        _log.warning("%d nodes run on the CPU instead of %s: %s%s", len(fresh), self.device, first, more)

    def report(self, dimensions: Mapping[str, int] | None = None) -> PlanReport:
        """What the plan is for the given sizes of symbolic dimensions (1 where not given).

        Sizes and values that data decides are taken for ones, and the report says so.

        Args:
            dimensions: symbolic dimension → size.
        """
        given = dict(dimensions or {})
        known = {dim for value in self._inputs for dim in value.type.shape or () if isinstance(dim, str)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise InvalidArgument(
                f"the model has no dimension {unknown[0]!r}; its dimensions are {sorted(known)}"
            )
        types = {
            value.name: TensorType(
                value.type.dtype,
                tuple(
                    dim if isinstance(dim, int) else given.get(dim or "", 1) for dim in value.type.shape or ()
                ),
            )
            for value in self._inputs
        }
        shapes = {name: type_.dims for name, type_ in types.items()}
        plans, assumed = self._plans_without_data(types)
        return report(plans, self._placement.weights, shapes, assumed)

    def _plans_without_data(self, types: dict[str, TensorType]) -> tuple[list[Plan], list[str]]:
        """Plans of the segments, as many as can be made, and what was assumed for them.

        Args:
            types: of the model's inputs.
        """
        plans: list[Plan] = []
        assumed: list[str] = []
        known: dict[str, Array] = {}
        for index, segment in enumerate(self._segments):
            names = [value.name for value in segment.graph.inputs]
            for name in names:
                type_ = types[name]
                if not type_.is_static:
                    types[name] = type_ = static(
                        type_.dtype, [dim if isinstance(dim, int) else 1 for dim in type_.shape or ()]
                    )
                    assumed.append(f"'{name}' has the shape {list(type_.dims)}")
                if name in segment.values and name not in known:
                    if type_.bytes > LARGEST_ASSUMED:
                        assumed.append(
                            f"of {len(self._segments)} segments, {index} could be planned: sizes hang on the "
                            f"values of '{name}', which would take {type_.bytes} bytes"
                        )
                        return plans, assumed
                    known[name] = np.ones(type_.dims, type_.dtype.storage)
                    assumed.append(f"'{name}' holds ones")
            values = {name: known[name] for name in segment.values}
            try:
                plan = self._plan(index, tuple(types[name].dims for name in names), values)
            except ModelError as error:
                if not assumed:
                    raise
                assumed.append(f"of {len(self._segments)} segments, {index} could be planned: {error}")
                break
            plan.bind([types[name].dims for name in names])
            plans.append(plan)
            types.update((value.name, value.type) for value in plan.graph.outputs)
            known.update(plan.constants)
        return plans, assumed

    # -- end ------------------------------------------------------------------------------------------------

    def end_profiling(self) -> str:
        """Writes the trace of all runs and their steps (Chrome's trace format); returns the file's path.

        Steps are launches on the CPU, and levels of launches that run at the same time on a GPU.
        """
        import json

        stem = f"{self._options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        for count in itertools.count(1):
            path = f"{stem}_{count}.json" if count > 1 else f"{stem}.json"
            # Another session, perhaps of another process, may have written in this second.
            with contextlib.suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
                json.dump(self._events, file)
                break
        return path

    def close(self) -> None:
        """Frees everything the session holds on its devices; it cannot run afterwards.

        Waits for other threads that run or plan. In the middle of a run or of planning of this thread's own
        (in a signal handler, in a progress callback) that one is freed at its end.
        """
        with self._plans_lock:
            self._closed = True
            self._latest, self._direct = None, None
            self._plans.clear()
            plans, planning = list(self._alive), list(self._planning.values())
        is_idle = True
        for turn in planning:
            with turn.lock:
                is_idle &= not turn.is_taken
        for plan in plans:
            is_idle &= plan.close()
        if is_idle and self._placement.weights is not None:
            self._placement.weights.close()

    def _renew(self) -> None:
        self._plans_lock = threading.RLock()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not hasattr(self, "_closed"):
            return  # not even made
        try:
            self.close()
        except Exception:
            _log.debug("closing a session at its end failed", exc_info=True)


_on_devices: weakref.WeakSet[InferenceSession] = weakref.WeakSet()
_has_exit_handler = False


def _close_at_exit(session: InferenceSession) -> None:
    """Has the session closed before its device when the interpreter ends: daemon threads may be running."""
    global _has_exit_handler
    if not _has_exit_handler:
        # Handlers run in reverse order; the device, opened by now, has registered its own.
        atexit.register(_close_all)
        _has_exit_handler = True
    _on_devices.add(session)


def _close_all() -> None:
    for session in list(_on_devices):
        if not getattr(session, "_closed", True):  # else not even made
            session.close()


def _node_arg(value: Value) -> NodeArg:
    return NodeArg(value.name, list(value.type.shape or ()), f"tensor({value.type.dtype.name})")


def _checked_options(options: SessionOptions | None) -> SessionOptions:
    if options is None:
        return SessionOptions()
    if not isinstance(options, SessionOptions):
        raise InvalidArgument(
            f"sess_options is a vkml.SessionOptions, not {options!r} ({type(options).__module__}."
            f"{type(options).__qualname__})"
        )
    return options


def _check_run_options(options: Any) -> None:
    """Refuses what is no RunOptions: a second feed, say, that would be passed over in silence."""
    if type(options).__name__ != "RunOptions":
        raise InvalidArgument(f"run_options is onnxruntime's RunOptions or None, not {options!r}")


@contextlib.contextmanager
def _mapped(files: Sequence[MappedFile]) -> Iterator[None]:
    """Checks that the model's files are what they were, and keeps them mapped during the context.

    Raises:
        ModelChanged: one is not.
    """
    for file in files:
        file.check()
    views = [file.view() for file in files]
    yield
    del views


@contextlib.contextmanager
def _explained(label: str) -> Iterator[None]:
    """Names the model in errors that do not, and makes NumPy's MemoryError one of vkml's."""
    try:
        yield
    except ModelError as error:
        if label not in str(error):
            error.args = (f"{label}: {error}",)
        raise
    except MemoryError as error:
        raise out_of_memory(error, label) from error
