"""What is decoded of tasks, against brute force: the likeliest token row by row, without a cache, and plain strings."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import t5
from configs.common import translation
from input_pipeline.errors import DataError
from pretrain.decoding.sampling import generate
from pretrain.evaluation import decoded
from pretrain.evaluation.decoded import Written, exact_match, sequence_accuracy, tasks
from pretrain.evaluation.evaluation import score
from pretrain.step.train_spec import TrainSpec
from pretrain.training.startup import build_run

LENGTH, ROOM = 32, 18  # tokens of a row that are read, and that are written
END, START = 256, 257
LETTERS = list(b"abcdefg")
DRAW = np.random.default_rng(0)
QUESTIONS = ["x" * 40, *("".join(DRAW.choice(list("hijklmnop"), DRAW.integers(1, 30))) for _ in range(21))]


def config_of(folder, mesh, backend="jit", **evaluate):
    config = t5.get_config("mini_stdlib")
    config.model.update(vocab_size=278, context=LENGTH, layers=2, width=16, heads=4, head_size=6, ff=24)
    config.model.update(buckets=8, max_distance=12, tied_head=False)
    config.tokenizer.update(kind="bytes", sentinels=20)
    config.objective.update(density=0.3, mean_span=2.0)
    pairs = [f"jsonl:{folder}/{name}.jsonl?fields=inputs,targets" for name in ("even", "odd")]
    config.data.update(train=f"text:{folder}/train.txt", length=LENGTH)
    config.data.validation = " + ".join([f"text:{folder}/text.txt", *pairs])
    config.evaluate.update(batch_size=4, **evaluate)
    config.train.backend = backend
    config.mesh.update({"data": 1} | mesh)
    return config.lock()


@pytest.fixture(scope="module")
def params():
    """Parameters with decided opinions, and a head that knows seven letters and the end."""
    shapes, draw = TrainSpec.build_abstract(config_of("", {})).param_shapes, np.random.default_rng(2)
    params = jax.tree.map(lambda leaf: jnp.asarray(0.8 * draw.standard_normal(leaf.shape), leaf.dtype), shapes)
    head = np.zeros(params["head"].shape, np.float32)
    head[[*LETTERS, END]] = draw.standard_normal((len(LETTERS) + 1, head.shape[1]))
    return params | {"head": head}


@pytest.fixture(scope="module")
def oracle(params):
    """{question: (what is written for it, whether it comes to an end)}: each token from all those before it."""
    model = TrainSpec.build_abstract(config_of("", {})).model

    @jax.jit
    def likeliest(inputs, there, tokens):
        texts = {"inputs": inputs[None], "input_segments": there[None]}
        hidden = model.apply({"params": params}, tokens[None], **texts).hidden
        return model.apply({"params": params}, hidden, method="logits")[0].argmax(-1)

    def written(question):
        inputs, ids = [*question.encode()[: LENGTH - 1], END], []
        read = np.pad(inputs, (0, LENGTH - len(inputs))), (np.arange(LENGTH) < len(inputs)).astype(int)
        while len(ids) < ROOM and END not in ids:
            tokens = [START, *ids]  # what follows does not matter: no token sees it
            ids.append(int(likeliest(*read, np.pad(tokens, (0, ROOM - len(tokens))))[len(ids)]))
        return bytes(i for i in ids if i != END).decode(), ids[-1] == END

    return {question: written(question) for question in QUESTIONS}


@pytest.fixture(scope="module")
def examples(oracle):
    """(question, reference, whether it is a match): the text itself, or one letter more, behind it or before."""
    found = []
    for number, question in enumerate(QUESTIONS):
        text, ended = oracle[question]
        reference = (text or "a", text + "a", "a" + text)[number % 3]
        found.append((question, reference, ended and text == reference))
    assert any(match for _, _, match in found)
    assert any(not match and len(reference) == ROOM for _, reference, match in found)  # all but the end
    assert any(len(reference) > ROOM for _, reference, _ in found)
    return found


@pytest.fixture(scope="module")
def folder(examples, tmp_path_factory):
    """Two tasks of eleven examples, which batches of four do not divide, and a pair that lacks a text; and a text."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "train.txt").write_text("some words to train on, " * 20)
    (folder / "text.txt").write_text("other words to be scored, " * 20)
    for name, some in (("even", [("", "a"), *examples[::2]]), ("odd", [("h", ""), *examples[1::2]])):
        rows = [json.dumps({"inputs": question, "targets": reference}) for question, reference, *_ in some]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def scored(folder, params, mesh, backend="jit", decode=None, report=lambda message: None, **options):
    run = build_run(config_of(folder, mesh, backend, **options), str(folder / "run"), lambda message: None)

    def restore_params(step, shapes):
        return jax.tree.map(lambda array, shape: jax.device_put(array, shape.sharding), params, shapes)

    placed = run.spec.restore_params(SimpleNamespace(restore_params=restore_params), 0)
    return score(run, placed, "validation", decode=decode, report=report)


