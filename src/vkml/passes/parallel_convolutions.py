"""Sums of convolutions of one input, of normalisations of it and of constants become one convolution.

Networks with branches that are meant to be merged after training are often exported before: 3×3, 1×1 and a
normalised input side by side. Weights are added where the smaller kernel lies within the larger one, so that
nothing is read that was not read before. The operators are named here, for the rewrite is about these alone.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Constant, Graph, GraphIndex, Node, dtypes, unused, value_names
from vkml.ir.file_constant import OWNED_BYTES, release_pages
from vkml.ir.graph import MadeConstant, ScaledConstant
from vkml.passes.convolution_pads import ADDS_BY_ITSELF, pads_of

Array = np.ndarray[Any, Any]

_TYPES = (dtypes.FLOAT32, dtypes.FLOAT64)


@dataclass(frozen=True)
class _Window:
    """What a convolution reads, axis by axis of space."""

    kernel: tuple[int, ...]
    begins: tuple[int, ...]
    """Pads before the first element."""
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    def place_of(self, other: _Window) -> tuple[int, ...] | None:
        """The tap of this window at which another one's first lies; None where it does not lie within."""
        if self.strides != other.strides:
            return None
        place = []
        for axis, (size, small) in enumerate(zip(self.kernel, other.kernel, strict=True)):
            step = self.dilations[axis]
            if small > 1 and step != other.dilations[axis]:
                return None
            at, rest = divmod(self.begins[axis] - other.begins[axis], step)
            if rest or at < 0 or at + small > size:
                return None
            place.append(at)
        return tuple(place)


@dataclass(frozen=True)
class _Term:
    """A convolution of constants, or a normalisation that is one of a single tap a channel."""

    node: Node
    window: _Window
    weight: Constant | Array
    """[filters, channels a group, *kernel]; of a normalisation its factors, [channels], float64."""
    bias: Array
    """[filters], float64."""

    @property
    def x(self) -> str:
        return self.node.inputs[0]

    @property
    def group(self) -> int:
        return int(self.node.attributes["group"])


def add_parallel_convolutions(graph: Graph) -> Graph:
    """The graph, specialised, with sums of convolutions of one value by constants as one convolution each.

    Weights of float32 and float64 alone, whose sums stay finite.
    """
    present = {node.op for node in graph.nodes if not node.domain}
    if not {"Add", "Conv"} <= present:
        return graph
    found = _Sums(graph)
    for at, node in enumerate(graph.nodes):
        if not node.domain:
            found.look_at(at, node)
    return found.finish()


