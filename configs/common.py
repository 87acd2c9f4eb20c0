"""Every config key with its default, range and comment.

A recipe starts from `base()`, sets what its paper says, and returns it. No other file holds defaults: code reads
`config.train.steps`, never `config.get(...)`. Sections of models are in `configs/model_kinds.py`. `make docs` generates
`docs/configs.md` from the comments of both files.
"""

from configs.model_kinds import MODELS as MODELS
from configs.model_kinds import decoder as decoder
from configs.model_kinds import encoder as encoder
from configs.model_kinds import encoder_decoder as encoder_decoder
from configs.model_kinds import recurrent as recurrent
from configs.model_kinds import replaced_tokens as replaced_tokens
from configs.model_kinds import two_stream as two_stream
from configs.ranges import (
    batch_ramp,
    count,
    counts,
    decay,
    density,
    devices,
    epsilon,
    image_shape,
    indices,
    non_negative,
    positive,
    positives,
    probability,
    rate,
    real,
    section,
    share,
    span_length,
    steps_or_epoch,
    temperature,
    update_range,
)


class ConfigError(ValueError):
    """An invalid config; the message is one sentence with the remedy."""


def check_variant(recipe: str, variant: str, choices) -> str:
    """Return `variant`, or raise ConfigError if the recipe does not have it."""
    if variant not in choices:
        known = ", ".join(sorted(choices))
        raise ConfigError(f"{recipe}:{variant}: no such variant. Choose one of: {known}.")
    return variant


def use_stdlib(config, pieces: int, tokenizer: str = "") -> None:
    """Set data, tokenizer and length of a `mini_stdlib` variant: a minute on 2 CPU cores, no files needed."""
    config.tokenizer.update(kind=tokenizer or config.tokenizer.kind, path="", vocab_size=pieces, train_bytes=1_000_000)
    config.data.update(train="stdlib", validation="", holdout=0.05, length=64)
    config.model.dtype = "float32"
    config.train.update(steps=300, batch_size=32)
    config.checkpoint.every = 100
    config.evaluate.update(every=100, batches=20)


def use_documents(config, folder: str, layout: str, length: int) -> None:
    """Set text as BERT reads it: a sentence a line, a blank line between documents; one in a thousand is held out."""
    config.data.update(train=f"text:data/{folder}/*.txt?document=blank_line", sentences="lines", holdout=0.001)
    config.data.update(layout=layout, length=length)


@section
def causal() -> dict:
    """Causal language modelling: each token is predicted from those before it."""
    return dict(
        kind="causal",  # name of the objective
        coded=False,  # rows and prompts begin with a control code, the option `code` of their source (CTRL)
        selects="loss",  # term whose lowest validation value selects the best checkpoint
    )


@section
def masked() -> dict:
    """Masked language modelling (BERT), with or without the prediction of the next sentence."""
    return dict(
        kind="masked",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss, mlm, nsp (swapped pairs: sop) or an accuracy
        next_sentence=True,  # rows of two segments; predict whether the second follows (data.layout=pairs)
        share=probability(0.15),  # share of a row's tokens that are predicted
        max_predictions=count(20, below=2**20),  # K, the most predictions in a row
        masked=share(0.8),  # share of the predicted tokens that are replaced by the mask
        random=share(0.1),  # share of them that are replaced by a random token; the rest is unchanged
        rounding="nearest",  # of the number predicted: nearest (at least 1), random (up or down), coins (per token)
        candidates="text",  # tokens that may be predicted: text (no special ids), any, after_first (not a text's first)
        replacements="any",  # tokens to draw random replacements from: any, or text (no special tokens)
        smoothing=non_negative(0.0),  # s: sampling weight of a token is count**-s (DistilBERT: 0.7)
        whole_words=False,  # predict all pieces of a word or none
        ngrams=count(1, below=2**6),  # most whole words in a row that are predicted together; n of them with weight 1/n
        masks=non_negative(0),  # number of fixed ways to mask a row (static masking); 0: a new one each time
        languages=False,  # the model reads each token's language (data.languages); rows of translations (XLM)
        swapped_pairs=False,  # a pair that does not follow is the same two segments swapped (ALBERT), not a random one
        short_pairs=share(0.1),  # layout pairs: share of the documents with rows of random length
        passes=count(10),  # layout pairs: number of different ways to cut the text into pairs
    )


