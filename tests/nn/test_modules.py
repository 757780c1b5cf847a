"""Modules: names, hooks, states, copies, blueprints, compilation."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import vkml
from vkml import nn


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.tail = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
        self.register_buffer("scale", vkml.ones(1))
        self.register_buffer("scratch", vkml.zeros(2), persistent=False)
        self.again = self.conv

    def forward(self, x: Any, shift: float = 0.0) -> Any:
        return self.tail(self.norm(self.conv(x))) * self.scale + shift


def test_names() -> None:
    block = _Block()
    assert [name for name, _ in block.named_parameters()] == [
        "conv.weight", "conv.bias", "norm.weight", "norm.bias", "tail.1.weight", "tail.1.bias",
    ]  # fmt: skip
    assert len(list(block.named_parameters(remove_duplicate=False))) == 8
    assert [name for name, _ in block.named_buffers(prefix="b")] == [
        "b.scale", "b.scratch", "b.norm.running_mean", "b.norm.running_var", "b.norm.num_batches_tracked",
    ]  # fmt: skip
    assert [name for name, _ in block.named_modules()] == ["", "conv", "norm", "tail", "tail.0", "tail.1"]
    assert [name for name, _ in block.named_children()] == ["conv", "norm", "tail"]
    state = list(block.state_dict(prefix="a."))
    assert "a.again.weight" in state and "a.scale" in state and "a.scratch" not in state
    assert block.get_submodule("tail.1") is block.tail[1] and block.get_submodule("") is block
    assert block.get_parameter("conv.bias") is block.conv.bias
    assert block.get_buffer("norm.running_var") is block.norm.running_var
    for act in (block.get_submodule, block.get_parameter, block.get_buffer):
        with pytest.raises(AttributeError, match="has no"):
            act("tail.7.weight")
    block.set_submodule("tail.0", nn.Tanh())
    assert isinstance(block.tail[0], nn.Tanh)
    assert {"conv", "scale", "training"} <= set(dir(block))


def test_names_against_torch() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = (
        f.ModuleDict(
            {"a": f.Sequential(f.Conv2d(1, 2, 3), f.BatchNorm2d(2)), "b": f.ModuleList([f.Linear(2, 3)])}
        )
        for f in (nn, torch.nn)
    )
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]


def test_registration() -> None:
    block = _Block()
    for act, kind in (
        (lambda: block.register_buffer("conv", vkml.ones(1)), KeyError),
        (lambda: block.register_buffer("a.b", vkml.ones(1)), KeyError),
        (lambda: block.register_buffer("a", np.ones(1)), TypeError),
        (lambda: block.register_parameter("", None), KeyError),
        (lambda: block.register_parameter("a", vkml.ones(1)), TypeError),
        (lambda: block.add_module("forward", nn.ReLU()), KeyError),
        (lambda: block.add_module("a", 3), TypeError),
        (lambda: setattr(block.conv, "weight", vkml.ones(1)), TypeError),
    ):  # fmt: skip
        with pytest.raises(kind):
            act()
    block.conv.bias = None
    assert "conv.bias" not in block.state_dict() and block.conv.bias is None
    block.register_buffer("scale", vkml.ones(1), persistent=False)
    assert "scale" not in block.state_dict()
    del block.norm
    assert not hasattr(block, "norm")


def test_hooks() -> None:
    layer = nn.Linear(2, 2)
    calls: list[str] = []
    x = vkml.ones(1, 2)
    plain = layer(x)
    first = layer.register_forward_pre_hook(lambda m, given: calls.append("pre") or (given[0] * 2,))
    layer.register_forward_pre_hook(
        lambda m, given, named: calls.append("named") or (given, named), prepend=True, with_kwargs=True
    )
    handle = layer.register_forward_hook(lambda m, given, made: calls.append("post") or made * 3)
    layer.register_forward_hook(lambda m, given, made: calls.append("first"), prepend=True)
    found = layer(x)
    assert calls == ["named", "pre", "first", "post"]
    bias = layer.bias.detach()
    np.testing.assert_allclose(
        found.detach().numpy(), (((plain.detach() - bias) * 2 + bias) * 3).numpy(), rtol=1e-5
    )
    first.remove()
    with handle:
        pass
    calls.clear()
    np.testing.assert_array_equal(layer(x).detach().numpy(), plain.detach().numpy())
    assert calls == ["named", "first"]
    layer.register_forward_hook(lambda m, given, made: calls.append(f"always {made}"), always_call=True)
    calls.clear()
    with pytest.raises(RuntimeError):
        layer(vkml.ones(1, 3))
    assert calls == ["named", "always None"]
    layer.register_forward_pre_hook(lambda m, given, named: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match="pair"):
        layer(x)


class _Two(nn.Module):
    def forward(self, x: Any, scale: float, y: Any) -> Any:
        return x * y * scale, x + y


def test_backward_hooks() -> None:
    """What hooks see, and what they change, as PyTorch's do."""
    torch = pytest.importorskip("torch")

    class Theirs(torch.nn.Module):
        forward = _Two.forward

    def run(f: Any, model: Any, starts_from: str) -> list[Any]:
        seen: list[Any] = []

        def note(*gradients: Any) -> None:
            seen.append([None if x is None else x.tolist() for part in gradients for x in part])

        model.register_full_backward_pre_hook(lambda m, out: note(out) or (out[0] * 2, out[1]))
        model.register_full_backward_hook(
            lambda m, given, out: note(given, out) or (given[0] * 3, None, given[2])
        )
        handle = model.register_full_backward_hook(lambda m, given, out: note(given))
        x, y = (f.tensor([one, 2.0], requires_grad=starts_from != "nothing") for one in (1.0, 5.0))
        z = f.tensor(4.0, requires_grad=True)
        given = (x * z, 2.0, y) if starts_from == "all" else (x, 2.0, y)
        one, other = model(*given)
        (one.sum() + (other * other).sum() * z).backward()
        seen.append([None if t.grad is None else t.grad.tolist() for t in (x, y, z)])
        handle.remove()
        model(*given)[0].sum()
        return seen

    for starts_from in ("all", "leaves"):
        assert run(vkml, _Two(), starts_from) == run(torch, Theirs(), starts_from)
    layer = nn.Linear(2, 2)
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda m, given, out: seen.append((given, out[0].tolist())))
    layer(vkml.ones(1, 2)).sum().backward()  # no gradient by the input: the hook is called all the same
    assert seen == [((None,), [[1, 1]])] and layer.weight.grad is not None
    layer.register_full_backward_hook(lambda m, given, out: (given[0], given[0]))
    with pytest.raises(RuntimeError, match="2 gradients instead of 1"):
        layer(vkml.ones(1, 2, requires_grad=True)).sum().backward()


