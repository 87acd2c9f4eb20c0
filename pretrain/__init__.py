"""The program, whose commands are modules of `commands`, and the ways in from Python.

`open` and commands are in docs/python.md, `from_huggingface` and `to_huggingface` in docs/huggingface.md.
"""


def open(workdir, step: str = "latest", devices=None):
    """The run in the folder `workdir`, as a `pretrain.run.Run`: model, parameters, tokenizer, config, logits, text.

    `step` is a checkpoint's ("120"), "latest" or "best"; the parameters are split over `devices`, by default all that
    there are. Errors: UserError, ConfigError or DataError, in one sentence, where the folder cannot be used.
    """
    from pretrain.run import Run  # imported late: JAX takes seconds, and who imports `pretrain` may want but a part

    return Run(str(workdir), str(step), devices)


def from_huggingface(folder, workdir, generator="", prepared=False):
    """Makes the work folder `workdir` of a model that Hugging Face's library saved in `folder`, and returns its config.

    `generator` is the other folder of ELECTRA, where `folder` is the discriminator's; `prepared` says of XLM's
    vocab.json that texts are split into words and cleaned as XLM's tools do it. Errors: UserError, DataError or
    ModelError, in one sentence, where the one cannot be read or the other is there.
    """
    from pretrain.interop.imports import import_folder

    return import_folder(str(folder), str(workdir), generator=str(generator), prepared=prepared)


def to_huggingface(workdir, folder, step: str = "latest", part: str = "", average: int = 1) -> int:
    """Makes `folder`, which Hugging Face's library loads, of a checkpoint of the run in `workdir`; returns its step.

    A model card, README.md, says what it is and how it was made.

    `step` as in `open`, but "latest" is to be that of a run at its end; `part` of ELECTRA is discriminator, which "" is
    too, or generator; `average` of more than 1 means the mean of so many checkpoints, that one and those before it.
    Errors: as there, and where the model has no like there.
    """
    from pretrain.interop.exports import export_folder

    return export_folder(str(workdir), str(folder), str(step), part=part, average=average)
