"""The work folder's tokenizer: trained or copied in once, then read from there by every command."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from input_pipeline.away import persistently
from input_pipeline.errors import DataError
from input_pipeline.files import checksum, filled, locked, remove_partial, replaced, write_json, written_under
from input_pipeline.remote import at, local
from input_pipeline.sources.sources import Source
from input_pipeline.tokenizers import huggingface as huggingface_tokenizer
from input_pipeline.tokenizers import making, saved
from input_pipeline.tokenizers.base import Tokenizer
from input_pipeline.tokenizers.saved import BASE, CHECKSUM, FILES, LOAD, MADE, ROLES
from input_pipeline.tokenizers.settings import MADE_HERE, asked_for, check_named, trained_instead

KEPT_OF_BASE = ("kind", "unknown", "special", "sentinels", BASE, ROLES)
# Settings of a tokenizer that is taken from another run without being named.
TAKEN = ("kind", "path", "cased", "sentinels")


def make_folder(
    folder: Path,
    config: Mapping,
    named: Mapping[str, Sequence[Source]],
    holdout: float,
    report: Callable[[str], None],
    special: Sequence[str] = (),
    taken: Path | None = None,
    accept: Callable[[Tokenizer], None] = lambda tokenizer: None,
    roles: Mapping[str, str] | None = None,
) -> Tokenizer:
    """Makes the tokenizer that `config` asks for, if `folder` has none, and opens it.

    `named` are the sources of each split; symbols are counted in all of them, all else in what is trained on.
    `special` are the special ids that its task needs: a tokenizer made here gets those that its kind has not.
    `taken` is the folder of another run's tokenizer, which is taken where `config` names none. `accept` sees the
    tokenizer, and raises where it will not do; one of another run that does not is not kept.
    `roles` are tokens of the ready file that `config` names, by the special ids that they are.

    Several processes may call this at once: one works, the others wait. Errors: DataError if the folder's
    tokenizer was made from other settings, or has not the special ids.
    """
    asked, accepted = asked_for(config, named, holdout, special), False
    if not is_made(folder):
        waiting = partial(report, "waiting for the tokenizer")
        with written_under(folder, "--workdir"), locked(folder / "lock", waiting), filled(folder):
            if not is_made(folder):
                remove_partial(folder)
                other = _other(config, taken)
                made = _make(folder, config, _made_from(config, asked, other, roles), named, other, special, report)
                if accepted := other is not None:
                    accept(saved.opened(folder, made))
                write_json(folder / MADE, made)
    _check_same(folder, asked)
    opened = saved.open_folder(folder)
    _check_special(opened, special, config)
    if not accepted:
        accept(opened)
    return opened


def _made_from(config: Mapping, asked: Mapping, other: Path | None, roles: Mapping[str, str] | None) -> dict:
    """What is recorded of a tokenizer that is made as `asked`, or taken from the folder `other` of another run's."""
    made = dict(asked)
    if other:
        made |= {BASE: _base(other, config)}
        if not config["path"]:
            made = {name: made[name] for name in (*TAKEN, BASE) if name in made}
    else:
        check_named(config)
    return made | ({ROLES: dict(roles)} if roles else {})


def _make(
    folder: Path,
    config: Mapping,
    made: Mapping,
    named: Mapping[str, Sequence[Source]],
    other: Path | None,
    special: Sequence[str],
    report: Callable[[str], None],
) -> dict:
    """Makes the file of a tokenizer, and says what it is `made` from, its checksum included."""
    if config["kind"] == "bytes":
        return dict(made)
    file = folder / FILES[config["kind"]]
    with replaced(file) as partial_file:
        if other:
            report(f"taking the tokenizer in {other}")
        if other or config["path"]:
            ready = making.take(partial_file, config, made, other)
            _check_special(saved.completed(ready, made), special, config)
        else:
            making.train(partial_file, config, named, made["data.holdout"], report)
    if "vocab_size" in made:
        pieces = saved.load(local(file), made).vocab_size
        if pieces < made["vocab_size"]:
            report(f"the training text yields {pieces} pieces, not {made['vocab_size']}")
    return made | {CHECKSUM: checksum(file)}


