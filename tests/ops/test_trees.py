"""Trees of ai.onnx.ml: against onnxruntime, over modes, aggregates, transforms, missing values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkml
from tests.ops.checking import build_model, check_operator, run_operator, run_reference
from tests.ops.extension_cases import runs_everything
from vkml.errors import InvalidGraph

Array = np.ndarray[Any, Any]
ML = "ai.onnx.ml"


def data(rows: int, features: int = 4, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Halves, so that many lie on a split, and some NaN."""
    generator = np.random.default_rng(seed)
    x = (generator.integers(-4, 5, (rows, features)) / 2).astype(dtype)
    if x.dtype.kind == "f":
        x[generator.random(x.shape) < 0.1] = np.nan
    return x


def random_trees(
    trees: int, depth: int, modes: Sequence[str], seed: int = 0, features: int = 4, missing: bool = True
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Attributes of random trees' nodes, and the leaves as (tree, node)."""
    generator = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    leaves: list[tuple[int, int]] = []
    for tree in range(trees):
        waiting, count = [(0, 0)], 1
        while waiting:
            node, level = waiting.pop()
            if level == depth or (level and generator.random() < 0.25):
                rows.append((tree, node, 0, "LEAF", 0.0, 0, 0, 0))
                leaves.append((tree, node))
                continue
            split = float(generator.integers(-4, 5) / 2)
            mode = "BRANCH_" + modes[generator.integers(len(modes))]
            tracks = int(generator.integers(2)) if missing else 0
            feature = int(generator.integers(features))
            rows.append((tree, node, feature, mode, split, count, count + 1, tracks))
            waiting += [(count, level + 1), (count + 1, level + 1)]
            count += 2
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    columns = list(zip(*sorted(rows), strict=True))
    made = {f"nodes_{name}": column for name, column in zip(names, columns, strict=False)}
    if missing:
        made["nodes_missing_value_tracks_true"] = columns[-1]
    return made, leaves


def weights(
    leaves: Sequence[tuple[int, int]], prefix: str, ids: Sequence[int], least: float = -1, seed: int = 0
) -> dict[str, Any]:
    """Of each leaf, a weight for each of `ids`."""
    entries = [(tree, node, target) for tree, node in leaves for target in ids]
    drawn = np.random.default_rng(seed).uniform(least, 1, len(entries)).astype(np.float32)
    trees, nodes, targets = zip(*entries, strict=True)
    return {
        f"{prefix}_treeids": trees,
        f"{prefix}_nodeids": nodes,
        f"{prefix}_ids": targets,
        f"{prefix}_weights": tuple(drawn.tolist()),
    }


MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")


@pytest.mark.parametrize("modes", [*((mode,) for mode in MODES), MODES], ids=[*MODES, "all"])
def test_comparisons(modes: tuple[str, ...]) -> None:
    trees, leaves = random_trees(7, 6, modes, missing=modes == ("LEQ",))
    x = data(50)
    if modes != ("LEQ",):
        x = np.nan_to_num(x)  # onnxruntime has its own mind on NaN beside other comparisons
    check_operator(
        "TreeEnsembleRegressor",
        [x],
        {**trees, **weights(leaves, "target", [0]), "n_targets": 1},
        domain=ML,
        opset=3,
    )


def test_doubles() -> None:
    trees, leaves = random_trees(5, 4, ["LT"])
    values = weights(leaves, "target", [0, 1])
    doubles = {
        "nodes_values_as_tensor": np.array(trees.pop("nodes_values"), np.float64) / 3,
        "target_weights_as_tensor": np.array(values.pop("target_weights"), np.float64) / 7,
    }
    x = data(40, dtype=np.float64) / 3
    check_operator(
        "TreeEnsembleRegressor", [x], {**trees, **values, **doubles, "n_targets": 2}, domain=ML, opset=3
    )


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_integers_are_compared_as_floats(dtype: Any) -> None:
    trees, leaves = random_trees(5, 4, ["LT"], missing=False)
    given = {**trees, **weights(leaves, "class", [0, 1, 2]), "classlabels_int64s": (4, 5, 6)}
    x = np.random.default_rng(0).integers(-3, 4, (30, 4)).astype(dtype)
    check_operator("TreeEnsembleClassifier", [x], given, domain=ML, opset=3, outputs=2)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("targets", [1, 2])
def test_transforms_of_targets(transform: str, targets: int) -> None:
    trees, leaves = random_trees(3, 4, ["LEQ"])
    given = weights(leaves, "target", range(targets), 0)
    given["target_weights"] = tuple(round(weight, 1) / 3 for weight in given["target_weights"])
    given |= {"n_targets": targets, "post_transform": transform}
    check_operator("TreeEnsembleRegressor", [data(40)], {**trees, **given}, domain=ML, opset=3)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("base", [(), (0.25, -0.5, 1.0)])
def test_aggregates(aggregate: str, base: tuple[float, ...]) -> None:
    trees, leaves = random_trees(9, 4, ["LEQ"])
    given = {**trees, **weights(leaves, "target", [0, 1, 2]), "n_targets": 3, "aggregate_function": aggregate}
    check_operator(
        "TreeEnsembleRegressor", [data(40)], {**given, "base_values": base or None}, domain=ML, opset=3
    )


def test_targets_of_their_own_trees() -> None:
    """As boosting makes them: each tree speaks of one class."""
    trees, leaves = random_trees(9, 4, ["LEQ"])
    given = weights(leaves, "class", [0])
    given["class_ids"] = tuple(tree % 3 for tree in given["class_treeids"])
    labels = {"classlabels_int64s": (5, 7, 9)}
    check_operator(
        "TreeEnsembleClassifier", [data(40)], {**trees, **given, **labels}, domain=ML, opset=3, outputs=2
    )


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize(
    ("ids", "least", "base"),
    [([0], -1, ()), ([0], 0, ()), ([0], -1, (0.25,)), ([1], 0, ()), ([0, 1, 2], 0, (0.25, 0.5, -0.125))],
    ids=["margin", "share", "base", "second", "three"],
)
def test_classes(transform: str, ids: list[int], least: float, base: tuple[float, ...]) -> None:
    trees, leaves = random_trees(3, 4, ["LEQ"])
    given = {**trees, **weights(leaves, "class", ids, least), "base_values": base or None}
    given["class_weights"] = tuple(round(float(weight), 1) / 3 for weight in given["class_weights"])
    texts = ("no", "yes", "maybe")[: 3 if len(ids) == 3 else 2]
    given |= {"classlabels_strings": texts, "post_transform": transform}
    x = data(60)
    if transform != "PROBIT" or len(ids) == 3:
        check_operator("TreeEnsembleClassifier", [x], given, domain=ML, opset=3, outputs=2)
        return
    # onnxruntime writes one of the two columns, and leaves what memory holds in the other.
    label, scores = run_operator("TreeEnsembleClassifier", [x], given, domain=ML, opset=3, outputs=2)
    model = build_model("TreeEnsembleClassifier", [x], given, domain=ML, opset=3, outputs=2)
    found = run_reference(model, {"x0": x})
    assert label.tolist() == list(found[0])
    column = 1 if ids == [1] else 0
    mine = scores[:, 1]
    np.testing.assert_allclose(mine, found[1][:, column], rtol=1e-4, atol=1e-6)


def test_two_classes_with_weights_of_both() -> None:
    """The larger score wins; onnxruntime answers 1 where the second is positive, whatever the labels are."""
    trees, leaves = random_trees(3, 4, ["LEQ"])
    given = {**trees, **weights(leaves, "class", [0, 1], 0), "classlabels_int64s": (3, 8)}
    label, scores = run_operator("TreeEnsembleClassifier", [data(30)], given, domain=ML, opset=3, outputs=2)
    assert label.tolist() == np.array([3, 8])[scores.argmax(axis=1)].tolist()
    assert {3, 8} == set(label.tolist())


def test_a_row_is_predicted_as_among_others() -> None:
    trees, leaves = random_trees(300, 4, ["LEQ"])
    given = {**trees, **weights(leaves, "target", [0]), "n_targets": 1}
    x = data(100)
    [many] = run_operator("TreeEnsembleRegressor", [x], given, domain=ML, opset=3)
    for row, wanted in list(zip(x, many, strict=True))[::9]:
        [one] = run_operator("TreeEnsembleRegressor", [row], given, domain=ML, opset=3)
        assert one.tolist() == [wanted.tolist()]


def test_sums_are_those_of_float32_in_order() -> None:
    trees, leaves = random_trees(500, 3, ["LEQ"])
    given = {**trees, **weights(leaves, "target", [0]), "n_targets": 1}
    check_operator("TreeEnsembleRegressor", [data(200)], given, domain=ML, opset=3, rtol=0, atol=0)


ENSEMBLE = {
    "nodes_splits": np.array([1.5, 0, -1], np.float32),
    "nodes_featureids": (0, 1, 2),
    "nodes_modes": np.array([0, 6, 3], np.uint8),
    "nodes_truenodeids": (1, 0, 2),
    "nodes_falsenodeids": (2, 1, 3),
    "nodes_trueleafs": (0, 1, 1),
    "nodes_falseleafs": (0, 1, 1),
    "tree_roots": (0, 2),
    "leaf_targetids": (0, 1, 0, 1),
    "leaf_weights": np.array([1, 10, 100, 1000], np.float32),
    "membership_values": np.array([-1, 2, 0.5], np.float32),
    "n_targets": 2,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_tree_ensemble(dtype: Any, aggregate: int) -> None:
    given = {
        key: value.astype(dtype) if isinstance(value, np.ndarray) and key != "nodes_modes" else value
        for key, value in ENSEMBLE.items()
    }
    x = np.nan_to_num(data(40, 3, dtype=dtype))
    [found] = run_operator(
        "TreeEnsemble", [x], {**given, "aggregate_function": aggregate}, domain=ML, opset=5
    )
    for row, scores in zip(x, found, strict=True):
        first = (1 if row[1] in (-1, 2, 0.5) else 10) if row[0] <= 1.5 else None
        second = 100 if row[2] > -1 else 1000
        trees = [(0 if first == 1 else 1, first)] if first else [(0 if second == 100 else 1, second)]
        trees.append((0 if second == 100 else 1, second))
        for target in (0, 1):
            said = [weight for place, weight in trees if place == target]
            wanted = [sum(said) / 2, sum(said), min(said, default=0), max(said, default=0)][aggregate]
            assert scores[target] == dtype(wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_truenodeids": (1, 0, 9)}, "names a node or leaf that is not there"),
        ({"nodes_truenodeids": (0, 0, 2)}, "round in a circle"),
        ({"tree_roots": (0, 7)}, "a tree's root does not exist"),
        ({"leaf_targetids": (0, 1, 2, 1)}, "weights are for targets 0 to 2, there are 2"),
        ({"nodes_featureids": (0, 1, -1)}, "a negative feature"),
        ({"nodes_featureids": (0, 1, 9)}, "looks at feature 9"),
        ({"nodes_featureids": (0, 1)}, "nodes_featureids has 2 elements for 3 nodes"),
        ({"membership_values": None}, "1 nodes look for members of 0 sets"),
        ({"aggregate_function": 4}, "aggregate_function must be 0 to 3"),
        ({"post_transform": -1}, "post_transform must be 0 to 4"),
    ],
)
def test_what_is_no_forest_is_refused(change: dict[str, Any], message: str) -> None:
    model = build_model("TreeEnsemble", [data(2, 3)], {**ENSEMBLE, **change}, domain=ML, opset=5)
    with pytest.raises(InvalidGraph, match=message):
        vkml.InferenceSession(model.SerializeToString(), devices="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_truenodeids": (1, 0, 5)}, None),
        ({"nodes_truenodeids": (7, 0, 0)}, "nodes_truenodeids names the node 7 of tree 0"),
        ({"nodes_modes": ("BRANCH_LEQ", "BRANCH_LEQ", "LEAF")}, "a tree has no root"),
        ({"nodes_modes": ("BRANCH_LEQ", "LEAF", "STUMP")}, "nodes_modes has 'STUMP'"),
        ({"target_nodeids": (1, 3)}, "target_nodeids names the node 3 of tree 0"),
        ({"nodes_nodeids": (0, 1, 1)}, "two nodes of a tree have the same number"),
        ({"base_values": (1.0, 2.0)}, "2 base values for 1 targets"),
        ({"post_transform": "TANH"}, "post_transform must be one of"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(change: dict[str, Any], message: str | None) -> None:
    given = {
        "nodes_treeids": (0, 0, 0),
        "nodes_nodeids": (0, 1, 2),
        "nodes_featureids": (0, 0, 0),
        "nodes_modes": ("BRANCH_LEQ", "LEAF", "LEAF"),
        "nodes_values": (0.5, 0.0, 0.0),
        "nodes_truenodeids": (1, 0, 0),
        "nodes_falsenodeids": (2, 0, 0),
        "target_treeids": (0, 0),
        "target_nodeids": (1, 2),
        "target_ids": (0, 0),
        "target_weights": (1.0, 2.0),
        "n_targets": 1,
        **change,
    }
    model = build_model("TreeEnsembleRegressor", [np.zeros((2, 1), np.float32)], given, domain=ML, opset=3)
    if message is None:  # what leaves say of children is nobody's business
        session = vkml.InferenceSession(model.SerializeToString(), devices="cpu")
        assert session.run(None, {"x0": np.array([[0.0], [1.0]], np.float32)})[0].tolist() == [[1], [2]]
        return
    with pytest.raises(InvalidGraph, match=message):
        vkml.InferenceSession(model.SerializeToString(), devices="cpu")


def test_a_chain_of_ten_thousand_nodes() -> None:
    count = 10_000
    given = {
        "nodes_treeids": (0,) * (2 * count + 1),
        "nodes_nodeids": tuple(range(2 * count + 1)),
        "nodes_featureids": (0,) * (2 * count + 1),
        "nodes_modes": ("BRANCH_LEQ",) * count + ("LEAF",) * (count + 1),
        "nodes_values": tuple(float(at) for at in range(count)) + (0.0,) * (count + 1),
        "nodes_truenodeids": tuple(count + at for at in range(count)) + (0,) * (count + 1),
        "nodes_falsenodeids": (*range(1, count), 2 * count) + (0,) * (count + 1),
        "target_treeids": (0,) * (count + 1),
        "target_nodeids": tuple(range(count, 2 * count + 1)),
        "target_ids": (0,) * (count + 1),
        "target_weights": tuple(float(at) for at in range(count + 1)),
        "n_targets": 1,
    }
    x = np.array([[-3], [0.5], [7777.5], [1e6]], np.float32)
    start = time.process_time()
    [found] = run_operator("TreeEnsembleRegressor", [x], given, domain=ML, opset=3)
    assert found.reshape(-1).tolist() == [0, 1, 7778, 10000]
    assert time.process_time() - start < 10


def test_a_forest_is_loaded_as_arrays() -> None:
    """Half a million nodes took 20 s while elements were looked at one by one, 1.4 since."""
    trees, leaves = random_trees(2000, 6, ["LEQ"])
    given = {**trees, **weights(leaves, "target", [0]), "n_targets": 1}
    model = build_model("TreeEnsembleRegressor", [data(1)], given, domain=ML, opset=3).SerializeToString()
    count = len(trees["nodes_modes"])
    assert count > 50_000
    start = time.thread_time()
    session = vkml.InferenceSession(model, devices="cpu")
    session.run(None, {"x0": data(1)})
    assert time.thread_time() - start < 1 + count * 12e-6


def test_labels_must_be_given_once() -> None:
    trees, leaves = random_trees(1, 2, ["LEQ"])
    given = {**trees, **weights(leaves, "class", [0])}
    model = build_model("TreeEnsembleClassifier", [data(2)], given, domain=ML, opset=3, outputs=2)
    with pytest.raises(InvalidGraph, match="one of classlabels_int64s and classlabels_strings"):
        vkml.InferenceSession(model.SerializeToString(), devices="cpu")


def on_device(op: str, x: Array, given: dict[str, Any], opset: int, outputs: int, device: str) -> list[Array]:
    """The results of a model that runs on the device alone, as the CPU has them."""
    model = build_model(op, [x], given, domain=ML, opset=opset, outputs=outputs).SerializeToString()
    wanted = vkml.InferenceSession(model, devices="cpu").run(None, {"x0": x})
    with vkml.InferenceSession(model, devices=device) as session:
        found = session.run(None, {"x0": x})
        devices = {step.device for step in session.report().steps}
        assert "cpu" not in devices or not runs_everything(device)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine, theirs)
    return found


