"""Makes a case that shows a finding smaller, as long as it still shows it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from tests.fuzz.case import Case, Run
from tests.fuzz.generate import rename
from tests.fuzz.tensors import Array

Shows = Callable[[Case], bool]
Values = Callable[[Case], list[dict[str, Array]]]
"""For each feed of a case, the values between its nodes, as far as they can be had."""


def minimised(case: Case, shows: Shows, values: Values, attempts: int = 600, seconds: float = 90.0) -> Case:
    """The smallest case found that still shows what `case` does.

    Args:
        case: shows the finding.
        shows: whether a case still does.
        values: of a case; by which nodes are cut off.
        attempts: how often that is asked at most.
        seconds: how long is gone on at most.
    """
    left = itertools.count(attempts, -1)
    end = time.monotonic() + seconds
    changed = True
    while changed:
        changed = False
        for steps in (*STEPS[:3], lambda case: inputs_for_nodes(case, values), *STEPS[3:]):
            # From the start again after each success: a smaller model offers fewer and other candidates.
            progress = True
            while progress:
                progress = False
                for candidate in steps(case):
                    if next(left) <= 0 or time.monotonic() > end:
                        return case
                    if shows(candidate):
                        case, changed, progress = candidate, True, True
                        break
    return case


def size_of(case: Case) -> tuple[int, int]:
    """What is minimised: nodes, then bytes."""
    proto = case.proto()
    nodes = len(proto.graph.node) if proto is not None else 1 << 20
    return nodes, len(case.model) + sum(array.nbytes for feed in case.feeds for array in feed.values())


def _with_model(case: Case, proto: ModelProto) -> Case | None:
    """The case with another model, without what nothing reads any more; None where nothing changed."""
    cleaned = _cleaned(proto)
    data = cleaned.SerializeToString(deterministic=True)
    names = {value.name for value in cleaned.graph.input}
    feeds = tuple({name: array for name, array in feed.items() if name in names} for feed in case.feeds)
    made = replace(case, model=data, feeds=feeds)
    return made if size_of(made) < size_of(case) else None


def _cleaned(proto: ModelProto) -> ModelProto:
    graph = proto.graph
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input)
    cleaned = ModelProto()
    cleaned.CopyFrom(proto)
    del (
        cleaned.graph.node[:],
        cleaned.graph.initializer[:],
        cleaned.graph.input[:],
        cleaned.graph.value_info[:],
    )
    cleaned.graph.node.extend(reversed(kept))
    cleaned.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
    cleaned.graph.input.extend(value for value in graph.input if value.name in needed)
    cleaned.graph.value_info.extend(value for value in graph.value_info if value.name in needed)
    return cleaned


def _copies(case: Case) -> Iterator[ModelProto]:
    """Fresh copies of the case's model, for ever; none where it has none."""
    while True:
        proto = case.proto()
        if proto is None:
            return
        yield proto


# -- steps: each offers candidates ---------------------------------------------------------------------------


def fewer_runs(case: Case) -> Iterator[Case]:
    for at in range(len(case.runs)):
        if len(case.runs) > 1:
            yield replace(case, runs=case.runs[:at] + case.runs[at + 1 :])
    for at, run in enumerate(case.runs):
        if run.presentation != "plain":
            yield replace(case, runs=(*case.runs[:at], Run(run.feed), *case.runs[at + 1 :]))
    used = sorted({run.feed for run in case.runs})
    if len(used) < len(case.feeds):
        runs = tuple(replace(run, feed=used.index(run.feed)) for run in case.runs)
        yield replace(case, feeds=tuple(case.feeds[number] for number in used), runs=runs)


def fewer_outputs(case: Case) -> Iterator[Case]:
    proto = case.proto()
    if proto is None or len(proto.graph.output) < 2:
        return
    for keep in range(len(proto.graph.output)):
        candidate = next(_copies(case))
        kept = candidate.graph.output[keep]
        del candidate.graph.output[:]
        candidate.graph.output.append(kept)
        made = _with_model(case, candidate)
        if made is not None:
            yield made
    for drop in range(len(proto.graph.output)):
        candidate = next(_copies(case))
        del candidate.graph.output[drop]
        made = _with_model(case, candidate)
        if made is not None:
            yield made


