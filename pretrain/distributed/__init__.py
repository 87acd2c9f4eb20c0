"""Processes of a run: start-up, agreement, signals, liveness, the work folder's lock."""
