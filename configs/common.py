"""The whole configuration: every key, typed by its default, each number with its range, with a comment.

A recipe starts from `base()`, sets what its paper says, and returns it. Nothing else in the project
holds a default: code reads `config.train.steps`, never `config.get(...)`. The kinds of models are in
`configs/kinds.py`; `docs/configs.md` is generated from the comments of both (`make docs`).
"""

from configs.kinds import MODELS as MODELS
from configs.kinds import decoder as decoder
from configs.kinds import encoder as encoder
from configs.kinds import encoder_decoder as encoder_decoder
from configs.kinds import recurrent as recurrent
from configs.kinds import replaced_tokens as replaced_tokens
from configs.kinds import two_stream as two_stream
from configs.ranges import (
    count,
    decay,
    devices,
    little,
    missing,
    non_negative,
    places,
    positive,
    positives,
    probability,
    rate,
    real,
    section,
    shape,
    share,
    span,
    temperature,
    updates,
)


class ConfigError(ValueError):
    """A configuration that cannot be: the message is one sentence with the remedy."""


def variant_error(recipe: str, variant: str, choices) -> ConfigError:
    """The error of a recipe asked for a size that it does not have."""
    known = ", ".join(sorted(choices))
    return ConfigError(f"recipe '{recipe}' has no variant '{variant}'; choose one of: {known}")


@section
def causal() -> dict:
    """Causal language modelling: every token is predicted from those before it."""
    return dict(
        kind="causal",  # which task the objective is
        coded=False,  # every row, and prompt, begins with a control code: its source's option `code` (CTRL)
        selects="loss",  # the term whose validation value selects the best checkpoint: the lowest
    )


@section
def masked() -> dict:
    """BERT's pretraining: hidden tokens are predicted from both sides, and whether one segment follows another."""
    return dict(
        kind="masked",  # which task the objective is
        selects="loss",  # the term that selects the best checkpoint: loss, mlm, nsp (of swapped pairs sop), an accuracy
        next_sentence=True,  # rows of two segments, of which it is told whether the second follows (data.layout pairs)
        share=probability(0.15),  # share of a row's tokens that are predicted
        max_predictions=count(20, below=2**20),  # K, at most so many of a row
        masked=share(0.8),  # share of the predicted tokens that the mask stands for
        random=share(0.1),  # share of them that a random token stands for; the rest stays as it is
        rounding="nearest",  # of that number: nearest (one at least), random (down or up) or coins (one for each token)
        candidates="text",  # what can be predicted: text (no special ids), any, after_first (but a text's first)
        replacements="any",  # what random tokens are drawn from: any, or text (no special tokens)
        smoothing=non_negative(0.0),  # s: tokens are predicted as often as their counts to -s say (DistilBERT: 0.7)
        whole_words=False,  # predict all pieces of a word or none
        ngrams=count(1, below=2**6),  # whole words in a row that are predicted together, at most; n of them as 1/n
        masks=non_negative(0),  # so many ways to mask a row, in all epochs (static masking); 0: another each time
        languages=False,  # of which language each token is (data.languages), and rows of translations (XLM)
        swapped_pairs=False,  # what does not follow is the same two the other way round (ALBERT), not a random one
        short_pairs=share(0.1),  # of layout pairs: share of the documents whose rows are of random length
        passes=count(10),  # of layout pairs: how often the text is cut into pairs, each time otherwise
    )


@section
def spans() -> dict:
    """T5's pretraining: an encoder reads text with gaps, a decoder writes what is missing."""
    return dict(
        kind="spans",  # which task the objective is
        selects="loss",  # the term that selects the best checkpoint: loss or accuracy
        noise="spans",  # what is missing: spans, each with a sentinel in its place, or (all that follows a) prefix
        density=missing(0.15),  # share of the tokens that is missing
        mean_span=count(3.0),  # tokens of a span on average
    )


@section
def replaced() -> dict:
    """ELECTRA's pretraining: a generator writes in masked places, and a discriminator tells what it changed."""
    return dict(
        kind="replaced",  # which task the objective is
        selects="loss",  # the term that selects the best checkpoint: loss, mlm, rtd, original or one's accuracy
        share=probability(0.15),  # share of a row's tokens that are drawn, some of them more than once
        masked=share(0.85),  # share of those that the generator reads as the mask; the rest it reads as they are
        scored="all",  # tokens that the discriminator's loss is about: all, or masked (those that were drawn)
        weight=positive(50.0),  # of the discriminator's loss; the generator's has 1
    )


@section
def translation() -> dict:
    """From one text to another: an encoder reads the one, a decoder writes the other."""
    return dict(
        kind="translation",  # which task the objective is
        selects="loss",  # the term that selects the best checkpoint: loss or accuracy
    )


