"""Gradients of values that were changed in place since they were read, or made: PyTorch's, or its refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vkml
from tests.tensors.operation_cases import Case
from tests.tensors.overwriting import HOW, Change, all_cases, drawn, flat
from vkml import nn
from vkml.errors import ChangedInPlace, InvalidArgument
from vkml.nn import functional as F

torch = pytest.importorskip("torch")
TIMES = 2
REFUSED = "modified by an inplace operation"

DIFFERENT = {
    "pow": "of two tensors PyTorch keeps the result also where only the base tracks",
    "median": "of all elements PyTorch keeps them and the median, to find its place, which is known here",
    "nanmedian": "likewise",
    "tensordot": "whether PyTorch keeps arguments or copies hangs on how they lie; here they are copies",
    "kron": "PyTorch's gradient is that of the changed elements, without a word",
    "linalg.vector_norm": "of order 0 it has no gradient here, in PyTorch one of zeros",
    "nextafter": "PyTorch's gradient is of its first step alone",
    "broadcast_tensors": "parts of repeated elements cannot be written here",
    "meshgrid": "likewise",
}
"""By operation, why what is refused is not the same."""


def _compared(case: Case, seed: int) -> Iterator[tuple[Change, Any, Any]]:
    """What may be changed in a call, and what becomes of PyTorch's gradients, and of these."""
    call = drawn(case, seed)
    if call is None or not all(np.isfinite(one).all() for one in _arrays(call.arguments)):
        return
    for change in call.changes(torch):
        if seed and change.how != HOW[0]:
            continue
        try:
            expected = call.outcome(torch, change)
        except RuntimeError:
            continue  # it has no gradient, or what it makes cannot be written
        yield change, expected, call.outcome(vkml, change)


def _arrays(arguments: Any) -> list[Any]:
    return [one for one in flat(arguments) if isinstance(one, np.ndarray) and one.dtype.kind == "f"]


def _agree(expected: list[Any] | str, found: list[Any] | str) -> bool:
    if isinstance(expected, str) or isinstance(found, str):
        return expected == found
    pairs = zip(expected or found, found or expected, strict=True)
    zero = np.zeros(())
    return all(
        np.allclose(zero if a is None else a, zero if b is None else b, rtol=1e-3, atol=1e-4)
        for a, b in pairs
    )


CASES = all_cases()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(12))
def test_like_torch(part: int) -> None:
    """Each argument and each result, changed itself, by a view, detached or unseen by gradients."""
    refused = compared = 0
    for case in CASES[part::12]:
        if case[0] in DIFFERENT:
            continue
        for seed in range(TIMES):
            for change, expected, found in _compared(case, seed):
                compared += 1
                refused += expected == "refused"
                assert _agree(expected, found), (
                    f"{case[0]} {case[2]}, seed {seed}: {change}: PyTorch {expected}, here {found}"
                )
    assert refused > 30 and compared - refused > 100


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_are_there(name: str) -> None:
    """A line of the table that is needed no more is to go."""

    def differs(case: Case, seed: int) -> bool:
        try:
            return any(not _agree(expected, found) for _, expected, found in _compared(case, seed))
        except InvalidArgument as error:
            return "more than one element" in str(error)

    assert any(differs(case, seed) for case in CASES if case[0] == name for seed in range(TIMES))


def leaf(*numbers: float) -> vkml.Tensor:
    return vkml.tensor([float(number) for number in numbers], requires_grad=True)


def test_the_error_names_operator_and_line() -> None:
    x = leaf(1, 2)
    h = x * 1
    y = h.sin()
    h.zero_()
    with pytest.raises(
        ChangedInPlace,
        match=r"one of the variables needed for gradient computation has been modified by an inplace "
        r"operation at .*test_changed_in_place\.py:\d+ in test_the_error_.*: h\.zero_\(\): the gradient "
        r"of Sin needs its input 0, float\[2\], as it was before \(Sin was applied at .*y = h\.sin\(\)\)",
    ):
        y.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.add_(1),
        lambda h: h.copy_(vkml.zeros(2)),
        lambda h: h.__setitem__(0, 5.0),
        lambda h: h.__setitem__(h > 0, 5.0),
        lambda h: h.uniform_(),
        lambda h: h.view(2, 1).zero_(),
        lambda h: h[1:].mul_(2),
        lambda h: h.masked_fill_(h > 1, 0.0),
        lambda h: F.relu(h, inplace=True),
        lambda h: F.dropout(h, 0.5, True, True),
        lambda h: h.detach().zero_(),
        lambda h: h.index_put_((vkml.tensor([0]),), vkml.tensor(1.0)),
    ],
)
def test_ways_to_change(change: Callable[[vkml.Tensor], Any]) -> None:
    for read in (lambda h: h * h, lambda h: h[:1] * 2 * h[1:], lambda h: h.view(1, 2) @ h.view(2, 1)):
        x = leaf(1, 2)
        h = x * 1
        y = read(h)
        change(h)
        with pytest.raises(ChangedInPlace):
            y.sum().backward()


