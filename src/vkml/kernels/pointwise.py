"""Generated elementwise kernels: a body of pointwise nodes over one index space of strided views."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from vkml.dataclasses import dataclass
from vkml.ir import Graph
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import argument
from vkml.ir.scalar_body import scalar_results
from vkml.ir.size import Size, is_deciding, is_multiple
from vkml.ir.wording import counted
from vkml.kernels import blocks
from vkml.kernels.epilogue import Epilogue
from vkml.kernels.items import finish_items
from vkml.kernels.scalar_text import write_statements
from vkml.kernels.spec import Dispatch, KernelSpec
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import (
    KernelWriter,
    compute_type,
    is_packed_constant,
    load_expression,
    load_packed,
    loaded,
    storage_type,
    store_expression,
)


@dataclass(frozen=True)
class _Recipe:
    """A kernel, and its launch with operands in the place of views."""

    kernel: KernelSpec
    groups: tuple[int, int, int]
    addresses: tuple[int, ...]
    """Which operand each address of the push constants is that of."""
    words: tuple[int | Size, ...]
    """What follows the addresses."""


_RECIPES_KEPT = 1024
_recipes: dict[Hashable, _Recipe] = {}
"""By all that a launch depends on but for where its operands lie: graphs repeat themselves."""


MOST_INPUTS = 128
"""Of a node, the same one counted each time: lavapipe compiles a Max of 400 for 2 s, one of 1000 for 11."""


def pointwise(
    body: Graph,
    leaves: Sequence[View],
    outputs: Sequence[View],
    *,
    label: str,
    push_limit: int,
    max_groups: int = 65535,
) -> Dispatch:
    """One kernel that computes `outputs` from `leaves`; all are views over the same index space.

    Args:
        body: its inputs correspond to `leaves`, its outputs to `outputs`.
        leaves: expanded to the index space (strides of 0 where they repeat).
        outputs: of the index space's shape, never overlapping.
        label: for profilers.
        push_limit: bytes of push constants the device offers.
        max_groups: workgroups a grid dimension may have.
    """
    for node in body.nodes:
        if len(node.inputs) > MOST_INPUTS:
            raise CannotLower(f"{node.op} of {len(node.inputs)} inputs is too much for one kernel's compiler")
    # NVIDIA's driver faults on offsets below a pointer: a reversed view is taken from its lowest element on.
    forwards = [_lowest(view) for view in (*leaves, *outputs)]
    views = [view for view, _ in forwards]
    key = scalar_results(body), _places(leaves, outputs, views), label, push_limit, max_groups, blocks.forced
    # With open sizes, what `_generate` decides is a guard of this plan, and has to be decided here.
    recipe = None if is_deciding() else _recipes.get(key)
    if recipe is None:
        made = _generate(body, leaves, outputs, forwards, label, push_limit, max_groups)
        words = tuple(found for found in made.arguments if isinstance(found, int | Size))
        found_views = made.arguments[: len(made.arguments) - len(words)]
        order = tuple(next(i for i, view in enumerate(views) if view is found) for found in found_views)
        recipe = _Recipe(made.kernel, made.groups, order, words)
        if len(_recipes) >= _RECIPES_KEPT:
            _recipes.clear()
        if not is_deciding():
            _recipes[key] = recipe
    return Dispatch(
        recipe.kernel,
        recipe.groups,
        (*(views[index] for index in recipe.addresses), *recipe.words),
        tuple(views[: len(leaves)]),
        tuple(views[len(leaves) :]),
    )


def _lowest(view: View) -> tuple[View, int]:
    """The elements with all dimensions forwards, and where among those of the buffer's part the first one is.

    Of a packed constant the part is all: its first element may be in the middle of a byte.
    """
    seen, above = view.forwards()
    return (replace(seen, offset=0), above + seen.offset) if is_packed_constant(seen) else (seen, above)


def _places(leaves: Sequence[View], outputs: Sequence[View], forwards: Sequence[View]) -> Hashable:
    """How operands lie, as far as kernels depend on it: strides, alignment, which begin at one address."""
    first: dict[tuple[int, int], int] = {}
    same = [
        first.setdefault((view.buffer.serial, view.byte_offset), index) for index, view in enumerate(forwards)
    ]
    layouts = [
        (view.dtype, view.strides, view.offset if is_packed_constant(view) else view.offset % 16)
        for view in (*leaves, *outputs)
    ]
    return outputs[0].shape, tuple(same), tuple(layouts)


def _generate(
    body: Graph,
    leaves: Sequence[View],
    outputs: Sequence[View],
    forwards: Sequence[tuple[View, int]],
    label: str,
    push_limit: int,
    max_groups: int,
) -> Dispatch:
    space = outputs[0].shape
    operands = [*leaves, *outputs]
    sizes, strides = collapse(space, [view.strides for view in operands])
    dtype = outputs[0].dtype
    is_copy = [view.dtype for view in leaves] == [dtype] and scalar_results(body) == (argument(0, dtype),)
    found = blocks.blocks_of(leaves, outputs, sizes, strides, is_copy=is_copy)
    if found is not None:
        return blocks.generate_blocks(
            body, leaves, outputs, forwards, sizes, strides, found, label, push_limit, max_groups
        )
    width = _vector_width(operands, sizes, strides)
    total = math.prod(sizes)
    items = total // width

    writer = KernelWriter(push_limit)
    part = min(width, 4)
    is_whole = [_is_vector(stride, width) for stride in strides]
    pointers = [
        writer.read_packed(view)
        if is_packed_constant(view)
        else writer.read(view, width=part if is_vector else 1, in_place=True)
        for (view, _), is_vector in zip(forwards[: len(leaves)], is_whole, strict=False)
    ]
    pointers += [writer.write(view, width=part) for view, _ in forwards[len(leaves) :]]
    lines = _decompose(writer, sizes, width)
    coordinates = tuple(f"c{axis}" for axis in range(len(sizes)))
    in_vectors = (*coordinates[:-1], "vectors")

    def place(view: View, stride: tuple[int, ...], above: int) -> str:
        if not _is_vector(stride, width) or is_packed_constant(view):
            offset = writer.offset(coordinates, stride)
        else:
            offset, above = (
                writer.offset(in_vectors, (*(step // part for step in stride[:-1]), 1)),
                above // part,
            )
        return f"{offset} + {writer.constant(above)}" if above else offset

    places = [place(view, stride, above) for stride, (view, above) in zip(strides, forwards, strict=True)]
    for index, (view, pointer, stride) in enumerate(zip(leaves, pointers, strides, strict=False)):
        if is_packed_constant(view):
            lines += _load_packed(view, pointer, places[index], is_whole[index], width, f"x{index}")
        else:
            lines += _load(view, pointer, places[index], stride[-1], width, f"x{index}")
    elements = [f"x{i}[lane]" if is_whole[i] else f"x{i}" for i in range(len(leaves))]
    statements, results = write_statements(writer, scalar_results(body), elements, "        ")
    for index, view in enumerate(outputs):
        lines.append(f"    {_array(storage_type(view.dtype), f'y{index}', width)};")
    if width > 1:
        lines.append(f"    [ForceUnroll] for (int lane = 0; lane < {width}; ++lane)")
        lines.append("    {")
    lines += statements
    for index, (result, view) in enumerate(zip(results, outputs, strict=True)):
        target = f"y{index}[lane]" if width > 1 else f"y{index}"
        lines.append(f"        {target} = {store_expression(result, view.dtype)};")
    if width > 1:
        lines.append("    }")
    for index, view in enumerate(outputs, len(leaves)):
        lines += _store(view, pointers[index], places[index], width, f"y{index - len(leaves)}")

    if body.nodes:
        writer.math()
    variant = f"{counted(width, 'element')} a thread, {len(sizes)}-D"
    form = None
    if not is_deciding():
        form = scalar_results(body), tuple([view.dtype for view in operands])
    return finish_items(writer, items, lines, label, max_groups, variant, form)


def _vector_width(views: Sequence[View], sizes: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> int:
    """Elements a thread handles: as many as 16-byte accesses allow where all operands are aligned so."""
    width = 16 // max(view.itemsize for view in views)
    while width > 1 and not all(
        is_multiple(sizes[-1], width)
        and (
            stride[-1] == 0
            or (stride[-1] == 1 and all(is_multiple(step, width) for step in (*stride[:-1], view.offset)))
        )
        for view, stride in zip(views, strides, strict=True)
    ):
        width //= 2
    return min(width, 8)


def _decompose(writer: KernelWriter, sizes: tuple[int, ...], width: int) -> list[str]:
    """Coordinates c0, c1, … of this thread's first element."""
    if len(sizes) == 1:
        return [f"    int c0 = item * {width};", *_vectors("c0", width)]
    lines = ["    int rest = item;"]
    for axis in range(len(sizes) - 1, 0, -1):
        extent = sizes[axis] // width if axis == len(sizes) - 1 else sizes[axis]
        size = writer.constant(extent)
        scale = f" * {width}" if axis == len(sizes) - 1 else ""
        lines.append(f"    int c{axis} = (rest % {size}){scale}; rest /= {size};")
    lines.append("    int c0 = rest;")
    return lines + _vectors(f"c{len(sizes) - 1}", width)


