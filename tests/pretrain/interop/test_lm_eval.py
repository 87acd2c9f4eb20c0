"""The same scores from our runner, and from lm-evaluation-harness on our run and on its export."""

import importlib
import json

import hub
import numpy as np
import pytest

import pretrain
from pretrain.cli import main
from pretrain.interop.hf_import import import_folder
from pretrain.scoring.lm_eval_model import lm_eval_model

torch = pytest.importorskip("torch", reason="parity with the harness needs the extra 'oracle'")
transformers = pytest.importorskip("transformers", reason="parity with the harness needs the extra 'oracle'")
lm_eval = pytest.importorskip("lm_eval", reason="parity with the harness needs the extra 'lm-eval'")
huggingface = pytest.importorskip("lm_eval.models.huggingface")
pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.filterwarnings("default")]

WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "looked", "at", "reader", "reads", "what", "writer", "silence"]
ITEMS = 24
TASKS = {
    "hellaswag": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{query}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "lambada": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{query}}",
        "doc_to_target": " {{choices[0]}}",
        "metric_list": [{"metric": "acc"}, {"metric": "perplexity"}],
    },
    "blimp": {  # without a context
        "output_type": "multiple_choice",
        "doc_to_text": "",
        "doc_to_choice": "{{choices[:2]}}",
        "doc_to_target": "{{0}}",
        "metric_list": [{"metric": "acc"}],
    },
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(their folder of a random GPT-2, our import of it, a file of items)."""
    folder = tmp_path_factory.mktemp("harness")
    shape = {"vocab_size": 263, "n_positions": 67, "n_embd": 20, "n_layer": 2, "n_head": 4}
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0, initializer_range=0.4)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "theirs")
    hub.TOKENIZERS["gpt2"](folder / "theirs")
    import_folder(str(folder / "theirs"), str(folder / "run"))
    rng = np.random.default_rng(0)
    with (folder / "items.jsonl").open("w") as file:
        for number in range(ITEMS):
            # Some are longer than the context, and some contexts end with a blank.
            query = " ".join(rng.choice(WORDS, rng.integers(2, 30))) + " " * (number % 5 == 0)
            choices = [" ".join(rng.choice(WORDS, rng.integers(1, 5))) for _ in range(4)]
            file.write(json.dumps({"query": query, "choices": choices, "gold": int(rng.integers(4))}) + "\n")
    return folder / "theirs", folder / "run", folder / "items.jsonl"


def harness(model, file, task):
    """(metrics, log-likelihoods of each item) of lm-evaluation-harness."""
    config = {"task": task, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}}}
    config |= {"test_split": "test", "target_delimiter": "" if task == "lambada" else " "} | TASKS[task]
    found = lm_eval.simple_evaluate(model, tasks=[config], bootstrap_iters=0, log_samples=True)
    samples = sorted(found["samples"][task], key=lambda one: one["doc_id"])
    scores = [[pair[0] for response in one["resps"] for pair in [response[0]]] for one in samples]
    return found["results"][task], scores


@pytest.mark.parametrize("task", TASKS)
def test_our_runner_and_the_harness_agree(folders, task, tmp_path, capsys):
    theirs, workdir, file = folders
    flags = [f"--tasks={task}", f"--data={task}:jsonl:{file}", f"--predictions={tmp_path}/rows.jsonl"]
    if task == "lambada":
        records = [json.loads(line) for line in file.read_text().splitlines()]
        rows = [{"context": one["query"], "continuation": one["choices"][0]} for one in records]
        (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags[1] = f"--data={task}:jsonl:{tmp_path}/words.jsonl"
    if task == "blimp":
        records = [json.loads(line)["choices"][:2] for line in file.read_text().splitlines()]
        rows = [{"sentence_good": good, "sentence_bad": bad, "UID": "a"} for good, bad in records]
        (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags[1] = f"--data={task}:jsonl:{tmp_path}/pairs.jsonl"
    assert main(["evaluate", f"--workdir={workdir}", *flags, "--format=json"]) == 0
    (ours,) = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == ITEMS and (ours.get("cut", 0) > 0) == (task != "blimp")
    peer = huggingface.HFLM(pretrained=str(theirs), device="cpu", batch_size=4)
    for model in (lm_eval_model(pretrain.open(workdir)), peer):
        measures, scores = harness(model, file, task)
        for row, one in zip(rows, scores, strict=True):
            np.testing.assert_allclose(row["log_likelihoods"], one, atol=1e-4)
        for metric in TASKS[task]["metric_list"]:
            name = metric["metric"]
            assert ours[name] == pytest.approx(measures[f"{name},none"], rel=1e-4), name


def test_rolling_and_generated_texts_agree(folders):
    theirs, workdir, _ = folders
    texts = ["the cat sat on the mat. " * 12, "silence"]
    peer = huggingface.HFLM(pretrained=str(theirs), device="cpu", batch_size=1)
    model = lm_eval_model(pretrain.open(workdir))

    def requests(kind, arguments):
        instance = importlib.import_module("lm_eval.api.instance").Instance
        return [instance(request_type=kind, doc={}, arguments=one, idx=0) for one in arguments]

    rolling = requests("loglikelihood_rolling", [(text,) for text in texts])
    np.testing.assert_allclose(
        model.loglikelihood_rolling(rolling), peer.loglikelihood_rolling(rolling, disable_tqdm=True), atol=1e-3
    )
    options = {"until": ["q"], "max_gen_toks": 12, "do_sample": False}
    asked = requests("generate_until", [("the cat sat", options), ("dog", options)])
    assert model.generate_until(asked) == peer.generate_until(asked, disable_tqdm=True)
