"""Strings: joined, split, cleaned, matched, counted."""

from __future__ import annotations

from tests.fuzz.graphs import GraphBuilder
from tests.fuzz.recipes.registry import recipe
from tests.fuzz.tensors import INT32, INT64, STRING, indices


@recipe("StringConcat")
def concat(build: GraphBuilder, op: str) -> None:
    a = build.take([STRING], 0, 4)
    build.node(op, [a, build.broadcastable(STRING, a.dims)])


@recipe("StringSplit")
def split(build: GraphBuilder, op: str) -> None:
    given = {"delimiter": build.pick(None, "", "a", "e ", " "), "maxsplit": build.pick(None, 0, 1, 3)}
    build.node(op, [build.take([STRING], 0, 3)], given, outputs=2)


@recipe("StringNormalizer")
def normalizer(build: GraphBuilder, op: str) -> None:
    shape = (build.integer(1, 5),)
    given = {
        "case_change_action": build.pick("LOWER", "UPPER", "NONE"),
        "is_case_sensitive": build.integer(0, 1),
        "stopwords": build.pick(None, ["a", "be", "word"]),
    }
    build.node(op, [build.new(STRING, (1, *shape) if build.chance(0.3) else shape)], given)


@recipe("RegexFullMatch")
def match(build: GraphBuilder, op: str) -> None:
    pattern = build.pick(".*", "[a-m]+", "(?i)a.*", "\\w*", "(a|be|word)", "[^ ]{2,}")
    build.node(op, [build.take([STRING], 0, 4)], {"pattern": pattern})


@recipe("TfIdfVectorizer")
def ngrams(build: GraphBuilder, op: str) -> None:
    mode = build.pick("TF", "IDF", "TFIDF")
    given = {
        "max_gram_length": build.integer(1, 2),
        "min_gram_length": 1,
        "max_skip_count": build.integer(0, 2),
        "mode": mode,
        "ngram_counts": [0, 3],
        "ngram_indexes": build.pick([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]),
        "pool_int64s": [0, 1, 2, 0, 1, 2, 2],
        "weights": [0.5, 2.0, 1.0, 0.25, 3.0] if mode != "TF" else None,
    }
    shape = (build.integer(1, 6),)
    if build.chance(0.5):
        shape = (build.integer(1, 3), *shape)
    build.node(op, [build.new(build.pick(INT32, INT64), shape, indices(0, 4))], given)
