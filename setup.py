"""Installs Longhaul from a clone: `pip install -e .` (metadata in pyproject.toml)."""

from setuptools import setup

setup()
