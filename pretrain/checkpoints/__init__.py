"""Checkpoints of a run: saving, integrity, restoring, averaging, weights of other runs."""
