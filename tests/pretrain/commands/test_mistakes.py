"""A user's mistake gets one sentence with the remedy, exit code 2, and no traceback; every one here is made."""

import errno
import io
import os
import sys

import pytest
from runs import SMALL, train

from input_pipeline.token_store import build
from pretrain import config as configs
from pretrain.cli import main, verdict
from pretrain.distributed import streams

CONFIG = "--config=configs/quickstart.py:tiny"


@pytest.fixture
def run(capsys, tmp_path, text, monkeypatch):
    """Runs a command in this process and returns its one sentence."""
    monkeypatch.setenv("LONGHAUL_CACHE", "")

    def run(*arguments):
        code = main([a.replace("WORKDIR", str(tmp_path / "run")).replace("TEXT", str(text)) for a in arguments])
        message = capsys.readouterr().err.strip().splitlines()[-1]
        assert code == 2, message
        assert message.startswith("pretrain: ")
        assert "Traceback" not in message
        return message

    return run


def small(**changes):
    """The flags of a small run, with changes."""
    keys = SMALL | {"data.train": "text:TEXT/*.py"} | {k.replace("__", "."): v for k, v in changes.items()}
    return ["train", CONFIG, "--workdir=WORKDIR", *(f"--config.{k}={v}" for k, v in keys.items())]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "no command 'trian', did you mean 'train'"),
        (["train", "--wrkdir=x"], "no flag --wrkdir, did you mean '--workdir'"),
        (["train", "--steps=10"], "`pretrain train` has no flag --steps, did you mean --config.train.steps=10?"),
        (["train", "--train.steps=10"], "has no flag --train.steps, did you mean --config.train.steps=10?"),
        (["train", "--model.width=128"], "has no flag --model.width, did you mean --config.model.width=128?"),
        (["train", "--train.stps=10"], "has no flag --train.stps, did you mean --config.train.steps=10?"),
        (["train", "--width=128"], "did you mean --config.model.width=128?"),
        (["train", "--config.steps=10"], "config.steps, did you mean --config.train.steps=10?"),
        (["train", "--warmup_ratio=0.1"], "has no flag --warmup_ratio; a warm-up is so many updates, and no share of"),
        (
            ["describe", "--min_lr=1e-5"],
            "has no flag --min_lr; the last rate is a share of the peak, such as 0.1",
        ),
        (
            ["train", "--rope_theta=1e6"],
            "has no flag --rope_theta; rotary positions are config.model.positions",
        ),
        (["generate", "--start=What"], "has no flag --start; what is continued is --prompt=TEXT"),
        (["generate", "--device=cpu"], "has no flag --device; JAX takes the accelerator that it finds, and another by"),
        (["train", "--compile=False"], "has no flag --compile; what is computed is always compiled"),
        (["train", "--report_to=wandb"], "has no flag --report_to; figures are written into the work folder, as CSV"),
        (["train", "--qqqq"], "no flag --qqqq; choose one of: --config, --config.KEY, --fresh, --workdir"),
        (["evaluate", "--evaluate.stride=9"], "did you mean --config.evaluate.stride=9?"),
        (["plan", CONFIG, "--nosearch=1"], "--nosearch=1 does not take an argument; see `pretrain plan --help`"),
        (["evaluate", "--workdir=x", "--gzip=yes"], "--gzip=yes is neither true nor false; write --gzip or --nogzip"),
        (["train", "--config.data.holdout=5%"], "holdout is '5%', which is not a float; write for example 0.05"),
        (["train", f"--workdir={__file__}"], "test_mistakes.py is a file, not a folder; give the folder of a run"),
        (["prepare", f"--workdir={__file__}"], "test_mistakes.py is a file, not a folder; give the folder of a run"),
        (["train", "--workdir=s3://bucket/a*"], "has a '*', '?' or '[', which an object store's tools take for a"),
        (["goodput", f"--workdir={'a' * 300}"], "aaa: File name too long; move it away, or give"),
        (["train", "--workdir=runs/a\\b"], "has a backslash in its path, where no checkpoint can be"),
        (
            ["train", "--workdir=runs/a\udcff"],
            "--workdir=runs/a\\udcff is not UTF-8, as the path of checkpoints must be",
        ),
        (["import", "--folder=hf", "--workdir=runs/a\\b"], "has a backslash in its path, where no checkpoint can be"),
        (["evaluate", f"--workdir={__file__}"], "test_mistakes.py is a file, not a folder; give the folder of a run"),
        (["describe", CONFIG, "--workdir=x"], "--config and --workdir both say what is described; leave one out"),
        (["describe", "--workdir=/nowhere"], "/nowhere is not a work folder"),
        (["train", "--length=9"], "did you mean --config.data.length=9 or --config.evaluate.length=9?"),
        (["evaluate", "--workdir=x", "--every=9"], "did you mean --config.evaluate.every=9?"),
        (["evaluate", "--workdir=x", "--steps=9"], "did you mean '--step'?"),
        (["generate", "--workdir=x", "--temp=0.5"], "did you mean '--temperature'?"),
        (["evaluate", "--workdir=x", "--length=-5"], "--length=-5; it must be at least 0"),
        (["evaluate", "--workdir=x", "--batches=-1"], "--batches=-1; it must be at least 0"),
        (
            ["generate", "--workdir=x", "--keep=nan"],
            "--keep is 'nan', which is not a finite number; write",
        ),
        (["generate", "--workdir=x", "--length_penalty=0"], "--length_penalty=0 is of beam search; give --beams too"),
        (["generate", "--workdir=x", "--beams=4", "--top_k=1"], "--top_k=1 is of sampling, and --beams=4 searches"),
        (["generate", "--workdir=x", "--beams=4", "--top_p=0.5"], "--top_p=0.5 is of sampling, and --beams=4 searc"),
        (["generate", "--workdir=x", "--beams=4", "--seed=7"], "--seed=7 is of sampling, and --beams=4 searches"),
        (
            ["train", CONFIG, "--config.schedule.peak=nan"],
            "schedule.peak is 'nan', which is not a finite number",
        ),
        (["generate", "--workdir=x", "--top_p=0"], "--top_p=0.0; it must be above 0 and at most 1"),
        (["train", "stray"], "'stray' is not a flag; see `pretrain train --help`"),
        (["train", "config=configs/gpt2.py"], "did you mean --config=configs/gpt2.py?"),
        (["train", "gpt2.py:small"], "'gpt2.py:small' is not a flag; did you mean --config=gpt2.py:small?"),
        (["train", "train.steps=5"], "is not a flag; did you mean --config.train.steps=5?"),
        (["train", "config.train.steps=5"], "is not a flag; did you mean --config.train.steps=5?"),
        (["evaluate", "workdir=x"], "is not a flag; did you mean --workdir=x?"),
        (["evaluate", "--workdir=x", "--format=xml"], "see `pretrain evaluate --help`"),
        (["evaluate"], "--workdir is missing"),
        (["train", CONFIG, "--workdir="], "--workdir is empty; give it a value, or leave it out"),
        (["train", CONFIG, "--workdir=x", "--fresh="], "--fresh is empty; give it a value, or leave it out"),
        (["evaluate", "--workdir=x", "--data="], "--data is empty; give it a value, or leave it out"),
        (["generate", "--workdir=x", "--complete="], "--complete is empty; give it a value, or leave it out"),
        (["train", "--config=", "--workdir=x"], "--config is empty; give it a recipe, such as configs/gpt2.py:medium"),
        (["evaluate", "--workdir=x", CONFIG], "leave --config out"),
        (["evaluate", "--workdir=x", "--config.train.steps=3"], "steps out, set keys of config.evaluate alone"),
        (["generate", "--workdir=x", "--config.evaluate.stride=3"], "work folder; leave --config.evaluate.stride out"),
        (["generate", CONFIG], "leave --config out and give --workdir"),
        (["describe", "--config=configs/gpt33.py"], "did you mean --config=configs/gpt3.py?"),
        (["describe", "--config=configs/gpt2.py:huge"], "choose one of: large, medium, small, xl"),
        (["describe", "--config=configs/common.py:x"], "common.py"),
        (
            ["describe", CONFIG, "--config.model.memory=64"],
            "config.model.memory of a model of kind 'decoder': its positions count from the start of a row",
        ),
        (["describe", CONFIG, "--config.train.stps=3"], "no config key config.train.stps, did you mean 'steps'"),
        (["describe", CONFIG, "--config.trian.steps=3"], "did you mean 'train'"),
        (["describe", CONFIG, "--config.train=3"], "is a section; set one of its keys"),
        (["describe", CONFIG, "--config.evaluate.model=3"], "is a section; set one of its keys: activation, "),
        (["describe", CONFIG, "--config.train.steps=many"], "which is not an int; write for example 100"),
        (["describe", CONFIG, "--config.schedule.peak=big"], "which is not a float"),
        (["describe", CONFIG, "--config.model.scan=maybe"], "write true or false"),
        (
            ["describe", CONFIG, "--config.train.steps.x=1"],
            "a value, not a section with keys; write --config.train.st",
        ),
        (["describe", CONFIG, "--config.model.kind=recurrent"], "a recipe of that kind: configs/transformer_xl.py"),
        (["describe", CONFIG, "--config.model.kind=decodr"], "config.model.kind is 'decodr', did you mean 'decoder'?"),
        (["describe", CONFIG, "--config.evaluate.model.kind=recurrent"], "config.evaluate.model.kind is 'decoder', as"),
        (["describe", CONFIG, "--config.model.attention=dense"], """; write --config.model.attention="('dense',)\""""),
        (["describe", CONFIG, "--config.model.attention=dense, local_8"], """attention="('dense', 'local_8')\""""),
        (["describe", CONFIG, "--config.model.attention=(dense,local_8)"], """attention="('dense', 'local_8')\""""),
        (
            ["describe", CONFIG, "--config.model.attention=(local_8,)"],
            """; write --config.model.attention="('local_8',)\"""",
        ),
        (["describe", CONFIG, "--config.data.weights=5"], 'which is not a tuple; write --config.data.weights="(5,)"'),
        (["describe", CONFIG, "--config.data.weights=x"], "which is not a tuple; it must be numbers above 0"),
        (
            ["describe", CONFIG, "--config.log.profile=5"],
            "must be empty, or the first and the last update, such as (",
        ),
        (
            ["describe", CONFIG, "--config.mesh.rules=5"],
            """-config.mesh.rules="(('batch', ('data', 'fsdp')),)\"""",
        ),
        (
            ["describe", CONFIG, "--config.train.learning_rate=1"],
            "did you mean config.schedule.peak?",
        ),
        (["describe", CONFIG, "--config.lr=1"], "there is no config key config.lr, did you mean config.schedule.peak?"),
        (["describe", CONFIG, "--config.optimizer.beta1=0.9"], "optimizer.beta1, did you mean config.optimizer.b1?"),
        (["describe", CONFIG, "--config.train.epochs=3"], "epochs; training is counted in updates, of"),
        (["describe", CONFIG, "--config.model.dropout=0.1"], "dropout_attention, dropout_embedding, dropout_ff, drop"),
        (["train", f"--dataset={__file__}"], f"is a path without the kind of its source; write text:{__file__}"),
        (["train", "--dataset=stdlib"], "has no flag --dataset, did you mean --config.data.train=stdlib?"),
        (["train", "--dataset"], "did you mean --config.data.train?"),
        (["describe", CONFIG, "--learning_rate=1"], "did you mean --config.schedule.peak=1?"),
        (["train", CONFIG, "--dropout_rate=0.1"], "dropout has a rate for each place: config.model.dropout_attention"),
        (["train", CONFIG, "--config.model.attention=dot_product"], "what computes it is config.model.attention_path"),
        (["train", CONFIG, "--epochs=3"], "has no flag --epochs; training is counted in updates"),
        (["train", CONFIG, "--resume"], "has no flag --resume; the same command goes on from the newest checkpoint"),
        (["train", CONFIG, "--out_dir=runs/x"], "has no flag --out_dir, did you mean --workdir=runs/x?"),
        (["evaluate", "--out_dir"], "did you mean --workdir?"),
        (["train", "--model_name_or_path=gpt2"], "`pretrain import --folder=FOLDER --workdir=RUN`, and a run begins"),
        (["generate", "--num_samples=2"], "given: --prompt=TEXT --prompt=TEXT"),
        (["describe", CONFIG, "--config.model.attention=flash"], "what computes it is config.model.attention_path"),
        (["describe", CONFIG, "--config.objective.kind=mlm"], "did you mean 'masked'?"),
        (["describe", CONFIG, "--config.model.n_positions=64"], "did you mean config.model.context?"),
        (["describe", CONFIG, "--config.train.num_train_steps=9"], "did you mean config.train.steps?"),
        (["describe", CONFIG, "--config.base_emb_dim=64"], "did you mean config.model.width?"),
        (["describe", CONFIG, "--config.ici_fsdp_parallelism=2"], "did you mean config.mesh.fsdp?"),
        (["describe", CONFIG, "--config.train.seed=3"], "did you mean config.seed?"),
        (["sample"], "there is no command 'sample', did you mean 'generate'?"),
        (["describe", CONFIG, "--flagfile=/nowhere"], "has no flag --flagfile; see"),
        (["describe", CONFIG, "--undefok=topologyy", "--topologyy=1"], "has no flag --undefok; see"),
        (["describe", CONFIG, "--config.train.steps"], "lacks a value"),
        (["describe", CONFIG, "--config.model.heads=3"], "heads"),
        (["describe", CONFIG, "--config.optimizer.name=adam"], "did you mean 'adamw'"),
    ],
)
def test_command_line_and_config(run, arguments, words):
    assert words in run(*arguments)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train__steps": 0}, "config.train.steps = 0; it must be at least 1"),
        ({"train__batch_size": 6}, "does not divide over the 8 devices"),
        ({"train__accumulate": 3}, "does not divide into config.train.accumulate = 3"),
        ({"data__length": 128}, "longer than the model's config.model.context = 64"),
        ({"model__vocab_size": 100}, "smaller than the tokenizer's 257 entries"),
        ({"mesh__data": 3}, "needs 3 devices and there are 8"),
        (
            {"mesh__fsdp": 3},
            "(data=-1, fsdp=3, sequence=1, tensor=1) needs a multiple of 3 devices and there are 8",
        ),
        ({"mesh__data": 0}, "config.mesh.data = 0; it must be at least 1, or -1 for whatever is left"),
        ({"mesh__data": 1, "mesh__tensor": 8}, "config.model.heads = 2 does not divide over the 8 devices that share"),
        ({"mesh__data": 1, "mesh__tensor": 8, "model__heads": 8, "model__ff": 30}, "size 30 along 'ff', which the 8"),
        ({"mesh__data": 1, "mesh__sequence": 8}, "2 attention heads of one pattern on 1 tensor and 8 sequence devices"),
        ({"mesh__rules": "(('batch', 'data'),)"}, "which config.mesh.rules does not map"),
        ({"mesh__rules": "(('batch', 'daata'),)"}, "did you mean 'data'"),
        ({"mesh__rules": "(5,)"}, "config.mesh.rules holds 5; a rule pairs a logical axis with a mesh axis"),
        ({"mesh__rules": "(('batch', 'data', 'fsdp'),)"}, "config.mesh.rules holds ('batch', 'data', 'fsdp')"),
        ({"mesh__rules": "(('batch', ('data', 5)),)"}, "config.mesh.rules holds ('batch', ('data', 5))"),
        ({"mesh__rules": "()"}, "config.mesh.rules does not map 'batch', the rows of a batch"),
        ({"mesh__rules": "(('batch', 'data'), ('batch', None))"}, "twice"),
        ({"evaluate__stride": 16, "data__layout": "packed"}, "evaluate.stride = 16 lets windows of one text overlap, "),
        ({"mesh__data": 1, "mesh__sequence": 8, "evaluate__length": 60}, "evaluate.length = 60 does not divide over"),
        ({"train__backend": "pjit"}, "config.train.backend is 'pjit'"),
        ({"train__backend": "pmap", "mesh__fsdp": 2}, "exclude each other"),
        (
            {"train__steps": 4, "log__profile": "(5, 9)"},
            "log.profile = (5, 9) traces no update of this run, which ends with update 4 (config.train.steps); name",
        ),
        ({"train__on_bad_step": "ignore"}, "choose one of: skip, rewind"),
        (
            {"schedule__kind": "linear", "schedule__hold": 2, "schedule__beneath_warmup": True},
            "falls from update 0 on",
        ),
        ({"mesh__data": 64}, "so many virtual ones: python -m launch.local --processes 1 --devices N -- train"),
        ({"data__train": "text:/nowhere/*.txt"}, "/nowhere/*.txt"),
        ({"tokenizer__kind": "words"}, "tokenizer"),
        ({"model__layers": 0}, "layers"),
    ],
)
def test_configs_that_cannot_be_trained(run, changes, words):
    assert words in run(*small(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__vocab_size": 100}, "config.model.vocab_size = 100 is smaller than the tokenizer's 257 entries"),
        ({"tokenizer__kind": "bpe"}, "tokenizer.kind is 'bpe'; choose one of"),
        ({"data__train": ""}, "data.train is empty"),
        ({"data__length": 128}, "longer than the model's config.model.context = 64"),
    ],
)
@pytest.mark.parametrize("command", ["prepare", "describe"])
def test_what_training_refuses_is_refused_at_once(run, tmp_path, command, changes, words):
    """Text that was tokenised for nothing once took the hours of it."""
    _, config, workdir, *keys = small(**changes)
    assert words in run(command, config, *([workdir] if command == "prepare" else []), *keys)
    assert not list(tmp_path.glob("run*"))


