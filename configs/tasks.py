"""Tasks: a pretrained checkpoint adapted to labelled examples, and its figures.

    pretrain train --config=configs/tasks.py:sst2 --config.train.start_from=runs/bert --workdir=runs/bert-sst2
    pretrain evaluate --workdir=runs/bert-sst2 --split=test --predictions=sst2.jsonl

    pretrain evaluate --task=configs/tasks.py:stsb_cosine --workdir=runs/minilm --split=test

Variants: of GLUE (Wang et al. 2018) cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte and wnli; boolq; copa (a choice);
squad and squad2, answers cut from a text (Rajpurkar et al. 2016, 2018). Answers that are written: sst2_text and
translation for runs of T5 and BART, sst2_prompt and chat for decoders. Sentence embeddings: stsb_cosine (STS-B by
cosines), nli (SNLI and MultiNLI, Reimers and Gurevych 2019) and pairs (lines that belong together, such as
translations). ner: names in English, as XTREME trains them (WikiANN; Hu et al. 2020). Model and tokenizer are those of
the run, or of the imported checkpoint, in `train.start_from`.

Data: TFDS builds each set (`tfds build glue/sst2`, `super_glue/boolq`, `super_glue/copa`). Any other source of records
with the same fields serves, such as --config.data.train=jsonl:data/sst2/train.jsonl. SQuAD is read from its own files,
in data/squad. translation reads records such as {"en": "A dog.", "de": "Ein Hund."} from data/translation, chat
{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]} from data/chat, in
train.jsonl and validation.jsonl.

Settings are BERT's (Devlin et al. 2018, section 4.1): batches of 32, three epochs, a rate that rises to 3e-5 over the
first tenth and falls to 0, weight decay 0.01. Papers choose the best of 2e-5 to 5e-5 and of several seeds on the
validation data (--config.schedule.peak, --config.seed). ELECTRA's are peak 1e-4 (small: 3e-4), layer decay 0.8 and no
weight decay; RoBERTa's peak 1e-5 to 3e-5, ten epochs and weight decay 0.1. Small sets (CoLA, RTE) diverge for some
seeds. Text to text has T5's (Raffel et al. 2019, section 3.1): Adafactor with a constant rate of 0.001, the best
checkpoint by the task's metric.

Cost: SST-2 takes 6,314 updates of 32 rows of about 32 tokens, 4.2e15 FLOPs for BERT base: minutes on one GPU.

Expect of BERT base on the validation sets: about 58 (CoLA, Matthews), 93 (SST-2), 87 (MRPC, accuracy), 89 (STS-B,
Spearman), 84 (MNLI), 91 (QNLI), 66 (RTE), 80.8 exact and 88.5 F1 (SQuAD 1.1).
translation of Multi30k from a T5 of 1.4M parameters (t5.py:mini_stdlib, width 128, 4,000 pieces, 300 updates on the
same text) reached BLEU 30.3 and chrF 53.8 on its 2016 test set after 1,500 updates of 48 rows of 64 tokens, with rsqrt,
hold 1,000 and peak 0.015: 20 minutes on 2 CPU cores that others shared. Peak 0.001 is too slow for so young a model.
"""

from configs import common

