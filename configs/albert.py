"""ALBERT (Lan et al. 2019, "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations").

    pretrain train --config=configs/albert.py:base --workdir=runs/albert
    pretrain train --config=configs/albert.py:mini_stdlib       # a minute on 2 CPU cores, no files needed

Variants: base (12M, the default), large (18M), xlarge (59M) and xxlarge (223M); with _v2 as released later, without
dropout, for 3,000,000 updates (base 10,000,000). mini_stdlib is a small network on the Python standard library.

All layers share one layer's parameters; tables are 128 wide and projected to the model's width. The two segments of a
row are in the order of the text or swapped, and the model predicts which; one to three whole words in a row are masked
together. A chunk with a single sentence gets a random second segment, as in the released code.

Data: data/books_wikipedia/*.txt as for BERT, one sentence per line and a blank line between documents, and the
release's tokenizer.json, lower-cased SentencePiece of 30,000 (docs/data.md). The release writes 40 masked copies of the
text to disk; here pairs are cut ten times (objective.passes) and masks are drawn when a row is read. Its commands
predict 20 tokens of rows of 512; here 15 % of them are predicted, 77.

LAMB's rate decays linearly over all updates and applies after the warm-up; gradients are clipped before it; moments are
not bias-corrected. Biases and norms have neither weight decay nor trust ratio.

Cost: sharing saves memory, not arithmetic. 125,000 updates of 4,096 rows of 512 are 2.6e11 tokens: 1.3e20 FLOPs for
base, 3.8e21 for xxlarge, without attention, more than BERT-large. The paper used 64 to 512 TPU v3 chips.

Expect, after fine-tuning, averages over SQuAD 1.1 and 2.0, MNLI, SST-2 and RACE of 80.1, 82.4, 85.5 and 91.0, for
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
    """Return the config of one size; no variant means base."""
    variant = common.check_variant("albert", variant or "base", VARIANTS)
    layers, width, heads, has_dropout, steps = VARIANTS[variant]
    config = common.base()
    config.name = f"albert:{variant}"
    config.model = common.encoder()
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, vocab_size=30_000, context=512)
    config.model.update(groups=1, embed=128, project_always=True)
    if not has_dropout:
        config.model.update(dropout=0.0, dropout_attention=0.0)
    config.objective = common.masked()
    config.objective.update(max_predictions=77, whole_words=True, ngrams=3, swapped_pairs=True)
    # A tokenizer trained here adds 3 special ids: 29,997 + 3 = 30,000.
    config.tokenizer.update(kind="huggingface", path="tokenizers/albert-base-v2.json", vocab_size=29_997)
    common.use_documents(config, "books_wikipedia", layout="pairs", length=512)
    config.train.update(steps=steps, batch_size=4096)
    config.optimizer.update(name="lamb", epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip=1.0)
    # As released: linear decay starts at update 0, so the peak is never quite reached.
    config.schedule.update(kind="linear", peak=0.00176, warmup=3125, end=0.0, beneath_warmup=True)
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=2045, tokenizer="sentencepiece")
        config.model.update(vocab_size=2048, embed=64, context=64)
        config.objective.update(max_predictions=10, passes=1)
        config.schedule.update(peak=0.01, warmup=30)
    return config
