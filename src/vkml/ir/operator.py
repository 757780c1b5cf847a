"""What an operator is: one object that states types, reference evaluation, lowering and gradient."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from enum import Enum
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, TypeVar

import numpy as np

from vkml.errors import InvalidGraph, NotDifferentiable, UnsupportedOperator
from vkml.ir.dtypes import DType
from vkml.ir.gradients import Elements, Emitter, T, pointwise_vjp
from vkml.ir.graph import Constant, Graph, Node
from vkml.ir.lowering import Lowering, V
from vkml.ir.scalar import Scalar
from vkml.ir.scalar_derivatives import derivative
from vkml.ir.types import Known, TensorType, ValueType
from vkml.ir.windows import Windows

Array = np.ndarray[Any, Any]


class AttributeType(Enum):
    """What an attribute holds; the values are how messages call it."""

    INT = "an integer"
    FLOAT = "a float"
    STRING = "a string"
    TENSOR = "a tensor"
    GRAPH = "a graph"
    TYPE = "a type"
    INTS = "a list of integers"
    FLOATS = "a list of floats"
    STRINGS = "a list of strings"


INT, FLOAT, STRING, TENSOR, GRAPH, TYPE, INTS, FLOATS, STRINGS = AttributeType


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
"""Marks an attribute that has no default."""

OPTIONAL: Any = None
"""Marks an attribute that may be absent; nodes then carry None for it."""

MANY = 2**31
"""The upper bound of a variadic operator's input or output count."""