def inner_outputs(case: Case) -> Iterator[Case]:
    """Another value becomes the only output, so that all behind it goes."""
    proto = case.proto()
    if proto is None:
        return
    for node in proto.graph.node:
        for name in node.output:
            if name:
                candidate = next(_copies(case))
                del candidate.graph.output[:]
                candidate.graph.output.append(helper.make_empty_tensor_value_info(name))
                made = _with_model(case, candidate)
                if made is not None:
                    yield made


def inputs_for_nodes(case: Case, values_of: Values) -> Iterator[Case]:
    """A node's outputs become inputs or constants of the model, with the values that the node made."""
    proto = case.proto()
    if proto is None:
        return
    values = values_of(case)
    for at, node in reversed(list(enumerate(proto.graph.node))):
        made_by = [name for name in node.output if name]
        if not all(name in values[number] for name in made_by for number in range(len(case.feeds))):
            continue
        for as_constant in (False, True):
            candidate = next(_copies(case))
            del candidate.graph.node[at]
            feeds = [dict(feed) for feed in case.feeds]
            for name in made_by:
                arrays = [values[number][name] for number in range(len(feeds))]
                if as_constant:
                    candidate.graph.initializer.append(_tensor(arrays[0], name))
                    continue
                same = all(array.shape == arrays[0].shape for array in arrays)
                shape = arrays[0].shape if same else [None] * arrays[0].ndim
                candidate.graph.input.append(helper.make_tensor_value_info(name, _code(arrays[0]), shape))
                for feed, array in zip(feeds, arrays, strict=True):
                    feed[name] = array
            made = _with_model(replace(case, feeds=tuple(feeds)), candidate)
            # An input may be larger than the node it stands for.
            if made is not None and size_of(made)[0] < len(proto.graph.node):
                yield made


def bypassed_nodes(case: Case) -> Iterator[Case]:
    """What a node makes is read from one of its inputs instead."""
    proto = case.proto()
    if proto is None:
        return
    outputs = {value.name for value in proto.graph.output}
    for at, node in enumerate(proto.graph.node):
        for source in dict.fromkeys(name for name in node.input if name):
            candidate = next(_copies(case))
            del candidate.graph.node[at]
            for other in candidate.graph.node:
                other.input[:] = [source if name in node.output else name for name in other.input]
            if outputs & set(node.output):
                makers = [other for other in candidate.graph.node if source in other.output]
                if not makers:
                    continue
                rename(candidate, {source: next(name for name in node.output if name in outputs)})
            made = _with_model(case, candidate)
            if made is not None:
                yield made


def plainer_nodes(case: Case) -> Iterator[Case]:
    """Attributes, optional inputs and optional outputs go."""
    proto = case.proto()
    if proto is None:
        return
    for at, node in enumerate(proto.graph.node):
        for which in range(len(node.attribute)):
            candidate = next(_copies(case))
            del candidate.graph.node[at].attribute[which]
            made = _with_model(case, candidate)
            if made is not None:
                yield made
        for which in reversed(range(len(node.input))):
            candidate = next(_copies(case))
            if which == len(node.input) - 1:
                del candidate.graph.node[at].input[which]
            else:
                candidate.graph.node[at].input[which] = ""
            made = _with_model(case, candidate)
            if made is not None:
                yield made
        if len(node.output) > 1:
            candidate = next(_copies(case))
            del candidate.graph.node[at].output[-1]
            made = _with_model(case, candidate)
            if made is not None:
                yield made


def smaller_sizes(case: Case) -> Iterator[Case]:
    """Every axis of one size is cut to a smaller one, everywhere at once."""
    proto = case.proto()
    if proto is None:
        return
    sizes = {size for feed in case.feeds for array in feed.values() for size in array.shape}
    sizes |= {size for tensor in proto.graph.initializer for size in tensor.dims}
    for size in sorted(sizes, reverse=True):
        for smaller in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < smaller < size:
                made = _resized(case, size, smaller)
                if made is not None:
                    yield made


