"""Where a recipe's tokenizer file is not at hand, the flags that train one instead fit its model."""

import re

import every_recipe
import pytest

from input_pipeline import corruption
from input_pipeline.errors import DataError
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers.settings import known_size

FILED = [one for one in every_recipe.EVERY if every_recipe.config_of(*one).tokenizer.path]


@pytest.mark.parametrize(("name", "variant"), FILED)
def test_the_remedy_fits_the_model(name, variant, tmp_path):
    config = every_recipe.config_of(name, variant)
    section = config.tokenizer.to_dict()
    with pytest.raises(DataError, match="is no file; correct it, or ") as refused:
        tokenizer_store.check(tmp_path, section)
    said = dict(re.findall(r"--config\.tokenizer\.(\w+)=(\w*)", str(refused.value)))
    assert said or "leave it empty to train one" in str(refused.value)
    needed = corruption.special(config.objective.to_dict(), config.data.layout)
    size = known_size(section | {"path": ""} | said, needed)
    assert size == config.model.vocab_size or (size < config.model.vocab_size and name in ("t5", "distilbert", "gpt3"))
