"""Objectives, second half: from hidden states to named terms (first half: `input_pipeline.corruption`).

Training minimises the sum of weight x sum / denominator over terms, each over the whole global batch.
An objective has

    batch_features           features of a batch that it reads besides the model's inputs
    terms                    {name: weight}; a weight of 0 only reports
    denominators(batch)      {name: denominator}, functions of the batch alone: they are summed over the parts of a
                             batch and over devices before anything is differentiated
    score(model, params, batch, carried, key)
                             ({name: sum over the batch}, recurrent state); `key` None means no dropout

    ratios                   {name: (numerator term, denominator term)}: reported instead of the two
    summarize(terms, totals, data), metric_names
                             further metrics of an evaluation, and the names of those that are shown
    bits_metric              the name of its bits a unit of text; None where it predicts a part of a text
    decode_metrics           names of the metrics of decoded text (`pretrain.evaluation.decoded`)
    supports_smoothing       whether config.train.z_loss and .label_smoothing apply
    distill_mask             the feature [B, T] above 0 where a teacher's output is compared
    teacher                  a teacher's model, whose parameters are `model.frozen`; None without
    prompts(batch)           of decode_metrics: (ids [B, P] that begin the output, encoder features)
"""

from collections.abc import Mapping

from pretrain.errors import UserError, nearest
from pretrain.losses.causal import Causal
from pretrain.losses.distill import Distilled
from pretrain.losses.electra import Replaced
from pretrain.losses.mlm import Masked
from pretrain.losses.seq2seq import Denoising, Spans, Translation
from pretrain.losses.xlnet import Permutation

OBJECTIVES = {
    "causal": Causal,
    "masked": Masked,
    "spans": Spans,
    "replaced": Replaced,
    "translation": Translation,
    "permutation": Permutation,
    "denoising": Denoising,
}


def build(config, model):
    """Build the objective of `config.objective` for `model`. Errors: UserError where the two do not match."""
    kind, selects = config.objective.kind, config.objective.selects
    if kind not in OBJECTIVES:
        raise UserError(f"config.objective.kind is '{kind}'{nearest(kind, OBJECTIVES)}")
    objective = OBJECTIVES[kind].from_config(config, model)
    for key in ("z_loss", "label_smoothing"):
        if config.train[key] and not objective.supports_smoothing:
            raise UserError(f"config.train.{key}={config.train[key]} does not serve objective '{kind}'. Set it to 0.")
    if config.distill.teacher:
        objective = Distilled.from_config(config, model, objective)
    elif config.distill.layers:
        raise UserError(
            f"config.distill.layers={tuple(config.distill.layers)} needs a teacher. Set config.distill.teacher, or "
            "--config.distill.layers=()."
        )
    inside_ratios = {name for ratio in objective.ratios.values() for name in ratio}
    # A share such as `found` is no loss, and a ratio of two terms is no sum.
    known = {*objective.terms, "loss"} - inside_ratios
    if selects not in known:
        raise UserError(f"config.objective.selects is '{selects}'{nearest(selects, known)}")
    return objective


def compute_terms(objective, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
    """Every term (sum / denominator) and ratio; and `loss`, their weighted sum, where no term has that name."""
    # Without a predicted token sum and count are 0, and so is the term.
    terms = {name: sums[name] / max(counts[name], 1.0) for name in objective.terms}
    loss = {} if "loss" in terms else {"loss": sum(weight * terms[name] for name, weight in objective.terms.items())}
    ratios = {name: terms[top] / terms[low] if terms[low] else 0.0 for name, (top, low) in objective.ratios.items()}
    inside_ratios = {name for ratio in objective.ratios.values() for name in ratio}
    return loss | {name: value for name, value in terms.items() if name not in inside_ratios} | ratios


def selection_loss(selects: str, terms: Mapping[str, float]) -> float:
    """The quantity that the best checkpoint minimises: the selected term, or 1 - an accuracy."""
    return 1 - terms[selects] if selects.endswith("accuracy") else terms[selects]
