"""Public functions and classes say what each of their parameters is."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import vkml
from tests.test_site import public_modules, reference

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example):$")
ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*):")
REFERENCE = re.compile(r"(?:[Ss]ee|[Aa]s (?:for|of|in)|[Aa]s) `([\w.]+)`")
"""Where a docstring says that parameters are described elsewhere."""
MOST_REFERENCES = 3


def section_names(docstring: str) -> set[str]:
    """What the sections of arguments and attributes of a docstring describe."""
    names: set[str] = set()
    current = ""
    for line in inspect.cleandoc(docstring).splitlines():
        if found := SECTION.match(line):
            current = found[1]
        elif current in ("Args", "Attributes") and (entry := ENTRY.match(line)):
            names |= {name.strip("* ") for name in entry[1].split(",")}
    return names


@cache
def described_fields(owner: type) -> frozenset[str]:
    """Attributes of a class, and of those that it extends, below which a docstring of their own stands."""
    names: set[str] = set()
    for kind in owner.__mro__:
        if not kind.__module__.startswith("vkml"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if is_text and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                names.add(field.target.id)
        names |= section_names(kind.__doc__ or "")
    return frozenset(names)


def referred(value: Any, owner: type | None, module: ModuleType) -> Iterator[Any]:
    """What a docstring refers to."""
    home = inspect.getmodule(value) or module
    for name in REFERENCE.findall(value.__doc__ or ""):
        for start in (owner, home, module, vkml, vkml.nn):
            found = start
            for part in name.removeprefix("vkml.").split("."):
                found = getattr(found, part, None)
            if found is not None and found is not value:
                yield found
                break


def described_by(value: Any, owner: type | None, module: ModuleType, depth: int = 0) -> set[str]:
    """The parameters that a docstring, or one that it refers to, describes."""
    names = set(described_fields(value)) if inspect.isclass(value) else section_names(value.__doc__ or "")
    if depth < MOST_REFERENCES:
        for other in referred(value, owner, module):
            names |= described_by(other, owner, module, depth + 1)
    return names


def parameters_of(value: Any) -> list[str]:
    """Of a function, or of making an instance of a class."""
    try:
        found = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in found if name not in ("self", "cls", "_") and not name.startswith("__")]


def own_methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods that a class defines and describes itself."""
    for name, method in vars(kind).items():
        function = method.__func__ if isinstance(method, classmethod | staticmethod) else method
        # Layers hold the function that they apply, which is described as itself.
        if inspect.isfunction(function) and not name.startswith("_") and name != "function":
            yield name, function


def lacking(value: Any, owner: type | None, module: ModuleType) -> list[str]:
    """The parameters that nothing describes."""
    described = described_by(value, owner, module)
    return [name for name in parameters_of(value) if name not in described]


def test_docstrings_describe_all_parameters() -> None:
    missing: dict[str, Any] = {}
    count = 0
    for module in public_modules(vkml):
        for name in reference.public_names(module.__name__):
            value = getattr(module, name)
            where = f"{module.__name__}.{name}"
            if not value.__doc__:
                missing[where] = "no docstring"
            is_made = inspect.isclass(value) and (
                issubclass(value, BaseException) or reference.is_made_elsewhere(value)
            )
            if not is_made and (found := lacking(value, None, module)):
                missing[where] = found
            count += 1
            if not inspect.isclass(value):
                continue
            for method_name, method in own_methods(value):
                if method.__doc__ and (found := lacking(method, value, module)):
                    missing[f"{where}.{method_name}"] = found
    assert count > 1000
    assert not missing, "\n".join(f"{where}: {what}" for where, what in sorted(missing.items()))


def test_a_section_names_its_entries() -> None:
    docstring = """Something.

    Args:
        x: an array;
            more: of it.
        *sizes: of it.
        first, second: others.

    Returns:
        made: what is made.
    """
    assert section_names(docstring) == {"x", "sizes", "first", "second"}


def test_a_parameter_without_a_description_is_found() -> None:
    def scaled(x: float, by: float) -> float:
        """x times something.

        Args:
            x: any.
        """
        return x * by

    def likewise(x: float, dim: int) -> float:
        """As `vkml.softmax`."""
        return x * dim

    module = inspect.getmodule(test_a_section_names_its_entries)
    assert module is not None
    assert lacking(scaled, None, module) == ["by"]
    likewise.__doc__ = "As `softmax`."
    assert lacking(likewise, None, module) == []
