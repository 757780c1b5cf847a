"""Every operator has a gradient, or is on a list that says why it has none."""

from __future__ import annotations

import vkml.ops  # noqa: F401  (fills the registry)
from vkml.ir.operator import REGISTRY, Operator
from vkml.ops.extension import Extension

NO_FLOATS = {
    "ArgMax", "ArgMin", "CommonDivisor", "DynamicQuantizeLinear", "NonMaxSuppression", "NonZero",
    "OptionalHasElement", "PlacesAlong", "SearchSorted", "SequenceLength", "Shape", "Size",
}  # fmt: skip
"""Results are steps, integers or bools, or inputs are."""
OF_NOTHING = {
    "Constant",
    "ConstantOfShape",
    "Philox",
    "PhiloxAdvance",
    "RandomState",
    "Range",
    "SequenceEmpty",
}
"""Nothing flows in: numbers, shapes, bounds that decide a length."""
ONLY_IN_PLANS = {"Fused", "Native"}
"""Rewrites make them of what has been differentiated before."""
CONTAINERS = {
    "ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceAt", "SequenceConstruct",
    "SequenceErase", "SequenceInsert", "SequenceMap", "SplitToSequence",
}  # fmt: skip
"""Values that are recorded are tensors."""
RECORDED_AS_OTHERS = {"Gradient", "If", "Loop", "Scan", "Unique"}
"""What they run is recorded, trip by trip, or a Gather at places that are known (`vkml.tracing.graphs`)."""
FITTED = {"FeatureVectorizer", "SVMClassifier"}
"""Made by other libraries' training; nothing is trained through them."""
LOOKED_UP = {
    "CastMap", "CategoryMapper", "DictVectorizer", "ImageDecoder", "LabelEncoder", "OneHotEncoder",
    "MurmurHash3", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
    "Tokenizer", "ZipMap",
}  # fmt: skip
"""Tables and strings have no slope."""
OLD_NAMES = {"Upsample"}
"""They become others before anything is recorded."""


def test_every_operator_has_a_gradient_or_a_reason() -> None:
    without = {
        op
        for (_, op), spec in REGISTRY.items()
        if type(spec).vjp is Operator.vjp
        and type(spec).steps is Operator.steps  # of which it follows
        and not spec.is_pointwise
        and not isinstance(spec, Extension)  # others by the time that anything is recorded
    }
    reasons = NO_FLOATS | OF_NOTHING | ONLY_IN_PLANS | CONTAINERS | RECORDED_AS_OTHERS | OLD_NAMES
    assert without == reasons | FITTED | LOOKED_UP
