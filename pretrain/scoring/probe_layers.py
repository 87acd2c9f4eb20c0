"""Probes of all layers of a model."""

from collections.abc import Sequence

import numpy as np

from pretrain.errors import UserError
from pretrain.scoring.hidden import hidden
from pretrain.scoring.inputs import read_input
from pretrain.scoring.probe import probe, probe_mix, words_with_states
from pretrain.scoring.probe_tasks import Items, items_of
from pretrain.scoring.reader import Reader


def read_parts(
    task: str, train: str, test: str, limit: int, seed: int, keys=("--train", "--test")
) -> tuple[Items, Items]:
    """The items of a task to train probes on, in an order drawn by `seed`, and to score; at most `limit` each, 0: all.

    Without `test` every fifth record is scored. Errors: UserError, DataError.
    """
    records = read_input(train, keys[0])
    scored = read_input(test, keys[1]) if test else records[4::5]
    trained = records if test else [one for n, one in enumerate(records) if n % 5 != 4]
    order = np.random.default_rng(seed).permutation(len(trained))[: limit or None]
    return items_of(task, [trained[n] for n in order], scored[: limit or None])


def probe_layers(
    reader: Reader,
    parts: tuple[Items, Items],
    *,
    layers: str = "all",
    shots: Sequence[str] = ("all",),
    control: bool = False,
    mix: bool = False,
    seed: int = 0,
    rank: int = 64,
    stack: str = "",
) -> tuple[list[dict], dict | None]:
    """(the scores of `probe` with their layer and shots, a row each; the scores of a mix of these layers, if asked).

    The mix has `weights` by layer, their `centre` of gravity, and `accuracy` or `spearman`. Errors: UserError.
    """
    train, test = parts
    if mix and train.kind == "tree":
        raise UserError("--mix: a mix of layers has no distances of trees. Choose --task=depth.")
    pool = "word" if train.per_word else "mean"
    states, other = (
        list(hidden(reader, reader.rows(part.texts, spans=part.per_word), layers, pool, stack)) for part in parts
    )
    numbers = list(range(states[0].shape[0])) if layers == "all" else [int(one) for one in layers.split(",")]
    rows = []
    for place, layer in enumerate(numbers):
        for given in shots:
            count = len(train.texts) if given == "all" else int(given)
            few = train._replace(**{name: getattr(train, name)[:count] for name in ("texts", "labels", "keep")})
            own, asked = [one[place] for one in states[:count]], [one[place] for one in other]
            rows.append({"layer": layer, "shots": given} | probe(few, test, own, asked, control, seed, rank))
    if not mix:
        return rows, None
    sides = []
    for part, found in ((train, states), (test, other)):
        if not train.per_word:
            sides.append((np.stack(found, axis=1), part.labels))
            continue
        by_layer = [words_with_states(part, [one[place] for one in found]) for place in range(len(numbers))]
        sides.append((np.stack([features for features, _, _ in by_layer]), by_layer[0][1]))
    (x, labels), (y, expected) = sides
    numeric = train.kind == "number"
    mixed = probe_mix(x, labels, y, expected, numeric, seed)
    name = "spearman" if numeric else "accuracy"
    return rows, {name: mixed.score, "weights": mixed.weights, "centre": mixed.centre(numbers)}
