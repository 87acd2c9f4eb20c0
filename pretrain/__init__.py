"""The program: train, evaluate, generate, describe and prepare."""
