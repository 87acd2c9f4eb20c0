"""CTRL (Keskar et al. 2019, "CTRL: A Conditional Transformer Language Model for Controllable Generation").

    pretrain train --config=configs/ctrl.py --workdir=runs/ctrl
    pretrain generate --workdir=runs/ctrl --prompt='Books The ship' --temperature=0 --repetition_penalty=1.2

Variants: base (the default), 1,637,964,550 parameters; mini_stdlib, a small network without codes on the standard
library of the running interpreter, a minute on 2 CPU cores.

A decoder of 48 layers, 1,280 wide, with the norms before the branches: sinusoids, sines before cosines, are added to
the embeddings times sqrt(1,280); ReLU; the head is the token table with a bias. Every row begins with the control code
of its source, which the option `code` of a source names, and is of 256 tokens with it; the loss covers all of its text.
A prompt begins with a code too. Text is drawn from a source as often as by its size: the paper's 140 GB hold Wikipedia,
books, pages that Reddit linked to, reviews, news, questions and translations. The first three are named here; more are
more sources, such as jsonl:data/reviews.jsonl?code=Reviews.

The paper's vocabulary, 246,534 pieces of a BPE, is read as --config.tokenizer.kind=ctrl
--config.tokenizer.path=.../vocab.json, with the merges.txt beside it; without, one of this size is trained on the text
instead. Sequences with more than two unknown tokens are not left out.

Adagrad's rate rises to 0.05 over 25,000 updates and stays there; gradients are clipped to 0.25.

Cost: 800,000 updates of 1,024 rows: 2e11 tokens, 2e21 FLOPs, in the paper two weeks on 256 TPU v3 cores.

Expect text in the manner of its code. The paper gives no perplexity.
"""

from configs import common

VARIANTS = ("base", "mini_stdlib")


def get_config(variant=""):
    """The recipe; no variant means base."""
    variant = common.check_variant("ctrl", variant or "base", VARIANTS)
    config = common.base()
    config.name = f"ctrl:{variant}"
    config.model.update(
        vocab_size=246_534,
        context=256,
        layers=48,
        width=1280,
        heads=16,
        ff=8192,
        activation="relu",
        norm_epsilon=1e-6,
        positions="sinusoid_concatenated",
        scale_embedding=True,
        head_bias=True,
        dropout_embedding=0.1,
        dropout_residual=0.1,
        scale_residual_init=False,
        remat="full",
    )
    config.objective.coded = True
    config.tokenizer.update(kind="sentencepiece", vocab_size=246_534, train_bytes=2_000_000_000)
    config.data.update(
        train="tfds:wikipedia/20230601.en?split=train&code=Wikipedia + tfds:pg19?split=train&field=book_text&code=Books"
        " + tfds:c4/webtextlike?split=train&code=Links",
        layout="concat",
        length=256,
    )
    config.train.update(steps=800_000, batch_size=1024)
    config.optimizer.update(name="adagrad", epsilon=1e-7, clip=0.25)
    config.schedule.update(kind="constant", peak=0.05, warmup=25_000)
    if variant == "mini_stdlib":
        config.model.update(vocab_size=1000, layers=2, width=64, heads=4, ff=256, dtype="float32", remat="none")
        config.objective.coded = False
        config.tokenizer.update(vocab_size=1000, train_bytes=1_000_000)
        config.data.update(train="stdlib", length=64)
        config.train.update(steps=300, batch_size=32)
        config.schedule.warmup = 30
        config.checkpoint.every = 100
        config.evaluate.update(every=100, batches=20)
    return config
