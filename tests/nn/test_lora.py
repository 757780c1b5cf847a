"""Adapters of low rank: closed forms, what is learned, merging, files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from tests.nn.comparing import close, normal
from vkml import nn, optim
from vkml.errors import InvalidCheckpoint, NoSuchFile
from vkml.nn import lora

RANDOM = np.random.default_rng(5)


class _Model(nn.Module):
    """Tokens to scores, with a convolution in between, and a head of the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.mlp = nn.ModuleDict({"up_proj": nn.Linear(6, 8), "down_proj": nn.Linear(8, 6, bias=False)})
        self.conv = nn.Conv1d(6, 6, 3, padding=2, dilation=2)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.mlp["down_proj"](self.mlp["up_proj"](x).relu())
        x = x + self.conv(x.mT).mT
        return self.head(x)


TARGETS = ["embedding", "out_proj", "up_proj", "mlp.down_proj", "conv", "head"]


def _adapted(device: str = "cpu", **named: Any) -> _Model:
    """With adapters that do something."""
    vkml.manual_seed(2)
    model = lora.apply(_Model(), r=2, alpha=3, targets=TARGETS, **named).to(device)
    assert isinstance(model, _Model)
    with vkml.no_grad():
        for name, value in model.named_parameters():
            if name in lora.state_dict(model):
                value.copy_(vkml.tensor(0.3 * normal(RANDOM, *value.shape)))
    return model


TOKENS = RANDOM.integers(0, 11, (2, 5))


def test_it_begins_as_it_was_and_only_adapters_learn(device_name: str) -> None:
    vkml.manual_seed(2)
    model = _Model().to(device_name)
    tokens = vkml.tensor(TOKENS, device=device_name)
    before, names = model(tokens).detach().numpy(), list(model.state_dict())
    layers = list(model.modules())
    assert lora.apply(model, r=2, targets=TARGETS) is model
    assert set(layers) <= set(model.modules()), "layers are other objects"
    np.testing.assert_array_equal(model(tokens).detach().numpy(), before)
    state = model.state_dict()
    assert set(names) < set(state)
    assert set(lora.state_dict(model)) == set(state) - set(names) == {
        "embedding.lora_embedding_A", "embedding.lora_embedding_B", "attention.out_proj.lora_A.weight",
        "attention.out_proj.lora_B.weight", "mlp.up_proj.lora_A.weight", "mlp.up_proj.lora_B.weight",
        "mlp.down_proj.lora_A.weight", "mlp.down_proj.lora_B.weight", "conv.lora_A.weight",
        "conv.lora_B.weight", "head.lora_A.weight", "head.lora_B.weight",
    }  # fmt: skip
    frozen = {name: value.numpy() for name, value in state.items() if name in names}
    optimizer = optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=0.05)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    for name, value in frozen.items():
        np.testing.assert_array_equal(model.state_dict()[name].numpy(), value, err_msg=name)
    assert all(x.grad is None for x in model.parameters() if not x.requires_grad)
    for name, value in lora.state_dict(model).items():
        assert np.abs(value.numpy()).max() > 0, f"{name} has not learned"


def test_what_a_layer_computes(device_name: str) -> None:
    x = normal(RANDOM, 3, 4)
    layer = lora.apply(nn.Linear(4, 5), r=2, alpha=6, targets=[""])
    assert repr(layer).startswith("LoraLinear(\n  in_features=4, out_features=5, bias=True\n")
    w, b, into, out = (
        normal(RANDOM, *value.shape)
        for value in (layer.weight, layer.bias, layer.lora_A.weight, layer.lora_B.weight)
    )
    layer.load_state_dict({"weight": w, "bias": b, "lora_A.weight": into, "lora_B.weight": out})
    layer.to(device_name)
    wanted = x @ w.T + b + 3.0 * (x @ into.T @ out.T)
    close(layer(vkml.tensor(x, device=device_name)).detach().numpy(), wanted, "with an adapter")
    lora.merge(layer)
    close(layer.weight.detach().numpy(), w + 3.0 * out @ into, "merged")


