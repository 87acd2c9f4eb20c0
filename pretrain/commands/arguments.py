"""Arguments of each command: typed and checked, whether flags or Python code give them.

An argument has the name and default of its flag; the text of `--help` is next to it. The first line of each class's
docstring is the command's summary.
"""

import dataclasses
from typing import ClassVar

from configs.ranges import Default, Range, count, non_negative, rate
from pretrain.decoding.options import CHOICES, OPTIONS
from pretrain.errors import UserError

WORKDIR = "folder of the run: config, tokenizer, checkpoints, metrics"
WITHIN_WORD = "of masked models: mask the pieces behind a scored one in its word, too (Kauf and Ivanova 2023)"
Overrides = tuple[tuple[str, str], ...]  # dotted key and text, as of --config.train.steps=200


@dataclasses.dataclass(frozen=True)
class Flag:
    """Type, help, range and choices of an argument's flag."""

    kind: type  # str, int, float, bool, or tuple for a flag that may be repeated
    help: str
    range: Range | None = None  # of numbers
    choices: tuple[str, ...] = ()
    required: str = ""  # what to give, where the flag must have a value


def argument(default, help: str, **more):
    """A dataclass field with a flag of the type of its default; a number has its `Default`, which has a range."""
    if isinstance(default, Default):
        default, more["range"] = default
    return dataclasses.field(default=default, metadata={"flag": Flag(more.pop("kind", type(default)), help, **more)})


