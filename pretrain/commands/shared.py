"""What several commands begin with."""

import jax

from input_pipeline.away import persistently
from pretrain import config as configs
from pretrain.commands.arguments import Arguments, OfConfigOrRun, Prepare, Train, flagged
from pretrain.distributed import program
from pretrain.distributed.consensus import check_alike
from pretrain.distributed.init import described, say
from pretrain.errors import UserError
from pretrain.workdir import CONFIG, Workdir, of_config

DEFAULT_CONFIG = "configs/quickstart.py"


def resolve(arguments: Train | Prepare):
    """(config, workdir) of a command that takes both; a work folder alone means the config that it holds."""
    workdir, spec, overrides = arguments.workdir, arguments.config, arguments.overrides
    configs.check_folder(workdir)
    if workdir and not spec and persistently(Workdir(workdir).config.is_file):
        return configs.with_overrides(configs.saved(workdir), overrides, say), workdir
    if workdir and not spec:
        raise UserError(
            f"{workdir} has no run to go on with (no {CONFIG}); correct --workdir, or begin one there with --config, "
            f"such as --config={DEFAULT_CONFIG}"
        )
    if not spec:
        say(f"no --config: {'training' if isinstance(arguments, Train) else 'preparing'} {DEFAULT_CONFIG}")
    config = configs.load(spec or DEFAULT_CONFIG, overrides, say)
    return config, workdir or of_config(config.name)


def config_of(arguments: OfConfigOrRun):
    """The config that a command was given, or that of the run which it was told of."""
    if arguments.workdir:
        return configs.with_overrides(configs.saved(arguments.workdir), arguments.overrides)
    return configs.load(arguments.config or DEFAULT_CONFIG, arguments.overrides)


def check_alone() -> None:
    """Raises UserError in each of several processes of a run: what one of them does, all would do."""
    if (found := described()) and found[1] != 1:
        raise UserError(
            "import and export are one process's work, and LONGHAUL_COORDINATOR says that this is one of several; "
            "start it without a launcher"
        )


def check_processes(arguments: Arguments, config) -> None:
    """Raises UserError in all processes of a run unless all are the same program, and were given the same command.

    Only the work folder's path may be another on each host, and the keys of `configs.OF_A_HOST`.
    """
    if jax.process_count() > 1:
        check_alike(program.told(), "install the same version on all hosts, and set the same variables")
    told = {f"--{field.name}": getattr(arguments, field.name) for field in flagged(type(arguments))}
    told["--workdir"] = ""
    keys = {f"config.{key}": value for key, value in configs.flat(config).items() if key not in configs.OF_A_HOST}
    command = {"the command": type(arguments).__name__.lower()}
    check_alike(command | told | keys, "start all of them with the same command")
