"""Tasks without training: prompts of the known ones, few-shot examples, metrics by hand, and the command."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from input_pipeline.errors import DataError
from pretrain.cli import main
from pretrain.errors import USER_ERRORS, UserError
from pretrain.scoring import contamination
from pretrain.scoring.likelihood import Scored
from pretrain.scoring.requests import Request
from pretrain.scoring.runner import Result, centered_mean, cut_at
from pretrain.scoring.task_table import TASKS, last_number
from pretrain.scoring.zero_shot import Item, Outcome, Task, choose, compare_text, mean_of, read_word, summarize

# (record, context and choice of the right answer), in the fields of TFDS or the Hub, and of the harness.
PROMPTS = {
    "lambada": ({"text": "He went to the sea"}, ("He went to the", "sea")),
    "lambada_cloze": ({"passage": "He went to the sea"}, ("He went to the ____. ->", "sea")),
    "hellaswag": (
        {
            "activity_label": "Cooking",
            "ctx_a": "A man cuts. [title] Then",
            "ctx_b": "he",
            "endings": ["sleeps [step] now.", "eats."],
            "label": "1",
        },
        ("Cooking: A man cuts.. Then He", "eats."),
    ),
    "piqa": (
        {"goal": "Boil", "sol1": "Heat it.", "sol2": "Cool it.", "label": 0},
        ("Question: Boil\nAnswer:", "Heat it."),
    ),
    "winograd": (
        {
            "text": "The cup is in the box as it is small.",
            "pronoun": "it",
            "pronoun_loc": 25,
            "options": ["the cup", "the box"],
            "label": 0,
        },
        ("The cup is in the box as the cup", "is small."),
    ),
    "winogrande": (
        {"sentence": "Ann beat Bea as _ was fast.", "option1": "Ann", "option2": "Bea", "answer": "2"},
        ("Ann beat Bea as Bea", "was fast."),
    ),
    "arc_easy": (
        {"question": "Why?", "choices": {"text": ["so", "as"], "label": ["1", "2"]}, "answerKey": "2"},
        ("Question: Why?\nAnswer:", "as"),
    ),
    "arc_challenge": ({"question": "Why?", "choices": ["so", "as"], "gold": 0}, ("Question: Why?\nAnswer:", "so")),
    "openbookqa": (
        {"question_stem": "Fog is", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"},
        ("Fog is", "b"),
    ),
    "copa": (
        {"premise": "It rained.", "choice1": "The road got wet.", "choice2": "I ran.", "question": 1, "label": 0},
        ("It rained therefore", "the road got wet."),
    ),
    "boolq": ({"passage": "P.", "question": "is it", "answer": True}, ("P.\nQuestion: is it?\nAnswer:", "yes")),
    "sciq": (
        {
            "support": "S.",
            "question": "Q?",
            "distractor1": "a",
            "distractor2": "b",
            "distractor3": "c",
            "correct_answer": "d",
        },
        ("S.\nQuestion: Q?\nAnswer:", "d"),
    ),
    "commonsense_qa": (
        {"question": "Where?", "choices": {"text": ["sea", "sky"], "label": ["A", "B"]}, "answerKey": "B"},
        ("Question: Where?\nA. sea\nB. sky\nAnswer:", "B"),
    ),
    "storycloze": (
        {
            **{f"input_sentence_{i}": f"S{i}." for i in range(1, 5)},
            "sentence_quiz1": "x",
            "sentence_quiz2": "y",
            "answer_right_ending": 2,
        },
        ("S1. S2. S3. S4.", "y"),
    ),
    "xstorycloze_ru": (
        {
            **{f"InputSentence{i}": f"S{i}." for i in range(1, 5)},
            "RandomFifthSentenceQuiz1": "x",
            "RandomFifthSentenceQuiz2": "y",
            "AnswerRightEnding": "1",
        },
        ("S1. S2. S3. S4.", "x"),
    ),
    "rte": ({"premise": "P.", "hypothesis": "H.", "label": 0}, ("P.\nQuestion: H. True or False?\nAnswer:", "True")),
    "cb": (
        {"premise": "P", "hypothesis": "H", "label": 2},
        ("P\nQuestion: H. True, False, or Neither?\nAnswer:", "Neither"),
    ),
    "mmlu": (
        {"question": "1 + 1?", "subject": "high_school", "choices": ["1", "2"], "answer": 1},
        ("1 + 1?\nA. 1\nB. 2\nAnswer:", "B"),
    ),
    "gsm8k": (
        {"question": "How many?", "answer": "1 + 1 = 2\n#### 2"},
        ("Question: How many?\nAnswer:", "1 + 1 = 2\n#### 2"),
    ),
    "translation": ({"en": "A dog.", "de": "Ein Hund."}, ("English: A dog.\nGerman:", "Ein Hund.")),
    "blimp": ({"sentence_good": "He runs.", "sentence_bad": "He run.", "UID": "agreement"}, ("", "He runs.")),
}


TFDS = {  # features of the builders, where they are others
    "hellaswag": (
        {"activity_label": "Cooking", "context": "A man cuts. he", "endings": ["sleeps.", "eats."], "label": 1},
        ("Cooking: A man cuts. he", "eats."),
    ),
    "winograd": (
        {
            "text": "The cup is in the box as it is small.",
            "pronoun_text": "it",
            "pronoun_start": 25,
            "option1_normalized": "the cup",
            "option2_normalized": "the box",
            "label": 0,
        },
        ("The cup is in the box as the cup", "is small."),
    ),
    "winogrande": (
        {"sentence": "Ann beat Bea as _ was fast.", "option1": "Ann", "option2": "Bea", "label": 1},
        ("Ann beat Bea as Bea", "was fast."),
    ),
    "openbookqa": (
        {"question": {"stem": "Fog is", **{f"choice_{x}": x.lower() for x in "ABCD"}}, "answerKey": 1},
        ("Fog is", "b"),
    ),
    "storycloze": ({"context": "A. B. C. D.", "endings": ["e", "f"], "label": 2}, ("A. B. C. D.", "f")),
}


@pytest.mark.parametrize("name", TFDS)
def test_prompt_of_records_of_tfds(name):
    record, expected = TFDS[name]
    assert TASKS[name].item(record).right == expected


def test_every_known_task_has_a_case():
    assert {name for name in TASKS if not name.startswith("xstorycloze")} == {*PROMPTS} - {"xstorycloze_ru"}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompt(name):
    record, right = PROMPTS[name]
    assert TASKS[name].item(record).right == right


def test_examples_are_drawn_by_seed_and_never_the_item_itself():
    task = Task(name="t", kind="choices", context="{q}", choices="c", answer="a", by="s", description="On {s}.\n")
    items = [task.item({"q": f"q{i}", "c": ["no", "yes"], "a": i % 2, "s": f"s{i % 2}"}) for i in range(10)]
    prompts = task.prompts(items, 3, items)
    assert prompts == task.prompts(items, 3, items) != replace(task, seed=1).prompts(items, 3, items)
    for number, (item, prompt) in enumerate(zip(items, prompts, strict=True)):
        intro, *examples = prompt.removesuffix("\n\n").split("\n")
        examples = [one for one in examples if one]
        assert intro == f"On s{number % 2}." and len(set(examples)) == 3
        assert item.contexts[0] not in [one.split()[0] for one in examples]
        assert {int(one.split()[0][1:]) % 2 for one in examples} == {number % 2}
    with pytest.raises(UserError, match="only 4 examples"):
        task.prompts(items, 5, items)
    assert task.requests(items[0], prompts[0])[1] == Request(prompts[0] + "q0", " yes")


def scored(*sums):
    return [Scored(np.array([total / 2] * 2, np.float32), np.array([True, True])) for total in sums]


def test_choices_are_chosen_by_each_norm():
    task = replace(TASKS["arc_easy"], metrics=("acc", "acc_norm", "acc_bytes", "acc_mutual_info"))
    item = Item(("why",), ("ab", "äbcdefgh"), 1)
    # Sums -4 and -10; per character -2 and -1.25, per byte -2 and -1.11; less the unconditional 2 and -5.
    values, row = choose(task, item, scored(-4, -10, -6, -5))
    assert values == {"acc": 0.0, "acc_norm": 1.0, "acc_bytes": 1.0, "acc_mutual_info": 0.0}
    assert row["log_likelihoods"] == [-4, -10] and row["chosen"]["acc_norm"] == 1
    assert [one.context for one in task.requests(item, "")] == ["why", "why", "Answer:", "Answer:"]


def test_last_words_give_accuracy_and_perplexity():
    task = TASKS["lambada"]
    outcomes = [read_word(task, Item(("a",), ("b",)), scored(total)) for total in (-1, -3)]
    measures = summarize(task, outcomes)
    assert outcomes[0].values == {"acc": 1.0}  # of --predictions: no log-likelihood under the name of a perplexity
    assert measures["perplexity"].value == pytest.approx(math.exp(2)) and measures["acc"].value == 1.0
    assert measures["perplexity"].stderr == pytest.approx(math.exp(2) * 1.0)  # the mean's error is sqrt(2 / 1 / 2)


def test_standard_error_is_that_of_a_share():
    measure = mean_of([1.0] * 30 + [0.0] * 10)
    assert measure.value == 0.75 and measure.stderr == pytest.approx(math.sqrt(0.75 * 0.25 / 39))
    assert mean_of([1.0]).stderr == 0


def test_written_answers_are_compared_cleaned():
    task = TASKS["gsm8k"]
    assert cut_at("so 3 * 4 = 12\n#### 1,200.50\n\nQuestion: x", task.stop) == "so 3 * 4 = 12\n#### 1,200.50\n\n"
    assert [last_number(text) for text in ("a\n#### 1,200.50", "is 7.", "none", "-3 or -4")] == [
        "1200.5",
        "7",
        "",
        "-4",
    ]
    assert compare_text(task, Item(("q",), ("",), 0, ("#### 12",)), "it is 12").values == {"exact_match": 1.0}


def test_centered_mean_is_zero_for_guessing():
    def result(name, acc):
        task = TASKS[name]
        return Result(task, 0, summarize(replace(task, metrics=("acc",)), [Outcome({"acc": acc}, {})]), {}, [], 0, 0.0)

    assert centered_mean([result("piqa", 0.5), result("hellaswag", 0.25)]) == 0
    assert centered_mean([result("piqa", 0.75), result("hellaswag", 1.0)]) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"query": "q", "choices": ["a", " "], "gold": 0}, "empty"),
        ({"query": "q", "choices": ["a", "b"], "gold": 2}, "none of 2"),
        ({"choices": ["a", "b"], "gold": 0}, "context"),
    ],
)
def test_unusable_records_are_named(record, problem):
    with pytest.raises(DataError, match=problem):
        TASKS["hellaswag"].item(record)


OWN = """
from pretrain.scoring.zero_shot import Task

