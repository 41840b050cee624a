"""Recipes for networks: the papers and small good ones."""
