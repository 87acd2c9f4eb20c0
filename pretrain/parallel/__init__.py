"""The device mesh and the sharding of every array on it."""
