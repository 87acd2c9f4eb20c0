"""Tasks known by name: prompts, separators and metrics as lm-evaluation-harness has them.

Records have the fields of TFDS or of the Hugging Face Hub, or `query`, `choices` and `gold`, as the harness keeps its
processed ones.
"""

import re
from collections.abc import Mapping, Sequence

from pretrain.errors import UserError, lookup
from pretrain.recipes import recipe_module
from pretrain.scoring.zero_shot import LETTERS, Task


def multiple_choice(record: Mapping) -> dict:
    """A record with `question`, a list `choices` and `answer`, whatever its fields are called."""
    if isinstance(record.get("question"), Mapping):  # OpenBookQA of TFDS
        record = dict(record) | {"choices": [record["question"][f"choice_{letter}"] for letter in "ABCD"]}
    choices = first(record, "choices", "options", "endings")
    if isinstance(choices, Mapping):  # the Hub's {"text": [...], "label": ["A", ...]}
        labels, choices = list(choices["label"]), list(choices["text"])
    else:
        labels, choices = [], list(choices)
    answer = first(record, "answer", "answerKey", "gold", "label")
    if answer in labels:  # of ARC some are numbered from 1
        answer = labels.index(answer)
    question = first(record, "question", "query", "question_stem")
    question = question["stem"] if isinstance(question, Mapping) else question
    return dict(record) | {"question": question, "choices": choices, "answer": answer}


def first(record: Mapping, *names: str):
    """The value of the first of some fields that a record has. Errors: KeyError."""
    return record[next((name for name in names if name in record), names[0])]


def numbered(record: Mapping, names: Sequence[str], answer: str, base: int = 0) -> dict:
    """A record whose choices are in fields of their own, and whose answers count from `base`."""
    return dict(record) | {"choices": [record[name] for name in names], "answer": int(record[answer]) - base}


def piqa(record: Mapping) -> dict:
    return numbered(record, ("sol1", "sol2"), "label")


def hellaswag(record: Mapping) -> dict:
    """WikiHow's marks are taken out of texts (Zellers et al. 2019)."""
    if "query" in record:
        return multiple_choice(record)

    def clean(text: str) -> str:
        text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
        return text.replace("  ", " ")

    # TFDS has both parts as one text, without the capital of the second.
    parts = [record["ctx_a"], record["ctx_b"].capitalize()] if "ctx_a" in record else [record["context"]]
    context = " ".join(parts)
    question = clean(f"{record['activity_label']}: {context}")
    return {"question": question, "choices": [*map(clean, record["endings"])], "answer": int(record["label"])}


def winogrande(record: Mapping) -> dict:
    """The sentence's end behind each candidate (Trinh and Le 2018)."""
    before, _, after = record["sentence"].partition("_")
    names = ("option1", "option2")
    answer = int(record["answer"]) - 1 if "answer" in record else record["label"]  # of the Hub, of TFDS
    contexts = {f"context{i}": before + record[name] for i, name in enumerate(names)}
    return contexts | {"end": after.strip(), "answer": answer}


def winograd(record: Mapping) -> dict:
    """As `winogrande`; of records of TFDS or the Hub with a pronoun's place, or of those with both contexts."""
    if "context_options" in record:
        contexts, end, answer = record["context_options"], record["continuation"], record["gold"]
    else:
        text, place = record["text"], int(first(record, "pronoun_loc", "pronoun_start"))
        pronoun = first(record, "pronoun", "pronoun_text")
        options = record["options"] if "options" in record else [record[f"option{i}_normalized"] for i in (1, 2)]
        contexts = [text[:place] + option for option in options]
        end, answer = text[place + len(pronoun) :].strip(), record["label"]
    return {"context0": contexts[0], "context1": contexts[1], "end": end, "answer": answer}


def copa(record: Mapping) -> dict:
    """Cause and effect as a sentence that continues."""
    joint = {"cause": "because", "effect": "therefore", "0": "because", "1": "therefore"}[str(record["question"])]
    choices = [one[:1].lower() + one[1:] for one in (record["choice1"], record["choice2"])]
    return {"premise": f"{record['premise'].strip()[:-1]} {joint}", "choices": choices, "answer": int(record["label"])}


