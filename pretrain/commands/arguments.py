"""What each command is told: typed and checked, whether its flags say it or other Python code.

An argument has the name and the default of its flag; what `--help` says of it stands beside it.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from configs.ranges import Declared, Range, count, non_negative, rate
from input_pipeline.remote import is_remote
from pretrain.config.values import not_a, shown
from pretrain.decoding.options import CHOICES, OPTIONS
from pretrain.errors import UserError, nearest

WORKDIR = "folder of the run: config, tokenizer, checkpoints, metrics"
Overrides = tuple[tuple[str, str], ...]  # dotted key and text, as of --config.train.steps=200


def check_overrides(overrides: Overrides) -> None:
    """Raises UserError for what is no pairs of two texts."""
    pairs = isinstance(overrides, list | tuple) and all(isinstance(one, list | tuple) for one in overrides)
    if not pairs or not all(len(one) == 2 and all(isinstance(word, str) for word in one) for one in overrides):
        raise UserError(f"overrides is {shown(overrides)}; write pairs of texts, such as (('train.steps', '200'),)")


@dataclasses.dataclass(frozen=True)
class Flag:
    """What an argument's flag has besides its name and default."""

    kind: type  # str, int, float, bool, or tuple of what is given again and again
    help: str
    range: Range | None = None  # of numbers
    choices: tuple[str, ...] = ()

    def check(self, name: str, value, default) -> None:
        """Raises UserError where `value`, of the argument `name`, is of another type, out of range or no choice."""
        if value is default:
            return
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            raise UserError(f"--{name} is {shown(value)}, {not_a(self.kind())}")
        if self.range and (rule := self.range.broken_by(value)):
            raise UserError(f"--{name}={value}; it must be {rule}")
        if self.choices and value not in self.choices:
            raise UserError(f"--{name} is '{value}'{nearest(value, self.choices)}")


# Fields of each kind, with their defaults and what `--help` says of them.


def text(default, help: str, choices: tuple[str, ...] = ()):
    return dataclasses.field(default=default, metadata={"flag": Flag(str, help, choices=choices)})


def integer(declared: Declared, help: str):
    return dataclasses.field(default=declared.default, metadata={"flag": Flag(int, help, declared.range)})


def number(declared: Declared, help: str):
    return dataclasses.field(default=declared.default, metadata={"flag": Flag(float, help, declared.range)})


def switch(default: bool, help: str):
    return dataclasses.field(default=default, metadata={"flag": Flag(bool, help)})


def several(help: str):
    return dataclasses.field(default=(), metadata={"flag": Flag(tuple, help)})


