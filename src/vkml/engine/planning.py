"""From a prepared graph to a plan: passes, a device for each node, programs of the pieces."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vkml import kernels
from vkml.cpu.native.executable import instruction_set
from vkml.cpu.pool import shared_pool
from vkml.engine.ahead import compiled_ahead
from vkml.engine.cpu_bound import CpuBound
from vkml.engine.flight import Queues
from vkml.engine.overlap import cut_for_overlap, stages, with_copies
from vkml.engine.placement import CPU, Placement, cut, named_device, place
from vkml.engine.plan import Plan
from vkml.engine.plan_memory import budget_of, check_folded, check_peak, check_program, check_results
from vkml.engine.programs import Bound, VulkanBound
from vkml.engine.written_over import written_over
from vkml.ir import Constant, Graph, Node, TensorType, dtypes
from vkml.ir.file_constant import owned, settled
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Sizes
from vkml.ir.size_terms import Symbol
from vkml.ir.wording import counted
from vkml.lowering.cpu import CpuProgram, compile_cpu
from vkml.lowering.vulkan import Piece, lower, refusals
from vkml.passes import (
    expand_steps,
    fuse,
    fuse_attention,
    fuse_links,
    fuse_parts,
    fuse_prologues,
    fuse_reductions,
    remove_dead,
    share_small,
    simplify,
    specialise,
)
from vkml.passes.attention import Candidate
from vkml.passes.bind_sizes import bind_sizes
from vkml.passes.fuse import members

if TYPE_CHECKING:
    from vkml.engine.options import SessionOptions
    from vkml.vulkan import Queue


def make_plan(
    graph: Graph,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Any],
    placement: Placement,
    options: SessionOptions,
    signature: Any = None,
    arithmetic: Collection[str] = (),
    sizes: Sizes | None = None,
) -> Plan:
    """Plans a prepared graph for one set of input shapes, or for many where sizes in these are open.

    Args:
        graph: from `prepare`.
        shapes: of every input.
        values: of inputs that decide shapes.
        placement: the device to prefer.
        options: of the session.
        signature: kept with the plan.
        arithmetic: what planning may compute from `values`.
        sizes: those that are open.
    """
    if sizes is not None:
        with sizes.deciding():
            return _make_plan(graph, shapes, values, placement, options, signature, arithmetic, sizes)
    return _make_plan(graph, shapes, values, placement, options, signature, arithmetic, None)


def _make_plan(
    graph: Graph,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Any],
    placement: Placement,
    options: SessionOptions,
    signature: Any,
    arithmetic: Collection[str],
    sizes: Sizes | None,
) -> Plan:
    optimise = options.graph_optimization_level > 0
    graph = specialise(graph, shapes, values, arithmetic, check_folded(options.memory_limit))
    graph = remove_dead(graph)
    graph = replace(graph, constants={name: settled(constant) for name, constant in graph.constants.items()})
    if optimise:
        simplified = simplify(graph)
        graph = graph if simplified is graph else remove_dead(simplified)
    if sizes is None and _stays_on_host(graph, placement):
        placement = replace(placement, sites=())
    if optimise and not (placement.named or placement.assigned):
        graph = fuse_attention(graph, lambda found: _of_halves(found, placement))
    graph = expand_steps(
        graph,
        lambda graph, found: _with_kernels(found, graph, placement, options),
        on_host=not placement.sites,
    )
    if optimise:
        graph = share_small(graph, lambda node: named_device(node, placement))
    places = place(graph, placement)
    device_of, fallbacks = places.device_of, tuple(places.fallbacks)
    misplaced = places.displaced if placement.takes_cpu else fallbacks
    if placement.strict and misplaced:
        raise strict_error(misplaced)
    if optimise:
        if placement.sites:
            graph = fuse_attention(graph, lambda found: _attentions(found, graph, placement, device_of))
        kept_apart = _keeps_apart(graph, device_of, placement)
        graph = fuse(graph, kept_apart, _follows(graph, device_of))
        if placement.sites:
            graph, copies = fuse_reductions(
                graph,
                lambda node: kept_apart(members(node)[0]),
                lambda node: device_of[members(node)[0].key] != CPU,
            )
            device_of.update({copy: device_of[node] for copy, node in copies.items()})
            for fuse_before in (fuse_prologues, fuse_parts, fuse_links):
                accepted = functools.partial(_accepted, graph=graph, placement=placement, device_of=device_of)
                graph = fuse_before(graph, kept_apart, accepted)
        for node in graph.nodes:
            device_of[node.key] = device_of[members(node)[0].key]
    if placement.named:
        graph, late = with_copies(graph, device_of, placement.late, CPU)
        pieces = cut_for_overlap(graph, device_of, late, placement.bucket_bytes)
    else:
        pieces = cut(graph, device_of)
    programs: list[Bound] = []
    queues = Queues(placement)
    try:
        for device, piece in pieces:
            programs.append(_bind(device, piece, graph, placement, options, sizes, queues.of(device)))
        if sizes is None:  # else when they are bound
            check_peak(programs, graph.types, options.memory_limit)
    except BaseException:
        for program in programs:
            program.close()
        raise
    names = tuple(value.name for value in graph.inputs)
    found = {v.name: graph.constants[v.name].array for v in graph.outputs if v.name in graph.constants}
    constants = {name: owned(array) for name, array in found.items()}
    donated, behind = written_over(programs, graph.donated if placement.named else ())
    return Plan(
        signature,
        names,
        tuple(value.tensor for value in graph.inputs),
        tuple(value.name for value in graph.outputs),
        programs,
        fallbacks,
        graph,
        constants,
        sizes,
        reasons=tuple(places.reasons),
        donated=donated,
        behind=behind if donated else (),
    )


def _keeps_apart(graph: Graph, device_of: Mapping[str, str], placement: Placement) -> Callable[[Node], str]:
    """What nodes have in common that may be fused: a device, and what they wait for of others."""
    if not placement.named:
        return lambda node: device_of[node.key]
    stage_of = stages(graph, device_of)
    return lambda node: f"{stage_of[node.key]} {device_of[node.key]}"


def _stays_on_host(graph: Graph, placement: Placement) -> bool:
    """Whether all values are so small that to give them to a device would take longer than the work."""
    limit = placement.host_elements
    if not limit or placement.strict:
        return False
    return all(type_.is_static and type_.elements <= limit for type_ in graph.types.values())


def _of_halves(found: Sequence[Candidate], placement: Placement) -> set[str]:
    """The results of attentions of float16 where no device has units for attention.

    As one node they are computed in float32 and rounded once. Such devices multiply in float32 anyway: 12
    heads of 512 rows take 4.7 ms of processor time so (Zen 5), and 9.0 with scores and probabilities of
    float16 in between.
    """
    if any(not kernels.attention.device_refusal(site.target) for site in placement.sites):
        return set()
    return {each.node.key for each in found if each.dtype == dtypes.FLOAT16}


def _attentions(
    found: Sequence[Candidate], graph: Graph, placement: Placement, device_of: Mapping[str, str]
) -> set[str]:
    """The results of those attentions that one GPU runs, which has a kernel for them."""
    alike = [each for each in found if len({device_of[member.key] for member in each.members}) == 1]
    return _accepted([each.node for each in alike], graph, placement, device_of)


def _accepted(
    found: Sequence[Node], graph: Graph, placement: Placement, device_of: Mapping[str, str]
) -> set[str]:
    """The results of those nodes for which the GPU has a kernel that runs what they stand for."""
    accepted = set()
    for site in placement.sites:
        there = [node for node in found if device_of[node.key] == site.name]
        refused = refusals(there, graph.types, graph.constants, site.target)
        accepted |= {node.key for node in there} - refused.keys()
    return accepted


def _with_kernels(
    nodes: Sequence[Node], graph: Graph, placement: Placement, options: SessionOptions
) -> set[str]:
    """The results of those nodes that any of the devices has kernels for."""
    accepted: set[str] = set()
    instructions = None if placement.sites else instruction_set()
    if instructions is not None:
        from vkml.lowering import native  # not for sessions on a GPU: 50 ms

        threads, is_strict = shared_pool(options.threads).size, placement.precision == "highest"
        refused = native.refusals(nodes, graph.types, graph.constants, instructions, threads, is_strict)
        accepted |= {node.key for node in nodes} - refused.keys()
    for site in placement.sites:
        refused = refusals(nodes, graph.types, graph.constants, site.target)
        accepted |= {node.key for node in nodes} - refused.keys()
    return accepted


def _follows(graph: Graph, device_of: Mapping[str, str]) -> Callable[[Node, Node], bool] | None:
    """Keeps what no epilogue of machine code does from taking all that follows a product with it."""
    if instruction_set() is None or "cpu" not in device_of.values():
        return None
    from vkml.lowering.native_body import fits_epilogue  # not for sessions on a GPU: 50 ms

    def follows(anchor: Node, node: Node) -> bool:
        if device_of[anchor.key] != "cpu":
            return True
        return fits_epilogue(node, graph.types, graph.constants)

    return follows


def strict_error(fallbacks: Sequence[tuple[str, str]]) -> Exception:
    """What a strict session raises; `fallbacks` are nodes and why they cannot run on the device."""
    from vkml.errors import NotImplemented

    lines = "\n".join(f"  {label}: {reason}" for label, reason in fallbacks)
    nodes = counted(len(fallbacks), "node")
    return NotImplemented(f"strict=True and {nodes} cannot run on the device:\n{lines}")


def _bind_cpu(
    piece: Piece, graph: Graph, placement: Placement, options: SessionOptions, sizes: Sizes | None
) -> CpuBound:
    """A piece for the CPU: one program for all values of the open sizes where there is one."""
    symbols = () if sizes is None else tuple(sizes.examples)

    def program(
        nodes: Sequence[Node],
        types: Mapping[str, TensorType],
        constants: Mapping[str, Constant],
        symbols: Sequence[Symbol] = (),
    ) -> CpuProgram:
        budget = budget_of(options.memory_limit)
        if not symbols:
            check_results(nodes, types, budget)
        return compile_cpu(
            nodes,
            types,
            constants,
            threads=options.threads,
            inputs=piece.inputs,
            outputs=piece.outputs,
            is_strict=placement.precision == "highest",
            budget=budget,
            symbols=symbols,
        )

    def compile(values: tuple[int, ...]) -> CpuProgram:
        known = dict(zip(symbols, values, strict=True))
        bound = bind_sizes(piece.nodes, graph.types, graph.constants, known)
        made = program(bound.nodes, bound.types, bound.constants)
        if symbols:
            check_program(made, bound.nodes, bound.types, options.memory_limit)
        return made

    def check(opened: CpuProgram, values: tuple[int, ...]) -> None:
        types = opened.types_for(values)
        check_results(piece.nodes, types, budget_of(options.memory_limit))
        check_program(opened, piece.nodes, types, options.memory_limit)

    opened = None
    if sizes is not None and not any(_has_subgraph(node) for node in piece.nodes):
        opened = program(piece.nodes, graph.types, graph.constants, symbols)
        slow = _numpy_nodes(opened)
        if slow and slow - _numpy_nodes(compile(tuple(sizes.examples.values()))):
            opened = None  # what machine code does for known sizes alone is slower by far for open ones
    if sizes is not None and opened is None and not placement.sites:
        raise CannotLower("the CPU has no program for all sizes of this model")
    return CpuBound(piece, compile, opened, check, is_open=bool(symbols))


def _numpy_nodes(program: CpuProgram) -> set[str]:
    """First results of the nodes that NumPy runs."""
    return {part.key for node, form in program.forms if form.variant == "numpy" for part in members(node)}


def _has_subgraph(node: Node) -> bool:
    """Whether a node runs graphs of its own, whose types its `evaluate` looks at."""
    return any(
        isinstance(attribute, Graph) for part in members(node) for attribute in part.attributes.values()
    )


def _bind(
    device: str,
    piece: Piece,
    graph: Graph,
    placement: Placement,
    options: SessionOptions,
    sizes: Sizes | None,
    queue: Queue | None,
) -> Bound:
    if device == "cpu":
        return _bind_cpu(piece, graph, placement, options, sizes)
    site = placement.site(device)
    target = site.target
    if site.tuning is not None and sizes is None:
        target = site.tuning.target_for(piece, graph.types, graph.constants, target)
    with compiled_ahead(site.open, site.opened) as ahead:
        lowered = lower(
            piece,
            graph.types,
            graph.constants,
            target,
            options.guard_bytes,
            sizes,
            graph.donated,
            ahead.launch,
        )
        ahead.want_all([launch.kernel for launch in lowered.dispatches])
        return VulkanBound(
            lowered,
            site.device,
            site.weights,
            guard_bytes=options.guard_bytes,
            progress=options.progress,
            memory_limit=options.memory_limit,
            time_limit=options.run_time_limit if math.isfinite(options.run_time_limit) else None,
            queue=queue,
            ahead=ahead,
        )