EPOCHS, BATCH = 3, 32
# (TFDS set, training examples, fields, labels, metrics, the one that selects); no labels: a number.
ENTAILED = ("entailment", "not_entailment")
NAMES = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
VARIANTS = {
    "cola": ("glue/cola", 8_551, ("sentence",), ("unacceptable", "acceptable"), ("matthews", "accuracy")),
    "sst2": ("glue/sst2", 67_349, ("sentence",), ("negative", "positive"), ("accuracy",)),
    "mrpc": ("glue/mrpc", 3_668, ("sentence1", "sentence2"), ("not_equivalent", "equivalent"), ("f1", "accuracy")),
    "qqp": ("glue/qqp", 363_846, ("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy")),
    "stsb": ("glue/stsb", 5_749, ("sentence1", "sentence2"), (), ("pearson", "spearman")),
    "mnli": (
        "glue/mnli",
        392_702,
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
    ),
    "qnli": ("glue/qnli", 104_743, ("question", "sentence"), ENTAILED, ("accuracy",)),
    "rte": ("glue/rte", 2_490, ("sentence1", "sentence2"), ENTAILED, ("accuracy",)),
    "wnli": ("glue/wnli", 635, ("sentence1", "sentence2"), ("not_entailment", "entailment"), ("accuracy",)),
    "boolq": ("super_glue/boolq", 9_427, ("question", "passage"), ("False", "True"), ("accuracy",)),
    "stsb_cosine": ("glue/stsb", 5_749, ("sentence1", "sentence2"), (), ("spearman", "pearson")),
    "nli": ("snli", 942_854, ("premise", "hypothesis"), ("entailment", "neutral", "contradiction"), ("accuracy",)),
    "pairs": ("", 29_000, ("source", "target"), (), ("retrieval", "retrieval_back")),
    "ner": ("", 20_000, ("words",), NAMES, ("span_f1",)),
    "copa": ("super_glue/copa", 400, ("{premise} {question}", "choice1", "choice2"), (), ("accuracy",)),
}

# Tasks whose answers are texts: (folder of JSON lines, or TFDS set, training examples, keys of the objective).
CLASSES = {"targets": "{label:negative|positive}", "metrics": ("accuracy", "invalid"), "target_length": 8}
TEXTS = {
    "sst2_text": ("glue/sst2", 67_349, {"inputs": "sst2 sentence: {sentence}"} | CLASSES),
    "translation": (
        "data/translation",
        29_000,
        {"inputs": "translate English to German: {en}", "targets": "de", "metrics": ("bleu", "chrf")},
    ),
    "sst2_prompt": (
        "glue/sst2",
        67_349,
        {"inputs": "{sentence} It was", "loss_on": "targets"} | CLASSES | {"targets": " {label:negative|positive}"},
    ),
    "chat": ("data/chat", 10_000, {"turns": "messages", "loss_on": "targets"}),
}
VARIANTS |= TEXTS


# (version in names of files, windows of training, epochs, batch, metrics), as BERT (sections 4.2 and 4.3).
SQUAD = {
    "squad": ("v1.1", 88_500, 3, 32, ("exact", "f1")),
    "squad2": ("v2.0", 132_000, 2, 48, ("exact", "f1", "HasAns_f1", "NoAns_f1", "best_f1", "best_f1_thresh")),
}
LOSSES = {"stsb_cosine": "cosine", "nli": "softmax", "pairs": "ranking"}  # of sentence embeddings
PAIRS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}  # files of Multi30k


