"""Generators: streams of random words, whose state is a small tensor of a device."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vkml.forks import renew_in_child
from vkml.ir import dtypes
from vkml.ir.gradients import reshaped, sliced
from vkml.ops.philox import STATE_WORDS, blocks_of
from vkml.ops.random_state import set_seed
from vkml.tensors.backward import compute_later
from vkml.tensors.capture import uncaptured
from vkml.tensors.creation import _of_array
from vkml.tensors.tensor import Tensor, device_name
from vkml.tracing import EMITTER, Traced, apply, apply_all, constant, number
from vkml.tracing.value import tracking

DEFAULT_SEED = 67280421310721
"""With which generators begin, PyTorch's choice."""
_MOST_BLOCKS = 1 << 32
_KEYS_APART = 0x9E3779B9
"""Between the upper halves of streams' keys: 2^32 divided by the golden ratio."""
_lock = threading.RLock()


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


renew_in_child(_renew)


class Generator:
    """A stream of random numbers, of the same bits for the same seed on every device and machine.

    Its state is a tensor of its device, which drawing advances in place; `vkml.jit` captures that, so that
    every run of what was captured draws anew. The words are those of Philox4x32-10: the seed is the key, and
    each draw takes the blocks of four words that follow those of the last.

    Args:
        device: on which it draws.

    Example:
        >>> import vkml
        >>> generator = vkml.Generator().manual_seed(3)
        >>> first = vkml.rand(2, generator=generator)
        >>> bool((vkml.rand(2, generator=generator.manual_seed(3)) == first).all())
        True
    """

    def __init__(self, device: Any = "cpu") -> None:
        with uncaptured():
            self._state = Tensor(_begun(DEFAULT_SEED, device_name(device)))
        self._seed = DEFAULT_SEED

    @property
    def device(self) -> str:
        """The name of the device on which it draws."""
        return self._state.device

    def manual_seed(self, seed: int) -> Generator:
        """Begins anew with a seed of 64 bits; returns it.

        Args:
            seed: from -2⁶³ to 2⁶⁴ - 1.

        Raises:
            RuntimeError: it has more than 64 bits.
        """
        if not -(1 << 63) <= seed < 1 << 64:
            raise RuntimeError(f"a seed has 64 bits, {seed} has more")
        self._seed = seed % (1 << 64)
        with _lock:
            self._state._write(_begun(self._seed, self.device))
        return self

    def beginning(self) -> Traced:
        """The state that it began with."""
        with uncaptured():
            return _begun(self._seed, self.device)

    def seed(self) -> int:
        """Begins anew with a seed of the system's own randomness, and returns that."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little"))
        return self._seed

    def initial_seed(self) -> int:
        """The seed that it began with."""
        return self._seed

    def get_state(self) -> Tensor:
        """What `set_state` takes to go on from here: bytes, on the CPU."""
        words = self._state._elements().astype("<u4")
        return Tensor(_of_array(np.frombuffer(words.tobytes(), np.uint8).copy(), "cpu").value)

    def set_state(self, state: Tensor) -> None:
        """Goes on from a state of a generator, be it of another device.

        Args:
            state: uint8, as `get_state` gives it.

        Raises:
            RuntimeError: it is none.
        """
        if state.dtype != dtypes.UINT8 or state.shape != (4 * STATE_WORDS,):
            raise RuntimeError(
                f"the state of a generator is {4 * STATE_WORDS} bytes, not {state.dtype.numpy_name}"
                f"{list(state.shape)}"
            )
        words = np.frombuffer(state._elements().tobytes(), "<u4").astype(np.uint32)
        self._seed = int(words[0]) | int(words[1]) << 32
        with _lock:
            self._state._write(_of_array(words, self.device).value)

    def clone_state(self) -> Generator:
        """Another generator that goes on from the same state."""
        made = Generator(self.device)
        made.set_state(self.get_state())
        return made

    def draw(self, words: int) -> Traced:
        """The next random words: uint32, of one axis, on its device.

        Args:
            words: how many.
        """
        if _stream.drawers:
            *others, drawer = _stream.drawers
            before, _stream.drawers = _stream.drawers, tuple(others)
            try:
                return drawer(self, words)
            finally:
                _stream.drawers = before
        with _lock, tracking(False):
            state, skip = _base(self._state.value)
            blocks = blocks_of(words)
            if skip + blocks >= _MOST_BLOCKS:
                state, skip = self._state.value, 0
            parts = apply_all(
                "Philox", [_of_stream(state), number(skip, dtypes.UINT32)], 4, domain="vkml", blocks=blocks
            )
            after = apply("PhiloxAdvance", state, number(skip + blocks, dtypes.UINT32), domain="vkml")
            self._state._write(after)
            compute_later(after)
            joined = apply("Concat", *(reshaped(EMITTER, part, (blocks,)) for part in parts), axis=0)
            return sliced(EMITTER, joined, 0, 0, words)


def _base(state: Traced) -> tuple[Traced, int]:
    """The last state that is or will be computed, and the blocks drawn since.

    Draws between two computations go by one state: none waits for another, and one step advances it past all.
    """
    made = state.application
    if state.data is None and made is not None and made.node.op == "PhiloxAdvance":
        before, count = made.inputs
        assert before is not None and count is not None and count.data is not None
        return before, int(np.asarray(count.data))
    return state, 0


class _Stream(threading.local):
    number = 0
    drawers: tuple[Callable[[Generator, int], Traced], ...] = ()
    """Called, the last of them, in the place of draws."""


_stream = _Stream()


@contextlib.contextmanager
def drawing_from(stream: int) -> Iterator[None]:
    """Has this thread's generators draw from streams of their own: replicas of a model need other numbers.

    Args:
        stream: 0 for the generators' own.
    """
    before, _stream.number = _stream.number, stream
    try:
        yield
    finally:
        _stream.number = before


@contextlib.contextmanager
def drawing_by(draw: Callable[[Generator, int], Traced]) -> Iterator[None]:
    """Has something else give the words that this thread's generators are asked for.

    Args:
        draw: given a generator and the number of words; what it draws itself is drawn as outside of it.
    """
    before, _stream.drawers = _stream.drawers, (*_stream.drawers, draw)
    try:
        yield
    finally:
        _stream.drawers = before


def _of_stream(state: Traced) -> Traced:
    """The state from which the thread's stream draws: of another key."""
    if not _stream.number:
        return state
    words = [0, _stream.number * _KEYS_APART % (1 << 32), *[0] * (STATE_WORDS - 2)]
    return apply("Add", state, constant(np.array(words), dtypes.UINT32))


