"""Log-probabilities of tokens behind their contexts; logits are made of scored tokens alone.

Rows of a group, such as the choices of a question, share the tokens that all of them begin with, which are read once.
`PackedLikelihood` and `CachedLikelihood` differ in how.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from input_pipeline.packing.documents import best_fit
from pretrain.decoding.forward import decoding_model

TOKENS = 8192  # of a batch, padding included, by default
CHUNK = 128  # scored tokens whose logits are in memory at once
PACKED = 256  # tokens of a packed row, unless a text is longer; GPT-2 small takes as long with 128 and 512


class Row(NamedTuple):
    """Ids [n] of which those from `start` on are scored; `source` is the text of an encoder."""

    ids: np.ndarray
    start: int
    source: str = ""


class Scored(NamedTuple):
    """The log-probability of each scored token in nats, and whether it is the likeliest, [n]."""

    log_probs: np.ndarray
    greedy: np.ndarray


class Part(NamedTuple):
    """Rows of one group: the first `shared` ids are equal, and their states are computed once."""

    numbers: list[int]  # of the rows
    shared: int


class Likelihood:
    """Scores rows with one model on a mesh; results do not depend on how rows are batched."""

    def __init__(self, model, params, layout, tokens: int = TOKENS):
        self.model, self.params, self.layout, self.tokens = decoding_model(model), params, layout, tokens

    def __call__(self, groups: Sequence[Sequence[Row]]) -> list[list[Scored]]:
        """The scores of all rows, in order; ids that a row has no room for are cut (see `cut`)."""
        rows = [self.cut(row) for group in groups for row in group]
        scored: list[Scored | None] = [None] * len(rows)
        for number, result in self._score_all(rows, list(self._parts(groups, rows))):
            scored[number] = result
        return by_group(groups, scored)

    def _score_all(self, rows: Sequence[Row], parts: Sequence[Part]) -> Iterator[tuple[int, Scored]]:
        """(number, scores) of each row, in any order."""
        raise NotImplementedError

    def cut(self, row: Row) -> Row:
        """The row without its first ids, where it is longer than the context and the token that it predicts."""
        ids = row.ids[-(self.model.context + 1) :]
        return row._replace(ids=ids, start=max(1, row.start - (len(row.ids) - len(ids))))

    def _parts(self, groups, rows: Sequence[Row]) -> Iterator[Part]:
        """Rows that share what they read first: of a group, and from one source."""
        number = 0
        for group in groups:
            by_source: dict[str, list[int]] = {}
            for _ in group:
                by_source.setdefault(rows[number].source, []).append(number)
                number += 1
            for numbers in by_source.values():
                # The last id before a scored one is read with the row, since it gives the first prediction.
                least = min(rows[i].start for i in numbers) - 1
                first = rows[numbers[0]].ids[:least]
                same = [rows[i].ids[:least] == first for i in numbers]
                differs = np.flatnonzero(~np.all(same, axis=0))
                yield Part(numbers, int(differs[0]) if len(differs) else least)


class PackedLikelihood(Likelihood):
    """Packs groups into rows, for models that take `branches`: what rows share is followed by the rest of each.

    One program serves all batches of a call, and almost nothing is padding.
    """

    def _score_all(self, rows, parts):
        if not parts:
            return
        total = sum(self._size(rows, part) for part in parts)
        length = packed_length(max(len(row.ids) - 1 for row in rows), min(PACKED, total), self.model.context)
        parts = [one for part in parts for one in self._split(rows, part, length)]
        bins = best_fit([self._size(rows, part) for part in parts], length)
        size = even_rows(self.layout, len(bins), batch_rows(self.layout, self.tokens, length))
        for first in range(0, len(bins), size):
            some = [[parts[place] for place in row] for row in bins[first : first + size]]
            yield from self._score_batch(rows, some, size, length)

    def _size(self, rows, part: Part) -> int:
        """Tokens of a part in a row. The last of each of its rows is only predicted."""
        return part.shared + sum(len(rows[number].ids) - 1 - part.shared for number in part.numbers)

    def _split(self, rows, part: Part, length: int) -> Iterator[Part]:
        """Parts of at most `length` tokens; one row is never longer."""
        some: list[int] = []
        for number in part.numbers:
            if some and self._size(rows, part._replace(numbers=[*some, number])) > length:
                yield part._replace(numbers=some)
                some = []
            some.append(number)
        yield part._replace(numbers=some)

    def _score_batch(self, rows, packed: Sequence[Sequence[Part]], size: int, length: int):
        """(number, scores) of each row of a batch of `size` packed rows of `length` tokens."""
        arrays = {name: np.zeros((size, length), np.int32) for name in ("tokens", "positions", "segments", "branches")}
        wanted, numbers = Wanted(size * length), []
        for slot, parts in enumerate(packed):
            end = 0
            for segment, part in enumerate(parts, 1):
                # Branch 0 are the shared ids.
                pieces = [(0, 0, rows[part.numbers[0]].ids[: part.shared])]
                for branch, number in enumerate(part.numbers, 1):
                    ids, start, _ = rows[number]
                    pieces.append((branch, part.shared, ids[part.shared : -1]))
                    # The state of a token predicts the next one.
                    place = slot * length + end + sum(len(piece) for _, _, piece in pieces[:-1]) - part.shared
                    wanted.add(place + np.arange(start - 1, len(ids) - 1), ids[start:])
                    numbers.append(number)
                for branch, position, ids in pieces:
                    span = slot, slice(end, end + len(ids))
                    values = ids, position + np.arange(len(ids)), segment, branch
                    for name, one in zip(arrays, values, strict=True):
                        arrays[name][span] = one
                    end += len(ids)
        with self.layout.scope():
            found = _score_packed(self.model, self.params, put_rows(self.layout, arrays), *wanted.arrays())
        return zip(numbers, wanted.split(*found), strict=True)


@partial(jax.jit, static_argnames="model")
def _score_packed(model, params, rows, places, targets, count):
    """(log-probabilities, greedy) [n] of the first `count` of `targets` at flat `places` of the packed rows."""
    hidden = model.apply(params, **rows).hidden
    return token_scores(lambda states: model.apply(params, states, method="logits"), hidden, places, targets, count)


class Wanted:
    """The scored tokens of a batch: flat places of the states that predict them, and their ids; at most `most`."""

    def __init__(self, most: int):
        self.most, self._places, self._targets = -(-most // CHUNK) * CHUNK, [], []

    def add(self, places: np.ndarray, targets: np.ndarray) -> None:
        """Adds the tokens of one row."""
        self._places.append(places)
        self._targets.append(targets)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Places and targets, int32 [most] each, and how many count."""
        arrays = np.zeros((2, self.most), np.int32)
        total = sum(map(len, self._targets))
        arrays[:, :total] = np.concatenate(self._places), np.concatenate(self._targets)
        return *arrays, total

    def split(self, log_probs: jax.Array, greedy: jax.Array) -> list[Scored]:
        """The scores of each row, as `token_scores` has returned them."""
        ends = np.cumsum(list(map(len, self._targets)))
        return list(map(Scored, *(np.split(np.asarray(one)[: ends[-1]], ends[:-1]) for one in (log_probs, greedy))))