@section
def spans() -> dict:
    """Span corruption (T5): an encoder reads text with gaps, a decoder writes the missing spans."""
    return dict(
        kind="spans",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss or accuracy
        noise="spans",  # what is missing: spans, a sentinel in place of each, or prefix (all that follows a prefix)
        density=density(0.15),  # share of the tokens that are missing
        mean_span=count(3.0),  # mean length of a span, in tokens
    )


@section
def replaced() -> dict:
    """Replaced token detection (ELECTRA): a generator fills in masks, a discriminator finds what it changed."""
    return dict(
        kind="replaced",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss, mlm, rtd, original or an accuracy
        share=probability(0.15),  # share of a row's tokens that are drawn, some of them more than once
        masked=share(0.85),  # share of those that the generator reads as the mask; the rest is unchanged
        scored="all",  # tokens in the discriminator's loss: all, or masked (those that were drawn)
        weight=positive(50.0),  # weight of the discriminator's loss; the generator's is 1
    )


@section
def translation() -> dict:
    """Translation: an encoder reads one text, a decoder writes another."""
    return dict(
        kind="translation",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss or accuracy
    )


@section
def permutation() -> dict:
    """Permutation language modelling (XLNet): positions are predicted in a random order, from those before them."""
    return dict(
        kind="permutation",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss or accuracy
        reuse=count(256),  # tokens of a row that are text; two segments follow, and the next row starts after the text
        perm_size=count(256),  # tokens that are permuted together; divides reuse and the rest of a row
        predictions=count(85),  # K, predictions in a row; half, rounded up, among the first `reuse`
        longest=count(5, below=2**10),  # longest predicted n-gram, in pieces; n with weight 1/n
        stretch=count(6, below=2**10),  # an n-gram is drawn within n times this many pieces, which sets the share
        both_ways=True,  # the second half of a batch's lanes reads the text backwards
    )


@section
def denoising() -> dict:
    """Denoising (BART): an encoder reads a corrupted text, a decoder writes the original."""
    return dict(
        kind="denoising",  # name of the objective
        selects="loss",  # term that selects the best checkpoint: loss or accuracy
        noise="infilling",  # one mask per span of words (infilling), one per token (masking), or none (deletion)
        share=share(0.3),  # share of the words (infilling) or tokens that are removed, rounded up
        mean_span=span_length(3.0),  # mean of the Poisson length of a span, in words; an empty span inserts a mask
        random=share(0.1),  # share of the masks that are random tokens instead
        permutation=share(1.0),  # share of the sentences that are shuffled
        stop=".",  # end of a sentence, with or without a space before it; of several tokens the last
        rotation=share(0.0),  # share of the texts that are rotated to begin at a random token
        languages=(),  # mBART: language codes, those of data.languages; empty means none
    )


@section
def classification() -> dict:
    """A class for each text or pair of texts."""
    return dict(
        kind="classification",  # name of the objective
        texts=("text",),  # one or two fields of a record, or templates such as "{title}: {body}"
        label="label",  # field with the name of the class, or its number
        labels=(),  # names of the classes in the order of their numbers; recorded with the run
        metrics=("accuracy",),  # figures of an evaluation: accuracy, f1, macro_f1, matthews
        selects="accuracy",  # figure or term (loss) that selects the best checkpoint
    )


@section
def regression() -> dict:
    """A number for each text or pair of texts, fitted by squared error."""
    return dict(
        kind="regression",  # name of the objective
        texts=("text",),  # one or two fields of a record, or templates such as "{title}: {body}"
        label="label",  # field with the number
        metrics=("pearson", "spearman"),  # figures of an evaluation
        selects="pearson",  # figure or term (loss) that selects the best checkpoint
    )


