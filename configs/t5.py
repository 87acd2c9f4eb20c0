"""T5 (Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer").

    pretrain train --config=configs/t5.py:base --workdir=runs/t5
    pretrain train --config=configs/t5.py:mini_stdlib         # a minute on 2 CPU cores, no files needed

Variants of version 1.0: small (61M), base (223M, the default), large (738M), 3b, 11b; of 1.1: small_v1_1 (77M),
base_v1_1 (248M), large_v1_1 (783M), xl_v1_1 (2.8B), xxl_v1_1 (11.1B), with gated GELU, an untied head and no dropout.
base_prefix is prefix language modelling with base. mini_stdlib is a small network on the Python standard library.

Text is C4's English part. Rows of 568 tokens lose 85 in 28 spans, so inputs have 512 tokens and targets 114, as in the
released code: rounded to even, text first and a span last, sentinels from the highest id down.

Tasks are further sources with two fields, the input, which begins with the name of its task, and the target; as many
pairs as fit share a row. Sources are mixed by their examples (pairs, or rows of text), capped and by temperature as in
section 3.5.2, or by data.weights:

    --config.data.train='tfds:c4/en?split=train + jsonl:data/tasks/*.jsonl?fields=inputs,targets'
    --config.data.cap=2097152 --config.data.temperature=2

Dropout draws each position separately; the release draws one mask for all positions of a row (in attention, for all
queries). The optimiser is the paper's: Adafactor with a rate of 0.01 for 10,000 updates, then 1 / sqrt(update), times
the scale of each parameter. The vocabulary is the release's (docs/data.md).

Cost: the paper's final models read 2,048 rows for 1,000,000 updates, 1.3e12 tokens on both sides: about 3 x parameters
x tokens FLOPs, since each token passes one of two stacks. base: 9e20. Its study of methods reads 128 rows for 524,288
updates.

Expect, after fine-tuning, GLUE test averages of 77.4 (small), 82.7 (base), 86.4 (large), 88.5 (3b) and 90.3 (11b).
mini_stdlib ends at 4.3 nats per target token.
"""

from configs import common

SIZES = {  # layers of each stack, width, heads, size of a head, hidden size of the feed-forward block
    "small": (6, 512, 8, 64, 2048),
    "base": (12, 768, 12, 64, 3072),
    "large": (24, 1024, 16, 64, 4096),
    "3b": (24, 1024, 32, 128, 16_384),
    "11b": (24, 1024, 128, 128, 65_536),
    "base_prefix": (12, 768, 12, 64, 3072),
    "small_v1_1": (8, 512, 6, 64, 1024),
    "base_v1_1": (12, 768, 12, 64, 2048),
    "large_v1_1": (24, 1024, 16, 64, 2816),
    "xl_v1_1": (24, 2048, 32, 64, 5120),
    "xxl_v1_1": (24, 4096, 64, 64, 10_240),
    "mini_stdlib": (2, 64, 4, 16, 256),
}
VARIANTS = tuple(SIZES)


def get_config(variant=""):
    """Return the config of one size; no variant means base."""
    variant = common.check_variant("t5", variant or "base", VARIANTS)
    layers, width, heads, head_size, ff = SIZES[variant]
    config = common.base()
    config.name = f"t5:{variant}"
    config.model = common.encoder_decoder()
    # The table has 32,128 rows: 32,000 pieces, 100 sentinels, and padding to a multiple of 128.
    config.model.update(layers=layers, width=width, heads=heads, head_size=head_size, ff=ff, vocab_size=32_128)
    if variant.endswith("_v1_1"):
        config.model.update(activation="gated_gelu_tanh", tied_head=False)
        config.model.update(dropout=0.0, dropout_attention=0.0, dropout_ff=0.0, dropout_hidden=0.0)
    config.objective = common.spans()
    if variant == "base_prefix":
        config.objective.noise = "prefix"
    config.tokenizer.update(kind="sentencepiece", path="tokenizers/t5.model", vocab_size=32_000, sentinels=100)
    config.data.update(
        train="tfds:c4/en?split=train", validation="tfds:c4/en?split=validation", layout="concat", length=512
    )
    config.train.update(steps=1_000_000, batch_size=2048, z_loss=1e-4)
    config.optimizer.update(name="adafactor", weight_decay=0.0, clip=0.0)
    # 1e-2 for 10,000 updates = 1 / sqrt(10,000), then 1 / sqrt(update).
    config.schedule.update(kind="rsqrt", peak=1e-2, warmup=0, hold=10_000)
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=1000)
        config.model.update(vocab_size=1101, context=128)
        config.schedule.update(hold=100)
    return config
