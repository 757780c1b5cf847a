"""`grad_fn`: what tensors were made by, as programs that draw or walk through histories ask."""

from __future__ import annotations

from typing import Any

import pytest

import vkml


def walked(node: Any) -> list[Any]:
    """Nodes, depth first, each once."""
    found: list[Any] = []

    def walk(at: Any) -> None:
        if at is not None and at not in found:
            found.append(at)
            for following, _ in at.next_functions:
                walk(following)

    walk(node)
    return found


def test_leaves_have_none() -> None:
    x, y = vkml.ones(3, requires_grad=True), vkml.ones(3)
    assert x.grad_fn is None and y.grad_fn is None and (y * 2).grad_fn is None
    assert (x * 2).detach().grad_fn is None
    with vkml.no_grad():
        assert (x * 2).grad_fn is None


def test_a_history_is_walked_to_its_leaves() -> None:
    x, w = vkml.ones(2, 3, requires_grad=True), vkml.ones(3, 4, requires_grad=True)
    loss = ((x @ w).exp() * vkml.ones(4) + x.sum()).mean()
    assert repr((x * w[0, 0]).grad_fn) == "<MulBackward>"
    assert loss.grad_fn.name() == "ReduceMeanBackward"
    names = [node.name() for node in walked(loss.grad_fn)]
    assert names.count("AccumulateGrad") == 2
    assert {"ReduceMeanBackward", "AddBackward", "MulBackward", "ExpBackward", "MatMulBackward"} <= set(names)
    product = (x @ w).grad_fn
    leaves = [node.variable for node, _ in product.next_functions]
    assert leaves[0] is x and leaves[1] is w and len(leaves) == 2


def test_nodes_of_one_operation_are_equal() -> None:
    x = vkml.ones(4, requires_grad=True)
    first, second = (x * 2).split(2)
    [(before, _)], [(other, _)] = (part.grad_fn.next_functions[:1] for part in (first, second))
    assert before == other and hash(before) == hash(other) and before != first.grad_fn
    assert x.exp().grad_fn != x.exp().grad_fn


def test_it_goes_with_the_history() -> None:
    x = vkml.ones(3, requires_grad=True)
    y = x * x
    y.sum().backward(retain_graph=True)
    assert repr(y.grad_fn) == "<MulBackward>"
    y.sum().backward()
    assert y.is_leaf and y.grad_fn is None


def test_leaves_and_shapes_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")

    def ends(library: Any) -> tuple[list[bool], int]:
        x = library.ones(3, requires_grad=True)
        y = x.exp()
        y.add_(1)
        made = [x, y, y.detach(), y[0], (y * 0).sum(), library.ones(2)]
        return [one.grad_fn is None for one in made], [
            type(node).__name__ for node in walked(y.grad_fn)
        ].count("AccumulateGrad")

    assert ends(vkml) == ends(torch)
