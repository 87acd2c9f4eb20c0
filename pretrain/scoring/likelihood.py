"""Log-probabilities of tokens behind their contexts, for decoders and encoder-decoders.

Rows of a group, such as the choices of a question, share the tokens that all of them begin with: these are read once,
into the caches of decoding, and each row reads its own tokens behind a copy. Logits are made of scored tokens alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from input_pipeline.examples.batches import bucket_lengths
from pretrain.decoding.forward import decoding_model, empty_cache, take

TOKENS = 8192  # of a batch, padding included, by default
CHUNK = 128  # scored tokens whose logits are in memory at once


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
    """Rows of one group in a batch: the first `shared` ids are equal, and their states are computed once."""

    numbers: list[int]  # of the rows
    shared: int


class Likelihood:
    """Scores rows with one model on a mesh; results do not depend on how rows are batched.

    source: a function from texts to an encoder's inputs by name, one row per text, or None.
    """

    def __init__(self, model, params, layout, source: Callable | None = None, tokens: int = TOKENS):
        self.model, self.params, self.layout = decoding_model(model), params, layout
        self.source, self.tokens = source, tokens
        self.lengths = bucket_lengths((), model.context)

    def __call__(self, groups: Sequence[Sequence[Row]]) -> list[list[Scored]]:
        """The scores of all rows, in order; ids that a row has no room for are cut (see `cut`)."""
        rows = [self.cut(row) for group in groups for row in group]
        scored: list[Scored | None] = [None] * len(rows)
        for batch, (before, after) in self._batches(groups, rows):
            for number, result in self._score_batch(rows, batch, before, after):
                scored[number] = result
        return by_group(groups, scored)

    def cut(self, row: Row) -> Row:
        """The row without its first ids, where it is longer than the context and the token that it predicts."""
        ids = row.ids[-(self.model.context + 1) :]
        return row._replace(ids=ids, start=max(1, row.start - (len(row.ids) - len(ids))))

    def _bucket(self, length: int) -> int:
        return next(size for size in self.lengths if size >= length) if length else 0

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

    def _batches(self, groups, rows: Sequence[Row]) -> Iterator[tuple[list[Part], tuple[int, int]]]:
        """(parts, (tokens of the shared ids, tokens of the rest)) of each batch; the longest come first."""

        def sizes(part: Part) -> tuple[int, int]:
            own = max(len(rows[i].ids) for i in part.numbers) - 1 - part.shared
            # Powers of two: a program is compiled for each pair of sizes, which takes seconds.
            return self._bucket(part.shared), min(self.model.context, max(16, 2 ** (own - 1).bit_length()))

        batch, number, shape = [], 0, (0, 0)
        for part in sorted(self._parts(groups, rows), key=sizes, reverse=True):
            before, after = sizes(part)
            most = batch_rows(self.layout, self.tokens, before + after)
            for first in range(0, len(part.numbers), most):
                some = part._replace(numbers=part.numbers[first : first + most])
                # Few rows may join a batch of longer ones.
                longest = max(before, shape[0]), max(after, shape[1])
                if batch and number + len(some.numbers) > batch_rows(self.layout, self.tokens, sum(longest)):
                    yield batch, shape
                    batch, number, longest = [], 0, (before, after)
                batch.append(some)
                number, shape = number + len(some.numbers), longest
        if batch:
            yield batch, shape

    def _score_batch(self, rows: Sequence[Row], parts: Sequence[Part], before: int, after: int):
        """(number, scores) of each row of a batch."""
        size = batch_rows(self.layout, self.tokens, before + after)
        few = self.layout.filled(min(size, 2 ** (len(parts) - 1).bit_length()))
        shared, lengths = np.zeros((few, before), np.int32), np.zeros(few, np.int32)
        own, owner = np.zeros((size, after), np.int32), np.zeros(size, np.int32)
        places, targets, numbers, counts = [], [], [], []
        for place, part in enumerate(parts):
            lengths[place] = part.shared
            shared[place, : part.shared] = rows[part.numbers[0]].ids[: part.shared]
            for number in part.numbers:
                ids, start, _ = rows[number]
                row = len(numbers)
                owner[row], own[row, : len(ids) - 1 - part.shared] = place, ids[part.shared : -1]
                places.append(row * after + np.arange(start - 1, len(ids) - 1) - part.shared)
                targets.append(ids[start:])
                numbers.append(number)
                counts.append(len(ids) - start)
        total = sum(counts)
        # A power of two of chunks, so that few programs are compiled.
        wanted = np.zeros((2, CHUNK * 2 ** (-(-total // CHUNK) - 1).bit_length()), np.int32)
        wanted[0, :total], wanted[1, :total] = np.concatenate(places), np.concatenate(targets)
        arrays = {"shared": shared, "lengths": lengths, "own": own, "owner": owner}
        source = self._sources([rows[part.numbers[0]].source for part in parts], few)
        room = min(self.model.context, before + after)
        with self.layout.scope():
            put = partial(put_rows, self.layout)
            log_probs, greedy = _score(self.model, self.params, put(arrays), put(source), wanted, room)
        ends = np.cumsum(counts)[:-1]
        log_probs, greedy = (np.split(np.asarray(one)[:total], ends) for one in (log_probs, greedy))
        return zip(numbers, map(Scored, log_probs, greedy), strict=True)

    def _sources(self, texts: Sequence[str], rows: int) -> dict[str, np.ndarray]:
        """Inputs of the encoder, padded to a bucket of length and `rows` rows."""
        if self.source is None:
            return {}
        inputs = [self.source([text]) for text in texts]
        longest = max(one["inputs"].shape[1] for one in inputs)
        found = {}
        for name in inputs[0]:
            # The beginning of a text that is longer than the context is cut.
            kept = [one[name][0, -self.model.context :] for one in inputs]
            found[name] = np.zeros((rows, self._bucket(min(longest, self.model.context))), np.int32)
            for place, values in enumerate(kept):
                found[name][place, : len(values)] = values
        # Rows of padding read one token, so that no softmax is over nothing.
        found["input_segments"][len(texts) :, 0] = 1
        return found


def batch_rows(layout, tokens: int, length: int) -> int:
    """Rows of a batch of about `tokens` tokens, `length` each: a power of two, rounded up to the devices."""
    return layout.filled(2 ** max(0, (tokens // length).bit_length() - 1))


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


# Compiled once for all scorers of a model: `run.score` in a loop compiles nothing again.
@partial(jax.jit, static_argnames=("model", "room"))
def _score(model, params, rows, source, wanted, room):
    """(log-probabilities, greedy) [n] of the `wanted` places and targets [2, n] among the rows' own tokens."""
    few, before = rows["shared"].shape
    carried = empty_cache(model, params["params"], source, few, room)
    if before:
        is_token = jnp.arange(before)[None] < rows["lengths"][:, None]
        output = model.apply(params, rows["shared"], segments=is_token.astype(jnp.int32), carried=carried)
        carried = output.carried
    carried = take(carried, rows["owner"])
    hidden = model.apply(params, rows["own"], carried=carried).hidden
    return token_scores(lambda states: model.apply(params, states, method="logits"), hidden, *wanted)


def token_scores(logits: Callable, hidden: jax.Array, places: jax.Array, targets: jax.Array):
    """(log-probabilities, greedy) [n] of `targets` [n] by the states [..., D] at flat `places` [n].

    n is a multiple of CHUNK.
    """
    states = hidden.reshape(-1, hidden.shape[-1])[places]

    def one(pair):
        states, targets = pair
        scores = jax.nn.log_softmax(logits(states).astype(jnp.float32))
        return jnp.take_along_axis(scores, targets[:, None], axis=1)[:, 0], jnp.argmax(scores, axis=1) == targets

    # Logits of all tokens at once would need V numbers each: 200 MB for 1,024 of GPT-2's.
    chunks = states.reshape(-1, CHUNK, states.shape[-1]), targets.reshape(-1, CHUNK)
    log_probs, greedy = jax.lax.map(one, chunks)
    # Replicated, so that every process can read them.
    return jax.lax.with_sharding_constraint((log_probs.reshape(-1), greedy.reshape(-1)), PartitionSpec())
