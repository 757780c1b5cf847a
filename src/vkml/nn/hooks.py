"""Hooks of modules: functions that are called around `forward`, until their handle is removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkml.tensors import Tensor
from vkml.tensors.functions import Function, FunctionContext
from vkml.tensors.hooks import Hooks


def before(module: Any, hooks: Hooks, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Arguments as the hooks before `forward` leave them."""
    for hook in list(hooks.values()):
        if hook.with_kwargs:
            changed = hook.act(module, arguments, named)
            if changed is None:
                continue
            if not (isinstance(changed, tuple) and len(changed) == 2):
                raise RuntimeError(
                    "a forward pre-hook with with_kwargs=True returns None or a pair of arguments and "
                    "named ones, "
                    f"not {changed!r}"
                )
            arguments, named = changed
        else:
            changed = hook.act(module, arguments)
            if changed is not None:
                arguments = changed if isinstance(changed, tuple) else (changed,)
    return arguments, named


def after(
    module: Any, hooks: Hooks, arguments: tuple[Any, ...], named: dict[str, Any], made: Any, *,
    failed: bool = False,
) -> Any:  # fmt: skip
    """A result as the hooks after `forward` leave it; where that failed those that are always called."""
    for hook in list(hooks.values()):
        if failed and not hook.always_call:
            continue
        given = (arguments, named) if hook.with_kwargs else (arguments,)
        changed = hook.act(module, *given, made)
        if changed is not None:
            made = changed
    return made


class _Passed(Function):
    """Tensors as they are; their gradients, all at once, are what a function makes of them."""

    @staticmethod
    def forward(ctx: FunctionContext, change: Callable[[tuple[Any, ...]], Any], *tensors: Tensor) -> Any:
        ctx.change = change  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: FunctionContext, *grad_outputs: Any) -> Any:
        return (None, *ctx.change(grad_outputs))  # type: ignore[attr-defined]


class Watch:
    """One call of a module whose gradients hooks look at.

    Args:
        module: the module.
        pre: hooks of gradients by its results.
        hooks: hooks of gradients by its arguments, once all are there.
    """

    def __init__(self, module: Any, pre: Hooks, hooks: Hooks) -> None:
        self._module = module
        self._pre, self._hooks = list(pre.values()), list(hooks.values())
        self._given = 0
        """How many arguments there were: to hold them would keep what was made of them."""
        self._outgoing: tuple[Any, ...] = ()
        self._is_begun = False

    def begin(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, whose gradients will be seen."""
        self._given = len(arguments)
        at = [n for n, x in enumerate(arguments) if isinstance(x, Tensor)]
        if not self._hooks or not any(arguments[n].requires_grad for n in at):
            return arguments
        self._is_begun = True

        def change(found: tuple[Any, ...]) -> tuple[Any, ...]:
            packed = self._called(dict(zip(at, found, strict=True)))
            return tuple(packed[n] for n in at)

        made = dict(zip(at, _Passed.apply(change, *(arguments[n] for n in at)), strict=True))
        return tuple(made.get(n, x) for n, x in enumerate(arguments))

    def end(self, made: Any) -> Any:
        """The results, whose gradients will be seen."""
        results = made if isinstance(made, tuple) else (made,)
        at = [n for n, x in enumerate(results) if isinstance(x, Tensor)]
        count = len(results)
        if not any(results[n].requires_grad for n in at):
            return made

        def change(found: tuple[Any, ...]) -> tuple[Any, ...]:
            by_place = dict(zip(at, found, strict=True))
            outgoing = tuple(by_place.get(n) for n in range(count))
            for hook in self._pre:
                outgoing = _changed(hook.act(self._module, outgoing), outgoing)
            self._outgoing = outgoing
            if not self._is_begun and self._hooks:
                self._called({})
            return tuple(outgoing[n] for n in at)

        passed = dict(zip(at, _Passed.apply(change, *(results[n] for n in at)), strict=True))
        found = tuple(passed.get(n, x) for n, x in enumerate(results))
        return found if isinstance(made, tuple) else found[0]

    def _called(self, by_place: dict[int, Any]) -> tuple[Any, ...]:
        incoming = tuple(by_place.get(n) for n in range(self._given))
        outgoing, self._outgoing = self._outgoing, ()
        for hook in self._hooks:
            incoming = _changed(hook.act(self._module, incoming, outgoing), incoming)
        return incoming


def _changed(returned: Any, before: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gradients as a hook leaves them."""
    if returned is None:
        return before
    found = returned if isinstance(returned, tuple) else (returned,)
    if len(found) != len(before):
        raise RuntimeError(
            f"a backward hook returned {len(found)} gradients instead of {len(before)}: one for each, or None"
        )
    return found
