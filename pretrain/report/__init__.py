"""Records of runs, read from work folders during or after training, and a page about them."""
