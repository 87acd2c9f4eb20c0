"""The train step and what it is made of."""
