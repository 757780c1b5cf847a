"""Exported models at other sizes than the example's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime  # noqa: F401  before any device is used
import pytest

import vkml
from tests.exporting.checking import checked, close, flat, reference, session_of
from tests.exporting.layers import normal, places
from vkml import nn
from vkml.errors import CaptureError, InvalidArgument
from vkml.onnx import Dim

Array = np.ndarray[Any, Any]


def compare(
    function: Callable[..., Any],
    inputs: Callable[..., Sequence[Array]],
    shapes: Any,
    example: Sequence[int],
    others: Sequence[Sequence[int]],
    rtol: float = 1e-4,
    **options: Any,
) -> bytes:
    """Exports a function with some sizes, and compares it with its model at others."""
    made = vkml.onnx.export(function, tuple(inputs(*example)), dynamic_shapes=shapes, **options)
    assert made is not None
    names = [value.name for value in checked(made).graph.input]
    session = session_of(made)
    if isinstance(function, nn.Module):
        function.eval()
    for sizes in (example, *others):
        arrays = inputs(*sizes)
        feeds = dict(zip(names, arrays, strict=True))
        wanted = flat(function(*(vkml.tensor(x) for x in arrays)))
        close(reference(made, feeds), wanted, f"onnxruntime at {sizes}", rtol)
        close(session.run(None, feeds), wanted, f"a session at {sizes}", rtol)
    return made


class Language(nn.Module):
    """A small causal transformer with learned positions."""

    def __init__(self, most: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Parameter(vkml.randn(most, 8))
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Any) -> Any:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions[:length]
        mask = vkml.triu(vkml.ones(length, length, dtype=vkml.bool, device=tokens.device), 1)
        return self.head(self.layers(x, mask=mask))


def test_a_transformer() -> None:
    vkml.manual_seed(1)
    made = compare(
        Language(), lambda n, t: [places(11, n, t)], {"tokens": {0: "batch", 1: "length"}},
        (2, 6), [(1, 1), (3, 17), (2, 32)],
    )  # fmt: skip
    graph = checked(made).graph
    dims = [[dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*graph.input, *graph.output)]  # fmt: skip
    assert dims == [["batch", "length"], ["batch", "length", 11]]
    [entry] = checked(made).metadata_props
    assert entry.key == "vkml.sizes" and "length - 32 <= 0" in entry.value


def test_causal_attention() -> None:
    def function(q: Any, k: Any) -> Any:
        fused = nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)
        mask = vkml.arange(k.shape[-2]) <= vkml.arange(q.shape[-2]).unsqueeze(1)
        return fused, nn.functional.scaled_dot_product_attention(q, k, k, mask)

    compare(
        function, lambda b, m, n: [normal(b, 2, m, 4), normal(b, 2, n, 4)],
        ({0: "b", 2: "rows"}, {0: "b", 2: "keys"}), (2, 5, 5), [(1, 3, 7), (4, 7, 3)],
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str) -> None:
    vkml.manual_seed(1)
    layer = getattr(nn, kind)(3, 4, 2, batch_first=True, bidirectional=True)
    compare(
        layer, lambda n, t: [normal(n, t, 3)], ({0: "batch", 1: "steps"},), (2, 5), [(1, 1), (3, 9)]
    )  # fmt: skip


class Picture(nn.Module):
    """Convolutions, resampling up and down, a skip connection, a mean over what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.down = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.last = nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        skip = nn.functional.relu(self.norm(self.first(x)))
        found = self.up(nn.functional.max_pool2d(self.down(skip), 2, 1, 1))
        wide = nn.functional.interpolate(skip, scale_factor=2)
        found = vkml.cat([skip, found[:, :, : skip.shape[2], : skip.shape[3]]], 1)
        return found, wide, self.last(nn.functional.adaptive_avg_pool2d(skip, 1).flatten(1))


def test_images() -> None:
    vkml.manual_seed(1)
    compare(
        Picture(), lambda n, h, w: [normal(n, 3, h, w)], ({0: "n", 2: "h", 3: "w"},),
        (2, 8, 6), [(1, 10, 14), (3, 4, 4)], 1e-3,
    )  # fmt: skip


def _flattened(x: Any) -> Any:
    return x.reshape(x.shape[0], -1), x.flatten(), x.reshape(-1, 4), x.permute(2, 0, 1).reshape(4, -1)