def _vectors(innermost: str, width: int) -> list[str]:
    return [f"    int vectors = uint({innermost}) / {min(width, 4)};"] if width > 1 else []


def _is_vector(stride: tuple[int, ...], width: int) -> bool:
    return width > 1 and stride[-1] == 1


def _array(type_: str, name: str, width: int) -> str:
    return f"{type_} {name}[{width}]" if width > 1 else f"{type_} {name}"


def _load(view: View, pointer: str, offset: str, inner: int, width: int, name: str) -> list[str]:
    compute = compute_type(view.dtype)
    if width == 1 or inner == 0:
        return [f"    {compute} {name} = {load_expression(pointer, offset, view.dtype)};"]
    storage = storage_type(view.dtype)
    part = min(width, 4)
    lines = [f"    {compute} {name}[{width}];"]
    for start in range(0, width, part):
        vector = f"{name}v{start}"
        at = f"{pointer} + ({offset} + {start // part})"
        lines.append(f"    vector<{storage}, {part}> {vector} = loadAligned<{part * view.itemsize}>({at});")
        for lane in range(part):
            lines.append(f"    {name}[{start + lane}] = {loaded(f'{vector}[{lane}]', view.dtype)};")
    return lines


def _load_packed(view: View, pointer: str, offset: str, is_whole: bool, width: int, name: str) -> list[str]:
    """As `_load`, of a packed constant; `offset` counts elements."""
    compute = compute_type(view.dtype)
    if not is_whole:
        return [f"    {compute} {name} = {load_packed(pointer, offset, view.dtype)};"]
    elements = (load_packed(pointer, f"{offset} + {lane}", view.dtype) for lane in range(width))
    return [f"    {compute} {name}[{width}] = {{ {', '.join(elements)} }};"]


