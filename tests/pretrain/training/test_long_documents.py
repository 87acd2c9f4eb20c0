"""The recipes of long documents: parameter counts and tokens of a batch."""

import math

import jax
import pytest

import models
from configs import long_documents

DENSE = {
    "bert": (109_514_298, 512, 0),
    "t5": (222_903_552, 0, 33_024 - 32_128),
}  # count, positions, words that are more


@pytest.mark.parametrize("variant", [v for v in long_documents.VARIANTS if not v.endswith("tiny")])
def test_long_documents_parameter_counts(variant):
    config = long_documents.get_config(variant)
    family, length = variant.split("_")[0], config.data.length
    count, positions, words = DENSE[family]
    more = (length - positions if positions else 0) + words
    model = models.build(config.model.to_dict())
    shapes = jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == count + more * 768
    assert config.train.batch_size * length == (65_536 if family == "bert" else 1_048_576)
