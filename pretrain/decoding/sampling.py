"""Text from a model: greedy, sampled (temperature, top-k, nucleus) and beam search, with a cache or without.

A prompt is read once; after that the model sees one new token a step. Prompts of different length share a batch: they
are padded on the right, and each row goes on from its own last token. Lengths are rounded up to powers of two, so that
prompts of similar length share one compiled program; no token compiles anything.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from pretrain.costs import capacity
from pretrain.decoding import options
from pretrain.decoding.beam_search import NOTHING, check_penalty, search
from pretrain.decoding.reading import advance, begin_cached, begin_recomputing, for_tokens, known, reader
from pretrain.errors import UserError

MOST = options.OPTIONS["max_tokens"].default  # tokens that follow a prompt where nobody says how many


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
    """What follows each prompt: (new token ids, their log-probability in nats) in the order of `prompts`.

    params: the tree under "params". prompts: at least one id each. `max_tokens` of None are 100, or as many as the
    context leaves room for. The ids end with `end_id` where it came within those; None never ends. Only ids below
    `vocabulary` are chosen, since a model may have rows that stand for no token. `temperature` 0, or too small for
    float32, takes the likeliest token; above that it samples, a function of `seed` and of the prompt's index, from the
    `top_k` likeliest (0: all) and then from the smallest set that holds `top_p` of what is left (Holtzman et al. 2020).
    `beams` above 1 searches for the best log-probability / ((5 + length) / 6)^length_penalty (Wu et al. 2016, eq. 14),
    or as `normalisation` and `stopping` have it (`pretrain.decoding.beam_search`). With `beyond`, no more tokens are
    written than the source has, and so many more (Vaswani et al. 2017 have 50). Where one token is chosen at a time, logits of
    those that the prompt has or that were written are divided by `repetition_penalty`, and negative ones multiplied
    (Keskar et al. 2019, section 4.1). The log-probability is always the model's own, at
    temperature 1. `on_token(prompt's index, id)` hears of each token as it is chosen, of a beam search's at its end.
    `source` holds, by name, what a model reads besides tokens to follow from, such as an encoder's inputs: a row for
    each prompt. Uncached decoding recomputes everything for each token: the reference.

    Attention takes the path that serves: one that is named for training's rows may refuse prompts and caches.

    Raises UserError for options that cannot be, and for a prompt that leaves no room in the context.
    """
    model = reader(model)
    source = dict(source or {})
    if max_tokens is None:
        most = MOST if beyond is None else int(max(_read(source, beyond)))
        max_tokens = max(1, min(most, _room(model, max(map(len, prompts), default=0))))
    options.check(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        beams=beams,
        length_penalty=length_penalty,
        repetition_penalty=repetition_penalty,
        seed=seed,
        normalisation=normalisation,
        stopping=stopping,
    )
    _check(model, prompts, max_tokens, temperature, beams, length_penalty, normalisation, repetition_penalty)
    _check_source(model, source)
    limits = np.full(len(prompts), max_tokens, np.int32)
    if beyond is not None:
        limits = np.minimum(limits, _read(source, beyond))
    tokens, lengths, room = _pad(prompts, max_tokens, model.context)
    if cached:
        _, caches = begin_cached.eval_shape(model, params, tokens, lengths, room, source)
        remedy = "lower the number of prompts or of beams"
        capacity.check_decoding(model, caches, len(prompts), beams, jax.local_devices()[:1], remedy)
    begin = begin_cached if cached else begin_recomputing
    logits, carried = begin(model, params, tokens, lengths, room, source)
    params, carried = for_tokens(params, carried)
    end_id = -1 if end_id is None else end_id
    if beams > 1:
        how = {"length_penalty": length_penalty, "normalisation": normalisation, "stopping": stopping}
        ends = {"end_id": end_id, "vocabulary": vocabulary}
        found = search(model, params, logits, carried, limits, beams=beams, max_tokens=max_tokens, **how, **ends)
        results = [(ids[ids != NOTHING], float(nats)) for ids, nats in zip(*map(np.asarray, found), strict=True)]
        for row, (ids, _) in enumerate(results):
            for token in ids if on_token else ():
                on_token(row, int(token))
        return _probable(results)

    key = jax.random.key(seed)
    done, total = np.zeros(len(prompts), bool), np.zeros(len(prompts))
    rows: list[list[int]] = [[] for _ in prompts]
    smallest = float(np.finfo(np.float32).tiny)
    largest = 1 / smallest  # beyond, its reciprocal is 0
    sampling = (min(temperature, largest), top_p, top_k, temperature < smallest, top_p < 1)
    penalty = None if repetition_penalty == 1 else (_seen(tokens, lengths, logits.shape[-1]), repetition_penalty)
    for step in range(max_tokens):
        token, log_probability = _pick(logits, vocabulary, key, step, *sampling, penalty)
        if penalty:
            penalty = _with(penalty[0], token), repetition_penalty
        if step + 1 < max_tokens:  # queued before the host waits for the token
            logits, carried = advance(model, params, carried, token)
        for row, (one, nats) in enumerate(zip(np.asarray(token), np.asarray(log_probability), strict=True)):
            if not done[row]:
                rows[row].append(int(one))
                total[row] += nats
                done[row] = one == end_id or len(rows[row]) == limits[row]
                if on_token:
                    on_token(row, int(one))
        if done.all():
            break
    return _probable([(np.array(ids, np.int32), float(nats)) for ids, nats in zip(rows, total, strict=True)])


def _probable(results: list[tuple[np.ndarray, float]]) -> list[tuple[np.ndarray, float]]:
    """The results. Errors: UserError where they were picked by no probabilities."""
    if not all(math.isfinite(nats) for _, nats in results):
        raise UserError(
            "the model gives no probabilities (its logits are not finite numbers), so that it writes nothing; choose "
            "another checkpoint"
        )
    return results


def truncate(logits: jax.Array, top_k: int, top_p: jax.Array | float, nucleus: bool) -> jax.Array:
    """logits [..., V] with -inf at tokens that top-k, then nucleus sampling leaves out; ties with the last one stay.

    The nucleus is the smallest set of likeliest tokens whose probability reaches `top_p`.
    """
    if top_k:
        least = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if nucleus:
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

    `penalty` is which tokens [B, V] there are already, and the number by which their logits are made less.
    """
    log_probability = jax.nn.log_softmax(logits, axis=-1)
    logits = known(logits, vocabulary)
    if penalty is not None:
        seen, divisor = penalty
        logits = jnp.where(seen, jnp.where(logits > 0, logits / divisor, logits * divisor), logits)
    if greedy:
        token = jnp.argmax(logits, axis=-1)
    else:
        rows = jnp.arange(logits.shape[0])
        keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(key, row), step))(rows)
        logits -= logits.max(-1, keepdims=True)  # so that no quotient overflows
        token = jax.vmap(jax.random.categorical)(keys, truncate(logits / temperature, top_k, top_p, nucleus))
    return token, jnp.take_along_axis(log_probability, token[:, None], axis=-1)[:, 0]


