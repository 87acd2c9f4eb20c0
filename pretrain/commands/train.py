"""`pretrain train`: trains a config in a work folder, or goes on with the run that is there."""

from input_pipeline import validate
from pretrain import config as configs
from pretrain.commands.arguments import Train
from pretrain.commands.shared import check_processes, resolve
from pretrain.distributed.init import start
from pretrain.workdir import Workdir


def run(arguments: Train) -> int:
    """Trains; returns the exit code."""
    config, workdir = resolve(arguments)
    start()
    check_processes(arguments, config)
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    validate.check(*sections, Workdir(workdir).folders, configs.takes_tokenizer(config))
    from pretrain.training.trainer import train  # imported late: what is missing is named before its seconds

    return train(config, workdir, arguments.fresh)
