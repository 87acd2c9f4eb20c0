"""The same numbers as Hugging Face's BERT on random weights: hidden states, logits, loss, every gradient, an update.

The answers in goldens/bert.json are its own; goldens/make_bert.py says how it was asked, and asks it live where it is.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from goldens import make_bert as asked

import models
from configs.common import encoder


def build(activation, **changes):
    fields = encoder()
    fields.update(asked.SIZES, activation=activation, dtype="float32", dropout=0.0, dropout_attention=0.0)
    fields.update(changes)
    return models.build(fields.to_dict())


def drawn():
    """The weights that both models are given."""
    return unflatten_dict({path: jnp.asarray(x) for path, x in asked.weights().items()}, sep="/")


@functools.cache
def answers(activation):
    """{what: array} of our model, in the words of make_bert.ask."""
    batch = {name: jnp.asarray(x) for name, x in asked.rows(asked.SIZES).items()}
    inputs = {name: batch[name] for name in ("tokens", "types", "segments")}
    params, real = drawn(), np.asarray(batch["segments"] != 0)
    found = {}
    for layers in range(1, asked.SIZES["layers"] + 1):
        model = build(activation, layers=layers)
        some = params | {"layers": jax.tree.map(lambda x, layers=layers: x[:layers], params["layers"])}
        hidden = jax.jit(lambda params, model=model: model.apply({"params": params}, **inputs).hidden)(some)
        found[f"hidden {layers}"] = np.asarray(hidden)[real]

    def loss(params):
        logits = model.apply(
            {"params": params}, hidden := model.apply({"params": params}, **inputs).hidden, method="logits"
        )
        pairs = model.apply({"params": params}, hidden, method="pair_logits")
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        masked = (each * batch["masked"]).sum() / batch["masked"].sum()
        return masked + optax.softmax_cross_entropy_with_integer_labels(pairs, batch["next"]).mean(), (logits, pairs)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (found["loss"], (logits, found["pair logits"])), gradient = run(params)
    found["logits"] = np.asarray(logits)[real]
    found |= {f"gradient of {path}": x for path, x in flatten_dict(gradient, sep="/").items()}
    adam = optax.adamw(asked.RATE, eps=asked.EPSILON, weight_decay=asked.DECAY)
    updates, _ = jax.jit(adam.update)(gradient, adam.init(params), params)
    found["next loss"] = run(optax.apply_updates(params, updates))[0][0]
    return found


def test_the_parameters_are_those_of_the_model():
    shapes = nn.unbox(jax.eval_shape(build("gelu_erf").init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    assert jax.tree.map(jnp.shape, drawn()) == jax.tree.map(jnp.shape, shapes)


@pytest.mark.parametrize("activation", asked.ACTIVATIONS)
def test_its_answers(activation):
    expected = json.loads(asked.ANSWERS.read_text())[activation]
    found = answers(activation)
    assert found.keys() == expected.keys()
    # Lengths and angles, of float32 against float64. The gradient of the keys' bias is 0 but for rounding.
    for what in expected.keys() - {"gradient of layers/attention/key/bias"}:
        np.testing.assert_allclose(asked.digest(found[what]), expected[what], rtol=2e-5, atol=2e-6, err_msg=what)


@pytest.mark.oracle
@pytest.mark.parametrize("activation", asked.ACTIVATIONS)
def test_the_model_itself(activation):
    """Entry by entry, in float64 there and float32 here."""
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason="parity with Hugging Face needs the extra 'oracle'")
    found, expected = answers(activation), asked.ask(activation)
    assert found.keys() == expected.keys()
    largest = max(np.abs(x).max() for what, x in expected.items() if what.startswith("gradient"))
    for what, want in expected.items():
        tolerance = {"rtol": 1e-5, "atol": 1e-5}  # logits and hidden states are of order 1 to 10
        if what.startswith("gradient"):
            tolerance = {"rtol": 1e-4, "atol": 1e-6 * largest}
        np.testing.assert_allclose(found[what], want, **tolerance, err_msg=what)
