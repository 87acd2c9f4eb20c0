"""Models of others, both ways."""
