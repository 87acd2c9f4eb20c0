"""The way in from Python: what docs/python.md prints, and the same numbers as every other way to run the model."""

import doctest
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from runs import ROOT, train_here

import pretrain
from pretrain.cli import main
from pretrain.errors import USER_ERRORS

PAGE = ROOT / "docs" / "python.md"
VARIES = "# depends on the text"  # ends a line of the page whose output is another with another Python's library


class Checker(doctest.OutputChecker):
    """Of what depends on the text, the first word and where there are numbers count; of all else, every letter."""

    def check_output(self, want, got, flags):
        return got == want or (bool(flags) and _form(got) == _form(want))


def _form(output: str) -> str:
    return re.sub(r"\d", "0", output.split()[0])


@pytest.fixture(scope="module")
def run(whole):
    return pretrain.open(whole)


@pytest.mark.slow
def test_the_page_prints_what_is_there(tmp_path, text, monkeypatch):
    # The run of the page, on text that takes seconds less to read.
    flags = [f"--config.data.train=text:{text}/*.py", "--config.log.tensorboard=false"]
    flags.append(f"--workdir={tmp_path}/runs/quickstart-tiny")
    assert main(["train", "--config=configs/quickstart.py:tiny", *flags]) == 0
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(PAGE.read_text().replace("```\n", "\n"), {}, "python.md", None, 0)
    assert len(test.examples) > 8
    for example in test.examples:
        if example.source.rstrip().endswith(VARIES):
            example.options[doctest.ELLIPSIS] = True
    said = []
    runner = doctest.DocTestRunner(checker=Checker(), verbose=False)
    assert runner.run(test, out=said.append).failed == 0, "".join(said)


def test_logits_are_those_of_the_module_for_any_number_of_rows(run):
    table = run.variables["params"]["tokens"]
    assert table.shape == (257, 16) and table.addressable_shards[0].data.size == table.size // 8
    tokens = np.random.default_rng(0).integers(0, 257, (3, 11))
    logits = run.logits(tokens)
    assert logits.shape == (3, 11, 257)
    alone = {"params": run.local_params}
    hidden = run.model.apply(alone, tokens=tokens).hidden
    expected = run.model.apply(alone, hidden, method="logits")
    close = {"rtol": 1e-4, "atol": 1e-5}  # one program or operation by operation: float32 rounds otherwise
    np.testing.assert_allclose(logits, expected, **close)
    np.testing.assert_allclose(run.logits(tokens[1]), logits[1], **close)


def test_greedy_text_is_what_the_logits_say(run, whole, capsys, signals):
    ids = run.prompts(["import os"]).begun[0]
    for _ in range(4):
        ids = np.append(ids, int(run.logits(ids)[-1].argmax()))
    written = run.generate("import os", max_tokens=4, temperature=0)
    assert written == run.tokenizer.decode(ids)
    capsys.readouterr()
    assert main(["generate", f"--workdir={whole}", "--prompt=import os", "--max_tokens=4", "--temperature=0"]) == 0
    assert capsys.readouterr().out.removesuffix("\n") == written


@pytest.mark.parametrize("step", ["best", "4"])
def test_other_checkpoints(whole, run, step):
    other = pretrain.open(whole, step=step, devices=jax.devices()[:1])
    assert other.step in ((8, 16, 24) if step == "best" else (4,))
    assert other.variables["params"]["tokens"].sharding.device_set == {jax.devices()[0]}
    same = np.array_equal(other.variables["params"]["tokens"], run.variables["params"]["tokens"])
    assert same == (other.step == run.step)


@pytest.mark.parametrize("options", [{"train__backend": "pmap"}, {"mesh__data": 4, "mesh__fsdp": 2}])
@pytest.mark.slow
def test_runs_of_every_backend_and_mesh(tmp_path, text, signals, options):
    assert train_here(tmp_path / "run", text, train__steps=1, schedule__warmup=0, train__batch_size=8, **options) == 0
    opened = pretrain.open(tmp_path / "run")
    assert opened.variables["params"]["tokens"].shape == (257, 16)
    assert np.isfinite(opened.logits(opened.prompts(["ab"]).begun[0])).all()


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda run: run.logits([[1, 512]]), "tokens"),
        (lambda run: run.logits([1, -1]), "tokens"),
        (lambda run: run.logits([[1]], segment=[[1]]), "segments"),
        (lambda run: run.logits([1, 2], positions=[0, 64]), "positions"),
        (lambda run: run.logits([1, 2], segments=[1]), "segments"),
        (lambda run: run.logits([[1] * 65]), "context"),
        (lambda run: run.logits([]), "tokens"),
        (lambda run: run.logits([1.5]), "tokens"),
        (lambda run: run.generate("a", top_k=-1), "top_k"),
        (lambda run: run.generate("a", max_tokens=100, temperature=0), "context"),
        (lambda run: pretrain.open("nowhere"), "nowhere"),
    ],
)
def test_python_mistake_names_the_argument(run, call, key):
    with pytest.raises(USER_ERRORS, match=key):
        call(run)


def test_importing_is_cheap():
    code = "import sys, pretrain; sys.exit(bool({'jax', 'flax', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