def _seen(tokens: np.ndarray, lengths: np.ndarray, vocabulary: int) -> jax.Array:
    """Which tokens each prompt has: bool [B, V]."""
    seen = np.zeros((len(tokens), vocabulary), bool)
    for row, prompt, length in zip(seen, tokens, lengths, strict=True):
        row[prompt[:length][prompt[:length] < vocabulary]] = True  # a start symbol is never predicted
    return jnp.asarray(seen)


@jax.jit
def _with(seen, token):
    """The same with one more token [B] of each row."""
    return seen.at[jnp.arange(len(token)), token].set(True)


# Input


def _pad(prompts, max_tokens: int, context: int):
    """tokens [B, P], lengths [B], and the number of slots that prompt and continuation need, rounded up."""
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    width = min(_power_of_two(lengths.max()), context)
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens, lengths, min(_power_of_two(lengths.max() + max_tokens - 1), context)  # the last one is not read


def _read(source: Mapping[str, np.ndarray], beyond: int) -> np.ndarray:
    """How many tokens each row may write, where it is to be `beyond` those that are read at most."""
    if "input_segments" not in source:
        raise UserError(
            f"beyond={beyond} is counted from the text that an encoder reads, and this model has none; give max_tokens"
        )
    options.check(beyond=beyond)
    return (np.asarray(source["input_segments"]) > 0).sum(1) + beyond


