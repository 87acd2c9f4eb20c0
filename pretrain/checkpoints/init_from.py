"""`train.start_from`: the parameters of another run, taken by name, for a run that begins at update 0."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from input_pipeline import pipeline
from input_pipeline.away import persistently
from input_pipeline.remote import at
from input_pipeline.tokenizers import saved
from pretrain import config as configs
from pretrain.checkpoints import param_compat, restore
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.config import recipes
from pretrain.distributed.consensus import on_all_hosts, on_host0
from pretrain.errors import UserError, listed
from pretrain.workdir import POSITION, Workdir, real

SHOWN = 4  # parameters of a kind that a sentence names


@dataclasses.dataclass(frozen=True)
class Weights:
    """The parameters that a checkpoint of another run holds."""

    named: str  # what the user knows them by
    folder: Path  # of the checkpoint
    tokenizer: Path  # the folder of that run's
    model: Mapping  # that run's config.model
    whole: bool = False  # whether they are to be all that the model has

    def check(self, shapes, model: Mapping) -> None:
        """Raises UserError where the checkpoint is damaged, or cannot be begun with.

        `model` is the `config.model` of the run that begins, and `shapes` that model's own tree, of which the
        checkpoint must have a parameter, and its positions no other meaning.
        """
        if damage := restore.damage(self.folder):
            raise self._refused(f"checkpoint {self.folder.name} is damaged ({damage}); name another, as FOLDER@STEP")
        restore.tell_unsound(self.folder, restore.noted(self.folder))
        there, here = self._there(), _flat(shapes)
        common = _common(there, here)
        if not common:
            shown = [f"{name} {_shape(here[name])}" for name in sorted(here)][:SHOWN]
            raise self._refused(
                f"not one of its {len(there)} parameters has name and shape of one of this model's {len(here)}, such "
                f"as {', '.join(shown)}; give a run of a like config.model"
            )
        unlike = [name for name in {**here, **there} if name not in common]
        if self.whole and unlike:
            raise self._refused(f"config.model makes {listed(unlike, SHOWN)} otherwise; leave it as the folder has it")
        self.check_positions(shapes, model)

    def check_positions(self, shapes, model: Mapping) -> None:
        """Raises UserError where a table of positions has the name and shape of one in `shapes`, and other positions.

        `shapes` and `model` as of `check`.
        """
        offset = param_compat.unlike(self.model, model).get("position_offset")
        common = _common(self._there(), _flat(shapes)) if offset else []
        if tables := [name for name in common if name.endswith("positions")]:
            raise self._refused(
                f"config.model.position_offset is another ({offset}), by which rows of {listed(tables, SHOWN)} would "
                "be taken for other positions; give this run that one"
            )

    def trained_with(self) -> str:
        """The fingerprint of the other run's tokenizer. All processes call it."""
        return restore.read_data(self.folder).get("tokenizer", "unknown")

    def check_tokenizer(self, tokenizer, there: str) -> None:
        """Raises UserError unless the other run was trained with `tokenizer`; `there` is as `trained_with` says.

        Where ids mean other text, rows of a vocabulary's table would be taken for other words; nobody would notice.
        """
        here = tokenizer.fingerprint
        if there != here:
            remedy = (
                f"give this run that one, in a new --workdir: {saved.flags(self.tokenizer)}"
                if pipeline.has_tokenizer(self.tokenizer)
                else f"restore {self.tokenizer}"
            )
            raise self._refused(
                f"it was trained with another tokenizer (fingerprint {there} there, {here} here), whose ids mean other "
                f"text; {remedy}"
            )

    def taken(self, initial, model: Mapping) -> tuple[dict, str]:
        """(`initial` with the other run's parameters in the places of those of the same name and shape, a report).

        `initial` are arrays; each is read into the sharding and type of the one that it replaces, so that no host
        needs more than its devices' share. `model` is the `config.model` of the run that begins.
        """
        there, here = self._there(), _flat(initial)
        common = _common(there, here)
        wanted = {name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for name, a in here.items()}
        tree = {"params": unflatten_dict({name: wanted[name] for name in common}, sep="/")}
        read = _flat(restore.read_parts(self.folder, tree)["params"])
        return unflatten_dict(here | read, sep="/"), self._report(there, here, common, model)

    def _there(self) -> dict:
        """What describes each parameter of the checkpoint, by name."""
        return on_all_hosts(lambda: _flat(restore.stored(self.folder)["params"]))

    def _report(self, there: Mapping, here: Mapping, common: Sequence[str], model: Mapping) -> str:
        share = sum(here[name].size for name in common) / sum(leaf.size for leaf in here.values())
        unlike = [name for name in here if name in there and name not in common]
        parts = {
            "of another shape": [f"{n} ({_shape(there[n])} there, {_shape(here[n])} here)" for n in unlike],
            "new here": [name for name in here if name not in there],
            "left there": [name for name in there if name not in here],
        }
        said = [f"; {words}: {listed(names, SHOWN)}" for words, names in parts.items() if names]
        said.append(param_compat.warning(param_compat.unlike(self.model, model)))
        return (
            f"took {len(common)} of {len(here)} parameters ({share:.1%} of the numbers) from checkpoint "
            f"{self.folder.name} in {self.folder.parent}{''.join(said)}"
        )

    def _refused(self, why: str) -> UserError:
        return UserError(f"{self.named}: {why}")


