"""Operators on strings: against onnxruntime, and RE2's syntax by its own words."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, run_operator
from vkml import errors
from vkml.errors import InvalidGraph, ShapeError
from vkml.ops import automata
from vkml.ops.regular_expressions import compiled

Array = np.ndarray[Any, Any]


def texts(*items: Any) -> Array:
    return np.array(items, np.object_)


def test_concatenated() -> None:
    check_operator("StringConcat", [texts("a", "é", "").reshape(3, 1), texts("x", "")], opset=20)
    [found] = run_operator("StringConcat", [texts(b"a"), texts("é")], opset=20)
    assert found.tolist() == ["aé"]
    [nothing] = run_operator("StringConcat", [np.zeros((0, 2), np.object_), texts("a")], opset=20)
    assert nothing.shape == (0, 2)


@pytest.mark.parametrize("delimiter", [None, "", ",", ", "])
@pytest.mark.parametrize("limit", [None, 1])
def test_split(delimiter: str | None, limit: int | None) -> None:
    x = texts("a, b,,c ", "", " one two  three", "ab").reshape(2, 2)
    given = {"delimiter": delimiter, "maxsplit": limit}
    # onnxruntime counts no part of an empty string, and Python, whose function ONNX's words are of, one.
    check_operator("StringSplit", [x], given, opset=20, outputs=2, against="onnx")


@pytest.mark.parametrize("action", ["LOWER", "UPPER", "NONE"])
@pytest.mark.parametrize("sensitive", [0, 1])
@pytest.mark.parametrize("stop", [None, ("monday", "Été")])
def test_normalised(action: str, sensitive: int, stop: tuple[str, ...] | None) -> None:
    x = texts("Monday", "monday", "été", "Tuesday")
    given = {
        "case_change_action": action,
        "is_case_sensitive": sensitive,
        "stopwords": stop,
        "locale": "en_US",
    }
    [found] = run_operator("StringNormalizer", [x], given, opset=10)
    kept = [text for text in x if text not in (stop or ())] if sensitive or stop is None else ["Tuesday"]
    change = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}[action]
    assert found.tolist() == [change(text) for text in kept]


def test_normalised_to_nothing() -> None:
    given = {"stopwords": ("a",)}
    check_operator("StringNormalizer", [texts("a").reshape(1, 1)], given, opset=10)
    [found] = run_operator("StringNormalizer", [texts("a", "A")], given, opset=10)
    assert found.tolist() == [""]  # case does not matter; to onnxruntime it does unless it changes it
    with pytest.raises(ShapeError, match=r"\[C\] or \[1, C\]"):
        run_operator("StringNormalizer", [texts("a", "b").reshape(2, 1)], given, opset=10)


MATCHES = [
    (r"\w+@\w+\.com", ["a_1@b.com", "é@b.com", "a@bxcom"], [1, 0, 0]),
    (r"a$", ["a", "a\n", "b"], [1, 0, 0]),
    (r"^a\z", ["a", "a\n"], [1, 0]),
    (r"a.b", ["axb", "a\nb", "aéb"], [1, 0, 1]),
    (r"(?s)a.b", ["a\nb"], [1]),
    (r"a(?i)b|c", ["aB", "Ab", "C"], [1, 0, 1]),
    (r"(?i:a)b", ["Ab", "AB"], [1, 0]),
    (r"(a(?i)b)c", ["aBc", "aBC"], [1, 0]),
    (r"a{,3}", ["a{,3}", "aa", ""], [1, 0, 0]),
    (r"a{2,3}b{2}c{1,}", ["aabbc", "abbc", "aaaabbc"], [1, 0, 0]),
    (r"\Qa.b\E+", ["a.bb", "a.b", "axb"], [1, 1, 0]),
    (r"[[:alpha:]\d_-]+", ["aZ0_-", "é", "a."], [1, 0, 0]),
    (r"[[:^digit:]]", ["a", "7"], [1, 0]),
    (r"[^\Wa]", ["b", "a", "!"], [1, 0, 0]),
    (r"[]a-c^-]+", ["]b^-", "d"], [1, 0]),
    (r"\x{e9}\x41\101\n\t\.", ["éAA\n\t."], [1]),
    (r"\pL\PL\p{Lu}\p{^Lu}", ["é1Éé", "11Éé"], [1, 0]),
    (r"(?P<year>\d{4})-(?<month>\d\d)", ["2024-05", "2024-5"], [1, 0]),
    (r"\ba\b \Bb?", ["a ", "a b"], [1, 0]),
    (r"a\sb", ["a b", "a\vb", "a\xa0b"], [1, 0, 0]),
    (r"(?U)a+?b*", ["aab"], [1]),
    (r"(?m)a$\n^b", ["a\nb"], [1]),
    (r"", ["", "a"], [1, 0]),
    (r"a||b", ["", "a", "b"], [1, 1, 1]),
    (r"(?i)straße", ["STRAßE", "STRASSE"], [1, 0]),
]


@pytest.mark.parametrize(("pattern", "strings", "wanted"), MATCHES, ids=[each[0] for each in MATCHES])
def test_matched(pattern: str, strings: list[str], wanted: list[int]) -> None:
    x = texts(*strings)
    check_operator("RegexFullMatch", [x], {"pattern": pattern}, opset=20)
    [found] = run_operator("RegexFullMatch", [x], {"pattern": pattern}, opset=20)
    assert found.astype(int).tolist() == wanted


NO_EXPRESSIONS = r"(?=a) (?<!a)b (a)\1 a*+ a** *a (a a) [a [b-a] a{1001} \y \Z (?P<a>.)(?P<a>.) (?>a) (?#a)"


@pytest.mark.parametrize("pattern", [*NO_EXPRESSIONS.split(), r"\x{110000}", "a\\", "[[:letter:]]", "(?)"])
def test_what_is_no_expression_of_re2(pattern: str) -> None:
    model = build_model("RegexFullMatch", [texts("a")], {"pattern": pattern}, opset=20)
    with pytest.raises(InvalidGraph, match="is none of RE2's"):
        vkml.InferenceSession(model.SerializeToString(), devices="cpu")


def test_expressions_agree_with_re2() -> None:
    """Random ones of all that the syntax has."""
    re2 = pytest.importorskip("re2")
    options = re2.Options()
    options.log_errors = False
    generator = np.random.default_rng(0)
    parts = [
        *"ab.|()[]^$*+?-{}\\ \n1,:",
        "\\d",
        "\\W",
        "\\b",
        "(?i)",
        "(?s:",
        "[[:lower:]]",
        "{1,2}",
        "\\Q",
        "\\E",
    ]
    parts += ["(?P<n>", "\\pL", "\\x41", "\\012", "\\z", "[^", "a-b", "(?m)", "\\s", "(?-i)", "(?:", "{2}"]
    read = 0
    for _ in range(3000):
        pattern = "".join(generator.choice(parts, generator.integers(1, 7)))
        try:
            theirs = re2.compile(pattern, options)
        except re2.error:
            theirs = None
        try:
            mine = compiled("here", pattern)
        except (InvalidGraph, errors.NotImplemented):
            mine = None
        if re.search(r"[*+?}]\(\?[a-zA-Z-]+\)[*+?{]", pattern):  # what is repeated already, once more
            continue
        assert (mine is None) == (theirs is None), repr(pattern)
        if mine is None or theirs is None:
            continue
        read += 1
        for _ in range(8):
            text = "".join(generator.choice([*"abAB1 .\n-^]é_"], generator.integers(0, 4)))
            assert mine.matches(text) == (theirs.fullmatch(text) is not None), (pattern, text)
    assert read > 1000


def expression(generator: np.random.Generator, depth: int) -> str:
    """A random one of RE2's."""
    kind = generator.integers(6) if depth else 0
    if kind == 0:
        atoms = ["a", "b", "b", ".", "[^b]", "\\b", "\\B", "^", "$", "\n", "", "(?i)", "(?m)"]
        return str(generator.choice(atoms))
    inside = expression(generator, depth - 1)
    if kind == 1:
        return f"(?:{inside})" + str(generator.choice(["*", "+", "?", "{1,2}", "{2,}", "{0,3}", "*?"]))
    return inside + str(generator.choice(["", "", "|"])) + expression(generator, depth - 1)


