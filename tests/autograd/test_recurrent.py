"""Gradients of LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check
from tests.ops.recurrent_cases import STATES, recurrent_case

OPERATORS = ["LSTM", "GRU", "RNN"]


def check_case(
    op: str, device: str, seed: int = 0, *, more: dict[str, Any] | None = None, **case: Any
) -> Any:
    generator = np.random.default_rng([seed, len(op)])
    sizes = {"steps": 3, "batch": 2, "size": 3, "hidden": 2, **case}
    found = recurrent_case(generator, op, **sizes).doubled()
    return check(
        op, found.inputs, found.attributes, outputs=1 + STATES[op], device=device, seed=seed, **(more or {})
    )


@pytest.mark.parametrize("op", OPERATORS)
def test_layers(op: str, device_name: str) -> None:
    check_case(op, device_name)


@pytest.mark.parametrize("op", OPERATORS)
def test_both_directions_and_lengths(op: str, device_name: str) -> None:
    check_case(op, device_name, direction="bidirectional", lengths=[3, 1], more={"second_order": False})


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_sequences_of_no_steps_begin_with_zeros(op: str, direction: str) -> None:
    gradients = check_case(op, "cpu", direction=direction, lengths=[0, 2], more={"second_order": False})
    assert not gradients[4][0, 0].any()
    assert gradients[4][0, 1].all()


@pytest.mark.parametrize("op", OPERATORS)
def test_batches_first(op: str, device_name: str) -> None:
    check_case(op, device_name, layout=1, direction="reverse", more={"second_order": False})


@pytest.mark.parametrize("op", OPERATORS)
def test_without_bias_and_states(op: str) -> None:
    check_case(op, "cpu", has_bias=False, has_initial=False, direction=None)


@pytest.mark.parametrize("op", OPERATORS)
def test_one_step_and_none(op: str) -> None:
    check_case(op, "cpu", steps=1)
    check_case(op, "cpu", steps=0, more={"second_order": False})
    check_case(op, "cpu", steps=0, layout=1, lengths=[0, 3], more={"second_order": False})


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("counted", [[0], [1]])
def test_outputs_that_nothing_depends_on(op: str, counted: list[int]) -> None:
    check_case(
        op, "cpu", direction="bidirectional", lengths=[2, 3], more={"counted": counted, "second_order": False}
    )


def test_only_the_memory_counts() -> None:
    check_case("LSTM", "cpu", more={"counted": [2]})


def test_peepholes(device_name: str) -> None:
    check_case("LSTM", device_name, has_peepholes=True, direction="bidirectional", lengths=[3, 2],
               more={"second_order": False})  # fmt: skip
    check_case("LSTM", "cpu", has_peepholes=True)


def test_input_and_forget_gate_are_one(device_name: str) -> None:
    gradients = check_case("LSTM", device_name, has_peepholes=True, input_forget=1)
    assert not gradients[1][0, 4:6].any()  # of the forget gate, which there is not


def test_linear_before_reset(device_name: str) -> None:
    check_case("GRU", device_name, linear_before_reset=1)
    check_case("GRU", "cpu", linear_before_reset=1, has_bias=False)
    check_case("GRU", device_name, linear_before_reset=1, direction="bidirectional", lengths=[1, 3],
               more={"second_order": False})  # fmt: skip


def test_functions_with_numbers(device_name: str) -> None:
    check_case(
        "RNN", device_name, activations=("ScaledTanh",), activation_alpha=(0.8,), activation_beta=(1.5,)
    )
    check_case("GRU", "cpu", activations=("HardSigmoid", "Softsign"), activation_alpha=(0.3,),
               activation_beta=(0.4,), more={"second_order": False})  # fmt: skip
    check_case("LSTM", "cpu", direction="bidirectional",
               activations=("Sigmoid", "Softplus", "Elu", "HardSigmoid", "Affine", "Tanh"),
               activation_alpha=(0.7, 0.3, 0.9), activation_beta=(0.45, 0.1),
               more={"second_order": False})  # fmt: skip


@pytest.mark.parametrize("op", OPERATORS)
def test_clipped(op: str, device_name: str) -> None:
    gradients = check_case(op, device_name, seed=3, clip=0.4, more={"second_order": False})
    free = check_case(op, "cpu", seed=3, more={"second_order": False})
    assert (gradients[1] != free[1]).any()


@pytest.mark.parametrize("dtype", [np.float16])
def test_half_floats(dtype: Any, device_name: str) -> None:
    check_case("LSTM", device_name, more={"dtype": dtype, "second_order": False})


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_torch(op: str, direction: str) -> None:
    """Torch's layers: the gates in another order, GRU with its linear map before the reset."""
    torch = pytest.importorskip("torch")
    order = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}[op]

    def layer(x: Any, w: Any, r: Any, b: Any, *states: Any) -> Any:
        hidden, directions = r.shape[2], r.shape[0]

        def gates(rows: Any) -> Any:
            parts = rows.split(hidden)
            return torch.cat([parts[at] for at in order])

        module = getattr(torch.nn, op)(x.shape[2], hidden, bidirectional=directions == 2, dtype=torch.float64)
        flat = {}
        for at, suffix in enumerate(["", "_reverse"][:directions]):
            first, second = b[at].chunk(2)
            named = {"weight_ih": w[at], "weight_hh": r[at], "bias_ih": first, "bias_hh": second}
            flat |= {f"{name}_l0{suffix}": gates(rows) for name, rows in named.items()}
        initial = states if op == "LSTM" else states[0]
        y, last = torch.func.functional_call(module, flat, (x, initial))
        whole = y.reshape(*y.shape[:2], directions, hidden).transpose(1, 2)
        return [whole, *(last if op == "LSTM" else [last])]

    more = {"torch": layer, "differences": False, "second_order": False}
    given = {"linear_before_reset": 1} if op == "GRU" else {}
    check_case(op, "cpu", steps=5, batch=3, size=4, hidden=3, direction=direction, more=more, **given)
