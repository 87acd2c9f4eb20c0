"""Weights & Biases: the rows of a run as a run there (extra `wandb`, `log.wandb`)."""

import secrets
from pathlib import Path

from input_pipeline.io import make_folder
from pretrain.errors import UserError
from pretrain.metrics.writer import Number
from pretrain.workdir import Workdir, write

ID = "wandb_id"  # in the folder of metrics, which --fresh moves


def load_wandb(project: str):
    """The package. Errors: UserError without it."""
    try:
        import wandb

        return wandb.init and wandb  # its own folder ./wandb imports as an empty package
    except (ImportError, AttributeError):
        raise UserError(f"config.log.wandb={project} needs the package wandb. Run pip install -e '.[wandb]'.") from None


class WandbRun:
    """A run there, continued by later starts: the work folder keeps its id.

    WANDB_MODE=offline writes to <workdir>/wandb, for `wandb sync`. Errors: UserError if the service refuses.
    """

    def __init__(self, config, workdir: str):
        here, project, wandb = Workdir(workdir), config.log.wandb, load_wandb(config.log.wandb)
        kept = here.metrics / ID
        if not kept.exists():
            make_folder(here.metrics)
            write(kept, secrets.token_hex(4).encode())
        try:
            self._run = wandb.init(
                project=project,
                id=kept.read_text(),
                name=Path(workdir).name,
                resume="allow",
                config=config.to_dict(),
                dir=None if here.remote else workdir,
                settings=wandb.Settings(console="off"),  # it would replace standard error
            )
        except wandb.Error as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            fix = "Run `wandb login`, or set WANDB_MODE=offline"
            raise UserError(f"config.log.wandb={project}: {reason}. {fix}.") from error

    def write(self, split: str, step: int, values: dict[str, Number]) -> None:
        """Log a row. Steps only rise there, so a row that a resumed run repeats is left out."""
        if step >= self._run.step:
            self._run.log({f"{split}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()