def _store(view: View, pointer: str, offset: str, width: int, name: str) -> list[str]:
    if width == 1:
        return [f"    {pointer}[{offset}] = {name};"]
    storage = storage_type(view.dtype)
    part = min(width, 4)
    lines = []
    for start in range(0, width, part):
        elements = ", ".join(f"{name}[{start + lane}]" for lane in range(part))
        at = f"{pointer} + ({offset} + {start // part})"
        lines.append(
            f"    storeAligned<{part * view.itemsize}>({at}, vector<{storage}, {part}>({elements}));"
        )
    return lines


def emit_store(
    writer: KernelWriter,
    sizes: tuple[int, ...],
    outputs: Sequence[View],
    epilogue: Epilogue | None,
    accumulator: str,
) -> None:
    """Adds ``void store(int c0, …, accumulator x)``, by which a template hands over one finished element.

    A template calls it once for each element: what the epilogue reads of it may lie where it is stored.

    Args:
        writer: of the template's kernel.
        sizes: the template's index space, in as few dimensions as it numbers its results by.
        outputs: views of the node's outputs; each must be reshapable to `sizes`.
        epilogue: what is applied first.
        accumulator: Slang type of the template's result.
    """
    if epilogue is None:
        emit_results(writer, sizes, outputs, {"x": accumulator}, None, {})
    else:
        emit_results(writer, sizes, outputs, {epilogue.result: accumulator}, epilogue.body, epilogue.leaves)


