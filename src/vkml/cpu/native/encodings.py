"""How instructions of x86-64 are encoded: condition codes, and vector instructions of AVX2 and AVX-512."""

from __future__ import annotations

from vkml.dataclasses import dataclass

CONDITIONS = {"o": 0, "b": 2, "ae": 3, "e": 4, "z": 4, "ne": 5, "nz": 5, "be": 6, "a": 7, "s": 8, "ns": 9,
              "l": 12, "ge": 13, "le": 14, "g": 15}  # fmt: skip
"""Condition codes of conditional jumps: b, ae, be, a compare unsigned; l, ge, le, g signed."""


@dataclass(frozen=True)
class Vector:
    """How a vector instruction is encoded: prefix (none, 66, F3, F2 → 0–3), opcode map, opcode, W.

    W is 0, 1, or 2 for one that is set with AVX-512 only.
    """

    prefix: int
    map: int
    opcode: int
    wide: int = 0
    unit: int = 0
    """Bytes that a compressed displacement counts in (EVEX); 0: the vector's length, -n: an n-th of it."""
    lane: int = 4
    """Bytes of a lane: of the wider one, where source and result have different ones."""


VECTOR = {
    "addps": Vector(0, 1, 0x58), "mulps": Vector(0, 1, 0x59), "subps": Vector(0, 1, 0x5C),
    "minps": Vector(0, 1, 0x5D), "divps": Vector(0, 1, 0x5E), "maxps": Vector(0, 1, 0x5F),
    "andps": Vector(0, 1, 0x54), "andnps": Vector(0, 1, 0x55), "orps": Vector(0, 1, 0x56),
    "xorps": Vector(0, 1, 0x57), "unpcklps": Vector(0, 1, 0x14), "unpckhps": Vector(0, 1, 0x15),
    "addss": Vector(2, 1, 0x58, 0, 4), "mulss": Vector(2, 1, 0x59, 0, 4),
    "maxss": Vector(2, 1, 0x5F, 0, 4),
    "minss": Vector(2, 1, 0x5D, 0, 4),
    "fmadd132ps": Vector(1, 2, 0x98), "fmadd213ps": Vector(1, 2, 0xA8), "fmadd231ps": Vector(1, 2, 0xB8),
    "fnmadd231ps": Vector(1, 2, 0xBC),
    "paddd": Vector(1, 1, 0xFE), "psubd": Vector(1, 1, 0xFA), "pmulld": Vector(1, 2, 0x40),
    "pminsd": Vector(1, 2, 0x39), "pmaxsd": Vector(1, 2, 0x3D),
    "pand": Vector(1, 1, 0xDB), "pandn": Vector(1, 1, 0xDF), "por": Vector(1, 1, 0xEB),
    "pxor": Vector(1, 1, 0xEF), "pcmpeqd": Vector(1, 1, 0x76), "pcmpgtd": Vector(1, 1, 0x66),
    "blendmps": Vector(1, 2, 0x65), "permps": Vector(1, 2, 0x16), "scalefps": Vector(1, 2, 0x2C),
    "packssdw": Vector(1, 1, 0x6B), "packuswb": Vector(1, 1, 0x67), "packsswb": Vector(1, 1, 0x63),
    "packusdw": Vector(1, 2, 0x2B),
    "pminud": Vector(1, 2, 0x3B), "pmaxud": Vector(1, 2, 0x3F),
    "pdpbusd": Vector(1, 2, 0x50), "pmaddwd": Vector(1, 1, 0xF5),
    "psllvd": Vector(1, 2, 0x47), "psrlvd": Vector(1, 2, 0x45), "psravd": Vector(1, 2, 0x46),
    "addpd": Vector(1, 1, 0x58, 1, 0, 8), "mulpd": Vector(1, 1, 0x59, 1, 0, 8),
    "subpd": Vector(1, 1, 0x5C, 1, 0, 8), "minpd": Vector(1, 1, 0x5D, 1, 0, 8),
    "divpd": Vector(1, 1, 0x5E, 1, 0, 8), "maxpd": Vector(1, 1, 0x5F, 1, 0, 8),
    "andpd": Vector(1, 1, 0x54, 1, 0, 8), "orpd": Vector(1, 1, 0x56, 1, 0, 8),
    "xorpd": Vector(1, 1, 0x57, 1, 0, 8), "fmadd213pd": Vector(1, 2, 0xA8, 1, 0, 8),
    "fmadd231pd": Vector(1, 2, 0xB8, 1, 0, 8), "fnmadd231pd": Vector(1, 2, 0xBC, 1, 0, 8),
    "unpcklpd": Vector(1, 1, 0x14, 1, 0, 8), "unpckhpd": Vector(1, 1, 0x15, 1, 0, 8),
    "paddq": Vector(1, 1, 0xD4, 1, 0, 8), "psubq": Vector(1, 1, 0xFB, 1, 0, 8),
    "pmullq": Vector(1, 2, 0x40, 1, 0, 8), "pmuludq": Vector(1, 1, 0xF4, 1, 0, 8),
    "pminsq": Vector(1, 2, 0x39, 1, 0, 8), "pmaxsq": Vector(1, 2, 0x3D, 1, 0, 8),
    "pminuq": Vector(1, 2, 0x3B, 1, 0, 8), "pmaxuq": Vector(1, 2, 0x3F, 1, 0, 8),
    "pandq": Vector(1, 1, 0xDB, 1, 0, 8), "porq": Vector(1, 1, 0xEB, 1, 0, 8),
    "pxorq": Vector(1, 1, 0xEF, 1, 0, 8),
    "pcmpeqq": Vector(1, 2, 0x29, 1, 0, 8), "pcmpgtq": Vector(1, 2, 0x37, 1, 0, 8),
    "psllvq": Vector(1, 2, 0x47, 1, 0, 8), "psrlvq": Vector(1, 2, 0x45, 1, 0, 8),
    "psravq": Vector(1, 2, 0x46, 1, 0, 8), "blendmpd": Vector(1, 2, 0x65, 1, 0, 8),
}  # fmt: skip
"""Instructions of three operands: name(destination, first, second)."""

