"""The model card of an exported folder, README.md, made from the work folder alone.

Its front matter is for Hugging Face's Hub (https://huggingface.co/docs/hub/model-cards).
"""

import dataclasses
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from pretrain import workdir
from pretrain.checkpoints import params_only, restore
from pretrain.interop.family import Family
from pretrain.workdir import Workdir, real

FILE = "README.md"
# Sections of the config in the card; of some only these keys.
SECTIONS = {
    "model": ("kind", "layers", "width", "heads", "ff", "vocab_size", "context", "dtype"),
    "objective": (),
    "data": ("train", "weights", "validation", "holdout", "layout", "length"),
    "tokenizer": ("kind", "path"),
    "train": ("steps", "batch_size", "start_from", "label_smoothing"),
    "distill": (),
    "optimizer": (),
    "schedule": (),
}


@dataclasses.dataclass(frozen=True)
class Exported:
    """Facts of an exported folder; `steps` are the averaged checkpoints, the chosen one last."""

    family: Family
    architecture: str  # class that loads it
    parameters: int
    entries: int  # of the tokenizer
    steps: Sequence[int]
    part: str = ""  # of a model that is several in Hugging Face


def render(run: Workdir, config: ConfigDict, folder: str, exported: Exported) -> str:
    """The card of a folder named `folder`."""
    step = exported.steps[-1]
    checkpoint = run.checkpoint(step)
    untrained = restore.is_weights_only(checkpoint)
    # Imported weights have an objective in their config, but none trained them.
    parts = [
        _front_matter(exported, () if untrained else (config.objective.kind,)),
        f"# {' '.join(config.name.split())}\n",
        _summary(run, config, exported, untrained),
        _table(("key of the config", "value"), _facts(config, untrained)),
    ]
    # Figures were measured on single checkpoints, so an average has none.
    if len(exported.steps) == 1 and (figures := _figures(workdir.rows(run.metrics, "validation", ".jsonl"), step)):
        rows = ((name, f"{x:,}" if isinstance(x, int) else f"{x:.6g}") for name, x in figures.items())
        parts += [f"## Validation\n\nAfter {step:,} updates.\n", _table(("measure", "value"), rows)]
    data = restore.read_data(checkpoint)
    fingerprints = {name: data[name] for name in ("tokenizer", "text", "teacher") if name in data}
    parts += ["## Fingerprints\n", _table(("content", "fingerprint"), fingerprints.items())]
    return "\n".join([*parts, _use(run, config, folder, exported)])


def _front_matter(exported: Exported, objectives: Iterable[str]) -> str:
    """YAML; a JSON string is one of YAML too."""
    tags = ["longhaul", exported.family.model_type, *objectives]
    lines = ["---", 'library_name: "transformers"']
    if exported.family.task:
        lines.append(f"pipeline_tag: {json.dumps(exported.family.task)}")
    return "\n".join([*lines, "tags:", *(f"- {json.dumps(tag)}" for tag in tags), "---", ""])


def _summary(run: Workdir, config: ConfigDict, exported: Exported, untrained: bool) -> str:
    part = f"the part {_code(exported.part)} of " if exported.part else ""
    entries = f"Its tokenizer has {exported.entries:,} entries."
    model = f"A {_code(exported.architecture)} of {exported.parameters:,} parameters: {part}{_code(config.name)}"
    if untrained:
        return f"{model}, imported weights that no update of Longhaul has changed. {entries}\n"
    updates = " and ".join(f"{step:,}" for step in exported.steps)
    mean = "the mean of the weights after" if len(exported.steps) > 1 else "after"
    start = (
        " Training began with imported weights." if restore.is_weights_only(run.checkpoint(params_only.STEP)) else ""
    )
    return f"{model}, pretrained with Longhaul, {mean} {updates} of {config.train.steps:,} updates. {entries}{start}\n"


def _facts(config: ConfigDict, untrained: bool) -> Iterator[tuple[str, object]]:
    """(dotted key, value) of what was trained; of imported weights, only of the model and its tokenizer."""
    for section in ("model", "tokenizer") if untrained else SECTIONS:
        values = config[section].to_dict()
        if section == "distill" and not config.distill.teacher:
            continue
        for key in SECTIONS[section] or values:
            unused = (section, key) == ("data", "holdout") and config.data.validation
            if not unused and values[key] not in ("", (), {}):
                yield f"{section}.{key}", values[key]
    if not untrained:
        yield "seed", config.seed


def _figures(path: Path, step: int) -> dict[str, int | float]:
    """Validation figures of a step; {} if there are none."""
    if not path.is_file():
        return {}
    figures = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # a killed process can leave half a line
            continue
        if row.get("step") == step:
            figures = row
    return {key: value for key, value in figures.items() if key != "step" and type(value) in (int, float)}


def _use(run: Workdir, config: ConfigDict, folder: str, exported: Exported) -> str:
    """How to load the model and how to make it again."""
    name, step = real(run.path).name, str(exported.steps[-1])
    target = json.dumps(real(folder).name)
    export = ["pretrain", "export", "--workdir=RUN", "--folder=NEW", f"--step={step}"]
    export += [f"--part={exported.part}"] if exported.part else []
    export += [f"--average={len(exported.steps)}"] if len(exported.steps) > 1 else []
    train = [] if restore.is_weights_only(run.checkpoint(int(step))) else [["pretrain", "train", "--workdir=RUN"]]
    return "\n".join(
        (
            "## Use\n",
            "```python",
            f"from transformers import AutoTokenizer, {exported.architecture}",
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({target})",
            f"model = {exported.architecture}.from_pretrained({target})",
            *exported.family.usage(config),
            "```\n",
            "## Made by\n",
            f"RUN is the run's folder, here {_code(name)}, whose `{workdir.CONFIG}` has the whole config.\n",
            "```",
            *(shlex.join(command) for command in (*train, export)),
            "```\n",
        )
    )


def _table(head: tuple[str, str], rows: Iterable[tuple[str, object]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {_code(key)} | {_code(value)} |" for key, value in rows), ""])


def _code(value) -> str:
    """A code span of Markdown, safe in a table."""
    text = " ".join(str(value).split())
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"
