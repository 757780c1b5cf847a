"""Settings of a session, in the shape of onnxruntime's."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.configuration import Configured
from vkml.engine.model_settings import ModelSettings
from vkml.engine.process_defaults import default_severity, shared_threads
from vkml.errors import Fail, InvalidArgument, UnknownOption, WrongType


class GraphOptimizationLevel(IntEnum):
    """How far a graph may be rewritten; `ORT_DISABLE_ALL` runs it node by node."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted for compatibility; vkml orders work by its dependencies in either mode."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Accepted for compatibility, like `ExecutionMode`."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtExecutionProviderDevicePolicy(IntEnum):
    """Which devices `SessionOptions.set_provider_selection_policy` prefers."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


Progress = Callable[[str, int, int], None]
"""Called with a stage ("load", "compile", "upload"), what is done and what there is to do."""


@dataclass
class SessionOptions(ModelSettings):
    """Settings of an `InferenceSession`, checked when they are set.

    Raises:
        InvalidArgument: a value that the setting cannot have.
        UnknownOption: a setting that there is not; an AttributeError, too.
    """

    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    """This enum's, onnxruntime's, or the number behind either."""
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    """Accepted for compatibility."""
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    """Accepted for compatibility."""
    enable_profiling: bool = False
    """Whether runs are traced, for a file that `InferenceSession.end_profiling` writes."""
    profile_file_prefix: str = "onnxruntime_profile_"
    """How the name of that file begins."""
    optimized_model_filepath: str = ""
    """Where a session writes the model as it is once constants are folded; "": nowhere."""
    intra_op_num_threads: int = 0
    """Threads the CPU device uses; 0: one a core."""
    inter_op_num_threads: int = 0
    """Accepted for compatibility."""
    enable_cpu_mem_arena: bool = True
    """Accepted for compatibility."""
    enable_mem_pattern: bool = True
    """Accepted for compatibility."""
    enable_mem_reuse: bool = True
    """Accepted for compatibility."""
    use_deterministic_compute: bool = False
    """Accepted: a plan computes the same bits each time."""
    use_per_session_threads: bool = True
    """Whether `intra_op_num_threads` counts, instead of `set_global_thread_pool_sizes`."""
    log_severity_level: int = -1
    """0 verbose, 1 info, 2 warning, 3 error, 4 fatal: messages below it are not logged; -1: the default, 2
    where `set_default_logger_severity` has set no other."""
    log_verbosity_level: int = 0
    """Accepted for compatibility."""
    logid: str = ""
    """What log messages call the session."""
    memory_limit: float = 0.95
    """Share of a device's memory that may be in use, by everyone together."""
    run_time_limit: float = 3600.0
    """Seconds that a GPU may take for a run. After that the device is given up: the run raises `DeviceLost`,
    as do all later uses; other devices, and sessions made anew, go on. Some drivers never report a fault."""
    plan_cache_size: int = 8
    """Plans kept, one for each set of input shapes, at least one; as many for each segment of a model that
    data cuts."""
    progress: Progress | None = None
    """Called with a stage ("load", "tune", "compile" or "upload"), what is done and what there is to do."""
    copy_model: bool = False
    """Whether a session copies the model into memory, instead of reading large weights where they lie in its
    files. For files that are written to in place, not replaced by renaming, while sessions live."""
    tune: str = "off"
    """Whether a plan's candidates for its kernels are measured on a GPU before it is made: "off", by rules
    alone; "quick", what has not been measured there before, for at most 2 s a session; "full", for at most
    60 s. What was found is kept in the cache folder, and stays: the same bits from session to session."""
    tuning_file: str = ""
    """A file of `vkml tune`, which is gone by before anything is measured; "": none."""
    guard_bytes: int = 0
    """Bytes of known pattern round activations and results, checked after each run: for tests of kernels."""

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        if check is None:
            raise UnknownOption(f"SessionOptions has no setting {name!r}{nearest(name, _CHECKS)}")
        super().__setattr__(name, check(f"SessionOptions.{name}", value))

    @property
    def shows_warnings(self) -> bool:
        """Whether a session with these settings logs warnings."""
        level = self.log_severity_level
        return (default_severity() if level < 0 else level) <= 2

    @property
    def threads(self) -> int | None:
        """How many threads the CPU shares the work of an operator out to; None: one a core."""
        return (self.intra_op_num_threads if self.use_per_session_threads else shared_threads()) or None

    def register_custom_ops_library(self, path: str) -> None:
        """Raises `Fail`: libraries of operators are machine code for onnxruntime.

        Args:
            path: of the library.
        """
        raise Fail(
            f"the library {path!r} of custom operators cannot be loaded: its kernels are written for "
            "onnxruntime; write the operator as a function of the model (FunctionProto), which vkml inlines"
        )


