"""Speed, as ratios in one run: `python -m benchmarks.train_step` and so on."""
