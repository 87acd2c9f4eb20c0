"""Objectives, second half: from hidden states to named terms (first half: `input_pipeline.corruption`).

Training minimises the sum of weight x sum / denominator over terms, each over the whole global batch. `objective.py`
has the interface of an objective.
"""

from collections.abc import Mapping

from models.transformer.task_head import Task
from pretrain.errors import UserError, lookup, nearest
from pretrain.losses.causal import Causal
from pretrain.losses.distill import Distilled
from pretrain.losses.electra import Replaced
from pretrain.losses.examples import Choice, Classification, Regression, Tagging
from pretrain.losses.extraction import Extraction
from pretrain.losses.mlm import Masked
from pretrain.losses.sentences import Siamese
from pretrain.losses.seq2seq import Denoising, Spans, TextToText, Translation
from pretrain.losses.xlnet import Permutation

OBJECTIVES = {
    "causal": Causal,
    "masked": Masked,
    "spans": Spans,
    "replaced": Replaced,
    "translation": Translation,
    "permutation": Permutation,
    "denoising": Denoising,
    "classification": Classification,
    "regression": Regression,
    "choice": Choice,
    "tagging": Tagging,
    "extraction": Extraction,
    "text": TextToText,
    "siamese": Siamese,
}


def task(section: Mapping) -> Task | None:
    """The head that the objective of `config.objective` needs in place of those of pretraining; None for most."""
    objective = lookup("config.objective.kind", section["kind"], OBJECTIVES)
    return objective.of_section(section).task(section)


def build(config, model):
    """Build the objective of `config.objective` for `model`. Errors: UserError where the two do not match."""
    kind, selects = config.objective.kind, config.objective.selects
    objective = lookup("config.objective.kind", kind, OBJECTIVES).of_section(config.objective)
    if not objective.serves(model):
        raise UserError(
            f"config.objective.kind={kind} needs {objective.needs}, and config.model.kind={config.model.kind} is none. "
            "Change one of them."
        )
    for key in ("z_loss", "label_smoothing"):
        if config.train[key] and not (objective.supports_smoothing and model.single_softmax):
            raise UserError(
                f"config.train.{key}={config.train[key]} excludes config.objective.kind={kind} and "
                "config.model.cutoffs. Set it to 0."
            )
    objective = objective.from_config(config, model)
    if config.distill.teacher:
        objective = Distilled.from_config(config, model, objective)
    elif config.distill.layers:
        raise UserError(
            f"config.distill.layers={tuple(config.distill.layers)} needs a teacher. Set config.distill.teacher, or "
            "--config.distill.layers=()."
        )
    # A share such as `found` is no loss, and a ratio of two terms is no sum.
    known = {*objective.reported_terms, "loss", *objective.metrics}
    if selects not in known:
        raise UserError(f"config.objective.selects is '{selects}'{nearest(selects, known)}")
    return objective


def compute_terms(objective, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
    """Every term (sum / denominator) and ratio; and `loss`, their weighted sum, where no term has that name."""
    # Without a predicted token sum and count are 0, and so is the term.
    terms = {name: sums[name] / max(counts[name], 1.0) for name in objective.terms}
    loss = {} if "loss" in terms else {"loss": sum(weight * terms[name] for name, weight in objective.terms.items())}
    ratios = {name: terms[top] / terms[low] if terms[low] else 0.0 for name, (top, low) in objective.ratios.items()}
    return loss | {name: terms[name] for name in objective.reported_terms} | ratios


def selection_loss(objective, selects: str, terms: Mapping[str, float]) -> float:
    """The quantity that the best checkpoint minimises: the selected term, or 1 - an accuracy or another metric."""
    return 1 - terms[selects] if selects.endswith("accuracy") or selects in objective.metrics else terms[selects]
