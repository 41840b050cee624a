"""Recipes: a public feature map, a network and DP-SGD settings that suit a kind of data."""

from noiseproof.recipes.choice import check, choose, resolve
from noiseproof.recipes.recipe import METHOD, Recipe
from noiseproof.recipes.shelf import get, names, recipes

__all__ = ["METHOD", "Recipe", "check", "choose", "get", "names", "recipes", "resolve"]
