"""The 50M hands-on model (Ruder, Peters, Swayamdipta and Wolf 2019, "Transfer Learning in NLP", NAACL tutorial).

    pretrain train --config=configs/hands_on.py --workdir=runs/hands_on

Variants: causal (the default), and masked, the tutorial's other choice: the same network, in which every token sees all
others, and 15 of 100 tokens are predicted that are hidden as BERT hides them.

A decoder of 50,396,360 parameters: 16 layers, 410 wide, 10 heads of 41, ReLU, 256 positions, dropout 0.1. Its block is
unusual: the normalised value becomes the residual stream (`placement="replace"`), and no norm follows the last layer.
The tutorial's one loop over modules draws the norms' gains from N(0, 0.02) too, and passes over the attention module's
query, key and value, which start as one Glorot-uniform matrix: so do ours. `--config.model.positions=sinusoid` is the
tutorial's other choice of positions.

Each row's last token is asked for the first of the next row too, so that every token counts: 256 targets a row, where
the tutorial has the 255 inside a block of 256. `--config.data.length=255` has those, of blocks that share a token.

Data: WikiText-103 (wiki.train.tokens and its two companions) in data/wikitext-103, each line a document, and BERT's
cased vocabulary, tokenizers/bert-base-cased.json; docs/data.md has the commands. WikiText's <unk> is read as BERT's
[UNK], as in the tutorial.

Cost: 50 epochs, about 6 billion tokens, took 15 hours on 8 V100. Of the 64 rows of an update each of 8 parts holds 8;
clipping acts on their sum (the tutorial's code clips at every part).

Expect, of causal, a validation perplexity of about 29 per word: the loss of the whole text over WikiText's count of it,
words and line ends. Lines are documents here, and blank ones are none, so score the file whole, in which they count:
`evaluate --word_level --data=text:data/wikitext-103/wiki.valid.tokens`.
"""

from configs import common

VARIANTS = ("causal", "masked")


def get_config(variant=""):
    """The recipe; no variant means causal."""
    variant = common.check_variant("hands_on", variant or "causal", VARIANTS)
    config = common.base()
    config.name = f"hands_on:{variant}"
    config.model.update(
        vocab_size=28_996,
        context=256,
        layers=16,
        width=410,
        heads=10,
        ff=2100,
        activation="relu",
        norm_epsilon=1e-12,
        placement="replace",
        dropout_embedding=0.1,
        dropout_attention=0.1,
        dropout_residual=0.1,
        position_init_std=0.02,
        norm_init_mean=0.0,
        norm_init_std=0.02,
        fused_glorot_init=True,
        scale_residual_init=False,
    )
    config.tokenizer.update(
        kind="huggingface", path="tokenizers/bert-base-cased.json", unknown="<unk>", vocab_size=28_996
    )
    config.data.update(
        train="text:data/wikitext-103/wiki.train.tokens?document=line",
        validation="text:data/wikitext-103/wiki.valid.tokens?document=line",
        test="text:data/wikitext-103/wiki.test.tokens?document=line",
        layout="concat",
        length=256,
    )
    config.train.update(steps=360_000, batch_size=64, accumulate=8)  # 50 epochs of about 118 million sub-words
    config.optimizer.update(name="adamw", b1=0.9, b2=0.999, epsilon=1e-8, weight_decay=0.0, clip=0.25)
    config.schedule.update(kind="cosine", peak=2.5e-4, warmup=1000, end=0.0)
    if variant == "masked":
        config.model.bidirectional = True
        config.objective = common.masked()
        config.objective.update(next_sentence=False, max_predictions=38)  # 15% of 256
        config.tokenizer.vocab_size -= 1  # of one trained here, which gets an id for what is hidden
    return config
