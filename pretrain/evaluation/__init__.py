"""Scoring a model."""
