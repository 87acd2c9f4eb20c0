"""The life of a run's processes: start, signals, agreement, locks, the end."""