def test_expressions_agree_with_onnxruntime() -> None:
    """Random ones, on random texts: its RE2 is where there is no module of that name."""
    generator = np.random.default_rng(1)
    found = []
    for _ in range(300):
        pattern = expression(generator, 5)
        letters = generator.choice([*"abAB \n"], 60)
        words = ["".join(letters[at : at + generator.integers(0, 6)]) for at in range(40)]
        model = build_model("RegexFullMatch", [texts(*words)], {"pattern": pattern}, opset=20)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        [wanted] = session.run(None, {session.get_inputs()[0].name: texts(*words)})
        automaton = compiled("here", pattern)
        assert [automaton.matches(word) for word in words] == wanted.tolist(), (pattern, words)
        found.append(wanted.mean())
    assert sum(0 < share < 1 for share in found) > 100, "expressions match some texts and others not"


@pytest.mark.parametrize(
    ("pattern", "text", "wanted"),
    [
        ("(a*)*b", "a" * 5000, False),
        ("(a|a)*" * 20, "a" * 3000 + "b", False),
        ("(a?){500}a{500}", "a" * 500, True),
        ("(x+x+)+y", "x" * 5000, False),
        (".*a.{200}", "ab" * 2000, False),
        ("(((((a+)+)+)+)+)+b", "a" * 5000, False),
    ],
)
def test_no_expression_takes_more_than_a_time_proportional_to_the_text(
    pattern: str, text: str, wanted: bool
) -> None:
    """With `re` the first ones take longer than the universe is old."""
    automaton = compiled("here", pattern)
    start = time.thread_time()
    assert automaton.matches(text) is wanted
    assert time.thread_time() - start < 20


