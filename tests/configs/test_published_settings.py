"""Settings that papers and releases publish, where variants of one recipe differ in them."""

import pytest

from configs import transformer, xlm


@pytest.mark.parametrize(
    ("variant", "seconds", "kept"),
    [("base", 0.4, 5), ("base_en_fr", 0.4, 5), ("big", 1.0, 20), ("big_en_fr", 1.0, 20)],
)
def test_the_transformer_is_saved_every_ten_minutes(variant, seconds, kept):
    """By the paper's time of an update (Vaswani et al. 2017, sections 5.2 and 6.1)."""
    checkpoint = transformer.get_config(variant).checkpoint
    assert checkpoint.every * seconds == 600 and checkpoint.keep == kept


@pytest.mark.parametrize("variant", xlm.VARIANTS)
def test_only_xlms_english_model_decays(variant):
    optimizer = xlm.get_config(variant).optimizer
    english = {"b2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01, "decay": "all"}
    other = {"b2": 0.98, "epsilon": 1e-8, "weight_decay": 0.0}
    expected = english if variant == "en_2048" else other
    assert {name: optimizer[name] for name in expected} == expected
