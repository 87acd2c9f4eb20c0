"""The program and its Python interface: `open`, `from_huggingface`, `to_huggingface` (docs/python.md).

`import pretrain` alone loads neither JAX nor Orbax.
"""


def open(workdir, step: str = "latest", devices=None):
    """Opens the run in a work folder as a `pretrain.run.Run`.

    `step` is a number ("120"), "latest" or "best"; parameters are sharded over `devices`, by default all. Errors: those
    of `pretrain.errors.USER_ERRORS`, for a folder that cannot be used.
    """
    from pretrain.run import Run

    return Run(str(workdir), str(step), devices)


def from_huggingface(folder, workdir, generator="", prepared=False):
    """Makes the work folder `workdir` from a model that Hugging Face's library saved; returns its config.

    `generator` is ELECTRA's second folder, where `folder` is the discriminator's; `prepared` means, for XLM's
    vocab.json, that texts are tokenized and cleaned by XLM's tools. Errors: those of `pretrain.errors.USER_ERRORS`.
    """
    from pretrain.interop.hf_import import import_folder

    return import_folder(str(folder), str(workdir), generator=str(generator), prepared=prepared)


def to_huggingface(workdir, folder, step: str = "latest", part: str = "", average: int = 1) -> int:
    """Makes `folder`, with a model card, for Hugging Face's library from a checkpoint; returns its step.

    `step` as in `open`, where "latest" requires a finished run; `part` chooses ELECTRA's discriminator (default) or
    generator; `average` > 1 takes the mean of that many checkpoints. Errors: those of `pretrain.errors.USER_ERRORS`.
    """
    from pretrain.interop.hf_export import export_folder

    return export_folder(str(workdir), str(folder), str(step), part=part, average=average)
