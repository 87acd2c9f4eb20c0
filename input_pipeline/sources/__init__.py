"""Where text and images come from."""