def test_what_was_read_afterwards_is_as_it_was_read() -> None:
    x = leaf(1, 2)
    h = x * 1
    for _ in range(3):
        h.mul_(x)
    (h * h).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8, 8 * 2**7]


def test_a_tensor_of_its_own_may_be_changed() -> None:
    x = leaf(1, 2)
    h = x * 1
    y = h * h
    h.clone().zero_()
    h.detach().clone().zero_()
    (h + 0).zero_()
    h.data.zero_()  # of which gradients know nothing
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 4]


def test_a_value_that_two_tensors_have() -> None:
    """One of them would have memory of its own: it is changed, the other is not."""
    x = leaf(1, 2)
    h = x * 1
    k = vkml.Tensor(h.value)
    y = h * h
    k.zero_()
    y.sum().backward(retain_graph=True)
    h.zero_()
    with pytest.raises(ChangedInPlace):
        y.sum().backward()


def test_data_has_a_version_of_its_own() -> None:
    x, w = vkml.tensor([1.0, 2.0]), leaf(3, 4)
    d = x.data
    y = d * w
    x.zero_()
    y.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [1, 2]
    y = d * w
    d.fill_(2)
    with pytest.raises(ChangedInPlace):
        y.sum().backward()


def test_what_needs_no_gradient_is_needed_for_one() -> None:
    """A buffer of data that is filled again between forward and backward."""
    x, w = vkml.tensor([1.0, 2.0]), leaf(3, 4)
    y = (x * w).sum()
    x.copy_(vkml.zeros(2))
    with pytest.raises(ChangedInPlace):
        y.backward()


def test_unseen_changes_keep_the_history() -> None:
    x = leaf(1, 2)
    h = x * 3
    with vkml.no_grad():
        h.add_(1)
        h[0] = 10.0
    assert h.requires_grad and h.tolist() == [10, 7]
    (h * h).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [60, 42]