def how_printed():
    return text("table", "how to print the result", ("table", "json"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of a command; a value that it cannot take raises UserError. The first line says what it does."""

    section: ClassVar[str] = ""  # the one section of the work folder's config whose keys `overrides` may set
    apart: ClassVar[str] = ""  # what is said of a flag of the same command that is no argument of this

    def __post_init__(self):
        for field in flagged(type(self)):
            field.metadata["flag"].check(field.name, getattr(self, field.name), field.default)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfConfig(Arguments):
    """Of a command that takes any config."""

    config: str = ""  # a recipe, such as configs/gpt2.py:medium; empty: the work folder's, without one the quickstart
    overrides: Overrides = ()

    def __post_init__(self):
        super().__post_init__()
        Flag(str, "").check("config", self.config, "")
        check_overrides(self.overrides)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfRun(Arguments):
    """Of a command that reads a run."""

    workdir: str = text("", WORKDIR)

    def __post_init__(self):
        super().__post_init__()
        if not self.workdir:
            raise UserError(
                "--workdir is missing; give the folder of a `pretrain train` run, such as --workdir=runs/quickstart"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfCheckpoint(OfRun):
    """Of a command that reads a checkpoint of a run, or the mean of its last ones."""

    step: str = text("latest", "checkpoint: a step, latest or best")
    average: int = integer(count(1, below=2**20), "read the mean of so many checkpoints, that one and those before it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(OfConfig):
    """Trains; goes on from the newest checkpoint if the work folder has one."""

    workdir: str = text("", WORKDIR + " (default: runs/<name of the config>)")
    fresh: str = text("", "begin at update 0, and keep what the work folder has in earlier/NAME; once for each NAME")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(OfCheckpoint):
    """Restores a checkpoint and scores it on a split."""

    section: ClassVar[str] = "evaluate"

    overrides: Overrides = ()
    split: str = text("", "validation, test or train (default: validation)")
    data: str = text("", "score this source instead, such as text:/books/*.txt, with the run's tokenizer")
    stride: int = integer(non_negative(0), "tokens a window moves on; 0: config")
    length: int = integer(non_negative(0), "tokens of a window; 0: config (its length, else data.length)")
    batch_size: int = integer(non_negative(0), "rows; 0: as the config says, one where memory goes from row to row")
    batches: int = integer(non_negative(0), "evaluate on the first so many batches; 0: the whole split")
    decode: int | None = integer(
        non_negative(None), "examples of each source of pairs of texts to decode; 0: none (default: all)"
    )
    gzip: bool = switch(False, "also print what gzip -9 makes of the same bytes, in bits per byte")
    xz: bool = switch(False, "also print what xz -9 makes of the same bytes, in bits per byte")
    word_level: bool = switch(False, "also print perplexity per word and line end, as of WikiText")
    format: str = how_printed()

    def __post_init__(self):
        super().__post_init__()
        check_overrides(self.overrides)
        check_own("evaluate", self.section, [f"--config.{key}" for key, _ in self.overrides], self.workdir)
        if self.data and self.split:
            raise UserError("--data and --split both say what is scored; leave one out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writing(OfCheckpoint):
    """Of a command that has a model write."""

    temperature: float | None = number(
        OPTIONS["temperature"]._replace(default=None),
        "of sampling, 0 is greedy; 0.8, or 1 for images, unless beams are searched",
    )
    top_k: int = integer(OPTIONS["top_k"], "sample among the k likeliest; 0: all")
    top_p: float = number(OPTIONS["top_p"], "sample among the likeliest that hold this probability")
    beams: int = integer(OPTIONS["beams"], "beam search with so many beams, instead of sampling")
    length_penalty: float = number(OPTIONS["length_penalty"], "of beam search: score / ((5 + length) / 6) ** penalty")
    repetition_penalty: float = number(
        OPTIONS["repetition_penalty"], "logits of tokens that are there already are divided by it; 1: they are not"
    )
    normalisation: str = text(
        CHOICES["normalisation"][0],
        "of beam search: gnmt, as above, or length: score / length ** penalty",
        CHOICES["normalisation"],
    )
    stopping: str = text(
        CHOICES["stopping"][0],
        "of beam search: never before no beam could do better; best: could, at its length; full: or all have ended",
        CHOICES["stopping"],
    )
    seed: int = integer(OPTIONS["seed"], "of sampling")
    cached: bool = switch(True, "keep keys and values of earlier tokens")
    format: str = how_printed()

    def __post_init__(self):
        super().__post_init__()
        for name in ("length_penalty", "normalisation", "stopping"):
            value = getattr(self, name)
            if self.beams == 1 and value != getattr(Writing, name):
                told = value if isinstance(value, str) else f"{value:g}"
                raise UserError(
                    f"--{name}={told} is of beam search; give --beams too, such as --beams=4, or leave it out"
                )
        for name in ("top_k", "top_p", "seed"):
            value = getattr(self, name)
            if self.beams > 1 and value != getattr(Writing, name):
                raise UserError(f"--{name}={value:g} is of sampling, and --beams={self.beams} searches; leave one out")

    def options(self, usual: float = OPTIONS["temperature"].default) -> dict:
        """What `pretrain.decoding.decoding.generate` is told of how to write.

        The temperature is what is given, else 0 where beams are searched and `usual` where tokens are sampled.
        """
        told = {name: getattr(self, name) for name in (*OPTIONS, *CHOICES, "cached") if hasattr(self, name)}
        if self.temperature is None:
            told["temperature"] = usual if self.beams == 1 else 0.0
        return told


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(Writing):
    """Continues prompts, or completes images, with a trained model."""

    apart: ClassVar[str] = "goes with --complete=FILE.png"

    prompt: tuple[str, ...] = several("text to continue; repeat the flag for several prompts")
    prompt_file: str = text("", "file with one prompt a line")
    max_tokens: int | None = integer(
        OPTIONS["max_tokens"]._replace(default=None),
        "tokens to add, at most; 100, or as many as the context leaves room for",
    )
    beyond: int | None = integer(OPTIONS["beyond"], "write at most so many tokens more than an encoder reads")

    def __post_init__(self):
        super().__post_init__()
        on_disk("prompt_file", self.prompt_file, "fetch it first")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Complete(Writing):
    """Completes images: `pretrain generate --complete=FILE.png`."""

    apart: ClassVar[str] = "is for text, not for --complete"

    complete: str = text(dataclasses.MISSING, "new PNG file: images cut off, as the model fills them in, and whole")
    images: str = text("validation", "what is completed: a split of the run, or a source such as images:GLOB")
    rows: int = integer(count(8, below=2**10), "images completed, a row of the picture each")
    samples: int = integer(count(3, below=2**10), "completions of each image")
    keep: float = number(rate(0.5), "share of an image that is kept")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfConfigOrRun(OfConfig):
    """Of a command that takes any config, or that of a run."""

    what: ClassVar[str]  # is done with it

    workdir: str = text("", "folder of a run, whose config is taken")

    def __post_init__(self):
        super().__post_init__()
        if self.config and self.workdir:
            raise UserError(f"--config and --workdir both say what is {self.what}; leave one out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Describe(OfConfigOrRun):
    """Prints parameters, FLOPs and bytes of a config; allocates nothing."""

    what: ClassVar[str] = "described"

    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goodput(OfRun):
    """Prints where the time of a run went, over all of its starts."""

    format: str = how_printed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(OfConfigOrRun):
    """Compiles the training step for hardware that need not be there: whether it fits, what it waits for."""

    what: ClassVar[str] = "planned"

    topology: str = text("", "what is planned for, such as v5p:4x4x4, v5e:2x2, h200:8 or cpu:8 (docs/plan.md)")
    search: bool = switch(False, "seek the layout, the parts of a batch and the remat policy that serve best")
    format: str = how_printed()

    def __post_init__(self):
        super().__post_init__()
        if not self.topology:
            raise UserError("--topology is missing; say what the plan is for, such as --topology=v5p:4x4x4")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepare(OfConfig):
    """Trains the tokenizer if asked and builds the token store."""

    workdir: str = text("", WORKDIR + " (default: runs/<name of the config>)")
    processes: int = integer(non_negative(0, below=2**12), "processes that tokenise; 0: one for each core")
    beam: str = text(
        "", "options of an Apache Beam pipeline that tokenises instead: '--runner=DirectRunner --direct_num_workers=2'"
    )
    format: str = how_printed()

    def __post_init__(self):
        super().__post_init__()
        if self.beam and self.processes:
            raise UserError(
                f"--processes={self.processes} is of this machine, and --beam tokenises on its runner's; leave one out"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Import(Arguments):
    """Makes a work folder of a model that Hugging Face's library saved."""

    folder: str = text("", "what is read: a folder that save_pretrained wrote, or hf download")
    generator: str = text("", "of ELECTRA: the folder of the generator, where --folder is the discriminator's")
    prepared: bool = switch(False, "of XLM's vocab.json: texts are split into words and cleaned as XLM's tools do it")
    workdir: str = text("", "folder of the run that is made: config, tokenizer, a checkpoint of the weights")

    def __post_init__(self):
        super().__post_init__()
        if not self.folder:
            raise UserError("--folder is missing; give the folder of a saved model, such as --folder=hf/gpt2")
        on_disk("folder", self.folder, "fetch it first")
        on_disk("generator", self.generator, "fetch it first")
        if not self.workdir:
            raise UserError("--workdir is missing; give the name of a new work folder, such as --workdir=runs/gpt2")
        on_disk("workdir", self.workdir, "make it on one, and copy it then")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(OfCheckpoint):
    """Makes a folder that Hugging Face's library loads, of a checkpoint."""

    step: str = text("latest", "checkpoint: latest, which is to be a run's last or an import's, best, or any step")
    folder: str = text("", "what is made: config.json, model.safetensors, the tokenizer")
    part: str = text("", "of ELECTRA: discriminator (which is made where this is left out) or generator")

    def __post_init__(self):
        super().__post_init__()
        if not self.folder:
            raise UserError("--folder is missing; give the name of a new folder, such as --folder=hf/mine")
        on_disk("folder", self.folder, "make it on one, and copy it then")


def on_disk(flag: str, path: str, remedy: str) -> None:
    """Raises UserError where what is read or made on a disk alone is said to be in an object store."""
    if is_remote(path):
        raise UserError(f"--{flag}={path} is in an object store, and has to be on a disk; {remedy}")


def flagged(form: type[Arguments]) -> list[dataclasses.Field]:
    """The arguments that have a flag: all but the config and its overrides, whose words name keys."""
    return [field for field in dataclasses.fields(form) if "flag" in field.metadata]


def check_own(command: str, section: str, given: Sequence[str], workdir: str | bool) -> None:
    """Raises UserError where a command that reads a run's config is `given` another, or a key outside `section`."""
    foreign = [flag for flag in given if flag.removeprefix("--config.").partition(".")[0] != section]
    if foreign:
        allowed = f", set keys of config.{section} alone" if section else ""
        folder = "" if workdir else f"{',' * bool(allowed)} and give --workdir"
        raise UserError(
            f"`pretrain {command}` reads the config from its work folder; leave {foreign[0]} out{allowed}{folder}"
        )
