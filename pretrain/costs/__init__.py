"""Costs of a config from shapes: FLOPs and bytes."""
