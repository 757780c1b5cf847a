"""Times models of one operator on a GPU, with values that stay there, against what bounds them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

import vkml
from benchmarks.launching import Burner, Timing, time_chain
from benchmarks.matrix_units.ceilings import copied_bytes, unit_operations
from benchmarks.micro.cases import (
    CONSTANT_SEED,
    HEAD_SIZE,
    HEADS,
    Case,
    block,
    numbers,
    numbers_at,
    product,
)
from vkml.engine.device_array import DeviceArray
from vkml.engine.devices import fragments_of, open_device
from vkml.engine.programs import VulkanBound
from vkml.errors import Error
from vkml.ir import dtypes
from vkml.ir.graph import Value
from vkml.onnx import save_graph
from vkml.vulkan import Device, DeviceInfo, find_device

CHAIN_SECONDS = 0.008
SAMPLES = 3
AT_ONCE = 8
"""Cases that are made ready side by side."""
_SETTLING = 4
"""Calls of a captured function until it is captured and compiled, and reading its results, too."""
_CHECKED = 16
"""Rows and columns of a product where results are compared with float64."""
_WARM_SIDE = 2048


class NotMeasured(Exception):
    """The device does not run a case by itself."""


@dataclass(frozen=True)
class Found:
    """What was measured of one case."""

    family: str
    label: str
    seconds: float = 0.0
    operations: float = 0.0
    """0 where memory bounds it."""
    bytes: int = 0
    """Of operands and results, each moved once."""
    rate: float = 0.0
    """Operations a second, or bytes where memory bounds it."""
    ceiling: float | None = None
    """The highest rate that the device reaches; None where that is not known."""
    error: float | None = None
    """Of a product, against float64: relative, in the L2 norm."""
    kernels: tuple[str, ...] = ()
    peer_seconds: float | None = None
    """PyTorch's, where it was asked."""
    problem: str = ""
    """Why it was not measured."""

    @property
    def share(self) -> float | None:
        """Of the ceiling."""
        return self.rate / self.ceiling if self.ceiling and self.rate else None