@section
def permutation() -> dict:
    """XLNet's pretraining: places of a row are predicted in a random order, from what comes before them in it."""
    return dict(
        kind="permutation",  # which task the objective is
        selects="loss",  # the term that selects the best checkpoint: loss or accuracy
        reuse=count(256),  # tokens of a row that are text; two segments follow, and the next row begins behind them
        perm_size=count(256),  # tokens whose order is drawn together; it divides reuse and the rest of a row
        predictions=count(85),  # K, places of a row that are predicted; half, rounded up, among the first `reuse`
        longest=count(5, below=2**10),  # pieces of the longest n-gram that is predicted; n comes in proportion to 1/n
        stretch=count(6, below=2**10),  # an n-gram is chosen within n times as many pieces, so that so many of one are
        both_ways=True,  # the second half of a batch's lanes reads the text backwards
    )


@section
def denoising() -> dict:
    """BART's pretraining: an encoder reads a spoilt text, a decoder writes it as it was."""
    return dict(
        kind="denoising",  # which task the objective is
        selects="loss",  # the term that selects the best checkpoint: loss or accuracy
        noise="infilling",  # one mask for each span of words (infilling) or each token (masking), or none (deletion)
        share=share(0.3),  # share of the words, of infilling, or of the tokens that are taken out, rounded up
        mean_span=span(3.0),  # words of a span on average, by Poisson; a span of none is one mask more
        random=share(0.1),  # share of the masks that are random tokens instead
        permutation=share(1.0),  # share of the sentences that stand in random order
        stop=".",  # sentences end with it, with or without a space before it; of several tokens with the last
        rotation=share(0.0),  # share of the texts that begin at a random token, with what was before it at their end
        languages=(),  # mBART: codes that say of which language a text is, those of data.languages; empty: none
    )


