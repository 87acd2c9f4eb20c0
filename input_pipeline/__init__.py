"""Text in, batches out: sources, tokenizers, token store, layouts, mixtures, loader. NumPy and Grain, never JAX."""
