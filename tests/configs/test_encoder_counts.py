"""Published parameter counts of RoBERTa, ALBERT and their kin, to the integer, through the shapes of initialisation."""

import math

import jax
import pytest

import models
from configs import albert, bert, roberta, xlm
from configs.common import ConfigError

# Parameters as trained; and of the encoder with a pooler, and of the model without, where those were published.
COUNTS = {
    (roberta, "base"): (124_697_433, 124_645_632, 124_697_433),
    (roberta, "large"): (355_412_057, 355_359_744, 355_412_057),
    (roberta, "base_2k"): (124_697_433, None, None),
    (roberta, "camembert_base"): (110_655_493, None, 110_655_493),
    (roberta, "camembert_large"): (336_695_557, None, 336_695_557),
    (roberta, "xlmr_base"): (278_295_186, 278_043_648, 278_295_186),
    (roberta, "xlmr_large"): (560_142_482, 559_890_432, 560_142_482),
    (xlm, "en_2048"): (667_119_041, None, 667_119_041),
    (xlm, "xnli15_1024"): (249_071_384, None, 249_071_384),
    (xlm, "mlm_100_1280"): (571_696_960, None, 571_696_960),
    (xlm, "enfr_1024"): (141_848_203, None, 141_848_203),
    (xlm, "ende_1024"): (142_422_203, None, 142_422_203),
    (albert, "base"): (11_813_810, 11_683_584, 11_221_680),
    (albert, "large"): (17_847_474, 17_683_968, 16_795_824),
    (albert, "xlarge"): (59_021_490, 58_724_864, 54_821_040),
    (albert, "xxlarge"): (223_158_450, 222_595_584, 206_368_944),
    (albert, "base_v2"): (11_813_810, None, None),
    (albert, "large_v2"): (17_847_474, None, None),
    (albert, "xlarge_v2"): (59_021_490, None, None),
    (albert, "xxlarge_v2"): (223_158_450, None, None),
}
DEFAULTS = {roberta: "base", albert: "base", xlm: "enfr_1024"}
HEADS = ("transform", "transform_norm", "head_bias", "pairs")


def counts(section):
    """{what: parameters} of the model of a section."""
    model = models.build(section)
    shapes = jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0))["params"]
    return {name: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree)) for name, tree in shapes.items()}


@pytest.mark.parametrize(("recipe", "variant"), COUNTS, ids=[f"{r.__name__}:{v}" for r, v in COUNTS])
def test_parameter_counts_are_the_published_ones(recipe, variant):
    whole, pooled, alone = COUNTS[recipe, variant]
    section = recipe.get_config(variant).model.to_dict()
    assert sum(counts(section).values()) == whole
    if pooled:
        own = counts(section | {"pair_head": True})
        assert sum(own.values()) - sum(own[name] for name in HEADS) == pooled
    if alone:
        assert sum(counts(section | {"pair_head": False}).values()) == alone


@pytest.mark.parametrize(
    ("variant", "count"),
    [
        ("en_2048", 667_088_896),
        ("xnli15_1024", 248_976_384),
        ("mlm_100_1280", 571_496_960),
        ("enfr_1024", 141_784_064),
        ("ende_1024", 142_357_504),
    ],
)
def test_xlm_without_its_head(variant, count):
    own = counts(xlm.get_config(variant).model.to_dict())
    del own["head_bias"]
    assert sum(own.values()) == count and not {*HEADS} & own.keys()


@pytest.mark.parametrize(("recipe", "default"), DEFAULTS.items())
def test_variants(recipe, default):
    assert recipe.get_config().to_dict() == recipe.get_config(default).to_dict()
    with pytest.raises(ConfigError, match=rf"no variant 'huge'; choose one of: .*{default}"):
        recipe.get_config("huge")
    assert set(recipe.VARIANTS) - {"mini_stdlib"} == {variant for tested, variant in COUNTS if tested is recipe}


MULTILINGUAL = {"multilingual_cased": (178_566_653, 177_974_523), "multilingual_uncased": (168_055_961, None)}


@pytest.mark.parametrize("variant", MULTILINGUAL)
def test_multilingual_bert(variant):
    section, (whole, alone) = bert.get_config(variant).model.to_dict(), MULTILINGUAL[variant]
    assert sum(counts(section).values()) == whole
    assert alone in (None, sum(counts(section | {"pair_head": False}).values()))


def test_rows_fit_the_context():
    for recipe, variant in [*COUNTS, (roberta, "mini_stdlib"), (albert, "mini_stdlib"), (xlm, "mini_stdlib")]:
        config = recipe.get_config(variant)
        assert config.data.length <= config.model.context
        assert config.tokenizer.vocab_size <= config.model.vocab_size
        assert config.objective.max_predictions >= 0.15 * config.data.length
