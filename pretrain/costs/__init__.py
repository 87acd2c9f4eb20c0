"""What a config costs: FLOPs and bytes, worked out from shapes."""
