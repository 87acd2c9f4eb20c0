"""Tasks: predictions for examples, and their metrics."""
