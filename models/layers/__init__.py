"""The smallest parts that models are made of."""
