"""Linear models and support vector machines of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import FLOAT32, INT64, STRING
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Node
from vkml.ir.operator import FLOATS, INTS, OPTIONAL, REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import present
from vkml.ops.predictor_steps import (
    beside,
    finished_scores,
    labels_of_greatest,
    labels_of_truths,
    other_share,
    products_of,
    rows_of,
    transformed_scores,
)
from vkml.ops.scores import (
    DOMAIN,
    LABEL_TYPES,
    as_rows,
    check_transform,
    label_array,
    labels_of,
    logistic,
    rows_and_features,
    transformed,
)

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_DISTANCES = 1 << 22
"""Pairs of a row and a support vector that are looked at at a time."""


def _floats(node: Node, name: str) -> Array:
    return np.asarray(node.attributes[name] or (), np.float32)


def _finished(transform: str, scores: Array) -> Array:
    """Scores after a post transform; a single one of a row, as onnxruntime does it, only by PROBIT."""
    return scores if scores.shape[1] == 1 and transform != "PROBIT" else transformed(transform, scores)


class _Predictor(Operator):
    domain = DOMAIN

    def width(self, node: Node) -> int:
        """How many features its coefficients are for."""
        raise NotImplementedError(self.name)

    def rows(self, node: Node, inputs: Sequence[Known | None]) -> int:
        _, rows, width = rows_and_features(node, inputs)
        if width != self.width(node):
            raise InvalidGraph(
                f"{node.label}: its coefficients are for {self.width(node)} features, the input has {width}"
            )
        return rows


def _parted(node: Node, name: str, parts: int, what: str) -> Array:
    """A list of coefficients as rows of equal length."""
    found = _floats(node, name)
    if parts < 1 or len(found) % parts or not len(found):
        raise InvalidGraph(f"{node.label}: {name} has {len(found)} numbers for {parts} {what}")
    return found.reshape(parts, -1)


def _linear(x: Array, coefficients: Array, intercepts: Array) -> Array:
    scores = as_rows(x).astype(np.float32, copy=False) @ coefficients.T
    return np.asarray(scores + intercepts if len(intercepts) else scores)


@operator()
class LinearRegressor(_Predictor):
    """Products of features and coefficients, and intercepts, for some targets."""

    attributes = {"coefficients": OPTIONAL, "intercepts": OPTIONAL, "post_transform": "NONE", "targets": 1}
    attribute_types = {"coefficients": FLOATS, "intercepts": FLOATS}

    def check(self, node: Node) -> None:
        check_transform(node)
        self._coefficients(node)
        if len(_floats(node, "intercepts")) not in (0, node.attributes["targets"]):
            raise InvalidGraph(
                f"{node.label}: there are {len(_floats(node, 'intercepts'))} intercepts for "
                f"{node.attributes['targets']} targets"
            )

    def _coefficients(self, node: Node) -> Array:
        return _parted(node, "coefficients", node.attributes["targets"], "targets")

    def width(self, node: Node) -> int:
        return int(self._coefficients(node).shape[1])

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [static(FLOAT32, (self.rows(node, inputs), node.attributes["targets"]))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        scores = _linear(present(inputs, 0), self._coefficients(node), _floats(node, "intercepts"))
        return [_finished(node.attributes["post_transform"], scores)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        x = rows_of(build, present(inputs, 0), FLOAT32)
        scores = products_of(build, x, self._coefficients(node), _floats(node, "intercepts"))
        made = finished_scores(build, node.attributes["post_transform"], scores)
        return None if made is None else [made]


@operator()
class LinearClassifier(_Predictor):
    """The class whose linear score is largest, and the score of each."""

    outputs = (1, 2)
    attributes = {
        "classlabels_ints": OPTIONAL,
        "classlabels_strings": OPTIONAL,
        "coefficients": REQUIRED,
        "intercepts": OPTIONAL,
        "multi_class": 0,
        "post_transform": "NONE",
    }
    attribute_types = {**LABEL_TYPES, "coefficients": FLOATS, "intercepts": FLOATS}

    def check(self, node: Node) -> None:
        check_transform(node)
        scores, labels = self._scores(node), len(labels_of(node, "classlabels_ints")[1])
        if scores != labels and (scores, labels) != (1, 2):
            raise InvalidGraph(f"{node.label}: there are {scores} scores for {labels} classes")
        self._coefficients(node)

    def _scores(self, node: Node) -> int:
        return len(_floats(node, "intercepts")) or len(labels_of(node, "classlabels_ints")[1])

    def _coefficients(self, node: Node) -> Array:
        return _parted(node, "coefficients", self._scores(node), "scores")

    def width(self, node: Node) -> int:
        return int(self._coefficients(node).shape[1])

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        dtype, labels = labels_of(node, "classlabels_ints")
        rows = self.rows(node, inputs)
        return [static(dtype, (rows,)), static(FLOAT32, (rows, len(labels)))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        dtype, labels = labels_of(node, "classlabels_ints")
        scores = _linear(present(inputs, 0), self._coefficients(node), _floats(node, "intercepts"))
        transform = node.attributes["post_transform"]
        if scores.shape[1] == 1 < len(labels):
            # Of one score, onnxruntime makes two by LOGISTIC or PROBIT, and else a share of 1 and the rest.
            chosen = (scores[:, 0] > 0).astype(np.intp)
            is_margin = transform == "LOGISTIC"
            scores = np.concatenate([-scores if is_margin else 1 - scores, scores], axis=1)
            if transform not in ("LOGISTIC", "PROBIT"):
                transform = "NONE"
        else:
            chosen = scores.argmax(axis=1)
        return [label_array(dtype, labels)[chosen], transformed(transform, scores)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        dtype, labels = labels_of(node, "classlabels_ints")
        if dtype == STRING:
            return None
        x = rows_of(build, present(inputs, 0), FLOAT32)
        scores = products_of(build, x, self._coefficients(node), _floats(node, "intercepts"))
        transform = node.attributes["post_transform"]
        if build.type_of(scores).dims[1] == 1 < len(labels):
            is_second = build.apply("Greater", scores, build.constant(0, FLOAT32))
            chosen = labels_of_truths(build, labels, is_second)
            is_margin = transform == "LOGISTIC"
            scores = beside(
                build, build.apply("Neg", scores) if is_margin else other_share(build, scores), scores
            )
            transform = transform if transform in ("LOGISTIC", "PROBIT") else "NONE"
        else:
            chosen = labels_of_greatest(build, labels, scores)
        made = transformed_scores(build, transform, scores)
        return None if made is None else [chosen, made][: len(node.outputs)]


class _SupportVectors(_Predictor):
    """What support vector machines share: kernels of rows and vectors."""

    attributes = {
        "coefficients": OPTIONAL,
        "kernel_params": OPTIONAL,
        "kernel_type": "LINEAR",
        "post_transform": "NONE",
        "rho": OPTIONAL,
        "support_vectors": OPTIONAL,
    }
    attribute_types = dict.fromkeys(("coefficients", "kernel_params", "rho", "support_vectors"), FLOATS)

    def count(self, node: Node) -> int:
        """Of the support vectors; 0 where a model is linear and its coefficients are for the features."""
        raise NotImplementedError(self.name)

    def check(self, node: Node) -> None:
        check_transform(node)
        if node.attributes["kernel_type"] not in _KERNELS or len(_floats(node, "kernel_params")) not in (
            0,
            3,
        ):
            raise InvalidGraph(
                f"{node.label}: kernel_type must be one of {', '.join(_KERNELS)}, kernel_params three numbers"
            )
        if not len(_floats(node, "rho")):
            raise InvalidGraph(f"{node.label}: rho is missing")
        self.width(node)

    def vectors(self, node: Node) -> Array:
        return _parted(node, "support_vectors", self.count(node), "support vectors")

    def kernel(self, node: Node, x: Array) -> Array:
        """[rows, vectors]: the kernel of each row and support vector."""
        vectors, name = self.vectors(node), node.attributes["kernel_type"]
        parameters = _floats(node, "kernel_params")
        gamma, offset, degree = parameters if len(parameters) else np.zeros(3, np.float32)
        if name == "RBF":
            # Differences, not |x|² + |v|² - 2xv, of which little is left where they are near each other.
            made = np.empty((len(x), len(vectors)), np.float32)
            step = max(1, _DISTANCES // max(1, vectors.size))
            for at in range(0, len(x), step):
                apart = x[at : at + step, None] - vectors
                made[at : at + step] = np.exp(-gamma * np.einsum("rvf,rvf->rv", apart, apart))
            return made
        products = x @ vectors.T
        if name == "LINEAR":
            return np.asarray(products)
        products = gamma * products + offset
        return np.asarray(products**degree if name == "POLY" else np.tanh(products))

    def kernel_steps(self, build: Emitter[T], node: Node, x: T) -> T:
        """`kernel` in other operators."""
        vectors, name = self.vectors(node), node.attributes["kernel_type"]
        parameters = _floats(node, "kernel_params")
        gamma, offset, degree = parameters if len(parameters) else np.zeros(3, np.float32)
        if name == "RBF":
            apart = build.apply(
                "Sub",
                build.apply("Unsqueeze", x, build.constant([1], INT64)),
                build.constant(vectors, FLOAT32),
            )
            squares = build.apply("ReduceSumSquare", apart, build.constant([2], INT64), keepdims=0)
            return build.apply("Exp", build.apply("Mul", squares, build.constant(-gamma, FLOAT32)))
        products = products_of(build, x, vectors, np.zeros(0, np.float32))
        if name == "LINEAR":
            return products
        products = build.apply("Mul", products, build.constant(gamma, FLOAT32))
        products = build.apply("Add", products, build.constant(offset, FLOAT32))
        if name == "POLY":
            return build.apply("Pow", products, build.constant(degree, FLOAT32))
        return build.apply("Tanh", products)


@operator()
class SVMRegressor(_SupportVectors):
    """What a support vector machine predicts of one target; of one class, whether a row is in it."""

    attributes = {**_SupportVectors.attributes, "n_supports": 0, "one_class": 0}

    def count(self, node: Node) -> int:
        return int(node.attributes["n_supports"])

    def width(self, node: Node) -> int:
        coefficients = _floats(node, "coefficients")
        if not self.count(node):
            return len(coefficients)
        if len(coefficients) != self.count(node):
            raise InvalidGraph(
                f"{node.label}: there are {len(coefficients)} coefficients for {self.count(node)} support "
                "vectors"
            )
        return int(self.vectors(node).shape[1])

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [static(FLOAT32, (self.rows(node, inputs), 1))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = as_rows(present(inputs, 0)).astype(np.float32, copy=False)
        with np.errstate(all="ignore"):
            values = self.kernel(node, x) if self.count(node) else x
            scores = (values @ _floats(node, "coefficients") + _floats(node, "rho")[0]).reshape(-1, 1)
        if node.attributes["one_class"]:
            scores = np.where(scores > 0, np.float32(1), np.float32(-1))
        return [_finished(node.attributes["post_transform"], scores)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        x = rows_of(build, present(inputs, 0), FLOAT32)
        values = self.kernel_steps(build, node, x) if self.count(node) else x
        scores = products_of(build, values, _floats(node, "coefficients")[None], _floats(node, "rho")[:1])
        if node.attributes["one_class"]:
            one, other = (build.constant(number, FLOAT32) for number in (1, -1))
            is_in = build.apply("Greater", scores, build.constant(0, FLOAT32))
            scores = build.apply("Where", is_in, one, other)
        made = finished_scores(build, node.attributes["post_transform"], scores)
        return None if made is None else [made]


@operator()
class SVMClassifier(_SupportVectors):
    """The class that most pairs of classes vote for, and scores: probabilities, or those of the pairs."""

    outputs = (1, 2)
    attributes = {
        **_SupportVectors.attributes,
        "classlabels_ints": OPTIONAL,
        "classlabels_strings": OPTIONAL,
        "prob_a": OPTIONAL,
        "prob_b": OPTIONAL,
        "vectors_per_class": OPTIONAL,
    }
    attribute_types = {
        **_SupportVectors.attribute_types,
        **LABEL_TYPES,
        "prob_a": FLOATS,
        "prob_b": FLOATS,
        "vectors_per_class": INTS,
    }

    def count(self, node: Node) -> int:
        return int(sum(node.attributes["vectors_per_class"] or ()))

    def _classes(self, node: Node) -> int:
        return len(labels_of(node, "classlabels_ints")[1])

    def _pairs(self, node: Node) -> int:
        return self._classes(node) * (self._classes(node) - 1) // 2

    def check(self, node: Node) -> None:
        super().check(node)
        if not self.count(node):
            return
        pairs, classes = self._pairs(node), self._classes(node)
        found = {name: len(_floats(node, name)) for name in ("rho", "prob_a", "prob_b")}
        if found["rho"] < pairs or found["prob_a"] != found["prob_b"] or found["prob_a"] not in (0, pairs):
            raise InvalidGraph(f"{node.label}: there are {found} numbers for {pairs} pairs of classes")
        if len(node.attributes["vectors_per_class"]) != classes or classes < 2:
            raise InvalidGraph(
                f"{node.label}: vectors_per_class are {list(node.attributes['vectors_per_class'])} for "
                f"{classes} classes; at least two are needed"
            )
        if len(_floats(node, "coefficients")) != (classes - 1) * self.count(node):
            raise InvalidGraph(
                f"{node.label}: there are {len(_floats(node, 'coefficients'))} coefficients for {classes} "
                f"classes and {self.count(node)} support vectors"
            )

    def width(self, node: Node) -> int:
        if self.count(node):
            return int(self.vectors(node).shape[1])
        return int(_parted(node, "coefficients", self._classes(node), "classes").shape[1])

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        dtype, labels = labels_of(node, "classlabels_ints")
        rows = self.rows(node, inputs)
        is_of_pairs = self.count(node) and not node.attributes["prob_a"] and len(labels) > 2
        return [
            static(dtype, (rows,)),
            static(FLOAT32, (rows, self._pairs(node) if is_of_pairs else len(labels))),
        ]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = as_rows(present(inputs, 0)).astype(np.float32, copy=False)
        dtype, labels = labels_of(node, "classlabels_ints")
        names, transform = label_array(dtype, labels), node.attributes["post_transform"]
        with np.errstate(all="ignore"):
            if not self.count(node):
                coefficients = _parted(node, "coefficients", len(labels), "classes")
                scores = x @ coefficients.T + _floats(node, "rho")[0]
                return [names[scores.argmax(axis=1)], transformed(transform, scores)]
            pairs, votes = self._of_pairs(node, self.kernel(node, x))
            chosen = votes.argmax(axis=1)
            if node.attributes["prob_a"]:
                scores = _coupled(
                    len(labels), 1 - logistic(pairs * _floats(node, "prob_a") + _floats(node, "prob_b"))
                )
                return [names[chosen], transformed(transform, scores)]
            if len(labels) == 2:
                return [names[chosen], _of_two(transform, pairs)]
        return [names[chosen], transformed(transform, pairs)]

    def _of_pairs(self, node: Node, kernel: Array) -> tuple[Array, Array]:
        """The decision of each pair of classes, [rows, pairs], and how many are for each class."""
        counts = node.attributes["vectors_per_class"]
        classes, ends = len(counts), np.cumsum(counts)
        coefficients = _floats(node, "coefficients").reshape(classes - 1, -1)
        rho = _floats(node, "rho")
        scores = np.empty((len(kernel), self._pairs(node)), np.float32)
        votes = np.zeros((len(kernel), classes), np.int64)
        number = 0
        for i in range(classes):
            of_i = slice(ends[i] - counts[i], ends[i])
            for j in range(i + 1, classes):
                of_j = slice(ends[j] - counts[j], ends[j])
                score = kernel[:, of_i] @ coefficients[j - 1, of_i] + kernel[:, of_j] @ coefficients[i, of_j]
                scores[:, number] = score = score + rho[number]
                votes[:, i] += score > 0
                votes[:, j] += ~(score > 0)
                number += 1
        return scores, votes


def _of_two(transform: str, score: Array) -> Array:
    """Both scores of two classes that one decision was made between, as onnxruntime writes them."""
    is_margin = transform in ("NONE", "LOGISTIC")
    both = np.concatenate([-score if is_margin else 1 - score, score], axis=1)
    return transformed(transform, both) if transform in ("LOGISTIC", "PROBIT") else both


def _coupled(classes: int, pairs: Array) -> Array:
    """Probabilities of classes from those of pairs, [rows, pairs].

    T.-F. Wu, C.-J. Lin, R. C. Weng, "Probability Estimates for Multi-class Classification by Pairwise
    Coupling", 2004, algorithm 2, with libsvm's bounds: the iteration ends for a row where its error is below
    0.005 / classes.
    """
    rows, least = len(pairs), 1e-7
    shares = np.zeros((rows, classes, classes))
    upper = np.triu_indices(classes, 1)
    shares[:, upper[0], upper[1]] = np.clip(pairs, least, 1 - least)
    shares[:, upper[1], upper[0]] = 1 - shares[:, upper[0], upper[1]]
    q = -shares.transpose(0, 2, 1) * shares
    diagonal = np.arange(classes)
    q[:, diagonal, diagonal] = np.square(shares).sum(axis=1)
    p = np.full((rows, classes), 1 / classes)
    going = np.arange(rows)
    for _ in range(max(100, classes)):
        part, weights = p[going], q[going]
        qp = np.einsum("rij,rj->ri", weights, part)
        total = (part * qp).sum(axis=1)
        is_going = np.abs(qp - total[:, None]).max(axis=1) >= 0.005 / classes
        going, part, weights, qp, total = (each[is_going] for each in (going, part, weights, qp, total))
        if not len(going):
            break
        for t in range(classes):
            step = (total - qp[:, t]) / weights[:, t, t]
            part[:, t] += step
            total = (total + step * (step * weights[:, t, t] + 2 * qp[:, t])) / (1 + step) ** 2
            qp = (qp + step[:, None] * weights[:, t]) / (1 + step)[:, None]
            part /= (1 + step)[:, None]
        p[going] = part
    return p.astype(np.float32)
