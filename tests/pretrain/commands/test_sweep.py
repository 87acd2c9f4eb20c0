"""Every number of a config and of a flag, set to what it should not be: each works or is one sentence.

Nothing is trained: `describe` builds models, optimisers and schedules.
"""

import pytest
from pretrain.commands.flags import Number, commands

from configs import common
from pretrain.cli import main

RECIPES = {
    "decoder": "configs/quickstart.py:tiny",
    "recurrent": "configs/transformer_xl.py:tiny",
    "two_stream": "configs/xlnet.py:mini_stdlib",
    "encoder": "configs/bert.py:mini_stdlib",
    "encoder_decoder": "configs/t5.py:mini_stdlib",
    "replaced_tokens": "configs/electra.py:mini_stdlib",
    "masked": "configs/bert.py:mini_stdlib",
    "spans": "configs/t5.py:mini_stdlib",
    "replaced": "configs/electra.py:mini_stdlib",
    "permutation": "configs/xlnet.py:mini_stdlib",
    "denoising": "configs/bart.py:mini_stdlib",
}
VALUES = ("-1", "0", "nan", "inf", "1e30", "-1e30", "1e999", "many", "")
KEYS = [("decoder", key) for key in common.base.ranges]
KEYS += [(name, f"model.{key}") for name, declare in common.MODELS.items() for key in declare.ranges]
KEYS += [(name, f"evaluate.model.{key}") for name, declare in common.MODELS.items() for key in declare.ranges]
KEYS += [(name, f"objective.{key}") for name, declare in common.OBJECTIVES.items() for key in declare.ranges]


@pytest.fixture
def outcome(capsys):
    """Runs a command in this process: its one sentence, or "" where it worked."""

    def run(*arguments):
        code = main(arguments)
        out, err = capsys.readouterr()
        if code == 0:
            assert out
            return ""
        last = err.strip().split("\n")[-1]
        assert code == 2 and last.startswith("pretrain: ") and "Traceback" not in err, err
        return last

    return run


@pytest.mark.parametrize(
    ("kind", "key"),
    [pytest.param(*key, marks=[pytest.mark.slow] * (index % 4 > 0)) for index, key in enumerate(KEYS)],
)
def test_numbers(outcome, kind, key):
    said = {value: outcome("describe", f"--config={RECIPES[kind]}", f"--config.{key}={value}") for value in VALUES}
    assert all(said[value] for value in ("nan", "inf", "1e999", "many", "")), said
    name = key.split(".")[-1]
    assert all(name in sentence for sentence in said.values() if sentence), said


NUMBERS = [
    (name, flag)
    for name, command in commands().items()
    for flag in command.flags
    if isinstance(command.flags[flag].parser, Number)
]


@pytest.mark.parametrize(("command", "flag"), NUMBERS)
def test_numbers_of_flags(outcome, command, flag):
    """What is in range gets as far as the work folder, which is not there and cannot be made."""
    assert len(NUMBERS) > 10
    kept = commands()[command].flags[flag].parser.flag
    more = ["--complete=x.png"] if flag in ("rows", "samples", "keep") else []
    more += ["--beams=2"] if flag == "length_penalty" else []
    for value in VALUES:
        said = outcome(command, "--workdir=/dev/null/run", f"--{flag}={value}", *more)
        if value in ("nan", "inf", "1e999", "many", "") or kept.range.violation(kept.kind(float(value))):
            assert f"--{flag}" in said, (value, said)
        else:
            assert "/dev/null" in said and f"--{flag}" not in said, (value, said)