def how_printed():
    return argument("table", "how to print the result", choices=("table", "json"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Base of all arguments: an invalid value raises UserError."""

    section: ClassVar[str] = ""  # the section of the work folder's config whose keys `overrides` may set
    exclusive: ClassVar[tuple[str, ...]] = ()  # two flags that cannot both have a value
    words: ClassVar[str] = ""  # usage of the words besides flags, which are `folders`; empty: none allowed
    only_with: ClassVar[str] = ""  # remedy for a flag that belongs to the command's other form

    def __post_init__(self):
        for field in flagged(type(self)):
            name, flag, value = field.name, field.metadata["flag"], getattr(self, field.name)
            if flag.required and not value:
                raise UserError(f"--{name}: missing. Give {flag.required}.")
            # A default may be outside the range: None means that the config or the model decides.
            if value != field.default and flag.range and (rule := flag.range.violation(value)):
                raise UserError(f"--{name}={value}: must be {rule}.")
        if self.exclusive and all(getattr(self, name) for name in self.exclusive):
            raise UserError(f"--{' and --'.join(self.exclusive)}: exclude each other. Leave one out.")
        for key, _ in self.overrides if self.section else ():
            if key.partition(".")[0] != self.section:
                raise UserError(f"--config.{key}: fixed by the run. Set only keys of config.{self.section}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigArguments(Arguments):
    """Base of commands that take any config."""

    config: str = ""  # a recipe, such as configs/gpt2.py:medium; empty: the work folder's, without one the quickstart
    overrides: Overrides = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunArguments(Arguments):
    """Base of commands that read a run."""

    workdir: str = argument("", WORKDIR, required="the folder of a run, such as --workdir=runs/quickstart")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointArguments(RunArguments):
    """Base of commands that read a checkpoint of a run, or the mean of its last ones."""

    step: str = argument("latest", "checkpoint: a step, latest or best")
    average: int = argument(count(1, below=2**20), "read the mean of N checkpoints: that one and those before it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(ConfigArguments):
    """Trains a config; continues from the newest checkpoint of the work folder."""

    workdir: str = argument("", WORKDIR + " (default: runs/<name of the config>)")
    fresh: str = argument("", "start at step 0 and move the present run to earlier/NAME; once for each NAME")
    allow: str = argument("", "keys that a resumed run may change, such as schedule.peak,optimizer.clip")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(CheckpointArguments):
    """Restores a checkpoint and scores it on a split."""

    section: ClassVar[str] = "evaluate"
    exclusive: ClassVar[tuple[str, ...]] = ("data", "split")

    overrides: Overrides = ()
    split: str = argument("", "validation, test or train (default: validation)")
    data: tuple[str, ...] = argument(
        (), "score this source instead, such as text:/books/*.txt; repeat it for a table, such as de:jsonl:de.jsonl"
    )
    task: str = argument("", "score as a recipe of a task does, such as configs/tasks.py:stsb_cosine")
    tasks: str = argument("", "ask these tasks without training, such as hellaswag,lambada or my_tasks.py:mine")
    shots: str = argument("0", "of --tasks: examples in front of each item, such as 0,1,5 for a row each")
    limit: int = argument(non_negative(0), "of --tasks: ask the first N items; 0: all")
    contamination: str = argument("", "of --tasks: a token store; print scores of items that its text does not hold")
    start_token: bool = argument(False, "of --tasks: begin each prompt with the token that began texts in training")
    within_word: bool = argument(False, WITHIN_WORD)
    stride: int = argument(non_negative(0), "tokens between the starts of two windows; 0: as the config")
    length: int = argument(non_negative(0), "tokens of a window; 0: as the config")
    batch_size: int = argument(non_negative(0), "rows of a batch; 0: as the config, or 1 for recurrent memory")
    batches: int = argument(non_negative(0), "evaluate the first N batches; 0: the whole split")
    decode: int | None = argument(
        non_negative(None), "examples to decode from each source of text pairs; 0: none (default: all)", kind=int
    )
    gzip: bool = argument(False, "also print bits per byte of gzip -9 on the same text")
    xz: bool = argument(False, "also print bits per byte of xz -9 on the same text")
    predictions: str = argument("", "of tasks: write each example with its prediction and scores as JSON lines")
    word_level: bool = argument(False, "also print perplexity per word, line ends included, as for WikiText")
    format: str = how_printed()


INPUT = "file of texts: JSON lines, one text a line, or a source such as csv:FILE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score(CheckpointArguments):
    """Scores texts: nats, tokens, bytes, characters and words of each."""

    input: str = argument("", INPUT, required="a file of texts, such as --input=texts.jsonl")
    output: str = argument("", "file of JSON lines for the scores of each text")
    tokens: bool = argument(False, "write the log-probability of each token, too")
    within_word: bool = argument(False, WITHIN_WORD)
    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fill(CheckpointArguments):
    """Fills the gaps of a text: [MASK], or T5's and BART's gaps."""

    text: str = argument("", "the text", required="a text with a gap, such as --text='Paris is in [MASK].'")
    top: int = argument(count(5, below=2**20), "likeliest pieces to print for each gap")
    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(CheckpointArguments):
    """Writes hidden states of texts: one vector each, or one for each word or token."""

    input: str = argument("", INPUT, required="a file of texts, such as --input=texts.txt")
    out: str = argument("", "NumPy file to write", required="a file to write, such as --out=x.npz")
    field: str = argument("text", "field of JSON lines that holds the text")
    pool: str = argument("mean", "of a text's tokens", choices=("mean", "first", "last", "word", "none"))
    layers: str = argument("", "layers, such as 0,6 or all (default: the last, or the head's model.mix)")
    stack: str = argument("", "of encoder-decoders: encoder (default) or decoder, which reads the text shifted right")
    normalize: bool = argument(True, "of the last layer's vectors: divide by their length")
    length: int = argument(non_negative(0), "tokens after which a text is cut; 0: the context")
    batch_size: int = argument(count(32, below=2**16), "rows read at once")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attend(CheckpointArguments):
    """Writes one HTML page about the attention in a text: every layer and head."""

    text: str = argument("", "the text", required="a text, such as --text='the cat sat on the mat'")
    target: str = argument("", "of encoder-decoders: what the decoder reads (default: the text, shifted right)")
    out: str = argument("attention.html", "the page to write; it needs no other file")
    length: int = argument(count(128, below=2**11), "tokens after which the text is cut")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe(CheckpointArguments):
    """Scores what can be read linearly from each layer: parts of speech, trees, words."""

    task: str = argument(
        "", "pos, ner, depth, distance, word_content, length, or a file with labels", required="one, such as --task=pos"
    )
    train: str = argument("", "records to train on, such as conllu:FILE (default: the file of --task)")
    test: str = argument("", "records to score (default: every fifth of --train)")
    layers: str = argument("all", "layers, such as 0,6; 0: embeddings")
    shots: str = argument("all", "training texts, such as 8,64,all for a row each")
    control: bool = argument(False, "of tasks on words: also score random labels of word types, for selectivity")
    mix: bool = argument(False, "also score a learned mix of these layers, for their weights and centre of gravity")
    stack: str = argument("", "of encoder-decoders: encoder (default) or decoder")
    limit: int = argument(count(2000, below=2**24), "most texts of --train and of --test")
    rank: int = argument(count(64, below=2**12), "of distance: rows of the map")
    seed: int = argument(non_negative(0, below=2**32), "of the order of training texts and of control labels")
    out: str = argument("", "JSON file to write")
    plot: str = argument("", "picture to write, such as probe.svg")
    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingArguments(CheckpointArguments):
    """Base of commands that decode."""

    temperature: float | None = argument(
        OPTIONS["temperature"]._replace(default=None),
        "of sampling; 0: greedy (default: 0.8, or 1 for images)",
        kind=float,
    )
    top_k: int = argument(OPTIONS["top_k"], "sample from the k likeliest tokens; 0: all")
    top_p: float = argument(OPTIONS["top_p"], "sample from the likeliest tokens that hold this probability")
    beams: int = argument(OPTIONS["beams"], "beam search with N beams, instead of sampling")
    length_penalty: float = argument(OPTIONS["length_penalty"], "of beam search: score / ((5 + length) / 6) ** penalty")
    repetition_penalty: float = argument(
        OPTIONS["repetition_penalty"], "divides the logits of tokens in the text so far; 1: off"
    )
    normalisation: str = argument(
        CHOICES["normalisation"][0],
        "of beam search: gnmt (see length_penalty), or length: score / length ** penalty",
        choices=CHOICES["normalisation"],
    )
    stopping: str = argument(
        CHOICES["stopping"][0],
        "of beam search: never (until no beam can do better), best (at its present length), full (all have ended)",
        choices=CHOICES["stopping"],
    )
    seed: int = argument(OPTIONS["seed"], "of sampling")
    cached: bool = argument(True, "cache keys and values of earlier tokens")
    format: str = how_printed()

    def __post_init__(self):
        super().__post_init__()
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        # Options of the other way to decode would be ignored.
        unused = ("length_penalty", "normalisation", "stopping") if self.beams == 1 else ("top_k", "top_p", "seed")
        for name in unused:
            if getattr(self, name) != defaults[name]:
                raise UserError(f"--{name}: has no effect with --beams={self.beams}. Leave one out.")

    def options(self, usual: float = OPTIONS["temperature"].default) -> dict:
        """Keyword arguments of `pretrain.decoding.sampling.generate`; `usual` is the temperature of sampling."""
        options = {name: getattr(self, name) for name in (*OPTIONS, *CHOICES, "cached") if hasattr(self, name)}
        if self.temperature is None:
            options["temperature"] = usual if self.beams == 1 else 0.0
        return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(DecodingArguments):
    """Continues prompts, or completes images, with a trained model."""

    only_with: ClassVar[str] = "Give --complete=FILE.png too, or leave it out."

    prompt: tuple[str, ...] = argument((), "text to continue; repeat the flag for several prompts")
    prompt_file: str = argument("", "file with one prompt a line")
    max_tokens: int | None = argument(
        OPTIONS["max_tokens"]._replace(default=None),
        "most tokens to add (default: 100, or the room left in the context)",
        kind=int,
    )
    beyond: int | None = argument(
        OPTIONS["beyond"], "of encoder-decoders: write at most N tokens more than the input has", kind=int
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Complete(DecodingArguments):
    """Completes images: `pretrain generate --complete=FILE.png`."""

    only_with: ClassVar[str] = "It is for text: leave it out."

    complete: str = argument(dataclasses.MISSING, "new PNG file: images cut off, completed, and whole", kind=str)
    images: str = argument("validation", "a split of the run, or a source such as images:GLOB")
    rows: int = argument(count(8, below=2**10), "images to complete, one row of the picture each")
    samples: int = argument(count(3, below=2**10), "completions of each image")
    keep: float = argument(rate(0.5), "share of an image that is kept")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigOrRunArguments(ConfigArguments):
    """Base of commands that take any config, or that of a run."""

    exclusive: ClassVar[tuple[str, ...]] = ("config", "workdir")

    workdir: str = argument("", "folder of a run, to use its config")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Describe(ConfigOrRunArguments):
    """Prints parameters, FLOPs and bytes of a config; allocates nothing."""

    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goodput(RunArguments):
    """Prints where the time of a run went, over all its starts."""

    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runs(Arguments):
    """Prints a table of the runs below a folder: step, loss, speed, state, last seen."""

    words: ClassVar[str] = "DIR ..."

    folders: tuple[str, ...] = ()  # empty: runs/
    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(Arguments):
    """Writes one HTML page about runs: what was run, curves, time, checkpoints."""

    words: ClassVar[str] = "RUN ..."

    folders: tuple[str, ...] = ()
    out: str = argument("report.html", "the page to write; it needs no other file")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(ConfigOrRunArguments):
    """Compiles the training step for absent hardware: memory, time, bottleneck."""

    topology: str = argument(
        "",
        "hardware, such as v5p:4x4x4, v5e:2x2, h200:8 or cpu:8 (docs/plan.md)",
        required="the hardware, such as --topology=v5p:4x4x4",
    )
    search: bool = argument(False, "search for the best mesh, accumulation and remat policy")
    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepare(ConfigArguments):
    """Trains the tokenizer if asked and builds the token store."""

    exclusive: ClassVar[tuple[str, ...]] = ("processes", "beam")

    workdir: str = argument("", WORKDIR + " (default: runs/<name of the config>)")
    processes: int = argument(non_negative(0, below=2**12), "processes that tokenize; 0: one per core")
    beam: str = argument(
        "", "options of an Apache Beam pipeline to tokenize with: '--runner=DirectRunner --direct_num_workers=2'"
    )
    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Import(Arguments):
    """Makes a work folder from a Hugging Face model."""

    folder: str = argument(
        "",
        "folder that save_pretrained or `hf download` wrote",
        required="the folder of a saved model, such as --folder=hf/gpt2",
    )
    generator: str = argument("", "of ELECTRA: the generator's folder, where --folder is the discriminator's")
    prepared: bool = argument(False, "of XLM's vocab.json: texts are tokenized and cleaned already by XLM's tools")
    workdir: str = argument(
        "",
        "new folder of the run: config, tokenizer, a checkpoint of the weights",
        required="a new work folder, such as --workdir=runs/gpt2",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(CheckpointArguments):
    """Makes a Hugging Face folder from a checkpoint."""

    step: str = argument("latest", "checkpoint: a step, best, or latest (the last of a finished run)")
    folder: str = argument(
        "",
        "new folder: config.json, model.safetensors, tokenizer, README.md",
        required="a new folder, such as --folder=hf/mine",
    )
    part: str = argument("", "base: the class without heads; of ELECTRA also discriminator (default) or generator")


def flagged(form: type[Arguments]) -> list[dataclasses.Field]:
    """The fields that have a flag of their own: all but `config` and `overrides`."""
    return [field for field in dataclasses.fields(form) if "flag" in field.metadata]
