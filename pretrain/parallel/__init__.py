"""The device mesh, and where each array lies on it."""
