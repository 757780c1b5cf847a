"""Graph → graph: each pass is a function that returns a new graph."""

from vkml.passes.attention import fuse_attention
from vkml.passes.dead import remove_dead
from vkml.passes.fuse import fuse
from vkml.passes.fuse_links import fuse_links
from vkml.passes.fuse_parts import fuse_parts
from vkml.passes.fuse_prologues import fuse_prologues
from vkml.passes.fuse_reductions import fuse_reductions
from vkml.passes.normalise import normalise
from vkml.passes.operator_steps import expand_steps
from vkml.passes.share import share_small
from vkml.passes.simplify import simplify
from vkml.passes.specialise import specialise

__all__ = [
    "expand_steps",
    "fuse",
    "fuse_attention",
    "fuse_links",
    "fuse_parts",
    "fuse_prologues",
    "fuse_reductions",
    "normalise",
    "remove_dead",
    "share_small",
    "simplify",
    "specialise",
]
