"""Slang source put together from templates."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources


@functools.cache
def template(package: str, name: str) -> str:
    """The text of one of a package's kernels."""
    return resources.files(package).joinpath(f"{name}.slang").read_text(encoding="utf-8")


def defines_text(values: Mapping[str, int | str]) -> str:
    return "\n".join(f"#define {name} {value}" for name, value in values.items())


def constants_text(names: Sequence[str]) -> str:
    """Specialization constants, numbered in order."""
    return "\n".join(
        f"[[vk::constant_id({index})]] const int {name} = 1;" for index, name in enumerate(names)
    )
