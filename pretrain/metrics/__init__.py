"""Output of a run: metric files, progress, time accounting, tables."""
