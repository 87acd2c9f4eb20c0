"""Decoding against brute force: every continuation of a tiny model is scored by a plain forward pass."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import decoder
from pretrain.decoding import forward, sampling
from pretrain.decoding.sampling import generate, truncate

GREEDY = {
    "max_tokens": 6,
    "temperature": 0.0,
    "length_penalty": 0.0,
    "end_id": None,
    "vocabulary": 5,
}
PROMPTS = [np.array([1, 2, 3, 4, 0]), np.array([3]), np.array([4, 4])]


@pytest.fixture(scope="module")
def tiny():
    """A decoder of 5 tokens with decided opinions, and its parameters."""
    fields = decoder()
    fields.update(vocab_size=5, context=16, layers=2, width=16, heads=2, ff=16, dtype="float32")
    model = models.build(fields.to_dict())
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    rng = np.random.default_rng(4)
    return model, jax.tree.map(lambda leaf: jnp.asarray(0.4 * rng.standard_normal(leaf.shape), leaf.dtype), shapes)


@pytest.fixture(scope="module")
def log_probabilities(tiny):
    """[T] tokens -> [T, V]: the model's opinion after each of them, from a plain forward pass."""
    model, params = tiny

    @jax.jit
    def forward(tokens):
        hidden = model.apply({"params": params}, tokens[None]).hidden
        return jax.nn.log_softmax(model.apply({"params": params}, hidden, method="logits"))[0]

    def of(tokens):  # causal, so what follows does not matter and one shape serves
        return np.asarray(forward(np.pad(tokens, (0, model.context - len(tokens)))))[: len(tokens)]

    return of


def nats(log_probabilities, prompt, ids):
    table = log_probabilities(np.concatenate([prompt, ids[:-1]]).astype(int))
    return sum(table[len(prompt) - 1 + i, token] for i, token in enumerate(ids))


@pytest.mark.parametrize("cached", [True, False])
def test_greedy_takes_the_likeliest(tiny, log_probabilities, cached):
    results = generate(*tiny, PROMPTS, **GREEDY, cached=cached)
    for prompt, (ids, total) in zip(PROMPTS, results, strict=True):
        expected = list(prompt)
        for _ in range(GREEDY["max_tokens"]):
            expected.append(int(log_probabilities(np.array(expected))[-1].argmax()))
        np.testing.assert_array_equal(ids, expected[len(prompt) :])
        assert total == pytest.approx(nats(log_probabilities, prompt, ids), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False])
def test_tokens_that_are_there_are_less_likely(tiny, log_probabilities, cached):
    """Their logits are divided by the penalty, or multiplied below 0; the log-probability is the model's own."""
    model, params = tiny
    prompts = [np.array([2, 4]), np.array([3]), np.array([4, 1])]
    results = generate(*tiny, prompts, **GREEDY, repetition_penalty=4.0, cached=cached)
    for prompt, (ids, total) in zip(prompts, results, strict=True):
        text = list(prompt)
        for _ in range(GREEDY["max_tokens"]):
            hidden = model.apply({"params": params}, np.array([text])).hidden
            logits = np.array(model.apply({"params": params}, hidden[0, -1], method="logits"))
            for token in set(text):
                logits[token] = logits[token] / 4.0 if logits[token] > 0 else logits[token] * 4.0
            text.append(int(logits.argmax()))
        np.testing.assert_array_equal(ids, text[len(prompt) :])
        assert total == pytest.approx(nats(log_probabilities, prompt, ids), abs=1e-4)
    plain = generate(*tiny, prompts, **GREEDY, cached=cached)
    differs = [list(ids) != list(others) for (ids, _), (others, _) in zip(results, plain, strict=True)]
    assert differs == [True, False, True]


