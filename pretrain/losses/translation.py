"""From one text to another (Vaswani et al. 2017): the second is written."""

from pretrain.losses.seq2seq import TwoTexts


class Translation(TwoTexts):
    """What is written for a text is compared with its translation, over the whole corpus."""

    decoded = ("bleu", "exact_match")
