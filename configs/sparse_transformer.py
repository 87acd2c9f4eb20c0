"""Sparse Transformer (Child et al. 2019, "Generating Long Sequences with Sparse Transformers").

    pretrain train --config=configs/sparse_transformer.py:enwik8 --workdir=runs/sparse

| variant        | layers, width, heads | attention                       | context | parameters  | expect           |
|----------------|----------------------|---------------------------------|---------|-------------|------------------|
| enwik8         | 30, 512, 8           | fixed 128/32, merged, by head   | 12,288  | 94,949,888  | 0.99 bits a byte |
| cifar10        | 128, 256, 2          | one column layer to three local | 3,072   | 59,196,928  | 2.80 bits a dim  |
| imagenet64     | 48, 512, 16          | one column layer to three local | 12,288  | 151,645,184 | 3.44 bits a dim  |
| tiny (default) | 2, 64, 4             | fixed 32/8, merged, by head     | 512     | 136,000     | a minute's test  |
| tiny_images    | 4, 64, 4             | one column layer to three local | 192     | 234,112     | a minute's test  |

A pre-norm decoder with learned tables for row and column (and colour) of a position, a start vector, an untied output
that starts at zero, matrices that start at variance 0.125 / inputs, dropout only at the end of each branch, and layers
recomputed in the backward pass. The start vector is the last row of the token table: the end token, with which every
document begins and which is never predicted. CIFAR-10's model halves queries, keys and feed-forward.

Other patterns are one override away: `--config.model.attention="('strided_128',)"`. On text, strided attention is
clearly worse (1.13 bits per byte in the paper). Learning rates of enwik8 and imagenet64 were never published; 1.5e-4 is
the later code's for 150M parameters.

Evaluate text with a stride, as the paper does: `evaluate --stride=128` gives its minimum context of 12,160 bytes. An
image is one row, scored in bits per dimension; `generate --complete=FILE.png` completes lower halves of images.

Data: the file data/enwik8, cut into 90 / 5 / 5 million bytes; images from TFDS, or from any folder with
`--config.data.train='images:GLOB'` (tiny_images: 8 x 8 colour images in data/images); a row is an image's bytes in the
order row, column, colour.

Cost: 8 V100 (imagenet64: 64, for 7 days).
"""

from configs import common

VARIANTS = {  # network; rows of a batch, updates, warm-up, peak learning rate
    "enwik8": (
        dict(layers=30, width=512, heads=8, ff=2048, context=12_288, position_axes=(96, 128), dropout_residual=0.4)
        | dict(attention=("fixed_128_32_by_head",)),
        *(16, 36_600, 5_000, 1.5e-4),  # 80 epochs
    ),
    "cifar10": (
        dict(layers=128, width=256, heads=2, ff=512, context=3072, position_axes=(32, 32, 3), dropout_residual=0.25)
        | dict(attention=("column_96", "local_96", "local_96", "local_96"), query_size=64),
        *(16, 360_000, 5_000, 3.5e-4),  # 120 epochs
    ),
    "imagenet64": (
        dict(layers=48, width=512, heads=16, ff=2048, context=12_288, position_axes=(64, 64, 3), dropout_residual=0.01)
        | dict(attention=("local_128", "column_128", "local_128", "local_128")),
        *(128, 700_000, 5_000, 1.5e-4),  # 70 epochs
    ),
    "tiny_images": (
        dict(layers=4, width=64, heads=4, ff=256, context=192, position_axes=(8, 8, 3), dtype="float32")
        | dict(attention=("column_24", "local_24", "local_24", "local_24")),
        *(16, 200, 20, 3e-3),
    ),
    "tiny": (
        dict(layers=2, width=64, heads=4, ff=256, context=512, position_axes=(16, 32), dtype="float32")
        | dict(attention=("fixed_32_8_by_head",)),
        *(8, 60, 5, 3e-3),
    ),
}
DATA = {
    "enwik8": (
        "text:data/enwik8?bytes=:90000000",
        "text:data/enwik8?bytes=90000000:95000000",
        "text:data/enwik8?bytes=95000000:100000000",
    ),
    "cifar10": ("tfds:cifar10?split=train[:48000]", "tfds:cifar10?split=train[48000:]", "tfds:cifar10?split=test"),
    "imagenet64": (
        "tfds:downsampled_imagenet/64x64?split=train[:-2000]",
        "tfds:downsampled_imagenet/64x64?split=train[-2000:]",
        "tfds:downsampled_imagenet/64x64?split=validation",
    ),
    "tiny_images": ("images:data/images/**/*.png", "", ""),
    "tiny": ("stdlib", "", ""),
}
IMAGES = ("cifar10", "imagenet64", "tiny_images")  # position axes are rows, columns and colours


def get_config(variant=""):
    """Return the config of one variant; no variant means tiny."""
    variant = common.check_variant("sparse_transformer", variant or "tiny", VARIANTS)
    network, rows, steps, warmup, peak = VARIANTS[variant]
    config = common.base()
    config.name = f"sparse_transformer:{variant}"
    config.model.update(vocab_size=256, start_row=True, positions="factorised", activation="gelu_sigmoid")
    config.model.update(tied_head=False, head_init_std=0.0, init_std=0.01, init_gain=0.125, final_norm_epsilon=1e-6)
    # Each of n tables gets 0.01 / sqrt(n), so their sum has a deviation of 0.01.
    config.model.position_init_std = 0.01 / len(network["position_axes"]) ** 0.5
    config.model.update(network, remat="full")
    config.tokenizer.update(kind="bytes", vocab_size=257)
    train, validation, test = DATA[variant]
    config.data.update(train=train, validation=validation, test=test, length=config.model.context)
    if variant in IMAGES:
        config.data.update(image=config.model.position_axes, layout="document")
    config.train.update(steps=steps, batch_size=rows)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.999, weight_decay=0.01, clip=1.0)
    config.schedule.update(kind="cosine", peak=peak, warmup=warmup, end=0.0)
    config.evaluate.update(batch_size=rows)
    if variant in ("tiny", "tiny_images"):
        config.checkpoint.update(every=20)
        config.evaluate.update(every=30, batches=2)
        config.log.every = 5
    return config