class _Sums:
    """What is known of a graph while its nodes are gone through in order."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._index = GraphIndex.of(graph)
        self._nodes: list[Node | None] = list(graph.nodes)
        self._constants, self._types = dict(graph.constants), dict(graph.types)
        self._taken = value_names(graph)
        self._places: dict[str, int] = {}
        """Value → where the convolution or normalisation is that makes it."""
        self._is_changed = False

    def look_at(self, at: int, node: Node) -> None:
        """Notes what may be a term; puts a convolution in the place of a sum of two that fit each other."""
        result = node.outputs[0]
        if node.op in ("Conv", "BatchNormalization"):
            self._places[result] = at
        if node.op != "Add":
            return
        places = [self._places[name] for name in node.inputs if self._is_term(name, result)]
        terms = [term for term in map(self._term, places) if term is not None]
        made: tuple[Node, Constant | None, Constant] | None
        if len(terms) == len(set(places)) == 2:
            # A sum grows by one term more, which keeps it flat.
            terms.sort(key=lambda term: not isinstance(term.weight, SummedConstant))
            made = _sum(terms[0], terms[1]) or _sum(terms[1], terms[0])
        elif len(terms) == 1:
            others = [self._constants.get(name) for name in node.inputs]
            made = next((_with(terms[0], other) for other in others if other is not None), None)
        else:
            return
        if made is None:
            return
        conv, weight, bias = made
        named = self._name(f"{result}+bias", bias)
        weights = conv.inputs[1] if weight is None else self._name(f"{result}+weight", weight)
        for place in places:
            self._nodes[place] = None
        self._nodes[at] = replace(conv, inputs=(conv.inputs[0], weights, named), outputs=node.outputs)
        self._places[result] = at
        self._is_changed = True

    def finish(self) -> Graph:
        if not self._is_changed:
            return self._graph
        nodes = tuple(node for node in self._nodes if node is not None)
        return replace(self._graph, nodes=nodes, constants=self._constants, types=self._types)

    def _is_term(self, name: str, result: str) -> bool:
        index = self._index
        return (
            name in self._places
            and self._types[name] == self._types[result]
            and index.uses(name) == 1
            and not index.is_output(name)
            and not index.is_captured(name)
        )

    def _name(self, wanted: str, constant: Constant) -> str:
        name = unused(wanted, self._taken)
        self._taken.add(name)
        self._constants[name], self._types[name] = constant, constant.type
        return name

    def _term(self, place: int) -> _Term | None:
        node = self._nodes[place]
        assert node is not None, "a value that is read is made"
        stated = [self._constants.get(name) for name in node.inputs[1:]]
        arrays = [constant for constant in stated if constant is not None]
        if len(arrays) < len(stated) or any(each.dtype not in _TYPES for each in arrays):
            return None
        if node.op == "Conv":
            return self._convolution(node, arrays)
        if node.attributes["training_mode"] or any(node.outputs[1:]):
            return None
        scale, shift, mean, variance = (np.asarray(each.array, np.float64) for each in arrays)
        with np.errstate(all="ignore"):
            factors = scale / np.sqrt(variance + node.attributes["epsilon"])
            bias = shift - mean * factors
        one = (1,) * (self._types[node.inputs[0]].rank - 2)
        return _Term(node, _Window(one, (0,) * len(one), one, one), factors, bias)

    def _convolution(self, node: Node, arrays: list[Constant]) -> _Term | None:
        weight = arrays[0]
        rank = len(weight.shape)
        if rank < 3 or node.attributes["auto_pad"] in ADDS_BY_ITSELF:
            return None
        one = (1,) * (rank - 2)
        window = _Window(
            weight.shape[2:],
            tuple(pads_of(node, rank)[: rank - 2]),
            tuple(node.attributes["strides"] or one),
            tuple(node.attributes["dilations"] or one),
        )
        bias = np.asarray(arrays[1].array, np.float64) if len(arrays) > 1 else np.zeros(weight.shape[0])
        return _Term(node, window, weight, bias)


def _largest(array: Array) -> float:
    """The largest magnitude; infinite where there is NaN."""
    found = float(max(array.max(initial=0), -array.min(initial=0)))
    return found if found == found else float("inf")


def _sum(larger: _Term, smaller: _Term) -> tuple[Node, Constant, Constant] | None:
    """The first of two terms, the weight and the bias of both together; None where they do not fit."""
    weight, added = larger.weight, smaller.weight
    place = larger.window.place_of(smaller.window)
    if place is None or not isinstance(weight, Constant) or larger.x != smaller.x:
        return None
    if isinstance(added, Constant):
        fits = smaller.group == larger.group and added.shape[:2] == weight.shape[:2]
        fits = fits and added.dtype == weight.dtype
    else:
        fits = weight.shape[0] == len(added)
    bias = _bias(weight, larger.bias, smaller.bias)
    if not fits or bias is None:
        return None
    made = _summed(weight, _Part(added, place))
    return None if made is None else (larger.node, made, bias)


@dataclass(frozen=True)
class _Part:
    """What is added to a weight: another one whose first tap is at `place`, or factors of channels there."""

    other: Constant | Array
    place: tuple[int, ...]

    @property
    def key(self) -> Hashable:
        """Of this one among those of a weight, as long as somebody holds it."""
        same = id(self.other) if isinstance(self.other, Constant) else self.other.tobytes()
        return same, self.place

    @property
    def bound(self) -> float:
        return _bound(self.other) if isinstance(self.other, Constant) else _largest(self.other)


class SummedConstant(MadeConstant):
    """A weight and others, or factors of channels on themselves, that are added to it."""

    def __init__(self, weight: Constant, parts: tuple[_Part, ...], bound: float) -> None:
        """Args:
        weight: the largest kernel.
        parts: in the order in which they are added.
        bound: that no element is beyond.
        """
        super().__init__(weight.dtype, weight.shape, weight, functools.partial(_added, parts=parts))
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "bound", bound)

    parts: tuple[_Part, ...]
    bound: float

    def made_of(self, source: Constant) -> SummedConstant:
        return SummedConstant(source, self.parts, self.bound)


def _summed(weight: Constant, part: _Part) -> Constant | None:
    """The sum of a weight and a part, the same one for all plans that live; None where it may overflow.

    Weights know what was made of them as long as somebody else holds it: what is packed of a sum holds the
    weight, and would never let go of it.
    """
    if "_summed" not in weight.__dict__:
        object.__setattr__(weight, "_summed", {})
    known: dict[Hashable, weakref.ref[Constant]] = weight.__dict__["_summed"]
    before = known.get(part.key)
    found = None if before is None else before()
    if found is not None:
        return found
    bound = _bound(weight) + part.bound
    if not bound < float(np.finfo(weight.dtype.storage).max) / 2:
        return None
    made: Constant
    if isinstance(weight, SummedConstant):
        made = SummedConstant(weight.source, (*weight.parts, part), bound)
    else:
        made = SummedConstant(weight, (part,), bound)
    if weight.type.bytes <= OWNED_BYTES:
        made = Constant(weight.dtype, weight.shape, made.array)
        object.__setattr__(made, "_part", part)  # which is known by its identity as long as this is
    known[part.key] = weakref.ref(made)
    return made


def _bound(weight: Constant) -> float:
    """What no element of a weight is beyond; infinite where there is NaN."""
    if isinstance(weight, SummedConstant):
        return weight.bound
    if isinstance(weight, ScaledConstant):
        return _largest(weight.largest)
    found: float | None = weight.__dict__.get("_bound")
    if found is None:
        found = _largest(weight.array)
        object.__setattr__(weight, "_bound", found)
        release_pages(weight)
    return found


def _with(term: _Term, added: Constant) -> tuple[Node, None, Constant] | None:
    """A convolution and its bias with a constant of one element, or one a channel, in it."""
    weight = term.weight
    if not isinstance(weight, Constant) or added.dtype != weight.dtype:
        return None
    channels = (weight.shape[0], *(1 for _ in weight.shape[2:]))
    shape = added.shape[1:] if len(added.shape) == len(weight.shape) and added.shape[0] == 1 else added.shape
    if shape != channels and math.prod(shape) != 1:
        return None
    bias = _bias(weight, term.bias, np.asarray(added.array, np.float64).reshape(-1))
    return None if bias is None else (term.node, None, bias)


def _bias(weight: Constant, one: Array, other: Array) -> Constant | None:
    """The sum of two biases, if it is finite."""
    with np.errstate(all="ignore"):
        bias = (one + other).astype(weight.dtype.storage)
    return Constant(weight.dtype, bias.shape, bias) if np.isfinite(bias).all() else None


def _added(weight: Array, parts: Sequence[_Part]) -> Array:
    made = weight.copy()
    for part in parts:
        if isinstance(part.other, Constant):
            array = part.other.array
            sizes = zip(part.place, array.shape[2:], strict=True)
            taps: tuple[Any, ...] = (..., *(slice(at, at + size) for at, size in sizes))
            made[taps] += array
        else:
            filters = np.arange(len(part.other))
            at = (filters, filters % weight.shape[1], *part.place)
            made[at] = (made[at].astype(np.float64) + part.other).astype(made.dtype)
    return made
