"""Published parameter counts of the long-context recipes, to the integer."""

import math

import jax
import jax.numpy as jnp
import pytest

import models
from configs import sparse_transformer, transformer_xl
from configs.common import ConfigError

COUNTS = [
    (transformer_xl, "wt103", 151_107_538),
    (transformer_xl, "wt103_large", 285_170_506),
    (transformer_xl, "enwik8", 41_055_436),
    (transformer_xl, "enwik8_18", 87_965_708),
    (transformer_xl, "enwik8_large", 277_231_820),
    (transformer_xl, "text8", 40_964_635),
    (transformer_xl, "text8_large", 277_050_395),
    (transformer_xl, "lm1b", 464_410_466),
    (transformer_xl, "lm1b_large", 838_019_182),
    (transformer_xl, "lm1b_release", 357_812_082),
    (transformer_xl, "lm1b_large_release", 841_295_982),
    (transformer_xl, "tiny", 124_481),
    (sparse_transformer, "enwik8", 94_949_888),
    (sparse_transformer, "cifar10", 59_196_928),
    (sparse_transformer, "imagenet64", 151_645_184),
    (sparse_transformer, "tiny_images", 234_112),
    (sparse_transformer, "tiny", 136_000),
]


def parameters(config):
    model = models.build(config.model.to_dict())
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(("recipe", "variant", "count"), COUNTS, ids=[f"{r.__name__}:{v}" for r, v, _ in COUNTS])
def test_parameter_count(recipe, variant, count):
    assert parameters(recipe.get_config(variant)) == count


@pytest.mark.parametrize(("variant", "count"), [("wt103", 151_119_838), ("wt103_large", 285_205_322)])
def test_attention_biases_of_each_layer(variant, count):
    config = transformer_xl.get_config(variant)
    config.model.shared_biases = False
    assert parameters(config) == count


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("variant", ["enwik8", "enwik8_18", "lm1b", "tiny"])
def test_rotary_positions_have_no_parameters(variant, shared):
    """What goes is a matrix of distances a layer, of D * N * H, and the biases u and v, of N * H each."""
    relative, rotary = transformer_xl.get_config(variant), transformer_xl.get_config(variant)
    relative.model.shared_biases = rotary.model.shared_biases = shared
    rotary.model.positions = "rotary"
    layers, D = relative.model.layers, relative.model.width  # N * H = D in all of them
    gone = layers * D * D + 2 * D * (1 if shared else layers)
    assert parameters(rotary) == parameters(relative) - gone


def test_rotary_enwik8():
    """204 symbols of 512 and a bias; 12 layers of 4 * 512^2, 2 * 512 * 2048 + 2048 + 512 and two norms of 2 * 512."""
    config = transformer_xl.get_config("enwik8")
    config.model.positions = "rotary"
    assert parameters(config) == 204 * 512 + 204 + 12 * (4 * 512**2 + 2 * 512 * 2048 + 2560 + 2048) == 37_908_684


@pytest.mark.parametrize(("recipe", "default"), [(transformer_xl, "tiny"), (sparse_transformer, "tiny")])
def test_variants(recipe, default):
    assert recipe.get_config().to_dict() == recipe.get_config(default).to_dict()
    assert set(recipe.VARIANTS) == {variant for tested, variant, _ in COUNTS if tested is recipe}
    with pytest.raises(ConfigError, match="no variant 'huge'; choose one of: "):
        recipe.get_config("huge")


@pytest.mark.parametrize(("recipe", "variant"), [(recipe, variant) for recipe, variant, _ in COUNTS])
def test_sizes_fit(recipe, variant):
    config = recipe.get_config(variant)
    assert config.data.length <= config.model.context
    rows = models.build(config.model.to_dict()).reads
    assert config.tokenizer.vocab_size <= rows
