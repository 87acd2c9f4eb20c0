"""Pretraining tasks, their second half: scores of a batch, as named terms (the first: `input_pipeline.corruption`).

An objective has

    reads                    features of a batch that it looks at, besides those that the model takes
    terms                    {name: weight}; what has the weight 0 is only reported
    denominators(batch)      {name: what its sum is divided by}, of the batch alone, so that it can be summed over the
                             parts of a batch and over devices before anything is differentiated
    score(model, params, batch, carried, key)
                             ({name: sum over the batch}, what the lanes carry on); `key` None means no dropout

    ratios                   where there are some: {name: (of two terms that only report, one by the other)}, of what
                             has no denominator that the batch alone knows; the two are shown as that alone
    figures(terms, totals, data), measures
                             what a scoring pass says besides, and the names of what is shown
    bits                     the name of its bits of a unit of text; None where it predicts but a part of a text
    decoded                  names of the measures that need what the model writes by itself
                             (`pretrain.evaluation.decoded`); () where it writes nothing that a batch could judge
    smooths                  whether config.train.z_loss and .label_smoothing act on it
    taught                   where there can be a teacher: the feature [B, T] that is above 0 where a token is compared
                             with what the teacher makes of it
    teacher                  where there is one: the model that the student learns from, whose parameters are
                             `model.frozen`
    prompts(batch)           where there are some: what it writes from in each row, one example a row: (ids [B, P], the
                             other features that it reads)

What training minimises is the sum of weight x sum / denominator, each over the whole global batch.
"""

from collections.abc import Mapping

from pretrain.errors import UserError, nearest
from pretrain.losses.causal import Causal
from pretrain.losses.denoising import Denoising
from pretrain.losses.distill import Distilled
from pretrain.losses.electra import Replaced
from pretrain.losses.mlm import Masked
from pretrain.losses.spans import Spans
from pretrain.losses.translation import Translation
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
    """The objective of `config.objective`, scored on `model`. Raises UserError where the two do not go together."""
    kind, selects = config.objective.kind, config.objective.selects
    if kind not in OBJECTIVES:
        raise UserError(f"config.objective.kind is '{kind}'{nearest(kind, OBJECTIVES)}")
    objective = OBJECTIVES[kind].of(config, model)
    for key in ("z_loss", "label_smoothing"):
        if config.train[key] and not objective.smooths:
            raise UserError(
                f"config.train.{key} = {config.train[key]} is not for config.objective.kind = {kind}; set it to 0"
            )
    if config.distill.teacher:
        objective = Distilled.of(config, model, objective)
    elif config.distill.layers:
        raise UserError(
            f"config.distill.layers = {tuple(config.distill.layers)} are those of a teacher, and there is none; set "
            "config.distill.teacher, or --config.distill.layers=()"
        )
    known = {*objective.terms, "loss"} - {name for ratio in objective.ratios.values() for name in ratio}
    if selects not in known:
        raise UserError(f"config.objective.selects is '{selects}'{nearest(selects, known)}")
    return objective


def reported(objective, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
    """Every term, its sum by its denominator; and `loss`, their weighted sum, where none has that name.

    Of two terms that make a ratio there is that in their place, 0 where there is nothing to divide by.
    """
    terms = {name: sums[name] / max(counts[name], 1.0) for name in objective.terms}
    loss = {} if "loss" in terms else {"loss": sum(weight * terms[name] for name, weight in objective.terms.items())}
    ratios = {name: terms[some] / terms[of] if terms[of] else 0.0 for name, (some, of) in objective.ratios.items()}
    counted = {name for ratio in objective.ratios.values() for name in ratio}
    return loss | {name: value for name, value in terms.items() if name not in counted} | ratios


def cost(selects: str, terms: Mapping[str, float]) -> float:
    """What the best checkpoint has the least of: the term that selects, or what an accuracy lacks."""
    return 1 - terms[selects] if selects.endswith("accuracy") else terms[selects]
