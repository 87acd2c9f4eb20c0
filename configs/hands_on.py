"""The 50M hands-on model (Ruder, Peters, Swayamdipta and Wolf 2019, "Transfer Learning in NLP", NAACL tutorial).

    pretrain train --config=configs/hands_on.py --workdir=runs/hands_on

Variants: causal (the default) and masked, the tutorial's other objective: the same network, bidirectional, with 15 of
100 tokens masked as BERT does.

A decoder of 50,396,360 parameters: 16 layers, 410 wide, 10 heads of 41, ReLU, 256 positions, dropout 0.1. The
normalised value becomes the residual stream (`placement="replace"`), and no norm follows the last layer. As in the
tutorial's initialisation loop, norm gains are drawn from N(0, 0.02), and query, key and value start as one
Glorot-uniform matrix. `--config.model.positions=sinusoid` is the tutorial's other choice of positions.

Each row's last token also predicts the first of the next row: 256 targets per row, where the tutorial has the 255 in a
block of 256. `--config.data.length=255` has those, with blocks that share a token.

Data: WikiText-103 (wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens) in data/wikitext-103, each line a document,
and BERT's cased vocabulary, tokenizers/bert-base-cased.json (docs/data.md). WikiText's <unk> is read as BERT's [UNK].

Cost: 50 epochs, about 6 billion tokens, took 15 hours on 8 V100. An update has 64 rows in 8 parts; clipping acts on the
sum of the parts (the tutorial's code clips each part).

Expect, for causal, a validation perplexity of about 29 per word: total loss over WikiText's count of words and line
ends. Blank lines are not documents, so score the file as one text:
`evaluate --word_level --data=text:data/wikitext-103/wiki.valid.tokens`.
"""

from configs import common

VARIANTS = ("causal", "masked")


def get_config(variant=""):
    """Return the config; no variant means causal."""
    variant = common.check_variant("hands_on", variant or "causal", VARIANTS)
    config = common.base()
    config.name = f"hands_on:{variant}"
    config.model.update(layers=16, width=410, heads=10, ff=2100, vocab_size=28_996, context=256)
    config.model.update(activation="relu", norm_epsilon=1e-12, placement="replace")
    config.model.update(dropout_embedding=0.1, dropout_attention=0.1, dropout_residual=0.1)
    config.model.update(position_init_std=0.02, norm_init_mean=0.0, norm_init_std=0.02)
    config.model.update(fused_glorot_init=True, scale_residual_init=False)
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
    # 50 epochs of about 118 million pieces.
    config.train.update(steps=360_000, batch_size=64, accumulate=8)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.999, epsilon=1e-8, weight_decay=0.0, clip=0.25)
    config.schedule.update(kind="cosine", peak=2.5e-4, warmup=1000, end=0.0)
    if variant == "masked":
        config.model.bidirectional = True
        config.objective = common.masked()
        config.objective.update(next_sentence=False, max_predictions=38)  # 15% of 256
        config.tokenizer.vocab_size -= 1  # a tokenizer trained here adds an id for the mask
    return config
