"""Syntax trees of the part of Slang that kernels are written in."""

from __future__ import annotations

from dataclasses import field

from vkml.dataclasses import dataclass


@dataclass(slots=True, eq=False)
class TypeName:
    """A type as it is written: its name, what stands between < and >, how many * follow."""

    name: str
    arguments: tuple[Expression, ...] = ()
    pointers: int = 0


@dataclass(slots=True, eq=False)
class Expression:
    """Any expression."""


@dataclass(slots=True, eq=False)
class Number(Expression):
    value: int | float | bool
    type: str


@dataclass(slots=True, eq=False)
class Name(Expression):
    name: str


@dataclass(slots=True, eq=False)
class TypeOperand(Expression):
    """A type where an expression may stand: among generic arguments, or before a dot."""

    type: TypeName


@dataclass(slots=True, eq=False)
class Member(Expression):
    base: Expression
    name: str


@dataclass(slots=True, eq=False)
class Index(Expression):
    base: Expression
    index: Expression


@dataclass(slots=True, eq=False)
class Call(Expression):
    """A function or, where `base` is not None, a method of it."""

    name: str
    arguments: tuple[Expression, ...]
    generics: tuple[Expression, ...] = ()
    base: Expression | None = None


@dataclass(slots=True, eq=False)
class Construct(Expression):
    """A conversion, or a vector made of its parts."""

    type: TypeName
    arguments: tuple[Expression, ...]


@dataclass(slots=True, eq=False)
class Unary(Expression):
    operation: str
    operand: Expression


@dataclass(slots=True, eq=False)
class Binary(Expression):
    operation: str
    left: Expression
    right: Expression


@dataclass(slots=True, eq=False)
class Conditional(Expression):
    condition: Expression
    yes: Expression
    no: Expression


@dataclass(slots=True, eq=False)
class Assign(Expression):
    """`operation` is "" or that of a compound assignment; ++ and -- are += 1 and -= 1."""

    operation: str
    target: Expression
    value: Expression


@dataclass(slots=True, eq=False)
class Braces(Expression):
    """An initializer of several values."""

    values: tuple[Expression, ...]


@dataclass(slots=True, eq=False)
class Statement:
    """Any statement."""


@dataclass(slots=True, eq=False)
class Evaluate(Statement):
    expression: Expression


@dataclass(slots=True, eq=False)
class Declare(Statement):
    """A variable, a constant (`is_fixed`), an array of `sizes`; type None: that of the value."""

    type: TypeName | None
    name: str
    sizes: tuple[Expression, ...]
    value: Expression | None
    is_fixed: bool = False


@dataclass(slots=True, eq=False)
class Block(Statement):
    statements: tuple[Statement, ...]
    is_scope: bool = True


@dataclass(slots=True, eq=False)
class If(Statement):
    condition: Expression
    yes: Statement
    no: Statement | None


@dataclass(slots=True, eq=False)
class For(Statement):
    first: Statement | None
    condition: Expression | None
    step: Expression | None
    body: Statement
    is_unrolled: bool


@dataclass(slots=True, eq=False)
class Return(Statement):
    value: Expression | None


@dataclass(slots=True, eq=False)
class Break(Statement):
    pass


@dataclass(slots=True, eq=False)
class Continue(Statement):
    pass


@dataclass(slots=True, eq=False)
class Parameter:
    type: TypeName
    name: str
    sizes: tuple[Expression, ...]
    mode: str
    """in, out or inout."""
    semantic: str
    """What follows a colon."""


@dataclass(slots=True, eq=False)
class Function:
    """A function or a method."""

    result: TypeName
    name: str
    generics: tuple[tuple[str, str], ...]
    """Names of type parameters, and what they conform to."""
    parameters: tuple[Parameter, ...]
    body: Block
    attributes: dict[str, tuple[Expression, ...]]
    of: str | None = None
    """The struct whose method it is."""
    assigned: frozenset[str] = frozenset()
    """Names that statements of the body change."""
    handed: frozenset[tuple[str, int, str]] = frozenset()
    """Names that calls may change: function, place among its arguments (-1: a method's struct), name."""


@dataclass(slots=True, eq=False)
class Struct:
    name: str
    fields: tuple[Declare, ...]
    methods: tuple[Function, ...]


@dataclass(slots=True, eq=False)
class Program:
    """A source."""

    structs: dict[str, Struct] = field(default_factory=dict)
    aliases: dict[str, TypeName] = field(default_factory=dict)
    functions: dict[str, list[Function]] = field(default_factory=dict)
    constants: dict[str, Declare] = field(default_factory=dict)
    """``static const``."""
    specialization: list[tuple[int, Declare]] = field(default_factory=list)
    """Numbers and declarations of specialization constants."""
    shared: dict[str, Declare] = field(default_factory=dict)
    push: tuple[str, TypeName] | None = None
    """Name and type of the push-constant block."""
    is_coherent: bool = False
    """Whether invocations see what those of other workgroups write, while these run."""
