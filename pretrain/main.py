"""The command line: `pretrain COMMAND --flags`, also `python -m pretrain`.

Exit codes: 0 done; 2 a user's mistake (one sentence on stderr); 75 interrupted by SIGTERM or Ctrl-C with everything
saved, start the same command again to go on; 130 a second Ctrl-C did not wait for that; 141 the reader of standard
output left before the end; 1 anything else.
"""

import difflib
import errno
import os
import traceback
from collections.abc import Sequence

from absl import flags

from configs.ranges import Declared, Range, count, non_negative, probability, rate, real
from pretrain.config import every_key, parse_value
from pretrain.errors import USER_ERRORS, UserError, nearest, reason
from pretrain.processes.leaving import FAILED, MISTAKE, UNREAD, leaving

DEVICE_IS_FULL = "RESOURCE_EXHAUSTED: Out of memory"  # how XLA's error begins
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)


class Number(flags.ArgumentParser):
    """Reads a number as the keys of a config are read, and as strictly."""

    def __init__(self, name: str, kind: type, kept: Range):
        self.name, self.kind, self.range = name, kind, kept

    def parse(self, argument):
        if not isinstance(argument, str):  # the default
            return argument
        value = parse_value(f"--{self.name}", argument, self.kind())
        if rule := self.range.broken_by(value):
            raise UserError(f"--{self.name}={value}; it must be {rule}")
        return value


class Switch(flags.BooleanFlag):
    """A flag that is given or not."""

    def parse(self, argument):
        try:
            super().parse(argument)
        except flags.IllegalFlagValueError:
            raise UserError(
                f"--{self.name}={argument} is neither true nor false; write --{self.name} or --no{self.name}"
            ) from None


class Command:
    """One command: its flags, and the function that is run with their values."""

    def __init__(self, name: str, summary: str, *, config: bool = False, section: str = ""):
        self.name, self.summary = name, summary
        self.takes_config = config  # --config, and overrides of any key
        self.section = section  # else: the one section of the work folder's config whose keys may be overridden
        self.flags = flags.FlagValues()

    def text(self, name: str, default, help: str) -> "Command":
        flags.DEFINE_string(name, default, help, flag_values=self.flags)
        return self

    def integer(self, name: str, declared: Declared, help: str) -> "Command":
        flags.DEFINE(Number(name, int, declared.range), name, declared.default, help, flag_values=self.flags)
        return self

    def number(self, name: str, declared: Declared, help: str) -> "Command":
        flags.DEFINE(Number(name, float, declared.range), name, declared.default, help, flag_values=self.flags)
        return self

    def switch(self, name: str, default: bool, help: str) -> "Command":
        flags.DEFINE_flag(Switch(name, default, help), flag_values=self.flags)
        return self

    def choice(self, name: str, default, choices: Sequence[str], help: str) -> "Command":
        flags.DEFINE_enum(name, default, list(choices), help, flag_values=self.flags)
        return self

    def several(self, name: str, help: str) -> "Command":
        flags.DEFINE_multi_string(name, [], help, flag_values=self.flags)
        return self

    def parse(self, argv: Sequence[str]) -> None:
        """Reads `argv` into the flags. Raises UserError for a flag that there is not, or a value that cannot be."""
        try:
            extra = self.flags([f"pretrain {self.name}", *argv])[1:]
        except flags.UnrecognizedFlagError as error:
            raise UserError(f"`pretrain {self.name}` has no flag --{error.flagname}{self._nearest(error)}") from error
        except flags.Error as error:
            if isinstance(error.__context__, UserError):
                raise error.__context__ from None
            raise UserError(f"{str(error).rstrip('.')}; see `pretrain {self.name} --help`") from error
        if extra:
            meant = "workdir" in self.flags and os.path.isdir(extra[0])
            remedy = f"did you mean --workdir={extra[0]}?" if meant else f"see `pretrain {self.name} --help`"
            raise UserError(f"'{extra[0]}' is not a flag; {remedy}")

    def _nearest(self, error: flags.UnrecognizedFlagError) -> str:
        """The end of a sentence about an unknown flag: a config key of that name, or the nearest flag."""
        own = "" if self.takes_config else f"{self.section}."
        known = [key for key in every_key() if key.startswith(own)]
        keys = [key for key in known if error.flagname in (key, key.split(".")[-1])]
        if "." in error.flagname and not keys:
            keys = difflib.get_close_matches(error.flagname, known, n=1)
        if not keys:
            of_config = ["config", "config.KEY"] if self.takes_config else [f"config.{own}KEY"] * bool(self.section)
            return nearest(error.flagname, [*self.flags, *of_config])
        equals, value = error.flagvalue.partition("=")[1:]
        return f", did you mean {' or '.join(f'--config.{key}{equals}{value}' for key in keys)}?"

    def usage(self) -> str:
        lines = [f"usage: pretrain {self.name} [flags]", "", self.summary, ""]
        if self.takes_config:
            lines += [
                "  --config=PATH[:VARIANT]   recipe, such as configs/gpt2.py:medium (default: "
                + ("the work folder's own, else " if "workdir" in self.flags else "")
                + "configs/quickstart.py)",
                "  --config.KEY=VALUE        override of any key, such as --config.train.steps=200 (docs/configs.md)",
            ]
        elif self.section:
            key = f"--config.{self.section}.KEY=VALUE"
            lines += [f"  {key:<25} override of a key of that section (docs/configs.md)"]
        for name in sorted(self.flags):
            flag = self.flags[name]
            if flag.name != name:
                continue
            default = "" if flag.default in (None, "", [], False) else f" (default: {flag.default})"
            shown = f"--[no]{name}" if flag.boolean else f"--{name}=..."
            lines.append(f"  {shown:<25} {flag.help}{default}")
        return "\n".join(lines)


