"""Sources of text and images."""
