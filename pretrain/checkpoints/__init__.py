"""Saving, keeping and restoring."""