def _resized(case: Case, size: int, smaller: int) -> Case | None:
    candidate = next(_copies(case))

    def cut(array: Array) -> Array:
        return array[tuple(slice(smaller) if entry == size else slice(None) for entry in array.shape)]

    for tensor in candidate.graph.initializer:
        if size in tensor.dims:
            try:
                tensor.CopyFrom(_tensor(cut(numpy_helper.to_array(tensor)), tensor.name))
            except Exception:  # a mutated tensor's data need not fit its type
                return None
    for value in (*candidate.graph.input, *candidate.graph.output, *candidate.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == size:
                dim.dim_value = smaller
    feeds = tuple({name: cut(array) for name, array in feed.items()} for feed in case.feeds)
    return _with_model(replace(case, feeds=feeds), candidate) or (
        replace(case, feeds=feeds, model=candidate.SerializeToString(deterministic=True))
        if sum(a.nbytes for f in feeds for a in f.values())
        < sum(a.nbytes for f in case.feeds for a in f.values())
        else None
    )


def plainer_values(case: Case) -> Iterator[Case]:
    """Ones, then whole numbers, then fewer digits, in feeds and constants."""
    for plain in (np.ones_like, _whole, _rounded):
        for number, feed in enumerate(case.feeds):
            for name, array in feed.items():
                simpler = plain(array) if array.dtype.kind in "fiu" else array
                if not np.array_equal(simpler, array):
                    changed = {**feed, name: simpler}
                    yield replace(case, feeds=(*case.feeds[:number], changed, *case.feeds[number + 1 :]))
        proto = case.proto()
        if proto is None:
            return
        for at, tensor in enumerate(proto.graph.initializer):
            try:
                array = numpy_helper.to_array(tensor)
            except Exception:  # a mutated tensor's data need not fit its type
                continue
            simpler = plain(array) if array.dtype.kind in "fiu" else array
            if not np.array_equal(simpler, array):
                candidate = next(_copies(case))
                candidate.graph.initializer[at].CopyFrom(_tensor(simpler, tensor.name))
                yield replace(case, model=candidate.SerializeToString(deterministic=True))


def _is_simple(array: Array) -> bool:
    return (
        array.dtype.kind == "f"
        and bool(np.isfinite(array).all())
        and float(np.abs(array).max(initial=0)) < 1e3
    )


def _whole(array: Array) -> Array:
    if not _is_simple(array):
        return array
    return np.rint(array)


def _rounded(array: Array) -> Array:
    if not _is_simple(array):
        return array
    return np.rint(array * 8) / array.dtype.type(8)


def plainer_names(case: Case) -> Iterator[Case]:
    """a, b, c, … instead of what they are called; nothing stated of outputs."""
    for proto in itertools.islice(_copies(case), 1):
        graph = proto.graph
        names = dict.fromkeys(entry.name for entry in (*graph.input, *graph.initializer))
        names |= dict.fromkeys(name for node in graph.node for name in node.output if name)
        letters = [chr(97 + at) if at < 26 else f"v{at}" for at in range(len(names))]
        renaming = dict(zip(names, letters, strict=True))
        if renaming != {name: name for name in names} and not set(renaming.values()) & (
            set(names) - set(renaming)
        ):
            rename(proto, renaming)
            feeds = tuple(
                {renaming.get(name, name): array for name, array in feed.items()} for feed in case.feeds
            )
            yield replace(case, model=proto.SerializeToString(deterministic=True), feeds=feeds)
    for proto in itertools.islice(_copies(case), 1):
        if any(node.name for node in proto.graph.node) or proto.graph.value_info:
            for node in proto.graph.node:
                node.ClearField("name")
            del proto.graph.value_info[:]
            yield replace(case, model=proto.SerializeToString(deterministic=True))


def plainer_options(case: Case) -> Iterator[Case]:
    if case.precision != "highest":
        yield replace(case, precision="highest")
    if not case.optimise:
        yield replace(case, optimise=True)
    if case.threads:
        yield replace(case, threads=0)


STEPS = (
    *(fewer_runs, fewer_outputs, inner_outputs, bypassed_nodes, plainer_nodes),
    *(smaller_sizes, plainer_options, plainer_names, plainer_values),
)


def _code(array: Array) -> int:
    from tests.fuzz.trusted import code_of

    return code_of(array)


def _tensor(array: Array, name: str) -> object:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
