"""Transformer-XL (Dai et al. 2019, "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context").

    pretrain train --config=configs/transformer_xl.py:enwik8 --workdir=runs/xl
    pretrain train --config=configs/transformer_xl.py:tiny --workdir=runs/rotary --config.model.positions=rotary

| variant            | layers, width, heads | parameters  | T = M | evaluated: T / M / clamp | expect           |
|--------------------|----------------------|-------------|-------|--------------------------|------------------|
| wt103              | 16, 410, 10          | 151,107,538 | 150   | 64 / 640 / 400           | perplexity 24.0  |
| wt103_large        | 18, 1,024, 16        | 285,170,506 | 384   | 128 / 1,600 / 1,000      | perplexity 18.3  |
| enwik8             | 12, 512, 8           | 41,055,436  | 512   | 80 / 2,100 / 820         | 1.06 bits a byte |
| enwik8_18          | 18, 640, 8           | 87,965,708  | 512   | 80 / 2,100 / 820         | 1.03 bits a byte |
| enwik8_large       | 24, 1,024, 8         | 277,231,820 | 768   | 128 / 3,800 / 1,000      | 0.99 bits a byte |
| text8              | 12, 512, 8           | 40,964,635  | 512   | 80 / 2,100 / 820         | (not published)  |
| text8_large        | 24, 1,024, 8         | 277,050,395 | 768   | 128 / 3,800 / 1,000      | 1.08 bits a char |
| lm1b               | 18, 1,024, 8         | 464,410,466 | 32    | 32 / 128 / none          | perplexity 23.5  |
| lm1b_large         | 24, 1,280, 16        | 838,019,182 | 32    | 32 / 128 / none          | perplexity 21.8  |
| lm1b_release       | 18, 1,024, 8         | 357,812,082 | 32    | 32 / 128 / none          | (not published)  |
| lm1b_large_release | 24, 1,280, 16        | 841,295,982 | 32    | 32 / 128 / none          | (not published)  |
| tiny (default)     | 2, 64, 4             | 124,481     | 64    | 64 / 128 / none          | a minute's test  |

Counts of wt103, enwik8 and text8 are those of the released scripts; the paper prints 257M for wt103_large, which its
code does not give. lm1b and lm1b_large have the paper's counts, .46B and .8B; the PyTorch scripts build the models
called release here, which tie word vectors and project even those of the model's width. The 18-layer model was never
released; its feed-forward width here gives the paper's 88M.

The learning rate is that of the release's PyTorch scripts (TensorFlow's for text8_large warms up for 4,000 updates),
whose cosine starts at update 0 beneath the warm-up; the release's very first update uses the full rate. The release
computes in float32, as `--config.model.dtype=float32` does; bfloat16 moves a mean loss by 0.002 nats at most.

tests/models/test_transformer_xl_release.py compares this model with the release's PyTorch code (github.com/kimiyoung/
transformer-xl, commit 44781ed): every token's loss agrees within 4e-7 of its size in float32, and so do twenty updates.
Options that none of its scripts uses are not offered: pre_lnorm, attn_type 1 to 3, ext_len, sample_softmax, varlen.

Rotary positions (the second command) are not the paper's: queries and keys are rotated by their positions in memory and
row, and distance vectors and their parameters are gone, which leaves enwik8 37,908,684. They need heads of an even
size, such as `--config.model.head_size=42` for wt103, and no clamp: `--config.evaluate.model.clamp=0`.

Rows are contiguous streams, one lane each; a lane's memory continues from batch to batch and is part of the checkpoint.
Memory starts empty, as in the PyTorch release, not as zeros to attend to. All evaluations have same_length. Validations
use the release's 10 lanes, all of its text, every 4,000 updates, with the memory of the final score, so that the best
checkpoint is the one that scores best (the release uses the training memory): 5 million bytes of enwik8 cost about a
fifth of the arithmetic of the 4,000 updates before. `evaluate` uses one lane, in which only the text's start lacks
memory. The rest of a lane that fills no row, up to T - 1 tokens, is not read, as in the release's TPU code.

Data: WikiText-103 in data/wikitext-103, the files data/enwik8 and data/text8, one billion words from TFDS
(docs/data.md). Vocabularies are counted, most frequent first: words of the training text with one end-of-line token, or
symbols of all splits without an end token. Line ends of enwik8 are dropped, as in the release (204 of 205 symbols), and
a bit is per remaining symbol. The release has a word boundary on both sides of a sentence of lm1b, here it has one.

Cost: 32 TPU cores for enwik8 and text8, 64 for wt103, 512 for one billion words, four days and more.
"""

from configs import common

