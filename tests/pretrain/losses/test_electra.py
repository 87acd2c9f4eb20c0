"""ELECTRA's losses against all logits at once; what is sampled, and who learns from what."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from input_pipeline.batch_spec import empty
from pretrain import losses
from pretrain.losses.cross_entropy import cross_entropy
from pretrain.losses.electra import copy_cross_entropy
from pretrain.losses.objective import BoundModel
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import init_state

ROWS, LENGTH, VOCABULARY = 4, 12, 23


def small(**changes):
    config = common.base()
    config.model, config.objective = common.replaced_tokens(), common.replaced()
    config.model.update(vocab_size=VOCABULARY, context=LENGTH, layers=1, width=8, heads=2, ff=12, embed=6)
    config.model.update(dtype="float32", attention_path="xla", init_std=0.5, generator_size=0.5, dropout=0.0)
    config.model.dropout_attention = 0.0
    config.data.update(layout="packed", length=LENGTH)
    config.train.batch_size = ROWS
    for key, value in changes.items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def drawn_batch(spec):
    draw = np.random.default_rng(0)
    batch = empty(spec.features(ROWS, LENGTH)) | {"row": np.arange(ROWS, dtype=np.int32)}
    batch["segments"][:] = np.arange(LENGTH) < np.array([[12], [9], [5], [12]])
    batch["positions"][:] = np.arange(LENGTH)
    batch["originals"][:] = draw.integers(5, VOCABULARY, (ROWS, LENGTH)) * batch["segments"]
    batch["slots"][:, 0], batch["weights"][:, 0] = draw.integers(0, 5, ROWS), 1
    np.put_along_axis(batch["chosen"], batch["slots"][:, :1], True, axis=1)
    batch["tokens"][:] = np.where(batch["chosen"], 4, batch["originals"])
    batch["targets"][:] = np.take_along_axis(batch["originals"], batch["slots"], 1)
    batch["token_weights"][:] = batch["segments"]
    batch["draw"][:] = [3, 9, 1 << 30, 4]
    return batch


@functools.cache
def made(head="replaced"):
    spec = TrainSpec.build_abstract(small(model__head=head))
    return spec, initial(spec), drawn_batch(spec)


def initial(spec):
    return jax.jit(lambda: init_state(spec, 0, ROWS).params)()


def scored(spec, params, batch, key=None):
    return spec.objective.score(BoundModel(spec.model, params, spec.inputs), batch, {}, key)[0]


def gradients(spec, params, batch, term):
    return jax.jit(jax.grad(lambda params: scored(spec, params, batch)[term]))(params)


def drawn_of(hidden, matrix, bias, keys, places, **options):
    """What is drawn beside a loss."""
    targets, weights = jnp.zeros(places.shape, jnp.int32), jnp.ones(places.shape)
    return cross_entropy(hidden, matrix, bias, targets, weights, draws=(keys, jnp.asarray(places)), **options)[-1]


@pytest.mark.parametrize("vocab", [7, 600])  # less than a block of ids, and three
def test_sample_ids_follow_the_softmax(vocab):
    rng = np.random.default_rng(0)
    matrix, bias = rng.standard_normal((vocab, 5)), rng.standard_normal(vocab)
    bias[vocab // 2 :: 2] = -np.inf
    hidden = np.repeat(rng.standard_normal((1, 1, 5)), 64, 1).repeat(500, 0)
    keys, places = jax.random.split(jax.random.key(1), 500), np.tile(np.arange(64), (500, 1))
    found = drawn_of(*(jnp.asarray(x, jnp.float32) for x in (hidden, matrix, bias)), keys, places)
    expected = np.asarray(jax.nn.softmax(matrix @ hidden[0, 0] + bias)) * found.size
    counts = np.bincount(np.asarray(found).ravel(), minlength=vocab)
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


@pytest.mark.slow
def test_sample_ids_depend_on_key_and_place():
    rng = np.random.default_rng(0)
    hidden, matrix = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((3, 8, 5), (40, 5)))
    keys, places = jax.random.split(jax.random.key(1), 3), jnp.asarray(rng.integers(0, 99, (3, 8)))
    hidden, places = hidden.at[:, 5].set(hidden[:, 2]), places.at[:, 5].set(places[:, 2])
    whole = drawn_of(hidden, matrix, None, keys, places)
    np.testing.assert_array_equal(whole[:, 5], whole[:, 2])  # two slots of one place
    np.testing.assert_array_equal(drawn_of(hidden, matrix, None, keys, places, chunk=6), whole)
    odd = drawn_of(hidden[:, :7], matrix, None, keys, places[:, :7], chunk=15)  # in two chunks of four, and a zero
    np.testing.assert_array_equal(odd, whole[:, :7])
    np.testing.assert_array_equal(drawn_of(hidden[1:], matrix, None, keys[1:], places[1:]), whole[1:])


def test_copy_cross_entropy():
    rng = np.random.default_rng(0)
    hidden, matrix, bias, gates = (
        jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((2, 6, 5), (9, 5), (9,), (2, 6))
    )
    read, targets = rng.integers(0, 9, (2, 2, 6))
    read = np.where(rng.random((2, 6)) < 0.5, read, targets)
    weights = jnp.asarray(rng.random((2, 6)), jnp.float32)

    def dense(hidden, matrix, bias, gates):
        gate = jax.nn.sigmoid(gates)[..., None]
        mixed = gate * jax.nn.one_hot(read, 9) + (1 - gate) * jax.nn.softmax(hidden @ matrix.T + bias[None, None])
        right = jnp.argmax(mixed, -1) == targets
        loss = -jnp.sum(weights * jnp.log(jnp.take_along_axis(mixed, targets[..., None], -1)[..., 0]))
        return loss, jnp.sum(weights * right)

    def chunked(hidden, matrix, bias, gates):
        return copy_cross_entropy(hidden, matrix, bias, gates, read, targets, weights, chunk=4)

    given = hidden, matrix, bias, gates
    for one, other in zip(chunked(*given), dense(*given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    gradients = [jax.grad(lambda *a, f=f: f(*a)[0], argnums=(0, 1, 2, 3))(*given) for f in (chunked, dense)]
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_discriminator_terms():
    spec, params, batch = made()
    given = {name: batch[name] for name in ("positions", "segments")}

    @jax.jit
    def watched(params):
        """(sums, what each model has read, the discriminator's logits)."""
        seen, model = {}, spec.model.bind({"params": params})

        class Watched(BoundModel):
            def __call__(self, batch, carried, key, method="__call__"):
                seen[method] = batch["tokens"]
                return super().__call__(batch, carried, key, method)

        sums, _ = spec.objective.score(Watched(spec.model, params, spec.inputs), batch, {}, None)
        return sums, seen, model.replaced_logits(model(seen["__call__"], **given).hidden)

    sums, seen, logits = jax.tree.map(np.asarray, watched(params))
    np.testing.assert_array_equal(seen["generate"], batch["tokens"])
    read, real = seen["__call__"], batch["token_weights"] > 0
    assert (read == batch["originals"])[~batch["chosen"]].all() and 4 not in batch["originals"]
    replaced = read != batch["originals"]
    assert 0 < replaced[real].sum() <= batch["chosen"].sum()
    each = np.logaddexp(0, np.where(replaced, -logits, logits))[real]
    assert float(sums["rtd"]) == pytest.approx(each.sum(), rel=1e-5)
    found = {name: float(sums[name]) for name in ("replaced", "suspected", "found", "rtd_accuracy")}
    told = logits > 0
    counts = replaced, told, told & replaced, told == replaced
    assert found == dict(zip(found, [which[real].sum() for which in counts], strict=True))


def test_generator_has_no_gradient_of_discriminator():
    spec, params, batch = made()
    gradient = gradients(spec, params, batch, "rtd")
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient["generator"]))
    assert np.abs(gradient["tokens"]).max() > 0 and np.abs(gradient["verdict"]["kernel"]).max() > 0
    gradient = gradients(spec, params, batch, "mlm")
    assert np.abs(gradient["generator"]["projection"]["kernel"]).max() > 0 and np.abs(gradient["tokens"]).max() > 0
    own = {name: leaf for name, leaf in gradient.items() if name in ("layers", "projection", "judge", "verdict")}
    assert own and not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(own))


