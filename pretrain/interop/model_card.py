"""The model card of an exported folder, README.md: what the model is and how it came to be, from its work folder alone.

Its front matter is what Hugging Face's Hub reads (https://huggingface.co/docs/hub/model-cards).
"""

import dataclasses
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from input_pipeline.away import passes
from input_pipeline.files import from_json
from pretrain import workdir
from pretrain.checkpoints import params_only, restore
from pretrain.interop.family import Family
from pretrain.workdir import Workdir, real

CARD = "README.md"
# Sections that say what a model is, what it learned, from what and how; of some only these keys.
TOLD = {
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
    """What went into a folder: the mean of the checkpoints `steps` of a run, the last of which was asked for."""

    family: Family
    architecture: str  # the class that loads it
    parameters: int
    entries: int  # of the tokenizer
    steps: Sequence[int]
    part: str = ""  # of a model that is several there


def card(here: Workdir, config: ConfigDict, folder: str, exported: Exported) -> str:
    """The card of the folder that is to be called `folder`. Errors: UserError where a checkpoint cannot be read."""
    step = exported.steps[-1]
    checkpoint = here.checkpoint(step)
    untrained = params_only.is_alone(checkpoint)
    parts = [
        _front_matter(exported, () if untrained else (config.objective.kind,)),
        f"# {' '.join(config.name.split())}\n",
        _what(here, config, exported, untrained),
        _table(("key of the config", "value"), _facts(config, untrained)),
    ]
    if len(exported.steps) == 1 and (figures := _figures(workdir.rows(here.metrics, "validation", ".jsonl"), step)):
        parts += [
            f"## Validation\n\nAfter {step:,} updates.\n",
            _table(("measure", "value"), ((name, _number(value)) for name, value in figures.items())),
        ]
    data = restore.read_data(checkpoint)
    prints = {name: data[name] for name in ("tokenizer", "text", "teacher") if name in data}
    parts += ["## Fingerprints\n", _table(("content", "fingerprint"), prints.items())]
    return "\n".join([*parts, _use(here, config, folder, exported)])


def _front_matter(exported: Exported, objectives: Iterable[str]) -> str:
    """YAML: strings as JSON has them, which are strings of YAML too."""
    tags = ["longhaul", exported.family.model_type, *objectives]
    lines = ["---", 'library_name: "transformers"']
    if exported.family.task:
        lines.append(f"pipeline_tag: {json.dumps(exported.family.task)}")
    return "\n".join([*lines, "tags:", *(f"- {json.dumps(tag)}" for tag in tags), "---", ""])


def _what(here: Workdir, config: ConfigDict, exported: Exported, untrained: bool) -> str:
    whose = f"the part {_code(exported.part)} of " if exported.part else ""
    read = f"Its tokenizer has {exported.entries:,} entries."
    what = f"A {_code(exported.architecture)} of {exported.parameters:,} parameters: {whose}{_code(config.name)}"
    if untrained:
        return f"{what}, imported weights that no update of Longhaul has changed. {read}\n"
    updates = " and ".join(f"{step:,}" for step in exported.steps)
    mean = "the mean of the weights after" if len(exported.steps) > 1 else "after"
    began = " Training began with imported weights." if params_only.is_alone(here.checkpoint(params_only.STEP)) else ""
    return f"{what}, pretrained with Longhaul, {mean} {updates} of {config.train.steps:,} updates. {read}{began}\n"


def _facts(config: ConfigDict, untrained: bool) -> Iterator[tuple[str, object]]:
    """(dotted key, value) of what there is to know of a run; of weights that it did not train, only what they are."""
    unused = {"data.holdout"} if config.data.validation else set()
    for section in ("model", "tokenizer") if untrained else TOLD:
        values = config[section].to_dict()
        if section == "distill" and not config.distill.teacher:
            continue
        for key in TOLD[section] or values:
            if f"{section}.{key}" not in unused and values[key] not in ("", (), {}):
                yield f"{section}.{key}", values[key]
    if not untrained:
        yield "seed", config.seed


def _figures(path: Path, step: int) -> dict[str, int | float]:
    """The validation figures of an update; {} where the file has none that can be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        if passes(error):
            raise
        return {}
    found = {}
    for line in lines:
        try:
            row = from_json(line)
        except ValueError:  # a line that a killed process left torn
            continue
        if isinstance(row, dict) and row.get("step") == step:
            found = row
    return {key: value for key, value in found.items() if key != "step" and type(value) in (int, float)}


def _use(here: Workdir, config: ConfigDict, folder: str, exported: Exported) -> str:
    """How it is loaded, and made again; folders by their last names, or RUN and NEW where any will do."""
    run, step = real(here.path).name, str(exported.steps[-1])
    where = json.dumps(real(folder).name)
    export = ["pretrain", "export", "--workdir=RUN", "--folder=NEW", f"--step={step}"]
    export += [f"--part={exported.part}"] if exported.part else []
    export += [f"--average={len(exported.steps)}"] if len(exported.steps) > 1 else []
    trained = [] if params_only.is_alone(here.checkpoint(int(step))) else [["pretrain", "train", "--workdir=RUN"]]
    return "\n".join(
        (
            "## Use\n",
            "```python",
            f"from transformers import AutoTokenizer, {exported.architecture}",
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({where})",
            f"model = {exported.architecture}.from_pretrained({where})",
            *exported.family.call(config),
            "```\n",
            "## Made by\n",
            f"RUN is the run's folder, here {_code(run)}, whose `{workdir.CONFIG}` has the whole config.\n",
            "```",
            *(shlex.join(command) for command in (*trained, export)),
            "```\n",
        )
    )


def _table(head: tuple[str, str], rows: Iterable[tuple[str, object]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {_code(key)} | {_code(value)} |" for key, value in rows), ""])


def _code(value) -> str:
    """A code span of Markdown that may stand in a table."""
    text = " ".join(str(value).split())
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
