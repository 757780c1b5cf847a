"""Products of matrices: MatMul, Gemm, their integer forms, Einsum."""

from __future__ import annotations

from tests.fuzz.graphs import GraphBuilder, Skip, Value, codes_of
from tests.fuzz.recipes.registry import data_input, recipe
from tests.fuzz.tensors import Fill


def factor(build: GraphBuilder, op: str, code: int, inner: int, batch: tuple[int, ...]) -> Value:
    """A right side for a left side of such columns and such a batch."""
    own = tuple(size if build.chance(0.7) else 1 for size in batch)[
        build.integer(0, len(batch)) if batch else 0 :
    ]
    shape = (*own, inner, build.size())
    if build.chance(0.15) and not own:
        shape = (inner,)
    elif build.chance(0.5):
        shape = shape[-2:]
    return build.take([code], shape=shape, fill=Fill("any"))


@recipe("MatMul")
def matmul(build: GraphBuilder, op: str) -> None:
    left = data_input(build, op, 1, 4)
    build.node(op, [left, factor(build, op, left.code, left.dims[-1], left.dims[:-2])])


@recipe("Gemm")
def gemm(build: GraphBuilder, op: str) -> None:
    left = data_input(build, op, 2, 2)
    turn_a, turn_b = build.integer(0, 1), build.integer(0, 1)
    rows, inner = left.dims[::-1] if turn_a else left.dims
    columns = build.size()
    right = build.take([left.code], shape=(columns, inner) if turn_b else (inner, columns))
    third = build.broadcastable(left.code, (rows, columns)) if build.chance(0.7) else None
    if third is None and build.opset < 11:
        raise Skip("its third input was not optional")
    numbers = (None, None, 0.5, 2.0, 0.0, -1.0)
    attributes = {"transA": turn_a or None, "transB": turn_b or None}
    build.node(
        op, [left, right, third], {**attributes, "alpha": build.pick(*numbers), "beta": build.pick(*numbers)}
    )


@recipe("MatMulInteger")
def matmul_integer(build: GraphBuilder, op: str) -> None:
    left = data_input(build, op, 2, 3)
    right = factor(build, op, build.code(codes_of(op, build.opset, 1)), left.dims[-1], left.dims[:-2])
    zeros: list[Value | None] = [None, None]
    if build.chance(0.5):
        zeros[0] = build.new(left.code, () if build.chance(0.7) else left.dims[-2:-1])
        zeros[1] = build.new(right.code, ()) if build.chance(0.7) else None
    build.node(op, [left, right, *zeros])


EQUATIONS = (
    *("ij,jk->ik", "ij,kj->ki", "i,j->ij", "ij->ji", "ii->i", "ij->", "i->i", "ij->j", "...ij,...jk->...ik"),
    *("bij,bjk->bik", "ij,ij->", "ij,ij->ij", "ijk,jil->kl", "a,b,c->abc", "ij,jk,kl->il", "...i->...", "ii"),
    *("bhid,bhjd->bhij", "i...->...", "ij,jk", "b i d , b j d -> b i j", "ij,j->i", "iij->j", "ijkl->lkji"),
)


@recipe("Einsum")
def einsum(build: GraphBuilder, op: str) -> None:
    equation = build.pick(*EQUATIONS)
    code = build.code(codes_of(op, build.opset, 0))
    sizes: dict[str, int] = {}
    batch = tuple(build.integer(1, 3) for _ in range(build.integer(0, 2)))
    operands = []
    for term in equation.replace(" ", "").split("->")[0].split(","):
        letters = term.replace("...", ".")
        shape: list[int] = []
        for letter in letters:
            if letter == ".":
                shape += batch
            else:
                shape.append(sizes.setdefault(letter, build.integer(1, 6)))
        operands.append(build.take([code], shape=shape))
    build.node(op, operands, {"equation": equation})
