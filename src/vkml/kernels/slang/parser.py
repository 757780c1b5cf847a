"""Tokens to syntax trees, for the part of Slang that kernels are written in."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

from vkml.kernels.slang import types
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.syntax import (
    Assign,
    Binary,
    Block,
    Braces,
    Break,
    Call,
    Conditional,
    Construct,
    Continue,
    Declare,
    Evaluate,
    Expression,
    For,
    Function,
    If,
    Index,
    Member,
    Name,
    Number,
    Parameter,
    Program,
    Return,
    Statement,
    Struct,
    TypeName,
    TypeOperand,
    Unary,
)
from vkml.kernels.slang.tokens import END, FLOAT, INTEGER, NAME, SYMBOL, TEXT, Token

_LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"),
    ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_PRECEDENCE = {symbol: level for level, symbols in enumerate(_LEVELS, 1) for symbol in symbols}
_ASSIGNMENTS = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="))
_PREFIXES = frozenset(("-", "+", "!", "~", "*"))
_SUFFIXES = frozenset(("[", ".", "++", "--"))
_GENERIC_TYPES = frozenset(("vector", "CoopMat"))
_GENERIC_FUNCTIONS = frozenset(
    (
        "loadAligned",
        "storeAligned",
        "loadCoherent",
        "storeCoherent",
        "bit_cast",
        "coopMatMulAdd",
        "Load",
        "Store",
        "LoadCoherent",
        "StoreCoherent",
    )
)
_COHERENT = frozenset(("loadCoherent", "storeCoherent", "__atomic_add"))
"""What reaches invocations of other workgroups that run at the time."""
_PARTS = Index, Member
_LITERAL = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)([uUlL]*)")


def parse(tokens: list[Token]) -> Program:
    """The syntax tree of a source.

    Raises:
        Unsupported: something in it is not understood.
    """
    return _Parser(tokens).program()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._go(0)
        self._program = Program()
        self._types: set[str] = set()
        self._assigned: set[str] = set()
        """Of the function that is read: names that its text changes."""
        self._handed: set[tuple[str, int, str]] = set()

    # --- words

    def _go(self, at: int) -> None:
        """Looks at a token."""
        self._at = at
        self._kind, self._text = self._tokens[at]

    def _ahead(self, count: int = 1) -> str:
        place = self._at + count
        return self._tokens[place].text if place < len(self._tokens) else ""

    def _next(self) -> str:
        text = self._text
        if self._kind == END:
            raise Unsupported("a source that ends in the middle")
        self._at += 1
        self._kind, self._text = self._tokens[self._at]
        return text

    def _accept(self, text: str) -> bool:
        if self._text != text:
            return False
        self._at += 1
        self._kind, self._text = self._tokens[self._at]
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            near = " ".join(token.text for token in self._tokens[max(self._at - 8, 0) : self._at + 4])
            raise Unsupported(f"{self._text!r} where {text!r} was expected, near {near!r}")

    def _name(self) -> str:
        if self._kind != NAME:
            self._expect("a name")
        return self._next()

    # --- declarations

    def program(self) -> Program:
        while self._kind != END:
            self._declaration()
        return self._program

    def _declaration(self) -> None:
        program = self._program
        if self._accept(";"):
            return
        if self._accept("using"):
            while self._next() != ";":
                pass
            return
        attributes = self._attributes()
        if self._accept("typealias"):
            name = self._name()
            self._expect("=")
            program.aliases[name] = self._type()
            self._types.add(name)
            self._expect(";")
        elif self._text == "struct":
            self._struct()
        elif self._accept("interface"):
            self._types.add(self._name())
            self._skip_braces()
        elif self._accept("groupshared"):
            declared = self._variable(self._type())
            program.shared[declared.name] = declared
        elif self._text == "ConstantBuffer":
            self._next()
            self._expect("<")
            type_ = self._type()
            self._expect(">")
            program.push = self._name(), type_
            self._expect(";")
        elif self._accept("const"):
            if "constant_id" not in attributes:
                raise Unsupported("const without static")
            number = attributes["constant_id"][0]
            assert isinstance(number, Number)
            program.specialization.append((int(number.value), self._variable(self._type())))
        elif self._accept("static"):
            self._expect("const")
            declared = self._variable(self._type())
            declared.is_fixed = True
            program.constants[declared.name] = declared
        else:
            function = self._function(attributes)
            program.functions.setdefault(function.name, []).append(function)

    def _attributes(self) -> dict[str, tuple[Expression, ...]]:
        found: dict[str, tuple[Expression, ...]] = {}
        while self._text == "[" and self._kind == SYMBOL:
            self._next()
            is_double = self._accept("[")
            name = self._name()
            if self._accept("::"):
                name = self._name()
            arguments: tuple[Expression, ...] = ()
            if self._accept("("):
                while self._kind == TEXT:
                    self._next()
                arguments = self._list(")")
            found[name] = arguments
            self._expect("]")
            if is_double:
                self._expect("]")
        return found

    def _skip_braces(self) -> None:
        while self._text != "{":
            self._next()
        depth = 0
        while True:
            text = self._next()
            depth += (text == "{") - (text == "}")
            if depth == 0:
                return

    def _struct(self) -> None:
        self._expect("struct")
        name = self._name()
        self._types.add(name)
        if self._accept(":"):
            self._type()
        self._expect("{")
        fields: list[Declare] = []
        methods: list[Function] = []
        while not self._accept("}"):
            attributes = self._attributes()
            start = self._at
            self._type()
            self._name()
            is_method = self._text == "("
            self._go(start)
            if is_method:
                method = self._function(attributes)
                method.of = name
                methods.append(method)
            else:
                fields += self._variables(self._type())
                self._expect(";")
        self._accept(";")
        self._program.structs[name] = Struct(name, tuple(fields), tuple(methods))

    def _function(self, attributes: dict[str, tuple[Expression, ...]]) -> Function:
        generics = self._generics_ahead()
        added = {name for name, _ in generics} - self._types
        self._types |= added
        result = self._type()
        name = self._name()
        if self._text == "<":
            while self._next() != ">":
                pass
        self._expect("(")
        parameters = []
        while not self._accept(")"):
            parameters.append(self._parameter())
            self._accept(",")
        if self._accept(":"):
            self._name()
        self._assigned, self._handed = set(), set()
        body = self._block()
        self._types -= added
        changed = frozenset(self._assigned), frozenset(self._handed)
        return Function(result, name, generics, tuple(parameters), body, attributes, None, *changed)

    def _generics_ahead(self) -> tuple[tuple[str, str], ...]:
        """Type parameters of the function that begins here: its result may be one of them."""
        place = self._at
        while self._tokens[place].text not in ("(", "<") and self._tokens[place].kind != END:
            place += 1
        is_of_type = self._tokens[place - 1].text in _GENERIC_TYPES
        if self._tokens[place].text != "<" or is_of_type:
            return ()
        found = []
        place += 1
        while True:
            name = self._tokens[place].text
            bound = ""
            place += 1
            if self._tokens[place].text == ":":
                bound = self._tokens[place + 1].text
                place += 2
            found.append((name, bound))
            if self._tokens[place].text != ",":
                return tuple(found)
            place += 1

    def _parameter(self) -> Parameter:
        mode = self._next() if self._text in ("in", "out", "inout") else "in"
        type_ = self._type()
        name = self._name()
        sizes = self._sizes()
        semantic = self._name() if self._accept(":") else ""
        return Parameter(type_, name, sizes, mode, semantic)

    # --- types

    def _type(self) -> TypeName:
        name = self._name()
        arguments: tuple[Expression, ...] = ()
        if name in _GENERIC_TYPES and self._accept("<"):
            arguments = self._generic_arguments()
        pointers = 0
        while self._accept("*"):
            pointers += 1
        return TypeName(name, arguments, pointers)

    def _generic_arguments(self) -> tuple[Expression, ...]:
        """What follows a <, up to its >."""
        found: list[Expression] = []
        while True:
            if self._is_type_here():
                found.append(TypeOperand(self._type()))
            else:
                found.append(self._binary(_PRECEDENCE["<<"]))
            if not self._accept(","):
                break
        self._expect(">")
        return tuple(found)

    def _is_type_here(self) -> bool:
        return self._is_type(self._kind, self._text)

    def _is_type(self, kind: str, text: str) -> bool:
        return kind == NAME and (
            text in self._types or text in _GENERIC_TYPES or types.builtin(text) is not None
        )

    def _sizes(self) -> tuple[Expression, ...]:
        sizes = []
        while self._accept("["):
            sizes.append(self._expression())
            self._expect("]")
        return tuple(sizes)

    # --- statements

    def _variables(self, type_: TypeName | None) -> list[Declare]:
        found = []
        while True:
            name = self._name()
            sizes = self._sizes()
            value = None
            if self._accept("="):
                value = self._braces() if self._text == "{" else self._expression()
            found.append(Declare(type_, name, sizes, value))
            if not self._accept(","):
                return found

    def _variable(self, type_: TypeName | None) -> Declare:
        """One declaration and its semicolon."""
        found = self._variables(type_)
        self._expect(";")
        if len(found) != 1:
            raise Unsupported("several declarations at once")
        return found[0]

    def _braces(self) -> Braces:
        self._expect("{")
        values: list[Expression] = []
        while not self._accept("}"):
            values.append(self._braces() if self._text == "{" else self._expression())
            self._accept(",")
        return Braces(tuple(values))

    def _block(self) -> Block:
        self._expect("{")
        return Block(tuple(self._statements()))

    def _statements(self) -> Iterator[Statement]:
        while not self._accept("}"):
            if self._kind == END:
                raise Unsupported("a block without an end")
            yield self._statement()

    def _statement(self) -> Statement:
        text = self._text
        if text == "{":
            return self._block()
        if self._accept(";"):
            return Block(())
        attributes = self._attributes() if text == "[" else {}
        simple = self._SIMPLE.get(self._text)
        if self._text == "for":
            return self._for("ForceUnroll" in attributes)
        if simple is not None:
            return simple(self)
        made = self._simple()
        self._expect(";")
        return made

    def _simple(self) -> Statement:
        """A declaration or an expression, without its semicolon."""
        is_fixed = False
        if self._text in ("static", "const"):
            while self._text in ("static", "const"):
                self._next()
            is_fixed = True
        if self._accept("let") or self._accept("var"):
            declared = self._variables(None)
        elif self._is_type_here() and self._ahead() not in ("(", "."):
            declared = self._variables(self._type())
        elif is_fixed:
            raise Unsupported(f"static {self._text}")
        else:
            return Evaluate(self._expression())
        for entry in declared:
            entry.is_fixed = is_fixed
        return declared[0] if len(declared) == 1 else Block(tuple(declared), False)

    def _for(self, is_unrolled: bool) -> Statement:
        self._expect("for")
        self._expect("(")
        first = None if self._text == ";" else self._simple()
        self._expect(";")
        condition = None if self._text == ";" else self._expression()
        self._expect(";")
        step = None if self._text == ")" else self._expression()
        self._expect(")")
        return For(first, condition, step, self._statement(), is_unrolled)

    def _while(self) -> Statement:
        self._expect("while")
        self._expect("(")
        condition = self._expression()
        self._expect(")")
        return For(None, condition, None, self._statement(), False)

    def _if(self) -> Statement:
        self._expect("if")
        self._expect("(")
        condition = self._expression()
        self._expect(")")
        yes = self._statement()
        no = self._statement() if self._accept("else") else None
        return If(condition, yes, no)

    def _return(self) -> Statement:
        self._expect("return")
        value = None if self._text == ";" else self._expression()
        self._expect(";")
        return Return(value)

    def _leave(self) -> Statement:
        made = Break() if self._next() == "break" else Continue()
        self._expect(";")
        return made

    _SIMPLE: dict[str, Callable[[_Parser], Statement]] = {
        "while": _while,
        "if": _if,
        "return": _return,
        "break": _leave,
        "continue": _leave,
    }

    # --- expressions

    def _expression(self) -> Expression:
        left = self._binary(1)
        if self._accept("?"):
            yes = self._expression()
            self._expect(":")
            return Conditional(left, yes, self._expression())
        if self._text in _ASSIGNMENTS and self._kind == SYMBOL:
            operation = self._next()[:-1]
            value = self._expression()
            self._changes(left)
            return Assign(operation, left, value)
        return left

    def _binary(self, least: int) -> Expression:
        left = self._prefixed()
        while True:
            symbol = self._text
            level = _PRECEDENCE.get(symbol, 0)
            if level < least or not level:
                return left
            self._next()
            left = Binary(symbol, left, self._binary(level + 1))

    def _prefixed(self) -> Expression:
        text = self._text
        if self._kind == SYMBOL:
            if text in _PREFIXES:
                self._next()
                operand = self._prefixed()
                return operand if text == "+" else Unary(text, operand)
            if text in ("++", "--"):
                self._next()
                target = self._prefixed()
                self._changes(target)
                return Assign(text[0], target, Number(1, "int"))
            if text == "(" and self._is_cast():
                self._next()
                type_ = self._type()
                self._expect(")")
                return Construct(type_, (self._prefixed(),))
        return self._suffixed(self._primary())

    def _is_cast(self) -> bool:
        kind, text = self._tokens[self._at + 1]
        if not self._is_type(kind, text):
            return False
        place = self._at + 2
        while self._tokens[place].text == "*":
            place += 1
        return self._tokens[place].text == ")"

    def _suffixed(self, base: Expression) -> Expression:
        while self._text in _SUFFIXES:
            if self._accept("["):
                base = Index(base, self._expression())
                self._expect("]")
            elif self._accept("."):
                name = self._name()
                generics: tuple[Expression, ...] = ()
                if name in _GENERIC_FUNCTIONS and self._accept("<"):
                    generics = self._generic_arguments()
                base = self._call(name, generics, base) if self._accept("(") else Member(base, name)
            else:
                self._changes(base)
                base = Assign(self._next()[0], base, Number(1, "int"))
        return base

    def _primary(self) -> Expression:
        kind, text = self._kind, self._text
        if kind == INTEGER:
            return self._integer()
        if kind == FLOAT:
            self._next()
            is_half = text[-1] in "hH"
            return Number(float(text.rstrip("fFhH")), "half" if is_half else "float")
        if text == "(":
            self._next()
            inner = self._expression()
            self._expect(")")
            return inner
        if kind != NAME:
            self._expect("an expression")
        if text in ("true", "false"):
            self._next()
            return Number(text == "true", "bool")
        if self._is_type_here():
            type_ = self._type()
            if self._accept("("):
                return Construct(type_, self._list(")"))
            return TypeOperand(type_)
        name = self._name()
        generics: tuple[Expression, ...] = ()
        if name in _GENERIC_FUNCTIONS and self._accept("<"):
            generics = self._generic_arguments()
        if self._accept("("):
            return self._call(name, generics, None)
        return Name(name)

    def _call(self, name: str, generics: tuple[Expression, ...], base: Expression | None) -> Call:
        arguments = self._list(")")
        if name in _COHERENT:
            self._program.is_coherent = True
        # Which function this is, and so which parameters are out, is not known yet.
        for position, argument in enumerate((base, *arguments), -1):
            root = _root(argument)
            if root is not None:
                self._handed.add((name, position, root))
        return Call(name, arguments, generics, base)

    def _integer(self) -> Number:
        return Number(*_literal(self._next()))

    def _list(self, end: str) -> tuple[Expression, ...]:
        found: list[Expression] = []
        while not self._accept(end):
            found.append(self._expression())
            if not self._accept(",") and self._text != end:
                self._expect(end)
        return tuple(found)

    def _changes(self, target: Expression) -> None:
        root = _root(target)
        if root is not None:
            self._assigned.add(root)


@functools.lru_cache(maxsize=1024)
def _literal(text: str) -> tuple[int, str]:
    """An integer's value and type."""
    match = _LITERAL.fullmatch(text)
    assert match is not None
    value, suffix = int(match.group(1), 0), match.group(2).lower()
    if not suffix and value >= 1 << 31:
        raise Unsupported(f"the number {text} without a suffix")
    return value, ("uint" if "u" in suffix else "int") + ("64_t" if "l" in suffix else "")


def _root(place: Expression | None) -> str | None:
    """The name of the variable that a place is in."""
    while isinstance(place, _PARTS):
        place = place.base
    return place.name if isinstance(place, Name) else None