class Operator:
    """Base of all operators; a subclass or an instance describes one.

    Nodes reach the methods *normalised*: in the newest form of the operator (see `upgrade`), with every
    attribute present (defaults filled in), input types static. Absent optional inputs are None.
    """

    name: str = ""
    domain: str = ""
    inputs: tuple[int, int] = (1, 1)
    """Least and greatest number of inputs."""
    outputs: tuple[int, int] = (1, 1)
    """Least and greatest number of outputs."""
    written_outputs: int = 0
    """Outputs that files name though nobody reads them, where these are more than the least number."""
    gradient_outputs: int = 0
    """How many of the last outputs gradients alone read: nodes are rid of them where there are none."""
    attributes: Mapping[str, Any] = {}
    """Attribute → default, `REQUIRED` or `OPTIONAL`."""
    attribute_types: Mapping[str, AttributeType] = {}
    """Types of the attributes, older opsets' among them, whose defaults do not tell: for these are None, or
    there is none."""
    value_inputs: tuple[int, ...] = ()
    """Inputs whose values (not only types) `infer` needs: shapes, axes, pads, … Constants by then."""
    type_inputs: tuple[int, ...] = ()
    """Inputs of which only types and shapes matter, never the elements: nothing waits for these."""
    sizing_inputs: tuple[int, ...] = ()
    """Data whose elements decide the sizes of the outputs (NonZero's input): unless it is a constant, `infer`
    leaves these sizes open, and they are known when the node has run."""
    statistic_inputs: tuple[int, ...] = ()
    """Inputs that hold what has been seen in training: kept by models, but not learned by gradients."""
    is_pointwise: ClassVar[bool] = False
    """Whether each output element depends only on the inputs' elements at the same (broadcast) place."""
    always_saved: tuple[Collection[int], Collection[int]] | None = None
    """What `saved` gives, whatever tracks."""
    form_hangs_on_numbers: ClassVar[bool] = False
    """Whether a pointwise operator's scalar form is another one where an operand is a known number."""
    stands_alone: ClassVar[bool] = False
    """Whether no program has a form of it, so that the graph is cut there: it runs other graphs, or takes or
    makes sequences and optionals."""
    takes_containers: ClassVar[bool] = False
    """Whether it takes sequences and optionals, too, and then stands alone."""
    is_deterministic: ClassVar[bool] = True
    """False for random operators, which constant folding leaves alone."""
    is_anchor: bool = False
    """Whether pointwise nodes may be fused behind it: its templates apply them as an epilogue to each element
    before they store it."""
    is_prologue: ClassVar[bool] = False
    """Whether a product of few rows may compute it, by `Lowering.normalise`, of the rows that it reads."""
    takes_prologue: ClassVar[bool] = False
    """Whether it multiplies rows, its first input, which its template may be able to compute itself."""
    reads_parts: ClassVar[tuple[int, ...]] = ()
    """Inputs, (batch, heads, rows, columns), whose rows its template may be able to read from two values, as
    they are before a Concat lays them end to end."""
    is_linked: ClassVar[bool] = False
    """Whether its template may be able to compute its first input where a convolution makes that."""
    reduction: str = ""
    """What it does to the elements of its first input along `reduced_axes`, as `Lowering.reduce` calls it;
    empty for other operators. Its kernels compute the elements themselves where pointwise nodes make them."""
    is_view: ClassVar[bool] = False
    """Whether its result is its first input's elements under another shape or order of axes, so that it may
    share their memory."""
    is_repetition: ClassVar[bool] = False
    """Whether its result is its first input's elements, repeated: a view of as much memory."""
    is_shape_only: ClassVar[bool] = False
    """Whether its result follows from its input's shape alone: `evaluate_shape` gives it."""
    is_shape_arithmetic: bool = False
    """Whether planning applies it to small values that decide shapes, as it does every pointwise operator."""
    keeps_elements: ClassVar[bool] = False
    """Whether all elements of its data inputs are in its outputs, so that none of them is the larger."""
    is_spatial: ClassVar[bool] = False
    """Whether its kernels slide `windows` over images, which best lie channels-last, with a halo round them
    that is as wide as the windows reach."""
    neutral_elements: Mapping[int, float] = {}
    """For operators of two inputs: which of them may be a number that leaves the other as it is → that
    number, its sign included: -0 is neutral for Add, 0 is not, for it makes 0 of -0."""
    is_stepwise: ClassVar[bool] = False
    """Whether its `steps` stand for it on the CPU, too, where no kernel takes it as a whole."""
    internal_attributes: ClassVar[frozenset[str]] = frozenset()
    """Attributes that only rewrites give to nodes; no model may, they say what vkml has found out."""
    retyped_attributes: ClassVar[frozenset[str]] = frozenset()
    """Attributes whose type was another one before opset 6; `upgrade` checks these."""

    def __init__(self, name: str = "") -> None:
        self.name = name or type(self).__name__

    def attribute_type(self, name: str) -> AttributeType | None:
        """What an attribute must hold; None where anything is let pass unseen."""
        default = self.attributes.get(name)
        for kind, type_ in ((int, INT), (float, FLOAT), (str, STRING)):
            if isinstance(default, kind):
                return type_
        if isinstance(default, tuple) and all(isinstance(item, int) for item in default):
            return INTS
        return self.attribute_types.get(name)

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        """Rewrites a node of an older opset (`node.version`) into the newest form.

        May return several nodes (for example a Constant for what used to be an attribute, then the node).
        """
        return node

    def check(self, node: Node) -> None:
        """Raises `InvalidGraph` where a node, normalised, cannot be right whatever its inputs are."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> Sequence[ValueType]:
        """Output types, exact ONNX semantics; raises `ShapeError` or `InvalidGraph` that names the node.

        Args:
            node: normalised.
            inputs: of `node.operands`.
        """
        raise NotImplementedError(self.name)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        """Reference implementation in NumPy, also the constant folder's and the CPU's fallback.

        Args:
            node: normalised.
            inputs: of `node.operands`; a sequence is a list, an empty optional None.
        """
        raise NotImplementedError(self.name)

    def evaluate_shape(self, node: Node, dims: Sequence[int]) -> Array:
        """For `is_shape_only` operators: the output for an input of a static shape."""
        raise NotImplementedError(self.name)

    def stated_constant(self, node: Node) -> Constant | None:
        """The tensor that a node only states, as Constant does; None for all that compute something."""
        return None

    def is_identity(self, node: Node) -> bool:
        """Whether a node's first output is its first input as it is, and its only one that is wanted."""
        return False

    def chosen_input(self, node: Node, constants: Mapping[str, Constant]) -> int | None:
        """The input whose elements all of a node's result are, broadcast, because a constant says so.

        Args:
            node: normalised.
            constants: values that are known.
        """
        return None

    def concatenation_axis(self, node: Node, rank: int) -> int | None:
        """The axis along which a node's output is its inputs laid end to end; None where it is not that.

        Args:
            node: normalised.
            rank: of the output.
        """
        return None

    def reduced_axes(
        self, node: Node, rank: int, constants: Mapping[str, Constant]
    ) -> tuple[int, ...] | None:
        """For operators that have a `reduction`: the axes of a node's first input, ascending.

        None where there are none, or where they are not known.

        Args:
            node: normalised.
            rank: of the first input.
            constants: values that are known.
        """
        return None

    def windows(self, node: Node, inputs: Sequence[TensorType | None]) -> Windows | None:
        """The windows that a node slides over its first input, [batch, channels, *spatial].

        None for operators without windows, and where the types that they depend on are not static.
        """
        return None

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        """How many products are summed up: what matrix products and convolutions cost.

        0 for operators that only pass over their elements.

        Args:
            node: normalised.
            inputs: of the node, all static; None where one is absent.
            outputs: likewise, all static.
        """
        return 0

    def halo_fill(self, node: Node) -> float:
        """For spatial operators: the number that stands for elements outside of a node's input."""
        return 0.0

    def keeps_layout(self, node: Node) -> bool:
        """Whether a node makes an image that lies channels-last of one that does, at no cost."""
        return self.is_pointwise

    def always_lowers(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> bool:
        """Whether all devices have kernels for a node of such types: it is not lowered to find that out.

        Args:
            inputs: of the node, all static; None where one is absent.
            outputs: likewise; no device lacks storage for any of them.
        """
        return False

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        """Asks a builder for the kernels that a node becomes.

        Args:
            build: of any back end.
            node: normalised.
            inputs: a view of each input, None where it is absent.

        Returns:
            A view of each output. None where the operator has no such form for this node; it then runs on
            the CPU, by `evaluate`.

        Raises:
            CannotLower: why this back end has no form of the node.
        """
        return None

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        """The outputs, written in other operators: how a node runs on devices that have no kernel for it.

        Its gradient is that of these operators where it states none. Each result is made by an operator that
        is applied here, or is a constant.

        Args:
            build: applies operators; sizes may be open.
            node: normalised.
            inputs: of the node; `elements_of` knows those of `value_inputs`.

        Returns:
            The outputs, None in the place of one that is not wanted; None where a node has no such form.
        """
        return None

    def scalar(
        self, node: Node, arguments: Sequence[Scalar | None], types: Sequence[DType | None], result: DType
    ) -> Scalar | None:
        """For pointwise operators: one element of the output as an expression of the inputs' elements.

        Kernels, machine code and derivatives are made from it. `arguments` are in the type in which elements
        of `types` are computed, None where an optional input is absent, constants where their number is
        known; the expression has the type in which elements of `result` are computed. None where the
        operator has no form for these types.
        """
        return None

    def slope(
        self, node: Node, form: Scalar, arguments: Sequence[Scalar | None], position: int
    ) -> Scalar | None:
        """The derivative of the scalar form by an element of an input, which is an argument of it.

        Stated where PyTorch's choice at a kink is another than `derivative` makes of the form, or where the
        form has kinks that the operator does not have.

        Args:
            node: normalised.
            form: what `scalar` gave.
            arguments: that it was given.
            position: of the input.

        Returns:
            A form of its type; None where the derivative is 0.
        """
        return derivative(form, position)

    def saved(self, node: Node, tracks: Sequence[bool]) -> tuple[Collection[int], Collection[int]] | None:
        """Numbers of the inputs and of the outputs whose elements PyTorch keeps for its gradient.

        Changed in place afterwards they are an error in `backward`, whatever `vjp` reads: what PyTorch does
        not keep its programs may change, what it keeps they expect to be told of.

        Args:
            node: normalised.
            tracks: of each input, whether gradients flow to it.

        Returns:
            Both; None where they are what `vjp` reads.
        """
        return self.always_saved

    def has_host_steps(self, node: Node, inputs: Sequence[TensorType | None]) -> bool:
        """Whether its `steps` stand for a node on the CPU, too, as `is_stepwise` says of all.

        Args:
            node: normalised.
            inputs: types; None where one is absent, or not known.
        """
        return self.is_stepwise

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        """The vector-Jacobian product: cotangents of the inputs from those of the outputs.

        That of a pointwise operator follows from its scalar form, that of one which states its `steps` from
        these.

        Args:
            build: applies operators.
            node: normalised.
            inputs: of `node.operands`; None where one is absent.
            outputs: of the node.
            cotangents: of the outputs, of their types; None where nothing that is differentiated depends on
                one.
            needed: of each input, whether its cotangent is wanted.

        Returns:
            Of each input, its cotangent, of its type; None where it is not wanted, or 0.

        Raises:
            NotDifferentiable: it has no derivative, or none that is known.
        """
        if type(self).steps is not Operator.steps:

            def stepwise() -> Sequence[T | None]:
                made = self.steps(build, node, inputs)
                if made is None:
                    raise NotDifferentiable("it has no form in other operators for what it is given here")
                return made

            return build.pulled_back(stepwise, inputs, cotangents, needed)
        if not self.is_pointwise:
            raise NotDifferentiable(f"{node.op} has no gradient by any of its inputs")
        [cotangent] = cotangents
        assert cotangent is not None, "an output that something depends on"

        def write(elements: Elements, types: Sequence[DType | None], result: DType) -> Scalar | None:
            return self.scalar(node, elements, types, result)

        def slope(form: Scalar, elements: Elements, position: int) -> Scalar | None:
            return self.slope(node, form, elements, position)

        return pointwise_vjp(build, node, write, slope, inputs, outputs[0], cotangent, needed)


_Key = tuple[str, str]


class Registry(MutableMapping[_Key, "Operator"]):
    """Operators by domain and name. Those that are announced are imported when they are asked for, which
    spares a session of a plain model most of the 57 ms that all of them take."""

    def __init__(self) -> None:
        self._entered: dict[_Key, Operator] = {}
        self._homes: dict[_Key, str] = {}

    def announce(self, module: str, keys: Iterable[_Key]) -> None:
        """Says which module enters some operators once it is imported."""
        self._homes.update(dict.fromkeys(keys, module))

    def __getitem__(self, key: _Key) -> Operator:
        found = self._entered.get(key)
        if found is None:
            home = self._homes.get(key)
            if home is not None:
                import_module(home)  # who comes here meanwhile waits for the interpreter's lock of the module
            found = self._entered[key]
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._entered or key in self._homes

    def __iter__(self) -> Iterator[_Key]:
        self._import_all()
        return iter(self._entered)

    def __len__(self) -> int:
        self._import_all()
        return len(self._entered)

    def __setitem__(self, key: _Key, operator: Operator) -> None:
        self._entered[key] = operator

    def __delitem__(self, key: _Key) -> None:
        del self._entered[key]

    def has_entered(self, key: _Key) -> bool:
        """Whether an operator is there already."""
        return key in self._entered

    def _import_all(self) -> None:
        for home in dict.fromkeys(self._homes.values()):
            import_module(home)


REGISTRY = Registry()

_T = TypeVar("_T", bound=type[Operator])


def register(operator: Operator) -> Operator:
    """Enters an operator into the registry under its domain and name."""
    key = (operator.domain, operator.name)
    assert not REGISTRY.has_entered(key), f"{key} registered twice"
    # ONNX stores a float attribute, also one that is left out, in 32 bits.
    operator.attributes = {
        name: float(np.float32(default)) if isinstance(default, float) else default
        for name, default in operator.attributes.items()
    }
    REGISTRY[key] = operator
    return operator


def operator(*names: str) -> Callable[[_T], _T]:
    """Class decorator: registers one instance a name (or one, under the class's own name)."""

    def enter(cls: _T) -> _T:
        for name in names or (cls.__name__,):
            register(cls(name))
        return cls

    return enter


def find(node: Node) -> Operator:
    """The operator of a node; `UnsupportedOperator` where the registry has none."""
    found = REGISTRY.get((node.domain, node.op))
    if found is None:
        domain = node.domain or "ai.onnx"
        raise UnsupportedOperator(
            f"{node.label}: operator {domain}.{node.op} (opset {node.version}) is not known"
        )
    return found


def normalise_attributes(node: Node, spec: Operator) -> dict[str, Any]:
    """The node's attributes with defaults filled in; `InvalidGraph` for unknown, missing or mistyped ones."""
    unknown = sorted(key for key in node.attributes if key not in spec.attributes)
    if unknown:
        known = ", ".join(sorted(spec.attributes))
        takes = f"it takes {known}" if known else "it takes none"
        raise InvalidGraph(f"{node.label}: the attribute {unknown[0]!r} is not one of {node.op}'s ({takes})")
    given = check_attributes(node, spec)
    complete = {}
    for key, default in spec.attributes.items():
        value = given.get(key, default)
        if value is REQUIRED:
            raise InvalidGraph(f"{node.label}: the attribute {key!r} is missing and has no default")
        complete[key] = value
    return complete


def check_attributes(node: Node, spec: Operator, unseen: Collection[str] = ()) -> dict[str, Any]:
    """The node's own attributes, integers made floats where floats belong.

    Args:
        node: of any opset.
        spec: its operator.
        unseen: attributes that are left out; those whose types the operator does not state pass as they are.

    Raises:
        InvalidGraph: an attribute is not of the type that its operator states.
    """
    checked = {}
    for key, value in node.attributes.items():
        if key in unseen:
            continue
        wanted = spec.attribute_type(key)
        checked[key] = value if wanted is None or value is None else _checked(node, key, value, wanted)
    return checked


def _checked(node: Node, key: str, value: Any, wanted: AttributeType) -> Any:
    kind = _kind(value)
    if kind is wanted or (value in ((), []) and wanted in (FLOATS, STRINGS)):
        return value
    # An integer stands for the float it equals; the other way round would lose something sooner or later.
    if kind is INT and wanted is FLOAT and float(value) == value:
        return float(value)
    if kind is INTS and wanted is FLOATS and all(float(item) == item for item in value):
        return tuple(float(item) for item in value)
    shown = repr(value)
    found = kind.value if isinstance(kind, AttributeType) else kind
    raise InvalidGraph(
        f"{node.label}: the attribute {key!r} must be {wanted.value}, the model has {found}, "
        f"{shown if len(shown) <= 60 else shown[:60] + '…'}"
    )


_LISTS = {INT: INTS, FLOAT: FLOATS, STRING: STRINGS}
_KINDS = (
    (numbers.Integral, INT),
    (numbers.Real, FLOAT),
    (str, STRING),
    (Constant, TENSOR),
    (Graph, GRAPH),
    (ValueType, TYPE),
)


def _kind(value: Any) -> AttributeType | str:
    """What a value is; in words where it is nothing that an attribute may be."""
    if isinstance(value, list | tuple):
        # By types, of which a list of a million elements has one or two.
        types: set[Any] = set(map(type, value))
        kinds = {_kind_of(each) for each in types}
        if len(kinds) > 1:
            return "a mixed list"
        return next((found for kind, found in _LISTS.items() if kind in kinds), "a list") if kinds else INTS
    return _kind_of(value.__class__)


@lru_cache(maxsize=256)
def _kind_of(type_: Any) -> AttributeType | str:
    """What values of a type are."""
    if issubclass(type_, list | tuple):
        return "a list"
    return next((kind for base, kind in _KINDS if issubclass(type_, base)), f"a {type_.__name__}")
