"""GPT-3 (Brown et al. 2020, "Language Models are Few-Shot Learners").

    pretrain train --config=configs/gpt3.py:small --workdir=runs/gpt3
    pretrain describe --config=configs/gpt3.py:175b

Variants: small (the default), medium, large, xl, 2.7b, 6.7b, 13b, 175b: every row of the paper's table 2.1.

Two rows of that table contradict themselves: xl has 16 heads of 128 here (24 of 128, as printed, is not its width of
2,048), and 13b is 5,120 wide (40 heads of 128; printed is 5,140). The paper alternates dense and banded attention
without giving band or order; the default is dense, which has the same parameters. Alternate with
config.model.attention = ("dense", "local_256").

Batch, learning rate, warm-up (375 million tokens) and decay (to a tenth over 260 billion of 300 billion tokens) are the
paper's, rounded to whole batches, without its growth of the batch from 32k tokens over the first 4 to 12 billion
tokens: config.train.batch_ramp=(16, 16, 2_000_000) is that over 4 billion. Steps and schedule count updates, so raise
train.steps, schedule.warmup and schedule.decay_steps with it (`describe` shows the tokens of all steps).
Documents are joined and cut without a mask between them, as in the paper. Its data are not public: C4 replaces Common
Crawl, C4's "webtextlike" WebText2, PG-19 the two sets of books, in the paper's proportions, prepared by TFDS as
ArrayRecord files. The tokenizer is GPT-2's, tokenizers/gpt2.json (docs/data.md).

Cost: about 6 x parameters x 300e9 FLOPs: small 2.3e20 (2.6 petaflop/s-days), 175b 3.1e23 (3,640 petaflop/s-days).

Expect, on the paper's data, a validation loss of 2.57 C^-0.048 nats per token, C in petaflop/s-days: about 2.45 for
small, 1.73 for 175b.
"""

from configs import common

VARIANTS = {  # layers, width, heads, rows of a batch, peak learning rate
    "small": (12, 768, 12, 256, 6.0e-4),
    "medium": (24, 1024, 16, 256, 3.0e-4),
    "large": (24, 1536, 16, 256, 2.5e-4),
    "xl": (24, 2048, 16, 512, 2.0e-4),
    "2.7b": (32, 2560, 32, 512, 1.6e-4),
    "6.7b": (32, 4096, 32, 1024, 1.2e-4),
    "13b": (40, 5120, 40, 1024, 1.0e-4),
    "175b": (96, 12_288, 96, 1536, 0.6e-4),
}
CONTEXT = 2048


def get_config(variant=""):
    """Return the config of one size; no variant means small."""
    variant = common.check_variant("gpt3", variant or "small", VARIANTS)
    layers, width, heads, rows, peak = VARIANTS[variant]
    tokens = rows * CONTEXT  # of one update
    config = common.base()
    config.name = f"gpt3:{variant}"
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, vocab_size=50_257, context=CONTEXT)
    # Divisible by the devices that share a batch on a pod for this size.
    config.evaluate.batch_size = max(32, rows // 8)
    # ("dense", "local_256") alternates as the paper does, with a band of our choice.
    config.model.attention = ("dense",)
    config.tokenizer.update(kind="huggingface", path="tokenizers/gpt2.json", vocab_size=50_257)
    config.data.update(
        train="tfds:c4/en?split=train + tfds:c4/webtextlike?split=train + tfds:pg19?split=train&field=book_text"
        " + tfds:wikipedia/20230601.en?split=train",
        # As printed in table 2.2; they sum to 1.01 there too.
        weights=(0.60, 0.22, 0.16, 0.03),
        validation="tfds:c4/en?split=validation",
        layout="concat",
        length=CONTEXT,
    )
    config.train.update(steps=300_000_000_000 // tokens, batch_size=rows)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.95, epsilon=1e-8, weight_decay=0.1, clip=1.0)
    config.schedule.update(
        kind="cosine",
        peak=peak,
        warmup=375_000_000 // tokens,
        decay_steps=260_000_000_000 // tokens,
        end=0.1,
    )
    # From xl on, activations of a whole layer stack do not fit a chip's memory.
    if layers * width >= 24 * 2048:
        config.model.remat = "full"
    return config
