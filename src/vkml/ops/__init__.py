"""The operators, one module a family, imported when the registry is asked for one of its operators.

For programs `vkml.ops` is functions of NumPy arrays, ``vkml.ops.add(a, b, out=c)``: `vkml.array_functions`.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from vkml.ir.operator import REGISTRY
from vkml.ops.families import OPERATORS

for _family, _names in OPERATORS.items():
    _keys = [(_name.rpartition(".")[0], _name.rpartition(".")[2]) for _name in _names]
    REGISTRY.announce(f"{__name__}.{_family}", _keys)


_FUNCTIONS_FIRST = ("cross_entropy", "matmul", "softmax")


class _Package(ModuleType):
    """Where a module and a function have one name, the attribute is the function: `vkml.ops.matmul(a, b)`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FUNCTIONS_FIRST or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'vkml.ops' has no attribute {name!r}")
    if name not in _FUNCTIONS_FIRST and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    from vkml.array_functions import FUNCTIONS

    found = FUNCTIONS.get(name)
    if found is None:
        raise AttributeError(f"module 'vkml.ops' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    from vkml.array_functions import FUNCTIONS

    return sorted(FUNCTIONS)
