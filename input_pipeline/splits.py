"""What is scored was not trained on: the share of a text that is held out, and copies of texts, which are refused."""

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from input_pipeline.errors import DataError
from input_pipeline.sources.sources import Source
from input_pipeline.token_store.store import HELD, KEPT, NOTHING, Counts
from input_pipeline.token_store.stream import Stream

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
            specs = [part.source.spec for part in trained]
            beside = [part for part in held if part.source.spec in specs]
            if any(_copied(scored, parts) for parts in (trained, [*trained, *beside])):
                count = _counts(scored).documents
                both = f"the same {count:,} document{'s' * (count > 1)}"
                raise both_read(name, " + ".join(specs), " + ".join(part.source.spec for part in scored), both)


def _copied(scored: Sequence[Part], trained: Sequence[Part]) -> bool:
    """Whether both hold the same documents, of which there are some; read only where their counts agree."""
    counts = _counts(scored)
    return bool(counts.tokens) and counts == _counts(trained) and _documents(scored) == _documents(trained)


def _counts(parts: Sequence[Part]) -> Counts:
    return sum((part.stream.counts for part in parts), NOTHING)


def _documents(parts: Sequence[Part]) -> int:
    return sum(part.stream.content for part in parts)


def _check_twice(sources: Sequence[tuple[Part, Part]]) -> None:
    """Raises DataError where what is held out of a source is trained on as another's: files are held out by name.

    Sources are compared one by one and several together, as many as there is time for; read are those of equal counts.
    """
    some = itertools.chain.from_iterable(itertools.combinations(range(len(sources)), n) for n in range(1, len(sources)))
    of_counts = collections.defaultdict(list)
    for chosen in itertools.islice(some, COMPARED):
        of_counts[_counts([part for i in chosen for part in sources[i]])].append(chosen)
    for counts, alike in of_counts.items():
        same = collections.defaultdict(list)
        for chosen in _with_another(alike) if counts.tokens else ():
            same[_documents([part for i in chosen for part in sources[i]])].append(chosen)
        for copies in same.values():
            held = {chosen: _documents([sources[i][1] for i in chosen]) for chosen in copies}
            for one, other in itertools.islice(itertools.combinations(copies, 2), COMPARED):
                if set(one).isdisjoint(other) and held[one] != held[other]:
                    raise _twice([[sources[i][0].source.spec for i in chosen] for chosen in (one, other)], counts)


def _with_another(groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The groups that share nothing with some other one: what they have in common need not be read."""
    members = [sum(1 << i for i in group) for group in groups]
    return [group for group, own in zip(groups, members, strict=True) if not all(own & other for other in members)]


def _twice(specs: Sequence[Sequence[str]], counts: Counts) -> DataError:
    both = " and ".join(repr(" + ".join(some)) for some in specs)
    return DataError(
        f"data.train = {both} hold the same {counts.documents:,} documents, and what is held out of the one is trained "
        "on as the other's; name one of them (data.weights say how often a source is read)"
    )


def _each_and_all(parts: Sequence[Part]) -> list[Sequence[Part]]:
    return [*([part] for part in parts), *([parts] if len(parts) > 1 else [])]