WT103 = {"vocab_size": 267_735, "cutoffs": (20_000, 40_000, 200_000)}
WT103_LARGE = {"layers": 18, "width": 1024, "heads": 16, "ff": 4096, "divisor": 4, "project_always": True, **WT103}
WT103_LARGE |= {"dropout": 0.2, "dropout_attention": 0.2}
LM1B = {"vocab_size": 793_471, "cutoffs": (60_000, 100_000, 640_000), "divisor": 4, "shared_projections": "none"}
LM1B_BASE = {"layers": 18, "width": 1024, "heads": 8, "ff": 4096, "dropout": 0.0, **LM1B}
LM1B_LARGE = {"layers": 24, "width": 1280, "heads": 16, "ff": 8192, **LM1B}
LM1B_LARGE |= {"dropout": 0.05, "dropout_attention": 0.05}
SMALL = {"layers": 12, "width": 512, "heads": 8, "ff": 2048, "dropout": 0.1}
MIDDLE = {"layers": 18, "width": 640, "heads": 8, "ff": 2208, "dropout": 0.1}
LARGE = {"layers": 24, "width": 1024, "heads": 8, "ff": 3072, "dropout": 0.15, "dropout_attention": 0.15}

EVALUATION = {  # length, memory and clamp
    "wt103": (64, 640, 400),
    "wt103_large": (128, 1600, 1000),
    "enwik8": (80, 2100, 820),
    "enwik8_18": (80, 2100, 820),
    "enwik8_large": (128, 3800, 1000),
    "text8": (80, 2100, 820),
    "text8_large": (128, 3800, 1000),
    "lm1b": (32, 128, 0),
    "lm1b_large": (32, 128, 0),
    "lm1b_release": (32, 128, 0),
    "lm1b_large_release": (32, 128, 0),
    "tiny": (64, 128, 0),
}
VARIANTS = {  # data, network, T = M in training, lanes, warm-up, steps
    "wt103": ("wt103", {"layers": 16, "width": 410, "heads": 10, "ff": 2100, **WT103}, 150, 60, 0, 200_000),
    "wt103_large": ("wt103", WT103_LARGE, 384, 128, 16_000, 4_000_000),
    "enwik8": ("enwik8", {"vocab_size": 204, **SMALL}, 512, 22, 0, 400_000),
    "enwik8_18": ("enwik8", {"vocab_size": 204, **MIDDLE}, 512, 22, 0, 400_000),
    "enwik8_large": ("enwik8", {"vocab_size": 204, **LARGE}, 768, 64, 4_000, 400_000),
    "text8": ("text8", {"vocab_size": 27, **SMALL}, 512, 22, 0, 400_000),
    "text8_large": ("text8", {"vocab_size": 27, **LARGE}, 768, 64, 0, 400_000),
    "lm1b": ("lm1b", {"tied_words": False, **LM1B_BASE}, 32, 224, 20_000, 500_000),
    "lm1b_large": ("lm1b", LM1B_LARGE, 32, 512, 30_000, 1_200_000),
    "lm1b_release": ("lm1b", {"project_always": True, **LM1B_BASE}, 32, 224, 20_000, 500_000),
    "lm1b_large_release": ("lm1b", {"project_always": True, **LM1B_LARGE}, 32, 512, 30_000, 1_200_000),
    "tiny": ("tiny", {"vocab_size": 257, "layers": 2, "width": 64, "heads": 4, "ff": 256}, 64, 8, 5, 60),
}


def split_bytes(file, *options):
    """Return sources of the usual 90, 5 and 5 million bytes of a file of 100 million."""
    parts = {"train": ":90000000", "validation": "90000000:95000000", "test": "95000000:100000000"}
    return {name: f"text:data/{file}?bytes={'&'.join((part, *options))}" for name, part in parts.items()}


WIKITEXT = {"train": "train", "validation": "valid", "test": "test"}
DATA = {  # kind and size of the tokenizer, sources
    "wt103": ("words", 267_735, {k: f"text:data/wikitext-103/wiki.{name}.tokens" for k, name in WIKITEXT.items()}),
    "enwik8": ("symbols", 204, split_bytes("enwik8", "line_ends=dropped")),
    "text8": ("symbols", 27, split_bytes("text8")),
    "lm1b": ("words", 793_471, {"train": "tfds:lm1b?split=train", "validation": "tfds:lm1b?split=test"}),
    "tiny": ("bytes", 257, {}),
}


def get_config(variant=""):
    """Return the config of one variant; no variant means tiny."""
    variant = common.check_variant("transformer_xl", variant or "tiny", VARIANTS)
    data, network, length, lanes, warmup, steps = VARIANTS[variant]
    config = common.base()
    config.name = f"transformer_xl:{variant}"
    config.model = common.recurrent()
    config.model.update(memory=length, **network)
    kind, vocab_size, sources = DATA[data]
    config.tokenizer.update(kind=kind, vocab_size=vocab_size)
    config.data.update(sources, layout="stream", length=length, shuffle=False)
    config.train.update(steps=steps, batch_size=lanes)
    length, memory, clamp = EVALUATION[variant]
    # As in the release's train.py.
    config.evaluate.update(batch_size=10, length=length, every=4000)
    config.evaluate.model.update(memory=memory, clamp=clamp, same_length=True)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.999, epsilon=1e-8, weight_decay=0.0, clip=0.25)
    config.schedule.update(kind="cosine", peak=2.5e-4, warmup=warmup, end=0.0, beneath_warmup=True)
    if variant == "tiny":
        config.model.dtype = "float32"
        config.schedule.peak = 3e-3
        config.checkpoint.update(every=20)
        config.evaluate.update(every=30, batches=2, batch_size=lanes)
        config.log.every = 5
    return config
