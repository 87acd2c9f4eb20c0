"""The token store: tokenised text on disk."""
