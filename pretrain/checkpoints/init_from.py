"""`train.start_from`: initial parameters from another run's checkpoint, matched by name and shape."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from input_pipeline import pipeline
from input_pipeline.tokenizers import store as tokenizer_store
from pretrain import changes
from pretrain import config as configs
from pretrain.checkpoints import integrity, restore
from pretrain.checkpoints.restore import Checkpoints
from pretrain.distributed.consensus import on_all_hosts, on_host0
from pretrain.errors import UserError, join_some
from pretrain.workdir import Workdir, real

SHOWN = 4  # parameters of a kind that a message names

# Fields of config.model that do not change the meaning of parameters: fields of the runtime,
RUNTIME = ("attention_path", "dtype", "param_dtype", "scan", "remat", "summary")
# the reach of attention, which may change with the length of rows,
RANGE = ("attention", "context", "memory", "reuse", "same_length")
# and sizes, which the shapes of parameters show.
SIZES = ("vocab_size", "cutoffs", "embed", "divisor", "types", "languages", "position_axes", "buckets")
SIZES += ("layers", "decoder_layers", "groups", "generator_size")
SIZES += ("lora", "lora_alpha", "lora_targets", "adapter", "mix")
SIZES += ("width", "heads", "kv_heads", "head_size", "query_size", "ff", "pair_head")
# Sizes that shapes do not show if layers share parameters.
SHARING = ("layers", "groups")


def changes_meaning(field: str) -> bool:
    """Whether a field of config.model changes what parameters of the same name and shape mean."""
    is_initializer = "init" in field.split("_") or field == "initialiser"
    return not (is_initializer or field.startswith("dropout") or field in (*RUNTIME, *RANGE, *SIZES))


def compare_models(there: Mapping, here: Mapping) -> dict[str, str]:
    """Fields that change the meaning of parameters and differ between two models, with both values in words."""
    sharing = SHARING if there.get("groups") or here.get("groups") else ()
    fields = [name for name in here if name in there and (changes_meaning(name) or name in sharing)]
    return {name: f"{there[name]!r} there, {here[name]!r} here" for name in fields if there[name] != here[name]}


def difference_warning(differences: Mapping[str, str]) -> str:
    """The end of a report about copied parameters; empty if the models do not differ."""
    fields = [f"{name} ({values})" for name, values in differences.items()]
    return f"; warning: config.model differs in {', '.join(fields)}" if fields else ""


def check_labels(there: Mapping, here: Mapping, where: str) -> None:
    """Raises UserError where two objectives have the same labels in another order, which one head cannot serve."""
    before, now = (tuple(one.get("labels", ())) for one in (there, here))
    if before != now and sorted(before) == sorted(now):
        raise UserError(f"{where}: objective.labels={now} are in another order than the run's {before}. Use that one.")


@dataclasses.dataclass(frozen=True)
class Weights:
    """The parameters in a checkpoint of another run."""

    label: str  # how messages name them
    folder: Path  # of the checkpoint
    tokenizer: Path  # folder of that run's tokenizer
    model: Mapping  # that run's config.model
    objective: Mapping = dataclasses.field(default_factory=dict)  # its config.objective
    complete: bool = False  # whether the model must have exactly these parameters

    def check(self, shapes, model: Mapping) -> None:
        """Raises UserError if the checkpoint is damaged or does not fit `model`, with parameters `shapes`."""
        restore.check_intact(self.folder)
        restore.warn_if_bad(self.folder, restore.read_notes(self.folder))
        there, here = self._metadata(), _flatten(shapes)
        common = _common_names(there, here)
        if not common:
            shown = [f"{name} {_shape(here[name])}" for name in sorted(here)][:SHOWN]
            raise UserError(f"{self.label}: none of its parameters fits this model's, such as {', '.join(shown)}.")
        different = [name for name in {**here, **there} if name not in common]
        if self.complete and different:
            shown = join_some(different, SHOWN)
            raise UserError(f"{self.label}: config.model changes {shown}. Leave it as the folder has it.")
        lora, alpha = self.model.get("lora"), self.model.get("lora_alpha")
        if lora and (lora, alpha) != (model["lora"], model["lora_alpha"]):
            raise UserError(
                f"{self.label}: has model.lora={lora} with lora_alpha={alpha}. Set both, or start from its export."
            )
        # Rows of a position table of the same shape would be taken for other positions.
        offset = compare_models(self.model, model).get("position_offset")
        if offset and any(name.endswith("positions") for name in common):
            raise UserError(f"{self.label}: config.model.position_offset differs ({offset}). Use that run's.")

    def tokenizer_fingerprint(self) -> str:
        """The fingerprint of the other run's tokenizer. All processes call it."""
        return restore.read_data(self.folder).get("tokenizer", "unknown")

    def check_tokenizer(self, tokenizer, there: str) -> None:
        """Raises UserError unless the other run's fingerprint `there` is that of `tokenizer`, so that ids agree."""
        if there != tokenizer.fingerprint:
            has_tokenizer = pipeline.has_tokenizer(self.tokenizer)
            remedy = tokenizer_store.flags(self.tokenizer) if has_tokenizer else f"the folder {self.tokenizer}"
            raise UserError(f"{self.label}: tokenizers differ ({there}, here {tokenizer.fingerprint}). Use {remedy}.")

    def load_into(self, initial, model: Mapping) -> tuple[dict, str]:
        """(`initial` with the other run's parameters where name and shape match, a report).

        Each is read into the sharding and type of the array that it replaces, so that a host holds its devices' shards
        only. `model` is the `config.model` of the run that starts.
        """
        there, here = self._metadata(), _flatten(initial)
        common = _common_names(there, here)
        wanted = {
            name: jax.ShapeDtypeStruct(here[name].shape, here[name].dtype, sharding=here[name].sharding)
            for name in common
        }
        params = restore.read_parts(self.folder, {"params": unflatten_dict(wanted, sep="/")})["params"]
        return unflatten_dict(here | _flatten(params), sep="/"), self._report(there, here, common, model)

    def base(self, frozen: Collection[str], params) -> restore.Base | None:
        """The checkpoint as the base of a run's `frozen` parameters: of those that it holds in the same type."""
        if not frozen:
            return None
        # A parameter of another type was cast when it was loaded: no other checkpoint has those bits.
        there, here = self._metadata(), _flatten(params)
        names = [
            name for name in _common_names(there, here) if name in frozen and there[name].dtype == here[name].dtype
        ]
        if not names:
            return None
        return restore.Base(self.folder, on_host0(lambda: integrity.fingerprint(self.folder)), tuple(names))

    def _metadata(self) -> dict:
        return on_all_hosts(lambda: _flatten(restore.read_metadata(self.folder)["params"]))

    def _report(self, there: Mapping, here: Mapping, common: Sequence[str], model: Mapping) -> str:
        share = sum(here[name].size for name in common) / sum(leaf.size for leaf in here.values())
        other = [name for name in here if name in there and name not in common]
        groups = {
            "other shape": [f"{name} ({_shape(there[name])} there, {_shape(here[name])} here)" for name in other],
            "initialised from the seed": [name for name in here if name not in there],
            "left out": [name for name in there if name not in here],
        }
        return (
            f"loaded {len(common)} of {len(here)} parameters ({share:.1%} of the values) from checkpoint "
            f"{self.folder.name} in {self.folder.parent}"
            + "".join(f"; {words}: {join_some(names, SHOWN)}" for words, names in groups.items() if names)
            + difference_warning(compare_models(self.model, model))
        )


