"""Published parameter counts, to the integer, through the shapes of the real initialisation."""

import math

import jax
import jax.numpy as jnp
import pytest

import models
from configs import gpt2, gpt3, hands_on
from configs.common import ConfigError

COUNTS = [
    (gpt2, "small", 124_439_808),
    (gpt2, "medium", 354_823_168),
    (gpt2, "large", 774_030_080),
    (gpt2, "xl", 1_557_611_200),
    (gpt3, "small", 125_226_240),
    (gpt3, "medium", 355_871_744),
    (gpt3, "large", 760_300_032),
    (gpt3, "xl", 1_315_723_264),
    (gpt3, "2.7b", 2_651_553_280),
    (gpt3, "6.7b", 6_658_404_352),
    (gpt3, "13b", 12_853_386_240),
    (gpt3, "175b", 174_604_259_328),
    (hands_on, "causal", 50_396_360),
]


@pytest.mark.parametrize(("recipe", "variant", "count"), COUNTS, ids=[f"{r.__name__}:{v}" for r, v, _ in COUNTS])
def test_parameter_count_is_the_published_one(recipe, variant, count):
    config = recipe.get_config(variant)
    model = models.build(config.model)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == count


@pytest.mark.parametrize(("recipe", "default"), [(gpt2, "small"), (gpt3, "small"), (hands_on, "causal")])
def test_variants(recipe, default):
    assert recipe.get_config().to_dict() == recipe.get_config(default).to_dict()
    with pytest.raises(ConfigError, match=rf"no variant 'huge'; choose one of: .*{default}"):
        recipe.get_config("huge")


@pytest.mark.parametrize("recipe", [gpt2, gpt3, hands_on], ids=lambda recipe: recipe.__name__)
def test_every_variant_has_a_published_count(recipe):
    assert set(recipe.VARIANTS) == {variant for tested, variant, _ in COUNTS if tested is recipe}


def test_rows_fit_the_context():
    for recipe, variant, _ in COUNTS:
        config = recipe.get_config(variant)
        assert config.data.length <= config.model.context
        assert config.tokenizer.vocab_size <= config.model.vocab_size
