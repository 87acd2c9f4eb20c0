"""The folder of a run: the one place that knows what lies where in it."""

import dataclasses
from pathlib import Path

from input_pipeline.files import replaced

CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class Workdir:
    """A run's folder, there or not. What the tokenizer's and the data's folders hold is `input_pipeline`'s."""

    name: str | Path  # as the user gives it

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / CONFIG

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def broken(self) -> Path:
        """Damaged checkpoints: among the others, where a rename reaches whatever disk they are on."""
        return self.checkpoints / "broken"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    @property
    def lock(self) -> Path:
        """Which process writes here, while one does."""
        return self.path / "lock"

    @property
    def earlier(self) -> Path:
        """The runs that `--fresh` put aside, each under its name."""
        return self.path / "earlier"

    def write_config(self, text: str) -> None:
        """Writes the resolved config, whole or not at all; the folder is made. Errors: OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        with replaced(self.config) as partial:
            partial.write_text(text, encoding="utf-8")
