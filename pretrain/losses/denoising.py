"""Denoising (Lewis et al. 2019): the text that was spoilt is written, all of it."""

from pretrain.losses.seq2seq import TwoTexts


class Denoising(TwoTexts):
    """Nothing is decoded of it: what stands in a gap cannot be known."""
