"""ELECTRA (Clark et al. 2020): a generator's loss on masked tokens, and a discriminator's on all tokens.

The discriminator reads the text with the generator's samples in place of the masked tokens. Its model's head decides
whether it detects replaced tokens, or predicts the original ones (the paper's ablations, section 3.4).
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from models.layers.logits import head_logits
from pretrain.losses.cross_entropy import cross_entropy, rows_per_chunk, sum_in_chunks
from pretrain.losses.objective import BoundModel, Objective, perplexity

SAMPLING = 1  # folded into a step's key for samples; dropout uses the key itself


@dataclasses.dataclass(frozen=True)
class Replaced(Objective):
    """`mlm` in nats per slot of the generator; `rtd` or `original` in nats per scored token of the discriminator.

    `rtd` (replaced-token detection) also reports the shares of tokens that are `replaced`, `suspected` by the
    discriminator at even odds, and both (`found`), which give recall and precision. Calling every token original is
    right for nine tokens in ten and has a recall of 0.
    """

    head: str
    weight: float
    generates: bool  # False: replacements are drawn uniformly from all ids
    vocab_size: int

    needs = "a replaced_tokens model"

    @classmethod
    def serves(cls, model) -> bool:
        return model.has_discriminator

    @classmethod
    def from_config(cls, config, model) -> "Replaced":
        return cls(model.head, config.objective.weight, model.generator_size > 0, model.vocab_size)

    @property
    def batch_features(self) -> tuple[str, ...]:
        generator = ("targets", "weights") if self.generates else ()
        return ("slots", "originals", "chosen", "token_weights", "draw", *generator)

    @property
    def terms(self) -> Mapping[str, float]:
        generator = {"mlm": 1.0, "mlm_accuracy": 0.0} if self.generates else {}
        if self.head != "replaced":
            return generator | {"original": self.weight, "original_accuracy": 0.0}
        reported = dict.fromkeys(("rtd_accuracy", "replaced", "suspected", "found"), 0.0)
        return generator | {"rtd": self.weight} | reported

    @property
    def ratios(self) -> Mapping[str, tuple[str, str]]:
        if self.head != "replaced":
            return {}
        return {"recall": ("found", "replaced"), "precision": ("found", "suspected")}

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        slots, tokens = jnp.sum(batch["weights"]) if self.generates else None, jnp.sum(batch["token_weights"])
        return {name: slots if name.startswith("mlm") else tokens for name in self.terms}

    def score(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None):
        base = jax.random.key(0) if key is None else key  # evaluation draws the same samples each time
        base = jax.random.fold_in(base, SAMPLING)
        # One key a row, by its number in the data: however a batch is split, a row draws the same samples.
        keys = jax.vmap(lambda number: jax.random.fold_in(base, number))(batch["draw"])
        sums, samples = self._generate(model, batch, keys, key)
        # `chosen` marks the masked places: slots that only pad a row change nothing.
        written = jnp.put_along_axis(batch["originals"], batch["slots"], samples, axis=1, inplace=False)
        tokens = jnp.where(batch["chosen"], written, batch["originals"])
        # Samples are integers, so no gradient reaches the generator from here (section 2).
        states, carried = model(batch | {"tokens": tokens}, carried, key)
        score_tokens = self._detect if self.head == "replaced" else self._predict
        return sums | score_tokens(model, states, tokens, batch), carried

    def _generate(self, model: BoundModel, batch: Mapping, keys, key):
        """The generator's sums and its samples [B, N]; two slots of one place have the same sample."""
        if not self.generates:
            # A draw by place, not by slot: slots that repeat a place write the same id.
            places = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(keys, batch["slots"])
            return {}, jax.vmap(jax.vmap(lambda one: jax.random.randint(one, (), 0, self.vocab_size)))(places)
        # The generator reads the masked tokens of the batch, before samples replace them.
        states, _ = model(batch, {}, key, "generate")
        at_slots = jnp.take_along_axis(states, batch["slots"][..., None], axis=1)  # [B, N, D]
        head = model.run("generator_inputs", at_slots)
        draws = keys, batch["slots"]
        loss, _, right, samples = cross_entropy(*head, batch["targets"], batch["weights"], accuracy=True, draws=draws)
        return {"mlm": loss, "mlm_accuracy": right}, samples

    def _detect(self, model: BoundModel, states, tokens, batch: Mapping):
        """Which tokens are replaced: a sample that equals the original is none (section 2)."""
        logits = model.run("replaced_logits", states)
        is_replaced, weights = tokens != batch["originals"], batch["token_weights"]
        # A logit above 0 is a probability above 1/2.
        suspected = logits > 0
        reported = {
            "rtd_accuracy": suspected == is_replaced,
            "replaced": is_replaced,
            "suspected": suspected,
            "found": suspected & is_replaced,
        }
        # Binary cross-entropy with logits: log(1 + e^x) - y x.
        loss = jnp.sum(weights * (jax.nn.softplus(logits) - jnp.where(is_replaced, logits, 0.0)))
        return {"rtd": loss} | {name: jnp.sum(weights * which) for name, which in reported.items()}

    def _predict(self, model: BoundModel, states, tokens, batch: Mapping):
        """Which token of the original text is at each place."""
        hidden, matrix, bias = model.run("head_inputs", states)
        targets, weights = batch["originals"], batch["token_weights"]
        if self.head == "copied":
            gates, matrix = model.run("copy_logits", states), matrix.astype(hidden.dtype)
            loss, right = copy_cross_entropy(hidden, matrix, bias, gates, tokens, targets, weights)
        else:
            loss, _, right = cross_entropy(hidden, matrix, bias, targets, weights, accuracy=True)
        return {"original": loss, "original_accuracy": right}

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """The generator's perplexity, and the number of tokens that the discriminator is scored on."""
        generator = {"perplexity": perplexity(terms["mlm"])} if self.generates else {}
        scored = "rtd" if self.head == "replaced" else "original"
        return generator | {"tokens": int(totals["counts"][scored])}

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", *self.reported_terms, *self.ratios, *(["perplexity"] if self.generates else []))


def copy_cross_entropy(hidden, matrix, bias, gates, tokens, targets, weights, *, chunk: int | None = None):
    """(loss, right) of a softmax with a copy mechanism (section 3.4, All-Tokens MLM): weighted sums over targets.

    A token is copied from `tokens` with probability sigmoid(gate), and else drawn from the softmax. hidden [B, T, E],
    matrix [V, E], bias [V]; gates [B, T]; tokens, targets [B, T] int; weights [B, T] float32.
    """
    rows = chunk or rows_per_chunk(matrix.shape[0])
    return sum_in_chunks(_copy_chunk, rows, (hidden, gates), (matrix, bias), (tokens, targets, weights))


def _copy_chunk(learned, shared, given, known):
    (hidden, gates), (tokens, targets, weights) = learned, given
    log_probs = jax.nn.log_softmax(head_logits(hidden, *shared))
    copy, draw = jax.nn.log_sigmoid(gates), jax.nn.log_sigmoid(-gates)

    def log_drawn(ids):
        return draw + jnp.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]

    # Both paths in log space: products of two small probabilities would underflow.
    # The token that is read can come both ways: log(p_copy + p_draw p_softmax).
    of_target, of_token = log_drawn(targets), jnp.logaddexp(copy, log_drawn(tokens))
    log_likelihood = jnp.where(tokens == targets, of_token, of_target)
    right = log_likelihood >= jnp.maximum(draw + log_probs.max(-1), of_token)
    return -jnp.sum(weights * log_likelihood), jnp.sum(weights * right)
