"""`pretrain train`: train a config in a work folder, or continue the run in it."""

from input_pipeline import validate
from pretrain import changes
from pretrain import config as configs
from pretrain.commands.arguments import Train
from pretrain.commands.shared import check_processes, resolve
from pretrain.distributed.init import start
from pretrain.workdir import Workdir


def run(arguments: Train) -> int:
    """Train; return the exit code."""
    config, workdir = resolve(arguments)
    allowed = changes.parse_allowed(arguments.allow, config)
    start()
    check_processes(arguments, config)
    sections = configs.data_section(config), config.tokenizer.to_dict(), config.objective.to_dict()
    sources = validate.check(*sections, Workdir(workdir).folders, configs.takes_tokenizer(config))
    if config.train.trials > 1:
        from pretrain.commands.trials import train_trials

        return train_trials(config, workdir, arguments.fresh, allowed)
    from pretrain.training.trainer import train  # late: mistakes in the data are reported before seconds of imports

    return train(config, workdir, arguments.fresh, sources, allowed)