FORMAT = ("format", "table", ("table", "json"), "how to print the result")
WORKDIR = "folder of the run: config, tokenizer, checkpoints, metrics"


def commands() -> dict[str, Command]:
    """Every command with its flags."""
    train = Command("train", "Trains; goes on from the newest checkpoint if the work folder has one.", config=True)
    train.text("workdir", "", WORKDIR + "; empty means runs/<name of the config>")
    train.text("fresh", "", "begin at update 0, and keep what the work folder has in earlier/NAME; once for each NAME")

    evaluate = Command("evaluate", "Restores a checkpoint and scores it on a split.", section="evaluate")
    evaluate.text("workdir", None, WORKDIR).text("step", "latest", "checkpoint: a step, latest or best")
    evaluate.text("split", "validation", "validation, test or train")
    evaluate.text("data", "", "score this source instead, such as text:/books/*.txt, with the run's tokenizer")
    evaluate.integer("stride", non_negative(0), "tokens a window moves on; 0: config")
    evaluate.integer("length", non_negative(0), "tokens of a window; 0: config (its length, else data.length)").integer(
        "batch_size", non_negative(0), "rows; 0: config, but one of a stream"
    )
    evaluate.integer("batches", non_negative(0), "evaluate on the first so many batches; 0: the whole split")
    for name in ("gzip", "xz"):
        evaluate.switch(name, False, f"also print what {name} -9 makes of the same bytes, in bits per byte")
    evaluate.switch("word_level", False, "also print perplexity per word and line end, as of WikiText").choice(*FORMAT)

    generate = Command("generate", "Continues prompts, or completes images, with a trained model.")
    generate.text("workdir", None, WORKDIR).text("step", "latest", "checkpoint: a step, latest or best")
    generate.several("prompt", "text to continue; repeat the flag for several prompts")
    generate.text("prompt_file", "", "file with one prompt a line").integer(
        "max_tokens", count(100), "tokens to add, at most"
    )
    generate.number(
        "temperature", non_negative(None), "of sampling, 0 is greedy; 0.8 unless beams are searched, 1 for images"
    )
    generate.integer("top_k", non_negative(0), "sample among the k likeliest; 0: all")
    generate.number("top_p", probability(1.0), "sample among the likeliest that hold this probability")
    generate.integer("beams", count(1, below=2**20), "beam search with so many beams, instead of sampling")
    generate.number("length_penalty", real(0.6), "of beam search: score / ((5 + length) / 6) ** penalty")
    generate.integer("seed", non_negative(0, below=2**32), "of sampling").switch(
        "cached", True, "keep keys and values of earlier tokens"
    )
    generate.text("complete", "", "PNG file to write: images cut off, as the model fills them in, and whole")
    generate.text("images", "validation", "what is completed: a split of the run, or a source such as images:GLOB")
    generate.integer("rows", count(8, below=2**10), "images completed, a row of the picture each")
    generate.integer("samples", count(3, below=2**10), "completions of each image").number(
        "keep", rate(0.5), "share of an image that is kept"
    )
    generate.choice(*FORMAT)

    describe = Command("describe", "Prints parameters, FLOPs and bytes of a config; allocates nothing.", config=True)
    describe.text("workdir", "", "folder of a run, whose config is described").choice(*FORMAT)

    prepare = Command("prepare", "Trains the tokenizer if asked and builds the token store.", config=True)
    prepare.text("workdir", "", WORKDIR + "; empty means runs/<name of the config>").choice(*FORMAT)
    return {c.name: c for c in (train, evaluate, generate, describe, prepare)}


