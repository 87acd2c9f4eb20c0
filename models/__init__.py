"""Flax Linen models: shapes in, shapes out. They know nothing of data, loss, mesh or config files.

The axis alphabet, used in every shape comment and einsum of the project:

    B batch, T query length, S key length, D model width, N heads, G key/value heads, H head size,
    F feed-forward, V vocabulary, L layers, M memory length

`build(section)` makes a model of a config's model section; everything else is imported from the module that holds it.

What every model offers, so that nobody outside need know which it is:

    inputs                 the features of a batch that its call takes, by name
    example()              the smallest inputs, which it can be initialised with
    model(**inputs, carried, row, train) -> Output(hidden, carried)
    start(lanes)           what lanes carry from batch to batch, at the start of their streams, boxed with the names of
                           its axes; {} for models without
    start_decoding(rows, length, **source)   what decoding carries from token to token; `source` are the inputs besides
                           tokens that what is written follows from, such as an encoder's
    vocab_size, reads      the ids that it predicts, and those that it can read
    limits                 of the inputs whose numbers index a table: below what those are, by name
    causal                 whether no token sees a later one: then padding, which comes last, needs no segments
    one_softmax            whether one softmax gives all probabilities
    tells_replaced         whether it is a generator and a discriminator, which tells what the first replaced
    head_inputs(hidden)    (hidden, matrix, bias) of that softmax, or None
    softmaxes(hidden)      where it is None: the same of each softmax of an adaptive vocabulary
    logits(hidden)         float32, over the whole vocabulary
    tells_pairs            whether pooled(hidden) and pair_logits(hidden) tell pairs of texts apart
    types                  of encoders: how many texts of a row their type table tells apart; 0 where there is none
    generator_size, head   of replaced_tokens: the generator's width as a share, and what the discriminator's head
                           tells; then generate(tokens, ...), like the call, and generator_inputs(hidden), like
                           head_inputs, are the generator's, and replaced_logits(hidden) or copy_logits(hidden) the
                           discriminator's

`row` [B] is each row's place in the whole global batch. What is carried maps the name of a branch to what it carries.
"""

from models.build import build, why_absent
from models.errors import ModelError

__all__ = ["ModelError", "build", "why_absent"]