class Bench:
    """A device with its clocks kept up, and what it can do at the most."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.info: DeviceInfo = find_device(device, True)
        is_gpu = not self.info.is_software
        side = _WARM_SIDE if is_gpu else 16
        self._warm = _Loaded(product(side, side, dtypes.FLOAT32, is_constant=False)(), device, "highest")
        on = self._warm.bound.on
        self.burner = Burner(on, self._warm.record, self._warm.close) if is_gpu else None
        self.timing = Timing(CHAIN_SECONDS if is_gpu else 1e-6, SAMPLES if is_gpu else 1, self.burner)
        scale = 1.0 if is_gpu else 1e-3
        self.bytes = copied_bytes(on, self.burner, scale)
        self.operations: dict[str, float] = {}
        for element, sums in (("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32")):
            fragments = fragments_of(self.info, element, sums)
            if fragments:
                self.operations[element] = unit_operations(on, fragments[0], self.burner, scale)

    def close(self) -> None:
        """Frees what it keeps on the device."""
        self._warm.close()

    def measure(self, cases: Sequence[Case], until: float) -> Iterator[tuple[Case, Found]]:
        """Times cases, each as soon as it is asked for.

        Args:
            cases: in order; a few at a time are made ready, side by side, while nothing is timed.
            until: of `time.perf_counter`, when no more are begun.
        """
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for first in range(0, len(cases), AT_ONCE):
                if time.perf_counter() > until:
                    for case in cases[first:]:
                        yield case, Found(case.family, case.label, problem="no time was left")
                    return
                some = cases[first : first + AT_ONCE]
                ready = list(pool.map(self._prepared, some))
                if self.burner is not None:
                    self.burner.burn(0.5)  # clocks have fallen while kernels were compiled
                for case, loaded in zip(some, ready, strict=True):
                    if isinstance(loaded, Exception):
                        name = type(loaded).__name__
                        yield case, Found(case.family, case.label, problem=f"{name}: {loaded}")
                        continue
                    try:
                        found = self._timed(case, loaded)
                    finally:
                        loaded.close()
                    yield case, found

    def _prepared(self, case: Case) -> _Loaded | Exception:
        """A case that has run once, or why it cannot."""
        try:
            return _Loaded(case.build(), self.device, case.precision)
        except (Error, MemoryError, NotMeasured) as problem:
            return problem

    def _timed(self, case: Case, loaded: _Loaded) -> Found:
        seconds = time_chain(loaded.bound.on, lambda turn: [loaded.record], self.timing)
        ceiling: float | None = self.bytes
        if case.operations:
            units = self.operations.get(case.units)
            ceiling = units / case.products if units else None
        return Found(
            case.family,
            case.label,
            seconds,
            case.operations,
            loaded.bytes,
            (case.operations or loaded.bytes) / seconds if seconds else 0.0,
            ceiling,
            loaded.error() if case.is_product else None,
            tuple(each.kernel.label for each in loaded.bound.program.dispatches),
        )

    def measure_attention_gradients(self, length: int) -> Found:
        """Times the way back of attention: of a captured function both ways, less the way there."""
        shape = (1, HEADS, length, HEAD_SIZE)
        label = f"{HEADS} heads × {length} × {HEAD_SIZE}, fp16, backward"
        attend = vkml.nn.functional.scaled_dot_product_attention
        values = [numbers(shape, dtypes.FLOAT16, seed) for seed in range(4)]
        q, k, v, cotangent = (vkml.tensor(each, device=self.device) for each in values)
        for each in (q, k, v):
            each.requires_grad_()

        # Behind the results a number of each, which is all that is read: a read is a submission.
        def forward() -> Any:
            with vkml.no_grad():
                result = attend(q, k, v)
                return result, result.flatten()[:1]

        def both() -> Any:
            found = vkml.autograd.grad(attend(q, k, v), (q, k, v), cotangent)
            firsts = [each.flatten()[:1] for each in found if each is not None]
            assert len(firsts) == len(found), "all three have a gradient"
            return *found, vkml.cat(firsts)

        precision = vkml.get_float32_matmul_precision()
        vkml.set_float32_matmul_precision("high")  # as forward is timed
        try:
            there, both_ways = (self._run_seconds(vkml.jit(each)) for each in (forward, both))
        except (Error, MemoryError) as problem:
            return Found("attention", label, problem=f"{type(problem).__name__}: {problem}")
        finally:
            vkml.set_float32_matmul_precision(precision)
        seconds = max(both_ways - there, 1e-9)
        operations = 10 * HEADS * length**2 * HEAD_SIZE
        # Queries, keys, values, the result's cotangent and three gradients.
        moved = 7 * values[0].nbytes
        ceiling = self.operations.get("float16")
        return Found("attention", label, seconds, operations, moved, operations / seconds, ceiling)

    def _run_seconds(self, run: Any) -> float:
        """Median seconds of a captured function, until the last of its results, a small one, is there.

        Clocks fall while a function is captured and its kernels are compiled, and take half a second to rise
        again: the first runs take up to six times as long.
        """
        taken: list[float] = []

        def once() -> None:
            started = time.perf_counter()
            run()[-1].numpy()
            taken.append(time.perf_counter() - started)

        for _ in range(_SETTLING):
            once()
        if self.burner is not None:
            self.burner.burn(0.5)
        taken.clear()
        until = time.perf_counter() + 0.5
        while len(taken) < 3 or (time.perf_counter() < until and len(taken) < 100):
            once()
        return statistics.median(taken)


class _Loaded:
    """A model whose inputs and results lie on the device."""

    def __init__(self, graph: Any, device: str, precision: str) -> None:
        model = save_graph(graph)
        assert model is not None
        self._graph = graph
        self._session = vkml.InferenceSession(model, devices=device, precision=precision)
        try:
            self._run(device)
        except BaseException:
            self.close()
            raise

    def _run(self, device: str) -> None:
        """Makes the values, runs once, and finds the program and where its values lie."""
        binding = self._session.io_binding()
        self._values = {
            value.name: vkml.OrtValue(_filled(open_device(find_device(device, True)), value, seed))
            for seed, value in enumerate(self._graph.inputs)
        }
        for name, value in self._values.items():
            binding.bind_ortvalue_input(name, value)
        outputs = [output.name for output in self._session.get_outputs()]
        for name in outputs:
            binding.bind_output(name, device)
        self._session.run_with_iobinding(binding)
        self._values |= dict(zip(outputs, binding.get_outputs(), strict=True))
        plans = self._session._runner.plans
        programs = [] if plans is None else [each for plan in plans.kept.values() for each in plan.programs]
        if len(programs) != 1 or not isinstance(programs[0], VulkanBound):
            raise NotMeasured("it is not one program of the device")
        self.bound: VulkanBound = programs[0]
        self.places = {name: value.value.address for name, value in self._values.items()}

    def record(self, recorder: Any) -> None:
        """Records its launches."""
        self.bound.record_levels(recorder, (), self.places)

    @property
    def bytes(self) -> int:
        """That inputs, constants and results have, each moved once."""
        moved: int = sum(
            value.value.dtype.bytes_for(math.prod(value.value.shape)) for value in self._values.values()
        )
        held: int = sum(constant.type.bytes for constant in self._graph.constants.values())
        return moved + held

    def error(self) -> float:
        """Of a product, where some rows meet some columns."""
        (rows, inner), dtype = self._graph.inputs[0].tensor.dims, self._graph.inputs[0].tensor.dtype
        [output] = self._session.get_outputs()
        result = self._values[output.name].value
        random = np.random.default_rng(2)
        down, across = (
            np.sort(random.choice(size, min(size, _CHECKED), replace=False)) for size in (rows, inner)
        )
        every = np.arange(inner)
        a = numbers_at((rows, inner), dtype, 0, down, every)
        b = numbers_at((inner, inner), dtype, CONSTANT_SEED, every, across)
        exact = a @ b
        row_bytes = inner * result.dtype.itemsize
        found = np.stack(
            [
                result.device.download(result._memory, int(row) * row_bytes, row_bytes).view(
                    result.dtype.storage
                )[across]
                for row in down
            ]
        ).astype(np.float64)
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    def close(self) -> None:
        """Frees what it has on the device."""
        self._values = {}
        self._session.close()


def _filled(device: Device, value: Value, seed: int) -> DeviceArray:
    """A value on the device, of a block's numbers again and again: the host writes one block."""
    dims, dtype = value.tensor.dims, value.tensor.dtype
    made = DeviceArray(device, dtype, dims)
    numbers = block(dtype, math.prod(dims), seed)
    memory, size, done = made._memory, made.nbytes, numbers.nbytes
    device.upload(memory, 0, numbers)
    while done < size:
        step = min(done, size - done)
        device.copy(memory, 0, memory, done, step)
        done += step
    return made
