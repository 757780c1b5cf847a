"""Slang source of the kernels of gradients."""

from __future__ import annotations

from benchmarks.attention_units.problems import Problem
from benchmarks.source_text import constants_text, defines_text, template
from vkml.kernels.attention_variants import Variant, defines
from vkml.kernels.fragment_layout import FragmentLayouts

BACKWARD_PUSH = """struct Push
{
    half* q;
    half* k;
    half* v;
    half* d_out;
    float* logs;
    float* deltas;
    half* first;
    half* second;
    uint4* scratch;
    float scale2;
    float scale;
};
[[vk::push_constant]] ConstantBuffer<Push> push;"""
BACKWARD_PUSH_BYTES = 9 * 8 + 8

DELTA_PUSH = """struct Push { half* o; half* d_out; float* deltas; };
[[vk::push_constant]] ConstantBuffer<Push> push;"""
DELTA_PUSH_BYTES = 3 * 8

OWNERS = ("queries", "keys")

CONSTANTS = (
    "QUERY_ROWS",
    "KEY_ROWS",
    "HEAD_SIZE",
    "HEADS",
    "GROUP",
    "CAUSAL_OFFSET",
    *(f"{operand}_{stride}" for operand in "QKVO" for stride in ("BATCH", "HEAD", "ROW")),
)


def constants_of(problem: Problem) -> tuple[int, ...]:
    """In the order of CONSTANTS."""
    of_queries = problem.strides(problem.queries, problem.heads)
    of_keys = problem.strides(problem.keys, problem.kv_heads)
    sizes = (problem.queries, problem.keys, problem.head_size, problem.heads, problem.group)
    return (*sizes, problem.causal_offset, *of_queries, *of_keys, *of_keys, *of_queries)


def backward_source(variant: Variant, layouts: FragmentLayouts | None, owner: str, *, is_causal: bool) -> str:
    """The complete source of a kernel of gradients: of the queries, or of keys and values."""
    variant.check()
    if variant.held_in == "shared":
        raise ValueError(f"{variant.label}: gradients keep nothing in shared memory but tiles")
    values: dict[str, int | str] = {
        "CAUSAL": "true" if is_causal else "false",
        "QUERIES": 0,
        "KEYS": 1,
        "OWNER": owner.upper(),
        "WORKING": f"(4 * TILE + {2 * variant.step if owner == 'keys' else 0})",
    }
    texts = template("vkml.kernels", "attention_common"), template(__package__, "backward")
    return _source(defines(variant, layouts) | values, BACKWARD_PUSH, *texts)


def delta_source(variant: Variant) -> str:
    """The complete source of the kernel that multiplies results and gradients."""
    sharers = min(variant.fragment.lanes, 1 << max(variant.head // 8 - 1, 0).bit_length())
    values: dict[str, int | str] = {"LANES": variant.fragment.lanes, "SHARERS": sharers}
    return _source(values, DELTA_PUSH, template(__package__, "delta"))


def _source(values: dict[str, int | str], push: str, *texts: str) -> str:
    return "\n".join([defines_text(values), constants_text(CONSTANTS), push, *texts])
