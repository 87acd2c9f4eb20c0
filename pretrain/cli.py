"""The command line: `pretrain COMMAND --flags`, also `python -m pretrain`.

Exit codes: 0 done; 2 a user's mistake, in one sentence on stderr; 75 preempted by SIGTERM, Ctrl-C or a closed terminal
with everything saved: the same command continues; 69 a peer was lost, hangs or computes wrongly: start it again; 130
a second Ctrl-C did not wait for the save; 141 standard output was closed; 1 anything else, with its traceback.
"""

import dataclasses
import re
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from absl import flags

from pretrain import config as configs
from pretrain.commands import run
from pretrain.commands.arguments import (
    Arguments,
    Attend,
    Complete,
    ConfigArguments,
    Describe,
    Embed,
    Evaluate,
    Export,
    Fill,
    Generate,
    Goodput,
    Import,
    Plan,
    Prepare,
    Probe,
    Report,
    Runs,
    Score,
    Train,
    flagged,
)
from pretrain.distributed.shutdown import FAILED, FAULT, MISTAKE, UNREAD, shutdown
from pretrain.errors import USER_ERRORS, FaultError, UserError, nearest

# A command's arguments; those of `generate` depend on whether --complete has a value.
FORMS = (
    (Train,),
    (Evaluate,),
    (Generate, Complete),
    (Score,),
    (Fill,),
    (Embed,),
    (Attend,),
    (Probe,),
    (Describe,),
    (Plan,),
    (Goodput,),
    (Runs,),
    (Report,),
    (Prepare,),
    (Import,),
    (Export,),
)
COMMANDS = {forms[0].__name__.lower(): forms for forms in FORMS}

# Messages of XLA and JAX about a lost peer.
LOST_PEER = re.compile(r"DEADLINE_EXCEEDED|UNAVAILABLE|Gloo|NCCL|Connection (reset|closed|refused)|Socket closed")
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: Out of memory"  # how XLA's error begins
OUT_OF_MEMORY_REMEDY = "Lower the batch size, raise config.train.accumulate, or split the model with config.mesh.fsdp."


def main(argv: Sequence[str]) -> int:
    """Runs one command line, without the program's name, and returns its exit code."""
    try:
        arguments = parse(argv)
        return 0 if arguments is None else run(arguments)
    except Exception as error:
        code, message = exit_code_and_message(error)
        print(message, end="", file=sys.stderr, flush=True)
        return code


def exit_code_and_message(error: Exception) -> tuple[int, str]:
    """The exit code of an exception, and what is printed about it."""
    if isinstance(error, BrokenPipeError):
        return UNREAD, ""
    if isinstance(error, USER_ERRORS):
        return MISTAKE, f"pretrain: {error}\n"
    if isinstance(error, FaultError):
        return FAULT, f"pretrain: {error}\n"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and str(error).startswith(OUT_OF_MEMORY)):
        return MISTAKE, f"pretrain: out of memory. {OUT_OF_MEMORY_REMEDY}\n"
    code = FAULT if shutdown.peers and isinstance(error, RuntimeError) and LOST_PEER.search(str(error)) else FAILED
    return code, "".join(traceback.format_exception(error))


def parse(argv: Sequence[str]) -> Arguments | None:
    """The arguments that a command line gives; None for help, which is printed. Errors: UserError."""
    if not argv or argv[0] in ("help", "-h", "--help"):
        print(overview())
        return None
    if argv[0] in ("--version", "-V"):
        print(", ".join(f"{name} {version(name)}" for name in ("longhaul", "jax")))
        return None
    name, *rest = argv
    if name not in COMMANDS:
        raise UserError(f"{name}: no such command{nearest(name, COMMANDS)}")
    if any(word in ("-h", "--help", "-help") for word in rest):
        print(usage(name))
        return None
    # absl does not know --config.KEY=VALUE of keys that the recipe defines later, so they are taken out first.
    spec, overrides, rest = split_config(rest)
    forms = COMMANDS[name]
    values = define_flags(forms)
    try:
        extra = values([f"pretrain {name}", *rest])[1:]
    except flags.UnrecognizedFlagError as error:
        # A config key without its section is the likeliest slip.
        keys = [key for key in configs.every_key() if error.flagname in (key, key.rpartition(".")[2])]
        meant = f". Did you mean --config.{keys[0]}?" if keys else nearest(error.flagname, [*values, "config"], "--")
        raise UserError(f"--{error.flagname}: no such flag of `pretrain {name}`{meant}") from error
    except (flags.Error, ValueError) as error:
        raise UserError(f"{str(error).removeprefix('flag ').rstrip('.')}. See `pretrain {name} --help`.") from error
    if extra and not forms[0].words:
        raise UserError(f"{extra[0]}: not a flag. See `pretrain {name} --help`.")
    return _arguments(forms, values, spec, overrides, extra)


