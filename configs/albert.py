"""ALBERT (Lan et al. 2019, "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations").

    pretrain train --config=configs/albert.py:base --workdir=runs/albert
    pretrain train --config=configs/albert.py:mini_stdlib       # a minute on 2 CPU cores, with text that is there

Variants: base (12M, the default), large (18M), xlarge (59M) and xxlarge (223M), each as in the paper and, with _v2, as
released later: without dropout, for 3,000,000 updates (base 10,000,000). mini_stdlib is a small network on the standard
library of the running interpreter.

One layer's parameters serve all layers; tables are 128 wide and projected to the model's width. A pair of segments
follows in the text or stands in the other order, and the model tells which; one to three whole words in a row are
predicted together. A chunk of a single sentence gets a random second segment, as in the released code.

Text is to have one sentence a line and a blank line between documents: data/books_wikipedia/*.txt, as BERT's. The
tokenizer.json is the release's, lower-cased SentencePiece of 30,000; docs/data.md has the command. The release writes
40 copies of the text to disk, each with pairs and masks of its own; here pairs are cut ten times over
(objective.passes), and masks are drawn when a row is read. Its commands predict 20 tokens of rows of 512; here it is
15 % of them, 77.

LAMB's rate falls linearly over all updates and is in force once warm-up ends, gradients are clipped before it, and its
averages are not corrected. Biases and norms neither decay nor keep a trust ratio.

Cost: sharing saves memory and no arithmetic. 125,000 updates of 4,096 rows of 512 are 2.6e11 tokens: 1.3e20 FLOPs for
base, 3.8e21 for xxlarge, attention aside, which is more than BERT-large. The paper had 64 to 512 TPU v3 chips.

Expect, after fine-tuning, averages over SQuAD 1.1 and 2.0, MNLI, SST-2 and RACE of 80.1, 82.4, 85.5 and 91.0, and of
version 2 of 82.3, 85.7, 87.9 and 90.9.
"""

from configs import common

SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16), "xlarge": (24, 2048, 16), "xxlarge": (12, 4096, 64)}
VARIANTS = {  # layers, width, heads, whether dropout is on, updates
    **{name: (*size, True, 125_000) for name, size in SIZES.items()},
    **{f"{name}_v2": (*size, False, 10_000_000 if name == "base" else 3_000_000) for name, size in SIZES.items()},
    "mini_stdlib": (2, 128, 2, True, 300),
}


def get_config(variant=""):
    """The recipe of one size; no variant means base."""
    variant = common.check_variant("albert", variant or "base", VARIANTS)
    layers, width, heads, drops, steps = VARIANTS[variant]
    config = common.base()
    config.name = f"albert:{variant}"
    config.model = common.encoder()
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, vocab_size=30_000, context=512)
    config.model.update(groups=1, embed=128, project_always=True)
    if not drops:
        config.model.update(dropout=0.0, dropout_attention=0.0)
    config.objective = common.masked()
    config.objective.update(max_predictions=77, whole_words=True, ngrams=3, swapped_pairs=True)
    config.tokenizer.update(kind="huggingface", path="tokenizers/albert-base-v2.json", vocab_size=29_997)
    config.data.update(
        train="text:data/books_wikipedia/*.txt?document=blank_line",
        sentences="lines",
        holdout=0.001,
        layout="pairs",
        length=512,
    )
    config.train.update(steps=steps, batch_size=4096)
    config.optimizer.update(
        name="lamb", b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip=1.0
    )
    config.schedule.update(kind="linear", peak=0.00176, warmup=3125, end=0.0, beneath_warmup=True)
    if variant == "mini_stdlib":
        config.tokenizer.update(kind="sentencepiece", path="", vocab_size=2045, train_bytes=1_000_000)
        config.model.update(vocab_size=2048, embed=64, context=64, dtype="float32")
        config.data.update(train="stdlib", holdout=0.05, length=64)
        config.objective.update(max_predictions=10, passes=1)
        config.train.batch_size = 32
        config.schedule.update(peak=0.01, warmup=30)
        config.checkpoint.every = 100
        config.evaluate.update(every=100, batches=20)
    return config