def emit_results(
    writer: KernelWriter,
    sizes: tuple[int, ...],
    outputs: Sequence[View],
    results: Mapping[str, str],
    body: Graph | None,
    leaves: Mapping[str, View],
) -> None:
    """As `emit_store`, of a template with several results: ``void store(int c0, …, T0 x0, T1 x1, …)``.

    Args:
        writer: of the template's kernel.
        sizes: the template's index space.
        outputs: views of what the body makes, or of the results; each must be reshapable to `sizes`.
        results: the template's, by their names in the body, and their Slang types.
        body: what is applied first; None: nothing is.
        leaves: what it reads besides, by names.
    """
    coordinates = tuple(f"c{axis}" for axis in range(len(sizes)))
    bound = {name: f"x{number}" for number, name in enumerate(results)}
    arguments = [f"int {c}" for c in coordinates]
    arguments += [f"{type_} {bound[name]}" for name, type_ in results.items()]
    lines, values = _applied(writer, sizes, coordinates, body, leaves, bound)
    for value, output in zip(values, outputs, strict=True):
        view = on_space(output, sizes)
        pointer = writer.write(view)
        offset = writer.offset(coordinates, view.strides)
        lines.append(f"    {pointer}[{offset}] = {store_expression(value, output.dtype)};")
    writer.text("\n".join([f"void store({', '.join(arguments)})", "{", *lines, "}"]))


def emit_value(writer: KernelWriter, name: str, sizes: tuple[int, ...], epilogue: Epilogue | None) -> None:
    """Adds ``float NAME(int c0, …, float x)``: what an epilogue makes of a float result that nobody writes.

    Args:
        writer: of the template's kernel.
        name: of the function.
        sizes: the index space of the results.
        epilogue: what is applied, of one float result.
    """
    coordinates = tuple(f"c{axis}" for axis in range(len(sizes)))
    lines: list[str] = []
    values = ["x0"]
    if epilogue is not None:
        bound = {epilogue.result: "x0"}
        lines, values = _applied(
            writer, sizes, coordinates, epilogue.body, epilogue.leaves, bound, in_place=False
        )
    [value] = values
    arguments = ", ".join([*(f"int {c}" for c in coordinates), "float x0"])
    writer.text("\n".join([f"float {name}({arguments})", "{", *lines, f"    return {value};", "}"]))


def _applied(
    writer: KernelWriter,
    sizes: tuple[int, ...],
    coordinates: tuple[str, ...],
    body: Graph | None,
    leaves: Mapping[str, View],
    bound: dict[str, str],
    *,
    in_place: bool = True,
) -> tuple[list[str], list[str]]:
    """Lines that apply a body to the variables that names are bound to, and what its results are called."""
    lines: list[str] = []
    if body is None:
        return lines, list(bound.values())
    for name, leaf in leaves.items():
        view = on_space(leaf, sizes)
        pointer = writer.read(view, in_place=in_place)
        offset = writer.offset(coordinates, view.strides)
        variable = f"leaf{len(bound)}"
        lines.append(
            f"    {compute_type(view.dtype)} {variable} = {load_expression(pointer, offset, view.dtype)};"
        )
        bound[name] = variable
    operands = [bound[value.name] for value in body.inputs]
    statements, values = write_statements(writer, scalar_results(body), operands)
    writer.math()
    return [*lines, *statements], values