@pytest.mark.parametrize("options", [{}, {"temperature": 5.0}, {"beams": 3}])
def test_rows_beyond_the_vocabulary_are_never_chosen(tiny, log_probabilities, options):
    free, bound = (generate(*tiny, PROMPTS, **{**GREEDY, **options, "vocabulary": size}) for size in (5, 2))
    assert max(max(ids) for ids, _ in free) > 1
    for prompt, (ids, total) in zip(PROMPTS, bound, strict=True):
        assert set(ids) <= {0, 1}
        assert total == pytest.approx(nats(log_probabilities, prompt, ids), abs=1e-4)


def test_a_prompt_and_its_continuation_fill_the_context(tiny, log_probabilities):
    """The last token is predicted from the last position, and not read."""
    for cached in (True, False):
        [(ids, total)] = generate(*tiny, PROMPTS[:1], **{**GREEDY, "max_tokens": 12}, cached=cached)
        assert len(ids) == 12
        assert total == pytest.approx(nats(log_probabilities, PROMPTS[0], ids), abs=1e-4)


def test_ends_at_the_end(tiny):
    free = generate(*tiny, PROMPTS, **GREEDY)
    end = int(free[0][0][2])
    for (ids, _), (whole, _) in zip(generate(*tiny, PROMPTS, **{**GREEDY, "end_id": end}), free, strict=True):
        cut = np.flatnonzero(whole == end)
        np.testing.assert_array_equal(ids, whole[: cut[0] + 1] if len(cut) else whole)


@pytest.mark.parametrize("beams", [1, 2])
def test_streams_every_token_in_order(tiny, beams):
    heard = {0: [], 1: [], 2: []}
    options = GREEDY | {"beams": beams, "on_token": lambda row, token: heard[row].append(token)}
    results = generate(*tiny, PROMPTS, **options)
    assert [heard[row] for row in range(3)] == [list(ids) for ids, _ in results]


@pytest.mark.parametrize(("length_penalty", "cached"), [(0.6, True), (2.0, True), (0.6, False)])
def test_wide_beam_finds_the_best_of_all(tiny, log_probabilities, length_penalty, cached):
    """More beams than there are beginnings make the search exhaustive; every continuation is scored here instead."""
    length, end = 3, 2
    options = {**GREEDY, "max_tokens": length, "beams": 40, "length_penalty": length_penalty, "end_id": end}
    results = generate(*tiny, PROMPTS, **options, cached=cached)
    for prompt, (ids, total) in zip(PROMPTS, results, strict=True):
        scores = {}
        for tokens in itertools.product(range(5), repeat=length):
            ended = tokens[: tokens.index(end) + 1] if end in tokens else tokens
            if ended not in scores:
                own = nats(log_probabilities, prompt, np.array(ended))
                scores[ended] = own / ((5 + len(ended)) / 6) ** length_penalty
        best = max(scores, key=scores.get)
        assert tuple(ids) == best
        assert total == pytest.approx(nats(log_probabilities, prompt, ids), abs=1e-4)


def test_narrow_beam_is_the_textbook_search(tiny, log_probabilities):
    """Two beams, no end: keep the two likeliest beginnings at every step."""
    [(ids, _)] = generate(*tiny, PROMPTS[:1], **{**GREEDY, "beams": 2})
    alive = [((), 0.0)]
    for _ in range(GREEDY["max_tokens"]):
        grown = []
        for tokens, score in alive:
            table = log_probabilities(np.concatenate([PROMPTS[0], np.array(tokens, int)]))[-1]
            grown += [((*tokens, token), score + table[token]) for token in range(5)]
        alive = sorted(grown, key=lambda pair: -pair[1])[:2]
    assert tuple(ids) == alive[0][0]


def allowed(logits, top_k, top_p):
    """The tokens that may be drawn, one at a time from the likeliest down."""
    order = np.argsort(-logits)
    if top_k:
        order = order[:top_k]
    probability = np.exp(logits[order]) / np.exp(logits[order]).sum()
    kept, mass = [], 0.0
    for token, p in zip(order, probability, strict=True):
        if mass >= top_p:
            break
        kept.append(int(token))
        mass += p
    return set(kept)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (1, 1.0), (4, 1.0), (0, 0.5), (0, 0.95), (6, 0.7), (99, 1e-6)])
