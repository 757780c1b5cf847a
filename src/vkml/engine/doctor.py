"""Runs each kernel's known-answer cases on a device, and collects the facts of an installation."""

from __future__ import annotations

import os
import platform
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import vkml
import vkml.ops
from vkml.dataclasses import dataclass
from vkml.engine import devices as device_registry
from vkml.engine.doctor_cases import CASES, Case
from vkml.engine.host_imports import LEAST_USES
from vkml.errors import Error
from vkml.ir.graph import Graph
from vkml.ir.operator import find, normalise_attributes

Array = np.ndarray[Any, Any]

PASS = "PASS"
FAIL = "FAIL"
ON_CPU = "CPU"
"""The device has no kernel for the case, so it ran on the CPU: right, and slower."""


@dataclass(frozen=True)
class CaseResult:
    """How one case went on one device."""

    device: str
    case: str
    family: str
    status: str
    detail: str
    seconds: float


def seed_of(name: str) -> int:
    """A case's seed, so that adding cases does not change the others' values."""
    return zlib.crc32(name.encode())


def reference(graph: Graph, feed: Mapping[str, Array]) -> list[Array]:
    """The graph's outputs by the operators' own NumPy definitions, in float64 and rounded once."""
    given = {name: constant.array for name, constant in graph.constants.items()} | dict(feed)
    wide = {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in given.items()}
    kinds = [array.dtype for array in _evaluated(graph, given)]
    return [array.astype(kind) for array, kind in zip(_evaluated(graph, wide), kinds, strict=True)]


def _evaluated(graph: Graph, given: Mapping[str, Array]) -> list[Array]:
    values = dict(given)
    for node in graph.nodes:
        spec = find(node)
        whole = replace(node, attributes=normalise_attributes(node, spec))
        outputs = spec.evaluate(whole, [values[name] if name else None for name in node.inputs])
        values.update(zip(node.outputs, outputs, strict=False))
    return [values[output.name] for output in graph.outputs]


def run_case(case: Case, device: str) -> CaseResult:
    """One case on one device; never raises for what the device or a kernel does wrong."""
    import vkml.onnx

    graph, feed = case.build(np.random.default_rng(seed_of(case.name)))
    wanted = reference(graph, feed) if case.answer is None else case.answer(feed)
    started = time.perf_counter()

    def result(status: str, detail: str = "") -> CaseResult:
        return CaseResult(device, case.name, case.family, status, detail, time.perf_counter() - started)

    model = vkml.onnx.save_graph(graph)
    assert model is not None
    try:
        # What falls back is part of the result; errors alone are logged.
        options = vkml.SessionOptions(log_severity_level=3)
        with vkml.InferenceSession(model, options, devices=device, precision=case.precision) as session:
            if case.is_bound:
                found = _bound_run(session, feed, wanted, device)
            else:
                found = session.run(None, dict(feed))
            fallbacks = session.report().fallbacks
    except Error as problem:
        return result(FAIL, f"{type(problem).__name__}: {problem}")
    except Exception as problem:
        return result(FAIL, f"internal error: {type(problem).__name__}: {problem}")
    for index, (have, want) in enumerate(zip(found, wanted, strict=True)):
        difference = compare(np.asarray(have), want, case.tolerance)
        if difference:
            return result(FAIL, f"output {index}: {difference}")
    if fallbacks:
        return result(ON_CPU, fallbacks[0][1])
    return result(PASS)


def _bound_run(
    session: vkml.InferenceSession, feed: Mapping[str, Array], wanted: Sequence[Array], device: str
) -> list[Array]:
    """Results of the last of as many runs of bound values as it takes for a device to read arrays itself.

    What it reads is all zeros until then: what an earlier run brought is another answer.
    """
    gpus = device_registry.resolve(device, device).gpus
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    for output, array in zip(session.get_outputs(), wanted, strict=True):
        place = vkml.OrtValue.ortvalue_from_numpy(np.zeros_like(array), gpus[0].name if gpus else "cpu")
        binding.bind_ortvalue_output(output.name, place)
    numbers = {name: array.copy() for name, array in feed.items()}
    for array in feed.values():
        array.fill(0)
    for _ in range(LEAST_USES):
        session.run_with_iobinding(binding)
    for name, array in feed.items():
        array[...] = numbers[name]
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


def compare(have: Array, want: Array, tolerance: float) -> str:
    """What differs, in words; "" where nothing does. Integers must be equal, floats within the tolerance."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"is {have.dtype}{list(have.shape)}, should be {want.dtype}{list(want.shape)}"
    if want.dtype.kind != "f":
        wrong = have != want
    else:
        left, right = have.astype(np.float64), want.astype(np.float64)
        finite = np.abs(right[np.isfinite(right)])
        scale = float(finite.max()) if finite.size else 1.0
        with np.errstate(invalid="ignore"):
            near = np.abs(left - right) <= tolerance * (np.abs(right) + 0.1 * scale)
        wrong = ~(near | (left == right) | (np.isnan(left) & np.isnan(right)))
    count = int(np.count_nonzero(wrong))
    if not count:
        return ""
    at = tuple(int(each) for each in np.argwhere(wrong)[0])
    return (
        f"{count} of {want.size} values are wrong, the first at {list(at)}: {have[at]}, should be {want[at]}"
    )


def cases(word: str = "") -> tuple[Case, ...]:
    """The cases that have the word in their name or family."""
    return tuple(case for case in CASES if word in case.name or word in case.family)


def facts() -> list[tuple[str, str]]:
    """What the installation is, as (name, value)."""
    found = [
        ("vkml", vkml.__version__),
        ("Python", f"{platform.python_version()} on {platform.platform(terse=True)} {platform.machine()}"),
        ("NumPy", np.__version__),
        ("Vulkan loader", _loader()),
    ]
    found.append(("cache folder", _cache_folder()))
    advice = "mapped: replace them by renaming, or set SessionOptions.copy_model where they are written into"
    found.append(("model files", advice))
    variables = sorted(name for name in os.environ if name.startswith(("VKML_", "VK_")))
    found += [(name, os.environ[name]) for name in variables]
    return found


def _cache_folder() -> str:
    """Where kernels are kept, and what is there."""
    from vkml.vulkan import cache

    folder = cache.folder()
    if folder is None:
        return "none: there is no home folder, so kernels are compiled in every process (set VKML_CACHE_DIR)"
    count, size = cache.usage()
    return f"{folder} ({count} {'entry' if count == 1 else 'entries'}, {size / (1 << 20):.1f} MiB)"


def _loader() -> str:
    """Which Vulkan the loader speaks, or why there is none."""
    from vkml.vulkan.instance import get_instance

    try:
        return "Vulkan " + ".".join(str(part) for part in get_instance().loader_version)
    except Error as problem:
        return f"none: {problem}"


def rejected() -> list[tuple[str, str]]:
    """Devices that Vulkan lists and vkml does not use, with the reason; none without a loader.

    Why there is no loader is one of the `facts`.
    """
    from vkml.vulkan.discovery import rejected_devices
    from vkml.vulkan.instance import get_instance

    try:
        get_instance()
    except Error:
        return []
    return [(each.title, each.reason) for each in rejected_devices()]