def find_weights(name: str, workdir: str, key: str = "train.start_from") -> Weights:
    """The checkpoint that `name`, the value of the config's `key`, means: FOLDER (its newest), FOLDER@best or @STEP.

    `workdir` is the folder of the run that starts. Errors: UserError.
    """
    run, word = configs.run_and_step(name)
    if real(run) == real(workdir):
        raise UserError(f"config.{key}={name}: this run's own folder. Choose another --workdir.")
    config, checkpoints = configs.saved(run, f"config.{key}"), Checkpoints(run)
    folder = checkpoints.workdir.checkpoint(checkpoints.find(word, f"config.{key}"))
    changes.check_unedited(run, config, restore.saved_config(on_host0(lambda: restore.read_notes(folder))))
    return Weights(f"config.{key}={name}", folder, Workdir(run).folders.tokenizer, config.model, config.objective)


def _flatten(tree) -> dict:
    """Leaves by path, such as layers/attention/query/kernel."""
    return flatten_dict(tree, sep="/")


def _common_names(there: Mapping, here: Mapping) -> list[str]:
    """Names that both have with the same shape; types may differ."""
    return [name for name, leaf in here.items() if name in there and tuple(there[name].shape) == tuple(leaf.shape)]


def _shape(leaf) -> str:
    return f"[{', '.join(map(str, leaf.shape))}]"
