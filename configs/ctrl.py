"""CTRL (Keskar et al. 2019, "CTRL: A Conditional Transformer Language Model for Controllable Generation").

    pretrain train --config=configs/ctrl.py --workdir=runs/ctrl
    pretrain generate --workdir=runs/ctrl --prompt='Books The ship' --temperature=0 --repetition_penalty=1.2

Variants: base (the default), 1,637,964,550 parameters; mini_stdlib, a small network without codes on the Python
standard library, a minute on 2 CPU cores.

A pre-norm decoder of 48 layers, 1,280 wide: sinusoids, sines before cosines, are added to the embeddings times
sqrt(1,280); ReLU; the head is the token table with a bias. Every row of 256 tokens begins with the control code of its
source (its option `code`), and so does a prompt; the loss covers all of its text. Sources are mixed by size. The
paper's 140 GB are Wikipedia, books, pages linked from Reddit, reviews, news, questions and translations; the first
three are named here, add more such as jsonl:data/reviews.jsonl?code=Reviews.

The paper's vocabulary, 246,534 BPE pieces, is read with --config.tokenizer.kind=ctrl
--config.tokenizer.path=.../vocab.json and merges.txt next to it; otherwise one of this size is trained. Sequences with
more than two unknown tokens are kept.

Adagrad's rate rises to 0.05 over 25,000 updates and stays there; gradients are clipped to 0.25.

Cost: 800,000 updates of 1,024 rows: 2e11 tokens, 2e21 FLOPs, in the paper two weeks on 256 TPU v3 cores.

Expect text in the style of its code. The paper gives no perplexity.
"""

from configs import common

VARIANTS = ("base", "mini_stdlib")


def get_config(variant=""):
    """Return the config; no variant means base."""
    variant = common.check_variant("ctrl", variant or "base", VARIANTS)
    config = common.base()
    config.name = f"ctrl:{variant}"
    config.model.update(layers=48, width=1280, heads=16, ff=8192, vocab_size=246_534, context=256)
    config.model.update(activation="relu", norm_epsilon=1e-6, positions="sinusoid_concatenated", scale_embedding=True)
    config.model.update(head_bias=True, dropout_embedding=0.1, dropout_residual=0.1, scale_residual_init=False)
    config.model.remat = "full"
    config.objective.coded = True
    config.tokenizer.update(kind="sentencepiece", vocab_size=246_534, train_bytes=2_000_000_000)
    config.data.update(
        train="tfds:wikipedia/20230601.en?split=train&code=Wikipedia + tfds:pg19?split=train&field=book_text&code=Books"
        " + tfds:c4/webtextlike?split=train&code=Links",
        layout="concat",
        length=256,
    )
    config.train.update(steps=800_000, batch_size=1024)
    # Section 3.2: Adagrad, clipping at 0.25.
    config.optimizer.update(name="adagrad", epsilon=1e-7, clip=0.25)
    config.schedule.update(kind="constant", peak=0.05, warmup=25_000)
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=1000)
        config.model.update(vocab_size=1000, layers=2, width=64, heads=4, ff=256, remat="none")
        config.objective.coded = False
        config.schedule.warmup = 30
    return config
