"""Settings that papers and releases publish, where variants of a recipe differ in them."""

import pytest

from configs import transformer, xlm


@pytest.mark.parametrize(
    ("variant", "seconds", "keep"),
    [("base", 0.4, 5), ("base_en_fr", 0.4, 5), ("big", 1.0, 20), ("big_en_fr", 1.0, 20)],
)
def test_transformer_saves_every_ten_minutes(variant, seconds, keep):
    """At the paper's time per update (Vaswani et al. 2017, sections 5.2 and 6.1)."""
    checkpoint = transformer.get_config(variant).checkpoint
    assert checkpoint.every * seconds == 600 and checkpoint.keep == keep


@pytest.mark.parametrize("variant", xlm.VARIANTS)
def test_xlm_only_english_has_weight_decay(variant):
    optimizer = xlm.get_config(variant).optimizer
    english = {"b2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01, "decay": "all"}
    other = {"b2": 0.98, "epsilon": 1e-8, "weight_decay": 0.0}
    expected = english if variant == "en_2048" else other
    assert {name: optimizer[name] for name in expected} == expected
