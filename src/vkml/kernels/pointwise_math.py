"""Picks from files of functions what a kernel calls: parsing all of them takes eight times as long."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_NAME = re.compile(r"^(?:static const )?\w+ (\w+)(?:<[^>]*>|\[\d+\])?\s*(?:\(|=)")
FILES = ("pointwise_math.slang", "number_formats.slang")
_WORD = re.compile(r"[A-Za-z_]\w*")


def math_used_by(*texts: str) -> str:
    """The definitions of `FILES` that texts name, and those that these name in turn.

    Args:
        texts: Slang source of expressions or of a whole kernel, in parts.

    Returns:
        Source to put at module scope, in the files' order; all overloads of a name come together.
    """
    return _with_what_they_name(frozenset().union(*map(_named_by, texts)))


@functools.lru_cache(maxsize=512)
def _named_by(text: str) -> frozenset[str]:
    """Names of definitions; kernels have most of their parts in common."""
    return frozenset(_WORD.findall(text)) & _definitions().keys()


@functools.lru_cache(maxsize=512)
def _with_what_they_name(names: frozenset[str]) -> str:
    definitions = _definitions()
    wanted: set[str] = set()
    pending = set(names)
    while pending:
        name = pending.pop()
        wanted.add(name)
        pending |= _named_by(definitions[name]) - wanted
    return "\n".join(source for name, source in definitions.items() if name in wanted)


@functools.cache
def _definitions() -> dict[str, str]:
    """Name → source of every function and constant of the files, overloads joined."""
    found: dict[str, list[str]] = {}
    for file in FILES:
        text = Path(__file__).with_name(file).read_text(encoding="utf-8")
        lines: list[str] = []
        for line in text.splitlines():
            if not lines and (not line or line.startswith("//")):
                continue
            lines.append(line)
            if not _is_complete(lines):
                continue
            match = _NAME.match(lines[0])
            assert match is not None, f"{file}: no name in {lines[0]!r}"
            found.setdefault(match.group(1), []).extend(lines)
            lines = []
        assert not lines, f"{file}: {lines[0]!r} does not end"
    return {name: "\n".join(source) for name, source in found.items()}


def _is_complete(lines: list[str]) -> bool:
    """Whether the lines of a definition close everything they open."""
    last = lines[-1].rstrip()
    depth = sum(line.count("{") - line.count("}") for line in lines)
    return depth == 0 and last.endswith(("}", ";"))