def test_more_symbols_than_the_model_has_are_refused_before_the_text_is_encoded(run, tmp_path):
    _, *arguments = small(tokenizer__kind="symbols", model__vocab_size=3)
    assert "config.model.vocab_size = 3 is smaller than the tokenizer's" in run("prepare", *arguments)
    assert not (tmp_path / "run" / "data").exists()


def test_a_work_folder_of_another_config_names_the_keys(run, whole, text):
    message = run(*small(schedule__peak=0.5), f"--workdir={whole}")
    assert "schedule.peak (0.003 there, 0.5 here)" in message
    message = run(*small(schedule__kind="cosin"), f"--workdir={whole}")
    assert "config.schedule.kind is 'cosin', did you mean 'cosine'?" in message
    assert "data.validation ('' there, stdlib here)" in run(*small(data__validation="stdlib"), f"--workdir={whole}")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.norm=rmsnorm", "model.norm is 'rmsnorm', which is unknown; choose from: layer, rms"),
        ("model.attention=('loc_8',)", "attention pattern 'loc_8' is unknown; choose from: "),
    ],
)
def test_a_mistake_in_a_key_is_not_laid_to_the_work_folder_of_a_run(run, tmp_path, key, words):
    """It once was "the work folder cannot be used (...); choose another --workdir", where all is the same."""
    configs.save(configs.load("configs/quickstart.py:tiny"), str(tmp_path / "run"))
    (tmp_path / "run" / "checkpoints" / "4").mkdir(parents=True)
    assert run("train", CONFIG, "--workdir=WORKDIR", f"--config.{key}").startswith(f"pretrain: {words}")