def test_what_an_automaton_remembers_is_bounded() -> None:
    automaton = compiled("here", "[ab]*a[ab]{12}")
    generator = np.random.default_rng(0)
    text = "".join(generator.choice(["a", "b"], 3000))
    sizes = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(automata, "LARGEST_CACHE", 500)
        for end in range(2000, 2100):
            assert automaton.matches(text[:end]) == (text[end - 13] == "a"), end
            sizes.append(automaton._size)
    assert max(sizes) < 600


@pytest.mark.parametrize(
    ("pattern", "is_one"),
    [
        ("((a{10}){10}){10}", True),
        ("((a{10}){10}){11}", False),
        ("(a{2,}){501}", False),
        ("((a{0}){1000}){1000}", False),
        ("(a{1000})*" * 3, True),
        ("a{1000}" * 2000, False),
        ("((((((((((a+)+)+)+)+)+)+)+)+)+)+", True),
        ("(" * 5000 + "a" + ")" * 5000, True),
    ],
)
def test_repetitions_are_bounded_as_re2_bounds_them(pattern: str, is_one: bool) -> None:
    if is_one:
        compiled("here", pattern)
    else:
        with pytest.raises(InvalidGraph, match="more than"):
            compiled("here", pattern)


POOL = {
    "ngram_counts": (0, 4),
    "ngram_indexes": (2, 0, 5, 3, 4, 1, 6),
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 0,
    "mode": "TF",
}
WORDS = ("a", "b", "c", "d", "a", "b", "b", "a", "c", "a")


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skip", [0, 2])
@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("is_text", [True, False])
def test_ngrams(mode: str, skip: int, least: int, is_text: bool) -> None:
    given: dict[str, Any] = {**POOL, "mode": mode, "max_skip_count": skip, "min_gram_length": least}
    if mode != "TF":
        given["weights"] = (0.5, 1.0, 2.0, 0.25, 3.0, 1.5, 7.0)
    letters = np.random.default_rng(0).choice([*"abcde"], (3, 12)).astype(np.object_)
    if is_text:
        x = letters
        given["pool_strings"] = WORDS
    else:
        x = np.vectorize(ord)(letters).astype(np.int64)
        given["pool_int64s"] = tuple(map(ord, WORDS))
    found = check_operator("TfIdfVectorizer", [x], given, opset=9)[0]
    check_operator("TfIdfVectorizer", [x[0]], given, opset=9)
    assert found.any()


def test_ngrams_of_short_rows() -> None:
    given = {**POOL, "pool_strings": WORDS, "max_skip_count": 3}
    for width in (0, 1, 2):
        x = texts(*"ab"[:width])
        [found] = run_operator("TfIdfVectorizer", [x], given, opset=9)
        assert found.sum() == (0, 1, 3)[width]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ngram_counts": (0, 5)}, "5 words are no n-grams of 2 words"),
        ({"ngram_counts": (4, 0)}, "places in the pool, in order"),
        ({"ngram_indexes": (0, 1)}, "more n-grams than ngram_indexes"),
        ({"ngram_indexes": (0, 1, 2, 3, 4, 5, 6, 7)}, "8 ngram_indexes for 7 n-grams"),
        ({"mode": "COUNT"}, "mode must be"),
        ({"min_gram_length": 3}, "n-grams are of 3 to 2 words"),
        ({"pool_int64s": (1,)}, "one of pool_strings and pool_int64s"),
        ({"weights": (1.0,)}, "a weight for each or none"),
    ],
)
def test_pools_that_are_none(change: dict[str, Any], message: str) -> None:
    given = {**POOL, "pool_strings": WORDS, **change}
    model = build_model("TfIdfVectorizer", [texts("a")], given, opset=9)
    with pytest.raises(InvalidGraph, match=message):
        vkml.InferenceSession(model.SerializeToString(), devices="cpu")


def test_sizes_that_strings_decide(device_name: str) -> None:
    """What follows a split has the width that the strings give it, run by run."""
    from onnx import parser

    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (string[n] x) => (int64[n] counts, string[k] flat) {
            low = StringNormalizer<case_change_action = "LOWER", stopwords = ["the"]>(x)
            parts, counts = StringSplit<delimiter = " ">(low)
            shape = Constant<value_ints = [-1]>()
            flat = Reshape(parts, shape)
        }""")
    session = vkml.InferenceSession(model.SerializeToString(), devices=device_name)
    for words in (["The", "A b C", "D"], ["e f"], ["the"]):
        counts, flat = session.run(None, {"x": texts(*words)})
        left = [word.lower() for word in words if word.lower() != "the"] or [""]
        width = max(len(word.split(" ")) for word in left)
        assert counts.tolist() == [len(word.split(" ")) for word in left]
        assert flat.shape == (width * len(left),) and [item for item in flat if item] == [
            part for word in left for part in word.split(" ") if part
        ]
