"""Which names each page of the API reference describes, as directives for Sphinx's autodoc.

A page asks for them by a comment, which other readers of Markdown do not show::

    <!-- reference: vkml.optim -->
    <!-- reference: vkml from vkml.engine vkml.installation -->

The first stands for all public names of a module, the second for those that come from certain modules.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Sequence
from typing import Any

import vkml

COMMENT = re.compile(r"^<!-- reference: ([\w.]+)(?: from ((?:[\w.]+ ?)+))? -->$", re.MULTILINE)
_MARKUP = re.compile(r"(``.+?``|`[^`]+`)|(\*|\||(?<=\w)_(?!\w))")
"""Literals and names, which stay, or characters that reStructuredText takes for markup."""
_MADE = re.compile(r"\bmade by |` makes\b")
"""What the first paragraph of a class says whose instances come from somewhere else."""


def public_names(module: str, sources: Sequence[str] = ()) -> list[str]:
    """The functions and classes that a module offers.

    Args:
        module: as it is imported.
        sources: where these come from, as beginnings of modules' names; anywhere in vkml if left out.

    Returns:
        names: those of `__all__`, or what does not begin with an underscore; vkml's own ones of `dir`.
    """
    loaded = importlib.import_module(module)
    offered = dir(loaded) if module == "vkml" else getattr(loaded, "__all__", None) or dir(loaded)
    # A module without a list of its names has those that it, or a part of it, defines.
    home = "vkml" if hasattr(loaded, "__all__") else module
    found = []
    for name in sorted(offered):
        each = getattr(loaded, name, None)
        if name.startswith("_") or not (inspect.isclass(each) or callable(each)):
            continue
        source = _source(each)
        if _is_within(source, [home]) and (not sources or _is_within(source, sources)):
            found.append(name)
    return found


def is_made_elsewhere(kind: type) -> bool:
    """Whether programs make no instances of a class: of enumerations, and where it says what makes them."""
    summary = (kind.__doc__ or "").partition("\n\n")[0]
    return issubclass(kind, enum.Enum) or _MADE.search(summary) is not None


def _shorter_name(module: str, name: str, value: Any) -> str | None:
    """What the packages that a module lies in call a value of it, if they offer it, too."""
    outer = module.split(".")[:-1]
    for count in range(1, len(outer) + 1):
        package = ".".join(outer[:count])
        if getattr(importlib.import_module(package), name, None) is value:
            return f"{package}.{name}"
    return None


def _source(value: Any) -> str:
    return getattr(value, "__module__", None) or type(value).__module__


def _is_within(module: str, packages: Sequence[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in packages)


def requests(page: str) -> list[tuple[str, tuple[str, ...]]]:
    """What the comments of a page ask for: modules, and where names come from."""
    return [(found[1], tuple((found[2] or "").split())) for found in COMMENT.finditer(page)]


def expanded(page: str) -> str:
    """A page with directives in the place of its comments."""
    return COMMENT.sub(lambda found: directives(found[1], tuple((found[2] or "").split())), page)


def directives(module: str, sources: Sequence[str] = ()) -> str:
    """A block of reStructuredText that has autodoc describe the names of a module."""
    loaded = importlib.import_module(module)
    lines = ["```{eval-rst}", f".. currentmodule:: {module}", ""]
    for name in public_names(module, sources):
        value = getattr(loaded, name)
        if not inspect.isclass(value):
            lines += [f".. autofunction:: {name}", ""]
        elif shorter := _shorter_name(module, name, value):
            lines += [f"`{name}` is `{shorter}`.", ""]  # a class is described once
        elif issubclass(value, BaseException):
            lines += [f".. autoexception:: {name}", ""]
        else:
            lines += [f".. autoclass:: {name}", "   :members:"]
            if issubclass(value, vkml.nn.Module):
                lines += [
                    "   :exclude-members: function"
                ]  # what many layers apply; it is described as itself
            if name == "Tensor":
                lines += ["   :inherited-members:"]
            if issubclass(value, enum.Enum):
                lines += ["   :undoc-members:", "   :member-order: bysource"]
            lines += [""]
    return "\n".join([*lines, "```"])


def _escaped(found: re.Match[str]) -> str:
    """A name or literal, which may stand before a letter, as in "`Size`s"; or a character for itself."""
    if not found[1]:
        return f"\\{found[2]}"
    return found[1] + ("\\ " if re.match(r"\w", found.string[found.end() :]) else "")


def unmarked(docstring: Sequence[str]) -> list[str]:
    """A docstring in which asterisks, bars and underscores stand for themselves.

    Docstrings are also read as they are (`help`), and know backticks, lists, examples and blocks after
    ``::``, but no other markup: ``[batch, *spatial]`` is a shape.
    """
    made = []
    is_example = False
    verbatim: int | None = None  # what is indented further than this is shown as it is
    for line in docstring:
        text = line.lstrip()
        depth = len(line) - len(text)
        is_example = bool(text) and (is_example or text.startswith(">>> "))
        if text and verbatim is not None and depth <= verbatim:
            verbatim = None
        if is_example or verbatim is not None:
            made.append(line)
            continue
        bullet = "* " if text.startswith("* ") else ""
        marked = _MARKUP.sub(_escaped, text.removeprefix(bullet))
        made.append(" " * depth + bullet + marked)
        if text.endswith("::"):
            verbatim = depth
    return made
