"""BERT and T5 for whole documents: the encoder's attention is sparse, the rest is unchanged.

    pretrain train --config=configs/long_documents.py:t5_4k --workdir=runs/t5_4k
    pretrain train --config=configs/long_documents.py:t5_tiny        # a minute on 2 CPU cores, no files needed

Variants: bert_4k, bert_8k, bert_16k, t5_4k (the default), t5_8k, t5_16k; bert_tiny and t5_tiny are small networks on
rows of 512 tokens of the Python standard library.

Layers alternate (Child et al. 2019, in both directions): `local_128` sees tokens less than 128 positions away,
`strided_128` also those at any multiple of 128, so two layers see everything. A token has 255 keys, or about
255 + T / 128, where dense attention has T. The parameters are those of `configs/bert.py:base` and `configs/t5.py:base`
except for the tables that a longer row enlarges: BERT's positions, T5's sentinels.

BERT masks 15 % of the tokens of whole documents, packed into rows; they begin with [SEP], have no [CLS] and do not see
each other; there are no pairs. T5 removes 15 % in spans of 3, as at 512; its decoder, which writes at most a third as
many tokens as the encoder reads, is dense. Tokenizers and text are those of the two recipes (docs/data.md).

Cost: an update reads as many tokens as the recipe at its own length: 65,536 (BERT) and 1,048,576 (T5).
`python -m benchmarks.long_documents` compares the encoder's step with the dense one.

Expect what the two recipes reach on text that fits their rows; nothing is published for these.
"""

from configs import common

LENGTHS = {"4k": 4096, "8k": 8192, "16k": 16_384, "tiny": 512}
VARIANTS = tuple(f"{family}_{size}" for family in ("bert", "t5") for size in LENGTHS)


def get_config(variant=""):
    """Return the config of one family and length; no variant means t5_4k."""
    variant = common.check_variant("long_documents", variant or "t5_4k", VARIANTS)
    family, size = variant.split("_")
    length, tiny = LENGTHS[size], size == "tiny"
    config = common.base()
    config.name = f"long_documents:{variant}"
    FAMILIES[family](config, length)
    config.model.update(context=length, attention=("local_128", "strided_128"))
    config.data.length = length
    if tiny:
        config.model.update(layers=2, width=64, heads=4, ff=256, attention=("local_32", "strided_32"), dtype="float32")
        config.data.update(train="stdlib", validation="", sentences="", holdout=0.05)
        config.train.update(steps=100, batch_size=4)
        config.checkpoint.every = 50
        config.evaluate.update(every=50, batches=5, batch_size=4)
        TINY[family](config)
    return config


def _bert(config, length):
    config.model = common.encoder()
    config.model.update(layers=12, width=768, heads=12, ff=3072, vocab_size=30_522, pair_head=False)
    config.objective = common.masked()
    config.objective.update(next_sentence=False, max_predictions=3 * length // 20)
    config.tokenizer.update(kind="wordpiece", path="tokenizers/bert-base-uncased.json", vocab_size=30_522)
    config.data.update(train="text:data/books_wikipedia/*.txt?document=blank_line", holdout=0.001, layout="packed")
    config.train.update(steps=500_000, batch_size=65_536 // length)
    config.optimizer.update(name="adamw", epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip=1.0)
    config.schedule.update(kind="linear", peak=1e-4, warmup=10_000, end=0.0, beneath_warmup=True)


def _t5(config, length):
    config.model = common.encoder_decoder()
    config.model.update(layers=12, width=768, heads=12, head_size=64, ff=3072, vocab_size=33_024)
    config.objective = common.spans()
    config.tokenizer.update(kind="sentencepiece", path="tokenizers/t5.model", vocab_size=31_999, sentinels=1024)
    config.data.update(train="tfds:c4/en?split=train", validation="tfds:c4/en?split=validation", layout="concat")
    config.train.update(steps=1_000_000, batch_size=1_048_576 // length, z_loss=1e-4)
    config.optimizer.update(name="adafactor", weight_decay=0.0, clip=0.0)
    # As in configs/t5.py.
    config.schedule.update(kind="rsqrt", peak=1e-2, warmup=0, hold=10_000)


def _tiny_bert(config):
    config.tokenizer.update(path="", vocab_size=1000, train_bytes=1_000_000)
    config.model.vocab_size = 1000
    config.schedule.update(peak=1e-3, warmup=10)


def _tiny_t5(config):
    config.tokenizer.update(path="", vocab_size=1000, train_bytes=1_000_000, sentinels=50)
    config.model.update(vocab_size=1051, head_size=16)
    config.schedule.hold = 100


FAMILIES = {"bert": _bert, "t5": _t5}
TINY = {"bert": _tiny_bert, "t5": _tiny_t5}
