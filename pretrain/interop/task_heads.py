"""Hugging Face's classes with heads of tasks: their tensors, labels, and what an import of one trains.

A class is a family whose weight map has the head of a task in place of those of pretraining.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

from ml_collections import ConfigDict

from configs import common
from models.transformer.task_head import DROPOUT
from pretrain.errors import UserError
from pretrain.interop.family import Family
from pretrain.interop.weight_map import OUTPUTS_FIRST

ROWS, CHOICES, TOKENS = "SequenceClassification", "MultipleChoice", "TokenClassification"
SPANS, SIMPLE = "QuestionAnswering", "QuestionAnsweringSimple"  # the latter where the former is a joint head (XLNet)
ENDINGS = {"classification": (ROWS,), "regression": (ROWS,), "choice": (CHOICES,), "tagging": (TOKENS,)}
ENDINGS |= {"extraction": (SPANS, SIMPLE)}
PIPELINES = {ROWS: "text-classification", CHOICES: "multiple-choice", TOKENS: "token-classification"}
PIPELINES |= dict.fromkeys((SPANS, SIMPLE), "question-answering")
DENSE, OUT, POOLER = "task_head/dense", "task_head/out", "pooler"
OF_SPANS = {SPANS: {OUT: "qa_outputs"}}
OF_TOKENS = OF_SPANS | {TOKENS: {OUT: "classifier"}}
OF_TOKENS_SIMPLE = {TOKENS: {OUT: "classifier"}, SIMPLE: {OUT: "qa_outputs"}}
JOINT = {"start": "start_logits.dense", "end_dense": "end_logits.dense_0", "end_norm": "end_logits.LayerNorm"}
JOINT |= {"end_out": "end_logits.dense_1", "none_dense": "answer_class.dense_0", "none_out": "answer_class.dense_1"}
DECODER = OF_TOKENS | {ROWS: {OUT: "score"}}
LLAMA = {ROWS: {OUT: "score"}, TOKENS: {OUT: "score"}}
BART = OF_SPANS | {ROWS: {DENSE: "classification_head.dense", OUT: "classification_head.out_proj"}}


def _pooled(pooler: str) -> dict[str, str]:
    """BERT's head: the pooler that pretraining has, or one of the head, and a linear map."""
    return {POOLER: pooler, DENSE: pooler, OUT: "classifier"}


def _joint(before: str) -> dict[str, dict[str, str]]:
    """A head that predicts the end of an answer given its start."""
    return {SPANS: {f"task_head/{ours}": f"{before}{theirs}" for ours, theirs in JOINT.items()}}


def _both(names: dict[str, str]) -> dict[str, dict[str, str]]:
    """One head of rows and of choices."""
    return {ROWS: names, CHOICES: names}


# model_type -> end of the class's name -> our modules and theirs.
HEADS: dict[str, dict[str, dict[str, str]]] = {
    "bert": OF_TOKENS | _both(_pooled("bert.pooler.dense")),
    "albert": OF_TOKENS | _both(_pooled("albert.pooler")),
    "roberta": OF_TOKENS
    | {ROWS: {DENSE: "classifier.dense", OUT: "classifier.out_proj"}, CHOICES: _pooled("roberta.pooler.dense")},
    "distilbert": OF_TOKENS | _both({DENSE: "pre_classifier", OUT: "classifier"}),
    "electra": OF_TOKENS
    | {
        ROWS: {DENSE: "classifier.dense", OUT: "classifier.out_proj"},
        CHOICES: {DENSE: "sequence_summary.summary", OUT: "classifier"},
    },
    "xlnet": OF_TOKENS_SIMPLE | _joint("") | _both({DENSE: "sequence_summary.summary", OUT: "logits_proj"}),
    "xlm": OF_TOKENS_SIMPLE | _joint("qa_outputs.") | {ROWS: {OUT: "sequence_summary.summary"}},
    "gpt2": DECODER,
    "openai-gpt": {ROWS: {OUT: "score"}},
    "ctrl": {ROWS: {OUT: "classifier"}},
    "bart": BART,
    "mbart": BART,
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma"), LLAMA),
}


def ending_of(family: Family, objective: Mapping) -> str:
    """The end of the name of the family's class for an objective."""
    known, endings = HEADS.get(family.model_type, {}), ENDINGS[objective["kind"]]
    if objective["kind"] == "extraction":
        # Two classes differ in whether the end is predicted given the start.
        known = {ending for ending, heads in known.items() if (OUT not in heads) == objective["joint"]}
    return next((ending for ending in endings if ending in known), endings[0])


