"""Activations that are computed again instead of kept, as in `torch.utils.checkpoint`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vkml.errors import NotDifferentiable
from vkml.ir.gradients import Emitter
from vkml.ir.gradients import behind as copied_behind
from vkml.ir.graph import Node
from vkml.ir.operator import Operator
from vkml.tensors.generator import Generator, default_generators
from vkml.tensors.passing import passing
from vkml.tensors.tensor import Tensor
from vkml.tensors.trees import mapped, tensors_in
from vkml.tracing import EMITTER, Joined, Traced, gradients, tracked
from vkml.tracing.saved import changed_in_place
from vkml.tracing.value import mode, next_serial, tracking


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[Any, Any]] | None = None,
    determinism_check: str = "default",
    debug: bool = False,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """What a function makes; for its gradient it is run again, and nothing in it is kept (Chen et al., 2016).

    The second run is recorded where the gradient needs it: in a plan of both ways, too, values of the first
    are let go in between. Gradients flow to all that the function reads, arguments or not, to any order.

    Args:
        function: of tensors and other arguments; its second run must do the same as the first.
        args: its arguments.
        use_reentrant: is taken for PyTorch's sake.
        context_fn: gives contexts for the first and the second run.
        determinism_check: "default": a second run that reads other tensors is an error; "none" is as well.
        debug: is taken for PyTorch's sake.
        preserve_rng_state: whether the second run draws the same random numbers.
        kwargs: its named arguments.

    Raises:
        NotDifferentiable: when gradients are computed: the second run did not read what the first one read,
            or an argument was changed in place in between.
    """
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check should be 'default' or 'none', got {determinism_check!r}")
    first, second = (
        (contextlib.nullcontext(), contextlib.nullcontext()) if context_fn is None else context_fn()
    )
    if not mode.tracks:
        with first:
            return function(*args, **kwargs)
    streams = default_generators() if preserve_rng_state else ()
    states = {generator: generator._state.value for generator in streams}
    start = next_serial()
    with first:
        result = function(*args, **kwargs)
    if preserve_rng_state:
        # The first draw on a device makes its stream.
        states.update((new, new.beginning()) for new in default_generators() if new not in states)
    made = [tensor for tensor in tensors_in(result) if tensor.value.tracks]
    sources = _sources([tensor.value for tensor in made], start)
    if not sources:
        return result
    frozen = mapped(lambda tensor: tensor.value, (args, kwargs))
    call = _Again(function, frozen, states, second, sources)
    for application in tracked([tensor.value for tensor in made], frozenset(map(id, sources))):
        # Only the joined values have a gradient.
        application.tracks = False
        for at in range(len(application.types)):
            value = application.known_output(at)
            if value is not None:
                value.tracks = False
    joined = Joined(call, [tensor.value for tensor in made], sources)
    numbers = {id(tensor): n for n, tensor in enumerate(made)}

    def shown(tensor: Tensor) -> Tensor:
        at = numbers.get(id(tensor))
        return tensor if at is None else Tensor(joined.output(at))

    return mapped(shown, result)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Modules one after the other, in segments of which all but the last are checkpoints.

    Args:
        functions: a `Sequential`, or a list of modules or functions.
        segments: how many.
        input: of the first.
        use_reentrant: is taken for PyTorch's sake.
        kwargs: `preserve_rng_state`.
    """
    keeps = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    steps = list(functions.children()) if hasattr(functions, "children") else list(functions)

    def run(part: Sequence[Any]) -> Callable[[Any], Any]:
        def forward(x: Any) -> Any:
            for step in part:
                x = step(x)
            return x

        return forward

    size = len(steps) // segments
    for begin in range(0, size * (segments - 1), size) if size else ():
        input = checkpoint(run(steps[begin : begin + size]), input, preserve_rng_state=keeps)
    return run(steps[size * (segments - 1) :])(input)


def _sources(made: Sequence[Traced], start: int) -> list[Traced]:
    """What tracks of all that was there before a serial and values have been made of."""
    found: dict[int, Traced] = {}
    seen: set[int] = set()
    stack = list(made)
    while stack:
        value = stack.pop()
        application = value.application
        if value.is_leaf or application is None or application.serial < start:
            if value.tracks:
                found[id(value)] = value
        elif application.serial not in seen:
            seen.add(application.serial)
            stack += [given for given in application.sources if given is not None]
    return [*found.values()]


@contextlib.contextmanager
def _drawing_from(states: Mapping[Generator, Traced]) -> Iterator[None]:
    """Has generators go on from states, and then from where they were."""
    before = {generator: generator._state.value for generator in states}
    for generator, state in states.items():
        generator._state._write(state)
    try:
        yield
    finally:
        for generator, state in before.items():
            generator._state._write(state)


class _Again(Operator):
    """A function that is run again, as an operator: only its gradient is ever asked for."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        states: Mapping[Generator, Traced],
        second: Any,
        sources: Sequence[Traced],
    ) -> None:
        super().__init__("checkpoint")
        self._function, self._arguments, self._states = function, arguments, states
        self._second, self._sources = second, sources
        self._begun = next_serial()

    def vjp(  # type: ignore[override]
        self,
        build: Emitter[Traced],
        node: Node,
        inputs: Sequence[Traced | None],
        outputs: Sequence[Traced],
        cotangents: Sequence[Traced | None],
        needed: Sequence[bool],
    ) -> Sequence[Traced | None]:
        self._refuse_changed(self._arguments)
        start = next_serial()
        behind = next((x for x in cotangents if x is not None and not x.is_free), None)
        with tracking(True):
            args, kwargs = _thawed(self._arguments, behind)
        with tracking(True), _drawing_from(self._states), self._second:
            result = self._function(*args, **kwargs)
        made = [tensor.value for tensor in tensors_in(result) if tensor.value.tracks]
        known = {id(value) for value in self._sources}
        if len(made) != len(outputs) or {id(value) for value in _sources(made, start)} != known:
            raise NotDifferentiable(
                "the second run of a checkpoint has not read the tensors that the first one read: one was "
                "changed in between, or the function does not do the same each time"
            )
        pairs = [(x, c) for x, c in zip(made, cotangents, strict=True) if c is not None]
        wrt = [
            value for value, is_needed in zip(inputs, needed, strict=True) if is_needed and value is not None
        ]
        found = iter(gradients([x for x, _ in pairs], [c for _, c in pairs], wrt, ends=self._sources))
        return [next(found) if is_needed else None for is_needed in needed]

    def _refuse_changed(self, value: Any) -> None:
        """Raises where a tensor among nested arguments was changed in place since the first run."""
        if isinstance(value, Traced):
            version = value.version
            if version is not None and self._begun < version.changed_from:
                raise changed_in_place("a checkpoint", f"an argument of it, {value.type},", version)
        elif isinstance(value, list | tuple):
            for item in value:
                self._refuse_changed(item)
        elif isinstance(value, dict):
            self._refuse_changed([*value.values()])


def _thawed(value: Any, behind: Traced | None) -> Any:
    """Nested arguments with tensors of the values that these had."""
    if isinstance(value, Traced):
        return Tensor(value if behind is None or not value.type.dtype.is_float else _later(value, behind))
    if isinstance(value, list | tuple):
        items = [_thawed(item, behind) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _thawed(item, behind) for key, item in value.items()}
    return value


def _later(value: Traced, behind: Traced) -> Traced:
    """A value that is not there before another one is: else there might be no checkpoint."""
    if value.is_free or value.device is not behind.device:
        return value
    with tracking(False):
        made = copied_behind(EMITTER, value, behind)
    return passing(made, value, "checkpoint")
