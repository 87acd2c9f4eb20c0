"""The way in from Python: what docs/python.md prints, and the same numbers as every other way to run the model."""

import doctest
import os
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from runs import ROOT, train_here

import pretrain
from models.errors import ModelError
from pretrain import config as configs
from pretrain.checkpoints.fresh import start_fresh
from pretrain.cli import main
from pretrain.errors import UserError
from pretrain.workdir import Workdir

PAGE = ROOT / "docs" / "python.md"
VARIES = "# depends on the text"  # ends a line of the page whose output is another with another Python's library


class Checker(doctest.OutputChecker):
    """Of what depends on the text, the first word and where there are numbers count; of all else, every letter."""

    def check_output(self, want, got, flags):
        return got == want or (bool(flags) and _form(got) == _form(want))


def _form(output: str) -> str:
    return re.sub(r"\d", "0", output.split()[0])


def trained(place, text, *flags):
    """The run of the page, on text that takes seconds less to read."""
    flags += f"--config.data.train=text:{text}/*.py", "--config.log.tensorboard=false"
    workdir = place / "runs" / "quickstart-tiny"
    assert main(["train", "--config=configs/quickstart.py:tiny", f"--workdir={workdir}", *flags]) == 0
    return workdir


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, text):
    """A few updates of the same run."""
    flags = "--config.train.steps=6", "--config.checkpoint.every=2", "--config.evaluate.every=3"
    return trained(tmp_path_factory.mktemp("notebook"), text, *flags)


@pytest.fixture(scope="module")
def run(tiny):
    return pretrain.open(tiny)