@section
def choice() -> dict:
    """One of several texts, each read behind what is asked (multiple choice)."""
    return dict(
        kind="choice",  # name of the objective
        text="question",  # field or template of what is asked; empty: the choices alone
        choices=("choice1", "choice2"),  # field or template of each choice; of one field: a list of texts
        number=count(2),  # choices of an example
        label="label",  # field with the number of the right choice, from 0, or its name in `labels`
        labels=(),  # names of the choices, such as ("A", "B", "C", "D"); empty: numbers from 0
        metrics=("accuracy",),  # figures of an evaluation
        selects="accuracy",  # figure or term (loss) that selects the best checkpoint
    )


@section
def tagging() -> dict:
    """A tag for each word: parts of speech, names."""
    return dict(
        kind="tagging",  # name of the objective
        words="words",  # field with the words of a sentence, a list or a text with spaces between them
        tags="tags",  # field with their tags, likewise
        labels=(),  # names of the tags in the order of their numbers; recorded with the run
        scheme="BIO",  # of tags that mark spans: BIO, IOB1, IOBES; empty: every word by itself
        metrics=("span_f1",),  # figures of an evaluation: span_f1, span_f1_strict, accuracy
        selects="span_f1",  # figure or term (loss) that selects the best checkpoint
    )


@section
def extraction() -> dict:
    """An answer cut out of a text (SQuAD)."""
    return dict(
        kind="extraction",  # name of the objective
        question="question",  # field with the question
        context="context",  # field with the text that holds the answer
        answers="answers.text",  # field with the answers' texts
        starts="answers.answer_start",  # field with the characters at which they begin
        question_tokens=count(64),  # most tokens of a question
        stride=count(128),  # tokens between the starts of windows of a long text
        answer_tokens=count(30),  # most tokens of an answer
        best=count(20),  # answers of a window that are kept
        no_answer=False,  # questions may have none (SQuAD 2.0)
        metrics=("exact", "f1"),  # figures of an evaluation
        selects="f1",  # figure or term (loss) that selects the best checkpoint
    )