def _divided(x: Any) -> Any:
    return x.sum(1) / x.shape[1], x * x.shape[0] + x.shape[1] - 1, x.mean((0, 1)), x.numel() * x[0, 0, 0]


def _parts(x: Any) -> Any:
    half = x.shape[1] // 2
    return x[:, -1], x[:, :half], x[:, half:], x[:, 1:], x[:, :-1], x[:, ::2], x[:, x.shape[1] - 1]


def _made(x: Any) -> Any:
    n, t, _ = x.shape
    return (
        vkml.zeros(n, t), vkml.ones_like(x) * x, vkml.full((t, 2), 3), vkml.arange(1, t + 1), x.new_ones(t)
        if hasattr(x, "new_ones") else x, vkml.arange(n * t).reshape(n, t),
    )  # fmt: skip


def _arranged(x: Any) -> Any:
    n, t, f = x.shape
    heads = x.reshape(n, t, 2, f // 2).transpose(1, 2)
    joined = heads.transpose(1, 2).reshape(n, t, f)
    wide = x.unsqueeze(1).expand(n, 3, t, f)
    return joined, wide, wide.reshape(n * 3, t, f), vkml.stack([x, x], 1), x.expand(2, n, t, f).sum(0)


def _statistics(x: Any) -> Any:
    return x.std(1), x.var((0, 1), correction=0), x.softmax(1), x.argmax(1), x.norm(dim=1), x.cumsum(1)


@pytest.mark.parametrize(
    "function", [_flattened, _divided, _parts, _made, _arranged, _statistics], ids=lambda f: f.__name__
)
def test_arithmetic_on_sizes(function: Callable[..., Any]) -> None:
    compare(function, lambda n, t: [normal(n, t, 4)], ({0: "n", 1: "t"},), (3, 6), [(2, 5), (5, 2), (4, 9)])


def test_sizes_below_two() -> None:
    """The example has a batch of 1, as exports often do; the model takes any."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 2))
    compare(module, lambda n: [normal(n, 3, 6, 6)], ({0: "batch"},), (1,), [(2,), (5,)], 1e-3)


def test_sizes_that_are_equal_to_known_ones() -> None:
    """An example whose batch is as large as its features says nothing about other batches."""

    def function(x: Any, y: Any) -> Any:
        return x + y if x.shape == y.shape else x - y.sum()

    x, y = normal(7, 4), normal(4, 4)
    made = vkml.onnx.export(function, (normal(4, 4), y), dynamic_shapes=({0: "n"}, None))
    assert made is not None
    close(reference(made, {"x": x, "y": y}), [x - y.sum()], "onnxruntime")
    [entry] = checked(made).metadata_props
    assert entry.value == "n - 4 != 0"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if x.shape[1] == 5 else x,
        lambda x: x * 2 if x.shape[1] in (4, 5) else x,
        lambda x: x * 2 if x.shape[1:] == (5, 3) else x,
        lambda x: x * 2 if x.shape[1] - 5 else x,
        lambda x: x * 2 if x.shape[1] > 4 and x.shape[0] != 2 else x,
    ],
)
def test_a_model_of_an_example_does_as_the_function_does_for_it(function: Callable[..., Any]) -> None:
    """What the function itself compares is not compared of other sizes than the example's."""
    for rows in (2, 4):
        given = np.ones((rows, 5, 3), np.float32)
        try:
            made = vkml.onnx.export(function, (given,), dynamic_shapes=({0: "batch", 1: "length"},))
        except CaptureError as error:
            assert " = 0" in str(error)
            continue
        found = session_of(made).run(None, {"x": given})
        close(found, [function(vkml.tensor(given)).numpy()], "the example")


def test_sizes_that_must_be_equal() -> None:
    def function(x: Any, y: Any) -> Any:
        return x.reshape(y.shape[0]) + y

    with pytest.raises(CaptureError, match=r"a - b = 0.*give sizes that must be equal one name"):
        vkml.onnx.export(function, (normal(4), normal(4)), dynamic_shapes=({0: "a"}, {0: "b"}))
    compare(function, lambda n: [normal(n), normal(n)], ({0: "a"}, {0: "a"}), (4,), [(3,), (1,)])


def test_sizes_that_are_not_open_after_all() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 2))
    with pytest.raises(CaptureError, match=r"16 \* height - 96 = 0"):
        vkml.onnx.export(module, (normal(1, 3, 6, 6),), dynamic_shapes=({2: "height"},))
    with pytest.raises(CaptureError, match="steps - 5 = 0"):
        vkml.onnx.export(
            lambda x: [x[:, at] for at in range(x.shape[1])], (normal(2, 5),), dynamic_shapes=({1: "steps"},)
        )
    # Where that may be, they are known ones.
    made = vkml.onnx.export(
        lambda x: sum(x[:, at] for at in range(x.shape[1])), (normal(2, 5),),
        dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},),
    )  # fmt: skip
    assert made is not None
    [value] = checked(made).graph.input
    dims = value.type.tensor_type.shape.dim
    assert dims[0].dim_param == "x_dim_0" and dims[1].dim_value == 5