@pytest.mark.slow
def test_the_page_prints_what_is_there(tmp_path, text, monkeypatch):
    trained(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(PAGE.read_text().replace("```\n", "\n"), {}, "python.md", None, 0)
    assert len(test.examples) > 8
    for example in test.examples:
        if example.source.rstrip().endswith(VARIES):
            example.options[doctest.ELLIPSIS] = True
    said = []
    runner = doctest.DocTestRunner(checker=Checker(), verbose=False)
    assert runner.run(test, out=said.append).failed == 0, "".join(said)


def test_parameters_are_split_over_all_devices_and_have_their_true_shapes(run):
    tokens = run.variables["params"]["tokens"]
    assert tokens.shape == (512, 64)
    assert len(tokens.sharding.device_set) == jax.device_count() == 8
    assert tokens.addressable_shards[0].data.size == tokens.size // 8


def test_logits_are_those_of_the_module_for_any_number_of_rows(run):
    tokens = np.random.default_rng(0).integers(0, 512, (3, 11))
    logits = run.logits(tokens)
    assert logits.shape == (3, 11, 512)
    alone = {"params": run.local_params}
    hidden = run.model.apply(alone, tokens=tokens).hidden
    expected = run.model.apply(alone, hidden, method="logits")
    close = {"rtol": 1e-4, "atol": 1e-5}  # one program or operation by operation: float32 rounds otherwise
    np.testing.assert_allclose(logits, expected, **close)
    np.testing.assert_allclose(run.logits(tokens[1]), logits[1], **close)


def test_greedy_text_is_what_the_logits_say(run):
    ids = run.prompts(["import os"]).begun[0]
    for _ in range(4):
        ids = np.append(ids, int(run.logits(ids)[-1].argmax()))
    assert run.generate("import os", max_tokens=4, temperature=0) == run.tokenizer.decode(ids)


def test_text_is_written_without_saying_how_much(run):
    assert run.generate("import os", seed=1).startswith("import os")


def test_text_is_written_by_the_variables_that_are_there(run, monkeypatch):
    """Others may take their place at any time; by zeros all tokens are as likely, and the first is taken."""
    before = run.generate("a", max_tokens=4, temperature=0)
    zeros = jax.tree.map(lambda leaf: leaf * 0, run.variables)
    monkeypatch.setattr(run, "variables", zeros)
    assert run.generate("a", max_tokens=4, temperature=0) == "a" + run.tokenizer.decode([0] * 4) != before


def test_the_command_writes_the_same_text(run, tiny, capsys, signals):
    workdir = f"--workdir={tiny}"
    assert main(["generate", workdir, "--prompt=def ", "--max_tokens=8", "--temperature=0"]) == 0
    assert capsys.readouterr().out.removesuffix("\n") == run.generate("def ", max_tokens=8, temperature=0)


def test_a_run_that_was_put_aside_is_read_with_the_tokenizer_that_it_left(tiny, run, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(tiny, workdir)
    start_fresh(str(workdir), "first", configs.saved(str(workdir)))
    aside = pretrain.open(workdir / "earlier" / "first")
    assert (aside.step, aside.tokenizer.fingerprint) == (run.step, run.tokenizer.fingerprint)
    assert Workdir(workdir / "earlier" / "first").folders == Workdir(workdir).folders
    again = workdir / "earlier" / "first"
    start_fresh(str(again), "twice", configs.saved(str(again)))
    assert Workdir(again / "earlier" / "twice").folders == Workdir(workdir).folders
    of_that_name = tmp_path / "earlier" / "first"  # of no run that was put aside
    assert Workdir(of_that_name).folders.tokenizer.parent == of_that_name


@pytest.mark.parametrize("step", ["best", "4"])
def test_other_checkpoints(tiny, run, step):
    with pytest.raises(UserError, match="no devices are given; give at least one, or none at all"):
        pretrain.open(tiny, devices=[])
    for devices in (jax.devices()[0], "cpu", [0]):
        with pytest.raises(UserError, match=r"devices is .*, not a list of JAX's devices; give one, such as"):
            pretrain.open(tiny, devices=devices)
    with pytest.raises(UserError, match="devices has some device more than once; give each once"):
        pretrain.open(tiny, devices=jax.devices() * 2)
    other = pretrain.open(tiny, step=step, devices=jax.devices()[:1])
    assert other.step in ((3, 6) if step == "best" else (4,))
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
    ("call", "error", "words"),
    [
        (
            lambda run: run.logits([[1, 512]]),
            UserError,
            "'tokens' go from 1 to 512, and the model reads those from 0 to 511",
        ),
        (
            lambda run: run.logits([[1]], segment=[[1]]),
            UserError,
            "the model takes no 'segment', did you mean 'segments'?",
        ),
        (lambda run: run.logits([1, -1]), UserError, "'tokens' go from -1 to 1"),
        (lambda run: run.logits([[[1]]]), UserError, "'tokens' is [1, 1, 1]; give rows of numbers, or one row"),
        (lambda run: run.logits([1, 2], positions=[0, 64]), UserError, "'positions' go from 0 to 64, and the model"),
        (lambda run: run.logits([1, 2], segments=[1]), UserError, "'segments' is [1, 1] and 'tokens' [1, 2]; give a"),
        (
            lambda run: run.logits([1, 2], segments=[-1, 1]),
            UserError,
            "'segments' go from -1 to 1, and the model reads",
        ),
        (lambda run: run.prompts([]), UserError, "there is no prompt; give at least one"),
        (lambda run: run.prompts("a"), UserError, "the prompts are 'a', not a list of texts"),
        (lambda run: run.prompts(None), UserError, "the prompts are None, not a list of texts"),
        (lambda run: run.generate("\ud800"), UserError, "the prompt '\\ud800' is not UTF-8; write it in UTF-8"),
        (lambda run: run.generate("a", top_k=-1), UserError, "top_k=-1; it must be at least 0"),
        (lambda run: run.logits([[1] * 65]), ModelError, "65 tokens do not fit context=64"),
        (lambda run: run.logits([]), UserError, "'tokens' is empty; give whole numbers, such as run.prompts("),
        (lambda run: run.logits([1.5]), UserError, "'tokens' is of float64; give whole numbers"),
        (lambda run: run.logits([[1], [1, 2]]), UserError, "'tokens' has rows of unequal lengths"),
        (lambda run: run.generate(["a", "bc"]), UserError, "the prompt is ['a', 'bc'], not a text; give one str"),
        (lambda run: pretrain.open("nowhere"), UserError, "nowhere is not a work folder"),
        (lambda run: run.generate("a", max_tokens=100, temperature=0), UserError, "exceed the model's context of 64"),
    ],
)
def test_mistakes_are_one_sentence(run, call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call(run)


def test_importing_is_cheap():
    code = "import sys, pretrain; sys.exit(bool({'jax', 'flax', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


SCRIPT = """
from input_pipeline.token_store import parts
from pretrain.commands import run
from pretrain.commands.arguments import Prepare

parts.BYTES = 1000  # as if there were so much text that processes share it
keys = ({data!r}, ("tokenizer.kind", "bytes"))
{guard}run(Prepare(config="configs/quickstart.py:tiny", workdir="made", overrides=keys))
"""


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '], ids=("bare", "guarded"))
def test_a_script_that_processes_read_again(guard, text, tmp_path):
    """Each once ran it anew, and all that was said of them was that they lacked memory."""
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=guard, data=("data.train", f"text:{text}/*.py")))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    line = [sys.executable, "script.py"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    if guard:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1 and "bootstrapping" not in done.stderr
    assert 'put what trains or prepares in it under `if __name__ == "__main__":` (docs/python.md)' in done.stderr
