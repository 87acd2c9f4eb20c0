"""ELECTRA (Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators").

    pretrain train --config=configs/electra.py:base --workdir=runs/electra
    pretrain train --config=configs/electra.py:mini_stdlib    # two minutes on 2 CPU cores, no files needed

Variants: small (14M, the default), base (110M) and large (335M), counted without their generators. small_plus, the
released "small", has a generator as wide as the discriminator and rows of 512 tokens. Ablations of small (section 3.4):
small_masked_loss (ELECTRA 15 %: the discriminator is scored on masked tokens only), small_replace_mlm (it predicts the
masked tokens, which the generator replaced), small_all_tokens (it predicts every token, with a copy gate). mini_stdlib
is a small network on the Python standard library.

A generator, an encoder of 1/4 or 1/3 of the width, fills in masked tokens; the discriminator predicts for every token
whether it was replaced. Both share their tables. The loss is the generator's plus 50 times the discriminator's. Calling
every token original is right nine times in ten, so watch `recall`, the share of replaced tokens found, and `precision`.

Data: BERT's, data/books_wikipedia/*.txt, one sentence per line and a blank line between documents, and its uncased
vocabulary (docs/data.md); the larger ones used XLNet's 33 billion words. Rows are made as in the release: two segments
of a document between [CLS] and [SEP], one row in ten with one segment. Text without one sentence per line, and
mini_stdlib, is packed into rows of whole documents, which begin with [SEP] and have no [CLS]:
--config.data.layout=packed --config.data.sentences= .

Cost: 1,000,000 updates of 128 rows of 128 tokens for small, four days on one V100; base takes 766,000 of 256 rows of
512, large 400,000 of 2,048 (1,750,000 for the longer run: --config.train.steps=1750000). During the warm-up the rate is
up to 1 % above the release's, which multiplies warm-up and decay.

Expect, after fine-tuning, GLUE development averages of 79.9 (small), 85.1 (base), 89.0 (large) and 89.5 (large, longer
run). mini_stdlib's generator learns token frequencies, and its discriminator only starts to find replacements; random
replacements (--config.model.generator_size=0) are found within hundreds of updates.
"""

from configs import common

VARIANTS = {  # layers, width, heads, of tables (0: the same), generator's share, masked, peak, rows, updates, length
    "small": (12, 256, 4, 128, 1 / 4, 0.15, 5e-4, 128, 1_000_000, 128),
    "small_plus": (12, 256, 4, 128, 1.0, 0.15, 5e-4, 128, 4_000_000, 512),
    "small_masked_loss": (12, 256, 4, 128, 1 / 4, 0.15, 5e-4, 128, 1_000_000, 128),
    "small_replace_mlm": (12, 256, 4, 128, 1 / 4, 0.15, 5e-4, 128, 1_000_000, 128),
    "small_all_tokens": (12, 256, 4, 128, 1 / 4, 0.15, 5e-4, 128, 1_000_000, 128),
    "base": (12, 768, 12, 0, 1 / 3, 0.15, 2e-4, 256, 766_000, 512),
    "large": (24, 1024, 16, 0, 1 / 4, 0.25, 2e-4, 2048, 400_000, 512),
    "mini_stdlib": (2, 128, 2, 64, 1 / 2, 0.15, 3e-4, 32, 300, 64),
}
ABLATIONS = {  # the discriminator's head, the tokens that it is scored on, the weight of its loss
    "small_masked_loss": ("replaced", "masked", 50.0),
    "small_replace_mlm": ("tokens", "masked", 1.0),
    "small_all_tokens": ("copied", "all", 1.0),
}


def get_config(variant=""):
    """Return the config of one size; no variant means small."""
    variant = common.check_variant("electra", variant or "small", VARIANTS)
    layers, width, heads, embed, generator, share, peak, rows, steps, length = VARIANTS[variant]
    config = common.base()
    config.name = f"electra:{variant}"
    config.model = common.replaced_tokens()
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, embed=embed, generator_size=generator)
    config.objective = common.replaced()
    config.objective.share = share
    if variant in ABLATIONS:
        config.model.head, config.objective.scored, config.objective.weight = ABLATIONS[variant]
    config.tokenizer.update(kind="wordpiece", path="tokenizers/bert-base-uncased.json", vocab_size=30_522)
    common.use_documents(config, "books_wikipedia", layout="halves", length=length)
    config.train.update(steps=steps, batch_size=rows)
    config.optimizer.update(name="adamw", epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip=1.0)
    # As released, except that warm-up and decay are not multiplied (up to 1 % lower there).
    config.schedule.update(kind="linear", peak=peak, warmup=10_000, end=0.0, beneath_warmup=True)
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=2048)
        config.tokenizer.cased = True
        config.model.update(vocab_size=2048, context=64)
        config.data.update(sentences="", layout="packed")
        config.schedule.warmup = 30
    return config
