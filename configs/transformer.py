"""The Transformer (Vaswani et al. 2017, "Attention Is All You Need"): translation.

    pretrain train --config=configs/transformer.py:base --workdir=runs/transformer
    pretrain evaluate --workdir=runs/transformer --split=test --average=5
    pretrain generate --workdir=runs/transformer --prompt='A man in a hat.' --beams=4 --beyond=50 --average=5
    pretrain train --config=configs/transformer.py:multi30k --workdir=runs/multi30k      # sized for 2 CPU cores
    pretrain evaluate --workdir=runs/multi30k --split=test --average=5

Variants: base (63M, the default) and big (214M) from English to German, base_en_fr (60M) and big_en_fr (209M) from
English to French; multi30k (5.5M), a small one for image captions. The paper counts 65M and 213M.

Data: parallel lines in data/wmt14/train.en and train.de or train.fr, newstest2013 for validation, newstest2014 for the
test (docs/data.md). fields=de,en reverses the direction. The vocabulary is BPE of both languages, trained here: 37,000
pieces for German, 32,000 for French. The paper batches pairs of similar length; here rows of 256 tokens on each side
hold as many pairs as fit, and 96 rows are the paper's 25,000 tokens. The decoder starts with the end token's embedding,
where the released code has zeros.

Post-norm; one table for both stacks and the output; attention projections without bias, as in the released code. Adam
with 0.9, 0.98 and 1e-9; a rate that rises for 4,000 updates to 1 / sqrt(4,000 x width) and decays as 1 / sqrt(update).
Label smoothing of 0.1 costs likelihood and gains BLEU. Decoding uses 4 beams, a length penalty of 0.6 and at most 50
tokens beyond the input's length, and the mean of the last checkpoints (`--average`), 5 for base and 20 for big. The
paper saves every 10 minutes: every 1,500 updates of base at its 0.4 seconds, every 600 of big at 1.0.

Cost: base makes 100,000 updates, 2.5 billion tokens on each side and about 3.3e18 FLOPs by the paper's count, 12 hours
of 8 P100; big 300,000, 2.3e19 and 3.5 days.

Expect, on newstest2014, BLEU of 27.3 (base) and 28.4 (big) to German, 38.1 and 41.8 to French. The paper scores
tokenised text with compounds split; `evaluate` computes sacrebleu's BLEU of plain text, a little lower, and needs the
extra bleu. multi30k reached 35.3 on the test of 2016 after 4,000 updates, 37 minutes on 2 CPU cores.
"""

from configs import common

SIZES = {  # layers of each stack, width, heads, hidden size of the feed-forward block, dropout, language, vocabulary
    "base": (6, 512, 8, 2048, 0.1, "de", 37_000),
    "big": (6, 1024, 16, 4096, 0.3, "de", 37_000),
    "base_en_fr": (6, 512, 8, 2048, 0.1, "fr", 32_000),
    "big_en_fr": (6, 1024, 16, 4096, 0.1, "fr", 32_000),
    "multi30k": (3, 256, 4, 512, 0.3, "de", 6000),
}
VARIANTS = tuple(SIZES)
WARMUP = 4000


def get_config(variant=""):
    """Return the config of one size; no variant means base."""
    variant = common.check_variant("transformer", variant or "base", VARIANTS)
    layers, width, heads, ff, dropout, language, vocab_size = SIZES[variant]
    config = common.base()
    config.name = f"transformer:{variant}"
    config.model = common.encoder_decoder()
    config.model.update(layers=layers, width=width, heads=heads, head_size=64, ff=ff, vocab_size=vocab_size)
    config.model.update(context=512, norm="layer", placement="post", final_norm=False, positions="sinusoid")
    config.model.update(ff_bias=True, scale_embedding=True, scale_scores=True, scale_head=False, initialiser="glorot")
    config.model.update(dropout=dropout, dropout_attention=0.0, dropout_ff=0.0, dropout_hidden=0.0)
    config.objective = common.translation()
    config.tokenizer.update(kind="sentencepiece", vocab_size=vocab_size)
    pairs = f"parallel:data/wmt14/%s.{{}}?fields=en,{language}"
    config.data.update(train=pairs % "train", validation=pairs % "newstest2013", test=pairs % "newstest2014")
    config.data.update(layout="texts", length=256)
    config.train.update(steps=300_000 if "big" in variant else 100_000, batch_size=96, label_smoothing=0.1)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.98, epsilon=1e-9, clip=0.0)
    # Section 5.3: width^-0.5 * min(step^-0.5, step * warmup^-1.5) peaks at step = warmup.
    config.schedule.update(kind="rsqrt", peak=(width * WARMUP) ** -0.5, warmup=WARMUP)
    # One every 10 minutes (section 6.1), at 1.0 and 0.4 seconds per update.
    config.checkpoint.update(every=600 if "big" in variant else 1500, keep=20 if "big" in variant else 5)
    config.evaluate.update(beams=4, length_penalty=0.6, stopping="best", beyond=50)
    if variant == "multi30k":
        pairs = "parallel:data/multi30k/%s.{}.gz?fields=en,de"
        config.data.update(train=pairs % "train", validation=pairs % "val", test=pairs % "test_2016_flickr", length=64)
        config.model.update(context=128, dtype="float32")
        config.train.update(steps=4000, batch_size=32)
        config.schedule.update(kind="cosine", peak=1e-3, warmup=400, end=0.0)
        config.checkpoint.update(every=250, keep=5)
        config.evaluate.update(every=500)
    return config
