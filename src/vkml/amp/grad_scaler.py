"""Gradients of scaled losses: small ones survive in float16, steps with overflow are left out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from vkml.ir.dtypes import FLOAT16, FLOAT32, INT32
from vkml.optim.optimizer import Optimizer
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.autograd import no_grad
from vkml.tensors.creation import full


class _Stage(Enum):
    READY = 0
    UNSCALED = 1
    STEPPED = 2


class _State:
    """What has become of an optimizer since the last update."""

    def __init__(self) -> None:
        self.stage = _Stage.READY
        self.found_inf: dict[str, Tensor] = {}
        """By device, 1 where a gradient is not finite."""


class GradScaler:
    """Scales losses so that gradients do not vanish in float16, and leaves steps out that overflow.

    The scale grows when many steps were finite, and falls when one was not. All of that is decided where the
    gradients are: nothing waits for a device, and a step with it can be captured by `vkml.jit`. (Of
    optimizers that do more than one update a step, as `LBFGS`, the host decides.)

    Args:
        device: PyTorch's; the scale goes where the losses are.
        init_scale: the first scale.
        growth_factor: above 1.
        backoff_factor: below 1.
        growth_interval: after how many finite steps in a row it grows.
        enabled: whether it does anything.

    Example:
        >>> import vkml
        >>> weight = vkml.ones(2, requires_grad=True)
        >>> optimizer, scaler = vkml.optim.SGD([weight], lr=0.5), vkml.GradScaler()
        >>> scaler.scale(weight.sum()).backward()
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> weight.tolist()
        [0.5, 0.5]
    """

    def __init__(
        self, device: str = "vulkan", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if enabled and growth_factor <= 1:
            raise ValueError(f"growth_factor is {growth_factor}, it must be above 1")
        if enabled and backoff_factor >= 1:
            raise ValueError(f"backoff_factor is {backoff_factor}, it must be below 1")
        self._device, self._enabled = device, enabled
        self._init_scale, self._init_growth_tracker = init_scale, 0
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._scale: Tensor | None = None
        self._growth_tracker: Tensor | None = None
        self._states: dict[int, _State] = {}

    # -- a step ---------------------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """A loss, or several in lists and tuples, times the scale.

        Args:
            outputs: a tensor, or tensors in lists and tuples.

        Returns:
            Of the same form.

        Raises:
            ValueError: it is something else.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            if self._scale is None:
                self._scale = full((), self._init_scale, dtype=FLOAT32, device=outputs.device)
                self._growth_tracker = full((), self._init_growth_tracker, dtype=INT32, device=outputs.device)
            return outputs * self._scale.to(outputs.device)
        if isinstance(outputs, list | tuple):
            return type(outputs)([self.scale(output) for output in outputs])
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    @no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the gradients of an optimizer's parameters by the scale, so that they can be clipped.

        Args:
            optimizer: whose parameters have gradients of scaled losses.

        Raises:
            RuntimeError: it was done already, or the step was.
            ValueError: a gradient is of float16: parameters are kept in float32.
        """
        if not self._enabled:
            return
        scale, _ = self._tensors("unscale_")
        state = self._states.setdefault(id(optimizer), _State())
        if state.stage is _Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if state.stage is _Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        greatest: dict[str, list[Tensor]] = {}
        inverse = 1 / scale
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                if param.grad.dtype == FLOAT16:
                    raise ValueError("Attempting to unscale FP16 gradients.")
                # NaN and infinity come through both.
                greatest.setdefault(param.device, []).append(param.grad.abs().amax().to(FLOAT32))
                param.grad.mul_(inverse.to(param.device))
        for device, found in greatest.items():
            state.found_inf[device] = op.logical_not(op.isfinite(op.stack(found)).all()).to(FLOAT32)
        state.stage = _Stage.UNSCALED

    def step(self, optimizer: Optimizer, *arguments: Any, **named: Any) -> Any:
        """The optimizer's step, where all gradients are finite; unscales them where that is not done.

        Args:
            optimizer: whose parameters have gradients of scaled losses.
            *arguments: none: closures are refused.
            **named: of its `step`.

        Returns:
            what the step returned.

        Raises:
            RuntimeError: it was called already since the last `update`; or a closure is given.
        """
        if not self._enabled:
            return optimizer.step(*arguments, **named)
        if arguments or "closure" in named:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._tensors("step")
        state = self._states.setdefault(id(optimizer), _State())
        if state.stage is _Stage.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if state.stage is _Stage.READY:
            self.unscale_(optimizer)
        if not state.found_inf:
            raise RuntimeError("No inf checks were recorded for this optimizer: it has no gradients.")
        state.stage = _Stage.STEPPED
        if not optimizer.can_skip():
            return None if any(found.item() for found in state.found_inf.values()) else optimizer.step()
        optimizer.found_inf = state.found_inf
        try:
            return optimizer.step()
        finally:
            optimizer.found_inf = None

    @no_grad()
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Lets the scale grow or fall by what came of the steps, or sets it.

        Args:
            new_scale: to set it to.
        """
        if not self._enabled:
            return
        scale, tracker = self._tensors("update")
        if new_scale is not None:
            scale.copy_(new_scale)
        else:
            found = [
                one.to(scale.device) for state in self._states.values() for one in state.found_inf.values()
            ]
            if not found:
                raise RuntimeError("No inf checks were recorded prior to update.")
            is_over = functools.reduce(op.maximum, found) > 0
            counted = tracker + 1
            is_time = counted == self._growth_interval
            grown = scale * self._growth_factor
            grown = op.where(op.isfinite(grown), grown, scale)
            scale.copy_(op.where(is_over, scale * self._backoff_factor, op.where(is_time, grown, scale)))
            tracker.copy_(op.where(op.logical_or(is_over, is_time), 0, counted))
        self._states = {}

    def _tensors(self, name: str) -> tuple[Tensor, Tensor]:
        if self._scale is None or self._growth_tracker is None:
            raise RuntimeError(f"{name}() needs a scale: use scaler.scale(loss or outputs) before it")
        return self._scale, self._growth_tracker

    # -- settings and state ---------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale as it is, which is waited for; 1 where it does nothing."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else float(self._scale.item())

    def get_growth_factor(self) -> float:
        """By what it grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets by what it grows.

        Args:
            new_factor: above 1.
        """
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """By what it falls."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets by what it falls.

        Args:
            new_factor: below 1.
        """
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """After how many finite steps in a row it grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets after how many finite steps in a row it grows.

        Args:
            new_interval: the number of steps.
        """
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """The scale, the settings and how many finite steps there were, as PyTorch has them."""
        if not self._enabled:
            return {}
        tracker = self._growth_tracker
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._init_growth_tracker if tracker is None else int(tracker.item()),
        }

    @no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` gave.

        Args:
            state_dict: what `state_dict` gave.

        Raises:
            RuntimeError: it is of one that did nothing.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of "
                "GradScaler."
            )
        self._init_scale = float(state_dict["scale"])
        self._init_growth_tracker = int(state_dict["_growth_tracker"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        if self._scale is not None and self._growth_tracker is not None:
            self._scale.fill_(self._init_scale)
            self._growth_tracker.fill_(self._init_growth_tracker)