mine = Task(
    name="mine",
    kind="choices",
    data="jsonl:{file}",
    context="Is {{thing}} code?",
    choices=("no", "yes"),
    answer="{{label}}",
)
"""


def test_a_task_of_ones_own(whole, tmp_path, capsys):
    """A file with a task, shots of 0 and 2, results in the work folder, and each item's scores."""
    rows = [{"thing": f"thing {i}", "label": i % 2} for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.py").write_text(OWN.format(file=tmp_path / "rows.jsonl").replace('"{label}"', '"label"'))
    flags = [f"--tasks={tmp_path}/own.py:mine", "--shots=0,2", f"--predictions={tmp_path}/out.jsonl"]
    assert main(["evaluate", f"--workdir={whole}", *flags, "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["task"], one["shots"], one["items"]) for one in found["tasks"]] == [("mine", 0, 6), ("mine", 2, 6)]
    kept = whole / "scores" / f"{found['step']}.json"
    assert [one for one in json.loads(kept.read_text())["tasks"] if one["task"] == "mine"] == found["tasks"]
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(written) == 12
    for row in written:
        assert row["acc"] == float(np.argmax(row["log_likelihoods"]) == row["answer"])
    # Another question replaces its own figures alone.
    assert main(["evaluate", f"--workdir={whole}", *flags[:1], "--limit=3"]) == 0
    again = [one for one in json.loads(kept.read_text())["tasks"] if one["task"] == "mine"]
    assert [one["items"] for one in again] == [3, 6] and again[1] == found["tasks"][1]
    assert "mine" in capsys.readouterr().out


def test_mistake_in_the_last_task_is_found_before_the_first_is_asked(whole, tmp_path, capsys):
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"sentence_good": "a", "sentence_bad": "b", "UID": "c"}) + "\n")
    flags = ["--tasks=blimp,piqa", f"--data=blimp:jsonl:{tmp_path}/pairs.jsonl", "--data=piqa:jsonl:none.jsonl"]
    assert main(["evaluate", f"--workdir={whole}", *flags]) == 2
    assert "requests" not in "".join(capsys.readouterr())