def split_config(argv: Sequence[str]) -> tuple[str, list[tuple[str, str]], list[str]]:
    """(config path, overrides, other arguments) of a command line."""
    spec, overrides, rest = "", [], []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or not (name == "config" or name.startswith("config.")):
            rest.append(argument)
            continue
        if not equals:
            value = next(arguments, None)
            if value is None:
                raise UserError(f"{argument} lacks a value; write {argument}=VALUE")
        if name == "config":
            spec = value
        else:
            overrides.append((name.removeprefix("config."), value))
    return spec, overrides, rest


def overview(known: dict[str, Command]) -> str:
    lines = ["usage: pretrain COMMAND [flags]      (pretrain COMMAND --help lists the flags)", ""]
    return "\n".join(lines + [f"  {name:<10} {command.summary}" for name, command in known.items()])


def parse(argv: Sequence[str]):
    """(command, config path, overrides) with the command's flags parsed; None if help was asked for and printed."""
    known = commands()
    if not argv or argv[0] in ("help", "-h", "--help"):
        print(overview(known))
        return None
    name, *rest = argv
    if name not in known:
        raise UserError(f"there is no command '{name}'{nearest(name, known)}")
    command = known[name]
    if any(a in ("-h", "--help", "-help") for a in rest):
        print(command.usage())
        return None
    spec, overrides, rest = split_config(rest)
    foreign = ["--config"] if spec else []
    foreign += [f"--config.{key}" for key, _ in overrides if key.partition(".")[0] != command.section]
    if foreign and not command.takes_config:
        allowed = f", set keys of config.{command.section} alone" if command.section else ""
        given = any(argument.lstrip("-").startswith("workdir") for argument in rest)
        folder = "" if given else f"{',' * bool(allowed)} and give --workdir"
        raise UserError(
            f"`pretrain {name}` reads the config from its work folder; leave {foreign[0]} out{allowed}{folder}"
        )
    command.parse(rest)
    return command, spec, overrides


def main(argv: Sequence[str]) -> int:
    """Runs one command line (without the program's name) and returns its exit code."""
    try:
        parsed = parse(argv)
        if parsed is None:
            return 0
        command, spec, overrides = parsed
        from pretrain.commands import commands as run  # imported late: --help and mistakes need no JAX

        return getattr(run, command.name)(command.flags, spec, overrides) or 0
    except Exception as error:
        return leaving.failed(*verdict(error))


def verdict(error: Exception) -> tuple[int, str]:
    """The exit code of an exception, and what is printed of it."""
    if isinstance(error, USER_ERRORS):
        return MISTAKE, f"pretrain: {error}\n"
    if isinstance(error, BrokenPipeError):  # standard error survives its reader (pretrain.processes.streams)
        return UNREAD, ""
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        where = f" {error.filename}" if error.filename else ""
        remedy = "make room or choose another --workdir and start the command again"
        return MISTAKE, f"pretrain: cannot write{where}: {error.strerror}; {remedy}\n"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and str(error).startswith(DEVICE_IS_FULL)):
        remedy = "lower the batch size, raise config.train.accumulate or split the model with config.mesh.fsdp"
        return MISTAKE, f"pretrain: out of memory ({reason(error)}); {remedy}\n"
    return FAILED, "".join(traceback.format_exception(error))