def test_states() -> None:
    one, other = _Block(), _Block()
    found = other.load_state_dict(one.state_dict())
    assert found.missing_keys == [] and found.unexpected_keys == [] and "All keys" in repr(found)
    np.testing.assert_array_equal(other.conv.weight.detach().numpy(), one.conv.weight.detach().numpy())
    assert not one.state_dict()["conv.weight"].requires_grad
    assert one.state_dict(keep_vars=True)["conv.weight"] is one.conv.weight
    part = {"scale": np.full(1, 4, np.float32), "more": np.ones(1)}
    with pytest.raises(RuntimeError, match=r"missing: .*conv.weight.*not known: more"):
        other.load_state_dict(part)
    found = other.load_state_dict(part, strict=False)
    assert (
        found.unexpected_keys == ["more"] and "tail.1.bias" in found.missing_keys and other.scale.item() == 4
    )
    with pytest.raises(RuntimeError, match=r"scale: \[2\] instead of \[1\]"):
        other.load_state_dict({"scale": np.ones(2)}, strict=False)
    kept = other.conv.weight
    other.load_state_dict(
        {"conv.weight": vkml.ones(3, 2, 3, 3, dtype=vkml.float64)}, strict=False, assign=True
    )
    assert other.conv.weight is not kept and other.conv.weight.dtype == vkml.float64
    assert isinstance(other.conv.weight, nn.Parameter) and other.conv.weight.requires_grad


class _Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 3

    def get_extra_state(self) -> Any:
        return vkml.tensor(self.count)

    def set_extra_state(self, state: Any) -> None:
        self.count = int(state)


def test_extra_states() -> None:
    one, other = nn.Sequential(_Counted(), _Counted()), nn.Sequential(_Counted(), _Counted())
    one[1].count = 7
    state = one.state_dict()
    assert list(state) == ["0._extra_state", "1._extra_state"]
    other.load_state_dict(state)
    assert [module.count for module in other] == [3, 7]