def test_gradients_against_torch(device_name: str) -> None:
    torch = pytest.importorskip("torch")
    x = normal(RANDOM, 3, 4)
    layer = lora.apply(nn.Linear(4, 5), r=2, alpha=6, targets=[""])
    drawn = {name: normal(RANDOM, *value.shape) for name, value in layer.state_dict().items()}
    layer.load_state_dict(drawn)
    layer.to(device_name)
    (layer(vkml.tensor(x, device=device_name)) ** 2).sum().backward()
    theirs = {name: torch.tensor(value, requires_grad=True) for name, value in drawn.items()}
    product = torch.tensor(x) @ theirs["lora_A.weight"].T @ theirs["lora_B.weight"].T
    made = torch.tensor(x) @ theirs["weight"].T + theirs["bias"] + 3.0 * product
    (made**2).sum().backward()
    for name in ("lora_A.weight", "lora_B.weight"):
        close(layer.get_parameter(name).grad.numpy(), theirs[name].grad.numpy(), name)
    assert layer.weight.grad is None and layer.bias.grad is None


def test_merging(device_name: str) -> None:
    model = _adapted(device_name)
    tokens = vkml.tensor(TOKENS, device=device_name)
    wanted = model(tokens).detach().numpy()
    table = model.embedding.weight.detach().numpy()
    base = lora.apply(_Model(), r=2, targets=TARGETS).to(device_name)  # adapters that do nothing yet
    base.load_state_dict({**model.state_dict(), **lora.state_dict(base)})
    with lora.disable_adapter(model):
        close(model(tokens).detach().numpy(), base(tokens).detach().numpy(), "disabled")
    close(model(tokens).detach().numpy(), wanted, "enabled again")
    plain = copy.deepcopy(model)
    for _ in range(2):  # the second time changes nothing
        lora.merge(model)
        close(model(tokens).detach().numpy(), wanted, "merged")
    assert np.abs(model.embedding.weight.detach().numpy() - table).max() > 0.01
    with pytest.raises(ValueError, match="unmerge"), lora.disable_adapter(model):
        pass
    # The head had the embedding's weight; each now has its own.
    assert model.head.weight is not model.embedding.weight
    for _ in range(2):
        lora.unmerge(model)
        close(model(tokens).detach().numpy(), wanted, "unmerged")
    close(model.embedding.weight.detach().numpy(), table, "the table")
    lora.merge_and_unload(plain)
    assert [type(x) for x in plain.modules()] == [type(x) for x in _Model().modules()]
    assert list(plain.state_dict()) == list(_Model().state_dict())
    close(plain(tokens).detach().numpy(), wanted, "without adapters")
    assert not lora.state_dict(plain)


def test_dropout_is_of_adapters_alone() -> None:
    vkml.manual_seed(0)
    layer = lora.apply(nn.Linear(64, 64, bias=False), r=4, dropout=0.5, targets=[""])
    with vkml.no_grad():
        layer.lora_B.weight.fill_(1.0)
    x = vkml.ones(1, 64)
    first, second = layer(x), layer(x)
    assert (first - second).abs().max().item() > 0.01
    layer.eval()
    np.testing.assert_array_equal(layer(x).detach().numpy(), layer(x).detach().numpy())
    with vkml.no_grad():
        layer.lora_B.weight.fill_(0.0)
    layer.train()
    np.testing.assert_array_equal(layer(x).detach().numpy(), layer(x).detach().numpy())


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (None, {"attention.out_proj", "mlp.up_proj", "mlp.down_proj", "head"}),
        (["mlp.up_proj"], {"mlp.up_proj"}),
        (["proj", "conv"], {"conv"}),
        (r"mlp\..*_proj|head", {"mlp.up_proj", "mlp.down_proj", "head"}),
    ],
)
def test_targets(targets: Any, found: set[str]) -> None:
    model = lora.apply(_Model(), targets=targets)
    assert {name for name, x in model.named_modules() if isinstance(x, lora.LoraLayer)} == found
    learned = {name for name, x in model.named_parameters() if x.requires_grad}
    assert learned == set(lora.state_dict(model)) and len(learned) == 2 * len(found)


@pytest.mark.parametrize("bias", lora.BIASES)
def test_biases(bias: str) -> None:
    model = lora.apply(_Model(), targets=["up_proj"], bias=bias)
    learned = {name for name, x in model.named_parameters() if x.requires_grad and "lora" not in name}
    wanted = {
        "none": set(),
        "lora_only": {"mlp.up_proj.bias"},
        "all": {"mlp.up_proj.bias", "conv.bias", "attention.out_proj.bias"},
    }[bias]
    assert learned == wanted and set(lora.state_dict(model, bias)) == learned | set(lora.state_dict(model))