def _power_of_two(least: int) -> int:
    return 1 << (int(least) - 1).bit_length()


def _check(model, prompts, max_tokens, temperature, beams, length_penalty, normalisation, repetition_penalty):
    if not len(prompts):
        raise UserError("there is no prompt; give at least one")
    if beams > 1 and temperature > 0:
        raise UserError(
            f"beams={beams} searches and temperature={temperature} samples; set beams to 1 or temperature to 0"
        )
    if beams > 1 and repetition_penalty != 1:
        raise UserError(
            f"beams={beams} searches for the likeliest text, and repetition_penalty={repetition_penalty:g} changes "
            "what is likely token by token; set beams or repetition_penalty to 1"
        )
    if beams > 1:
        check_penalty(length_penalty, normalisation, max_tokens)
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise UserError(f"prompt {index} has no token; start it with the tokenizer's beginning-of-text token")
        if max(prompt) >= model.reads or min(prompt) < 0:
            raise UserError(
                f"prompt {index} holds token {max(prompt)}, outside the model's vocabulary of {model.vocab_size}; "
                "use the tokenizer that the model was trained with"
            )
        room, count = _room(model, len(prompt)), len(prompt)
        told = f"prompt {index} ({count} token{'s' * (count > 1)}, a start token included)"
        if room < 1:
            raise UserError(f"{told} leaves no room in the model's context of {model.context}; shorten the prompt")
        if max_tokens > room:
            raise UserError(
                f"{told} and --max_tokens={max_tokens} exceed the model's context of {model.context}; lower that to at "
                f"most {room}, or shorten the prompt"
            )


def _check_source(model, source: Mapping[str, np.ndarray]) -> None:
    """Raises UserError where a text is longer than what an encoder reads."""
    for index, there in enumerate(np.asarray(source.get("input_segments", ()))):
        if (length := int((there > 0).sum())) > model.context:
            raise UserError(
                f"prompt {index} has {length} tokens to be read, which exceed the model's context of {model.context}; "
                "shorten the prompt"
            )


def _room(model, length: int) -> int:
    """How many tokens can follow a prompt of so many: the last one is not read."""
    return model.context + 1 - length


@partial(jax.jit, static_argnames=("model", "max_tokens"))
def greedy(
    model,
    params,
    tokens: jax.Array,
    source: Mapping[str, jax.Array],
    there: jax.Array,
    limits: jax.Array,
    *,
    max_tokens: int,
    end_id: int,
    vocabulary: int,
) -> jax.Array:
    """What each row writes, int32 [B, max_tokens]: the likeliest id of those below `vocabulary`, again and again.

    tokens: prompts [B, P], P + max_tokens - 1 of at most the model's context; source: what the model reads besides, by
    name; there: bool [B], rows of padding write nothing. A row ends with `end_id`, where it comes to that, or with its
    last of `limits` [B] tokens; behind it are NOTHING. In the scope of a mesh, rows and parameters may be split over
    it; what is written is whole everywhere.
    """
    rows, begun = tokens.shape
    model = reader(model)
    lengths = jnp.full((rows,), begun, jnp.int32)
    logits, carried = begin_cached(model, params, tokens, lengths, begun + max_tokens - 1, source)
    params, carried = for_tokens(params, carried)

    def unfinished(state):
        step, writing, *_ = state
        return (step < max_tokens) & writing.any()

    def write(state):
        step, writing, written, logits, carried = state
        token = jnp.argmax(known(logits, vocabulary), axis=-1).astype(jnp.int32)
        written = written.at[:, step].set(jnp.where(writing, token, NOTHING))
        writing &= (token != end_id) & (step + 1 < limits)
        return step + 1, writing, written, *advance(model, params, carried, token)

    nothing = jnp.full((rows, max_tokens), NOTHING, jnp.int32)
    _, _, written, _, _ = jax.lax.while_loop(unfinished, write, (0, there, nothing, logits, carried))
    return nn.with_logical_constraint(written, (None, None))