class Residual(nn.Module):
    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.relu, self.dropout = nn.ReLU(inplace=inplace), nn.Dropout(0.3, inplace=inplace)
        self.inplace = inplace

    def forward(self, x: vkml.Tensor) -> vkml.Tensor:
        out = self.dropout(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        if self.inplace:
            out += x
        else:
            out = out + x
        return self.relu(out)


def test_residual_networks_in_place(device_name: str) -> None:
    """Steps, captured and not, are those of the network that changes nothing in place."""
    found = []
    for inplace, is_captured in ((False, False), (True, False), (True, True)):
        vkml.manual_seed(5)
        model = nn.Sequential(Residual(inplace), Residual(inplace)).to(device_name)
        optimizer = vkml.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = vkml.rand(2, 3, 5, 5, device=device_name)

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = vkml.jit(step) if is_captured else step
        found.append([run(x).item() for _ in range(4)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-4)


def test_parameters_changed_between_two_passes_of_a_graph() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = vkml.optim.SGD(model.parameters(), lr=0.1)
    loss = model(vkml.ones(4, 2)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(ChangedInPlace):
        loss.backward()
    # The last layer's bias, which nothing keeps, may change.
    loss = model(vkml.ones(4, 2)).sum()
    with vkml.no_grad():
        model[2].bias.zero_()
    loss.backward()


def test_a_captured_step_changes_parameters_too() -> None:
    layer = nn.Linear(2, 1)
    optimizer = vkml.optim.SGD(layer.parameters(), lr=0.1)

    @vkml.jit
    def step(x: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss = (layer(x) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss

    x = vkml.ones(4, 2)
    given = leaf(1, 2)
    for _ in range(4):
        # What was captured, and undone, has left no traces.
        layer(given).sum().backward()
        loss = layer(given).sum()
        step(x)
        with pytest.raises(ChangedInPlace):
            loss.backward()


def test_an_illegal_step_is_refused_where_it_is_captured() -> None:
    w = leaf(1, 2)

    @vkml.jit
    def step(x: vkml.Tensor, flag: bool) -> vkml.Tensor:
        h = w * x
        y = h * h
        if flag:
            h.zero_()
        y.sum().backward()
        found = w.grad
        w.grad = None
        assert found is not None
        return found

    for _ in range(3):
        assert step(vkml.ones(2), False).tolist() == [2, 4]
    for _ in range(3):
        with pytest.raises(RuntimeError, match=REFUSED):
            step(vkml.ones(2), True)
    assert step(vkml.ones(2), False).tolist() == [2, 4]


def test_of_higher_order() -> None:
    x = leaf(1, 2)
    h = x * 1
    [first] = vkml.autograd.grad((h**3).sum(), x, create_graph=True)
    assert first is not None
    h.mul_(2)
    with pytest.raises(ChangedInPlace):
        vkml.autograd.grad(first.sum(), x)

    def changes(v: vkml.Tensor) -> vkml.Tensor:
        a = v * 1
        b = a * a
        a.add_(1)
        return b.sum()

    with pytest.raises(ChangedInPlace):
        vkml.func.grad(changes)(vkml.ones(2))


def test_only_what_gradients_flow_through_is_looked_at() -> None:
    x, w = leaf(1, 2), leaf(3, 4)
    h, k = x * 1, w * 1
    y = h.sin() + k.cos()
    h.zero_()
    [found] = vkml.autograd.grad(y.sum(), w, retain_graph=True)
    assert found is not None
    with pytest.raises(ChangedInPlace):
        vkml.autograd.grad(y.sum(), x)


def test_the_second_time_a_structure_is_differentiated() -> None:
    """What has been derived once is checked, too."""
    for is_changed in (False, True, False, True):
        x = leaf(1, 2)
        h = x * 1
        y = (h.exp() * 2).sum()
        z = h.cos()
        (h * 1).zero_()
        if is_changed:
            h.zero_()
            with pytest.raises(ChangedInPlace):
                (y + z.sum()).backward()
        else:
            (y + z.sum()).backward()


def test_batches_of_statistics() -> None:
    """Running statistics of two passes, and a moving average of parameters, are in no gradient's way."""
    model, average = nn.BatchNorm1d(3), vkml.zeros(3)
    first, second = model(vkml.rand(4, 3)), model(vkml.rand(4, 3))
    with vkml.no_grad():
        average.mul_(0.9).add_(model.weight, alpha=0.1)
    (first * second).sum().backward()
    assert model.weight.grad is not None
    model.eval()
    given = vkml.rand(4, 3, requires_grad=True)
    made = model(given)
    model.running_var.mul_(2)
    with pytest.raises(ChangedInPlace):
        made.sum().backward()


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_statistics_that_move_behind_a_use_of_them(norm: Callable[..., nn.Module]) -> None:
    """A pass in training after one in evaluation is no change that gradients of that one mind."""
    model = norm(3, affine=False, track_running_stats=True).eval()
    given = vkml.rand(4, 3, 5, requires_grad=True)
    made = model(given)
    model.train()
    model(vkml.rand(4, 3, 5) * 7)
    made.sum().backward()
    assert given.grad is not None
    np.testing.assert_allclose(given.grad.numpy(), np.full((4, 3, 5), (1 + 1e-5) ** -0.5), rtol=1e-6)


def test_weights_divided_by_their_norm_are_used_twice() -> None:
    """Each use of a weight moves the estimate of its singular vectors; those of the one before stay."""
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2, bias=False), n_power_iterations=50)
    given = vkml.rand(4, 3)
    weight = layer.parametrizations.weight.original

    def gradient(*factors: float) -> np.ndarray:
        weight.grad = None
        sum((layer(given * factor) for factor in factors), vkml.zeros(4, 2)).square().sum().backward()
        assert weight.grad is not None
        return weight.grad.numpy()

    np.testing.assert_allclose(gradient(1, 2), gradient(3), rtol=1e-3, atol=1e-5)


def test_recurrent_loops() -> None:
    cell, state = nn.GRUCell(2, 3), vkml.zeros(1, 3)
    total = vkml.zeros(())
    for _ in range(3):
        state = cell(vkml.ones(1, 2), state)
        total += state.sum()
    total.backward()
    assert cell.weight_hh.grad is not None
    # Rows of one tensor: the next one's change is a change of all.
    rows = vkml.zeros(3, 2)
    x = leaf(1, 2)
    rows[0] = x
    rows[1] = rows[0] * rows[0]
    rows[2] = rows[1] + 1
    with pytest.raises(ChangedInPlace):
        rows[2].sum().backward()


def test_a_result_whose_value_is_gone() -> None:
    x = leaf(3, 2)
    values, places = (x * 1).max(0)
    places.zero_()
    with pytest.raises(ChangedInPlace):
        values.backward()


def test_an_operand_that_is_converted_on_the_way() -> None:
    x, w = vkml.tensor([1.0, 2.0], dtype=vkml.float64), leaf(3, 4)
    y = (w * x).sum()
    x.zero_()
    with pytest.raises(ChangedInPlace):
        y.backward()
    made = w.to(vkml.float64)  # a copy
    made.detach().zero_()
    w.sin().sum().backward()
