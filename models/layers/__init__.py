"""Building blocks of models: linear maps, embeddings, norms, dropout, initializers, output heads."""