def test_copies() -> None:
    block = _Block()
    twin = copy.deepcopy(block)
    assert twin.again is twin.conv and twin.conv is not block.conv
    with vkml.no_grad():
        twin.conv.weight.zero_()
        twin.scale.fill_(5)
    assert block.conv.weight.abs().sum().item() > 0 and block.scale.item() == 1
    assert all(isinstance(one, nn.Parameter) and one.requires_grad for one in twin.parameters())


def test_blueprints(device_name: str) -> None:
    """Layers larger than any memory, whose shapes are known; then small ones that come to life."""
    huge = nn.Linear(1 << 18, 1 << 18, device="meta")
    assert huge.weight.is_meta and huge(vkml.ones(2, 1 << 18, device="meta")).shape == (2, 1 << 18)
    layer = nn.Sequential(nn.Conv2d(2, 3, 3, device="meta"), nn.BatchNorm2d(3, device="meta"))
    with pytest.raises(NotImplementedError, match="to_empty"):
        layer.to(device_name)
    given = {name: np.ones(value.shape, value.dtype.storage) for name, value in layer.state_dict().items()}
    with pytest.raises(RuntimeError, match="to_empty"):
        layer.load_state_dict(given)
    layer.to_empty(device=device_name)
    assert {value.device for value in layer.state_dict().values()} == {device_name}
    assert all(parameter.requires_grad for parameter in layer.parameters())
    layer.load_state_dict(given)
    assert layer.eval()(vkml.ones(1, 2, 3, 3, device=device_name)).shape == (1, 3, 1, 1)
    other = nn.Linear(2, 3, device="meta")
    other.load_state_dict({"weight": vkml.ones(3, 2), "bias": vkml.zeros(3)}, assign=True)
    assert other(vkml.ones(1, 2)).tolist() == [[2, 2, 2]]


def test_types() -> None:
    block = _Block().half()
    assert {value.dtype for value in block.parameters()} == {vkml.float16}
    assert block.norm.num_batches_tracked.dtype == vkml.int64
    assert block.double().conv.weight.dtype == vkml.float64
    assert block.type(vkml.bfloat16).scale.dtype == vkml.bfloat16


def test_compiled(device_name: str) -> None:
    """What is compiled computes the same, in training and evaluation, and lets gradients flow."""
    layer = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).to(device_name)
    twin = copy.deepcopy(layer)
    calls: list[int] = []
    layer[2].register_forward_hook(lambda *_: calls.append(1))
    layer.compile()
    x = vkml.randn(5, 3).to(device_name)
    with vkml.no_grad():
        for is_on in (True, False, True, False, True, False):
            np.testing.assert_allclose(
                layer.train(is_on)(x).numpy(), twin.train(is_on)(x).numpy(), rtol=1e-5, atol=1e-6
            )
    assert len(calls) == 4  # later calls run what was captured
    np.testing.assert_allclose(
        layer[1].running_mean.numpy(), twin[1].running_mean.numpy(), rtol=1e-5, atol=1e-6
    )
    layer.train()(x).sum().backward()
    assert layer[0].weight.grad is not None


def test_lists_and_dictionaries_of_parameters() -> None:
    torch = pytest.importorskip("torch")
    ours = nn.ParameterList([nn.Parameter(vkml.ones(2)), vkml.zeros(3)])
    theirs = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(3))])
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["0", "1"]
    ours.append(nn.Parameter(vkml.ones(1))).extend([nn.Parameter(vkml.ones(4))])
    assert len(ours) == 4 and ours[-1].shape == (4,) and [x.shape[0] for x in ours[1:3]] == [3, 1]
    ours[0] = nn.Parameter(vkml.ones(5))
    assert next(iter(ours)).shape == (5,) and len(list(ours.parameters())) == 4
    named = nn.ParameterDict({"a": nn.Parameter(vkml.ones(2))})
    named["b"] = vkml.zeros(3)
    assert list(named.state_dict()) == ["a", "b"] and isinstance(named["b"], nn.Parameter) and "a" in named
    del named["a"]
    assert list(named) == ["b"] and [key for key, _ in named.items()] == ["b"] and len(named) == 1
    named.update(nn.ParameterDict({"c": vkml.ones(1)}))
    held = named.pop("b")
    assert isinstance(held, nn.Parameter) and list(named.keys()) == ["c"]
    assert [value.shape for value in named.values()] == [(1,)]
    ours += [held]
    assert len(ours) == 5 and ours[4] is held