UNARY = {
    "sqrtps": Vector(0, 1, 0x51), "cvtdq2ps": Vector(0, 1, 0x5B), "cvtps2dq": Vector(1, 1, 0x5B),
    "cvttps2dq": Vector(2, 1, 0x5B), "movups": Vector(0, 1, 0x10), "movaps": Vector(0, 1, 0x28),
    "broadcastss": Vector(1, 2, 0x18, 0, 4), "cvtph2ps": Vector(1, 2, 0x13, 0, -2),
    "pmovsxbd": Vector(1, 2, 0x21, 0, -4), "pmovzxbd": Vector(1, 2, 0x31, 0, -4),
    "getexpps": Vector(1, 2, 0x42), "pbroadcastb": Vector(1, 2, 0x78, 0, 1),
    "pbroadcastw": Vector(1, 2, 0x79, 0, 2), "pbroadcastq": Vector(1, 2, 0x59, 2, 8, 8),
    "pmovsxwd": Vector(1, 2, 0x23, 0, -2), "pmovzxwd": Vector(1, 2, 0x33, 0, -2),
    "pmovsxdq": Vector(1, 2, 0x25, 0, -2, 8), "pmovzxdq": Vector(1, 2, 0x35, 0, -2, 8),
    "pabsd": Vector(1, 2, 0x1E), "pabsq": Vector(1, 2, 0x1F, 1, 0, 8),
    "sqrtpd": Vector(1, 1, 0x51, 1, 0, 8), "movupd": Vector(1, 1, 0x10, 1, 0, 8),
    "cvtudq2ps": Vector(3, 1, 0x7A), "cvtdq2pd": Vector(2, 1, 0xE6, 0, -2, 8),
    "cvtudq2pd": Vector(2, 1, 0x7A, 0, -2, 8), "cvttpd2dq": Vector(1, 1, 0xE6, 1, 0, 8),
    "cvttpd2udq": Vector(0, 1, 0x78, 1, 0, 8), "cvtps2pd": Vector(0, 1, 0x5A, 0, -2, 8),
    "cvtpd2ps": Vector(1, 1, 0x5A, 1, 0, 8), "cvtqq2pd": Vector(2, 1, 0xE6, 1, 0, 8),
    "cvtuqq2pd": Vector(2, 1, 0x7A, 1, 0, 8), "cvtqq2ps": Vector(0, 1, 0x5B, 1, 0, 8),
    "cvtuqq2ps": Vector(3, 1, 0x7A, 1, 0, 8), "cvttpd2qq": Vector(1, 1, 0x7A, 1, 0, 8),
    "cvttps2qq": Vector(1, 1, 0x7A, 0, -2, 8),
}  # fmt: skip
"""Instructions of two operands: name(destination, source)."""

IMMEDIATE = {
    "shufps": Vector(0, 1, 0xC6), "perm2f128": Vector(1, 3, 0x06), "shuff32x4": Vector(1, 3, 0x23),
    "insertf128": Vector(1, 3, 0x18, 0, 16), "blendps": Vector(1, 3, 0x0C), "alignd": Vector(1, 3, 0x03),
    "shuff64x2": Vector(1, 3, 0x23, 1), "insertf64x4": Vector(1, 3, 0x1A, 1, 32),
}  # fmt: skip
"""name(destination, first, second, immediate)."""

UNARY_IMMEDIATE = {
    "permilps": Vector(1, 3, 0x04), "roundps": Vector(1, 3, 0x08),
    "permpd": Vector(1, 3, 0x01, 1), "getmantps": Vector(1, 3, 0x26),
    "roundpd": Vector(1, 3, 0x09, 1, 0, 8),
}  # fmt: skip
"""name(destination, source, immediate); roundps is vrndscaleps under AVX-512, alike for numbers below 16."""

SHIFTS = {
    "pslld": (Vector(1, 1, 0x72), 6), "psrld": (Vector(1, 1, 0x72), 2), "psrad": (Vector(1, 1, 0x72), 4),
    "psllw": (Vector(1, 1, 0x71), 6), "psrlw": (Vector(1, 1, 0x71), 2), "psraw": (Vector(1, 1, 0x71), 4),
    "psllq": (Vector(1, 1, 0x73, 1, 0, 8), 6), "psrlq": (Vector(1, 1, 0x73, 1, 0, 8), 2),
}  # fmt: skip
"""Shifts by a number."""
