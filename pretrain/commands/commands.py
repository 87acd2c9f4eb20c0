"""What each command does, once its flags are read. Every function returns an exit code, or None for 0."""

import functools
import json
import os

from pretrain import config as configs
from pretrain.errors import UserError
from pretrain.processes.agreement import check_alike
from pretrain.processes.host import say, start
from pretrain.processes.lock import held
from pretrain.reporting.tables import show
from pretrain.workdir import Workdir

DEFAULT_CONFIG = "configs/quickstart.py"


def resolve(flags, spec: str, overrides):
    """(config, workdir) of a command that takes both; a work folder alone means the config that it holds."""
    configs.check_folder(flags.workdir)
    if flags.workdir and not spec and Workdir(flags.workdir).config.is_file():
        return configs.with_overrides(configs.saved(flags.workdir), overrides), flags.workdir
    config = configs.load(spec or DEFAULT_CONFIG, overrides, say)
    return config, flags.workdir or os.path.join("runs", config.name)


def check_processes(command: str, flags, config) -> None:
    """Raises UserError in all processes of a run unless all were given the same command.

    Only the work folder's path may be another on each host, and the keys of `configs.OF_A_HOST`.
    """
    given = {f"--{name}": flags[name].value for name in flags if name != "workdir"}
    keys = {f"config.{key}": value for key, value in configs.flat(config).items() if key not in configs.OF_A_HOST}
    check_alike({"the command": command} | given | keys, "start all of them with the same command")


def train(flags, spec, overrides):
    from input_pipeline import requirements

    config, workdir = resolve(flags, spec, overrides)
    start()
    check_processes("train", flags, config)
    requirements.check(config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict(), workdir)
    from pretrain.training.train import train  # imported late: what is missing is named before its seconds

    return train(config, workdir, flags.fresh)


def prepare(flags, spec, overrides):
    from input_pipeline import pipeline, requirements

    config, workdir = resolve(flags, spec, overrides)
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    requirements.check(*sections, workdir)
    from pretrain.assemble import check_sizes, check_vocabulary  # imported late, as in train

    check_sizes(config)
    with held(workdir, "prepare", say, in_turn=True):
        accept = functools.partial(check_vocabulary, config)
        corpus = pipeline.prepare(*sections, workdir, report=say, accept=accept, read_all=True)
    rows = corpus.summary()
    if flags.format == "json":
        print(json.dumps(rows))
        return
    columns = ("split", "documents", "tokens", "bytes")
    show(f"token store of {workdir}", columns, [[row[name] for name in columns] for row in rows])


def describe(flags, spec, overrides):
    from pretrain.commands import describe

    if not flags.workdir:
        config = configs.load(spec or DEFAULT_CONFIG, overrides)
    elif not spec:
        config = configs.with_overrides(configs.saved(flags.workdir), overrides)
    else:
        raise UserError("--config and --workdir both say what is described; leave one out")
    describe.run(config, flags.format)


def evaluate(flags, spec, overrides):
    from pretrain.commands.evaluate import evaluate

    start()
    workdir = _given_workdir(flags)
    config = configs.saved(workdir)
    for key in ("every", "batches"):
        if f"evaluate.{key}" in dict(overrides):
            raise UserError(f"config.evaluate.{key} is for training alone; give --batches=N to score part of a split")
    if config.data.layout == "stream":  # in one lane every token has all the memory that there is before it
        overrides = [("evaluate.batch_size", "1"), *overrides]
    configs.with_overrides(config, overrides)
    check_processes("evaluate", flags, config)
    evaluate(config, workdir, flags)


def generate(flags, spec, overrides):
    from pretrain.commands.completion import complete
    from pretrain.commands.generate import generate

    start()
    workdir = _given_workdir(flags)
    config = configs.saved(workdir)
    check_processes("generate", flags, config)
    (complete if flags.complete else generate)(config, workdir, flags)


def _given_workdir(flags) -> str:
    if not flags.workdir:
        raise UserError(
            "--workdir is missing; give the folder of a `pretrain train` run, such as --workdir=runs/quickstart"
        )
    return flags.workdir