@pytest.mark.parametrize("package", ["vkml", "torch"])
def test_one_module_several_times_in_a_container(package: str) -> None:
    layers: Any = nn if package == "vkml" else pytest.importorskip("torch").nn
    tensor = vkml.tensor if package == "vkml" else pytest.importorskip("torch").tensor
    twice = layers.Linear(1, 1, bias=False)
    twice.load_state_dict({"weight": tensor([[3.0]])})
    rows = layers.Sequential(twice, layers.Identity(), twice)
    assert float(rows(tensor([2.0])).item()) == 18.0, "each is run where it stands"
    assert len(list(rows)) == 3 and rows[2] is twice and len(list(rows.children())) == 2
    assert repr(rows).count("Linear") == 2
    listed = layers.ModuleList([twice, twice])
    assert len(listed) == len(list(listed)) == 2 and listed[1] is twice
    named = layers.ModuleDict({"a": twice, "b": twice})
    assert [name for name, _ in named.items()] == ["a", "b"] and len(list(named.values())) == 2
    assert len(list(rows.parameters())) == 1 and len(rows.state_dict()) == 2


@pytest.mark.parametrize("package", ["vkml", "torch"])
def test_containers_are_changed(package: str) -> None:
    layers: Any = nn if package == "vkml" else pytest.importorskip("torch").nn
    a, b, c, d = layers.ReLU(), layers.Tanh(), layers.Sigmoid(), layers.Identity()

    def held(container: Any) -> list[tuple[str, Any]]:
        return list(container.named_children())

    for kind in (lambda *modules: layers.Sequential(*modules), lambda *modules: layers.ModuleList(modules)):
        made = kind(a, b)
        made.append(c)
        made.insert(0, d)
        assert held(made) == [("0", d), ("1", a), ("2", b), ("3", c)]
        del made[1]
        assert held(made) == [("0", d), ("1", b), ("2", c)]
        made[-1] = a
        assert held(made) == [("0", d), ("1", b), ("2", a)]
        del made[:2]
        assert held(made) == [("0", a)]
        made.extend([b, c])
        assert type(made[1:]) is type(made) and list(made[1:]) == [b, c]
        assert made.pop(0) is a and held(made) == [("0", b), ("1", c)]
        assert type(made + kind(d)) is type(made) and list(made + kind(d)) == [b, c, d]
        made += kind(d)
        assert held(made) == [("0", b), ("1", c), ("2", d)] and held(made.pop(slice(1, 3)))[-1][1] is d
        assert held(made) == [("0", b)]
        with pytest.raises(IndexError):
            made[1]
    assert list(layers.Sequential(a, b) * 2) == [a, b, a, b]
    with pytest.raises(IndexError):
        layers.Sequential(a).insert(2, b)
    named = layers.ModuleDict({"a": a, "b": b})
    named["a"] = c
    named.update({"d": d})
    assert named.pop("b") is b and list(named.keys()) == ["a", "d"] and list(named.values()) == [c, d]
    del named["a"]
    assert held(named) == [("d", d)] and "a" not in named
    named.update([("e", a)])
    named.update(layers.ModuleDict({"f": b}))
    assert list(named.items()) == [("d", d), ("e", a), ("f", b)]
    named.clear()
    assert not len(named)


@pytest.mark.parametrize("package", ["vkml", "torch"])
def test_properties_of_modules_are_written(package: str) -> None:
    layers: Any = nn if package == "vkml" else pytest.importorskip("torch").nn

    class Half(layers.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.held = 1.0

        @property
        def double(self) -> Any:
            return 2 * self.held

        @double.setter
        def double(self, value: Any) -> None:
            self.held = value / 2

        @property
        def fixed(self) -> int:
            return 1

        def extra_repr(self) -> str:
            return f"double={self.double}"

    half = Half()
    half.double = 5.0
    assert half.held == 2.5 and half.double == 5.0 and "double" not in vars(half)
    with pytest.raises(AttributeError):
        half.fixed = 2
    with pytest.raises(KeyError, match="fixed"):
        half.fixed = layers.Linear(1, 1).weight
    half.inner = layers.ReLU()
    assert repr(half) == "Half(\n  double=5.0\n  (inner): ReLU()\n)"
    with pytest.raises(AttributeError):
        del half.nothing
