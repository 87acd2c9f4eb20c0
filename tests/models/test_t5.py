"""T5's encoder-decoder: who sees whom, how it starts. test_hf_parity.py has its numbers.

What it writes is tested in tests/pretrain/decoding/test_source.py.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import encoder_decoder

V = 31


def build(**changes):
    fields = encoder_decoder()
    fields.update(vocab_size=V, context=32, layers=2, width=16, heads=4, head_size=6, ff=24, dtype="float32")
    fields.update(buckets=8, max_distance=12)
    fields.update(changes)
    return models.build(fields.to_dict())


def begun(model):
    """Parameters as training begins with them."""
    return nn.unbox(jax.jit(lambda key: model.init(key, **model.example()))(jax.random.key(0)))["params"]


def initial(model, scale=0.4):
    """Parameters with decided opinions."""
    shapes = nn.unbox(jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0)))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.standard_normal(leaf.shape), leaf.dtype), shapes)


@pytest.fixture(scope="module")
def t5():
    model = build()
    return model, initial(model)


# What BART and the original Transformer have otherwise.
POST = {"norm": "layer", "placement": "post", "final_norm": False, "ff_bias": True, "scale_scores": True}
POST |= {"scale_head": False}
KINDS = {
    "t5": {},
    "bart": POST
    | {"positions": "learned", "position_offset": 2, "embedding_norm": True, "attention_bias": True}
    | {"head_bias": True, "decoder_layers": 1, "initialiser": "normal", "init_scale": 0.02},
    "transformer": POST | {"positions": "sinusoid", "scale_embedding": True, "initialiser": "glorot"},
}


@pytest.fixture(scope="module", params=KINDS)
def each(request):
    model = build(**KINDS[request.param])
    return model, initial(model)


def tokens(rows, length, seed=1):
    return jnp.asarray(np.random.default_rng(seed).integers(0, V, (rows, length)))


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, **inputs):
    return model.apply(params, **inputs).hidden


def test_starts_as_published():
    """Standard deviations of matrices (Raffel et al. 2019); that of n draws is off by 1/sqrt(2n), here a hundredth."""
    sizes = {"vocab_size": 512, "width": 64, "heads": 4, "head_size": 24, "ff": 128, "layers": 4}
    model = build(**sizes, buckets=32, max_distance=128, tied_head=False)
    params = begun(model)
    expected = {"query": (64 * 24) ** -0.5, "key": 64**-0.5, "value": 64**-0.5, "output": (4 * 24) ** -0.5}
    for stack, branch in (("encoder", "attention"), ("decoder", "attention"), ("decoder", "cross_attention")):
        for name, std in expected.items():
            assert params[stack]["layers"][branch][name]["kernel"].std() == pytest.approx(std, rel=0.04)
        assert params[stack]["layers"]["feed_forward"]["in"]["kernel"].std() == pytest.approx(64**-0.5, rel=0.04)
        assert params[stack]["layers"]["feed_forward"]["out"]["kernel"].std() == pytest.approx(128**-0.5, rel=0.04)
    assert params["tokens"].std() == pytest.approx(1.0, rel=0.04)
    assert params["head"].std() == pytest.approx(64**-0.5, rel=0.04)
    edge = math.sqrt(3 * 2 / (4 + 32))  # uniform, of the mean of both its sides
    assert 0.9 * edge < np.abs(params["encoder_bias"]).max() <= edge
    assert (params["encoder"]["layers"]["attention_norm"]["scale"] == 1).all()


def started(**changes):
    sizes = {"vocab_size": 512, "width": 64, "heads": 4, "head_size": 16, "ff": 128, "layers": 4}
    model = build(**sizes, **changes)
    return begun(model)


def test_the_transformer_starts_as_published():
    """Uniform by the mean of inputs and outputs; rows that times sqrt(width) have variance 1."""
    params = started(**KINDS["transformer"])
    kernel = params["decoder"]["layers"]["cross_attention"]["query"]["kernel"]
    assert 0.95 * (6 / 128) ** 0.5 < np.abs(kernel).max() <= (6 / 128) ** 0.5
    assert params["encoder"]["layers"]["feed_forward"]["in"]["kernel"].std() == pytest.approx(
        (2 / 192) ** 0.5, rel=0.02
    )
    assert params["tokens"].std() == pytest.approx(64**-0.5, rel=0.02)
    assert not {"bias"} & params["encoder"]["layers"]["attention"]["query"].keys()


def test_bart_starts_as_published():
    params = started(**KINDS["bart"])
    for leaf in (params["tokens"], params["encoder"]["layers"]["attention"]["output"]["kernel"]):
        assert leaf.std() == pytest.approx(0.02, rel=0.03)
    assert params["encoder_positions"].shape == params["decoder_positions"].shape == (34, 64)
    assert jax.tree.leaves(params["decoder"])[0].shape[0] == 1 and jax.tree.leaves(params["encoder"])[0].shape[0] == 4


def test_the_encoder_sees_both_ways_and_the_decoder_what_came_before(t5):
    inputs, targets = tokens(1, 9), tokens(1, 7, 2)
    hidden = run(*t5, tokens=targets, inputs=inputs)
    moved = [np.abs(run(*t5, tokens=targets.at[0, 4].add(1) % V, inputs=inputs) - hidden)[0].max(-1)]
    moved += [np.abs(run(*t5, tokens=targets, inputs=inputs.at[0, i].add(1) % V) - hidden)[0].max(-1) for i in (0, 8)]
    assert (moved[0][:4] == 0).all() and (moved[0][4:] > 1e-4).all()
    assert (np.array(moved[1:]) > 1e-5).all()


def test_padding_is_not_seen(each):
    inputs, targets, real = tokens(2, 9), tokens(2, 7, 2), jnp.array([[1] * 9, [1] * 5 + [0] * 4])
    hidden = run(*each, tokens=targets, inputs=inputs, input_segments=real)
    other = run(*each, tokens=targets, inputs=jnp.where(real, inputs, 7), input_segments=real)
    np.testing.assert_array_equal(other, hidden)
    alone = run(*each, tokens=targets[1:, :4], inputs=inputs[1:, :5])
    np.testing.assert_allclose(alone[0], hidden[1, :4], atol=1e-5)


def test_examples_of_a_row_never_leak(each):
    """Nor in gradients: an example's is the same whatever stands beside it, on either side."""
    model, params = each
    inputs, targets = tokens(1, 14), tokens(1, 10, 2)
    row = {"input_segments": jnp.array([[1] * 5 + [2] * 7 + [0] * 2]), "segments": jnp.array([[1] * 4 + [2] * 5 + [0]])}
    row["input_positions"] = jnp.array([[*range(5), *range(7), 0, 0]])
    row["positions"] = jnp.array([[*range(4), *range(5), 0]])

    @jax.jit
    def second(params, inputs, targets):
        def loss(params):
            hidden = model.apply(params, tokens=targets, inputs=inputs, **row).hidden[0, 4:9]
            return jnp.sin(hidden).sum(), hidden

        return jax.grad(loss, has_aux=True)(params)

    gradient, hidden = second(params, inputs, targets)
    changed, same = second(params, inputs.at[0, :5].add(3) % V, targets.at[0, :4].add(3) % V)
    np.testing.assert_array_equal(same, hidden)
    jax.tree.map(np.testing.assert_array_equal, gradient, changed)
    alone = run(*each, tokens=targets[:, 4:9], inputs=inputs[:, 5:12])
    np.testing.assert_allclose(alone[0], hidden, atol=1e-5)


def test_long_inputs_are_refused(t5):
    model, params = t5
    with pytest.raises(models.ModelError):
        model.apply(params, tokens(1, 3), inputs=tokens(1, 33))
