"""What is taken in the place of what a model states, as it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace

from vkml.dataclasses import dataclass
from vkml.errors import Fail, InvalidArgument
from vkml.ir.graph import Constant
from vkml.ir.types import Dim, OptionalType, SequenceType, TensorType, ValueType
from vkml.onnx.messages import Dimension, GraphProto, TensorProto, ValueInfoProto

PLACEHOLDERS = frozenset(("?", "*", "-", "-1", "None", "none", "Unknown", "unknown"))
"""What exporters write for sizes that have no names: Paddle's "?" for all of them, Keras' "None"."""


@dataclass(frozen=True)
class Alterations:
    """Sizes, initializers and files that somebody gives beside a model."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    """Symbolic dimension → size."""
    sizes_by_denotation: Mapping[str, int] = field(default_factory=dict)
    """Denotation of inputs' dimensions → size."""
    initializers: Mapping[str, Constant] = field(default_factory=dict)
    """Taken for initializers of these names, where there are any."""
    external: Mapping[str, Constant] = field(default_factory=dict)
    """The same for initializers whose data lie in other files; there must be such."""
    files: Mapping[str, memoryview] = field(default_factory=dict)
    """Contents of files that initializers' data lie in."""
    fed: frozenset[str] = frozenset()
    """Initializers that are inputs, too, and have no value of their own this time."""
    unnamed: frozenset[str] = frozenset()
    """Names of sizes that are none: each stands for several."""

    def of_graph(self, proto: GraphProto) -> Alterations:
        """The same for a graph: with what denotations say of its inputs stated by dimensions' names, and with
        the placeholders that it writes for several sizes.

        Raises:
            Fail: a value is given for an initializer that the graph does not have, or has itself.
        """
        stored = {item.name: item.data_location == 1 for item in proto.initializer}
        for name in self.external:
            if not stored.get(name):
                what = "is in the model itself" if name in stored else "does not exist"
                raise Fail(f"the external initializer {name!r}, of which a value was given, {what}")
        sizes = dict(self.sizes)
        named: Counter[str] = Counter()
        repeated: set[str] = set()
        for item in proto.input:
            dims = _dimensions(item)
            named.update({dim.dim_param for dim in dims if dim.dim_param in PLACEHOLDERS})
            for dimension in dims:
                if dimension.dim_param and dimension.denotation in self.sizes_by_denotation:
                    sizes.setdefault(dimension.dim_param, self.sizes_by_denotation[dimension.denotation])
        for item in (*proto.input, *proto.output):
            within = Counter(dim.dim_param for dim in _dimensions(item) if dim.dim_param in PLACEHOLDERS)
            repeated.update(name for name, count in within.items() if name and count > 1)
        repeated.update(name for name, count in named.items() if name and count > 1)
        return replace(self, sizes=sizes, unnamed=frozenset(repeated - set(self.sizes)))

    def constant(self, proto: TensorProto, where: str) -> Constant | None:
        """What is taken for an initializer; None for itself.

        Raises:
            InvalidArgument: it is of another type or shape than the initializer.
        """
        found = self.external.get(proto.name) or self.initializers.get(proto.name)
        if found is not None and (found.dtype.code, found.shape) != (proto.data_type, tuple(proto.dims)):
            raise InvalidArgument(
                f"{where} is of type {proto.data_type} and shape {list(proto.dims)}, the value given for it "
                f"of type {found.dtype.code} ({found.dtype.name}) and shape {list(found.shape)}"
            )
        return found

    def type(self, type_: ValueType, proto: ValueInfoProto | None = None) -> ValueType:
        """A stated type with the sizes that are known.

        Args:
            type_: as the model states it.
            proto: of an input, whose dimensions may have denotations.
        """
        if not self.sizes and not self.sizes_by_denotation and not self.unnamed:
            return type_
        if isinstance(type_, SequenceType | OptionalType):
            return replace(type_, element=self.type(type_.element))
        if not isinstance(type_, TensorType) or type_.shape is None:
            return type_
        shape: list[Dim] = [self._dim(dim) if isinstance(dim, str) else dim for dim in type_.shape]
        if proto is not None:
            for at, dimension in enumerate(_dimensions(proto)):
                if shape[at] is None:
                    shape[at] = self.sizes_by_denotation.get(dimension.denotation)
        return TensorType(type_.dtype, tuple(shape))

    def _dim(self, name: str) -> Dim:
        return None if name in self.unnamed else self.sizes.get(name, name)


def _dimensions(item: ValueInfoProto) -> tuple[Dimension, ...]:
    """The sizes that a model states of a tensor."""
    shape = item.type.tensor_type.shape if item.type and item.type.tensor_type else None
    return shape.dim if shape else ()


UNALTERED = Alterations()
"""A model as it is."""
