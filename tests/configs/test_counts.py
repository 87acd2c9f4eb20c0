"""Published parameter counts of every variant, to the integer, through the shapes of the real initialisation."""

import math

import jax
import pytest

import models
from configs.common import ConfigError
from pretrain import config as configs


def token_head(width: int, embed: int) -> int:
    """Parameters of BERT's token head: a dense layer, a norm, biases."""
    return width * embed + 3 * embed + 30_522


def bert_heads(width: int) -> int:
    """Parameters of BERT's token and pair heads, without which its small sizes are published."""
    return token_head(width, width) + 2 * width + 2


def electra_tables(embed: int) -> int:
    """Parameters that ELECTRA's generator and discriminator share, counted in both of their published counts."""
    return (30_522 + 512 + 2 + 2) * embed


COUNTS = {
    "gpt2:small": 124_439_808,
    "gpt2:medium": 354_823_168,
    "gpt2:large": 774_030_080,
    "gpt2:xl": 1_557_611_200,
    "gpt3:small": 125_226_240,
    "gpt3:medium": 355_871_744,
    "gpt3:large": 760_300_032,
    "gpt3:xl": 1_315_723_264,
    "gpt3:2.7b": 2_651_553_280,
    "gpt3:6.7b": 6_658_404_352,
    "gpt3:13b": 12_853_386_240,
    "gpt3:175b": 174_604_259_328,
    "gpt:base": 116_534_784,
    "ctrl:base": 1_637_964_550,
    "llama:llama2_7b": 6_738_415_616,
    "llama:llama2_70b": 68_976_648_192,
    "llama:llama3_8b": 8_030_261_248,
    "llama:llama3.2_1b": 1_235_814_400,
    "llama:mistral_7b": 7_241_732_096,
    "llama:qwen2_0.5b": 494_032_768,
    "llama:qwen3_0.6b": 596_049_920,
    "llama:gemma_2b": 2_506_172_416,
    "hands_on:causal": 50_396_360,
    "hands_on:masked": 50_396_360,
    "bert:tiny": 4_385_920 + bert_heads(128),
    "bert:mini": 11_170_560 + bert_heads(256),
    "bert:small": 28_763_648 + bert_heads(512),
    "bert:medium": 41_373_184 + bert_heads(512),
    "bert:base": 110_106_428,
    "bert:base_cased": 108_932_934,
    "bert:large": 336_226_108,
    "bert:large_cased": 334_661_958,
    "bert:large_whole_words": 336_226_108,
    "bert:multilingual_cased": 178_566_653,
    "bert:multilingual_uncased": 168_055_961,
    "roberta:base": 124_697_433,
    "roberta:large": 355_412_057,
    "roberta:base_2k": 124_697_433,
    "roberta:camembert_base": 110_655_493,
    "roberta:camembert_large": 336_695_557,
    "roberta:xlmr_base": 278_295_186,
    "roberta:xlmr_large": 560_142_482,
    "xlm:en_2048": 667_119_041,
    "xlm:xnli15_1024": 249_071_384,
    "xlm:mlm_100_1280": 571_696_960,
    "xlm:enfr_1024": 141_848_203,
    "xlm:ende_1024": 142_422_203,
    "albert:base": 11_813_810,
    "albert:large": 17_847_474,
    "albert:xlarge": 59_021_490,
    "albert:xxlarge": 223_158_450,
    "albert:base_v2": 11_813_810,
    "albert:large_v2": 17_847_474,
    "albert:xlarge_v2": 59_021_490,
    "albert:xxlarge_v2": 223_158_450,
    "distilbert:uncased": 66_985_530,
    "distilbert:cased": 65_812_036,
    "distilbert:multilingual": 135_445_755,
    "distilbert:roberta": 82_170_201,
    "distilbert:gpt2": 81_912_576,
    "electra:small": 13_549_057 + 4_620_026 - electra_tables(128),
    "electra:small_plus": 13_549_057 + 13_546_682 - electra_tables(128),
    "electra:small_masked_loss": 13_549_057 + 4_620_026 - electra_tables(128),
    "electra:small_replace_mlm": 13_483_008 + token_head(256, 128) + 4_620_026 - electra_tables(128),
    "electra:small_all_tokens": 13_483_008 + token_head(256, 128) + 257 + 4_620_026 - electra_tables(128),
    "electra:base": 109_483_009 + 33_740_602 - electra_tables(768),
    "electra:large": 335_142_913 + 51_295_290 - electra_tables(1024),
    "xlnet:base": 116_750_336,
    "xlnet:large": 360_300_800,
    "t5:small": 60_506_624,
    "t5:base": 222_903_552,
    "t5:base_prefix": 222_903_552,
    "t5:large": 737_668_096,
    "t5:3b": 2_851_598_336,
    "t5:11b": 11_307_321_344,
    "t5:small_v1_1": 76_961_152,
    "t5:base_v1_1": 247_577_856,
    "t5:large_v1_1": 783_150_080,
    "t5:xl_v1_1": 2_849_757_184,
    "t5:xxl_v1_1": 11_135_332_352,
    "bart:base": 139_420_416,
    "bart:large": 406_291_456,
    "mbart:large": 610_851_840,
    "transformer:base": 63_045_632,
    "transformer:big": 214_171_648,
    "transformer:base_en_fr": 60_485_632,
    "transformer:big_en_fr": 209_051_648,
    "transformer_xl:wt103": 151_107_538,
    "transformer_xl:wt103_large": 285_170_506,
    "transformer_xl:enwik8": 41_055_436,
    "transformer_xl:enwik8_18": 87_965_708,
    "transformer_xl:enwik8_large": 277_231_820,
    "transformer_xl:text8": 40_964_635,
    "transformer_xl:text8_large": 277_050_395,
    "transformer_xl:lm1b": 464_410_466,
    "transformer_xl:lm1b_large": 838_019_182,
    "transformer_xl:lm1b_release": 357_812_082,
    "transformer_xl:lm1b_large_release": 841_295_982,
    "transformer_xl:tiny": 124_481,
    "sparse_transformer:enwik8": 94_949_888,
    "sparse_transformer:cifar10": 59_196_928,
    "sparse_transformer:imagenet64": 151_645_184,
    "sparse_transformer:tiny_images": 234_112,
    "sparse_transformer:tiny": 136_000,
    "long_context:dense": 1_853_808,
    "long_context:transformer_xl": 1_853_705,
    "long_context:sparse": 1_853_784,
}
# Published with other heads: without BERT's pair head, or T5 1.1 with a tied output.
NO_PAIRS, TIED = {"pair_head": False}, {"tied_head": True}
OTHER_HEADS = [
    ("bert:base", NO_PAIRS, 109_514_298),
    ("bert:base_cased", NO_PAIRS, 108_340_804),
    ("bert:large", NO_PAIRS, 335_174_458),
    ("bert:large_cased", NO_PAIRS, 333_610_308),
    ("bert:multilingual_cased", NO_PAIRS, 177_974_523),
    ("albert:base", NO_PAIRS, 11_221_680),
    ("albert:large", NO_PAIRS, 16_795_824),
    ("albert:xlarge", NO_PAIRS, 54_821_040),
    ("albert:xxlarge", NO_PAIRS, 206_368_944),
    ("t5:small_v1_1", TIED, 60_511_616),
    ("t5:base_v1_1", TIED, 222_903_552),
    ("t5:large_v1_1", TIED, 750_251_008),
    ("t5:xl_v1_1", TIED, 2_783_959_040),
    ("t5:xxl_v1_1", TIED, 11_003_736_064),
    ("transformer_xl:wt103", {"shared_biases": False}, 151_119_838),
    ("transformer_xl:wt103_large", {"shared_biases": False}, 285_205_322),
    # 204 symbols of 512 and a bias; 12 layers of 4 * 512^2, 2 * 512 * 2048 + 2048 + 512 and two norms of 2 * 512
    ("transformer_xl:enwik8", {"positions": "rotary"}, 37_908_684),
]
# Published without heads: ElectraModel (the discriminator), DistilBertModel, RobertaModel and AlbertModel (with a
# pooler), XLMModel.
BERT_HEADS = ("transform", "transform_norm", "head_bias", "pairs")
HEADLESS = [
    ("electra:small", {"generator_size": 0.0}, ("judge", "verdict"), 13_483_008),
    ("electra:base", {"generator_size": 0.0}, ("judge", "verdict"), 108_891_648),
    ("electra:large", {"generator_size": 0.0}, ("judge", "verdict"), 334_092_288),
    ("distilbert:uncased", {}, ("transform", "transform_norm", "head_bias"), 66_362_880),
    ("roberta:base", {"pair_head": True}, BERT_HEADS, 124_645_632),
    ("roberta:large", {"pair_head": True}, BERT_HEADS, 355_359_744),
    ("roberta:xlmr_base", {"pair_head": True}, BERT_HEADS, 278_043_648),
    ("roberta:xlmr_large", {"pair_head": True}, BERT_HEADS, 559_890_432),
    ("albert:base", {}, BERT_HEADS, 11_683_584),
    ("albert:large", {}, BERT_HEADS, 17_683_968),
    ("albert:xlarge", {}, BERT_HEADS, 58_724_864),
    ("albert:xxlarge", {}, BERT_HEADS, 222_595_584),
    ("xlm:en_2048", {}, ("head_bias",), 667_088_896),
    ("xlm:xnli15_1024", {}, ("head_bias",), 248_976_384),
    ("xlm:mlm_100_1280", {}, ("head_bias",), 571_496_960),
    ("xlm:enfr_1024", {}, ("head_bias",), 141_784_064),
    ("xlm:ende_1024", {}, ("head_bias",), 142_357_504),
]
DEFAULTS = {
    **dict.fromkeys(("albert", "bart", "bert", "ctrl", "gpt", "roberta", "t5", "transformer", "xlnet"), "base"),
    **dict.fromkeys(("electra", "gpt2", "gpt3"), "small"),
    **dict.fromkeys(("sparse_transformer", "transformer_xl"), "tiny"),
    **{"distilbert": "uncased", "hands_on": "causal", "long_context": "dense", "long_documents": "t5_4k"},
    **{"llama": "llama2_7b", "mbart": "large", "quickstart": "default", "xlm": "enfr_1024"},
}


