"""What work folders hold, read while a run trains or after it, and a page about it."""
