"""Published parameter counts, to the integer, through the shapes of the real initialisation."""

import math

import jax
import pytest

import models
from configs import bart, bert, ctrl, distilbert, electra, gpt, gpt2, gpt3, hands_on, mbart, t5, transformer, xlnet
from configs.common import ConfigError


def tokens(width: int, embed: int) -> int:
    """Parameters of a head of tokens: a layer, a norm, biases."""
    return width * embed + 3 * embed + 30_522


def heads(width: int) -> int:
    """Parameters of BERT's two heads, without which its small sizes are counted: that of tokens, and that of pairs."""
    return tokens(width, width) + 2 * width + 2


def shared(embed: int) -> int:
    """Parameters that ELECTRA's generator and discriminator share, which both of their published counts have."""
    return (30_522 + 512 + 2 + 2) * embed


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
    (gpt, "base", 116_534_784),
    (ctrl, "base", 1_637_964_550),
    (hands_on, "causal", 50_396_360),
    (hands_on, "masked", 50_396_360),
    (bert, "tiny", 4_385_920 + heads(128)),
    (bert, "mini", 11_170_560 + heads(256)),
    (bert, "small", 28_763_648 + heads(512)),
    (bert, "medium", 41_373_184 + heads(512)),
    (bert, "base", 110_106_428),
    (bert, "base_cased", 108_932_934),
    (bert, "large", 336_226_108),
    (bert, "large_cased", 334_661_958),
    (bert, "large_whole_words", 336_226_108),
    (distilbert, "uncased", 66_985_530),
    (distilbert, "cased", 65_812_036),
    (distilbert, "multilingual", 135_445_755),
    (distilbert, "roberta", 82_170_201),
    (distilbert, "gpt2", 81_912_576),
    (electra, "small", 13_549_057 + 4_620_026 - shared(128)),
    (electra, "small_plus", 13_549_057 + 13_546_682 - shared(128)),
    (electra, "small_masked_loss", 13_549_057 + 4_620_026 - shared(128)),
    (electra, "small_replace_mlm", 13_483_008 + tokens(256, 128) + 4_620_026 - shared(128)),
    (electra, "small_all_tokens", 13_483_008 + tokens(256, 128) + 257 + 4_620_026 - shared(128)),
    (electra, "base", 109_483_009 + 33_740_602 - shared(768)),
    (electra, "large", 335_142_913 + 51_295_290 - shared(1024)),
    (xlnet, "base", 116_750_336),
    (xlnet, "large", 360_300_800),
    (bert, "multilingual_cased", 178_566_653),
    (bert, "multilingual_uncased", 168_055_961),
    (t5, "small", 60_506_624),
    (t5, "base", 222_903_552),
    (t5, "base_prefix", 222_903_552),
    (t5, "large", 737_668_096),
    (t5, "3b", 2_851_598_336),
    (t5, "11b", 11_307_321_344),
    (t5, "small_v1_1", 76_961_152),
    (t5, "base_v1_1", 247_577_856),
    (t5, "large_v1_1", 783_150_080),
    (t5, "xl_v1_1", 2_849_757_184),
    (t5, "xxl_v1_1", 11_135_332_352),
    (bart, "base", 139_420_416),
    (bart, "large", 406_291_456),
    (mbart, "large", 610_851_840),
    (transformer, "base", 63_045_632),
    (transformer, "big", 214_171_648),
    (transformer, "base_en_fr", 60_485_632),
    (transformer, "big_en_fr", 209_051_648),
]


def by_part(section) -> dict[str, int]:
    """{parameter or module: its parameters} of the model of a section."""
    model = models.build(section)
    shapes = jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0))["params"]
    return {name: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree)) for name, tree in shapes.items()}


@pytest.mark.parametrize(("recipe", "variant", "count"), COUNTS, ids=[f"{r.__name__}:{v}" for r, v, _ in COUNTS])
def test_parameter_count_is_the_published_one(recipe, variant, count):
    assert sum(by_part(recipe.get_config(variant).model.to_dict()).values()) == count


# Published without heads: ElectraModel, of the discriminator, and DistilBertModel; and the heads.
HEADLESS = [
    (electra, "small", 13_483_008, ("judge", "verdict")),
    (electra, "base", 108_891_648, ("judge", "verdict")),
    (electra, "large", 334_092_288, ("judge", "verdict")),
    (distilbert, "uncased", 66_362_880, ("transform", "transform_norm", "head_bias")),
]


@pytest.mark.parametrize(
    ("recipe", "variant", "count", "left"), HEADLESS, ids=[f"{r.__name__}:{v}" for r, v, *_ in HEADLESS]
)
def test_parameter_count_without_heads_is_the_published_one(recipe, variant, count, left):
    section = recipe.get_config(variant).model.to_dict()
    if recipe is electra:
        section["generator_size"] = 0.0
    own = by_part(section)
    assert all(own.pop(name) for name in left) and sum(own.values()) == count


DEFAULTS = {gpt: "base", ctrl: "base", gpt2: "small", gpt3: "small", hands_on: "causal", bert: "base", t5: "base"}
DEFAULTS |= {distilbert: "uncased", electra: "small", transformer: "base", xlnet: "base", bart: "base", mbart: "large"}


@pytest.mark.parametrize(("recipe", "default"), DEFAULTS.items(), ids=lambda one: getattr(one, "__name__", one))
def test_variants(recipe, default):
    assert recipe.get_config().to_dict() == recipe.get_config(default).to_dict()
    with pytest.raises(ConfigError, match=rf"no variant 'huge'; choose one of: .*{default}"):
        recipe.get_config("huge")


# Published of other heads: BertForMaskedLM has no pooler, and T5 1.1 is counted with its output tied too.
OTHERWISE = [
    (bert, "base", {"pair_head": False}, 109_514_298),
    (bert, "base_cased", {"pair_head": False}, 108_340_804),
    (bert, "large", {"pair_head": False}, 335_174_458),
    (bert, "large_cased", {"pair_head": False}, 333_610_308),
    (bert, "multilingual_cased", {"pair_head": False}, 177_974_523),
    (t5, "small_v1_1", {"tied_head": True}, 60_511_616),
    (t5, "base_v1_1", {"tied_head": True}, 222_903_552),
    (t5, "large_v1_1", {"tied_head": True}, 750_251_008),
    (t5, "xl_v1_1", {"tied_head": True}, 2_783_959_040),
    (t5, "xxl_v1_1", {"tied_head": True}, 11_003_736_064),
]


@pytest.mark.parametrize(
    ("recipe", "variant", "keys", "count"), OTHERWISE, ids=[f"{r.__name__}:{v}" for r, v, *_ in OTHERWISE]
)
def test_parameter_count_of_other_heads_is_the_published_one(recipe, variant, keys, count):
    assert sum(by_part(recipe.get_config(variant).model.to_dict() | keys).values()) == count


@pytest.mark.parametrize("recipe", DEFAULTS, ids=lambda recipe: recipe.__name__)
def test_every_variant_has_a_published_count(recipe):
    assert set(recipe.VARIANTS) - {"mini_stdlib", "multi30k"} == {
        variant for tested, variant, _ in COUNTS if tested is recipe
    }


def test_rows_fit_the_context():
    for recipe, variant, _ in COUNTS:
        config = recipe.get_config(variant)
        assert config.data.length <= config.model.context
        assert config.tokenizer.vocab_size <= config.model.vocab_size