def with_head(family: Family, ending: str, template: Sequence[Sequence[str]] = ()) -> Family:
    """The family's class of that ending. `template`: special tokens around texts in training; (): the family's.

    Errors: UserError if there is none.
    """
    heads = HEADS.get(family.model_type, {})
    if ending not in heads:
        known = ", ".join(heads) or "none"
        raise UserError(f"{family.model_type} has no class For{ending}. Its classes of tasks: {known}.")

    def names(section: Mapping) -> dict[str, str]:
        kept = {ours: name for ours, name in family.table(section).items() if not family.is_head(name)}
        return {ours: name for ours, name in kept.items() if ours != POOLER} | heads[ending]

    return dataclasses.replace(
        family,
        names=names,
        layouts={**family.layouts, **{f"{name}/kernel": OUTPUTS_FIRST for name in (DENSE, *heads[ending])}},
        architecture=lambda section: _stem(family.architecture(section)) + f"For{ending}",
        tied={},
        extra_keys=lambda config: {**family.extra_keys(config), **label_keys(config)},
        template=tuple(template) or family.template,
        task=PIPELINES[ending],
        usage=lambda config: (),
    )


def _stem(architecture: str) -> str:
    """Bert of BertForPreTraining, GPT2 of GPT2LMHeadModel."""
    return re.sub(r"(LMHead|WithLMHead|For|Model).*", "", architecture)


def label_keys(config: ConfigDict) -> dict:
    """config.json keys of the labels."""
    objective = config.objective
    if objective.kind == "regression":
        return {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    if objective.kind == "extraction" and objective.joint:
        return dict.fromkeys(("start_n_top", "end_n_top"), objective.joint_starts)
    if objective.kind not in ("classification", "tagging"):
        return {}
    names = dict(enumerate(objective.labels))
    single = {"problem_type": "single_label_classification"} if objective.kind == "classification" else {}
    return {
        "id2label": {str(i): name for i, name in names.items()},
        "label2id": {n: i for i, n in names.items()},
    } | single


def pooling_files(config: ConfigDict) -> dict[str, list | dict]:
    """Files, by name, by which sentence-transformers takes means of hidden states."""
    steps = {"": "Transformer", "1_Pooling": "Pooling"}
    return {
        "modules.json": [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
            for number, (path, name) in enumerate(steps.items())
        ],
        "sentence_bert_config.json": {"max_seq_length": config.data.length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": config.model.width,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
        },
    }


def of_files(family: Family, given: Mapping, names: Collection[str]) -> str:
    """The ending of the class that wrote a config.json and tensors with these names; "" without a head of a task."""
    architecture = (given.get("architectures") or [""])[0]
    for ending, heads in HEADS.get(family.model_type, {}).items():
        if f"For{ending}" in architecture and any(name.endswith(f"{[*heads.values()][-1]}.weight") for name in names):
            return ending
    return ""


def set_objective(config: ConfigDict, family: Family, ending: str, given: Mapping) -> None:
    """Sets the sections of an imported model of a task: its objective and labels, and no data."""
    labels = given.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    names = tuple(name for _, name in sorted((int(number), name) for number, name in labels.items()))
    # A class of several kinds, as regression, is the first of them.
    kinds = {name: kind for kind, endings in reversed(ENDINGS.items()) for name in endings}
    kind = "regression" if ending == ROWS and len(names) == 1 else kinds[ending]
    several = "multi_label_classification", *["regression"] * (len(names) > 1)
    if ending == ROWS and given.get("problem_type") in several:
        problem = f"problem_type={given['problem_type']} with {len(names)} labels"
        raise UserError(f"{problem}: only one label or number a row is supported. Import its base class.")
    config.objective = common.OBJECTIVES[kind]()
    if kind in ("classification", "tagging"):
        config.objective.labels = names
    if kind == "extraction" and OUT not in HEADS[family.model_type][ending]:
        config.objective.update(joint=True, joint_starts=given.get("start_n_top", 5))
    if kind == "extraction" and "qa_dropout" in given:
        config.objective.head = (DROPOUT,)
    # The recipe's other sections are those of pretraining.
    usual = common.base()
    config.update({name: usual[name] for name in ("data", "train", "optimizer", "schedule", "distill", "evaluate")})
    config.data.update(train="", layout="examples")
