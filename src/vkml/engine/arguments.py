"""Arguments of sessions and runs, checked."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vkml.dataclasses import dataclass
from vkml.engine import providers as provider_registry
from vkml.engine.options import SessionOptions, byte_count
from vkml.errors import InvalidArgument, ModelLoadCanceled
from vkml.ir import Graph
from vkml.onnx import ModelMetadata
from vkml.precisions import PRECISIONS

if TYPE_CHECKING:
    from vkml.engine.devices import Choice

_CONFIGURED = {
    "intra_op_num_threads": int,
    "inter_op_num_threads": int,
    "execution_mode": int,
    "graph_optimization_level": int,
    "enable_profiling": bool,
}
"""Settings that a model's metadata may state."""


@dataclass(frozen=True)
class Request:
    """What a session's arguments say of devices."""

    devices: Sequence[str] | str | None
    """Named by themselves; None where only providers are."""
    otherwise: str
    """The device that its providers stand for."""
    settings: Mapping[str, str]
    """Of Vulkan's provider."""


def request(
    providers: Sequence[Any] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
    devices: Sequence[str] | str | None,
    options: SessionOptions,
    metadata: ModelMetadata,
) -> Request:
    """The arguments about devices, checked; the options' count where there are none."""
    if not providers and devices is None:
        devices = options.chosen_devices(metadata.custom_metadata_map)
        providers = options.added_providers if devices is None else None
        provider_options = None if providers else provider_options
    device, settings = provider_registry.requested(providers, provider_options)
    return Request(devices, device, settings)


def checked_precision(precision: str | None, settings: Mapping[str, str]) -> str:
    """The argument `precision`, else the provider's option of that name, checked."""
    found = settings.get("precision", "high") if precision is None else precision
    if found not in PRECISIONS:
        raise InvalidArgument(f"precision {found!r} is not known: use one of {', '.join(PRECISIONS)}")
    return found


def stated_options(choice: Choice, precision: str) -> dict[str, dict[str, str]]:
    """Provider in use → its options, as onnxruntime states them."""
    number = next((info.name.partition(":")[2] for info in choice.gpus), "0")
    of_vulkan = {"device_id": number, "precision": precision}
    return {name: of_vulkan if name == provider_registry.VULKAN_PROVIDER else {} for name in choice.providers}


def require_loading(options: SessionOptions) -> None:
    """Raises `ModelLoadCanceled` where somebody has asked for that."""
    if options.is_load_cancelled:
        raise ModelLoadCanceled("the session is not made: its options' load cancellation flag is set")


def reads_config(given: bool | int | None) -> bool:
    """The argument `read_config_from_model`; None is decided by the environment."""
    return os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") == "1" if given is None else int(given) == 1


def configured(options: SessionOptions, metadata: Mapping[str, str], label: str) -> SessionOptions:
    """The options with what a model's metadata state instead, under the key that onnxruntime looks at.

    Raises:
        InvalidArgument: they are no settings.
    """
    text = metadata.get("ort_config")
    if text is None:
        return options
    import json

    made = copy.copy(options)
    try:
        stated = json.loads(text)["session_options"]
        for name, kind in _CONFIGURED.items():
            if name in stated:
                setattr(made, name, kind(stated[name]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{label}: the metadata 'ort_config' are no settings: {error}") from error
    return made


def with_adapters(run_options: Any, input_feed: Any) -> Any:
    """A feed with the tensors of a run's adapters, for what it has no values for itself."""
    adapters = getattr(run_options, "adapters", ())
    if not adapters or not isinstance(input_feed, Mapping):
        return input_feed
    merged: dict[str, Any] = {}
    for adapter in adapters:
        merged.update(adapter.parameters)
    return {**merged, **input_feed}


def checked_options(options: SessionOptions | None) -> SessionOptions:
    """The argument `sess_options`, checked."""
    if options is None:
        return SessionOptions()
    if not isinstance(options, SessionOptions):
        raise InvalidArgument(
            f"sess_options is a vkml.SessionOptions, not {options!r} ({type(options).__module__}."
            f"{type(options).__qualname__})"
        )
    return options


def assignments(
    placement: Mapping[str, str] | None, graph: Graph, choice: Choice
) -> tuple[tuple[tuple[str, str], ...], Graph]:
    """The argument `placement`, checked, and the graph with the names that it then goes by."""
    if placement is None:
        return (), graph
    if not isinstance(placement, Mapping):
        raise InvalidArgument(f"placement maps patterns of nodes' names to devices, not {placement!r}")
    from vkml.engine.placement import by_node_names, matches

    known = [*(info.name for info in choice.gpus), "cpu"]
    for pattern, device in placement.items():
        if device not in known:
            raise InvalidArgument(
                f"placement: {pattern!r} is to run on {device!r}; the session's devices are {known}"
            )
        if not any(matches(node, str(pattern)) for node in graph.nodes):
            raise InvalidArgument(f"placement: no node and no output of a node has a name like {pattern!r}")
    return by_node_names([(str(pattern), device) for pattern, device in placement.items()], graph)


def memory_limits(given: Mapping[str, int | str] | None, choice: Choice) -> dict[str, int]:
    """The argument `memory_limit`, checked."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"memory_limit maps devices to bytes, not {given!r}")
    known = [info.name for info in choice.gpus]
    for device in given:
        if device not in known:
            raise InvalidArgument(f"memory_limit: the session has no device {device!r}; it has {known}")
    return {device: byte_count(f"memory_limit of {device}", limit) for device, limit in given.items()}


def check_run_options(options: Any) -> None:
    """Refuses what is no RunOptions: a second feed, say, that would be passed over in silence."""
    if type(options).__name__ != "RunOptions":
        raise InvalidArgument(f"run_options is onnxruntime's RunOptions or None, not {options!r}")
