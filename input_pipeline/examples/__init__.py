"""Labelled records: read once, kept as arrays, and batched by length."""
