"""First steps that several commands share: the config, the work folder, agreement between processes."""

from pathlib import Path

import jax

from pretrain import config as configs
from pretrain.commands.arguments import Arguments, ConfigOrRunArguments, Prepare, Train, flagged
from pretrain.distributed.consensus import assert_equal_on_hosts, versions
from pretrain.distributed.init import print_on_host0
from pretrain.errors import UserError

DEFAULT_CONFIG = "configs/quickstart.py"


def resolve(arguments: Train | Prepare):
    """(config, work folder) of a command that takes both; a work folder alone means the config in it."""
    workdir = arguments.workdir
    if workdir and not arguments.config:
        return configs.with_overrides(configs.saved(workdir), arguments.overrides, print_on_host0), workdir
    if not arguments.config:
        print_on_host0(f"no --config: using {DEFAULT_CONFIG}")
    config = configs.load(arguments.config or DEFAULT_CONFIG, arguments.overrides, print_on_host0, workdir)
    workdir = workdir or configs.default_workdir(config.name)
    configs.check_folder(workdir)
    return config, workdir


def config_of(arguments: ConfigOrRunArguments):
    """The config that a command was given, or that of its work folder."""
    if arguments.workdir:
        return configs.with_overrides(configs.saved(arguments.workdir), arguments.overrides)
    return configs.load(arguments.config or DEFAULT_CONFIG, arguments.overrides)


def check_out(path: str, flag: str = "--out") -> None:
    """Raises UserError for a file to write, the value of a flag, in a folder that does not exist."""
    if not Path(path).parent.is_dir():
        raise UserError(f"{flag}={path}: no such folder. Create it first.")


def check_processes(arguments: Arguments, config) -> None:
    """Raises UserError in all processes of a run unless all run the same program, command and config.

    Only the work folder's path and the keys of `configs.OF_A_HOST` may differ between hosts.
    """
    if jax.process_count() == 1:
        return
    # Other code could have other flags and keys, so it is compared first.
    assert_equal_on_hosts(versions(), "Install the same version on all hosts.")
    values = {f"--{field.name}": getattr(arguments, field.name) for field in flagged(type(arguments))}
    values |= {"--workdir": "", "the command": type(arguments).__name__.lower()}
    keys = {f"config.{key}": value for key, value in configs.flat(config).items() if key not in configs.OF_A_HOST}
    assert_equal_on_hosts(values | keys, "Start all processes with the same command.")
