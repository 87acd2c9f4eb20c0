"""The stack: a block of branches, repeated; what it carries."""
