"""Recipes: for each operator, a function that adds a node of it with inputs that fit, to a random graph."""

from __future__ import annotations

import importlib

from tests.fuzz.recipes.registry import RECIPES, Recipe

for _family in (
    "pointwise",
    "reductions",
    "products",
    "windows",
    "norms",
    "shapes",
    "indices",
    "images",
    "signal",
    "recurrent",
    "quantization",
    "patterns",
    "attention",
    "strings",
):
    importlib.import_module(f"tests.fuzz.recipes.{_family}")

__all__ = ["RECIPES", "Recipe"]