@section
def base() -> dict:
    """Every key with its default."""
    return dict(
        name="base",  # name of the recipe, shown in reports
        seed=non_negative(0, below=2**32),  # the one seed: initial parameters, dropout, and the order of the data
        model=decoder(),
        tokenizer=dict(
            kind="sentencepiece",  # sentencepiece, wordpiece, bytes, symbols, words, huggingface, ... (docs/data.md)
            path="",  # a ready tokenizer file; empty makes one from data.train (the first five kinds)
            cased=False,  # wordpiece: whether text keeps its case and accents (BERT cased) or is lower-cased without
            sentinels=non_negative(0, below=2**16),  # ids on top of all others that mark what is left out (T5)
            unknown="",  # huggingface: a word of the text to read as the unknown token, such as WikiText's <unk>
            vocab_size=count(4096),  # pieces of a tokenizer trained here, at most; ids that its task adds are more
            algorithm="bpe",  # of sentencepiece trained here: bpe or unigram (which takes many times as long)
            pieces="words",  # of sentencepiece trained here: words, or phrases (a piece may span words: for code)
            train_bytes=count(20_000_000, below=2**63),  # how much of the training text that training reads
        ),
        data=dict(
            train="stdlib",  # sources, joined by " + ": stdlib, text:GLOB, jsonl:GLOB, parallel:FILE, tfds:, images:
            validation="",  # likewise; empty holds out a share of data.train
            test="",  # likewise; empty means there is no test split
            sentences="",  # where sentences of a document end: lines (one a line), which BERT needs; empty: not kept
            image=shape(()),  # rows, columns, colours of the images that all sources hold; empty means they hold text
            holdout=rate(0.05),  # share of documents held out, by hash, if data.validation is empty; 0: no validation
            weights=positives(()),  # each source's share of the rows, of data.train; empty means by size
            temperature=positive(1.0),  # sizes, in examples, are raised to 1/temperature before mixing
            languages=(),  # names of the languages of sources (their option `language`, or fields) that tasks are told
            cap=non_negative(0, below=2**63),  # sizes are capped at so many examples before mixing; 0 means no cap
            layout="concat",  # concat (joined, cut), packed (no leaks), stream, document, pairs, halves, ...
            length=count(1024),  # T, tokens of one training row
            shuffle=True,  # new order of rows each epoch
            store="",  # folder of the token store; empty means <workdir>/data
            workers=non_negative(0, below=2**10),  # reader processes of each host; 0 reads in threads of training's
            prefetch=count(4),  # batches read ahead
        ),
        objective=causal(),
        distill=dict(
            teacher="",  # folder of a run that teaches too: runs/x, runs/x@best or @STEP; empty: the text alone does
            model={},  # fields of `model` that the teacher has otherwise; training takes them from its folder
            layers=places(()),  # layers of the teacher that the model's begin as, beside tables and head; empty: none
            temperature=temperature(2.0),  # divides both's logits where the model learns the teacher's probabilities
            soft=non_negative(5.0),  # weight of that, KL(teacher, model) of each token, by the temperature squared
            hard=non_negative(2.0),  # weight of the objective's own loss
            cosine=non_negative(1.0),  # weight of 1 - the cosine of the angle between both's last hidden states
        ),
        train=dict(
            steps=count(10_000),  # optimiser updates
            start_from="",  # folder of a run whose weights update 0 begins with, by name: runs/x, runs/x@best or @STEP
            batch_size=count(32),  # rows of one update over all hosts and devices, accumulation included
            accumulate=count(1),  # the batch is worked through in this many parts, whose gradients are added
            backend="jit",  # jit (any mesh) or pmap (data parallel over all devices, whatever mesh.data is)
            z_loss=non_negative(0.0),  # weight of log(Z)^2, which keeps logits from drifting
            label_smoothing=rate(0.0),  # share of the target's probability spread over the vocabulary
            max_bad_steps=count(10),  # non-finite losses or gradients, in a row, before the run stops, one update later
            on_bad_step="skip",  # skip (drop the update) or rewind (last checkpoint, past the bad data)
            patience=non_negative(600.0),  # seconds an update may take before the run ends, to be started again; 0: any
            compare_every=non_negative(100),  # updates between comparisons of what devices hold alike; 0 means never
        ),
        optimizer=dict(
            name="adamw",  # adamw, adafactor, adagrad, lamb, sgd, lion or muon
            b1=decay(0.9),  # decay of the first moment (momentum for sgd and muon); adafactor and adagrad have none
            b2=decay(0.999),  # decay of the second moment; not adafactor's, adagrad's and sgd's
            epsilon=little(1e-8),  # added to the second moment's root (adagrad: within it); adafactor, sgd, lion: none
            weight_decay=non_negative(0.0),  # decoupled decay, multiplied by the learning rate
            decay="matrices",  # what decays: matrices (all but biases and norm gains) or all
            bias_correction=True,  # of adamw and lamb; False as BERT, ALBERT, ELECTRA and XLNet have it
            clip=non_negative(1.0),  # global gradient norm is clipped to this; 0 means never
        ),
        schedule=dict(
            kind="cosine",  # constant, linear, cosine or rsqrt (inverse square root)
            peak=non_negative(1e-3),  # highest learning rate
            warmup=non_negative(100),  # updates of linear rise from 0
            hold=non_negative(0),  # updates at `peak` after it, before it falls
            decay_steps=non_negative(0),  # updates until `end`, those before it falls included; 0 means train.steps
            end=share(0.1),  # final learning rate as a share of peak (linear and cosine)
            beneath_warmup=False,  # linear and cosine fall from update 0, and are in force once warm-up ends
        ),
        mesh=dict(
            data=devices(-1),  # devices along each axis; one of them may be -1: whatever is left
            fsdp=devices(1),  # the batch, each parameter's largest free axis that divides, and its optimiser state
            sequence=devices(1),  # a row's tokens are split over this axis
            tensor=devices(1),  # heads, feed-forward and vocabulary are split over this axis
            rules=(  # logical axis -> mesh axis, several, or None, which replicates; each axis is named
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
            keep=count(3),  # newest checkpoints kept, besides imported weights
            keep_best=True,  # also keep the one with the lowest validation loss
        ),
        evaluate=dict(
            every=non_negative(1000),  # updates between evaluations during training; 0 means only at the end
            batch_size=count(32),  # rows of a batch; of layout stream its lanes, where the command `evaluate` has one
            batches=non_negative(0),  # evaluate on the first so many batches; 0 means the whole split
            decode=non_negative(0),  # examples of each source of pairs of texts that validations decode; 0 means none
            beams=count(1, below=2**20),  # of what is decoded: 1 is greedy, more are searched with so many beams
            length_penalty=real(0.6),  # of that search: score / ((5 + length) / 6) ** length_penalty
            stopping="never",  # of that search: never before no beam could do better; best: could, at its length; full
            beyond=non_negative(0),  # it is at most so much longer than what is read; 0: as long as a row of targets
            length=non_negative(0),  # tokens of an evaluation row; 0 means data.length
            stride=non_negative(0),  # tokens a window moves on; 0 means its length (disjoint windows)
            model={},  # fields of `model` that evaluation changes, such as a longer memory
        ),
        log=dict(
            every=count(10),  # updates between lines of metrics
            tensorboard=True,  # write <workdir>/metrics/tensorboard
            csv=True,  # write <workdir>/metrics/train.csv and validation.csv
            jsonl=True,  # write <workdir>/metrics/train.jsonl and validation.jsonl
            profile=updates(()),  # (first, last) update to trace into <workdir>/profile
            peak_flops=non_negative(0.0),  # the device's peak FLOP/s for MFU; 0 looks it up by the device's name
        ),
    )


# When a search with beams stops, as `pretrain.decoding.beams` explains; the first where nobody says which.
STOPPING = ("never", "best", "full")

# Sections of which a config has one, by their kind; MODELS likewise (configs/kinds.py).
OBJECTIVES = {
    "causal": causal,
    "masked": masked,
    "spans": spans,
    "replaced": replaced,
    "translation": translation,
    "permutation": permutation,
    "denoising": denoising,
}