def get_config(variant=""):
    """Return the config of one task; no variant means sst2."""
    variant = common.check_variant("tasks", variant or "sst2", (*VARIANTS, *SQUAD))
    if variant in SQUAD:
        return _squad(variant)
    if variant in TEXTS:
        return _text_config(variant)
    dataset, examples, texts, labels, metrics = VARIANTS[variant]
    config = common.base()
    config.name = f"tasks:{variant}"
    config.model = {}  # of the run in train.start_from
    if variant == "copa":
        config.objective = common.choice()
        config.objective.update(text=texts[0], choices=texts[1:])
    elif variant == "ner":
        config.objective = common.tagging()
        config.objective.labels = labels
    elif variant in LOSSES:
        config.objective = common.siamese()
        config.objective.update(texts=texts, labels=labels, loss=LOSSES[variant])
    elif labels:
        config.objective = common.classification()
        config.objective.update(texts=texts, labels=labels)
    else:
        config.objective = common.regression()
        config.objective.texts = texts
    config.objective.update(metrics=metrics, selects=metrics[0])
    validation = "validation_matched" if variant == "mnli" else "validation"
    test = "test_matched" if variant == "mnli" else "test"
    config.data.update(
        train=f"tfds:{dataset}?split=train",
        validation=f"tfds:{dataset}?split={validation}",
        test=f"tfds:{dataset}?split={test}",
        layout="examples",
        length=256 if variant == "boolq" else 128,
    )
    epochs, batch, rate = EPOCHS, BATCH, 3e-5
    if variant in LOSSES:
        # As Reimers and Gurevych have it (section 3.2, and section 4 for STS-B), whose batches of pairs are larger.
        epochs, batch, rate = (4 if variant == "stsb_cosine" else 1), (64 if variant == "pairs" else 16), 2e-5
    if variant == "nli":
        config.data.train = "tfds:snli?split=train + tfds:glue/mnli?split=train"
    if variant == "pairs":
        config.data.update(
            {part: f"parallel:data/multi30k/{name}.{{}}.gz?fields=en,de" for part, name in PAIRS.items()}
        )
    if variant == "ner":
        parts = {"train": "train", "validation": "dev", "test": "test"}
        config.data.update({part: f"conll:data/wikiann/en/{file}.txt.gz?prefix=en:" for part, file in parts.items()})
        epochs, rate = 2, 2e-5
    return _trained(config, epochs * examples // batch, batch, rate)


def _squad(variant):
    version, windows, epochs, batch, metrics = SQUAD[variant]
    config = common.base()
    config.name = f"tasks:{variant}"
    config.model = {}  # of the run in train.start_from
    config.objective = common.extraction()
    config.objective.update(metrics=metrics, no_answer=variant == "squad2")
    train, dev = (f"squad:data/squad/{part}-{version}.json" for part in ("train", "dev"))
    config.data.update(train=train, validation=dev, layout="examples", length=384)
    return _trained(config, epochs * windows // batch, batch, 5e-5)


def _trained(config, steps, batch, rate):
    """The config, trained as BERT for so many steps."""
    config.train.update(steps=steps, batch_size=batch)
    config.optimizer.update(name="adamw", epsilon=1e-6, weight_decay=0.01, clip=1.0)
    config.schedule.update(kind="linear", peak=rate, warmup=steps // 10, end=0.0)
    config.evaluate.every = max(1, steps // 10)
    config.checkpoint.every = max(1, steps // 10)
    config.log.every = max(1, min(10, steps // 20))
    return config


def _text_config(variant: str):
    """The config of a task whose answers are texts."""
    dataset, examples, keys = TEXTS[variant]
    config = common.base()
    config.name = f"tasks:{variant}"
    config.model = {}
    encoder_decoder = variant in ("sst2_text", "translation")
    config.objective = common.text() if encoder_decoder else common.causal()
    config.objective.update(keys)
    if config.objective.metrics:
        config.objective.selects = config.objective.metrics[0]
    source = "jsonl:{}/{}.jsonl" if dataset.startswith("data") else "tfds:{}?split={}"
    for split in ("train", "validation", "test")[: 2 if variant == "chat" else 3]:
        config.data[split] = source.format(dataset, split)
    config.data.update(layout="packed_examples", length=512 if variant == "chat" else 128)
    steps = EPOCHS * examples // BATCH
    config.train.update(steps=steps, batch_size=BATCH)
    if encoder_decoder:
        config.optimizer.update(name="adafactor", weight_decay=0.0, clip=0.0)
        config.schedule.update(kind="constant", peak=1e-3, warmup=0)
    else:  # GPT's (Radford et al. 2018, section 4.1)
        config.optimizer.update(name="adamw", weight_decay=0.01, clip=1.0)
        config.schedule.update(kind="linear", peak=6.25e-5, warmup=steps // 500, end=0.0)
    config.evaluate.update(every=max(1, steps // 10), batches=20)
    config.checkpoint.every = max(1, steps // 10)
    return config