@pytest.mark.parametrize(
    ("mesh", "backend"),
    [
        pytest.param({"data": 8}, "jit", marks=pytest.mark.slow),
        pytest.param({"data": 2, "fsdp": 2, "tensor": 2}, "jit", marks=pytest.mark.slow),
        pytest.param({"fsdp": 4, "sequence": 2}, "jit", marks=pytest.mark.slow),
        ({}, "pmap"),
    ],
    ids=["data", "mixed", "sequence", "pmap"],
)
def test_greedy_targets_are_those_of_brute_force(folder, params, examples, oracle, mesh, backend):
    result = scored(folder, params, mesh, backend=backend)
    matches = [match for _, _, match in examples]
    assert result["exact_match"] == result["sequence_accuracy"] == pytest.approx(np.mean(matches))
    assert result["examples"] == len(QUESTIONS)
    assert 0 < result["exact_match"] < 1
    for name, some in (("even", slice(0, None, 2)), ("odd", slice(1, None, 2))):
        task = result["tasks"][f"jsonl:{folder}/{name}.jsonl?fields=inputs,targets"]
        assert task["exact_match"] == pytest.approx(np.mean(matches[some]))
        assert task["written_length"] == pytest.approx(np.mean([len(oracle[q][0]) for q in QUESTIONS[some]]))
        assert task["target_length"] == pytest.approx(np.mean([len(target) for _, target, _ in examples[some]]))
        assert task["examples"] == len(QUESTIONS[some])
        assert {"loss", "accuracy"} <= task.keys()


def test_the_first_examples_of_each_task(folder, params, examples):
    said = []
    result = scored(folder, params, {"data": 8}, decode=5, report=said.append)
    assert [line.partition(" of jsonl")[0] for line in said] == ["decoding 5 examples"] * 2
    first = [*examples[0:10:2], *examples[1:10:2]]
    assert result["exact_match"] == pytest.approx(np.mean([match for _, _, match in first]))
    assert "tasks" not in scored(folder, params, {"data": 8}, decode=0)


@pytest.mark.slow
def test_a_search_stops_as_the_config_says(folder, params, examples):
    """What is written is as long as what `generate` finds with the same beams and the same stopping."""
    model, lengths = TrainSpec.build_abstract(config_of("", {})).model, {}
    questions = [[*row[0].encode()[: LENGTH - 1], END] for row in (*examples[0:6:2], *examples[1:6:2])]
    source = {
        "inputs": np.stack([np.pad(ids, (0, LENGTH - len(ids))) for ids in questions]),
        "input_segments": np.stack([np.arange(LENGTH) < len(ids) for ids in questions]).astype(np.int32),
    }
    options = {"max_tokens": ROOM, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "end_id": END, "seed": 0}
    options |= {"beams": 3, "length_penalty": 0.6, "vocabulary": 278, "source": source}
    for stopping in ("never", "full"):
        result = scored(folder, params, {"data": 8}, decode=3, beams=3, stopping=stopping)
        found = generate(model, params, [np.array([START])] * len(questions), stopping=stopping, **options)
        lengths[stopping] = np.mean([len(ids) - (ids[-1] == END) for ids, _ in found])
        assert result["written_length"] == pytest.approx(lengths[stopping])
    assert lengths["never"] != lengths["full"]  # it matters


def test_what_counts_as_a_match():
    """Text that is the reference, in whatever pieces, where it ends; a sequence only where its ids are the target's."""
    ids = np.array([1, 2])
    same, pieces, endless = (
        Written(ids, True, "ab", ids, "ab", "Ab"),
        Written(np.array([3]), True, "ab", ids, "ab", "Ab"),
        Written(ids, False, "ab", ids, "ab", "Ab"),
    )
    assert exact_match([same, pieces, endless, endless]) == 0.5
    assert sequence_accuracy([same, pieces, endless, endless]) == 0.25


def test_bleu_is_of_the_text_itself_where_the_tokenizer_rewrites_it(tmp_path, params, monkeypatch):
    """Of a vocabulary that knows few of its words; in order, none that lacks a text; and refused once it is gone."""
    taken, words = [], [f"Wort{n},  das  {'so' * n} ist" for n in range(7)]
    rows = [{"inputs": "some words", "targets": text} for text in words]
    lacking = [{"inputs": "", "targets": ""}, {"inputs": "", "targets": "das"}]
    (tmp_path / "val.jsonl").write_text("\n".join(map(json.dumps, [*lacking, *rows])))
    (tmp_path / "train.jsonl").write_text(json.dumps({"inputs": "some words", "targets": "das Wort ist so"}))
    config = config_of(tmp_path, {"data": 8})
    with config.unlocked():
        config.objective, config.data.layout = translation(), "texts"
        config.tokenizer.update(kind="words", vocab_size=9, sentinels=0)
        config.data.train, config.data.validation = (
            f"jsonl:{tmp_path}/{name}.jsonl?fields=inputs,targets" for name in ("train", "val")
        )

    def corpus_bleu(name, texts, references):
        taken.append([one for (one,) in references])
        return 50.0

    monkeypatch.setattr(decoded.texts, "package", lambda *names: None)
    monkeypatch.setattr(decoded.texts, "sacrebleu_score", corpus_bleu)
    run = build_run(config, str(tmp_path / "run"), print)
    placed = jax.tree.map(
        jax.device_put, params, jax.tree.map(lambda one: one.sharding, run.spec.checkpoint_shapes(4).params)
    )
    result = score(run, placed, "validation", decode=6)
    assert taken == [words[:6]] * 2  # of the task, and of all tasks
    assert result["bleu"] == 50
    (tmp_path / "val.jsonl").unlink()
    assert tasks(run, "validation", decode=6)  # a run goes on
    run = build_run(config, str(tmp_path / "run"), print)
    with pytest.raises(DataError):
        tasks(run, "validation", decode=6)
