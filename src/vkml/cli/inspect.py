"""``vkml inspect``: what a model file holds and, when planned, where each of its nodes would run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkml.cli.drawing import check_drawing
from vkml.cli.guard import UsageError
from vkml.cli.inputs import check_dimension_names, parse_dimensions, random_feed
from vkml.cli.output import console, print_json, show_lines, show_table, table
from vkml.cli.sessions import opened_session, timed_runs
from vkml.engine.report_text import node_name, report_lines
from vkml.engine.text_table import Column, text_table
from vkml.ir.graph import Graph, Node, Value, every_node
from vkml.ir.types import TensorType
from vkml.ir.wording import counted, shape_text, size
from vkml.passes.normalise import unknown_nodes

if TYPE_CHECKING:
    from rich.console import Console

    from vkml.engine.report import PlanReport, StepReport
    from vkml.engine.session import InferenceSession
    from vkml.onnx import Model

TIMED_RUNS = 6
SHOWN_TEXT = 200
"""Characters of a metadata value that the table shows."""


def inspect_model(
    path: Path,
    *,
    plan: bool,
    is_timed: bool,
    drawing: Path | None,
    device: str,
    precision: str,
    dimensions: Sequence[str],
    as_json: bool,
) -> int:
    """Prints the description of a model; returns the exit code."""
    import vkml.onnx

    sizes = parse_dimensions(dimensions)
    check_drawing(drawing)
    if is_timed and not plan:
        raise UsageError("--time times the steps that --plan shows; give that, too")
    with vkml.onnx.open(path) as model:
        graph = vkml.onnx.load_graph(model)
        description = _describe(path, model, graph)
    check_dimension_names(
        [value.type.shape or () for value in graph.inputs if isinstance(value.type, TensorType)], sizes
    )
    unknown = unknown_nodes(graph) if plan else {}
    if drawing is not None:
        from vkml.cli.graph_drawing import graph_drawing

        graph_drawing(graph, f"{path.name}: {counted(len(graph.nodes), 'node')}").write(drawing)
    report = None
    if plan and not unknown:
        with opened_session(path, device=device, precision=precision, is_traced=is_timed) as opened:
            times = _times(opened.session, sizes) if is_timed else {}
            report = opened.session.report(sizes or None)
            report = replace(report, steps=tuple(_timed(report.steps, times)))
    if as_json:
        if report is not None:
            description["plan"] = _plan_as_json(report)
        if unknown:
            description["unsupported"] = {
                key: [node.label for node in nodes] for key, nodes in unknown.items()
            }
        print_json(description)
        return 1 if unknown else 0
    out = console()
    _show(out, description)
    if report is not None:
        _show_plan(out, report)
    if unknown:
        _show_unsupported(out, graph, unknown)
    if drawing is not None:
        out.print(f"wrote {drawing}", markup=False)
    return 1 if unknown else 0


def _times(
    session: InferenceSession, sizes: Mapping[str, int]
) -> dict[tuple[str, tuple[str, ...]], float | None]:
    """Device and nodes of each step → its seconds, by a few runs on random inputs."""
    from vkml.engine.profile import profiled_steps

    feed = random_feed(session.get_inputs(), sizes)
    runs = []
    for _ in range(TIMED_RUNS):
        before = len(session.traced_runs)
        timed_runs(session, feed, 1)
        runs.append(session.traced_runs[before:])
    # The first has made plans.
    return {(step.device, step.nodes): step.seconds for step in profiled_steps(runs[1:])}


def _timed(
    steps: Iterable[StepReport], times: dict[tuple[str, tuple[str, ...]], float | None]
) -> Iterator[StepReport]:
    """The steps with their times; where a node has several launches, the first has the time of all."""
    for step in steps:
        yield replace(step, seconds=times.pop((step.device, step.nodes), None))


def _describe(path: Path, model: Model, graph: Graph) -> dict[str, Any]:
    constants = graph.constants.values()
    return {
        "file": str(path),
        "file_bytes": path.stat().st_size,
        "name": graph.name,
        "producer": " ".join(each for each in (model.producer, model.producer_version) if each),
        "ir_version": model.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in sorted(graph.opsets.items())},
        "documentation": graph.documentation,
        "metadata": dict(graph.metadata),
        "inputs": [_value(each) for each in graph.inputs],
        "outputs": [_value(each) for each in graph.outputs],
        "operators": dict(Counter(_operator(node) for node in every_node(graph)).most_common()),
        "parameters": sum(constant.type.elements for constant in constants),
        "parameter_bytes": sum(constant.type.bytes for constant in constants),
        "parameter_types": dict(Counter(constant.dtype.name for constant in constants).most_common()),
    }


def _operator(node: Any) -> str:
    return f"{node.domain}.{node.op}" if node.domain else str(node.op)


def _value(value: Value) -> dict[str, Any]:
    type_ = value.type
    shape = type_.shape if isinstance(type_, TensorType) else None
    return {
        "name": value.name,
        "type": type_.dtype.name if isinstance(type_, TensorType) else str(type_),
        "shape": None if shape is None else list(shape),
    }


def _show(out: Console, found: dict[str, Any]) -> None:
    opsets = ", ".join(f"{domain} {version}" for domain, version in found["opsets"].items())
    facts = [
        ("file", f"{found['file']} ({size(found['file_bytes'])})"),
        ("graph", found["name"]),
        ("producer", found["producer"]),
        ("format", f"IR version {found['ir_version']}; opsets: {opsets}"),
        ("parameters", _parameters(found)),
        ("documentation", found["documentation"]),
        *((f"metadata {key}", value) for key, value in found["metadata"].items()),
    ]
    for name, text in facts:
        if text:
            cut = text if len(text) <= SHOWN_TEXT else text[: SHOWN_TEXT - 1] + "…"
            out.print(f"{name:14} {cut}", markup=False, soft_wrap=True)
    rows = table("", "name", "type", "shape")
    for kind in ("inputs", "outputs"):
        for value in found[kind]:
            rows.add_row(kind[:-1], value["name"], value["type"], shape_text(value["shape"]))
    show_table(out, rows)
    operators = table("operator", "nodes", right=("nodes",))
    for name, count in found["operators"].items():
        operators.add_row(name, str(count))
    show_table(out, operators)


def _parameters(found: dict[str, Any]) -> str:
    types = ", ".join(f"{name} ×{count}" for name, count in found["parameter_types"].items())
    return f"{found['parameters']:,} values, {size(found['parameter_bytes'])} ({types or 'none'})"


def _plan_as_json(report: PlanReport) -> dict[str, Any]:
    return {
        "device": report.device,
        "segments": report.segments,
        "barriers": report.barriers,
        "memory": {device: dict(kinds) for device, kinds in report.memory.items()},
        "fallbacks": [{"node": node, "reason": reason} for node, reason in report.fallbacks],
        "assumed": list(report.assumed),
        "placement": list(report.placement),
        "steps": [
            {
                "device": step.device,
                "kernel": step.kernel,
                "variant": step.variant,
                "reason": step.reason,
                "flops": step.flops,
                "bytes": step.bytes,
                "seconds": step.seconds,
                "nodes": list(step.nodes),
                "operators": list(step.operators),
                "output_shapes": [list(shape) for shape in step.output_shapes],
                "workgroups": step.workgroups and list(step.workgroups),
                "depth": step.depth,
            }
            for step in report.steps
        ],
    }


def _show_plan(out: Console, report: PlanReport) -> None:
    show_lines(out, report_lines(report, out.width))


def _show_unsupported(out: Console, graph: Graph, unknown: Mapping[str, Sequence[Node]]) -> None:
    """All nodes, and of each whether there is an operator for it: no plan can be made of the whole."""
    count = sum(map(len, unknown.values()))
    lacks, needs = (
        counted(len(unknown), "operator"),
        counted(count, "node") + (" needs" if count == 1 else " need"),
    )
    out.print(f"No plan: vkml lacks {lacks}, which {needs}", style="bold", markup=False)
    reasons = {id(node): f"vkml has no operator {key}" for key, nodes in unknown.items() for node in nodes}
    outputs = {value.name: value.type for value in graph.outputs}
    rows, notes = [], []
    for number, node in enumerate(every_node(graph)):
        types = [graph.types.get(name) or outputs.get(name) for name in node.outputs if name]
        shapes = [shape_text(type_.shape) for type_ in types if isinstance(type_, TensorType)]
        rows.append((str(number), node_name(node.label), _operator(node), " ".join(shapes)))
        notes.append(f"cannot run: {reasons[id(node)]}" if id(node) in reasons else "could run: it is known")
    columns = (
        Column("#", is_right=True),
        *(Column(each, is_cut=True) for each in ("node", "operator", "output")),
    )
    show_lines(out, text_table(columns, rows, out.width, notes))
