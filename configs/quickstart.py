"""A small decoder on the Python standard library: real text that every machine has.

    pretrain train --config=configs/quickstart.py             # `default`: 2 to 4 minutes on 2 CPU cores
    pretrain train --config=configs/quickstart.py:tiny        # some seconds; saves several checkpoints

Expect about 1.64 bits per byte on the held-out files, where `gzip -9` needs 1.95 and `xz -9` 1.66.
"""

from configs import common

VARIANTS = ("default", "tiny")


def get_config(variant=""):
    """Return the config; no variant means default."""
    variant = common.check_variant("quickstart", variant or "default", VARIANTS)
    config = common.base()
    config.name = "quickstart"
    config.tokenizer.update(algorithm="bpe", pieces="phrases", vocab_size=4096, train_bytes=3_000_000)
    config.data.update(train="stdlib", holdout=0.05, layout="concat", length=256)
    config.model.update(
        vocab_size=4096,
        context=256,
        layers=2,
        width=192,
        heads=3,
        ff=768,
        # CPUs multiply float32 faster than bfloat16.
        dtype="float32",
        # Two unrolled layers compile quickly and run faster than a scan.
        scan=False,
    )
    config.train.update(steps=360, batch_size=8)
    config.optimizer.update(name="muon", b1=0.95, b2=0.95, weight_decay=0.1)
    config.schedule.update(kind="linear", peak=8e-3, warmup=20, end=0.0)
    config.checkpoint.update(every=120)
    config.evaluate.update(every=120, batches=4)
    config.log.every = 10
    if variant == "tiny":
        config.name = "quickstart-tiny"
        config.tokenizer.update(vocab_size=512, train_bytes=300_000)
        config.model.update(vocab_size=512, context=64, layers=2, width=64, heads=2, ff=256, scan=True)
        config.data.update(length=64)
        config.train.update(steps=60, batch_size=8)
        config.schedule.update(peak=3e-3, warmup=5)
        config.checkpoint.update(every=10)
        config.evaluate.update(every=30, batches=2, batch_size=8)
        config.log.every = 5
    return config
