"""What is scored was not trained on: the share of a text that is held out, and copies of texts, which are refused."""

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from input_pipeline.errors import DataError
from input_pipeline.sources.sources import Source
from input_pipeline.store.store import HELD, KEPT, NOTHING
from input_pipeline.store.stream import Stream

SPLITS = ("train", "validation", "test")
COMPARED = 10_000  # sources, and groups of them, that are looked at for copies of one another


class Part(NamedTuple):
    """One source's share of a split."""

    source: Source
    split: str  # of its store: kept or held
    holdout: float
    stream: Stream


def share_of(data: Mapping) -> float:
    """The share of data.train that is held out."""
    return 0.0 if data["validation"] else data["holdout"]


def check_apart(named: Mapping[str, Sequence[Source]]) -> None:
    """Raises DataError where what is trained on is scored too."""
    for name in set(named) - {"train"}:
        for source, scored in itertools.product(named["train"], named[name]):
            if both := source.shared(scored):
                raise both_read(name, source.spec, scored.spec, both)


def both_read(name: str, trained: str, scored: str, both: str) -> DataError:
    """The mistake of text that both sources have, in the files or documents that `both` names."""
    remedy = ", or leave it empty to hold out a share of data.train" if name == "validation" else ""
    return DataError(
        f"data.{name} = '{scored}' and data.train = '{trained}' both read {both}, so that text is scored that "
        f"was trained on; name other text{remedy}"
    )


def check_copies(splits: Mapping[str, Sequence[Part]]) -> None:
    """Raises DataError where what is scored holds the very documents of what is trained on, by another name.

    Sources are compared one by one and all together, with and without what is held out of them; those that text is
    held out of also with one another.
    """
    held = [part for part in splits.get("validation", ()) if part.split == HELD]
    _check_twice(list(zip(splits["train"], held, strict=True)) if held else [])
    for name in SPLITS[1:]:
        named = [part for part in splits.get(name, ()) if part.split == KEPT]
        for scored, trained in itertools.product(_each_and_all(named), _each_and_all(splits["train"])):
            copy, specs = _joined(scored), [part.source.spec for part in trained]
            beside = [part for part in held if part.source.spec in specs]
            if copy.tokens and any(copy.same_documents(_joined(parts)) for parts in (trained, [*trained, *beside])):
                count = copy.counts.documents
                both = f"the same {count:,} document{'s' * (count > 1)}"
                raise both_read(name, " + ".join(specs), " + ".join(part.source.spec for part in scored), both)


def _check_twice(sources: Sequence[tuple[Part, Part]]) -> None:
    """Raises DataError where what is held out of a source is trained on as another's: files are held out by name.

    Sources are compared one by one and several together, as many as there is time for; read are those of equal counts.
    """
    counts = [kept.stream.counts + held.stream.counts for kept, held in sources]
    some = itertools.chain.from_iterable(itertools.combinations(range(len(sources)), n) for n in range(1, len(sources)))
    of_counts = collections.defaultdict(list)
    for chosen in itertools.islice(some, COMPARED):
        of_counts[sum((counts[i] for i in chosen), NOTHING)].append(chosen)
    for one, other in itertools.chain.from_iterable(itertools.combinations(alike, 2) for alike in of_counts.values()):
        if not set(one).isdisjoint(other):
            continue
        whole, copy = (_joined([part for i in chosen for part in sources[i]]) for chosen in (one, other))
        held, also_held = (_joined([sources[i][1] for i in chosen]) for chosen in (one, other))
        if whole.tokens and whole.same_documents(copy) and not held.same_documents(also_held):
            specs = (" + ".join(sources[i][0].source.spec for i in chosen) for chosen in (one, other))
            raise DataError(
                f"data.train = {' and '.join(map(repr, specs))} hold the same {whole.counts.documents:,} documents, "
                "and what is held out of the one is trained on as the other's; name one of them (data.weights say how "
                "often a source is read)"
            )


def _each_and_all(parts: Sequence[Part]) -> list[Sequence[Part]]:
    return [*([part] for part in parts), *([parts] if len(parts) > 1 else [])]


def _joined(parts: Sequence[Part]) -> Stream:
    return Stream([shard for part in parts for shard in part.stream.shards])
