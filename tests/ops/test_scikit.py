"""Models of scikit-learn's estimators by skl2onnx: as scikit-learn predicts, and as onnxruntime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn import (
    cluster,
    compose,
    datasets,
    decomposition,
    ensemble,
    impute,
    linear_model,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

import vkml

X, CLASSES = datasets.make_classification(150, 6, n_informative=4, n_classes=3, random_state=0)
X = X.astype(np.float32)
TWO = (CLASSES > 0).astype(np.int64)
NUMBERS = (X @ np.arange(6) + np.sin(X[:, 0])).astype(np.float32)
HOLES = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X).astype(np.float32)
NAMES = np.array(["no", "yes", "maybe"])[CLASSES]
few = {"n_estimators": 10, "max_depth": 4, "random_state": 0}
scaled = preprocessing.StandardScaler

ESTIMATORS: dict[str, tuple[Any, Any, Any]] = {
    "linear": (linear_model.LinearRegression(), X, NUMBERS),
    "ridge of two": (linear_model.Ridge(), X, np.stack([NUMBERS, -NUMBERS], axis=1)),
    "logistic": (linear_model.LogisticRegression(), X, TWO),
    "logistic of three names": (linear_model.LogisticRegression(), X, NAMES),
    "SGD": (linear_model.SGDClassifier(loss="log_loss", random_state=0), X, CLASSES),
    "SVC": (svm.SVC(), X, CLASSES),
    "SVC of two": (svm.SVC(kernel="poly"), X, TWO),
    "linear SVC": (svm.LinearSVC(), X, CLASSES),
    "SVR": (svm.SVR(), X, NUMBERS),
    "one class": (svm.OneClassSVM(nu=0.3), X, None),
    "tree": (tree.DecisionTreeClassifier(max_depth=5, random_state=0), X, CLASSES),
    "regression tree": (tree.DecisionTreeRegressor(max_depth=5, random_state=0), X, NUMBERS),
    "forest": (ensemble.RandomForestClassifier(**few), X, NAMES),
    "forest of two": (ensemble.RandomForestClassifier(**few), X, TWO),
    "extra trees": (ensemble.ExtraTreesRegressor(**few), X, NUMBERS),
    "boosting": (ensemble.GradientBoostingClassifier(**few), X, CLASSES),
    "boosting of two": (ensemble.GradientBoostingClassifier(**few), X, TWO),
    "boosted regression": (ensemble.GradientBoostingRegressor(**few), X, NUMBERS),
    "isolation forest": (ensemble.IsolationForest(n_estimators=10, random_state=0), X, None),
    "neighbours": (neighbors.KNeighborsClassifier(), X, CLASSES),
    "neighbours, regression": (neighbors.KNeighborsRegressor(), X, NUMBERS),
    "naive Bayes": (naive_bayes.GaussianNB(), X, CLASSES),
    "Bernoulli": (naive_bayes.BernoulliNB(binarize=0.1), X, CLASSES),
    "MLP": (neural_network.MLPClassifier((8,), max_iter=30, random_state=0), X, CLASSES),
    "k-means": (cluster.KMeans(3, n_init=1, random_state=0), X, None),
    "PCA": (decomposition.PCA(3), X, None),
    "scaler": (scaled(), X, None),
    "robust": (preprocessing.RobustScaler(), X, None),
    "polynomials": (preprocessing.PolynomialFeatures(2), X, None),
    "normalizer": (preprocessing.Normalizer("l1"), X, None),
    "binarizer": (preprocessing.Binarizer(threshold=0.2), X, None),
    "imputer": (pipeline.make_pipeline(impute.SimpleImputer(), scaled()), HOLES, None),
    "pipeline": (
        pipeline.make_pipeline(scaled(), decomposition.PCA(4), linear_model.LogisticRegression()),
        X,
        NAMES,
    ),
}


def check(made: Any, feed: dict[str, Any], wanted: list[Any], device: str) -> None:
    """Compares with what scikit-learn predicts, labels first, and with all that onnxruntime answers."""
    import onnxruntime

    found = vkml.InferenceSession(made.SerializeToString(), devices=device).run(None, feed)
    other = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(found, other.run(None, feed), strict=True):
        if isinstance(theirs, list):
            assert [list(row) for row in mine] == [list(row) for row in theirs]
            mine, theirs = ([list(row.values()) for row in each] for each in (mine, theirs))
        if np.asarray(theirs).dtype.kind in "fc":
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
        else:
            assert np.asarray(mine).tolist() == np.asarray(theirs).tolist()
    for mine, theirs in zip(found, wanted, strict=False):
        if isinstance(mine, list):
            mine = [list(row.values()) for row in mine]
        if np.asarray(theirs).dtype.kind in "fc":
            theirs = np.asarray(theirs).reshape(np.shape(mine))
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)
        else:
            assert np.mean(np.asarray(mine).reshape(-1) == np.asarray(theirs).reshape(-1)) > 0.95


def predicted(estimator: Any, x: Any) -> list[Any]:
    if not hasattr(estimator, "predict") or isinstance(estimator, cluster.KMeans):
        return [estimator.predict(x)] if hasattr(estimator, "predict") else [estimator.transform(x)]
    wanted = [estimator.predict(x)]
    if hasattr(estimator, "predict_proba"):
        wanted.append(estimator.predict_proba(x))
    return wanted


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimator(name: str, device_name: str) -> None:
    estimator, x, y = ESTIMATORS[name]
    estimator.fit(x[:120], y if y is None else y[:120])
    target = {"": 21, "ai.onnx.ml": 3}
    check(
        to_onnx(estimator, x[:1], target_opset=target),
        {"X": x[100:]},
        predicted(estimator, x[100:]),
        device_name,
    )


def test_scores_as_arrays(device_name: str) -> None:
    estimator = ensemble.RandomForestClassifier(**few).fit(X, CLASSES)
    made = to_onnx(estimator, X[:1], options={"zipmap": False}, target_opset={"": 21, "ai.onnx.ml": 3})
    check(made, {"X": X[:40]}, predicted(estimator, X[:40]), device_name)


def test_columns_of_strings_and_numbers(device_name: str) -> None:
    colours = np.random.default_rng(0).choice(["red", "green", "blue"], len(X))
    table = np.concatenate([X[:, :2].astype(object), colours[:, None].astype(object)], axis=1)
    parts = [("n", scaled(), [0, 1]), ("c", preprocessing.OneHotEncoder(handle_unknown="ignore"), [2])]
    estimator = pipeline.make_pipeline(compose.ColumnTransformer(parts), linear_model.LogisticRegression())
    estimator.fit(table, TWO)
    inputs = [("numbers", FloatTensorType([None, 2])), ("colour", StringTensorType([None, 1]))]
    made = to_onnx(estimator, initial_types=inputs, target_opset={"": 21, "ai.onnx.ml": 3})
    feed = {"numbers": X[:, :2], "colour": table[:, 2:]}
    check(made, feed, predicted(estimator, table), device_name)
