"""Text from a model: greedy, sampled (temperature, top-k, nucleus) and beam search, with a cache or without.

A prompt is read once; then the model reads one new token per step. Prompts of different lengths share a batch, padded
on the right; each row continues from its last token. Lengths are rounded up to powers of two, so that prompts of
similar length share one compiled program.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.decoding import options
from pretrain.decoding.beam_search import NOTHING, search
from pretrain.decoding.forward import (
    decode_step,
    decoding_model,
    mask_unused_ids,
    prefill,
    prefill_uncached,
    to_decoding_layout,
)
from pretrain.errors import UserError

MOST = options.OPTIONS["max_tokens"].default  # tokens after a prompt, by default


def generate(
    model,
    params,
    prompts: Sequence[np.ndarray],
    *,
    end_id: int | None,
    vocabulary: int,
    max_tokens: int | None = None,
    temperature: float = options.OPTIONS["temperature"].default,
    top_k: int = options.OPTIONS["top_k"].default,
    top_p: float = options.OPTIONS["top_p"].default,
    beams: int = options.OPTIONS["beams"].default,
    length_penalty: float = options.OPTIONS["length_penalty"].default,
    repetition_penalty: float = options.OPTIONS["repetition_penalty"].default,
    normalisation: str = options.CHOICES["normalisation"][0],
    stopping: str = options.CHOICES["stopping"][0],
    seed: int = options.OPTIONS["seed"].default,
    beyond: int | None = options.OPTIONS["beyond"].default,
    source: Mapping[str, np.ndarray] | None = None,
    cached: bool = True,
    on_token: Callable[[int, int], None] | None = None,
) -> list[tuple[np.ndarray, float]]:
    """Continues each prompt; returns (new token ids, their log-probability in nats) in the order of `prompts`.

    params: the tree under "params". prompts: at least one id each. source: the model's other inputs by name, such as an
    encoder's, one row per prompt. max_tokens: None means 100, or the room left in the context. beyond: at most that
    many tokens more than the source has (Vaswani et al. 2017 use 50). end_id: ends a text; None never does. vocabulary:
    only ids below it are chosen, since padded tables have rows without a token.

    temperature: 0 is greedy; above, samples depend on `seed` and the prompt's index alone, drawn from the `top_k`
    likeliest (0: all), then from the smallest set that holds `top_p` of their probability (Holtzman et al. 2020).
    repetition_penalty: divides positive logits of tokens in the text so far, multiplies negative ones (Keskar et al.
    2019, section 4.1). beams > 1: searches for the best log-probability / ((5 + length) / 6) ** length_penalty (Wu et
    al. 2016, eq. 14), or as `normalisation` and `stopping` say (`pretrain.decoding.beam_search`). The returned
    log-probability is the model's at temperature 1.

    cached=False recomputes everything for each token: the reference. on_token(prompt's index, id) is called for each
    chosen token; for beam search, at its end. Attention uses the first backend that supports prompts and caches.
    Errors: UserError for impossible options and for a prompt that fills the context.
    """
    model = decoding_model(model)
    source = dict(source or {})
    if max_tokens is None:
        most = MOST if beyond is None else int(max(_limits(source, beyond)))
        max_tokens = max(1, min(most, _room(model, max(map(len, prompts)))))
    how = {"beams": beams, "length_penalty": length_penalty, "normalisation": normalisation, "stopping": stopping}
    options.check(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, **how)
    options.check(repetition_penalty=repetition_penalty)
    if beams > 1 and (temperature > 0 or repetition_penalty != 1):
        raise UserError(f"beams={beams}: beam search excludes temperature and repetition_penalty. Set 0 and 1.")
    _check_lengths(model, prompts, source, max_tokens)
    limits = np.full(len(prompts), max_tokens, np.int32)
    if beyond is not None:
        limits = np.minimum(limits, _limits(source, beyond))
    # room: slots of the cache; prompt and continuation round up to a power of two, so few programs are compiled.
    tokens, lengths, room = _pad(prompts, max_tokens, model.context)
    begin = prefill if cached else prefill_uncached
    logits, carried = begin(model, params, tokens, lengths, room, source)
    params, carried = to_decoding_layout(params, carried)
    end_id = -1 if end_id is None else end_id
    if beams > 1:
        ends = {"max_tokens": max_tokens, "end_id": end_id, "vocabulary": vocabulary}
        found = search(model, params, logits, carried, limits, **how, **ends)
        results = [(ids[ids != NOTHING], float(nats)) for ids, nats in zip(*map(np.asarray, found), strict=True)]
        for row, (ids, _) in enumerate(results):
            for token in ids if on_token else ():
                on_token(row, int(token))
        return _check_finite(results)

    key = jax.random.key(seed)
    done, total = np.zeros(len(prompts), bool), np.zeros(len(prompts))
    rows: list[list[int]] = [[] for _ in prompts]
    # Below float32's smallest normal number (1.2e-38) the quotient logits / temperature would overflow.
    smallest = float(np.finfo(np.float32).tiny)
    largest = 1 / smallest  # beyond, its reciprocal is 0
    sampling = (min(temperature, largest), top_p, top_k, temperature < smallest, top_p < 1)
    penalty = (
        None if repetition_penalty == 1 else (_prompt_tokens(tokens, lengths, logits.shape[-1]), repetition_penalty)
    )
    # The next forward pass is dispatched before the host reads this token, so the device never waits.
    for step in range(max_tokens):
        token, log_probability = _pick(logits, vocabulary, key, step, *sampling, penalty)
        if penalty:
            penalty = _add_token(penalty[0], token), repetition_penalty
        if step + 1 < max_tokens:  # queued before the host waits for the token
            logits, carried = decode_step(model, params, carried, token)
        for row, (one, nats) in enumerate(zip(np.asarray(token), np.asarray(log_probability), strict=True)):
            if not done[row]:
                rows[row].append(int(one))
                total[row] += nats
                done[row] = one == end_id or len(rows[row]) == limits[row]
                if on_token:
                    on_token(row, int(one))
        if done.all():
            break
    return _check_finite([(np.array(ids, np.int32), float(nats)) for ids, nats in zip(rows, total, strict=True)])


def _check_finite(results: list[tuple[np.ndarray, float]]) -> list[tuple[np.ndarray, float]]:
    """The results. Errors: UserError if the logits were not finite."""
    if not all(math.isfinite(nats) for _, nats in results):
        raise UserError("--step: the checkpoint's logits are not finite. Choose another checkpoint.")
    return results


def truncate(logits: jax.Array, top_k: int, top_p: jax.Array | float, nucleus: bool) -> jax.Array:
    """Sets logits [..., V] outside top-k, then outside the nucleus, to -inf; ties with the last token stay.

    The nucleus is the smallest set of likeliest tokens whose probability reaches `top_p`.
    """
    if top_k:
        least = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    # After top-k: the nucleus is of the renormalised probabilities, as in Hugging Face's order of processors.
    if nucleus:
        # A token is in the nucleus if all likelier tokens together have less than top_p.
        ordered = -jnp.sort(-logits, axis=-1)
        probability = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(probability, axis=-1) - probability  # probability of all likelier tokens
        before = before.at[..., 0].set(-1.0)  # the likeliest stays, also where float32 rounds `top_p` to 0
        least = jnp.min(jnp.where(before < top_p, ordered, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits


@partial(jax.jit, static_argnames=("top_k", "greedy", "nucleus"))
def _pick(logits, vocabulary, key, step, temperature, top_p, top_k, greedy, nucleus, penalty=None):
    """The next token of each row [B] and its log-probability [B], from logits [B, V].

    `penalty`: the tokens in the text so far, bool [B, V], and the divisor of their logits.
    """
    # The model's own, before temperature, penalty and truncation.
    log_probability = jax.nn.log_softmax(logits, axis=-1)
    logits = mask_unused_ids(logits, vocabulary)
    if penalty is not None:
        seen, divisor = penalty
        logits = jnp.where(seen, jnp.where(logits > 0, logits / divisor, logits * divisor), logits)
    if greedy:
        token = jnp.argmax(logits, axis=-1)
    else:
        rows = jnp.arange(logits.shape[0])
        # One key per (prompt, step): a prompt samples the same text alone and in a batch.
        keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(key, row), step))(rows)
        logits -= logits.max(-1, keepdims=True)  # so that no quotient overflows
        token = jax.vmap(jax.random.categorical)(keys, truncate(logits / temperature, top_k, top_p, nucleus))
    return token, jnp.take_along_axis(log_probability, token[:, None], axis=-1)[:, 0]


def _prompt_tokens(tokens: np.ndarray, lengths: np.ndarray, vocabulary: int) -> jax.Array:
    """Tokens of each prompt: bool [B, V]."""
    seen = np.zeros((len(tokens), vocabulary), bool)
    for row, prompt, length in zip(seen, tokens, lengths, strict=True):
        row[prompt[:length][prompt[:length] < vocabulary]] = True  # a start symbol is never predicted
    return jnp.asarray(seen)


@jax.jit
def _add_token(seen, token):
    """`seen` with one more token [B] of each row."""
    return seen.at[jnp.arange(len(token)), token].set(True)


def _pad(prompts, max_tokens: int, context: int):
    """tokens [B, P], lengths [B], and the number of slots that prompt and continuation need, rounded up."""
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    # Padding is on the right and has segment 0, so no token attends to it.
    width = min(_power_of_two(lengths.max()), context)
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens, lengths, min(_power_of_two(lengths.max() + max_tokens - 1), context)  # the last one is not read


def _limits(source: Mapping[str, np.ndarray], beyond: int) -> np.ndarray:
    """Tokens that each row may write: those of its source plus `beyond`."""
    if "input_segments" not in source:
        raise UserError(f"beyond={beyond}: needs an encoder-decoder. Give max_tokens instead.")
    options.check(beyond=beyond)
    return (np.asarray(source["input_segments"]) > 0).sum(1) + beyond


def _power_of_two(least: int) -> int:
    return 1 << (int(least) - 1).bit_length()


def _check_lengths(model, prompts, source: Mapping[str, np.ndarray], max_tokens: int) -> None:
    """Raises UserError for a prompt without a token, and for texts that the context does not hold."""
    read = (np.asarray(source.get("input_segments", np.zeros((len(prompts), 0)))) > 0).sum(1)
    for index, (prompt, inputs) in enumerate(zip(prompts, read, strict=True)):
        if not len(prompt):
            raise UserError(f"prompt {index}: no token. Start it with the tokenizer's beginning-of-text token.")
        if max_tokens > _room(model, len(prompt)) or inputs > model.context:
            raise UserError(
                f"prompt {index}: {inputs or len(prompt)} tokens and max_tokens={max_tokens} exceed the context of "
                f"{model.context}. Shorten one of them."
            )


def _room(model, length: int) -> int:
    """Tokens that can follow a prompt of `length` tokens: the last one is never read."""
    return model.context + 1 - length
