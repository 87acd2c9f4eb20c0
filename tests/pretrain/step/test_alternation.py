"""GPT-3 with its sparse alternation, which is one edit of its recipe: in small it trains, and its layers take turns."""

import re

import jax
import numpy as np
import pytest

import models
from configs import gpt3
from models.transformer import self_attention

ROWS, LENGTH, LAYERS, VOCABULARY = 2, 320, 4, 64
EDIT = re.search(r"config\.model\.attention = (\(.*\))\.", gpt3.__doc__)[1]  # as the recipe says


@pytest.fixture
def config():
    """The recipe, edited, and small, but for rows that are longer than its band."""
    config = gpt3.get_config()
    config.model.update(layers=LAYERS, width=16, heads=2, ff=32, vocab_size=VOCABULARY, context=LENGTH, dtype="float32")
    config.model.attention = tuple(re.findall(r'"(\w+)"', EDIT))
    config.data.length = LENGTH
    config.train.update(steps=10, batch_size=ROWS)
    config.schedule.update(peak=1e-2, warmup=1)
    config.mesh.data = 1
    return config


def test_gpt3_layers_alternate(config, monkeypatch):
    seen = []

    def attend(query, key, value, mask, *rest, **named):
        seen.append(str(mask.pattern))
        return original(query, key, value, mask, *rest, **named)

    original = self_attention.attend
    monkeypatch.setattr(self_attention, "attend", attend)
    model = models.build(config.model.to_dict() | {"scan": False})
    params = jax.eval_shape(model.init, jax.random.key(0), **model.example())
    seen.clear()
    jax.eval_shape(model.apply, params, np.zeros((1, LENGTH), np.int32))
    assert seen == ["dense", "local_256"] * (LAYERS // 2)