@pytest.mark.parametrize("command", ["train", "prepare"])
def test_a_run_that_is_not_there_is_not_begun_as_another(run, tmp_path, command):
    """A misspelt --workdir once trained the quickstart."""
    said = run(command, f"--workdir={tmp_path}/typo")
    assert said.startswith(
        f"pretrain: {tmp_path}/typo has no run to go on with (no config.json); correct --workdir, or"
    )
    assert not (tmp_path / "typo").exists()


def test_what_nobody_named_is_said_to_be_trained(capsys):
    assert main(["train", "--config.train.steps=0"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "no --config: training configs/quickstart.py"


def test_a_model_of_hugging_faces_library_is_no_run(run, tmp_path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}')
    said = run("evaluate", f"--workdir={tmp_path}/bert")
    assert "is a model of Hugging Face's library; `pretrain import --folder=" in said and "makes a work folder" in said


def test_restoring_what_is_not_there(run, whole, tmp_path):
    assert "is not a work folder" in run("evaluate", f"--workdir={tmp_path}")
    assert "no checkpoint '7'; choose one of: 4, 8, 12, 16, 20, 24, latest, best" in run(
        "evaluate", f"--workdir={whole}", "--step=7"
    )
    too_long = "--length=100 is longer than the model's config.model.context = 64 positions; lower it"
    assert run("evaluate", f"--workdir={whole}", "--length=100").endswith(too_long)
    assert "longer than the window's 64" in run("evaluate", f"--workdir={whole}", "--stride=65")
    assert "needs the whole split" in run("evaluate", f"--workdir={whole}", "--batches=1", "--word_level")
    assert "--data=SOURCE" in run("evaluate", f"--workdir={whole}", "--split=test")
    assert "leave one out" in run("evaluate", f"--workdir={whole}", "--split=train", "--data=stdlib")
    assert "matches no file" in run("evaluate", f"--workdir={whole}", "--data=text:/nowhere")
    assert "--data = 'stdlb' has an unknown source kind" in run("evaluate", f"--workdir={whole}", "--data=stdlb")


def test_validation_text_that_is_a_copy_of_the_training_text(run, tmp_path):
    for name in ("one", "another"):
        (tmp_path / f"{name}.txt").write_text("A line of a book.\n" * 40)
    one, another = (f"text:{tmp_path}/{name}.txt" for name in ("one", "another"))
    said = run(*small(data__train=one, data__validation=another))
    assert f"data.validation = '{another}' and data.train = '{one}' both read the same 1 document, so that" in said
    assert said.endswith("name other text, or leave it empty to hold out a share of data.train")


def test_a_full_temporary_folder(run, whole, text, monkeypatch):
    def full(path, value):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(build, "write_json", full)
    said = run("evaluate", f"--workdir={whole}", f"--data=text:{text}/main.py")
    assert "No space left on device; make room or point TMPDIR to another folder" in said


def test_prompts_that_do_not_fit(run, whole):
    assert "context" in run("generate", f"--workdir={whole}", f"--prompt={'x' * 100}", "--max_tokens=1")
    message = run("generate", f"--workdir={whole}", "--prompt=import os", "--max_tokens=100")
    assert "--max_tokens=100 exceed the model's context of 64; lower that to at most 55, or shorten the" in message
    assert main(["generate", f"--workdir={whole}", "--prompt=import os"]) == 0  # as many as there is room for
    assert "cannot be read" in run("generate", f"--workdir={whole}", "--prompt_file=/nowhere")
    assert "is empty; write one prompt a line" in run("generate", f"--workdir={whole}", "--prompt_file=/dev/null")
    undecodable = b"caf\xe9".decode("utf-8", "surrogateescape")
    message = run("generate", f"--workdir={whole}", f"--prompt={undecodable}")
    assert message == "pretrain: the prompt 'caf\\udce9' is not UTF-8; write it in UTF-8"


def test_output_that_the_terminal_cannot_show(whole, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # put back what is replaced
    streams.settle()
    assert main(["generate", f"--workdir={whole}", "--prompt=caf\xe9", "--max_tokens=1"]) == 0
    sys.stdout.flush()
    assert capfd.readouterr().out.startswith(r"caf\xe9")


def test_the_real_program_shows_no_traceback(text, tmp_path):
    done = train(tmp_path / "run", text, train__stepz=3)
    assert done.returncode == 2
    assert done.stderr.strip() == "pretrain: there is no config key config.train.stepz, did you mean 'steps'?"


def test_a_file_that_may_not_be_read_is_not_said_to_be_one_to_write(tmp_path, monkeypatch):
    """Nor a folder on the way to it. Root may read all, so that what is allowed is told by hand."""
    closed, file = tmp_path / "closed", tmp_path / "closed" / "file"
    closed.mkdir()
    denied = PermissionError(errno.EACCES, "Permission denied", str(file))
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    assert verdict(denied) == (2, f"pretrain: cannot read {closed}: Permission denied; make it readable\n")
    file.write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: path != file)
    assert verdict(denied) == (2, f"pretrain: cannot read {file}: Permission denied; make it readable\n")
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    assert verdict(denied)[1].startswith(f"pretrain: cannot write {file}: Permission denied; make room")


def test_a_link_to_nothing_is_named(tmp_path):
    (link := tmp_path / "goodput.jsonl").symlink_to("/nonexistent/goodput.jsonl")
    said = f"pretrain: {link} is a link to what is not there; make that, or remove the link\n"
    assert verdict(FileNotFoundError(errno.ENOENT, "No such file or directory", str(link))) == (2, said)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("command", ["import", "export"])
def test_what_one_process_does(run, monkeypatch, tmp_path, command, count):
    """Several would do it over one another; a launcher of one is none."""
    for name, value in (("COORDINATOR", "127.0.0.1:1234"), ("PROCESSES", str(count)), ("PROCESS", "0")):
        monkeypatch.setenv(f"LONGHAUL_{name}", value)
    said = run(command, f"--folder={tmp_path}/a", f"--workdir={tmp_path}/b")
    assert ("is one of several; start it without a launcher" in said) == (count > 1)
