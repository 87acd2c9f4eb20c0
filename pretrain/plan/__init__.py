"""Plans of a training step on absent hardware: compiled, measured, searched."""