def batch_rows(layout, tokens: int, length: int) -> int:
    """Rows of a batch of about `tokens` tokens, `length` each: a power of two, rounded up to the devices."""
    return layout.filled(2 ** max(0, (tokens // length).bit_length() - 1))


def packed_length(longest: int, wanted: int, context: int) -> int:
    """Tokens of rows that texts share: a power of two for the longest text, and for `wanted`, up to the context."""
    return min(context, 2 ** (max(16, longest, wanted) - 1).bit_length())


def even_rows(layout, rows: int, most: int) -> int:
    """Rows of each batch, at most `most`, so that the last batch is about full.

    One batch has a power of two: calls in a loop are compiled for few sizes.
    """
    batches = -(-rows // most)
    return layout.filled(-(-rows // batches) if batches > 1 else min(most, 2 ** (rows - 1).bit_length()))


def by_group(groups: Sequence[Sequence], flat: Sequence) -> list[list]:
    """A value for each row of all groups, by group."""
    values = iter(flat)
    return [[next(values) for _ in group] for group in groups]


def put_rows(layout, arrays: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Arrays [rows, ...], the same on every process, split over the devices by row."""

    def one(array):
        sharding = layout.batch(array.shape, ("batch", *[None] * (array.ndim - 1)))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return {name: one(array) for name, array in arrays.items()}


def token_scores(logits: Callable, hidden: jax.Array, places: jax.Array, targets: jax.Array, count: jax.Array):
    """(log-probabilities, greedy) [n] of `targets` [n] by the states [..., D] at flat `places` [n]; the first `count`.

    n is a multiple of CHUNK.
    """
    states = hidden.reshape(-1, hidden.shape[-1])[places]

    # Logits of all tokens at once would need V numbers each: 200 MB for 1,024 of GPT-2's.
    def one(chunk, found):
        begin = chunk * CHUNK
        some, ids = (jax.lax.dynamic_slice_in_dim(array, begin, CHUNK) for array in (states, targets))
        scores = logits(some).astype(jnp.float32)
        own = jnp.take_along_axis(scores, ids[:, None], axis=1)
        log_probs = own[:, 0] - jax.nn.logsumexp(scores, axis=1)
        # As argmax has it, the first of equal ones; XLA's argmax on a CPU takes a quarter of the products' time.
        before = jnp.arange(scores.shape[1])[None] < ids[:, None]
        new = log_probs, ~jnp.any((scores > own) | ((scores == own) & before), axis=1)
        return tuple(jax.lax.dynamic_update_slice_in_dim(*pair, begin, 0) for pair in zip(found, new, strict=True))

    # Chunks of padding alone are left out.
    begun = jnp.zeros(targets.shape, jnp.float32), jnp.zeros(targets.shape, bool)
    found = jax.lax.fori_loop(0, -(-count // CHUNK), one, begun)
    # Replicated, so that every process can read them.
    return jax.lax.with_sharding_constraint(found, PartitionSpec())