def boolq(record: Mapping) -> dict:
    answer = first(record, "label", "answer")
    return dict(record) | {"answer": int(answer) if not isinstance(answer, str) else int(answer.lower() == "true")}


def sciq(record: Mapping) -> dict:
    names = ("distractor1", "distractor2", "distractor3", "correct_answer")
    return dict(record) | {"choices": [record[name] for name in names], "answer": 3}


def lettered(record: Mapping) -> dict:
    """Choices are printed in the question, and the answer is a letter."""
    record = multiple_choice(record)
    lines = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, record["choices"], strict=False))
    letters = list(LETTERS[: len(record["choices"])])
    topic = str(record.get("subject", "")).replace("_", " ")
    return record | {"question": record["question"].strip(), "options": lines, "choices": letters, "topic": topic}


def story(record: Mapping) -> dict:
    """StoryCloze's and XStoryCloze's fields, in either spelling, and TFDS's."""
    if "endings" in record:
        return {"question": record["context"], "choices": record["endings"], "answer": int(record["label"]) - 1}
    if "InputSentence1" in record:
        begin, ends, answer = "InputSentence", "RandomFifthSentenceQuiz", record["AnswerRightEnding"]
    else:
        begin, ends, answer = "input_sentence_", "sentence_quiz", record["answer_right_ending"]
    context = " ".join(record[f"{begin}{i}"] for i in range(1, 5))
    return {"question": context, "choices": [record[f"{ends}{i}"] for i in (1, 2)], "answer": int(answer) - 1}


def lambada(record: Mapping) -> dict:
    """The text without its last word, and the word."""
    if "continuation" in record:
        return {"question": record["context"], "word": record["continuation"]}
    question, _, word = first(record, "text", "passage").strip().rpartition(" ")
    return {"question": question, "word": word}


def gsm8k(record: Mapping) -> dict:
    """Question and worked answer, whose number stands behind ####."""
    answer = record["answer"]
    if "chain_of_thought" in record:
        answer = f"{record['chain_of_thought']}\n#### {answer}"
    return {"question": first(record, "question", "context"), "answer": answer}


def last_number(text: str) -> str:
    """The number behind ####, or the last one in a text; without commas."""
    found = re.findall(r"-?[\d,]*\.?\d+", text.rpartition("####")[2])
    number = found[-1].replace(",", "") if found else ""
    return number.rstrip("0").rstrip(".") if "." in number else number


def task(name: str, kind: str, data: str, context: str | tuple = "{question}", **more) -> Task:
    more.setdefault("prepare", multiple_choice)
    return Task(name=name, kind=kind, data=data, context=context, **more)


