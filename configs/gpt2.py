"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

    pretrain train --config=configs/gpt2.py:small --workdir=runs/gpt2

Variants: small (124M, the default), medium (355M), large (774M), xl (1,558M); the paper prints 117M, 345M, 762M and
1,542M.

Network and initialisation are the paper's: pre-norm, residual projections scaled by 1/sqrt(2L), no dropout (as in the
released code), and so are batch and context: 512 rows of 1,024 tokens. Optimiser, learning rates and steps were never
published; those here are GPT-3's for the same sizes, over 300 billion tokens. C4's "webtextlike", pages linked from
Reddit, replaces WebText, prepared by TFDS as ArrayRecord files. The tokenizer is GPT-2's, tokenizers/gpt2.json
(docs/data.md), and needs the extra hf.

Cost: 6 x parameters x tokens FLOPs, without attention. small: 2.2e20, two days on 8 A100 at half their peak; xl:
2.8e21, 26 days. Raise train.accumulate if the batch does not fit.

Expect, zero-shot, on the paper's data (perplexity per original word; WikiText-103, LAMBADA): small 37.50 and 35.13,
medium 26.37 and 15.60, large 22.05 and 10.87, xl 17.48 and 8.63.
"""

from configs import common

VARIANTS = {  # layers, width, heads, peak learning rate
    "small": (12, 768, 12, 6.0e-4),
    "medium": (24, 1024, 16, 3.0e-4),
    "large": (36, 1280, 20, 2.5e-4),
    "xl": (48, 1600, 25, 2.0e-4),
}


def get_config(variant=""):
    """Return the config of one size; no variant means small."""
    variant = common.check_variant("gpt2", variant or "small", VARIANTS)
    layers, width, heads, peak = VARIANTS[variant]
    config = common.base()
    config.name = f"gpt2:{variant}"
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, vocab_size=50_257, context=1024)
    config.tokenizer.update(kind="huggingface", path="tokenizers/gpt2.json", vocab_size=50_257)
    config.data.update(
        train="tfds:c4/webtextlike?split=train",
        validation="tfds:c4/webtextlike?split=validation",
        layout="concat",
        length=1024,
    )
    # 572,000 updates of 512 x 1,024 tokens are 300 billion.
    config.train.update(steps=572_000, batch_size=512)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.95, epsilon=1e-8, weight_decay=0.1, clip=1.0)
    # 715 updates of warm-up are 375 million tokens, as in GPT-3.
    config.schedule.update(kind="cosine", peak=peak, warmup=715, end=0.1)
    return config