def test_what_cannot_be_adapted() -> None:
    for wrong, words in (
        ({"r": 0}, "positive"), ({"targets": ["nothing"]}, "no layers"), ({"targets": ["mlp"]}, "ModuleDict"),
        ({"bias": "some"}, "bias"), ({"targets": ["attention"]}, "MultiheadAttention"),
    ):  # fmt: skip
        model = _Model()
        with pytest.raises(ValueError, match=words):
            lora.apply(model, **wrong)  # type: ignore[arg-type]
        assert all(x.requires_grad for x in model.parameters())
    with pytest.raises(ValueError, match="2 groups"):
        lora.apply(nn.Sequential(nn.Conv2d(2, 2, 1, groups=2)), targets=["0"])


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from safetensors.numpy import load_file

    model = _adapted(dropout=0.25)
    model.eval()
    lora.save(model, tmp_path / "adapter")
    # The names of "PEFT checkpoint format".
    names = set(load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    assert "base_model.model.mlp.up_proj.lora_A.weight" in names
    assert names == {f"base_model.model.{name}" for name in lora.state_dict(model)}
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["lora_dropout"]) == (
        "LORA",
        2,
        3,
        0.25,
    )
    vkml.manual_seed(2)
    other = lora.load(_Model(), tmp_path / "adapter").eval()
    tokens = vkml.tensor(TOKENS)
    np.testing.assert_array_equal(other(tokens).detach().numpy(), model(tokens).detach().numpy())
    assert isinstance(other, _Model) and other.mlp["up_proj"].lora_dropout.p == 0.25
    # Into adapters that there are, which may be merged.
    vkml.manual_seed(2)
    third = lora.merge(lora.apply(_Model(), r=2, alpha=3, targets=TARGETS)).eval()
    lora.load(third, tmp_path / "adapter")
    close(third(tokens).detach().numpy(), model(tokens).detach().numpy(), "merged before")
    for wrong, words in (
        (lora.apply(_Model(), r=3, alpha=3, targets=TARGETS), "r=3"),
        (lora.apply(_Model(), r=2, alpha=4, targets=TARGETS), "alpha=4"),
        (lora.apply(_Model(), r=2, alpha=3, targets=["head"]), "not known: .*conv"),
        (nn.Sequential(nn.Linear(2, 2)), "no layers"),
    ):
        with pytest.raises(ValueError, match=words):
            lora.load(wrong, tmp_path / "adapter")
    with pytest.raises(ValueError, match="no adapters"):
        lora.save(_Model(), tmp_path / "nothing")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"use_dora": True}, ValueError, "use_dora=True"),
        ({"rank_pattern": {"head": 4}}, ValueError, "rank_pattern"),
        ({"peft_type": "IA3"}, ValueError, "IA3"),
        ({"r": None}, InvalidCheckpoint, "damaged"),
        (None, NoSuchFile, "adapter_config"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, changes: Any, error: type, words: str) -> None:
    pytest.importorskip("safetensors")
    lora.save(_adapted(), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    if changes is None:
        (tmp_path / "adapter_config.json").unlink()
    else:
        (tmp_path / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    model = _Model()
    with pytest.raises(error, match=words):
        lora.load(model, tmp_path)
    assert not lora.state_dict(model)


def test_rank_stabilised_files(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    lora.save(_adapted(), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "use_rslora": True}))
    model = lora.load(_Model(), tmp_path)
    assert isinstance(model, _Model)
    np.testing.assert_allclose(model.head.scaling, 3 / np.sqrt(2))


def test_captured_steps(device_name: str) -> None:
    def trained(is_captured: bool) -> list[Any]:
        model = _adapted(device_name)
        optimizer = optim.Adam([x for x in model.parameters() if x.requires_grad], lr=0.01)

        def step(tokens: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            return loss

        act = vkml.jit(step) if is_captured else step
        losses = [act(vkml.tensor(TOKENS, device=device_name)).item() for _ in range(5)]
        return [*losses, *(value.numpy() for value in lora.state_dict(model).values())]

    state = RANDOM.bit_generator.state
    wanted = trained(False)
    RANDOM.bit_generator.state = state
    for found, one in zip(trained(True), wanted, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-5)
