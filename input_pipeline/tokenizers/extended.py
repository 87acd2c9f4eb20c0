"""Ids on top of a tokenizer's own: special ones that a task needs, and sentinels."""

from collections.abc import Iterable, Sequence

import numpy as np

from input_pipeline.tokenizers.base import Decoder, Tokenizer


def extended(tokenizer: Tokenizer, names: Sequence[str], sentinels: int) -> Tokenizer:
    """`tokenizer` with an id for each of `names`, then so many sentinels: the first of them is the highest id (T5)."""
    return Extended(tokenizer, names, sentinels) if names or sentinels else tokenizer


class Extended(Tokenizer):
    """A tokenizer that reads text as another does. The ids that it has besides stand for no text."""

    def __init__(self, base: Tokenizer, names: Sequence[str], sentinels: int):
        self._base, self._own = base, range(base.vocab_size, base.vocab_size + len(names) + sentinels)
        self.vocab_size = self._own.stop
        self.special = {**base.special, **dict(zip(names, self._own, strict=False))}
        self.sentinels = tuple(reversed(self._own[len(names) :])) or base.sentinels
        self.fingerprint = "+".join((base.fingerprint, *names, *[f"{sentinels} sentinels"] * bool(sentinels)))
        self.byte_lengths, self.continues = (
            None if values is None else np.append(values, np.zeros(len(self._own), values.dtype))
            for values in (base.byte_lengths, base.continues)
        )

    def encode(self, text: str) -> np.ndarray:
        return self._base.encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self._base.encode_all(texts)

    def decode(self, ids: Iterable[int]) -> str:
        return self._base.decode(self._others(ids))

    def decoder(self, before: Iterable[int] = (), text: str = "") -> Decoder:
        return _Decoder(self._base.decoder(self._others(before), text), self._own)

    def _others(self, ids: Iterable[int]) -> list[int]:
        return [i for i in map(int, ids) if i not in self._own]


class _Decoder(Decoder):
    def __init__(self, base: Decoder, nothing: range):
        self._base, self._nothing = base, nothing  # ids that give no text

    def feed(self, token: int) -> str:
        return "" if int(token) in self._nothing else self._base.feed(token)

    def finish(self) -> str:
        return self._base.finish()
