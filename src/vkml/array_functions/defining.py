"""Functions of arrays, and their gradients, from functions of tensors: stated once, in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vkml.array_functions.calls import Function, run
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import grad as gradients_of
from vkml.tracing.value import tracking

_OUT = """
    out: an array to be written, of the result's type and shape{many}; a fresh one where left out.
    device: a name of `vkml.devices()`; the best where left out."""


_ARGUMENTS = {
    "a": "an array, or a number.",
    "b": "likewise; broadcast with `a`.",
    "x": "an array of any shape.",
    "condition": "bools; broadcast with `a` and `b`.",
    "dim": "the axis, below 0 counted from the end.",
    "keepdim": "whether axes that are summed up stay, with one element.",
    "correction": "taken off the number of elements.",
    "min": "the lower bound, or None.",
    "max": "the upper bound, or None.",
    "transpose_a": "whether `a` is [..., k, n].",
    "transpose_b": "whether `b` is [..., m, k].",
}
"""What arguments are that mean the same in all functions; of others the layer's function tells."""


def _described(names: Sequence[str], about: Mapping[str, str]) -> str:
    known = {**_ARGUMENTS, **about}
    return "".join(f"\n    {name}: {known[name]}" for name in names if name in known)


class Table:
    """Functions by their names, as they are defined."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}

    def define(
        self,
        name: str,
        arrays: str,
        compute: Callable[..., Any],
        text: str,
        settings: str = "",
        *,
        by: tuple[int, ...] | None = None,
        updated: tuple[int, ...] = (),
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Defines a function, and its gradient as ``NAME_backward``.

        Args:
            name: of the function.
            arrays: names of the arrays, ``=None`` behind those that may be left out.
            compute: of as many tensors, and of the settings.
            text: what the function does.
            settings: names of what else it takes, with their values where they are left out.
            by: numbers of the arrays that there are gradients by; all, where left out, none where empty.
            updated: see `Function`.
            about: what arguments are, where that is not `_ARGUMENTS`. A text that leaves some out says
                where they are described; else it is the layer's function of the same name.
        """
        stated, others = arrays.split(), settings.split()
        names = [one.partition("=")[0] for one in stated]
        kept = [one.partition("=")[0] for one in others]
        needed = tuple(at for at, one in enumerate(stated) if "=" not in one)
        made = Function(name, compute, needed, updated)
        described = _described([*names, *kept], about or {})
        if described.count("\n") < len([*names, *kept]) and " `" not in text:
            text += f"\n\nSee `vkml.nn.functional.{name}`."
        self._add(
            name, stated, names, others, kept, made, f"{text}\n\nArgs:{described}{_OUT.format(many='')}"
        )
        by = tuple(range(len(names))) if by is None else by
        if not by:
            return
        backward = Function(
            f"{name}_backward", _backward(compute, len(names), by), (0, *(at + 1 for at in needed))
        )
        listed = ", ".join(f"`{names[at]}`" for at in by)
        many = "" if len(by) == 1 else "; a tuple for several"
        text = (
            f"The gradient{'s' if many else ''} of `{name}` by {listed}.\n\nOther arguments as for `{name}`."
            "\n\nArgs:\n    grad: by the result: of its shape, or a number for all elements."
            f"{_OUT.format(many=many)}"
        )
        self._add(backward.name, ["grad", *stated], ["grad", *names], others, kept, backward, text)

    def _add(
        self, name: str, stated: list[str], names: list[str], others: list[str], kept: list[str],
        function: Function, text: str,
    ) -> None:  # fmt: skip
        # PyTorch's order: what is needed, arrays first, then what may be left out.
        ordered = sorted([*stated, *others], key=lambda one: "=" in one)
        parameters = ", ".join([*ordered, "*", "out=None", "device=None"])
        arrays = "".join(f"{one}, " for one in names)
        settings = "".join(f"{one}, " for one in kept)
        source = (
            f"def {name}({parameters}):\n    return _run(_function, ({arrays}), ({settings}), out, device)\n"
        )
        scope: dict[str, Any] = {"_run": run, "_function": function, "__name__": "vkml.ops"}
        exec(source, scope)
        scope[name].__doc__ = text
        scope[name].__qualname__ = name
        self.functions[name] = scope[name]


def _backward(compute: Callable[..., Any], count: int, by: tuple[int, ...]) -> Callable[..., Any]:
    """A function of the gradient by a result, and of what that was made of: the gradients by this."""

    def gradients(grad: Tensor, *rest: Any) -> Any:
        tensors = list(rest[:count])
        with tracking(True):
            wanted = []
            for at in by:
                if tensors[at] is not None and tensors[at].dtype.is_float:
                    tensors[at] = tensors[at].detach().requires_grad_()
                    wanted.append(tensors[at])
            made = compute(*tensors, *rest[count:])
            if not wanted or not made.requires_grad:
                raise RuntimeError("there are gradients by arrays of floats alone, and there are none")
            counts = op.broadcast_to(grad.to(made.dtype), made.shape)
            found = iter(gradients_of(made, wanted, counts, allow_unused=True))
        results = []
        for at in by:
            if tensors[at] is not None and tensors[at].dtype.is_float:
                one = next(found)
                results.append(op.mul(tensors[at].detach(), 0) if one is None else one)
        return results[0] if len(by) == 1 else tuple(results)

    return gradients