def _check_same(folder: Path, asked: Mapping) -> None:
    """Raises DataError where the tokenizer in `folder` was made from other settings than are `asked` for."""
    was = saved.made(folder)
    if BASE in was and not was.get("path"):  # what one would be made from here is of no account
        asked = {name: asked[name] for name in TAKEN if name in asked}
    for name in {**asked, **was}:
        if name not in (CHECKSUM, BASE, ROLES) and asked.get(name) != was.get(name):
            raise DataError(
                f"{folder} holds a tokenizer made with {name} = {was.get(name)}, but the config says "
                f"{asked.get(name)}; set it back, choose another --workdir, or, if nothing was trained with it yet, "
                f"delete {folder}"
            )


def _other(config: Mapping, taken: Path | None) -> Path | None:
    """The folder of another run's tokenizer that `config` names, or that is `taken` where it names none."""
    if config["kind"] == "bytes":
        return None
    named = at(config["path"]).expanduser() if config["path"] else taken
    return _folder_of(named) if named else None


def _folder_of(path: Path) -> Path | None:
    """The folder of a run's tokenizer which `path` is, or of which it is the file; None where it is another file."""
    folder = path if persistently(path.is_dir) else path.parent
    ours = is_made(folder) and (path == folder or path.name in FILES.values())
    return folder if ours else None


def _base(other: Path, config: Mapping) -> dict:
    """What is needed of what the tokenizer in `other` was made from; DataError where `config` says another thing."""
    there = saved.made(other)
    for name in ("kind", "unknown"):
        if config[name] and config[name] != there.get(name, ""):
            raise DataError(
                f"tokenizer.{name} = '{config[name]}', but the tokenizer in {other} was made with {name} = "
                f"'{there.get(name, '')}'; set --config.tokenizer.{name}={there.get(name, '')}"
            )
    return {name: there[name] for name in KEPT_OF_BASE if name in there}


def _check_special(tokenizer: Tokenizer, needed: Sequence[str], config: Mapping) -> None:
    """Raises DataError where a ready file lacks a special id that the task needs."""
    lacking = [name for name in needed if name not in tokenizer.special]
    if lacking:
        raise DataError(
            f"config.objective needs a tokenizer with the special id{'s' * (len(lacking) > 1)} {', '.join(lacking)}, "
            f"which {saved.named(config)} has not; name a file that has, or train one: "
            f"--config.tokenizer.path= {trained_instead(config)}"
        )


def is_made(folder: Path) -> bool:
    """Whether a folder holds a tokenizer that was made to the end."""
    return persistently((folder / MADE).is_file)


def check(folder: Path, config: Mapping, taken: bool = False) -> None:
    """Raises DataError where the tokenizer's file or package is missing; what `folder` holds needs no file any more.

    `taken` as of `check_settings`.
    """
    kind, path = config["kind"], at(config["path"]).expanduser()
    if LOAD.get(kind) is huggingface_tokenizer.load:
        huggingface_tokenizer.library()
    if kind == "bytes" or not config["path"] or persistently(path.is_file) or _folder_of(path) or is_made(folder):
        return
    if taken:
        other = "take the other run's: --config.tokenizer.path="
    elif kind in MADE_HERE:
        other = "leave it empty to train one"
    else:
        other = f"train one: --config.tokenizer.path= {trained_instead(config)}"
    within = [name for name in ("tokenizer.json", "tokenizer.model", "spiece.model") if (path / name).is_file()]
    if within:
        raise DataError(
            f"tokenizer.path = '{path}' is a folder; name its file, {path / within[0]}"
            + (", with tokenizer.kind = huggingface" if within[0].endswith(".json") and kind != "huggingface" else "")
        )
    raise DataError(
        f"tokenizer.path = '{path}' is no file; correct it, or {other} (docs/data.md "
        "has commands that fetch the tokenizers of recipes)"
    )