@pytest.mark.parametrize("modes", [("LEQ",), MODES], ids=["one", "all"])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_trees_are_steps_on_a_device(modes: tuple[str, ...], aggregate: str, vulkan_device_name: str) -> None:
    trees, leaves = random_trees(7, 4, modes)
    given = {**trees, **weights(leaves, "target", [0, 1]), "n_targets": 2, "aggregate_function": aggregate}
    given["base_values"] = (0.5, -1.0)
    on_device("TreeEnsembleRegressor", data(40), given, 3, 1, vulkan_device_name)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("ids", [[0], [1], [0, 1], [0, 1, 2]])
@pytest.mark.parametrize("least", [-1.0, 0.0])
def test_classes_are_steps_on_a_device(
    transform: str, ids: list[int], least: float, vulkan_device_name: str
) -> None:
    trees, leaves = random_trees(5, 3, ["LEQ"], missing=False)
    given = {**trees, **weights(leaves, "class", ids, least), "post_transform": transform}
    given["classlabels_int64s"] = (3, 8, 9)[: max(2, len(ids))]
    given["class_weights"] = tuple(weight / 5 for weight in given["class_weights"])
    label, _ = on_device("TreeEnsembleClassifier", data(40), given, 3, 2, vulkan_device_name)
    assert len(set(label.tolist())) > 1


