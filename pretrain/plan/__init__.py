"""What a training step would take of hardware that need not be there: compiled, weighed, and searched for the best."""
