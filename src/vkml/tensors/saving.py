"""What PyTorch keeps for gradients of functions that are several operators here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TypeVar, cast

from vkml.tensors import tensor as core
from vkml.tracing import Traced
from vkml.tracing.value import Call, mode

F = TypeVar("F", bound=Callable[..., Any])
_RESULT = "result"

SAVED = {
    "addcdiv": "tensor2 | tensor2: tensor1",
    "cdist": "x1 x2 result",
    "combinations": "x",
    "copysign": "result | x: x",
    "cross": "x: other | other: x",
    "cummax": "x result1",
    "cummin": "x result1",
    "cumprod": "x result",
    "dist": "x other result",
    "exp2": "result",
    "fmax": "x other",
    "fmin": "x other",
    "fmod": "other: x other",
    "gather": "x index",
    "hypot": "result | x: x | other: other",
    "index_copy": "index | source: source",
    "kron": "",
    "ldexp": "result | x: other",
    "lerp": "weight | weight: x end",
    "logaddexp": "x other",
    "logaddexp2": "x other",
    "logcumsumexp": "x result",
    "logit": "x",
    "masked_select": "x mask",
    "nan_to_num": "x",
    "norm": "x result",
    "prod": "x result",
    "remainder": "other: x other",
    "scatter_reduce": "x index src result",
    "std": "x result",
    "std_mean": "x result0",
    "take": "x index",
    "take_along_dim": "x",
    "tensordot": "",
    "vander": "x result",
    "var": "x",
    "var_mean": "x",
    "linalg.cross": "x: y | y: x",
    "linalg.householder_product": "A tau result",
    "linalg.pinv": "A result",
    "linalg.slogdet": "A result0",
    "linalg.solve_triangular": "A result",
    "linalg.vector_norm": "x result",
    "nn.functional.bilinear": "input1: input2 weight | input2: input1 weight | weight: input1 input2",
    "nn.functional.cosine_embedding_loss": "input1 input2",
    "nn.functional.cross_entropy": "target weight",
    "nn.functional.hinge_embedding_loss": "",
    "nn.functional.layer_norm": "input weight bias",
    "nn.functional.margin_ranking_loss": "",
    "nn.functional.max_pool1d": "input result1",
    "nn.functional.max_pool2d": "input result1",
    "nn.functional.max_pool3d": "input result1",
    "nn.functional.mse_loss": "input target weight",
    "nn.functional.nll_loss": "input target weight",
    "nn.functional.normalize": "input",
    "nn.functional.poisson_nll_loss": "input: target | target: input",
    "nn.functional.prelu": "input weight",
    "nn.functional.softsign": "input",
    "nn.functional.tanhshrink": "",
}
"""By function, from PyTorch's table of derivatives: the arguments that are kept, and "result" where what it
makes is, "result1" where only the second one is. Behind "other:" and before the next "|" is what only the
gradient by the argument `other` needs. Names of arguments are those here. Where PyTorch composes a function
of others, it is here if these keep other values than ours. What is not here is an operator, which states what
is kept (`Operator.saved`), or is composed as PyTorch's."""


def saves(rule: str) -> Callable[[F], F]:
    """Has gradients of a function need what PyTorch's would, instead of what its operators read.

    Args:
        rule: as in `SAVED`.
    """
    clauses = [_clause(text) for text in rule.split("|")]

    def wrap(function: F) -> F:
        names = list(inspect.signature(function).parameters)
        keeps_results = any(name.startswith(_RESULT) for _, kept in clauses for name in kept)

        @functools.wraps(function)
        def act(*arguments: Any, **named: Any) -> Any:
            if not mode.tracks or mode.call is not None:
                return function(*arguments, **named)
            given = dict(zip(names, arguments, strict=False))
            if named:
                given.update(named)
            kept = clauses[0][1]
            if len(clauses) > 1 or clauses[0][0] is not None:
                tracked = [name for name, value in given.items() if any([x.tracks for x in _values(value)])]
                kept = [name for by, each in clauses if by is None or by in tracked for name in each]
            call = mode.call = Call(function.__name__)
            for name in kept:
                for value in _values(given.get(name)):
                    call.save(name, value)
            try:
                result = function(*arguments, **named)
            finally:
                mode.call = None
            if keeps_results:
                for at, value in enumerate(_values(result)):
                    if _RESULT in kept or f"{_RESULT}{at}" in kept:
                        call.save(_RESULT, value)
            return result

        return cast(F, act)

    return wrap


def apply_saving(names: MutableMapping[str, Any], prefix: str = "") -> None:
    """Has all functions of a module that are in the table need what PyTorch's need.

    Args:
        names: of the module.
        prefix: of its functions in the table.
    """
    for name, rule in SAVED.items():
        if name.startswith(prefix) and name[len(prefix) :] in names:
            names[name[len(prefix) :]] = saves(rule)(names[name[len(prefix) :]])


def _clause(text: str) -> tuple[str | None, list[str]]:
    """Of which argument's gradient a part of a rule is, None for all, and what that needs."""
    by, colon, names = text.rpartition(":")
    return by.strip() if colon else None, names.split()


def _values(given: Any) -> Sequence[Traced]:
    """The values of tensors, also of those in lists and tuples."""
    if isinstance(given, core.Tensor):
        return (given.value,)
    if isinstance(given, list | tuple):
        return [value for one in given for value in _values(one)]
    return ()
