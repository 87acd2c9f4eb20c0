"""CTRL's control codes: prompts without one are reported."""

from input_pipeline.tokenizers.base import Bytes
from pretrain import config as configs
from pretrain.commands.generate import warn_of_codes


def test_prompt_without_a_code_is_reported(capsys):
    sources = " + ".join(f"text:/{code}.txt?code={code}" for code in ("Books", "Links"))
    overrides = [("data.train", sources), ("tokenizer.kind", "bytes"), ("objective.coded", "true")]
    config = configs.load("configs/ctrl.py:mini_stdlib", overrides)
    warn_of_codes(config, Bytes(), ["Links some", "some text", "Books"])
    said = capsys.readouterr().err
    assert said.count("warning: prompt") == 1 and "'some text'" in said
