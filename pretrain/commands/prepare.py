"""`pretrain prepare`: trains the tokenizer and builds the token store of a config."""

import json

import models
from input_pipeline import pipeline, validate
from input_pipeline.token_store.build import beam_pipeline, processes
from pretrain import config as configs
from pretrain.commands.arguments import Prepare
from pretrain.commands.shared import resolve
from pretrain.distributed.init import print_on_host0
from pretrain.distributed.lock import hold_workdir
from pretrain.metrics.tables import show
from pretrain.workdir import Workdir


def run(arguments: Prepare) -> None:
    """Builds what is missing and prints a summary of each split; writes the config into an empty work folder."""
    workers = beam_pipeline(arguments.beam) if arguments.beam else processes(arguments.processes)
    config, workdir = resolve(arguments)
    sections = configs.data_section(config), config.tokenizer.to_dict(), config.objective.to_dict()
    folders = Workdir(workdir).folders
    sources = validate.check(*sections, folders, configs.takes_tokenizer(config))
    # Late: mistakes in the data are reported before seconds of imports.
    from pretrain.step.checks import check_config, check_model, check_vocabulary
    from pretrain.training.startup import check_same_run, find_tokenizer, save_config

    check_same_run(config, workdir)
    check_config(config)
    model = models.build(config.model.to_dict())
    check_model(model, config)

    def accept(tokenizer) -> None:
        check_vocabulary(model, tokenizer.vocab_size)
        save_config(config, workdir)  # before hours of tokenizing, so that --workdir alone continues

    with hold_workdir(workdir, "prepare", print_on_host0, queue=True):
        inherited = None if pipeline.has_tokenizer(folders.tokenizer) else find_tokenizer(config, workdir)
        how = {"report": print_on_host0, "accept": accept, "read_all": True, "inherited": inherited, "workers": workers}
        corpus = pipeline.prepare(*sections, folders, sources=sources, **how)
    rows = corpus.summary()
    if arguments.format == "json":
        for row in rows:
            print(json.dumps(row))
        return
    columns = ("split", "documents", "tokens", "bytes")
    show(f"token store of {workdir}", columns, [[row[name] for name in columns] for row in rows])
