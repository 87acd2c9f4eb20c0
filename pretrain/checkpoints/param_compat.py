"""Which fields of `config.model` say what parameters mean, where neither their names nor their shapes show it."""

from collections.abc import Mapping

# Fields that say how a model is run.
RUNNING = ("attention_path", "dtype", "param_dtype", "scan", "remat")
# How far its layers look: a pattern may change from run to run, as the length of rows may.
SEEING = ("attention", "context", "memory", "reuse", "same_length")
# Sizes, which the shapes of parameters show; 0 often stands for a size that another of them says.
SIZES = ("vocab_size", "cutoffs", "embed", "divisor", "types", "languages", "position_axes", "buckets")
SIZES += ("layers", "decoder_layers", "groups", "generator_size")
SIZES += ("width", "heads", "kv_heads", "head_size", "query_size", "ff")
HEADS = ("pair_head",)  # beside that of the tokens: what such a head has shows whether it is there
SHARING = ("layers", "groups")  # sizes that shapes do not show where layers share parameters


def says_what(name: str) -> bool:
    """Whether a field is no size and no further head, nor how a model is run, how far it looks, starts or drops."""
    starts = "init" in name.split("_") or name == "initialiser"
    return not (starts or name.startswith("dropout") or name in (*RUNNING, *SEEING, *SIZES, *HEADS))


def unlike(there: Mapping, here: Mapping) -> dict[str, str]:
    """{field that says what parameters mean, and differs between two models: what it is in both, in words}."""
    sharing = SHARING if there.get("groups") or here.get("groups") else ()
    known = (name for name in here if name in there and (says_what(name) or name in sharing))
    names = [name for name in known if there[name] != here[name]]
    return {name: f"{there[name]!r} there, {here[name]!r} here" for name in names}


def warning(unlike: Mapping[str, str]) -> str:
    """The end of a sentence about parameters that were taken over; empty where nothing is unlike."""
    fields = [f"{name} ({values})" for name, values in unlike.items()]
    return f"; config.model differs in {', '.join(fields)}: the parameters may mean something else" if fields else ""
