"""From a command line to a command's arguments: the one place that knows flags."""

import dataclasses
import difflib
import os
from collections.abc import Sequence

from absl import flags

from input_pipeline.errors import DataError
from pretrain import elsewhere
from pretrain.commands.arguments import (
    Arguments,
    Complete,
    Describe,
    Evaluate,
    Export,
    Flag,
    Generate,
    Goodput,
    Import,
    OfConfig,
    Plan,
    Prepare,
    Train,
    check_own,
    flagged,
)
from pretrain.config import every_key
from pretrain.config.values import parse_value
from pretrain.errors import UserError, nearest

OF_ABSL = ("flagfile", "undefok")  # which its parser takes whether they are defined or not


class Number(flags.ArgumentParser):
    """Reads a number as the keys of a config are read, and as strictly."""

    def __init__(self, name: str, flag: Flag):
        self.name, self.flag = name, flag

    def parse(self, argument):
        if not isinstance(argument, str):  # the default
            return argument
        value = parse_value(f"--{self.name}", argument, self.flag.kind())
        self.flag.check(self.name, value, None)
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
    """One command: its flags, and the arguments that they make.

    They make those of the first of `forms`, but where a flag that another is named for, `--complete`, has a value.
    """

    def __init__(self, *forms: type[Arguments]):
        self.forms, self.name = forms, forms[0].__name__.lower()
        self.summary, self.section = forms[0].__doc__.split("\n")[0], forms[0].section
        self.takes_config = issubclass(forms[0], OfConfig)  # --config, and overrides of any key
        self.flags = flags.FlagValues()
        for name, field in {field.name: field for form in forms for field in flagged(form)}.items():
            _define(name, field, self.flags)

    def arguments(self, config: str, overrides: Sequence[tuple[str, str]], rest: Sequence[str]) -> Arguments:
        """What a command line says: `config` and `overrides` as `split_config` finds them, and the `rest` of it.

        Errors: UserError for a flag that there is not or that does not go with another, and a value that cannot be.
        """
        if not self.takes_config:
            given = ["--config"] * bool(config) + [f"--config.{key}" for key, _ in overrides]
            check_own(self.name, self.section, given, any(word.lstrip("-").startswith("workdir") for word in rest))
        self._parse(rest)
        values = {name: self.flags[name].value for name in self.flags}
        form = next((form for form in self.forms[1:] if values[form.__name__.lower()]), self.forms[0])
        names = [field.name for field in flagged(form)]
        for name, value in values.items():
            if self.flags[name].present and value == "":
                raise UserError(f"--{name} is empty; give it a value, or leave it out")
            if self.flags[name].present and name not in names:
                raise UserError(f"--{name} {form.apart}; leave it out")
        told = {name: tuple(values[name]) if isinstance(values[name], list) else values[name] for name in names}
        told |= {"config": config} if self.takes_config else {}
        told |= {"overrides": tuple(overrides)} if self.takes_config or self.section else {}
        return form(**told)

    def _parse(self, argv: Sequence[str]) -> None:
        for word in argv:
            if word.startswith("-") and (name := word.lstrip("-").partition("=")[0]) in OF_ABSL:
                raise UserError(f"`pretrain {self.name}` has no flag --{name}; see `pretrain {self.name} --help`")
        try:
            extra = self.flags([f"pretrain {self.name}", *argv])[1:]
        except flags.UnrecognizedFlagError as error:
            raise UserError(f"`pretrain {self.name}` has no flag --{error.flagname}{self._nearest(error)}") from error
        except (flags.Error, ValueError) as error:  # the latter of --noflag=VALUE
            if isinstance(error.__context__, UserError):
                raise error.__context__ from None
            raise UserError(f"{str(error).rstrip('.')}; see `pretrain {self.name} --help`") from error
        if extra:
            raise UserError(f"'{extra[0]}' is not a flag; {self._meant(extra[0])}")

    def _meant(self, word: str) -> str:
        """The end of a sentence about a word without a flag: a folder, a recipe, a config key, or the help."""
        key = word.partition("=")[0]
        if "workdir" in self.flags and os.path.isdir(word):
            flag = f"--workdir={word}"
        elif self.takes_config and "=" not in word and word.partition(":")[0].endswith(".py"):
            flag = f"--config={word}"
        elif key != word and self.takes_config and key.removeprefix("config.") in every_key():
            flag = f"--config.{word.removeprefix('config.')}"
        elif key != word and (key in self.flags or (self.takes_config and key == "config")):
            flag = f"--{word}"
        else:
            quoted = "; put quotes around a text with blanks" if "prompt" in self.flags else ""
            return f"see `pretrain {self.name} --help`{quoted}"
        return f"did you mean {flag}?"

    def _nearest(self, error: flags.UnrecognizedFlagError) -> str:
        """The end of a sentence about an unknown flag: a config key of that name, or the nearest flag."""
        own = "" if self.takes_config else f"{self.section}."
        known = [key for key in every_key() if key.startswith(own)]
        keys = [key for key in known if error.flagname in (key, key.split(".")[-1])]
        if "workdir" in self.flags and error.flagname in elsewhere.FOLDERS:
            return f", did you mean --{''.join(('workdir', *error.flagvalue.partition('=')[1:]))}?"
        answers = elsewhere.ANSWERS[""] | elsewhere.ANSWERS.get(self.name, {})
        answers |= elsewhere.OF_CONFIGS if self.takes_config else {}
        if answer := answers.get(error.flagname):
            return f"; {answer}"
        if not keys and elsewhere.KEYS.get(error.flagname) in known:
            keys = [elsewhere.KEYS[error.flagname]]
        if "." in error.flagname and not keys:
            keys = difflib.get_close_matches(error.flagname, known, n=1)
        if not keys:
            of_config = ["config", "config.KEY"] if self.takes_config else [f"config.{own}KEY"] * bool(self.section)
            return nearest(error.flagname, [*self.flags, *of_config], "--")
        equals, value = error.flagvalue.partition("=")[1:]
        if keys == ["data.train"] and value and (mistake := _no_source(value)):
            return f"; {mistake}"
        return f", did you mean {' or '.join(f'--config.{key}{equals}{value}' for key in keys)}?"

    def usage(self) -> str:
        lines = [f"usage: pretrain {self.name} [flags]", "", self.summary, ""]
        if self.takes_config:
            lines += [
                "  --config=PATH[:VARIANT]   recipe, such as configs/gpt2.py:medium (default: "
                + ("the work folder's own, without --workdir " if "workdir" in self.flags else "")
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


def _no_source(text: str) -> str:
    """What is wrong with a source of text, which elsewhere is a bare path or name; empty where nothing is."""
    from input_pipeline.sources import sources  # imported late, as what reads files is by all commands

    try:
        sources.parse(text, "config.data.train")
    except DataError as error:
        return str(error)
    return ""


def _define(name: str, field: dataclasses.Field, into: flags.FlagValues) -> None:
    """The flag of an argument; one that has no default is empty where it is not given."""
    flag, default = field.metadata["flag"], "" if field.default is dataclasses.MISSING else field.default
    if flag.choices:
        flags.DEFINE_enum(name, default, list(flag.choices), flag.help, flag_values=into)
    elif flag.kind is str:
        flags.DEFINE_string(name, default, flag.help, flag_values=into)
    elif flag.kind is tuple:
        flags.DEFINE_multi_string(name, list(default), flag.help, flag_values=into)
    elif flag.kind is bool:
        flags.DEFINE_flag(Switch(name, default, flag.help), flag_values=into)
    else:
        flags.DEFINE(Number(name, flag), name, default, flag.help, flag_values=into)


def commands() -> dict[str, Command]:
    """Every command, by name."""
    forms = (
        (Train,),
        (Evaluate,),
        (Generate, Complete),
        (Describe,),
        (Plan,),
        (Goodput,),
        (Prepare,),
        (Import,),
        (Export,),
    )
    return {command.name: command for command in (Command(*some) for some in forms)}


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
            if not value:
                raise UserError("--config is empty; give it a recipe, such as configs/gpt2.py:medium, or leave it out")
            spec = value
        else:
            overrides.append((name.removeprefix("config."), value))
    return spec, overrides, rest
