"""Transformer blocks: the branches of a layer, the stack of layers, what decoding and recurrence carry."""