@section
def base() -> dict:
    """Every key with its default."""
    return dict(
        name="base",  # name of the recipe, shown in reports
        seed=non_negative(0, below=2**32),  # seed of initial parameters, dropout and data order
        model=decoder(),
        tokenizer=dict(
            kind="sentencepiece",  # sentencepiece, wordpiece, bytes, symbols, words, huggingface, ... (docs/data.md)
            path="",  # tokenizer file; empty trains one on data.train (the first five kinds)
            cased=False,  # wordpiece: keep case and accents (BERT cased)
            sentinels=non_negative(0, below=2**16),  # ids above all others that mark missing spans (T5)
            unknown="",  # huggingface: a word of the text to read as the unknown token, such as WikiText's <unk>
            vocab_size=count(4096),  # most pieces of a tokenizer trained here, without ids that the objective adds
            algorithm="bpe",  # sentencepiece trained here: bpe or unigram (much slower)
            pieces="words",  # sentencepiece trained here: words, or phrases (a piece may span words: for code)
            train_bytes=count(20_000_000, below=2**63),  # bytes of the training text to train the tokenizer on
            single=(),  # a task's row of one text, such as ("classifier", "$A", "separator"); empty: that, or text, end
            pair=(),  # the same of two, such as ("classifier", "$A", "separator", "$B", "separator")
        ),
        data=dict(
            train="stdlib",  # sources, joined by " + ": stdlib, text:, jsonl:, parquet:, tfds: and others (data.md)
            validation="",  # sources; empty holds out a share of data.train
            test="",  # sources; empty means no test split
            sentences="",  # how sentences of a document end: lines (BERT); empty: not recorded
            image=image_shape(()),  # rows, columns, colours of the images in all sources; empty means text
            holdout=rate(0.05),  # share of documents held out, by hash, if data.validation is empty; 0: no validation
            weights=positives(()),  # share of the rows for each source of data.train; empty means by size
            temperature=positive(1.0),  # sizes, in examples, are raised to 1/temperature before mixing
            languages=(),  # names of the languages of sources (option `language`, or fields)
            cap=non_negative(0, below=2**63),  # sizes are capped at this many examples before mixing; 0 means no cap
            layout="concat",  # concat (joined, cut), packed (no leaks), stream, document, pairs, examples (tasks), ...
            length=count(1024),  # T, tokens of a training row
            buckets=counts(()),  # layout examples: lengths of its batches, each the least that holds its longest row
            shuffle=True,  # a new order of rows each epoch
            on_bad_record="stop",  # stop, or skip records without usable text (<workdir>/bad_records.txt)
            bad_records=share(0.01),  # largest share of a source's records that may be skipped
            replace_surrogates=False,  # U+FFFD in place of lone surrogates in JSON, which are no text
            store="",  # folder of the token store; empty means <workdir>/data
            workers=non_negative(0, below=2**10),  # reader processes per host; 0 reads in threads of the trainer
            prefetch=count(4),  # batches to prefetch
        ),
        objective=causal(),
        distill=dict(
            teacher="",  # run folder of a teacher: runs/x, runs/x@best or @STEP; empty means none
            model={},  # fields of `model` in which the teacher differs; training reads them from its folder
            layers=indices(()),  # teacher's layers that initialise the model's, with tables and head; empty: none
            temperature=temperature(2.0),  # divides both logits in the KL term
            soft=non_negative(5.0),  # weight of KL(teacher, model) per token, times the squared temperature
            hard=non_negative(2.0),  # weight of the objective's own loss
            cosine=non_negative(1.0),  # weight of 1 - cosine of the last hidden states
        ),
        train=dict(
            steps=count(10_000),  # optimiser updates
            trials=count(1),  # runs of as many seeds, in WORKDIR/seed0, ...; median and spread at the end
            start_from="",  # run folder whose weights initialise the model, by name: runs/x, runs/x@best or @STEP
            batch_size=count(32),  # rows of an update over all hosts, devices and parts
            batch_ramp=batch_ramp(()),  # (first size, increment, rows): batches grow to batch_size over so many rows
            accumulate=count(1),  # parts of a batch, one after the other, whose gradients are summed
            backend="jit",  # jit (any mesh) or pmap (data parallel over all devices, whatever mesh.data is)
            z_loss=non_negative(0.0),  # weight of log(Z)^2, which keeps logits from drifting
            label_smoothing=rate(0.0),  # share of the target's probability spread over the vocabulary
            max_bad_steps=count(10),  # consecutive updates with non-finite loss or gradients before the run stops
            on_bad_step="skip",  # skip (drop the update) or rewind (last good checkpoint, past the bad data)
            patience=non_negative(600.0),  # seconds that an update may take before the run ends with 69; 0: no limit
            compare_every=non_negative(100),  # updates between comparisons of replicated state; 0 means never
        ),
        optimizer=dict(
            name="adamw",  # adamw, adafactor, adagrad, lamb, sgd, lion or muon
            b1=decay(0.9),  # decay of the first moment (momentum for sgd and muon); not adafactor, adagrad
            b2=decay(0.999),  # decay of the second moment; not adafactor, adagrad, sgd
            epsilon=epsilon(1e-8),  # added to the root of the second moment (adagrad: inside); not adafactor, sgd, lion
            weight_decay=non_negative(0.0),  # decoupled decay, times the learning rate
            decay="matrices",  # parameters that decay: matrices (all except biases and norm gains) or all
            bias_correction=True,  # adamw and lamb; False in the releases of BERT, ALBERT, ELECTRA and XLNet
            clip=non_negative(1.0),  # maximum global gradient norm; 0 means no clipping
            frozen=(),  # patterns of parameters that are not trained: ("*", "!task_head") trains a task's head alone
            unfreeze=steps_or_epoch(0),  # updates until one more layer is trained, from the top; -1: an epoch; 0: all
            layer_decay=probability(1.0),  # rate x layer_decay^(layers above): heads x 1, embeddings lowest
            head_rate=positive(1.0),  # factor on the rate of heads
        ),
        schedule=dict(
            kind="cosine",  # constant, linear, cosine, rsqrt (inverse square root), wsd, slanted (ULMFiT)
            peak=non_negative(1e-3),  # highest learning rate
            warmup=non_negative(100),  # updates of linear warm-up from 0
            hold=non_negative(0),  # updates at `peak` after the warm-up
            decay_steps=non_negative(0),  # updates until `end`, warm-up and hold included; 0 means train.steps
            end=share(0.1),  # final learning rate as a share of peak (linear, cosine and wsd)
            beneath_warmup=False,  # linear and cosine decay starts at update 0, and applies after the warm-up
            cooldown=share(0.2),  # wsd (warm-up, stable, decay): share of the steps that decay, at their end
            cooldown_shape="1-sqrt",  # wsd: how it decays, 1-sqrt or linear
            cut_frac=share(0.1),  # slanted: share of the steps that rise from peak / ratio; the others fall back to it
            ratio=count(32.0),  # slanted: peak over the lowest rate
        ),
        mesh=dict(
            data=devices(-1),  # devices along each axis; one of them may be -1: whatever is left
            fsdp=devices(1),  # splits the batch, and each parameter's largest free axis that divides
            sequence=devices(1),  # splits the tokens of a row
            tensor=devices(1),  # splits heads, feed-forward and vocabulary
            rules=(  # logical axis -> mesh axis, several, or None, which replicates; every axis is named
                ("batch", ("data", "fsdp")),
                ("length", "sequence"),
                ("vocab", "tensor"),
                ("embed", None),
                ("heads", "tensor"),
                ("kv_heads", "tensor"),
                ("ff", "tensor"),
                ("layers", None),
                ("head_size", None),
                ("positions", None),
            ),
        ),
        checkpoint=dict(
            every=count(1000),  # updates between saves; the last update is always saved
            keep=count(3),  # number of newest checkpoints to keep, besides imported weights
            keep_best=True,  # also keep the one with the lowest validation loss
        ),
        evaluate=dict(
            every=non_negative(1000),  # updates between validations during training; 0 means only at the end
            batch_size=count(32),  # rows of a batch; with layout stream its lanes (the command `evaluate` uses one)
            batches=non_negative(0),  # batches to evaluate; 0 means the whole split
            decode=non_negative(0),  # examples of each source of text pairs to decode in validations; 0 means none
            beams=count(1, below=2**20),  # beams of that decoding; 1 is greedy
            length_penalty=real(0.6),  # beam search: score / ((5 + length) / 6) ** length_penalty
            stopping="never",  # beam search ends: never before no beam could win at any length; best: at its own; full
            beyond=non_negative(0),  # most tokens written beyond the length read; 0: as many as a row of targets holds
            length=non_negative(0),  # tokens of an evaluation row; 0 means data.length
            stride=non_negative(0),  # tokens between windows; 0 means their length (disjoint windows)
            model={},  # fields of `model` that evaluation changes, such as a longer memory
        ),
        log=dict(
            every=count(10),  # updates between rows of metrics
            seconds=non_negative(2.0),  # least seconds between two rows that are printed; 0 prints all
            tensorboard=True,  # write <workdir>/metrics/tensorboard
            csv=True,  # write <workdir>/metrics/train.csv and validation.csv
            jsonl=True,  # write <workdir>/metrics/train.jsonl and validation.jsonl
            wandb="",  # project of Weights & Biases to log to as well (extra wandb); empty means none
            profile=update_range(()),  # (first, last) update to trace into <workdir>/profile
            peak_flops=non_negative(0.0),  # the device's peak FLOP/s for MFU; 0 looks it up by name
        ),
    )


# Sections of objectives by kind, as MODELS has those of models.
OBJECTIVES = {
    "causal": causal,
    "masked": masked,
    "spans": spans,
    "replaced": replaced,
    "translation": translation,
    "permutation": permutation,
    "denoising": denoising,
    "classification": classification,
    "regression": regression,
    "choice": choice,
    "tagging": tagging,
    "extraction": extraction,
}
