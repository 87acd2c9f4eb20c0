"""RoBERTa (Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach"), CamemBERT and XLM-R.

    pretrain train --config=configs/roberta.py:base --workdir=runs/roberta
    pretrain train --config=configs/roberta.py:mini_stdlib       # a minute on 2 CPU cores, no files needed

Variants: base (125M, the default) and large (355M); base_2k, the release's recipe with a quarter of the batch;
camembert_base and camembert_large (Martin et al. 2019: French, whole words), xlmr_base and xlmr_large (Conneau et al.
2019: 100 languages). mini_stdlib is a small network on the Python standard library.

Data: data/roberta/*.txt, one sentence per line and a blank line between documents. The paper's text is 160 GB: books
and Wikipedia (16), CC-News (76), OpenWebText (38) and Stories (31). Whole sentences fill rows of 512 tokens, across
documents, with an extra separator between them (FULL-SENTENCES); there are no pairs. Masks are drawn when a row is
read, 15 % of all its positions on average, <s> and </s> included, rounded up or down at random; static masking, ten
ways per row as in the paper's table 1, is --config.objective.masks=10. The tokenizer.json files are the releases'
(docs/data.md). --config.tokenizer.kind=sentencepiece --config.tokenizer.path= trains one instead; its padding is not id
1, which Hugging Face's class requires, so such a model cannot be exported.

The network is BERT's with one type, a position offset of two, erf GELU, epsilon 1e-5 and normal initialisation. Adam
with bias correction and without clipping; weight decay 0.01 on matrices; the rate rises, then decays linearly to 0. The
release's own command decays biases and gains too: --config.optimizer.decay=all.

CamemBERT masks whole words, of text tokens only. XLM-R reads one source per language, data/cc100/LANGUAGE.txt, mixed by
size in rows to the power alpha = 0.3, which is data.temperature = 1 / 0.3; the paper counts sentences. Name yours with
--config.data.train, joined by " + ".

Cost: 500,000 updates of 8,000 rows are 2e12 tokens: 1.1e21 FLOPs for base and 3.8e21 for large, without attention. The
paper used 1,024 V100 for a day for 100,000 updates of large; XLM-R 500 V100 for 1,500,000.

Expect, after fine-tuning, MNLI 87.6 (base) and 90.2 (large), SQuAD 1.1 F1 94.6 (large); for XLM-R XNLI averages of 76.2
(base) and 80.9 (large) without training in the other languages. mini_stdlib learns token frequencies.
"""

from configs import common

VARIANTS = {  # layers, width, heads; vocabulary, its file, text; rows, peak, warm-up, updates
    "base": (12, 768, 12, 50_265, "roberta-base", "roberta", 8000, 6e-4, 24_000, 500_000),
    "large": (24, 1024, 16, 50_265, "roberta-base", "roberta", 8000, 4e-4, 30_000, 500_000),
    "base_2k": (12, 768, 12, 50_265, "roberta-base", "roberta", 2048, 5e-4, 10_000, 125_000),
    "camembert_base": (12, 768, 12, 32_005, "camembert-base", "oscar_fr", 8192, 7e-4, 10_000, 100_000),
    "camembert_large": (24, 1024, 16, 32_005, "camembert-large", "ccnet_fr", 8192, 7e-4, 10_000, 100_000),
    "xlmr_base": (12, 768, 12, 250_002, "xlm-roberta-base", "cc100", 8192, 7e-4, 10_000, 1_500_000),
    "xlmr_large": (24, 1024, 16, 250_002, "xlm-roberta-base", "cc100", 8192, 4e-4, 30_000, 1_500_000),
    "mini_stdlib": (2, 128, 2, 2050, "", "", 32, 1e-3, 30, 300),
}
ALPHA = 0.3  # of XLM-R: the power of a language's size in its share of the batches


def get_config(variant=""):
    """Return the config of one size; no variant means base."""
    variant = common.check_variant("roberta", variant or "base", VARIANTS)
    layers, width, heads, vocab_size, file, text, rows, peak, warmup, steps = VARIANTS[variant]
    config = common.base()
    config.name = f"roberta:{variant}"
    config.model = common.encoder()
    config.model.update(layers=layers, width=width, heads=heads, ff=4 * width, vocab_size=vocab_size, context=512)
    # fairseq numbers positions from padding_idx + 1 = 2.
    config.model.update(position_offset=2, types=1, pair_head=False, activation="gelu_erf", norm_epsilon=1e-5)
    config.model.update(initialiser="normal", summary=("dropout", "dense", "tanh", "dropout"))
    config.objective = common.masked()
    config.objective.update(next_sentence=False, max_predictions=77, rounding="random")
    config.objective.update(candidates="any", replacements="text")
    if variant.startswith("camembert"):
        config.objective.update(candidates="text", whole_words=True)
    # A tokenizer trained here adds 3 special ids.
    config.tokenizer.update(kind="huggingface", path=f"tokenizers/{file}.json", vocab_size=vocab_size - 3)
    config.tokenizer.update(
        single=("classifier", "$A", "separator"),
        pair=("classifier", "$A", "separator", "separator", "$B", "separator"),
    )
    common.use_documents(config, text, layout="sentences", length=512)
    config.train.update(steps=steps, batch_size=rows)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.01, clip=0.0)
    config.schedule.update(kind="linear", peak=peak, warmup=warmup, end=0.0)
    if text == "cc100":
        languages = ("en", "fr", "de", "ru", "zh", "sw", "ur")
        config.data.train = " + ".join(f"text:data/cc100/{one}.txt?document=blank_line" for one in languages)
        config.data.temperature = 1 / ALPHA
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=2047, tokenizer="sentencepiece")
        config.model.update(context=64)
        config.objective.max_predictions = 10
        config.optimizer.clip = 1.0
    return config
