"""Expressions as PyTorch's users write them give the same values, types and kinds of errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml

torch = pytest.importorskip("torch")

EXPRESSIONS = """
x.to(torch.float), x.to(torch.double), x.to(torch.long), x.to(torch.int), x.to(torch.half), x.to(torch.short)
torch.zeros(2, dtype=torch.cfloat), torch.tensor([1, 2], dtype=torch.float)
x.dtype.is_floating_point, torch.int64.is_floating_point, torch.uint8.is_signed, x.dtype.itemsize
torch.float16.is_complex, x.is_signed(), torch.is_floating_point(x), torch.is_nonzero(torch.tensor(2))
x.device.type, x.device.index, str(x.device), x.device == torch.device("cpu"), repr(torch.device("cpu"))
isinstance(x.device, torch.device), x.to(torch.device("cpu")), torch.ones(2, device=torch.device("cpu"))
torch.device("vulkan", 1).type, torch.device("vulkan:1").index, str(torch.device("vulkan", 1))
torch.device("meta").type, torch.ones(2, device=torch.device("meta")).shape
torch.device("nowhere")
torch.pi, torch.e, torch.inf, x[torch.newaxis].shape
torch.t(x), torch.t(v), torch.clone(x), torch.detach(x), torch.rsub(x, 2.0), torch.rsub(x, x, alpha=3)
torch.t(z)
x.std(0, unbiased=False), x.std(1, False), x.std(True), x.std(False), x.var(unbiased=False)
x.var(1, True, True)
torch.std(x, dim=1, correction=0), torch.var_mean(x, 0, unbiased=False), torch.std_mean(x, unbiased=True)
x.var(0, unbiased=True, correction=1)
torch.norm(x, "fro"), x.norm(p="fro", dim=(0, 1)), torch.norm(x, "nuc"), x.norm(dtype=torch.float64)
torch.sort(v).indices, torch.sort(v).values, x.sort(stable=True).values, torch.topk(v, 2).values
x.sum(axis=1), x.mean(axis=0, keepdims=True), x.max(axis=1).values, torch.cat([x, x], axis=1)
torch.stack([x, x], axis=-1), x.argmax(axis=1), torch.softmax(x, axis=1), x.any(axis=0, keepdims=True)
torch.sum(input=x, dim=0), torch.softmax(input=x, dim=0), torch.add(x, other=x), torch.pow(x, exponent=2)
torch.where(x > 0, input=x, other=x * 2), torch.matmul(x, other=x.T), torch.maximum(x, other=x * 2)
x.sum(axis=0, dim=0)
torch.asarray([1, 2]), torch.asarray(np.ones(2)), torch.scalar_tensor(3), torch.asarray(x) is x
torch.asarray(x, copy=True) is x, torch.asarray([1.0], requires_grad=True).requires_grad
torch.arange(3.0, requires_grad=True).requires_grad
torch.linspace(0, 1, 3, requires_grad=True).requires_grad
torch.linspace(1 + 1j, 2, 3), torch.linspace(0, 1j, 2)
torch.eye(2, requires_grad=True).requires_grad, torch.empty(2, requires_grad=True).requires_grad
torch.full_like(x, 2, requires_grad=True).requires_grad, torch.arange(end=3)
x.to(torch.float64, non_blocking=True, copy=True), x.to("cpu", torch.float64, True)
x.to(x.dtype, copy=True) is x
x.type(torch.float64), x.stride(), z.stride(), z.stride(1), x.ndimension(), x.sum_to_size(1, 4)
x.sum_to_size(4)
x.sum_to_size(2, 4)
x.requires_grad_().numpy(force=True)
x.split_with_sizes([1, 2]), torch.split_with_sizes(x, [1, 3], 1), torch.row_stack((x, x))
torch.select_scatter(x, v, 0, 1), torch.slice_scatter(x, x[:1] * 2, 0, 0, 1)
z.slice_scatter(z[:, :1], 1, 1, 2)
torch.slice_scatter(x, x[::2] * 2, 0, 0, None, 2), torch.diagonal_scatter(x, v[:3])
x.diagonal_scatter(v[:3], 1)
torch.select_scatter(x, v[:2], 0, 1)
torch.unravel_index(torch.tensor([5, 7]), (3, 4)), torch.unravel_index(torch.tensor(5), 7)
torch.det(s), s.det(), torch.inverse(s), s.inverse(), torch.slogdet(s), torch.logdet(s @ s.T), s.logdet()
torch.logdet(-torch.eye(3)), torch.logdet(torch.zeros(2, 2)), torch.pinverse(x), x.pinverse()
torch.matrix_exp(s)
torch.cholesky(s @ s.T), torch.cholesky(s @ s.T, upper=True), torch.linalg.lstsq(x.T, v).solution
torch.hann_window(8), torch.hann_window(8, periodic=False), torch.hamming_window(7), torch.blackman_window(9)
torch.bartlett_window(8), torch.kaiser_window(8), torch.kaiser_window(6, False, beta=3.0)
torch.hann_window(1)
torch.hamming_window(5, True, 0.6, 0.4), torch.hann_window(0), torch.hann_window(4, dtype=torch.float64)
torch.hann_window(-1)
torch.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
torch.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2))
torch.layer_norm(x, (4,)), torch.group_norm(z, 3), torch.rms_norm(x, (4,)), torch.dropout(x, 0.0, True)
torch.celu(x), torch.selu(x), torch.prelu(x, torch.tensor([0.1])), torch.hardshrink(x)
torch.threshold(x, 0.1, 2.0)
torch.cosine_similarity(x, x * 2), torch.pairwise_distance(x, x * 2), torch.max_pool2d(z, 2)
torch.relu_(x.clone())
torch.pixel_shuffle(torch.ones(1, 4, 2, 2), 2), torch.bilinear(x, x, torch.ones(2, 4, 4), None)
torch.vmap(torch.dot)(x, x), p.multinomial(2).shape, torch.ones(3).bernoulli()
(lambda q: ((q * q).sum().backward(inputs=[q]), q.grad)[1])(x.requires_grad_())
(lambda q, h: ((h * q).sum().backward(inputs=h), h.grad, q.grad)[1:])(x.requires_grad_(), x * 2)
torch.autograd.grad(x.requires_grad_().sum(), [x, v.requires_grad_()], materialize_grads=True)
torch.autograd.grad(x.requires_grad_().sum(), [x, v.requires_grad_()])
torch.autograd.grad(x.requires_grad_().sum(), [x], allow_unused=False, materialize_grads=True)
x.requires_grad_().sum().backward(inputs=[])
int(x)
float(x)
torch.where(x, x, x)
x.masked_select(torch.tensor([1, 0, 1, 0]))
torch.gather(x, 1, torch.tensor([[9]]))
x.scatter(1, torch.tensor([[9]]), 0.0)
torch.Tensor("no")
x.to("nowhere")
torch.nn.functional.cross_entropy(x, x[:, 0])
"""


def names(module: Any) -> dict[str, Any]:
    """What expressions refer to."""
    r = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return module.tensor(r.standard_normal(shape).astype(np.float32))

    found = {"torch": module, "np": np, "x": drawn(3, 4), "v": drawn(4), "z": drawn(2, 3, 4, 5)}
    return {**found, "s": drawn(3, 3), "p": drawn(3, 4).abs()}


def parts(value: Any) -> Any:
    """Arrays, numbers and texts of what an expression gives."""
    if isinstance(value, torch.Tensor | vkml.Tensor):
        return str(value.requires_grad), value.detach().numpy()
    return [parts(each) for each in value] if isinstance(value, list | tuple) else value


def compare(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            compare(one, other)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)
    else:
        assert found == wanted


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", [line for line in EXPRESSIONS.splitlines() if line])
def test_as_pytorch(text: str) -> None:
    try:
        wanted = parts(eval(text, names(torch)))
    except Exception as error:
        kinds = [
            kind for kind in (TypeError, ValueError, IndexError, RuntimeError) if isinstance(error, kind)
        ]
        with pytest.raises(kinds[0]):
            parts(eval(text, names(vkml)))
        return
    compare(parts(eval(text, names(vkml))), wanted)


def test_files_are_loaded_by_pytorchs_arguments(tmp_path: Any) -> None:
    path = tmp_path / "a.safetensors"
    vkml.save({"a": vkml.ones(2)}, path)
    assert vkml.load(path, map_location=vkml.device("cpu"), weights_only=True)["a"].tolist() == [1, 1]
    with pytest.raises(TypeError):
        vkml.load(path, "cpu", map_location="cpu")


def test_named_tuples_come_out_of_captures_and_functions() -> None:
    act = vkml.jit(lambda x: x.topk(2))
    for _ in range(3):
        assert act(vkml.tensor([1.0, 3.0, 2.0])).indices.tolist() == [1, 2]

    class Largest(vkml.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.max(0)

        @staticmethod
        def backward(ctx: Any, by_values: Any, by_indices: Any) -> Any:
            return by_values * vkml.ones(3)

    x = vkml.tensor([1.0, 3.0, 2.0], requires_grad=True)
    Largest.apply(x).values.backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "options",
    [{"precision": 2}, {"sci_mode": True}, {"sci_mode": False, "precision": 3}, {"profile": "short"}],
)
def test_tensors_are_printed_by_options(options: dict[str, Any]) -> None:
    elements = np.array([[1.23456, 1e-6], [100.5, 12345.678]], np.float32)
    try:
        for module in (torch, vkml):
            module.set_printoptions(**options)
        assert repr(vkml.tensor(elements)) == repr(torch.tensor(elements))
    finally:
        for module in (torch, vkml):
            module.set_printoptions(profile="default")
    assert repr(vkml.tensor(elements)) == repr(torch.tensor(elements))


def test_what_is_captured_asks_for_backward_within() -> None:
    weight = vkml.ones(2, requires_grad=True)
    act = vkml.jit(lambda x: (weight * x).sum())
    for _ in range(2):
        loss = act(vkml.ones(2))
    with pytest.raises(RuntimeError, match=r"vkml\.jit"):
        loss.backward()


def test_tensors_of_several_devices_are_a_runtime_error(vulkan_device_name: str) -> None:
    with pytest.raises(RuntimeError, match="the tensors are on") as found:
        vkml.ones(2, device=vulkan_device_name) + vkml.ones(2)
    assert isinstance(found.value, vkml.InvalidDevice)
