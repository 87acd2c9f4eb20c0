"""Text in, batches out: sources, tokenizers, token store, packing, corruption, batching. NumPy and Grain, never JAX."""