def count_by_module(section: dict) -> dict[str, int]:
    """Return {parameter or module: its parameters} of the model of a config section."""
    model = models.build(section)
    shapes = jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0))["params"]
    return {name: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree)) for name, tree in shapes.items()}


def load(recipe: str):
    name, _, variant = recipe.partition(":")
    return configs.recipe_module(f"configs/{name}.py").get_config(variant)


@pytest.mark.parametrize(("recipe", "count"), COUNTS.items(), ids=str)
def test_parameter_count(recipe, count):
    assert sum(count_by_module(load(recipe).model.to_dict()).values()) == count


@pytest.mark.parametrize(("recipe", "keys", "count"), OTHER_HEADS)
def test_parameter_count_with_other_keys(recipe, keys, count):
    assert sum(count_by_module(load(recipe).model.to_dict() | keys).values()) == count


@pytest.mark.parametrize(("recipe", "keys", "heads", "count"), HEADLESS)
def test_parameter_count_without_heads(recipe, keys, heads, count):
    counts = count_by_module(load(recipe).model.to_dict() | keys)
    assert all(counts.pop(name) for name in heads) and sum(counts.values()) == count


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("variant", ["enwik8", "enwik8_18", "lm1b", "tiny"])
def test_rotary_positions_have_no_parameters(variant, shared):
    """Gone are a matrix of distances per layer, D * N * H, and the biases u and v, N * H each; N * H = D here."""
    section = load(f"transformer_xl:{variant}").model.to_dict() | {"shared_biases": shared}
    relative, rotary = (sum(count_by_module(section | {"positions": kind}).values()) for kind in ("relative", "rotary"))
    layers, width = section["layers"], section["width"]
    assert relative - rotary == layers * width**2 + 2 * width * (1 if shared else layers)


@pytest.mark.parametrize("recipe", configs.model_recipes())
def test_variants(recipe):
    module = configs.recipe_module(f"configs/{recipe}.py")
    assert module.get_config().to_dict() == module.get_config(DEFAULTS[recipe]).to_dict()
    with pytest.raises(ConfigError):
        module.get_config("huge")
    if recipe not in ("quickstart", "long_documents"):
        counted = {name.partition(":")[2] for name in COUNTS if name.partition(":")[0] == recipe}
        assert set(module.VARIANTS) - {"mini_stdlib", "multi30k"} == counted


@pytest.mark.parametrize("recipe", configs.model_recipes())
def test_rows_fit_the_model(recipe):
    for variant in configs.recipe_module(f"configs/{recipe}.py").VARIANTS:
        config = load(f"{recipe}:{variant}")
        assert config.data.length <= config.model.context
        assert config.tokenizer.vocab_size <= models.build(config.model.to_dict()).input_vocab_size
        if config.objective.kind == "masked" and config.objective.rounding != "nearest":
            assert config.objective.max_predictions >= 0.15 * config.data.length
