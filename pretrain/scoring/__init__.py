"""Questions to a checkpoint that need no further training: likelihoods, benchmarks, hidden states, attention."""
