"""Text to ids and back: what a tokenizer is, the kinds, and the folder that holds one."""
