"""Text in, batches out: sources, tokenizers, token store, packing, corruption, mixtures, loader. NumPy and Grain, never JAX."""
