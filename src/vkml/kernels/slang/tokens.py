"""Slang source as tokens, macros expanded and conditional parts taken out."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from vkml.dataclasses import dataclass
from vkml.kernels.slang.errors import Unsupported

NAME, INTEGER, FLOAT, SYMBOL, TEXT, END = "name", "integer", "float", "symbol", "text", "end"


class Token(NamedTuple):
    """One word of the source."""

    kind: str
    text: str


_PATTERN = re.compile(
    r"(?P<space>[ \t\r\n]+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<text>\"[^\"\n]*\")"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fFhH]?|\d+[eE][+-]?\d+[fFhH]?)"
    r"|(?P<integer>0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*)"
    r"|(?P<symbol><<=|>>=|\+\+|--|&&|\|\||<<|>>|[<>=!+\-*/%&|^]=|::|[-+*/%=<>!&|^~?:;,.(){}\[\]#])",
    re.DOTALL,
)


@dataclass(frozen=True)
class _Macro:
    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]


def tokens_of(source: str) -> list[Token]:
    """The tokens of a source behind its directives, with an END at the end.

    Raises:
        Unsupported: a character or a directive that is not understood.
    """
    macros: dict[str, _Macro] = {}
    found: list[Token] = []
    # For each #if that is open: whether its parts are taken, and whether one of them was.
    taken: list[bool] = []
    done: list[bool] = []
    for is_directive, text in _parts(source):
        if not is_directive:
            if all(taken):
                found += _expanded(_tokens(text), macros)
            continue
        word, _, rest = text[1:].strip().partition(" ")
        if word in ("if", "ifdef", "ifndef"):
            holds = all(taken) and _holds(word, rest, macros)
            taken.append(holds)
            done.append(holds)
        elif word in ("else", "elif"):
            is_wanted = word == "else" or (all(taken[:-1]) and _holds("if", rest, macros))
            taken[-1] = is_wanted and not done[-1]
            done[-1] = done[-1] or taken[-1]
        elif word == "endif":
            taken.pop()
            done.pop()
        elif word == "define":
            if all(taken):
                _define(rest, macros)
        elif word == "undef":
            if all(taken):
                macros.pop(rest.strip(), None)
        else:
            raise Unsupported(f"the directive #{word}")
    found.append(Token(END, ""))
    return found


def _parts(source: str) -> list[tuple[bool, str]]:
    """Directives, and the text between them."""
    parts: list[tuple[bool, str]] = []
    text: list[str] = []
    for line in source.split("\n"):
        if line.lstrip().startswith("#"):
            parts.append((False, "\n".join(text)))
            parts.append((True, line.partition("//")[0].strip()))
            text = []
        else:
            text.append(line)
    parts.append((False, "\n".join(text)))
    return parts


@functools.lru_cache(maxsize=256)
def _tokens(text: str) -> tuple[Token, ...]:
    found: list[Token] = []
    at = 0
    known: dict[str, Token] = {}  # a word is of one kind, wherever it stands
    for piece in _PATTERN.finditer(text):
        if piece.start() != at:
            break
        at = piece.end()
        kind = piece.lastgroup
        if kind == "space":
            continue
        assert kind is not None
        word = piece.group()
        token = known.get(word)
        if token is None:
            token = known[word] = Token(kind, word)
        found.append(token)
    if at < len(text):
        raise Unsupported(f"the character {text[at]!r}")
    return tuple(found)


def _define(text: str, macros: dict[str, _Macro]) -> None:
    match = re.match(r"(\w+)(\(([^)]*)\))?\s*", text)
    if match is None:
        raise Unsupported(f"#define {text}")
    parameters = None
    if match.group(2) is not None:
        parameters = tuple(word.strip() for word in match.group(3).split(",") if word.strip())
    macros[match.group(1)] = _Macro(parameters, _tokens(text[match.end() :]))


def _expanded(
    tokens: Sequence[Token], macros: dict[str, _Macro], inside: frozenset[str] = frozenset()
) -> list[Token]:
    if not macros:
        return list(tokens)
    found: list[Token] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        word = token[1]
        macro = macros.get(word)  # which only names are
        if macro is None or word in inside:
            found.append(token)
        elif macro.parameters is None:
            found += _expanded(macro.body, macros, inside | {word})
        elif at < len(tokens) and tokens[at].text == "(":
            arguments, at = _arguments(tokens, at)
            given = dict(
                zip(macro.parameters, (_expanded(a, macros, inside) for a in arguments), strict=True)
            )
            body: list[Token] = []
            for part in macro.body:
                body += given.get(part.text, [part]) if part.kind == NAME else [part]
            found += _expanded(body, macros, inside | {word})
        else:
            found.append(token)
    return found


def _arguments(tokens: Sequence[Token], at: int) -> tuple[list[list[Token]], int]:
    """What stands between parentheses, by commas; and where it ends."""
    arguments: list[list[Token]] = [[]]
    depth = 0
    while at < len(tokens):
        text = tokens[at].text
        if text in ("(", "[", "{"):
            depth += 1
        elif text in (")", "]", "}"):
            depth -= 1
        if depth == 0:
            return ([] if arguments == [[]] else arguments), at + 1
        if text == "," and depth == 1:
            arguments.append([])
        elif depth > 1 or text != "(":
            arguments[-1].append(tokens[at])
        at += 1
    raise Unsupported("a macro whose arguments do not end")


def _holds(word: str, text: str, macros: dict[str, _Macro]) -> bool:
    if word != "if":
        return (text.strip() in macros) == (word == "ifdef")
    # The words of an expression, names that are no macros being 0, as in C.
    words = [
        "0" if token.kind == NAME else token.text.rstrip("uUlL") if token.kind == INTEGER else token.text
        for token in _expanded(_tokens(text), macros)
    ]
    known = {"&&": " and ", "||": " or ", "!": " not "}
    expression = "".join(known.get(entry, entry) for entry in words)
    if not re.fullmatch(
        r"(?:0[xX][0-9a-fA-F]+|\d+| and | or | not |[-+*/%()<>=]|[<>=!]=|<<|>>)+", expression
    ):
        raise Unsupported(f"the condition {text}")
    return bool(eval(expression.replace("/", "//"), {"__builtins__": {}}))
