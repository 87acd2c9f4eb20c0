"""The model card of an exported folder, README.md, made from the work folder alone.

Its front matter is for Hugging Face's Hub (https://huggingface.co/docs/hub/model-cards).
"""

import dataclasses
import json
import shlex
from collections.abc import Container, Iterable, Iterator, Sequence

from ml_collections import ConfigDict

from pretrain import workdir
from pretrain.checkpoints import params_only, restore
from pretrain.interop.family import Family
from pretrain.metrics.goodput import read_rows
from pretrain.optimizers.schedules import keys_of_others
from pretrain.workdir import Workdir, real

FILE = "README.md"
# Sections of the config in the card; of some only these keys.
SECTIONS = {
    "model": ("kind", "layers", "width", "heads", "ff", "vocab_size", "context", "dtype"),
    "objective": (),
    "data": ("train", "weights", "validation", "holdout", "layout", "length"),
    "tokenizer": ("kind", "path"),
    "train": ("steps", "batch_size", "batch_ramp", "start_from", "label_smoothing"),
    "distill": (),
    "optimizer": (),
    "schedule": (),
}


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """Facts of the exported `folder`; `steps` are the averaged checkpoints, the chosen one last."""

    run: Workdir
    config: ConfigDict
    folder: str
    family: Family
    architecture: str  # class that loads it
    parameters: int
    entries: int  # of the tokenizer
    steps: Sequence[int]
    part: str = ""  # of a model that is several in Hugging Face
    modules: Container[str] = ()  # in the folder

    def render(self) -> str:
        """The text of the card."""
        # Imported weights have an objective in their config, but none trained them.
        objectives = () if self.untrained else (self.config.objective.kind,)
        tags = ["longhaul", self.family.model_type, *objectives]
        # Front matter is YAML, and a JSON string is one of YAML too.
        lines = ["---", 'library_name: "transformers"']
        lines += [f"pipeline_tag: {json.dumps(self.family.task)}"] if self.family.task else []
        lines += ["tags:", *(f"- {json.dumps(tag)}" for tag in tags), "---", ""]
        lines += [f"# {' '.join(self.config.name.split())}\n", self._summary()]
        lines.append(_table(("key of the config", "value"), self._facts()))
        if figures := self._figures():
            rows = ((name, f"{x:,}" if isinstance(x, int) else f"{x:.6g}") for name, x in figures.items())
            lines += [f"## Validation\n\nAfter {self.steps[-1]:,} updates.\n", _table(("measure", "value"), rows)]
        data = restore.read_data(self.run.checkpoint(self.steps[-1]))
        fingerprints = {name: data[name] for name in ("tokenizer", "text", "teacher") if name in data}
        lines += ["## Fingerprints\n", _table(("content", "fingerprint"), fingerprints.items())]
        return "\n".join([*lines, *self._use()])

    @property
    def untrained(self) -> bool:
        return restore.is_weights_only(self.run.checkpoint(self.steps[-1]))

    def _summary(self) -> str:
        part = f"the part {_code(self.part)} of " if self.part else ""
        entries = f"Its tokenizer has {self.entries:,} entries."
        model = f"A {_code(self.architecture)} of {self.parameters:,} parameters: {part}{_code(self.config.name)}"
        if self.untrained:
            notes = restore.read_notes(self.run.checkpoint(self.steps[-1]))
            random = ", ".join(_code(name) for name in notes.get(restore.UNTRAINED, ()) if name in self.modules)
            random = f" **Untrained, drawn from the seed:** {random}." if random else ""
            return f"{model}, imported weights that no update of Longhaul has changed. {entries}{random}\n"
        mean = "the mean of the weights after" if len(self.steps) > 1 else "after"
        steps = f"{mean} {' and '.join(f'{step:,}' for step in self.steps)} of {self.config.train.steps:,} updates"
        imported = restore.is_weights_only(self.run.checkpoint(params_only.STEP))
        start = " Training began with imported weights." if imported else ""
        return f"{model}, pretrained with Longhaul, {steps}. {entries}{start}\n"

    def _facts(self) -> Iterator[tuple[str, object]]:
        """(dotted key, value) of what was trained; of imported weights, only of the model and its tokenizer."""
        for section in ("model", "tokenizer") if self.untrained else SECTIONS:
            values = self.config[section].to_dict()
            if section == "distill" and not self.config.distill.teacher:
                continue
            for key in SECTIONS[section] or values:
                unused = (section, key) == ("data", "holdout") and self.config.data.validation
                unused = unused or (section == "schedule" and key in keys_of_others(values["kind"]))
                if not unused and values[key] not in ("", (), {}):
                    yield f"{section}.{key}", values[key]
        if not self.untrained:
            yield "seed", self.config.seed

    def _figures(self) -> dict[str, int | float]:
        """Validation figures of the checkpoint; {} if there are none, as for an average."""
        path = workdir.rows(self.run.metrics, "validation", ".jsonl")
        rows = read_rows(path) if path.is_file() and len(self.steps) == 1 else ()
        figures = {row.get("step"): row for row in rows}.get(self.steps[-1], {})
        return {key: value for key, value in figures.items() if key != "step" and type(value) in (int, float)}

    def _use(self) -> Iterator[str]:
        """Lines on how to load the model and how to make it again."""
        target = json.dumps(real(self.folder).name)
        export = ["pretrain", "export", "--workdir=RUN", "--folder=NEW", f"--step={self.steps[-1]}"]
        export += [f"--part={self.part}"] if self.part else []
        export += [f"--average={len(self.steps)}"] if len(self.steps) > 1 else []
        commands = [export] if self.untrained else [["pretrain", "train", "--workdir=RUN"], export]
        yield from ("## Use\n", "```python", f"from transformers import AutoTokenizer, {self.architecture}", "")
        yield f"tokenizer = AutoTokenizer.from_pretrained({target})"
        yield f"model = {self.architecture}.from_pretrained({target})"
        yield from (*self.family.usage(self.config), "```\n", "## Made by\n")
        name = _code(real(self.run.path).name)
        yield f"RUN is the run's folder, here {name}, whose `{workdir.CONFIG}` has the whole config.\n"
        yield from ("```", *map(shlex.join, commands), "```\n")


def _table(head: tuple[str, str], rows: Iterable[tuple[str, object]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {_code(key)} | {_code(value)} |" for key, value in rows), ""])


def _code(value) -> str:
    """A code span of Markdown, safe in a table."""
    text = " ".join(str(value).split())
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"