def _begun(seed: int, device: str) -> Traced:
    words = [seed & 0xFFFFFFFF, seed >> 32, *[0] * (STATE_WORDS - 2)]
    return _of_array(np.array(words, np.uint32), device).value


_defaults: dict[str, Generator] = {}
_seed = DEFAULT_SEED


def generator_of(device: Any = None, generator: Generator | None = None) -> Generator:
    """The generator that draws for a device: one that is given, or the device's own.

    Args:
        device: its name, or what has one; that of the given generator where left out, else the CPU.
        generator: None for the device's own.

    Raises:
        RuntimeError: the given one is of another device.
    """
    if generator is not None:
        if device is not None and device_name(device) != generator.device:
            raise RuntimeError(
                f"expected a generator of the device '{device_name(device)}', found one of "
                f"'{generator.device}'"
            )
        return generator
    name = "cpu" if device is None else device_name(device)
    found = _defaults.get(name)
    where = None if found is None else found._state._traced.device
    if found is None or (where is not None and where.is_closed):
        with _lock:
            found = Generator(name)
            # One device may be asked for by several names.
            found = _defaults[name] = _defaults.get(found.device, found) if where is None else found
            if found._seed != _seed:
                with uncaptured():
                    found.manual_seed(_seed)
            _defaults[found.device] = found
    return found


def default_generators() -> set[Generator]:
    """Those of all devices that anything has been drawn on."""
    return set(_defaults.values())


def manual_seed(seed: int) -> Generator:
    """Begins the streams of all devices anew with a seed, that of models' operators among them.

    Args:
        seed: from -2⁶³ to 2⁶⁴ - 1.

    Returns:
        The CPU's generator.

    Raises:
        RuntimeError: it has more than 64 bits.
    """
    global _seed
    set_seed(seed)
    chosen = generator_of("cpu").manual_seed(seed)
    _seed = chosen.initial_seed()
    _forget_closed()
    for generator in set(_defaults.values()):
        generator.manual_seed(seed)
    return chosen


def _forget_closed() -> None:
    for name, generator in list(_defaults.items()):
        device = generator._state._traced.device
        if device is not None and device.is_closed:
            del _defaults[name]


def seed() -> int:
    """Begins the streams of all devices anew with a seed of the system's own randomness; returns that."""
    chosen = int.from_bytes(os.urandom(8), "little")
    manual_seed(chosen)
    return chosen


def initial_seed() -> int:
    """The seed that the stream of the CPU began with."""
    return generator_of("cpu").initial_seed()


default_generator = generator_of("cpu")
"""The stream of the CPU."""


def get_rng_state(device: Any = "cpu") -> Tensor:
    """The state of a device's stream; see `Generator.get_state`.

    Args:
        device: its name.
    """
    return generator_of(device).get_state()


def set_rng_state(new_state: Tensor, device: Any = "cpu") -> None:
    """Has a device's stream go on from a state; see `Generator.set_state`.

    Args:
        new_state: uint8, as `get_rng_state` gives it.
        device: its name.

    Raises:
        RuntimeError: it is no state.
    """
    generator_of(device).set_state(new_state)


@contextlib.contextmanager
def fork_rng(devices: Any = ("cpu",)) -> Iterator[None]:
    """A context after which the streams of devices go on from where they were before it.

    Args:
        devices: their names.
    """
    before = [(device, get_rng_state(device)) for device in devices]
    try:
        yield
    finally:
        for device, state in before:
            set_rng_state(state, device)
