"""`pretrain prepare`: the tokenizer and the token store of a config, made before training needs them."""

import json

from input_pipeline import pipeline, requirements
from input_pipeline.token_store import beam
from input_pipeline.token_store.workers import processes
from pretrain import config as configs
from pretrain.commands.arguments import Prepare
from pretrain.commands.shared import resolve
from pretrain.distributed.init import say
from pretrain.distributed.lock import held
from pretrain.metrics.tables import show
from pretrain.workdir import Workdir


def run(arguments: Prepare) -> None:
    """Makes what is missing, and prints what is there of each split.

    A folder without a run is left with the config, which commands with --workdir alone take up.
    """
    workers = beam.pipeline(arguments.beam) if arguments.beam else processes(arguments.processes)
    config, workdir = resolve(arguments)
    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    folders = Workdir(workdir).folders
    requirements.check(*sections, folders, configs.takes_tokenizer(config))
    from pretrain.assemble import check_sizes, check_vocabulary  # imported late: what is missing is named before
    from pretrain.training.startup import check_own, leave_config, tokenizer_of_another

    check_own(config, workdir)
    check_sizes(config)

    def accept(tokenizer) -> None:
        check_vocabulary(config, tokenizer.vocab_size)
        leave_config(config, workdir)  # before the text is tokenised: this too goes on with --workdir alone

    with held(workdir, "prepare", say, in_turn=True):
        taken = None if pipeline.has_tokenizer(folders.tokenizer) else tokenizer_of_another(config, workdir)
        how = {"report": say, "accept": accept, "read_all": True, "taken": taken, "workers": workers}
        corpus = pipeline.prepare(*sections, folders, **how)
    rows = corpus.summary()
    if arguments.format == "json":
        for row in rows:
            print(json.dumps(row))
        return
    columns = ("split", "documents", "tokens", "bytes")
    show(f"token store of {workdir}", columns, [[row[name] for name in columns] for row in rows])
