"""Batches by number: which examples make batch n, for training and for evaluation."""
