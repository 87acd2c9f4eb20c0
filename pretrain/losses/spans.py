"""Denoising (Raffel et al. 2019): spans are written behind their sentinels, or what follows a prefix is."""

from pretrain.losses.seq2seq import TwoTexts


class Spans(TwoTexts):
    """Of pairs of texts it is also measured how many are written as they should be."""

    decoded = ("exact_match", "sequence_accuracy")