NORMED = ("acc", "acc_norm")
QA = "Question: {question}\nAnswer:"
LAMBADA = "tfds:lambada?split=test"
WORD = {"choices": ("{word}",), "metrics": ("acc", "perplexity"), "prepare": lambada}
CONTEXTS = {"context": ("{context0}", "{context1}"), "choices": ("{end}",), "chance": 0.5}
ARC = {"metrics": (*NORMED, "acc_mutual_info"), "chance": 0.25}
NLI = "{premise}\nQuestion: {hypothesis}"
TASKS = {
    one.name: one
    for one in (
        task("lambada", "last_word", LAMBADA, **WORD),
        # GPT-3's form, for examples in front (Brown et al. 2020, section 3.1.1).
        task("lambada_cloze", "last_word", LAMBADA, "{question} ____. ->", **WORD),
        task(
            "hellaswag",
            "choices",
            "tfds:hellaswag?split=validation",
            shots="tfds:hellaswag?split=train",
            metrics=(*NORMED, "acc_bytes"),
            prepare=hellaswag,
            chance=0.25,
        ),
        task(
            "piqa",
            "choices",
            "tfds:piqa?split=validation",
            "Question: {goal}\nAnswer:",
            shots="tfds:piqa?split=train",
            metrics=NORMED,
            prepare=piqa,
            chance=0.5,
        ),
        task("winograd", "contexts", "tfds:wsc273?split=test", prepare=winograd, **CONTEXTS),
        task("winogrande", "contexts", "tfds:winogrande?split=validation", prepare=winogrande, **CONTEXTS),
        task("arc_easy", "choices", "tfds:ai2_arc/ARC-Easy?split=test", QA, **ARC),
        task("arc_challenge", "choices", "tfds:ai2_arc/ARC-Challenge?split=test", QA, **ARC),
        task("openbookqa", "choices", "tfds:openbookqa?split=test", **ARC),
        task("copa", "choices", "tfds:super_glue/copa?split=validation", "{premise}", prepare=copa, chance=0.5),
        task(
            "boolq",
            "choices",
            "tfds:super_glue/boolq?split=validation",
            "{passage}\nQuestion: {question}?\nAnswer:",
            choices=("no", "yes"),
            prepare=boolq,
            chance=0.5,
        ),
        task(
            "sciq",
            "choices",
            "tfds:sciq?split=test",
            "{support}\nQuestion: {question}\nAnswer:",
            metrics=NORMED,
            prepare=sciq,
            chance=0.25,
        ),
        task(
            "commonsense_qa",
            "choices",
            "tfds:commonsense_qa?split=validation",
            "Question: {question}\n{options}\nAnswer:",
            prepare=lettered,
            chance=0.2,
        ),
        task("storycloze", "choices", "tfds:story_cloze?split=test", prepare=story, chance=0.5),
        task(
            "rte",
            "choices",
            "tfds:super_glue/rte?split=validation",
            f"{NLI} True or False?\nAnswer:",
            choices=("True", "False"),
            answer="label",
            prepare=dict,
            chance=0.5,
        ),
        task(
            "cb",
            "choices",
            "tfds:super_glue/cb?split=validation",
            f"{NLI}. True, False, or Neither?\nAnswer:",
            choices=("True", "False", "Neither"),
            answer="label",
            prepare=dict,
            chance=1 / 3,
        ),
        task(
            "mmlu",
            "choices",
            "tfds:mmlu?split=test",
            "{question}\n{options}\nAnswer:",
            description="The following are multiple choice questions (with answers) about {topic}.\n\n",
            prepare=lettered,
            by="subject",
            chance=0.25,
        ),
        task(
            "gsm8k",
            "generate",
            "tfds:gsm8k?split=test",
            QA,
            metrics=("exact_match",),
            stop=("Question:", "</s>"),
            max_tokens=256,
            prepare=gsm8k,
            clean=last_number,
        ),
        task(
            "translation",
            "generate",
            "",
            "English: {en}\nGerman:",
            answer="de",
            metrics=("bleu", "chrf"),
            prepare=dict,
        ),
        task(
            "blimp",
            "pairs",
            "tfds:blimp?split=train",
            "",
            choices=("{sentence_good}", "{sentence_bad}"),
            prepare=dict,
            by="UID",
            chance=0.5,
        ),
    )
}
LANGUAGES = ("en", "ar", "es", "eu", "hi", "id", "my", "ru", "sw", "te", "zh")
TASKS |= {
    f"xstorycloze_{code}": task(f"xstorycloze_{code}", "choices", "", prepare=story, chance=0.5) for code in LANGUAGES
}


def task_named(name: str, data: Mapping[str, str] | str, key: str = "--tasks") -> Task:
    """The task of a name, or of FILE.py:NAME; `data` has sources by name, and by NAME/shots those of examples.

    A single source in place of `data` is the task's.

    Errors: UserError for unknown names, files and tasks without data.
    """
    path, _, attribute = name.partition(":")
    if path.endswith(".py"):
        module = recipe_module(path, key)
        task = lookup(f"{key}={path}", attribute, {key: v for key, v in vars(module).items() if isinstance(v, Task)})
    else:
        task = lookup(key, name, TASKS)
    data = {task.name: data} if isinstance(data, str) else data
    task = task.on(data.get(task.name, ""), data.get(f"{task.name}/shots", ""))
    if not task.data:
        raise UserError(f"{key}={name}: has no data of its own. Name a source, such as --data={task.name}:jsonl:FILE.")
    return task
