"""DistilBERT (Sanh et al. 2019, "DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter").

    pretrain train --config=configs/distilbert.py:uncased --workdir=runs/distilbert
    pretrain train --config=configs/distilbert.py:mini_stdlib --config.distill.teacher=runs/bert:mini_stdlib

The student of a BERT has half its layers, no type table and no pooler. It starts from the teacher's layers 0, 2, 4, 7,
9 and 11, its tables and its head, and learns from masked rows: the teacher's probabilities (5 T^2 KL per token, at
temperature T = 2), the masked tokens (2) and the direction of the teacher's last states (1). The sampling weight of a
token is count**-0.7, so rare tokens are seen; the release draws masks over the whole batch, here over each row.

Rows are whole sentences, one per line, between [CLS] and [SEP], as RoBERTa's; the release uses one row per line. Text
without one sentence per line, and mini_stdlib, is packed into rows of whole documents, which begin with [SEP] and have
no [CLS]: --config.data.layout=packed --config.data.sentences= .

`config.distill.teacher` is a run of BERT or an imported one; it is copied into the work folder. Variants: uncased (the
default), cased and multilingual, of the BERT of that name; roberta, of RoBERTa-base, with its rows and masks; gpt2, of
GPT-2, with causal language modelling; mini_stdlib, of configs/bert.py:mini_stdlib, on the Python standard library.

Cost: 3 epochs of BERT's text in batches of up to 4,000 rows of 512 tokens; the paper used 8 V100 for 90 hours. A step
adds a forward pass of the teacher. Set the number of updates, --config.train.steps, and 5 % of them as
--config.schedule.warmup.

Expect, after fine-tuning, a GLUE development average of 77.0, where BERT-base has 79.5; SQuAD 1.1 77.7 EM and 85.8 F1.
"""

from configs import common

VARIANTS = {  # rows of the token table, tokenizer
    "uncased": (30_522, "bert-base-uncased"),
    "cased": (28_996, "bert-base-cased"),
    "multilingual": (119_547, "bert-base-multilingual-cased"),
    "roberta": (50_265, "roberta-base"),
    "gpt2": (50_257, "gpt2"),
    "mini_stdlib": (2048, ""),
}


def get_config(variant=""):
    """Return the config of one student; no variant means uncased."""
    variant = common.check_variant("distilbert", variant or "uncased", VARIANTS)
    vocab_size, tokenizer = VARIANTS[variant]
    config = common.base()
    config.name = f"distilbert:{variant}"
    # Weights and temperature of the released training script.
    config.distill.update(layers=(0, 2, 4, 7, 9, 11), temperature=2.0, soft=5.0, hard=2.0, cosine=1.0)
    config.data.update(train="text:data/books_wikipedia/*.txt?document=blank_line", holdout=0.001, length=512)
    config.train.update(steps=50_000, batch_size=4000, accumulate=10)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.0, clip=5.0)
    config.schedule.update(kind="linear", peak=5e-4, warmup=2_500, end=0.0)
    if variant == "gpt2":
        config.distill.teacher = "runs/gpt2"
        config.distill.model.update(layers=12)
        config.model.update(layers=6, vocab_size=vocab_size, context=1024)
        config.model.update(dropout_embedding=0.1, dropout_attention=0.1, dropout_residual=0.1)
        config.tokenizer.update(kind="huggingface", path=f"tokenizers/{tokenizer}.json")
        config.data.update(train="text:data/openwebtext/*.txt?document=blank_line", length=1024)
        return config
    config.distill.teacher = "runs/bert"
    config.distill.model.update(layers=12, types=2, pair_head=True)
    config.model = common.encoder()
    config.model.update(layers=6, vocab_size=vocab_size, types=0, pair_head=False, activation="gelu_erf")
    config.model.summary = ("dense", "relu", "dropout")
    config.objective = common.masked()
    config.objective.update(next_sentence=False, max_predictions=77, smoothing=0.7)
    config.data.update(sentences="lines", layout="sentences")
    if variant == "roberta":
        config.distill.teacher = "runs/roberta"
        config.distill.model = {"layers": 12}
        config.model.update(types=1, position_offset=2, norm_epsilon=1e-5, initialiser="normal")
        config.model.summary = ("dropout", "dense", "tanh", "dropout")
        config.objective.update(rounding="random", candidates="any", replacements="text")
        config.data.train = "text:data/roberta/*.txt?document=blank_line"
        config.tokenizer.update(kind="huggingface", path=f"tokenizers/{tokenizer}.json", vocab_size=vocab_size - 3)
        return config
    config.tokenizer.update(
        kind="wordpiece", path=f"tokenizers/{tokenizer}.json", cased=variant != "uncased", vocab_size=vocab_size
    )
    if variant == "mini_stdlib":
        common.use_stdlib(config, pieces=2048)
        config.distill.update(teacher="runs/bert:mini_stdlib", layers=(0,))
        config.distill.model.update(layers=2, activation="gelu_tanh")
        config.model.update(layers=1, width=128, heads=2, ff=512, context=64, activation="gelu_tanh")
        config.data.update(sentences="", layout="packed")
        config.objective.max_predictions = 10
        config.train.accumulate = 1
        config.schedule.update(peak=1e-3, warmup=30)
    return config
