"""Functions of single examples as functions of batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from vkml.ir.gradients import reshaped, transposed
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tensors.generator import Generator, drawing_by
from vkml.tensors.trees import mapped, tensors_in
from vkml.tracing import EMITTER, Traced
from vkml.tracing.batching import Batch, Example, repeated

_RANDOMNESS = ("error", "different", "same")


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function that computes another one for each example of a batch, at once.

    The function is called once, with an example of which shape and type are known; what it records is
    recorded once more for the whole batch. An operator for which there is no form with one axis more is
    applied to each example. Calls may be nested, and be within and around `grad`, `jvp` and their like.

    Args:
        func: of tensors, nested or not; returns tensors, nested or not.
        in_dims: of each positional argument the axis of the examples, None where it is the same for all: one
            for all arguments, or a tuple with one, or the like nested, for each. Named arguments have
            examples along their first axis.
        out_dims: where the axis is in results: one for all, or one for each.
        randomness: what a random operation does: "error"; "different", numbers for each example; "same", the
            same numbers for all.
        chunk_size: examples that are computed at a time; None for all.

    Raises:
        ValueError: axes do not fit the arguments, sizes differ, or nothing has examples.
        RuntimeError: the function draws random numbers and must not, or looks at elements of an example.

    Example:
        >>> import vkml
        >>> x, y = vkml.ones(5, 3), vkml.arange(15.0).reshape(5, 3)
        >>> vkml.func.vmap(vkml.dot)(x, y).tolist()
        [3.0, 12.0, 21.0, 30.0, 39.0]
    """
    if randomness not in _RANDOMNESS:
        raise RuntimeError(f"vmap: randomness is one of {', '.join(_RANDOMNESS)}, not {randomness!r}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"vmap: chunk_size is {chunk_size}, it must be 1 or more")

    @functools.wraps(func)
    def batched(*arguments: Any, **named: Any) -> Any:
        axes = _axes_of(in_dims, arguments)
        given, along = (arguments, named), (axes, mapped(lambda _: 0, named))
        size = _size(given, along)
        if chunk_size is None or size <= chunk_size:
            return _computed(func, given, along, size, out_dims, randomness)
        parts = []
        for start in range(0, size, chunk_size):
            count = min(chunk_size, size - start)
            part = _zipped(functools.partial(_narrowed, start, count), given, along)
            parts.append(_computed(func, part, along, count, 0, randomness))
        joined = _joined(parts)
        return _moved(joined, out_dims)

    return batched


def _computed(
    func: Callable[..., Any], given: Any, along: Any, size: int, out_dims: Any, randomness: str
) -> Any:
    examples: list[Example] = []

    def example(x: Tensor, axis: int) -> Tensor:
        made = Example(x.value, axis)
        examples.append(made)
        return Tensor(made.output(0))

    def draw(generator: Generator, words: int) -> Traced:
        if randomness == "error":
            raise RuntimeError(
                "vmap: the function draws random numbers; say randomness='different' for numbers of each "
                "example's own, or 'same' for the same ones"
            )
        if randomness == "same":
            return generator.draw(words)
        made = Example(reshaped(EMITTER, generator.draw(size * words), (size, words)), 0)
        examples.append(made)
        return made.output(0)

    arguments, named = _zipped(example, given, along)
    with drawing_by(draw):
        results = func(*arguments, **named)
    found = tensors_in(results)
    _check_results(func, results)
    made = iter(Batch(size, examples).of([x.value for x in found]))

    def whole(x: Tensor) -> Tensor:
        value = next(made)
        return Tensor(repeated(x.value, size) if value is None else value)

    return _moved(mapped(whole, results), out_dims)


def _axes_of(in_dims: Any, arguments: tuple[Any, ...]) -> Any:
    """The axes of the positional arguments, nested as these are."""
    if in_dims is None or isinstance(in_dims, int):
        return tuple([in_dims] * len(arguments))
    if not isinstance(in_dims, tuple | list) or len(in_dims) != len(arguments):
        raise ValueError(
            f"vmap: in_dims {in_dims} does not fit {len(arguments)} arguments: it is an int, None or a tuple "
            "with one for each"
        )
    return tuple(in_dims)


def _zipped(change: Callable[[Tensor, int], Tensor], value: Any, axes: Any) -> Any:
    """Nested values with something else in the place of each tensor that has an axis.

    Raises:
        ValueError: axes are not nested as the values are, or there is no such axis.
    """
    if axes is None:
        return value
    if isinstance(value, Tensor):
        if not isinstance(axes, int):
            raise ValueError(
                f"vmap: in_dims has {axes!r} for a tensor, which has one axis of examples or None"
            )
        if not -value.ndim <= axes < value.ndim:
            raise ValueError(f"vmap: in_dims has {axes} for a tensor of shape {list(value.shape)}")
        return change(value, axes % value.ndim)
    if isinstance(value, list | tuple):
        each = [axes] * len(value) if isinstance(axes, int) else axes
        if not isinstance(each, list | tuple) or len(each) != len(value):
            raise ValueError(f"vmap: in_dims has {axes!r} for {len(value)} values")
        items = [_zipped(change, item, axis) for item, axis in zip(value, each, strict=True)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        if not isinstance(axes, int) and (not isinstance(axes, dict) or axes.keys() != value.keys()):
            raise ValueError(f"vmap: in_dims has {axes!r} for values under {', '.join(map(str, value))}")
        return type(value)(
            {
                key: _zipped(change, item, axes if isinstance(axes, int) else axes[key])
                for key, item in value.items()
            }
        )
    if isinstance(axes, int) and not isinstance(axes, bool):
        raise ValueError(
            f"vmap: in_dims has {axes} for {value!r}, which is no tensor: None says that it is for all"
        )
    return value


def _size(given: Any, along: Any) -> int:
    sizes: list[int] = []

    def note(x: Tensor, axis: int) -> Tensor:
        sizes.append(x.shape[axis])
        return x

    _zipped(note, given, along)
    if not sizes:
        raise ValueError(
            "vmap: no argument has an axis of examples: in_dims are all None, or there is no tensor"
        )
    if len(set(sizes)) > 1:
        raise ValueError(f"vmap: the axes of examples have the sizes {sizes}, which differ")
    return sizes[0]


def _check_results(func: Callable[..., Any], results: Any) -> None:
    name = getattr(func, "__name__", type(func).__name__)
    items = results if isinstance(results, list | tuple) else [results]
    for item in items:
        if not isinstance(item, Tensor | list | tuple | dict):
            raise ValueError(f"vmap: {name} returns {type(item).__name__}, where a tensor is needed")


def _narrowed(start: int, count: int, x: Tensor, axis: int) -> Tensor:
    return x.narrow(axis, start, count)


def _joined(parts: Sequence[Any]) -> Any:
    """Results of parts of a batch, one behind the other."""
    columns = iter(zip(*[tensors_in(part) for part in parts], strict=True))
    return mapped(lambda _: op.cat(list(next(columns)), 0), parts[0])


def _moved(results: Any, out_dims: Any) -> Any:
    """Results whose examples, along their first axes, are along others.

    Raises:
        ValueError: `out_dims` does not fit the results.
    """
    if out_dims is None or isinstance(out_dims, int):
        return mapped(lambda x: _along(x, out_dims), results)
    if not isinstance(results, list | tuple) or len(out_dims) != len(results):
        raise ValueError(f"vmap: out_dims {out_dims} does not fit the results")
    moved = [_moved(result, axis) for result, axis in zip(results, out_dims, strict=True)]
    return type(results)(*moved) if hasattr(results, "_fields") else type(results)(moved)


def _along(x: Tensor, axis: int | None) -> Tensor:
    if axis is None:
        return x[0]
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"vmap: out_dims has {axis} for a result of {x.ndim - 1} axes")
    order = list(range(1, x.ndim))
    order.insert(axis % x.ndim, 0)
    return Tensor(transposed(EMITTER, x.value, order)) if axis % x.ndim else x