def find(named: str, workdir: str, key: str = "train.start_from") -> Weights:
    """The checkpoint that `named`, the config's `key`, means: a run's folder (its newest), or that and @best or @STEP.

    `workdir` is the folder of the run that begins. Errors: UserError where there is no such checkpoint.
    """
    run, _, which = (named, "", "") if persistently(at(named).is_dir) else named.rpartition("@")
    run, which = (run, which) if run else (named, "")
    tokenizer = Workdir(run).folders.tokenizer
    named = f"config.{key} = {named}"

    def refused(why: str) -> UserError:
        return UserError(f"{named}: {why}")

    if real(run) == real(workdir):
        raise refused("that is the folder of this run itself; give another --workdir")
    configs.check_ours(run)
    checkpoints = Checkpoints(run)

    def choose() -> int:
        steps = checkpoints.steps()
        if not steps:
            there = f"there is no checkpoint in {checkpoints.folder}"
            raise refused(f"{there}; give the folder of a run that has one{_made_by(run)}")
        known = {"": steps[-1], "latest": steps[-1], "best": checkpoints.best()} | {str(step): step for step in steps}
        if known.get(which) is None:
            choices = [f"{run}@{word}" for word, step in known.items() if word and step is not None]
            raise refused(f"there is no such checkpoint; choose one of: {', '.join(choices)}")
        folder = checkpoints.workdir.checkpoint(known[which])
        if restore.is_whole(folder, POSITION):  # else it is refused as damaged
            configs.check_unedited(run, configs.saved(run), restore.made_with(restore.noted(folder)))
        return known[which]

    step = on_host0(choose)
    return Weights(named, checkpoints.workdir.checkpoint(step), tokenizer, configs.saved(run).model)


def _made_by(run: str) -> str:
    """The end of a sentence about a run that is not there: the command that makes it, where its name is a recipe's."""
    recipe, _, variant = Path(run).name.partition(":")
    command = f"pretrain train --config=configs/{recipe}.py:{variant}"
    return f", or make it first: `{command}`" if variant and recipe in recipes() else ""


def _flat(tree) -> dict:
    """Leaves by name, as people write it: layers/attention/query/kernel."""
    return flatten_dict(tree, sep="/")


def _common(there: Mapping, here: Mapping) -> list[str]:
    """Names that both have, with the same shape; types may differ."""
    return [name for name, leaf in here.items() if name in there and tuple(there[name].shape) == tuple(leaf.shape)]


def _shape(leaf) -> str:
    return f"[{', '.join(map(str, leaf.shape))}]"