def test_texts_longer_than_the_context_are_generated_in_half_of_it(whole, tmp_path, capsys):
    """gsm8k asks for 256 tokens, and this model reads 64."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "How many? " * 20, "answer": "#### 2"}) + "\n")
    flags = ["--tasks=gsm8k", f"--data=gsm8k:jsonl:{tmp_path}/rows.jsonl", "--format=json"]
    assert main(["evaluate", f"--workdir={whole}", *flags]) == 0
    (found,) = json.loads(capsys.readouterr().out)["tasks"]
    assert found["exact_match"] in (0, 1) and found["cut"] == 1


def test_items_of_the_training_text_are_left_out(whole, text, tmp_path, capsys):
    """A line of the training text, one that differs in its middle, and one that is too short to tell."""
    line = next(line for line in (text / "cli.py").read_text().splitlines() if len(line) > 60).strip()
    changed = line[:20] + "#" + line[21:]
    rows = [{"sentence_good": one, "sentence_bad": "x", "UID": "u"} for one in (line, changed[10:32], "import os")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--tasks=blimp", f"--data=blimp:jsonl:{tmp_path}/pairs.jsonl", f"--contamination={whole}"]
    assert main(["evaluate", f"--workdir={whole}", *flags, "--format=json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["tasks"]
    assert found["items"] == 3 and found["clean"]["items"] == 2
    assert main(["evaluate", f"--workdir={whole}", *flags]) == 0
    assert "share no 13 tokens" in capsys.readouterr().out


def test_windows_are_found_across_blocks():
    rng = np.random.default_rng(0)
    ids, seen = rng.integers(0, 50, 200).astype(np.uint16), set()
    for begin in range(len(ids) - contamination.LENGTH + 1):
        seen.add(tuple(ids[begin : begin + contamination.LENGTH].tolist()))
    assert len(np.unique(contamination.windows(ids))) == len(seen)
    parts = [contamination.windows(ids[i : i + 40 + contamination.LENGTH - 1]) for i in range(0, len(ids), 40)]
    np.testing.assert_array_equal(np.concatenate(parts), contamination.windows(ids))
    assert len(contamination.windows(ids[:12])) == 0


def test_texts_are_scored_by_file(whole, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("import os\n\nreturn x\n")
    flags = [f"--input={tmp_path}/texts.txt", f"--output={tmp_path}/out.jsonl", "--tokens", "--format=json"]
    assert main(["score", f"--workdir={whole}", *flags]) == 0
    total = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["characters"] for row in rows] == [9, 8] and total["texts"] == 2 and total["bytes"] == 17
    assert total["nats"] == pytest.approx(-sum(sum(row["log_probs"]) for row in rows))
    (tmp_path / "pairs.jsonl").write_text('{"context": "import", "continuation": " os"}\n')
    assert main(["score", f"--workdir={whole}", f"--input={tmp_path}/pairs.jsonl", "--format=json"]) == 0
    pair = json.loads(capsys.readouterr().out)
    # Bytes are tokens here, so a continuation's are the last of the whole text's but for the start.
    assert pair["tokens"] == pair["bytes"] == 3


def test_mistakes(whole, tmp_path):
    run = ["evaluate", f"--workdir={whole}"]
    for flags, words in (
        (["--tasks=helaswag"], "hellaswag"),
        (["--tasks=translation"], "--data"),
        (["--tasks=piqa", "--shots=few"], "--shots=few"),
        (["--tasks=piqa", "--data=hellaswag:jsonl:x"], "--data=hellaswag"),
        ([f"--tasks={tmp_path}/none.py:mine"], "no such"),
    ):
        assert refused([*run, *flags]).find(words) >= 0
    (tmp_path / "empty.jsonl").write_text('{"question": "Why?"}\n')
    assert "record 1" in refused([*run, "--tasks=arc_easy", f"--data=arc_easy:jsonl:{tmp_path}/empty.jsonl"])


def refused(arguments):
    """The message of a command that ends with a user's mistake."""
    from pretrain.cli import parse
    from pretrain.commands import run

    with pytest.raises(USER_ERRORS) as error:
        run(parse(arguments))
    return str(error.value)
