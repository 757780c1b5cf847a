"""Gradients by tensors, and the computation of tensors with what `backward` was called on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from vkml.errors import NotDifferentiable
from vkml.ir.gradients import converted, expanded
from vkml.tensors import tensor as core
from vkml.tensors.anomaly import check_gradients, check_values
from vkml.tensors.capture import is_capturing
from vkml.tensors.hooks import Hook
from vkml.tracing import EMITTER, Traced, evaluate, gradients, number
from vkml.tracing.derivations import derivatives
from vkml.tracing.gradient import Checked, release, takers_of, tracked
from vkml.tracing.value import mode, tracking

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

_ROOTS_LOOKED_THROUGH = 256
Before = tuple["weakref.ref[Tensor]", Traced]
"""A tensor that has been written, and its value of before."""


class _Later(threading.local):
    """What a thread computes with whatever comes next there."""

    def __init__(self) -> None:
        self.roots: list[tuple[weakref.ref[Traced], bool, Before | None]] = []
        """Values, computed if they are held then; whether the host will look at each; and the tensor that was
        given it."""


_later = _Later()


def compute_later(value: Traced, is_looked_at: bool = False, before: Before | None = None) -> None:
    """Has a value computed with whatever is computed next, in the same plan, from what is known then.

    For what nobody looks at for long, running statistics, say: pending they would keep all that they are made
    of. Not in a capture, where nothing is computed.

    Args:
        value: known already or not.
        is_looked_at: whether the host will look at its elements, as at a loss's.
        before: the tensor that it has been written into, which has the value of before where it cannot be
            computed: a batch that is too large leaves no traces.
    """
    if value.data is None and not is_capturing():
        if len(_later.roots) >= _ROOTS_LOOKED_THROUGH:
            _later.roots = [root for root in _later.roots if root[0]() is not None]
        _later.roots.append((weakref.ref(value), is_looked_at, before))


def run_backward(
    tensor: Tensor, gradient: Tensor | None, retain_graph: bool | None, create_graph: bool,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:  # fmt: skip
    """See `Tensor.backward`."""
    value = tensor.value
    if not value.tracks:
        raise NotDifferentiable(
            "the tensor does not require grad, or backward() was called on it before without retain_graph, "
            "or a function of vkml.jit has made it, within which backward() has to be called"
        )
    if mode.finds_nan:
        check_values([value])
    applications = tracked([value])
    named = None if inputs is None else [inputs] if isinstance(inputs, core.Tensor) else list(inputs)
    if named is not None and not named:
        raise RuntimeError("backward: inputs are empty; left out they are all leaves")
    takers = takers_of([value], applications)
    found = takers if named is None else [each.value for each in named]
    with tracking(create_graph):
        cotangent = cotangent_of(tensor, gradient)
        if create_graph or mode.finds_nan or any([_hooks(taker) for taker in takers]):
            made = gradients([value], [cotangent], found, hooked, checked=gradient_check())
        else:
            made = derivatives(applications, [value], [cotangent], found)
        compute_later(value, is_looked_at=True)
        compute_deep(made)
        for at, (taker, result) in enumerate(zip(found, made, strict=True)):
            owner = owner_of(taker) if named is None else named[at]
            if owner is not None and result is not None:
                owner._add_gradient(core.Tensor(result), is_named=named is not None)
    if not (create_graph if retain_graph is None else retain_graph):
        release(applications)


def gradient_check() -> Checked | None:
    """What looks at each operator's gradients, where these are to be looked at."""
    return check_gradients if mode.finds_nan else None


def owner_of(value: Traced) -> Tensor | None:
    """The tensor that takes the gradient by a value."""
    return None if value.owner is None else cast("Tensor | None", value.owner())


def _hooks(value: Traced) -> list[Hook]:
    return [] if value.hooks is None else list(value.hooks.table.values())


def hooked(value: Traced, found: Traced) -> Traced:
    """The gradient by a value as its hooks leave it.

    Raises:
        TypeError: one returns something else than a tensor or None.
        RuntimeError: that has another shape or type than the gradient.
    """
    for hook in _hooks(value):
        changed = hook.act(core.Tensor(found))
        if changed is None:
            continue
        if not isinstance(changed, core.Tensor):
            raise TypeError(f"a hook returns a tensor or None, not {type(changed).__name__}")
        if changed.value.type != found.type:
            raise RuntimeError(f"a hook has made a gradient of {found.type} one of {changed.value.type}")
        found = changed.value
    return found


def compute(tensors: Sequence[Tensor], looked_at: Traced | None = None) -> None:
    """Computes tensors, with what was to be computed later, in as few submissions as can be.

    In a capture nothing is computed.

    Args:
        tensors: to be known.
        looked_at: the value of one of them, whose elements the host wants; of what `backward` was called on
            it will.
    """
    _compute([tensor.value for tensor in tensors], looked_at)


def compute_deep(values: Sequence[Traced | None]) -> None:
    """Computes values together if one of them is deeper than is left pending.

    Each would be computed by itself when it becomes a tensor otherwise, with all that it has in common with
    the others once more: of a deep model's gradients that is the model.
    """
    pending = [value for value in values if value is not None and value.data is None]
    if any(value.application and value.application.depth > core.MOST_PENDING for value in pending):
        _compute(pending)


def _compute(targets: list[Traced], looked_at: Traced | None = None) -> None:
    if is_capturing():
        return
    wanted = [] if looked_at is None else [looked_at]
    written: list[Before] = []
    while _later.roots:
        reference, is_looked_at, before = _later.roots.pop()
        if before is not None:
            written.append(before)
        root = reference()
        if root is not None and root.holders and root.data is None:
            targets.append(root)
            if is_looked_at:
                wanted.append(root)
    try:
        evaluate(targets, wanted)
    except BaseException:
        undo(written)
        raise


def undo(written: Sequence[Before]) -> None:
    """Gives tensors the values of before, where those that they have could not be computed.

    Args:
        written: the last ones first.
    """
    for reference, value in written:
        tensor = reference()
        if tensor is not None and tensor._traced.data is None:
            tensor._restore(value)


def cotangent_of(tensor: Tensor, gradient: Tensor | None) -> Traced:
    """What each element of a tensor counts, in its shape: 1 where nothing is said of a single one."""
    if gradient is None:
        if tensor.numel() != 1:
            raise NotDifferentiable(
                f"a gradient can be left out only for a tensor of one element, this has {tensor.numel()}"
            )
        if tensor.dtype.is_complex:
            raise NotDifferentiable("a gradient can be left out only for a real number, this is complex")
        return expanded(EMITTER, number(1, tensor.dtype), tensor.shape)
    if gradient.shape != tensor.shape:
        raise RuntimeError(
            f"the gradient has the shape {list(gradient.shape)}, the tensor {list(tensor.shape)}"
        )
    return converted(EMITTER, gradient.value, tensor.dtype)