def emit_vector_store(
    writer: KernelWriter,
    sizes: tuple[int, ...],
    outputs: Sequence[View],
    epilogue: Epilogue | None,
    accumulator: str = "float",
    name: str = "store4",
    width: int = 4,
) -> None:
    """Adds ``void NAME(int c0, …, float4 xs)``: as `emit_store`, neighbours along the last coordinate.

    There are `width`, and the coordinate is a multiple of that; those beyond the last size are left out.
    """
    coordinates = tuple(f"c{axis}" for axis in range(len(sizes)))
    last = coordinates[-1]
    is_whole = is_multiple(sizes[-1], width)
    in_vectors = (*coordinates[:-1], f"uint({last}) / {width}")
    in_lane = (*coordinates[:-1], f"({last} + lane)")

    def is_vector(view: View) -> bool:
        others = (*view.strides[:-1], view.offset)
        is_aligned = view.itemsize * width <= 16 and all(is_multiple(number, width) for number in others)
        return is_whole and view.strides[-1] == 1 and is_aligned

    def at_vector(view: View) -> str:
        return writer.offset(in_vectors, (*(step // width for step in view.strides[:-1]), 1))

    before, inside, after = [], [], []
    results = ["x"]
    if epilogue is not None:
        bound = {epilogue.result: "x"}
        for leaf_name, leaf in epilogue.leaves.items():
            view = on_space(leaf, sizes)
            variable, type_ = f"leaf{len(bound)}", compute_type(view.dtype)
            if is_vector(view):
                pointer = writer.read(view, width=width, in_place=True)
                before.append(
                    f"    vector<{storage_type(view.dtype)}, {width}> {variable}v = "
                    f"loadAligned<{width * view.itemsize}>({pointer} + ({at_vector(view)}));"
                )
                inside.append(f"        {type_} {variable} = {loaded(f'{variable}v[lane]', view.dtype)};")
            else:
                where, spaces = (before, "    ") if view.strides[-1] == 0 else (inside, "        ")
                offset = writer.offset(in_lane, view.strides)
                value = load_expression(writer.read(view, in_place=True), offset, view.dtype)
                where.append(f"{spaces}{type_} {variable} = {value};")
            bound[leaf_name] = variable
        operands = [bound[value.name] for value in epilogue.body.inputs]
        statements, results = write_statements(writer, scalar_results(epilogue.body), operands, "        ")
        inside += statements
        writer.math()
    for index, (result, output) in enumerate(zip(results, outputs, strict=True)):
        view = on_space(output, sizes)
        value = store_expression(result, output.dtype)
        if is_vector(view):
            pointer, made = writer.write(view, width=width), f"y{index}"
            before.append(f"    vector<{storage_type(view.dtype)}, {width}> {made};")
            inside.append(f"        {made}[lane] = {value};")
            after.append(
                f"    storeAligned<{width * view.itemsize}>({pointer} + ({at_vector(view)}), {made});"
            )
        else:
            inside.append(f"        {writer.write(view)}[{writer.offset(in_lane, view.strides)}] = {value};")
    guard = [] if is_whole else [f"        if ({last} + lane >= {writer.constant(sizes[-1])}) continue;"]
    arguments = ", ".join(f"int {c}" for c in coordinates)
    writer.text(
        "\n".join(
            [
                f"void {name}({arguments}, vector<{accumulator}, {width}> xs)",
                "{",
                *before,
                f"    [ForceUnroll] for (int lane = 0; lane < {width}; ++lane)",
                "    {",
                *guard,
                f"        {accumulator} x = xs[lane];",
                *inside,
                "    }",
                *after,
                "}",
            ]
        )
    )


def on_space(view: View, sizes: tuple[int, ...]) -> View:
    """A view over a template's coarser index space; `CannotLower` where its strides do not allow that."""
    reshaped = view.reshape(sizes)
    if reshaped is None:
        raise CannotLower(f"strides {view.strides} of a {view.shape} view do not fit the index space {sizes}")
    return reshaped
