"""com.microsoft's operators on strings, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.ops.checking import build_model, run_operator
from vkml.errors import InvalidGraph

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
PLAIN = {"mark": 0, "mincharnum": 1, "pad_value": "#"}


def by_onnxruntime(op: str, x: Array, given: dict[str, Any]) -> Array:
    model = build_model(op, [x], given, opset=1, domain=MICROSOFT)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def check(op: str, x: Array, given: dict[str, Any]) -> Array:
    """That onnxruntime's result is ours, which is returned."""
    wanted = by_onnxruntime(op, x, given)
    [found] = run_operator(op, [x], given, opset=1, domain=MICROSOFT)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype, (found.shape, wanted.shape)
    assert found.tolist() == wanted.tolist(), (x.tolist(), given)
    return np.asarray(found)


TEXTS = ["a b", "c  d", "", " éab ", "ab1bcab", "aXXXb\n", "x1 y22 zß", "abc def abc"]
TOKENS: list[dict[str, Any]] = [
    {"separators": (" ",)},
    {"separators": (" ",), "mark": 1},
    {"separators": ("b", "b1", "bc")},
    {"separators": ("b1|b", "[[:space:]]+", "c$")},
    {"separators": ("X*",)},
    {"separators": ("X|XX",), "mincharnum": 2},
    {"separators": ("",)},
    {"separators": ("", " ")},
    {"tokenexp": "[a-z]+"},
    {"tokenexp": "a|ab|abc"},
    {"tokenexp": "[a-z]*", "mincharnum": 2},
    {"tokenexp": "."},
    {"tokenexp": "^abc|f$"},
    {"tokenexp": r"\b\w\w+\b", "mark": 1},
    {"tokenexp": "[^ ]+", "mincharnum": 3},
    {"tokenexp": "nothing of these", "mark": 1},
]


@pytest.mark.parametrize("given", TOKENS, ids=str)
def test_tokens(given: dict[str, Any]) -> None:
    settings = {**PLAIN, **given}
    check("Tokenizer", np.array(TEXTS, np.object_), settings)
    check("Tokenizer", np.array(TEXTS, np.object_).reshape(4, 2), settings)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_texts_have_no_tokens(shape: tuple[int, ...]) -> None:
    check("Tokenizer", np.zeros(shape, np.object_), {**PLAIN, "separators": (" ",)})


def test_tokens_of_random_texts() -> None:
    generator = np.random.default_rng(0)
    patterns = ["a+b?", "(ab|a)(b|ca)*", r"\b[ab]+", "b*", "a.c", "[^a]+", r"c\B"]
    for number in range(120):
        texts = ["".join(generator.choice([*"aabbcc \n"], generator.integers(0, 12))) for _ in range(6)]
        key = "tokenexp" if number % 2 else "separators"
        value: Any = patterns[number % 7] if key == "tokenexp" else (patterns[number % 7], "cc")
        given = {**PLAIN, key: value, "mincharnum": int(generator.integers(1, 3))}
        check("Tokenizer", np.array(texts, np.object_), given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither separators nor tokenexp"),
        ({"tokenexp": "("}, "none of RE2's"),
        ({"tokenexp": "a", "mincharnum": 0}, "1 at least"),
        ({"tokenexp": ".", "mincharnum": 2}, "tokens are characters"),
    ],
)
def test_what_is_no_tokenizer(given: dict[str, Any], message: str) -> None:
    model = build_model("Tokenizer", [np.array(["a"], np.object_)], {**PLAIN, **given}, domain=MICROSOFT)
    with pytest.raises(InvalidGraph, match=message):
        vkml.InferenceSession(model.SerializeToString(), devices="cpu")


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
def test_hashes_of_numbers(dtype: Any, positive: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = (generator.standard_normal((3, 5)) * 1000).astype(np.int64).astype(dtype)
    check("MurmurHash3", x, {"positive": positive, "seed": seed})


def test_hashes_of_texts() -> None:
    words = ["", "a", "ab", "abc", "abcd", "abcde", "hello", "naïve", "x" * 37]
    found = check("MurmurHash3", np.array(words, np.object_), {"positive": 1, "seed": 3})
    assert len(set(found.tolist())) == len(words)
