"""FLOPs per token, under one stated definition.

The count includes multiply-adds of matrix products and convolutions, two FLOPs each, in the traced forward pass of the
objective on its model: projections, attention scores, weighted values, feed-forward, logits. The backward pass costs
two forward passes, so training costs three; a teacher costs one. Table look-ups, norms, softmax, the optimizer and
rematerialization count as zero.

Attention has two conventions, whichever backend computes it. `full`: a causal dense layer is charged all T keys of the
row, as in most published figures. `causal`: it is charged the keys it can see, (T + 1) / 2 on average. A sparse layer
is charged the keys it can see in both.

Transformer-XL's keys include its memory, whose keys and values are projected again in every segment. An adaptive
softmax is charged all its clusters for every token. What is computed once per batch, whatever its rows, is left out.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import jax
import numpy as np
from flax import linen as nn
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Primitive

from models.attention.backend import Backend
from models.attention.patterns import Dense, Pattern, parse_pattern, per_head
from models.layers.logits import single_chunk
from models.transformer.block import Block
from pretrain.losses.objective import STATES, TEACHER, BoundModel
from pretrain.step import recurrent_state
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import READ, unboxed

TRAIN = 3  # forward passes per training step: one, and a backward pass of twice its products


def flops_per_token(spec: TrainSpec, length: int) -> dict[str, float]:
    """FLOPs of training per token read, in rows of `length`: {"full": FLOPs, "causal": FLOPs}."""
    return of_training(forward_flops(spec, length))


def of_training(forward: dict[str, dict[str, float]]) -> dict[str, float]:
    """Training FLOPs per token by convention, from the result of `forward_flops`."""
    return {
        convention: sum(count * (1 if part == TEACHER else TRAIN) for part, count in parts.items())
        for convention, parts in forward.items()
    }


def forward_flops(spec: TrainSpec, length: int) -> dict[str, dict[str, float]]:
    """Forward FLOPs per token by part of the model: {"full": {part: FLOPs}, "causal": {...}}.

    Parts are the branches of the layers by name, with attention's inner products apart from its projections, then what
    comes before and after the layers, and the teacher as a whole.
    """
    model = spec.model.clone(attention_path=DESCRIBED)
    # The difference of a trace of two rows and one of one row: work done once per batch cancels.
    one, two = (_trace(spec, model, rows, length) for rows in (1, 2))
    tokens, counts = tokens_of_row(spec, length), {}
    for convention in CONVENTIONS:
        charges = PRODUCTS | {ATTENTION.name: partial(attention_multiply_adds, convention=convention)}
        of_row = multiply_adds(two, charges)
        of_row.subtract(multiply_adds(one, charges))
        counts[convention] = {part: 2 * count / tokens for part, count in _by_part(of_row).items()}
    return counts


def tokens_of_row(spec: TrainSpec, length: int) -> int:
    """Tokens that the model reads of a full row of `length`."""
    features = spec.features(1, length)
    return sum(math.prod(features[name].shape) for name in READ if name in features)


def _trace(spec: TrainSpec, model: nn.Module, rows: int, length: int):
    """The traced forward pass of `rows` rows, without dropout."""
    batch, carried = spec.batch_shapes(rows, length), recurrent_state.shapes(model, rows)
    objective, frozen = spec.objective, unboxed(spec.frozen_parameters)
    if frozen:
        teacher = objective.teacher.clone(attention_path=DESCRIBED)
        objective = dataclasses.replace(objective, teacher=teacher)

    def forward(params, batch, carried, frozen):
        return objective.score(BoundModel(model, params, spec.inputs, frozen), batch, carried, None)

    with single_chunk():
        return jax.make_jaxpr(forward)(spec.param_shapes, batch, carried, frozen).jaxpr


def _by_part(counts: Counter) -> dict[str, int]:
    """Multiply-adds by part in program order; scopes are Flax module names."""
    attending = {_branch(scopes) for scopes, primitive in counts if primitive == ATTENTION.name}
    parts = Counter()
    for (scopes, primitive), count in counts.items():
        branch = _branch(scopes)
        if TEACHER in scopes:
            part = TEACHER
        elif primitive == ATTENTION.name:
            part = f"{branch or 'attention'} scores and values"
        elif branch:
            part = f"{branch} projections" if branch in attending else branch
        else:
            part = "embedding projections" if scopes[:1] == (STATES,) else "logits"
        parts[part] += count
    return {part: count for part, count in parts.items() if count}


def _branch(scopes: tuple[str, ...]) -> str | None:
    """The branch of a block that the scopes are in; Flax numbers unnamed blocks."""
    blocks = (place for place, scope in enumerate(scopes[:-1]) if scope.partition("_")[0] == Block.__name__)
    place = next(blocks, None)
    return None if place is None else scopes[place + 1].replace("_", "-")


Charge = Callable[[JaxprEqn], int]  # from an equation to its multiply-adds


def _dot_general(equation: JaxprEqn) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)


def _convolution(equation: JaxprEqn) -> int:
    kernel = equation.invars[1].aval
    # Each output element sums over the kernel's window and input features: kernel.size / output features.
    features = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
    return equation.outvars[0].aval.size * kernel.size // features


PRODUCTS: Mapping[str, Charge] = {"dot_general": _dot_general, "conv_general_dilated": _convolution}


def multiply_adds(program: Jaxpr, charges: Mapping[str, Charge] = PRODUCTS) -> Counter[tuple[tuple[str, ...], str]]:
    """Multiply-adds of a program and of all that it calls: {(scopes, outermost first; primitive): how many}.

    `charges` has the primitives that cost something. A loop costs its body, times its length; of branches the dearest
    counts. The same product of the same numbers, written twice, is made once, as compilers see to.
    """
    total = Counter()
    for equation in _distinct(program):
        scopes, name = tuple(filter(None, str(equation.source_info.name_stack).split("/"))), equation.primitive.name
        if name in charges:
            total[scopes, name] += charges[name](equation)
            continue
        called = [multiply_adds(one, charges) for one in _called(equation)]
        assert name not in UNKNOWN or not any(called), f"nothing tells how often '{name}' makes its products"
        # Only one branch runs; charge the most expensive.
        if name == "cond":
            called = [max(called, key=Counter.total)]
        times = equation.params["length"] if name == "scan" else 1
        for counter in called:
            for (inner, product), count in counter.items():
                total[scopes + inner, product] += times * count
    return total


UNKNOWN = ("while", "pallas_call")


def _called(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The programs that an equation runs: bodies of loops, of branches, of functions with a gradient of their own."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            program = getattr(one, "jaxpr", one)
            if isinstance(program, Jaxpr):
                yield program


def _distinct(program: Jaxpr) -> Iterator[JaxprEqn]:
    """The equations of a program without repeats of an earlier one; equations that call programs all count."""
    # Common subexpression elimination, as XLA does it: `same` maps a variable to an equal earlier one.
    same, seen = {}, {}

    def canonical(value):
        return (str(value), value.aval) if isinstance(value, Literal) else same.get(value, value)

    for equation in program.eqns:
        if any(_called(equation)):
            yield equation
            continue
        key = equation.primitive, *map(canonical, equation.invars), *map(str, equation.params.items())
        if key in seen:
            same.update(zip(equation.outvars, seen[key], strict=True))
        else:
            seen[key] = equation.outvars
            yield equation


CONVENTIONS = ("full", "causal")


@dataclass(frozen=True)
class Visible:
    """Which keys T queries may see of S, as far as that is known before there is data.

    Segments, padding, a prefix and a permutation's order hide nothing here.
    """

    pattern: Pattern
    causal: bool
    first: int  # key column at which the first query stands

    def keys(self, T: int, S: int, convention: str) -> int:
        """Keys that all the queries together are charged by a convention of `pretrain.costs.flops`."""
        return _keys(self, T, S, convention)


@lru_cache(maxsize=256)
def _keys(visible: Visible, T: int, S: int, convention: str) -> int:
    if isinstance(visible.pattern, Dense) and (convention == "full" or not visible.causal):
        return T * S
    positions = visible.first + np.arange(T)
    before = positions + 1 if visible.causal else np.full(T, S)
    return int(visible.pattern.count(positions, before).sum())


def keys_per_query(word: str, heads: int, length: int, convention: str) -> float:
    """Keys that a query of a causal row of `length` tokens is charged, in the mean over queries and heads."""
    patterns = per_head(parse_pattern(word), heads)
    total = sum(Visible(pattern, True, 0).keys(length, length, convention) for pattern in patterns)
    return total / (heads * length)


def _describe(query, key, value, mask, bias, dropout, scale):
    """Attention [B, T, N, H] as one equation."""
    # The position of queries in a cache is data, unknown here.
    visible = Visible(mask.pattern, mask.causal and mask.offset is None, mask.memory)
    return ATTENTION.bind(query, key, value, visible=visible, bias=0 if bias is None else bias.products)


DESCRIBED = Backend("described", run=_describe, unsupported=lambda request: None)
ATTENTION = Primitive("attention")


@ATTENTION.def_abstract_eval
def _result(query, key, value, **asked):
    return query.update(shape=(*query.shape[:3], value.shape[3]))


def attention_multiply_adds(equation: JaxprEqn, convention: str) -> int:
    """Multiply-adds of one such equation: scores, what biases they have, and weighted values."""
    query, key, value = (one.aval.shape for one in equation.invars)
    B, T, heads, size = query
    keys = equation.params["visible"].keys(T, key[1], convention)
    return B * heads * (size + equation.params["bias"] + value[3]) * keys