def test_multiples() -> None:
    """What takes multiples of a number alone says so, and is for all of them."""

    def function(x: Any) -> Any:
        windows = x.reshape(x.shape[0], 4, x.shape[2] // 4, x.shape[1])
        first, second = x.transpose(1, 2).split(x.shape[2] // 2, 1)
        return windows, nn.functional.pixel_unshuffle(x, 2), first * second, x.chunk(2, 2)[0]

    for size in (8, 4):  # 4 is what it is divided by, too
        made = compare(
            function,
            lambda n, s: [normal(n, s, s)],
            ({0: "n", 1: "s", 2: "s"},),
            (2, size),
            [(3, 12), (1, 20)],
        )
        [entry] = checked(made).metadata_props
        assert "2 * (s // 2) - s == 0" in entry.value
    with pytest.raises(CaptureError, match="kernel_shape"):
        vkml.onnx.export(nn.AdaptiveAvgPool1d(3), (normal(1, 2, 6),), dynamic_shapes=({2: "n"},))


def test_ranges() -> None:
    def function(x: Any) -> Any:
        return x[:, :3] if x.shape[1] > 3 else x

    made = vkml.onnx.export(function, (normal(2, 6),), dynamic_shapes=({1: Dim("t", min=4, max=9)},))
    assert made is not None
    for size in (4, 9):
        x = normal(2, size)
        close(reference(made, {"x": x}), [x[:, :3]], "onnxruntime")
    with pytest.raises(CaptureError, match="t - 3 > 0"):
        vkml.onnx.export(function, (normal(2, 6),), dynamic_shapes=({1: Dim("t", min=2, max=9)},))
    with pytest.raises(InvalidArgument, match="'t' is 6"):
        vkml.onnx.export(function, (normal(2, 6),), dynamic_shapes=({1: Dim("t", max=5)},))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"y": {0: "n"}}, "names 'y'"),
        (({0: "n"}, None), "of 2 arguments"),
        (({2: "n"},), "no axis 2"),
        ((("n",),), "1 are stated"),
        (({0: 7},), "said to be 7"),
        (({0: 1.5},), "is a name, a Dim or None"),
        (({0: "n", 1: "n"},), "3 and 4 in the examples|'n' is 3 and 4"),
        ("n", "not str"),
    ],
)
def test_sizes_that_do_not_fit(shapes: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        vkml.onnx.export(lambda x: x + 1, (normal(3, 4),), dynamic_shapes=shapes)


def test_forms_of_stating_sizes() -> None:
    def function(x: Any, pair: Any) -> Any:
        return x @ pair["w"] + pair["b"][0]

    arguments = (normal(3, 4), {"w": normal(4, 2), "b": [normal(3, 1)]})
    stated: list[Any] = [
        ({0: "n"}, {"b": [{0: "n"}]}),
        {"x": ("n", None), "pair": {"w": None, "b": ({0: "n"},)}},
        ({0: Dim("n")}, {"w": {}, "b": [(Dim("n"), Dim.STATIC)]}),
    ]
    for shapes in stated:
        made = vkml.onnx.export(function, arguments, dynamic_shapes=shapes)
        assert made is not None
        inputs = checked(made).graph.input
        assert [value.type.tensor_type.shape.dim[0].dim_param for value in inputs] == ["n", "", "n"]
        x, w, b = normal(5, 4), normal(4, 2), normal(5, 1)
        close(reference(made, {"x": x, "pair_w": w, "pair_b_0": b}), [x @ w + b], "onnxruntime")
    old = vkml.onnx.export(
        function, arguments, input_names=["a", "w", "b"],
        dynamic_axes={"a": {0: "n"}, "b": {0: "n"}, "output": [0]},
    )  # fmt: skip
    assert old is not None
    close(reference(old, {"a": x, "w": w, "b": b}), [x @ w + b], "onnxruntime")


SCALES = {4: 40.0}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x * SCALES.get(x.shape[0], 1.0), "what a dict or a set has for n is no expression"),
        (lambda x: x * len({x.shape[0], 4, 5}), "what a dict or a set has for n is no expression"),
        (lambda x: x * float(f"{x.shape[0]}"), "n - 4 = 0.* writes them into texts"),
        (lambda x: x * len(str(tuple(x.shape))), "n - 4 = 0"),
        (lambda x: {f"of {x.shape[0]}": x * 2}, "n - 4 = 0"),
        (lambda x: x / math.sqrt(x.shape[0]), "the float of n is no expression"),
        (lambda x: x * x.shape[0] ** -0.5, r"n \*\* -0.5 is no expression"),
        (lambda x: nn.functional.adaptive_avg_pool2d(x[None], (x.shape[0] // 4, 3)), "cannot be open"),
    ],
    ids=["key", "element of a set", "text", "text of a shape", "output", "root", "power", "attribute"],
)
def test_sizes_that_are_taken_for_numbers(function: Callable[..., Any], message: str) -> None:
    """A model for all of them would be wrong: sizes that have names are refused, others are what they are."""
    with pytest.raises(CaptureError, match=message):
        vkml.onnx.export(function, (normal(4, 6),), dynamic_shapes=({0: "n", 1: Dim.AUTO},))
    made = vkml.onnx.export(function, (normal(4, 6),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},))
    assert made is not None
    [value] = checked(made).graph.input
    dims = value.type.tensor_type.shape.dim
    assert dims[0].dim_value == 4 and (dims[1].dim_param or dims[1].dim_value == 6)
    x = normal(4, 6)
    close(reference(made, {"x": x}), flat(function(vkml.tensor(x))), "onnxruntime")