def test_members_of_sets_are_steps_on_a_device(vulkan_device_name: str) -> None:
    on_device("TreeEnsemble", data(30, 3), ENSEMBLE, 5, 1, vulkan_device_name)


def test_what_has_no_steps_runs_on_the_host(vulkan_device_name: str) -> None:
    """Labels that are texts, PROBIT; what is round them still runs on the device."""
    trees, leaves = random_trees(5, 4, ["LEQ"])
    given = {**trees, **weights(leaves, "target", [0, 1]), "n_targets": 2, "post_transform": "PROBIT"}
    model = build_model("TreeEnsembleRegressor", [data(6)], given, domain=ML, opset=3)
    [node] = model.graph.node
    node.input[0], node.output[0] = "moved", "said"
    model.graph.node.insert(0, helper.make_node("Exp", ["x0"], ["moved"]))
    model.graph.node.append(helper.make_node("Tanh", ["said"], ["y0"]))
    x = np.nan_to_num(data(6))
    session = vkml.InferenceSession(model.SerializeToString(), devices=vulkan_device_name)
    [found] = session.run(None, {"x0": x})
    where = {step.operators: step.device == "cpu" for step in session.report().steps}
    assert where == {("Exp",): False, ("TreeEnsembleRegressor",): True, ("Tanh",): False}
    [wanted] = vkml.InferenceSession(model.SerializeToString(), devices="cpu").run(None, {"x0": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
