"""How Sphinx makes the site of these pages (`make docs`)."""

from __future__ import annotations

import builtins
import importlib
import re
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import operator_table  # noqa: E402
import reference  # noqa: E402
from docutils import nodes  # noqa: E402

import vkml  # noqa: E402

project = "vkml"
version = release = vkml.__version__
copyright = "the authors of vkml"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# Single backticks in docstrings stand for names; what is no public name is shown as it is written.
default_role = "py:obj"
autodoc_inherit_docstrings = False
autodoc_member_order = "alphabetical"
autodoc_typehints = "description"  # in signatures they would hide the names
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_display_short_literal_types = True

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"vkml {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Nothing comes from other hosts: the site works from a folder, without a network.
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"


def _with_generated(_application: Any, _page: str, text: list[str]) -> None:
    """Puts what is generated in the place of a page's comments that ask for it."""
    text[0] = operator_table.expanded(reference.expanded(text[0]))


def _unmarked(
    _application: Any, _kind: str, _name: str, _value: Any, _options: Any, lines: list[str]
) -> None:
    lines[:] = reference.unmarked(lines)


def _signature(
    _application: Any,
    kind: str,
    _name: str,
    value: Any,
    _options: Any,
    _text: str | None,
    _result: str | None,
) -> tuple[str, str] | None:
    """None: as it is; of classes that programs make no instances of, nothing."""
    return ("", "") if kind == "class" and reference.is_made_elsewhere(value) else None


_BUILTINS = "|".join(name for name, value in vars(builtins).items() if isinstance(value, type))
_UNQUALIFIED = re.compile(rf"(?<![\w.~])(?:(Tensor)|({_BUILTINS}))\b")


def _qualified(found: re.Match[str]) -> str:
    return "~vkml.Tensor" if found[1] else f"~builtins.{found[2]}"


def _with_plain_types(_application: Any, _domain: str, kind: str, content: Any) -> None:
    """Has types mean one thing each, and leaves out what is returned where that says nothing.

    Of classes that programs make no instances of, what goes into these is left out, too.
    """
    signature = content.parent[0]
    value: Any = importlib.import_module(signature["module"])
    for part in signature["fullname"].split("."):
        value = getattr(value, part, None)
    is_made_elsewhere = kind == "class" and reference.is_made_elsewhere(value)
    for listed in [one for one in content if isinstance(one, nodes.field_list)]:
        for field in list(listed):
            name, body = (part.astext() for part in field)
            is_type = name == "rtype" or name.startswith("type ")
            if (name == "rtype" and body in ("None", "Any")) or (is_type and is_made_elsewhere):
                listed.remove(field)
            elif is_type and signature["module"] != "vkml.onnx":  # which has a Tensor of its own
                for text in list(field[1].findall(nodes.Text)):
                    text.parent.replace(text, nodes.Text(_UNQUALIFIED.sub(_qualified, text)))
        if not len(listed):
            content.remove(listed)


def setup(application: Any) -> None:
    """Called by Sphinx."""
    application.connect("source-read", _with_generated)
    application.connect("autodoc-process-signature", _signature)
    # Behind autodoc, which adds the types to what docstrings say.
    application.connect("object-description-transform", _with_plain_types, priority=900)
    application.connect(
        "autodoc-process-docstring", _unmarked, priority=100
    )  # before napoleon, which makes markup
