"""BART (Lewis et al. 2019, "BART: Denoising Sequence-to-Sequence Pre-training").

    pretrain train --config=configs/bart.py:base --workdir=runs/bart
    pretrain train --config=configs/bart.py:mini_stdlib       # a minute on 2 CPU cores, no files needed

Variants: base (139M, the default) and large (406M). mini_stdlib is a small network on the Python standard library.

Text is corrupted as in the released recipe: sentences are shuffled, and 30 % of the words are removed in spans of 3 on
average (Poisson), one mask in place of each; an empty span inserts a mask. 10 % of the masks are random tokens. The
other noises of section 2.2 are keys:

    --config.objective.noise=masking --config.objective.share=0.15     # of tokens; or deletion
    --config.objective.permutation=0 --config.objective.rotation=1     # start at a random token

Rows are windows of the joined text; the release uses blocks of whole documents. The vocabulary is the release's,
GPT-2's with other ids (docs/data.md). Text is C4's English part, in place of RoBERTa's 160 GB.

Norms follow the residual, with one more on the embeddings of both stacks; the first two rows of the learned position
tables are unused. Adam with 0.9, 0.98 and 1e-6, 500,000 updates of 8,000 rows of 1,024 tokens. Peak and warm-up are not
published: 4e-4 for large, 6e-4 for base and 6 % warm-up are RoBERTa's. The last tenth runs without dropout, as
published: run the command twice, with the first of these lines and then with the second

    --config.schedule.decay_steps=500000 --config.train.steps=450000
    --config.schedule.decay_steps=500000 --config.model.dropout=0

Cost: 8e12 tokens on both sides: for large, about 3 x parameters x tokens, 1e22 FLOPs; for base 3.4e21.

Expect, for large after fine-tuning, 89.9 on MNLI, 88.8 / 94.6 on SQuAD 1.1 and ROUGE of 44.16 / 21.28 / 40.90 on
CNN/DM. mini_stdlib learns to copy what is left of a text, and token frequencies.
"""

from configs import common

SIZES = {  # layers of each stack, width, heads, hidden size of the feed-forward block, highest rate
    "base": (6, 768, 12, 3072, 6e-4),
    "large": (12, 1024, 16, 4096, 4e-4),
    "mini_stdlib": (2, 64, 4, 256, 2e-3),
}
VARIANTS = tuple(SIZES)


def get_config(variant=""):
    """Return the config of one size; no variant means base."""
    variant = common.check_variant("bart", variant or "base", VARIANTS)
    layers, width, heads, ff, peak = SIZES[variant]
    config = common.base()
    config.name = f"bart:{variant}"
    config.model = common.encoder_decoder()
    config.model.update(layers=layers, width=width, heads=heads, head_size=width // heads, ff=ff, vocab_size=50_265)
    # fairseq numbers positions from padding_idx + 1 = 2.
    config.model.update(context=1024, positions="learned", position_offset=2, embedding_norm=True, final_norm=False)
    config.model.update(norm="layer", norm_epsilon=1e-5, placement="post", activation="gelu_erf")
    config.model.update(attention_bias=True, ff_bias=True, scale_scores=True, scale_head=False)
    config.model.update(dropout=0.1, dropout_attention=0.0, dropout_ff=0.0, dropout_hidden=0.0)
    config.model.update(initialiser="normal", init_scale=0.02)
    config.objective = common.denoising()
    config.tokenizer.update(kind="huggingface", path="tokenizers/bart.json", vocab_size=50_263)
    config.tokenizer.update(single=("classifier", "$A", "end"), pair=("classifier", "$A", "end", "end", "$B", "end"))
    config.data.update(train="tfds:c4/en?split=train", validation="tfds:c4/en?split=validation", length=1024)
    config.train.update(steps=500_000, batch_size=8000)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.01, clip=0.0)
    # 6 % of 500,000 updates, RoBERTa's warm-up.
    config.schedule.update(kind="linear", peak=peak, warmup=30_000, end=0.0)
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=1000, tokenizer="sentencepiece")
        config.model.update(vocab_size=1002, context=128)
        config.schedule.update(warmup=30)
    return config
