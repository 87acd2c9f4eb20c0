"""Recipes: one file per published system; each has `get_config(variant)`, returning a ConfigDict."""
