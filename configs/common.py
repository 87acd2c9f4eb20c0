"""Every config key with its default, range and comment.

A recipe starts from `base()`, sets what its paper says, and returns it. No other file holds defaults: code reads
`config.train.steps`, never `config.get(...)`. Sections of models and objectives are in `configs/model_kinds.py` and
`configs/objective_kinds.py`. `make docs` generates `docs/configs.md` from the comments of these files.
"""

from configs.model_kinds import MODELS as MODELS
from configs.model_kinds import decoder as decoder
from configs.model_kinds import encoder as encoder
from configs.model_kinds import encoder_decoder as encoder_decoder
from configs.model_kinds import recurrent as recurrent
from configs.model_kinds import replaced_tokens as replaced_tokens
from configs.model_kinds import two_stream as two_stream
from configs.objective_kinds import OBJECTIVES as OBJECTIVES
from configs.objective_kinds import causal as causal
from configs.objective_kinds import choice as choice
from configs.objective_kinds import classification as classification
from configs.objective_kinds import denoising as denoising
from configs.objective_kinds import extraction as extraction
from configs.objective_kinds import masked as masked
from configs.objective_kinds import permutation as permutation
from configs.objective_kinds import regression as regression
from configs.objective_kinds import replaced as replaced
from configs.objective_kinds import siamese as siamese
from configs.objective_kinds import spans as spans
from configs.objective_kinds import tagging as tagging
from configs.objective_kinds import text as text
from configs.objective_kinds import translation as translation
from configs.ranges import (
    batch_ramp,
    count,
    counts,
    decay,
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


def use_small_encoder(config) -> None:
    """Set the model and tokenizer of a task without `train.start_from`: BERT mini, and pieces of the task's texts."""
    own = config.model
    config.model = encoder()
    config.model.update(vocab_size=8192, layers=4, width=256, heads=4, ff=1024)
    config.model.update(own)
    # A recipe's own tokenizer stays.
    if config.tokenizer == base().tokenizer:
        config.tokenizer.update(kind="wordpiece", vocab_size=8192)


def use_documents(config, folder: str, layout: str, length: int) -> None:
    """Set text as BERT reads it: a sentence a line, a blank line between documents; one in a thousand is held out."""
    config.data.update(train=f"text:data/{folder}/*.txt?document=blank_line", sentences="lines", holdout=0.001)
    config.data.update(layout=layout, length=length)


@section
def evaluation() -> dict:
    """A further evaluation of a run while it trains: `evaluations.NAME`."""
    return dict(
        data="",  # sources to score; empty means the validation split, or the task's own
        task="",  # ask this task without training, such as hellaswag or my_tasks.py:mine (docs/evaluation.md)
        probe="",  # score probes of all layers: pos, ner, depth, distance, word_content, length
        shots=non_negative(0),  # of a task: examples in front of each item
        limit=non_negative(0),  # of a task or probe: most items; 0 means all
        every=non_negative(1000),  # updates between two evaluations; 0 means only at the end
        batches=non_negative(0),  # batches to evaluate; 0 means all
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
            layout="concat",  # concat (joined, cut), packed (no leaks), stream, pairs, examples, packed_examples, ...
            length=count(1024),  # T, tokens of a training row
            examples=non_negative(0, below=2**31),  # layout examples: training records to draw by the seed; 0: all
            balanced=False,  # equal numbers of them for each label
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
            best="validation/loss",  # what that loss is: NAME/TERM, of an evaluation; loss means objective.selects
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
        evaluations={},  # further evaluations by name, each with the keys of `common.evaluation` (running.md)
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