@dataclass
class RunOptions(Configured):
    """Settings of one run, named as onnxruntime names them.

    Attributes:
        terminate: whether runs with these options are to end; may be set while they go on. They raise `Fail`
            before their next piece: a trip of a loop, a part between operators that planning stops at, a
            device's share. What a device is at work on, it finishes.
        logid: what log messages and traces call the run.
        run_tag: the same.
        log_severity_level: as the session's, for what is said in planning this run; -1: the session's.
        log_verbosity_level: accepted.
        only_execute_path_to_fetches: accepted: nothing else is executed.
        training_mode: accepted where it is False.
    """

    terminate: bool = False
    logid: str = ""
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    only_execute_path_to_fetches: bool = False
    training_mode: bool = False

    def add_active_adapter(self, adapter: Any) -> None:
        """Has runs take the tensors of an adapter for inputs that the model has values of its own for.

        Args:
            adapter: a `LoraAdapter`.
        """
        if not isinstance(getattr(adapter, "parameters", None), Mapping):
            raise WrongType(f"an adapter is a LoraAdapter that has been loaded, not {adapter!r}")
        self.adapters.append(adapter)

    @property
    def adapters(self) -> list[Any]:
        """Those added, in order."""
        found: list[Any] = self.__dict__.setdefault("_adapters", [])
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        check = _RUN_CHECKS.get("logid" if name == "run_tag" else name)
        if check is None:
            raise UnknownOption(f"RunOptions has no setting {name!r}{nearest(name, _RUN_CHECKS)}")
        super().__setattr__("logid" if name == "run_tag" else name, check(f"RunOptions.{name}", value))

    @property
    def run_tag(self) -> str:
        """The same as `logid`."""
        return self.logid

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry for `get_run_config_entry`; the entries that onnxruntime goes by are of its
        allocators and providers.

        Args:
            key: of the entry.
            value: of the entry.
        """
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """The value of an entry.

        Args:
            key: of the entry.

        Raises:
            InvalidSetting: there is none.
        """
        return self._entry(key)


def nearest(name: str, known: Iterable[str]) -> str:
    """What messages about an unknown name end with: the known name that is most like it, or all."""
    listed = list(known)
    from difflib import get_close_matches

    found = get_close_matches(name, listed, 1)
    return f"; did you mean {found[0]!r}?" if found else f"; there is {', '.join(listed)}"


Check = Callable[[str, Any], Any]
"""Takes what is set, for messages, and the value; returns the value to keep or raises `InvalidArgument`."""


def _enumerated(kind: type[IntEnum]) -> Check:
    def check(what: str, value: Any) -> IntEnum:
        # Other packages' enums of the same names are taken by name, so that another enum's number is not.
        name = getattr(value, "name", None)
        try:
            if isinstance(name, str):
                return kind[name]
            if not isinstance(value, bool):
                return kind(operator.index(value))
        except (KeyError, ValueError, TypeError):
            pass
        names = ", ".join(f"{each.name} ({each.value})" for each in kind)
        raise InvalidArgument(f"{what} is one of {names}, not {value!r}")

    return check


def flag(what: str, value: Any) -> bool:
    """The `Check` of what is switched on and off."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise InvalidArgument(f"{what} is True or False, not {value!r}")


