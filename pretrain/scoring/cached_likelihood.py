"""Likelihoods by the caches of decoding, for encoder-decoders and for decoders that take no `branches`.

The tokens that rows of a group share are read once into caches, and each row reads its own tokens behind a copy.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from input_pipeline.examples.batches import bucket_lengths
from pretrain.decoding.forward import empty_cache, take
from pretrain.scoring.likelihood import TOKENS, Likelihood, Part, Row, Wanted, batch_rows, put_rows, token_scores


class CachedLikelihood(Likelihood):
    """Scores rows with any model that generates text.

    source: of encoder-decoders, a function from texts to the encoder's inputs by name, one row per text.
    """

    def __init__(self, model, params, layout, source: Callable | None = None, tokens: int = TOKENS):
        super().__init__(model, params, layout, tokens)
        self.source, self.lengths = source, bucket_lengths((), model.context)

    def _score_all(self, rows, parts):
        for batch, (before, after) in self._batches(rows, parts):
            yield from self._score_batch(rows, batch, before, after)

    def _bucket(self, length: int) -> int:
        return next(size for size in self.lengths if size >= length) if length else 0

    def _batches(self, rows: Sequence[Row], parts: Sequence[Part]) -> Iterator[tuple[list[Part], tuple[int, int]]]:
        """(parts, (tokens of the shared ids, tokens of the rest)) of each batch; the longest come first."""

        def sizes(part: Part) -> tuple[int, int]:
            own = max(len(rows[i].ids) for i in part.numbers) - 1 - part.shared
            # Powers of two: a program is compiled for each pair of sizes, which takes seconds.
            return self._bucket(part.shared), min(self.model.context, max(16, 2 ** (own - 1).bit_length()))

        batch, number, shape = [], 0, (0, 0)
        for part in sorted(parts, key=sizes, reverse=True):
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
        wanted, numbers = Wanted(size * after), []
        for place, part in enumerate(parts):
            lengths[place] = part.shared
            shared[place, : part.shared] = rows[part.numbers[0]].ids[: part.shared]
            for number in part.numbers:
                ids, start, _ = rows[number]
                row = len(numbers)
                owner[row], own[row, : len(ids) - 1 - part.shared] = place, ids[part.shared : -1]
                wanted.add(row * after + np.arange(start - 1, len(ids) - 1) - part.shared, ids[start:])
                numbers.append(number)
        arrays = {"shared": shared, "lengths": lengths, "own": own, "owner": owner}
        source = self._sources([rows[part.numbers[0]].source for part in parts], few)
        room = min(self.model.context, before + after)
        with self.layout.scope():
            put = partial(put_rows, self.layout)
            found = _score(self.model, self.params, put(arrays), put(source), wanted.arrays(), room)
        return zip(numbers, wanted.split(*found), strict=True)

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


# Compiled once for all scorers of a model: `run.score` in a loop compiles nothing again.
@partial(jax.jit, static_argnames=("model", "room"))
def _score(model, params, rows, source, wanted, room):
    """(log-probabilities, greedy) [n] of `wanted` (places and targets [n], their number) among the rows' own."""
    few, before = rows["shared"].shape
    carried = empty_cache(model, params["params"], source, few, room)
    if before:
        is_token = jnp.arange(before)[None] < rows["lengths"][:, None]
        output = model.apply(params, rows["shared"], segments=is_token.astype(jnp.int32), carried=carried)
        carried = output.carried
    carried = take(carried, rows["owner"])
    hidden = model.apply(params, rows["own"], carried=carried).hidden
    return token_scores(lambda states: model.apply(params, states, method="logits"), hidden, *wanted)
