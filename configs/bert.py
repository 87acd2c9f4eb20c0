"""BERT (Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding").

    pretrain train --config=configs/bert.py:base --workdir=runs/bert
    pretrain train --config=configs/bert.py:mini_stdlib       # a minute on 2 CPU cores, no files needed

Variants: base (110M, the default), large (336M), and the smaller ones of Turc et al. 2019: tiny (4.4M), mini (11M),
small (29M), medium (42M). base_cased (109M) and large_cased (335M) keep case and accents; large_whole_words predicts
all pieces of a word or none. multilingual_cased (179M) and multilingual_uncased (168M) read one source per language,
data/wikipedia/LANGUAGE.txt, mixed by size in rows to the power 0.7. mini_stdlib is a small network on the Python
standard library.

Data: data/books_wikipedia/*.txt, one sentence per line, a blank line between documents; the paper's text, books and
English Wikipedia, has 3.3 billion words. Documents are cut into pairs by the released algorithm, in ten different ways;
masks are drawn when a row is read, so they differ between epochs. The vocabularies are the release's (docs/data.md);
all variants need the extra hf.

Adam without bias correction, weight decay 0.01 except for biases and norms, and a rate that decays linearly over all
updates, warm-up included, as released. The paper uses rows of 128 tokens for 900,000 updates and of 512 for the last
100,000, which takes two runs. The first adds

    --config.train.steps=900000 --config.schedule.decay_steps=1000000

and the second, which starts without the moments of the first,

    --config.train.start_from=runs/bert --config.train.steps=100000 --config.data.length=512
    --config.objective.max_predictions=77 --config.schedule.peak=1e-5 --config.schedule.warmup=0

Cost: 1,000,000 updates of 256 rows of 128 are 33 billion tokens: 1.7e19 FLOPs for base, 6e19 for large, without
attention (logits are computed for predicted tokens only). The paper used 16 TPU chips for base and 64 for large, four
days each.

Expect, after fine-tuning, GLUE test averages of 79.6 (base) and 82.1 (large), and of the small ones 64.2 (tiny), 65.8
(mini), 71.2 (small) and 73.5 (medium). mini_stdlib learns token frequencies, 6.0 nats per masked token; using context
takes thousands of updates more.
"""

from configs import common

VARIANTS = {  # layers, width, heads, cased, whole words
    "multilingual_cased": (12, 768, 12, True, False),
    "multilingual_uncased": (12, 768, 12, False, False),
    "tiny": (2, 128, 2, False, False),
    "mini": (4, 256, 4, False, False),
    "small": (4, 512, 8, False, False),
    "medium": (8, 512, 8, False, False),
    "base": (12, 768, 12, False, False),
    "base_cased": (12, 768, 12, True, False),
    "large": (24, 1024, 16, False, False),
    "large_cased": (24, 1024, 16, True, False),
    "large_whole_words": (24, 1024, 16, False, True),
    "mini_stdlib": (2, 128, 2, True, False),
}
ALPHA = 0.7  # of multilingual variants: the power of a language's size in its share of the batches


def get_config(variant=""):
    """Return the config of one size; no variant means base."""
    variant = common.check_variant("bert", variant or "base", VARIANTS)
    layers, width, heads, cased, whole_words = VARIANTS[variant]
    vocab_size, file = (28_996, "cased") if cased else (30_522, "uncased")
    config = common.base()
    config.name = f"bert:{variant}"
    config.model = common.encoder()
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, vocab_size=vocab_size, context=512)
    config.objective = common.masked()
    # The release predicts at most 20 tokens of a row of 128: 15 % are 19.2.
    config.objective.update(max_predictions=20, whole_words=whole_words)
    config.tokenizer.update(
        kind="wordpiece", path=f"tokenizers/bert-base-{file}.json", cased=cased, vocab_size=vocab_size
    )
    common.use_documents(config, "books_wikipedia", layout="pairs", length=128)
    config.train.update(steps=1_000_000, batch_size=256)
    config.optimizer.update(name="adamw", epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip=1.0)
    # As released: linear decay starts at update 0, so the rate peaks at 0.99e-4.
    config.schedule.update(kind="linear", peak=1e-4, warmup=10_000, end=0.0, beneath_warmup=True)
    if variant.startswith("multilingual"):
        config.model.vocab_size = 119_547 if cased else 105_879
        config.tokenizer.path = f"tokenizers/bert-base-multilingual-{file}.json"
        config.tokenizer.vocab_size = config.model.vocab_size
        languages = ("en", "fr", "de", "ru", "zh", "sw", "ur")
        config.data.train = " + ".join(f"text:data/wikipedia/{one}.txt?document=blank_line" for one in languages)
        config.data.temperature = 1 / ALPHA
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=2048)
        config.model.update(vocab_size=2048, context=64)
        config.objective.update(max_predictions=10, passes=1)
        config.schedule.update(peak=1e-3, warmup=30)
    return config
