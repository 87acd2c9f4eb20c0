"""The program: train, evaluate, generate, describe and prepare; and `open`, the way in from Python (docs/python.md)."""


def open(workdir, step: str = "latest", devices=None):
    """The run in the folder `workdir`, as a `pretrain.run.Run`: model, parameters, tokenizer, config, logits, text.

    `step` is a checkpoint's ("120"), "latest" or "best"; the parameters are split over `devices`, by default all that
    there are. Errors: UserError, ConfigError or DataError, in one sentence, where the folder cannot be used.
    """
    from pretrain.run import Run  # imported late: JAX takes seconds, and who imports `pretrain` may want but a part

    return Run(str(workdir), str(step), devices)