def _text(what: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise InvalidArgument(f"{what} is a str, not {value!r}")


def _path(what: str, value: Any) -> str:
    try:
        return os.fsdecode(value)
    except TypeError:
        raise InvalidArgument(f"{what} is a path, not {value!r}") from None


def _whole(least: int, most: int | None = None) -> Check:
    def check(what: str, value: Any) -> int:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None or number < least or (most is not None and number > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise InvalidArgument(f"{what} is a whole number {bounds}, not {value!r}")
        return number

    return check


def _one_of(*names: str) -> Check:
    def check(what: str, value: Any) -> str:
        if isinstance(value, str) and value in names:
            return value
        raise InvalidArgument(f"{what} is one of {', '.join(map(repr, names))}, not {value!r}")

    return check


def _share(what: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number <= 1:
        raise InvalidArgument(f"{what} is a share of a device's memory, above 0 and at most 1, not {value!r}")
    return number


def _seconds(what: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number > 0:
        raise InvalidArgument(f"{what} is a number of seconds above 0, not {value!r}")
    return number


_UNITS = {"": 1, "B": 1, **{f"{p}iB": 1 << 10 * n for n, p in enumerate("KMGT", 1)}}
_UNITS |= {f"{p}B": 10 ** (3 * n) for n, p in enumerate("KMGT", 1)}


def byte_count(what: str, value: Any) -> int:
    """A number of bytes, or a text such as ``"2GiB"``, as a number; raises `InvalidArgument` for others."""
    number, unit = value, ""
    if isinstance(value, str):
        digits = value.strip().rstrip("KMGTiB ")
        unit = value.strip()[len(digits) :].strip()
        try:
            number = float(digits)
        except ValueError:
            number = math.nan
    if isinstance(number, bool) or not isinstance(number, int | float | np.integer) or unit not in _UNITS:
        number = math.nan
    if not 0 < number < math.inf:
        raise InvalidArgument(f"{what} is a number of bytes or a text such as '2GiB', not {value!r}")
    return int(number * _UNITS[unit])


def _callback(what: str, value: Any) -> Progress | None:
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    raise InvalidArgument(f"{what} is called with a stage, a count and a total, or None, not {value!r}")


_CHECKS: dict[str, Check] = {
    "graph_optimization_level": _enumerated(GraphOptimizationLevel),
    "execution_mode": _enumerated(ExecutionMode),
    "execution_order": _enumerated(ExecutionOrder),
    "enable_profiling": flag,
    "profile_file_prefix": _text,
    "optimized_model_filepath": _path,
    "intra_op_num_threads": _whole(0),
    "inter_op_num_threads": _whole(0),
    "enable_cpu_mem_arena": flag,
    "enable_mem_pattern": flag,
    "enable_mem_reuse": flag,
    "use_deterministic_compute": flag,
    "use_per_session_threads": flag,
    "log_severity_level": _whole(-1, 4),
    "log_verbosity_level": _whole(0),
    "logid": _text,
    "memory_limit": _share,
    "run_time_limit": _seconds,
    "plan_cache_size": _whole(0),
    "progress": _callback,
    "copy_model": flag,
    "tune": _one_of("off", "quick", "full"),
    "tuning_file": _path,
    "guard_bytes": _whole(0),
}


def _never(what: str, value: Any) -> bool:
    if flag(what, value):
        raise InvalidArgument(f"{what}: sessions run models as for inference")
    return False


_RUN_CHECKS: dict[str, Check] = {
    "terminate": flag,
    "logid": _text,
    "log_severity_level": _whole(-1, 4),
    "log_verbosity_level": _whole(0),
    "only_execute_path_to_fetches": flag,
    "training_mode": _never,
}
