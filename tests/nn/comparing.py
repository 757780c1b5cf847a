"""Functions and layers compared with PyTorch's: values, gradients by inputs, gradients by parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import vkml
from vkml import nn

Array = np.ndarray[Any, Any]


def normal(random: np.random.Generator, *shape: int) -> Array:
    """Normally distributed float32."""
    return random.standard_normal(shape).astype(np.float32)


def close(found: Any, wanted: Any, what: str, rtol: float = 2e-4) -> None:
    """Raises where elements differ by more than a share of themselves and of the greatest."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape, f"{what}: {found.shape} instead of {wanted.shape}"
    finite = np.abs(wanted[np.isfinite(wanted)]) if wanted.dtype.kind == "f" else np.abs(wanted)
    scale = float(finite.max(initial=0)) if finite.size else 0.0
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * 0.1 * scale + 1e-7, err_msg=what)


def takes(function: Callable[..., Any], *named: str) -> bool:
    """Whether arguments of these names can be given; releases of PyTorch differ in that."""
    return set(named) <= set(inspect.signature(function).parameters)


def compare(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    inputs: Sequence[Array],
    device: str,
    *,
    constants: Sequence[int] = (),
    seed: int = 0,
    rtol: float = 2e-4,
) -> None:
    """Compares what two functions make of arrays, and its gradients by those of floats.

    Args:
        ours: of vkml's tensors.
        theirs: of torch's; it computes in float64.
        inputs: for both.
        device: that ours runs on.
        constants: inputs by which no gradient is compared.
        seed: of what elements of results count.
        rtol: of `close`.
    """
    import torch

    random = np.random.default_rng(seed)
    graded = [at for at, x in enumerate(inputs) if x.dtype.kind == "f" and at not in constants]
    their_inputs = [torch.tensor(x.astype(np.float64) if x.dtype.kind == "f" else x) for x in inputs]
    our_inputs = [vkml.tensor(x, device=device) for x in inputs]
    for at in graded:
        their_inputs[at].requires_grad_()
        our_inputs[at].requires_grad_()
    found, wanted = _results(ours(*our_inputs)), _results(theirs(*their_inputs))
    assert len(found) == len(wanted)
    ends, their_ends = [], []
    for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.device == device
        close(one.detach().numpy(), other.detach().numpy(), f"result {at}", rtol)
        assert one.requires_grad == other.requires_grad, f"result {at}"
        if other.requires_grad:
            counts = random.standard_normal(other.shape)
            their_ends.append((other * torch.tensor(counts)).sum())
            ends.append((one * vkml.tensor(counts.astype(np.float32), device=device)).sum())
    if not ends:
        return
    total = ends[0]
    for end in ends[1:]:
        total = total + end
    total.backward()
    sum(their_ends).backward()  # type: ignore[attr-defined]
    for at in graded:
        gradient, other = our_inputs[at].grad, their_inputs[at].grad
        assert (gradient is None) == (other is None), f"gradient by input {at}"
        if gradient is not None:
            close(gradient.numpy(), other.numpy(), f"gradient by input {at}", rtol)


def _results(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple | list) else [made]


def texts_agree(ours: nn.Module, theirs: Any) -> bool:
    """Whether layers show the same text; before 2.13 PyTorch's norms said nothing of a bias."""
    import torch

    text = repr(ours)
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13):
        text = re.sub(r"(affine=\w+), bias=\w+", r"\1", text)
    return bool(text == repr(theirs))


def compare_layers(
    ours: nn.Module,
    theirs: Any,
    inputs: Sequence[Array],
    device: str,
    *,
    rtol: float = 2e-4,
    named: Mapping[str, Any] | None = None,
) -> None:
    """Compares two layers of the same weights; gradients by these, too, buffers, names, and texts.

    Weights are drawn at random and go from ours to theirs; what theirs then has goes back.

    Args:
        ours: of vkml.
        theirs: of torch; it computes in float64.
        inputs: for both.
        device: that ours runs on.
        rtol: of `close`.
        named: further arguments of both.
    """
    import torch

    random = np.random.default_rng(7)
    assert texts_agree(ours, theirs)
    state = ours.state_dict()
    assert list(state) == list(theirs.state_dict())
    drawn = {
        name: (random.random(value.shape) + 0.5).astype(np.float32) if value.dtype.is_float else value.numpy()
        for name, value in state.items()
    }
    theirs.load_state_dict({name: torch.tensor(value) for name, value in drawn.items()})
    missing = ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    assert tuple(missing) == ([], [])
    ours.to(device)
    theirs.double()
    names = [name for name, _ in ours.named_parameters()]
    assert names == [name for name, _ in theirs.named_parameters()]
    compare(
        lambda *given: ours(*given, **(named or {})),
        lambda *given: theirs(*given, **(named or {})),
        inputs,
        device,
        rtol=rtol,
    )
    their_parameters = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        gradient, other = parameter.grad, their_parameters[name].grad
        assert (gradient is None) == (other is None), name
        if gradient is not None:
            close(gradient.numpy(), other.numpy(), f"gradient by {name}", rtol)
    for name, value in ours.state_dict().items():
        close(value.numpy(), theirs.state_dict()[name].numpy(), name, rtol)