def test_truncation(top_k, top_p):
    logits = np.random.default_rng(0).normal(size=(20, 12), scale=2).astype(np.float32)
    kept = np.isfinite(truncate(jnp.asarray(logits), top_k, top_p, top_p < 1))
    for row, mask in zip(logits.astype(np.float64), kept, strict=True):
        assert set(np.flatnonzero(mask)) == allowed(row, top_k, top_p)


def test_samples_follow_the_distribution(tiny, log_probabilities):
    """4,000 draws of one token: frequencies within 4 standard errors, and none outside the truncation."""
    count, prompt = 4000, np.array([1, 2, 3])
    options = {**GREEDY, "max_tokens": 1, "temperature": 0.7, "top_k": 4, "top_p": 0.9}
    results = generate(*tiny, [prompt] * count, **options)
    drawn = np.bincount([ids[0] for ids, _ in results], minlength=5) / count
    logits = log_probabilities(prompt)[-1] / 0.7
    kept = np.array([token in allowed(logits, 4, 0.9) for token in range(5)])
    expected = np.where(kept, np.exp(logits), 0) / np.exp(logits[kept]).sum()
    assert 2 <= kept.sum() < 5
    assert (np.abs(drawn - expected) <= 4 * np.sqrt(expected * (1 - expected) / count)).all()
    assert results[0][1] == pytest.approx(log_probabilities(prompt)[-1][results[0][0][0]], abs=1e-4)


def test_sampling_is_a_function_of_the_seed(tiny):
    options = {**GREEDY, "temperature": 1.0}
    first, again = generate(*tiny, PROMPTS, **options), generate(*tiny, PROMPTS, **options)
    other = generate(*tiny, PROMPTS, **{**options, "seed": 1})
    assert [list(ids) for ids, _ in first] == [list(ids) for ids, _ in again] != [list(ids) for ids, _ in other]
    uncached = generate(*tiny, PROMPTS, **options, cached=False)
    assert [list(ids) for ids, _ in first] == [list(ids) for ids, _ in uncached]


def test_nothing_compiles_per_token_or_per_call(tiny):
    generate(*tiny, [np.array([1, 2, 3])], **{**GREEDY, "max_tokens": 4})
    programs = forward.decode_step, forward.prefill, sampling._pick
    before = [program._cache_size() for program in programs]
    generate(*tiny, [np.array([4, 3, 2, 1])], **{**GREEDY, "max_tokens": 3})  # both fit 4 tokens of prompt, 8 in all
    assert before == [program._cache_size() for program in programs]


def test_numbers_beyond_float32(tiny):
    """The smallest leave the likeliest token: a logit divided by them is infinite. The largest leave all tokens."""
    greedy = generate(*tiny, PROMPTS, **GREEDY)
    for options in ({"temperature": 1e-40}, {"temperature": 1.0, "top_p": 1e-46}):
        for (expected, _), (ids, _) in zip(greedy, generate(*tiny, PROMPTS, **{**GREEDY, **options}), strict=True):
            np.testing.assert_array_equal(ids, expected)
    hot = generate(*tiny, PROMPTS, **{**GREEDY, "temperature": 1e39, "vocabulary": 3})
    assert all(set(ids) <= {0, 1, 2} for ids, _ in hot)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("changes", [{"remat": "full"}, {"remat": "dots", "scan": False}], ids=str)
def test_how_training_runs_the_layers_changes_nothing(tiny, changes, beams):
    model, params = tiny
    options = GREEDY | {"beams": beams}
    expected, found = (generate(one, params, PROMPTS, **options) for one in (model, model.clone(**changes)))
    for (ids, nats), (others, other) in zip(expected, found, strict=True):
        np.testing.assert_array_equal(ids, others)
        assert nats == pytest.approx(other, abs=1e-5)