def _arguments(forms, values: flags.FlagValues, spec: str | None, overrides, words) -> Arguments:
    """Builds a command's arguments from its flags."""
    form = next((other for other in forms[1:] if values[other.__name__.lower()].value), forms[0])
    fields, present = {field.name for field in flagged(form)}, [name for name in values if values[name].present]
    # An unset variable of a shell script leaves a flag empty.
    if empty := [name for name in present if values[name].value == ""] + ["config"] * (spec == ""):
        raise UserError(f"--{empty[0]}: empty. Give it a value, or leave it out.")
    if other := [name for name in present if name not in fields]:
        raise UserError(f"--{other[0]}: not a flag of this form of the command. {form.only_with}")
    given = {name: tuple(v) if isinstance(v := values[name].value, list) else v for name in fields}
    takes_config = issubclass(form, ConfigArguments)
    if takes_config:
        given["config"] = spec or ""
    elif spec or (overrides and not form.section):
        raise UserError("--config: this command reads the config of its --workdir. Leave it out.")
    if takes_config or form.section:
        given["overrides"] = tuple(overrides)
    if form.words:
        given["folders"] = tuple(words)
    return form(**given)


def define_flags(forms: Sequence[type[Arguments]]) -> flags.FlagValues:
    """absl flags for the fields of a command's arguments."""
    values = flags.FlagValues()
    for name, field in {field.name: field for form in forms for field in flagged(form)}.items():
        flag, default = field.metadata["flag"], "" if field.default is dataclasses.MISSING else field.default
        if flag.choices:
            flags.DEFINE_enum(name, default, list(flag.choices), flag.help, flag_values=values)
        elif flag.kind is tuple:
            flags.DEFINE_multi_string(name, list(default), flag.help, flag_values=values)
        else:
            define = {str: flags.DEFINE_string, bool: flags.DEFINE_bool, int: flags.DEFINE_integer}
            define.get(flag.kind, flags.DEFINE_float)(name, default, flag.help, flag_values=values)
    return values


def split_config(argv: Sequence[str]) -> tuple[str | None, list[tuple[str, str]], list[str]]:
    """(config path, overrides, other arguments) of a command line."""
    spec, overrides, rest = None, [], []
    words = iter(argv)
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not (name == "config" or name.startswith("config.")):
            rest.append(word)
            continue
        value = value if equals else next(words, "")  # `--config PATH` as well as `--config=PATH`
        if name == "config":
            spec = value
        else:
            overrides.append((name.removeprefix("config."), value))
    return spec, overrides, rest


def overview() -> str:
    """The text of `pretrain --help`."""
    rows = [f"  {name:<10} {forms[0].__doc__.splitlines()[0]}" for name, forms in COMMANDS.items()]
    usage = "usage: pretrain COMMAND [flags]      (pretrain COMMAND --help lists the flags)"
    return "\n".join([usage, "       pretrain --version", "", *rows])


def usage(name: str) -> str:
    """The text of `pretrain COMMAND --help`."""
    forms = COMMANDS[name]
    rows = [
        f"usage: pretrain {name} {forms[0].words} [flags]".replace("  ", " "),
        "",
        forms[0].__doc__.splitlines()[0],
        "",
    ]
    if issubclass(forms[0], ConfigArguments):
        rows.append("  --config=PATH[:VARIANT]   recipe, such as configs/gpt2.py:medium (default: that of --workdir,")
        rows.append("                            else configs/quickstart.py)")
        rows.append("  --config.KEY=VALUE        override of a key, such as --config.train.steps=200 (docs/configs.md)")
    elif forms[0].section:
        rows.append(f"  --config.{forms[0].section}.KEY=VALUE  override of a key of that section (docs/configs.md)")
    values = define_flags(forms)
    for flag in sorted({id(values[name]): values[name] for name in values}.values(), key=lambda flag: flag.name):
        default = "" if flag.default in (None, "", [], False) else f" (default: {flag.default})"
        shown = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}=..."
        rows.append(f"  {shown:<25} {flag.help}{default}")
    return "\n".join(rows)


def script() -> None:
    """Entry point of the console script: runs the command line and exits with its code."""
    shutdown.end(main(sys.argv[1:]))
