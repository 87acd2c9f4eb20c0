"""Which examples make batch n, for training and for evaluation."""
