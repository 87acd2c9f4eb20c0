"""XLM (Lample and Conneau 2019, "Cross-lingual Language Model Pretraining").

    pretrain train --config=configs/xlm.py:xnli15_1024 --workdir=runs/xlm
    pretrain train --config=configs/xlm.py:mini_stdlib       # a minute on 2 CPU cores, no files needed

Variants, as released: en_2048 (667M, English), xnli15_1024 (249M, 15 languages), mlm_100_1280 (572M, 100), enfr_1024
and ende_1024 (142M, two; the default is enfr_1024). mini_stdlib is a small network on the Python standard library.

Masked language modelling reads text as a stream of sentences with </s> between them, in rows of 256 tokens cut
anywhere; each token except a row's first is predicted with probability 15 %. Translation language modelling reads a
sentence and its translation, each between </s>, with positions that restart; masks fall on both. Each source names its
language: ?language=NAME, or the fields of parallel text, such as ?fields=en,fr; data.languages lists the names in the
order of the table's rows. Sources are mixed by size in rows to the power of alpha, which is 1 / data.temperature; the
release's flag defaults to uniform, the paper uses 0.5 for its vocabulary, and 0.7 is used here.

The network is BERT's with a language embedding, without types, without a transform before the tied table, and with zero
hidden states at padding. Tables start at N(0, width^-1/2), matrices uniform by their inputs, biases at 0 (the release
draws them).

Data: data/xlm/LANGUAGE.txt, one sentence per line, and translations line by line in data/xlm/ONE-OTHER.ONE and
data/xlm/ONE-OTHER.OTHER. The release's joint BPE, vocab.json with merges.txt next to it, is read with
--config.tokenizer.kind=xlm --config.tokenizer.path=.../vocab.json, for text prepared by XLM's tools. Or make a
tokenizer.json, tokenizers/xlm.json, with </s>, <pad>, <unk> and <special1>, or train one with
--config.tokenizer.kind=sentencepiece --config.tokenizer.path= --config.objective.max_predictions=80.

Adam with bias correction; the rate rises over 30,000 updates and decays as the inverse root; gradients are clipped at
5. Only the English model has weight decay, 0.01 on all parameters, with b2 0.999 and epsilon 1e-6; the others use 0.98
and 1e-8.

Cost: for xnli15_1024 64 rows of 256 are 2.5e13 FLOPs per update, without attention.

Expect XNLI of 83.2 (English, masked only) and 85.0 (with translations), averages over 15 languages of 71.5 and 75.1.
"""

from configs import common

XNLI = ("en", "fr", "es", "de", "el", "bg", "ru", "tr", "ar", "vi", "th", "zh", "hi", "sw", "ur")
VARIANTS = {  # layers, width, heads, vocabulary, languages, whether they have a table, pairs of parallel text
    "en_2048": (12, 2048, 16, 30_145, ("en",), False, ()),
    "xnli15_1024": (12, 1024, 8, 95_000, XNLI, True, ("en-fr", "en-de", "en-zh")),
    "mlm_100_1280": (16, 1280, 16, 200_000, XNLI, False, ()),
    "enfr_1024": (6, 1024, 8, 64_139, ("en", "fr"), True, ("en-fr",)),
    "ende_1024": (6, 1024, 8, 64_699, ("en", "de"), True, ("en-de",)),
    "mini_stdlib": (2, 128, 2, 2048, (), False, ()),
}
ALPHA = 0.7  # the power of a language's size in its share of the batches


def get_config(variant=""):
    """Return the config of one size; no variant means enfr_1024."""
    variant = common.check_variant("xlm", variant or "enfr_1024", VARIANTS)
    layers, width, heads, vocab_size, languages, has_table, parallel = VARIANTS[variant]
    config = common.base()
    config.name = f"xlm:{variant}"
    config.model = common.encoder()
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, vocab_size=vocab_size, context=512)
    config.model.update(
        types=0, languages=len(languages) * has_table, pair_head=False, head_transform=False, summary=()
    )
    # Tables are drawn with standard deviation width^-0.5, as in the release's Embedding().
    config.model.update(zero_padding=True, activation="gelu_erf", initialiser="fan_in", init_std=width**-0.5)
    config.objective = common.masked()
    config.objective.update(next_sentence=False, max_predictions=72, rounding="coins", candidates="after_first")
    config.objective.languages = has_table
    config.tokenizer.update(kind="huggingface", path="tokenizers/xlm.json", vocab_size=vocab_size - 1)
    config.tokenizer.update(single=("end", "$A", "end"), pair=("end", "$A", "end", "$B", "end"))
    named = [f"text:data/xlm/{one}.txt?document=line" + f"&language={one}" * has_table for one in languages]
    named += [f"parallel:data/xlm/{pair}.{{}}?fields={pair.replace('-', ',')}" for pair in parallel]
    config.data.update(train=" + ".join(named), holdout=0.001, layout="concat", length=256, temperature=1 / ALPHA)
    config.data.languages = languages if has_table else ()
    config.train.update(steps=900_000, batch_size=64)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.98, epsilon=1e-8, weight_decay=0.0, clip=5.0)
    if variant == "en_2048":
        config.optimizer.update(b2=0.999, epsilon=1e-6, weight_decay=0.01, decay="all")
    config.schedule.update(kind="rsqrt", peak=1e-4, warmup=30_000)
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=2047, tokenizer="sentencepiece")
        config.model.update(context=64)
        config.data.update(temperature=1.0)
        config.objective.max_predictions = 20
        config.schedule.update(peak=1e-3, warmup=30)
    return config