def test_recall_of_constant_discriminator():
    spec, params, batch = made()
    blind = params | {"verdict": {"kernel": 0 * params["verdict"]["kernel"], "bias": params["verdict"]["bias"] - 9}}
    counts = {name: float(n) for name, n in spec.objective.denominators(batch).items()}
    sums = {name: float(x) for name, x in jax.jit(functools.partial(scored, spec))(blind, batch).items()}
    terms = losses.compute_terms(spec.objective, sums, counts)
    assert terms["rtd_accuracy"] > 0.8 and terms["recall"] == terms["precision"] == 0
    assert not {"found", "replaced", "suspected"} & terms.keys() and set(spec.objective.metric_names) - {
        "perplexity"
    } == set(terms)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["tokens", "copied"])
def test_discriminator_predicts_tokens(head):
    spec, params, batch = made(head)
    sums = jax.jit(functools.partial(scored, spec))(params, batch)
    assert sums.keys() == {"mlm", "mlm_accuracy", "original", "original_accuracy"} == spec.objective.terms.keys()
    gradient = gradients(spec, params, batch, "original")
    assert np.abs(gradient["head_bias"]).max() > 0 and ("copier" in gradient) == (head == "copied")


@pytest.mark.slow
def test_replacements_without_generator():
    spec = TrainSpec.build_abstract(small(model__generator_size=0.0))
    params, batch = initial(spec), drawn_batch(spec)
    sums = jax.jit(functools.partial(scored, spec))(params, batch)
    assert "generator" not in params and "mlm" not in sums and 0 < sums["replaced"] <= batch["chosen"].sum()
