"""XLNet (Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language Understanding").

    pretrain train --config=configs/xlnet.py:base --workdir=runs/xlnet
    pretrain train --config=configs/xlnet.py:mini_stdlib      # a minute on 2 CPU cores, no files needed

Variants: base (the default, 116,750,336 parameters), large (360,300,800); mini_stdlib is a small network on the Python
standard library.

Transformer-XL's layers with their own biases and segments, and a second stream that predicts 85 of a row's 512
positions in a random order: 43 of its first 256 tokens, which are text, and 42 of the rest, two segments with SEP and
CLS. The next row of a lane begins after the 256, whose states are its memory. The second half of the lanes reads the
text backwards. n-grams count pieces, as in the release, where words were meant.

Data: data/books_wikipedia/*.txt, one sentence per line and a blank line between documents; the paper's 33 billion
pieces add Giga5, ClueWeb and Common Crawl. The vocabulary is the release's, 32,000 cased SentencePiece pieces,
tokenizers/xlnet.json (docs/data.md).

The optimiser is the release's: Adam without bias correction, weight decay 0.01 except for norms and biases (u, v and s
decay), a linear schedule. Each of 8,192 lanes has its memory: 6.4 GB for large in bfloat16 for every 256 lanes.

Cost: 500,000 updates of 8,192 rows, 2e12 tokens: for large 6e21 FLOPs, in the paper 5.5 days on 512 TPU v3 chips.

Expect, for large after fine-tuning, MNLI 90.8, SQuAD 1.1 89.7/95.1, RACE 85.4. mini_stdlib learns token frequencies and
a little of the context.
"""

from configs import common

VARIANTS = {  # layers, width, heads
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "mini_stdlib": (2, 64, 4),
}


def get_config(variant=""):
    """Return the config of one size; no variant means base."""
    variant = common.check_variant("xlnet", variant or "base", VARIANTS)
    layers, width, heads = VARIANTS[variant]
    config = common.base()
    config.name = f"xlnet:{variant}"
    config.model = common.two_stream()
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, vocab_size=32_000)
    # Defaults are the release's: reuse 256, perm_size 256, 85 predictions of 512 positions.
    config.objective = common.permutation()
    config.tokenizer.update(kind="huggingface", path="tokenizers/xlnet.json", vocab_size=31_998)
    config.tokenizer.update(
        single=("$A", "separator", "classifier"), pair=("$A", "separator", "$B", "separator", "classifier")
    )
    common.use_documents(config, "books_wikipedia", layout="stream", length=512)
    config.train.update(steps=500_000, batch_size=8192)
    config.optimizer.update(name="adamw", epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip=1.0)
    config.schedule.update(kind="linear", peak=4e-4, warmup=40_000, end=0.0)
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=1000, tokenizer="sentencepiece")
        config.model.update(vocab_size=1002, context=64, memory=32, reuse=32)
        config.objective.update(reuse=32, perm_size=32, predictions=10)
        config.schedule.update(peak=3e-3, warmup=30)
    return config
