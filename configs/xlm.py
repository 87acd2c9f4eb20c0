"""XLM (Lample and Conneau 2019, "Cross-lingual Language Model Pretraining").

    pretrain train --config=configs/xlm.py:xnli15_1024 --workdir=runs/xlm
    pretrain train --config=configs/xlm.py:mini_stdlib       # a minute on 2 CPU cores, with text that is there

Variants, as released: en_2048 (667M, English alone), xnli15_1024 (249M, 15 languages), mlm_100_1280 (572M, 100),
enfr_1024 and ende_1024 (142M, two; the default is enfr_1024). mini_stdlib is a small network on the standard library of
the running interpreter.

Masked language modelling reads text as a stream, sentences one a line and </s> between them, in rows of 256 tokens cut
anywhere; a coin is tossed for each token but a row's first, 15 % are predicted. Translation language modelling reads a
sentence and its translation, each between </s>, with positions that begin again; masks fall on both. Of each source it
is said which language it is: by ?language=NAME, and of two parallel texts by their fields, such as ?fields=en,fr;
data.languages has the names in the order of the table's rows. Sources are mixed by size, in rows, to the power of
alpha, which is 1 / data.temperature; the release's flag defaults to uniform, the paper has 0.5 for its vocabulary, and
0.7 stands here.

The network is BERT's after its norm, with a row for each language added to the embeddings, without types, without a
transform before the tied table, and with hidden states of padding that are zero. Tables start at N(0, width^-1/2),
matrices uniform by their inputs; biases at 0, which the release draws.

The vocabularies are the release's joint BPE. Its vocab.json with the merges.txt beside it is read as
--config.tokenizer.kind=xlm --config.tokenizer.path=.../vocab.json, of text that XLM's tools have prepared; or make a
tokenizer.json of yours, tokenizers/xlm.json, with </s>, <pad>, <unk> and <special1>, or train one with
--config.tokenizer.kind=sentencepiece --config.tokenizer.path= --config.objective.max_predictions=80. Text lies in
data/xlm/LANGUAGE.txt, one sentence a line, and translations line by line in data/xlm/ONE-OTHER.ONE and
data/xlm/ONE-OTHER.OTHER.

Adam corrects its averages, the rate rises over 30,000 updates and falls as their inverse root, gradients are clipped at
5. Only the English model decays, by 0.01, all of its parameters, with a b2 of 0.999 and an epsilon of 1e-6; the others
have 0.98 and 1e-8.

Cost: for xnli15_1024 64 rows of 256 are 2.5e13 FLOPs an update, attention aside. Expect XNLI of 83.2 (English, masked
alone) and 85.0 (with translations), averages over 15 languages of 71.5 and 75.1.
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
    """The recipe of one size; no variant means enfr_1024."""
    variant = common.check_variant("xlm", variant or "enfr_1024", VARIANTS)
    layers, width, heads, vocab_size, languages, has_table, parallel = VARIANTS[variant]
    config = common.base()
    config.name = f"xlm:{variant}"
    config.model = common.encoder()
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, vocab_size=vocab_size, context=512)
    config.model.update(types=0, languages=len(languages) * has_table, pair_head=False, head_transform=False)
    config.model.update(zero_padding=True, activation="gelu_erf", initialiser="fan_in", init_std=width**-0.5)
    config.objective = common.masked()
    config.objective.update(next_sentence=False, max_predictions=72, rounding="coins", candidates="after_first")
    config.objective.languages = has_table
    config.tokenizer.update(kind="huggingface", path="tokenizers/xlm.json", vocab_size=vocab_size - 1)
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
        config.tokenizer.update(kind="sentencepiece", path="", vocab_size=2047, train_bytes=1_000_000)
        config.model.update(context=64, dtype="float32")
        config.data.update(train="stdlib", holdout=0.05, length=64, temperature=1.0)
        config.objective.max_predictions = 20
        config.train.update(steps=300, batch_size=32)
        config.schedule.update(peak=1e-3, warmup=30)
        config.checkpoint.every = 100
        config.evaluate.update(every=100, batches=20)
    return config