def test_sizes_are_integers_of_a_program() -> None:
    def function(x: Any) -> Any:
        rows = x.shape[0]
        scale = 2.0 if isinstance(rows, int) and rows < 1e6 else 3.0
        half = x.narrow(0, 0, rows >> 1) * scale * vkml.tensor(rows) + (rows & 1)
        wide = nn.functional.pad(x, (0, 0, 0, -rows % 8))
        return half, wide, vkml.eye(rows) @ x, x.repeat_interleave(2, 0), x.roll(rows // 2, 0)

    compare(function, lambda n: [normal(n, 3)], ({0: "n"},), (5,), [(4,), (8,), (9,), (17,)])


def test_torch_s_sizes_are_taken() -> None:
    torch = pytest.importorskip("torch")
    dim = torch.export.Dim
    for size, name in ((dim("n", min=1, max=99), "n"), (dim.DYNAMIC, "x_dim_0"), (dim.AUTO, "x_dim_0")):
        made = vkml.onnx.export(lambda x: x * 2, (normal(3, 4),), dynamic_shapes=({0: size},))
        assert made is not None
        [value] = checked(made).graph.input
        assert value.type.tensor_type.shape.dim[0].dim_param == name
    made = vkml.onnx.export(lambda x: x * 2, (normal(3, 4),), dynamic_shapes=({0: dim.STATIC},))
    assert made is not None
    assert checked(made).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3


def test_sizes_on_a_device(device_name: str) -> None:
    vkml.manual_seed(1)
    module = Language().to(device_name)
    x = places(11, 2, 6)
    made = vkml.onnx.export(module, (x,), dynamic_shapes=({0: "batch", 1: "length"},))
    assert made is not None
    session = session_of(made, device_name)
    module.eval()
    for n, t in ((2, 6), (3, 9), (1, 4)):
        x = places(11, n, t)
        wanted = flat(module(vkml.tensor(x, device=device_name)))
        close(session.run(None, {"tokens": x}), wanted, f"a session at {n} {t}", 1e-3)
        close(reference(made, {"tokens": x}), wanted, f"onnxruntime at {n} {t}", 1e-3)


def test_another_export_does_not_know_of_the_sizes_of_one() -> None:
    def function(x: Any) -> Any:
        return x.reshape(-1) if x.shape[0] > 5 else x.sum()

    for size, wanted in ((4, 0), (9, 1), (4, 0)):
        made = vkml.onnx.export(function, (normal(size, 3),), dynamic_shapes=({0: "n"},))
        assert made is not None
        [value] = checked(made).graph.output
        assert len(value.type.tensor_type.shape.dim) == wanted
    assert math.prod(vkml.zeros(2, 3).shape) == vkml.zeros(2, 3).numel() == 6
